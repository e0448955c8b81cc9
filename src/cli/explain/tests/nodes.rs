//! Explanations of nodes.

use std::sync::atomic::{AtomicBool, Ordering};

use belay_decide::cost::COST_ANNOTATION as COST;
use belay_decide::ownership::MANAGED_ANNOTATION as MANAGED;

use super::*;
use crate::cluster::project_cost::{self, LeftOut};
use crate::testing::{Asked, Kind};

const ALL_PODS: &str = "GET /api/v1/pods";
const ALL_SETS: &str = "GET /apis/apps/v1/replicasets";
const BUDGETS: &str = "GET /apis/policy/v1/poddisruptionbudgets";
const CLAIMS: &str = "GET /apis/karpenter.sh/v1/nodeclaims";
const POOLS: &str = "GET /apis/karpenter.sh/v1/nodepools";

/// What Karpenter adds to a cluster.
const KARPENTER: &[Kind] = &[
    Kind::of_cluster(["karpenter.sh", "v1", "NodeClaim", "nodeclaims"]),
    Kind::of_cluster(["karpenter.sh", "v1", "NodePool", "nodepools"]),
];

/// A cluster as its API server has it.
#[derive(Clone, Default)]
struct Scene {
    objects: BTreeMap<&'static str, Vec<Value>>,
    replies: BTreeMap<&'static str, Reply>,
    has_karpenter: bool,
}

fn merged(mut value: Value, merge: &Value) -> Value {
    json_patch::merge(&mut value, merge);
    value
}

fn ours(value: &str) -> Value {
    json!({"metadata": {"annotations": {COST: value, MANAGED: json!({COST: value}).to_string()}}})
}

fn annotated(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

impl Scene {
    /// Nodes of the pool `default`: `n1` with one pod of `web`, `n2` with two of `web` and one of `api`, `n3` with one
    /// of `web` and two of `api`, that has another besides.
    fn new() -> Self {
        let mut scene = Self::default();
        for name in ["n1", "n2", "n3"] {
            scene.add(
                NODES,
                json!({"metadata": {"name": name, "creationTimestamp": ago(600),
                "labels": {"karpenter.sh/nodepool": "default", "topology.kubernetes.io/zone": "a"}}}),
            );
        }
        for (name, replicas) in [("web", 4), ("api", 3)] {
            scene.add(
                ALL_SETS,
                json!({"metadata": {"namespace": "ci", "name": name, "uid": format!("uid-of-{name}")},
                "spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": name}}}}}),
            );
        }
        let pods = [
            ("web-1", "n1"),
            ("web-2", "n2"),
            ("web-3", "n2"),
            ("web-4", "n3"),
            ("api-1", "n2"),
            ("api-2", "n3"),
            ("api-3", "n3"),
        ];
        for (name, node) in pods {
            scene.pod(name, node);
        }
        scene
    }

    fn add(&mut self, what: &'static str, object: Value) {
        self.objects.entry(what).or_default().push(object);
    }

    /// A pod that serves, of the ReplicaSet that its name begins with.
    fn pod(&mut self, name: &str, node: &str) {
        let set = name.split('-').next().unwrap();
        let owner = controller("apps/v1", "ReplicaSet", set, &format!("uid-of-{set}"));
        self.add(ALL_PODS, json!({
            "metadata": {"namespace": "ci", "name": name, "uid": format!("uid-of-{name}"), "creationTimestamp": ago(60),
                "labels": {"app": set}, "ownerReferences": [owner]},
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "startTime": ago(60), "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": ago(59)}]},
        }));
    }

    /// The same with this object changed.
    fn with(mut self, what: &'static str, name: &str, merge: &Value) -> Self {
        let mut all = self.objects.get_mut(what).unwrap().iter_mut();
        let object = all.find(|object| object["metadata"]["name"] == name).expect("the test names what is there");
        json_patch::merge(object, merge);
        self
    }

    fn and(mut self, what: &'static str, object: Value) -> Self {
        self.add(what, object);
        self
    }

    fn refusing(mut self, what: &'static str, reply: Reply) -> Self {
        self.replies.insert(what, reply);
        self
    }

    fn on_karpenter(self) -> Self {
        Self { has_karpenter: true, ..self }
    }

    async fn api(&self) -> ApiServer {
        let scene = self.clone();
        ApiServer::serving(if self.has_karpenter { KARPENTER } else { &[] }, move |asked| {
            let what = asked.what.as_str();
            scene.replies.get(what).cloned().unwrap_or_else(|| {
                let empty = [NODES, ALL_SETS, ALL_PODS, BUDGETS, CLAIMS, POOLS].contains(&what).then(Vec::new);
                match scene.objects.get(what).cloned().or(empty) {
                    Some(objects) => page(&objects, asked),
                    None => Reply::Status(404, "there is no such thing"),
                }
            })
        })
        .await
    }

    async fn explain_by(&self, settings: &str, node: &str) -> (Value, String) {
        let api = self.api().await;
        let now = Clock::wall();
        let seen = gather::cluster(&api.client, &testing::config(settings), "belay-system", now).await.unwrap();
        assert!(api.asked().iter().all(|asked| asked.what.starts_with("GET ")), "nothing is changed");
        let report = node::explain(&seen, node, now).expect("there is such a node");
        told(&report)
    }

    async fn explain(&self, node: &str) -> (Value, String) {
        self.explain_by("deletionCost: {enabled: true}", node).await
    }
}

/// Two objects at a time for who asks for pages.
fn page(objects: &[Value], asked: &Asked) -> Reply {
    if !asked.query.contains_key("limit") {
        return list(objects);
    }
    let from = asked.query.get("continue").map_or(0, |token| token.parse().expect("a token of ours"));
    let to = objects.len().min(from + 2);
    let next = if to < objects.len() { to.to_string() } else { String::new() };
    Reply::Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": next},
        "items": objects[from..to]}))
}

#[tokio::test]
async fn the_cluster_is_read_in_pages_and_begun_anew_where_one_is_too_old() {
    let scene = Scene::new().on_karpenter();
    let refused = AtomicBool::new(false);
    let answering = scene.clone();
    let api = ApiServer::serving(KARPENTER, move |asked| {
        if asked.what == ALL_PODS && asked.query.contains_key("continue") && !refused.swap(true, Ordering::Relaxed) {
            return Reply::Status(410, "The provided continue parameter is too old");
        }
        answering.objects.get(asked.what.as_str()).map_or_else(|| list(&[]), |objects| page(objects, asked))
    })
    .await;
    let config = testing::config("deletionCost: {enabled: true}");
    let seen = gather::cluster(&api.client, &config, "belay-system", Clock::wall()).await.unwrap();
    assert_eq!((seen.cluster.pods_of("uid-of-web").len(), seen.cluster.pods_of("uid-of-api").len()), (4, 3));
    let asked = api.asked();
    assert!(asked.iter().all(|asked| asked.query["limit"] == "500"), "{asked:?}");
    let pods: Vec<_> = asked.iter().filter(|asked| asked.what == ALL_PODS).collect();
    let tokens: Vec<_> = pods.iter().map(|asked| asked.query.get("continue").map_or("", String::as_str)).collect();
    assert_eq!(tokens, ["", "2", "", "2", "4", "6"]);
}

#[tokio::test]
async fn a_ranked_node_is_explained_by_its_place_its_neighbours_and_what_goes_next() {
    let scene = Scene::new()
        .with(ALL_PODS, "web-4", &ours("-5"))
        .with(ALL_PODS, "web-1", &ours("-900"))
        .with(ALL_PODS, "api-2", &annotated(COST, "100"))
        .with(ALL_PODS, "web-3", &json!({"metadata": {"deletionTimestamp": ago(1)}}));
    let (json, text) = scene.explain("n2").await;
    let rank = json["rank"].clone();
    let ranks = [&rank["before"]["rank"], &rank["rank"], &rank["after"]["rank"]];
    let [before, own, after] = ranks.map(|rank| rank.as_i64().unwrap());
    assert!(before < own && own < after && after < 0, "{rank}");
    assert_eq!((before, after), (-900, -5), "as they stand");
    let removal = |pod: &str, node: &str, cost: i64, owner: &str, interchangeable: bool| json!({"pod": pod, "node": node, "cost": cost, "owner": owner, "interchangeable": interchangeable});
    let about_to_be = |removal: Value, value: i64| merged(removal, &json!({"aboutToBe": value.to_string()}));
    let expected = json!({
        "name": "n2", "enabled": true, "pool": "default", "group": "Normal",
        "because": "it is not being removed, has not drifted, and nothing keeps it",
        "rank": {"rank": own, "place": 2, "of": 3, "before": {"name": "n1", "rank": -900, "pods": 1},
            "after": {"name": "n3", "rank": -5, "pods": 3}},
        "pods": 2,
        "workloads": [
            {"namespace": "ci", "replicaSet": "api", "replicas": 3, "podsHere": 1, "spreadOver": [], "next": [
                about_to_be(removal("api-3", "n3", 0, "Nobody", false), -5),
                about_to_be(removal("api-1", "n2", 0, "Nobody", false), own),
                removal("api-2", "n3", 100, "Other", false),
            ]},
            {"namespace": "ci", "replicaSet": "web", "replicas": 4, "podsHere": 1, "spreadOver": [], "next": [
                removal("web-1", "n1", -900, "Belay", false),
                removal("web-4", "n3", -5, "Belay", false),
                about_to_be(removal("web-2", "n2", 0, "Nobody", false), own),
            ]},
        ],
    });
    assert_eq!(json, expected);
    let lines = [
        "Node n2 of pool default".to_owned(),
        String::new(),
        "Group: Normal".to_owned(),
        "  it is not being removed, has not drifted, and nothing keeps it".to_owned(),
        "  2 of its pods would have to run elsewhere".to_owned(),
        String::new(),
        format!("Rank: {own}, number 2 of 3 to empty"),
        "  before it: n1 (rank -900, 1 pods)".to_owned(),
        "  after it: n3 (rank -5, 3 pods)".to_owned(),
        String::new(),
        "Workloads here:".to_owned(),
        String::new(),
        "  ReplicaSet ci/api: 1 of 3 pods here".to_owned(),
        "  the next scale-down takes, in this order:".to_owned(),
        "  POD    NODE      COST".to_owned(),
        "  api-3  n3        0 (Nobody)   about to be -5".to_owned(),
        format!("  api-1  n2, here  0 (Nobody)   about to be {own}"),
        "  api-2  n3        100 (Other)".to_owned(),
        String::new(),
        "  ReplicaSet ci/web: 1 of 4 pods here".to_owned(),
        "  the next scale-down takes, in this order:".to_owned(),
        "  POD    NODE      COST".to_owned(),
        "  web-1  n1        -900 (Belay)".to_owned(),
        "  web-4  n3        -5 (Belay)".to_owned(),
        format!("  web-2  n2, here  0 (Nobody)    about to be {own}"),
        String::new(),
    ];
    assert_eq!(text, lines.join("\n"));
}

#[tokio::test]
async fn the_first_and_the_last_node_to_empty_have_one_neighbour() {
    let scene = Scene::new();
    let (first, text) = scene.explain("n1").await;
    assert_eq!(
        (&first["rank"]["place"], first["rank"].get("before"), &first["rank"]["after"]["name"]),
        (&json!(1), None, &json!("n2"))
    );
    assert!(!text.contains("before it:") && text.contains("after it: n2"), "{text}");
    let (last, _) = scene.explain("n3").await;
    assert_eq!(
        (&last["rank"]["place"], &last["rank"]["before"]["name"], last["rank"].get("after")),
        (&json!(3), &json!("n2"), None)
    );
}

#[tokio::test]
async fn why_a_node_is_not_to_be_emptied_is_told() {
    let budget = |allowed: i32| {
        json!({"metadata": {"namespace": "ci", "name": "api", "creationTimestamp": ago(60)},
            "spec": {"selector": {"matchLabels": {"app": "api"}}}, "status": {"disruptionsAllowed": allowed}})
    };
    let never = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"disruption": {"consolidateAfter": "Never"}}});
    let on = "deletionCost: {enabled: true}";
    let node = |merge: &Value| Scene::new().with(NODES, "n2", merge);
    let pod = |merge: &Value| Scene::new().with(ALL_PODS, "api-1", merge);
    let table = [
        (
            node(&annotated("karpenter.sh/do-not-disrupt", "true")),
            on,
            "annotation karpenter.sh/do-not-disrupt keeps it",
        ),
        (
            node(&annotated("cluster-autoscaler.kubernetes.io/scale-down-disabled", "true")),
            on,
            "annotation cluster-autoscaler.kubernetes.io/scale-down-disabled keeps it",
        ),
        (node(&json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})), on, "control plane"),
        (Scene::new().on_karpenter().and(POOLS, never), on, "consolidateAfter: Never"),
        (Scene::new(), "deletionCost: {enabled: true, nodePools: [other]}", "none of deletionCost.nodePools"),
        (
            pod(&annotated("karpenter.sh/do-not-disrupt", "true")),
            on,
            "pod ci/api-1 must stay: annotation karpenter.sh/do-not-disrupt",
        ),
        (
            pod(&annotated("karpenter.sh/do-not-disrupt", "2h")),
            on,
            "pod ci/api-1 must stay: annotation karpenter.sh/do-not-disrupt",
        ),
        (pod(&annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false")), on, "safe-to-evict: \"false\""),
        (pod(&json!({"metadata": {"ownerReferences": null}})), on, "no controller would make it anew"),
        (Scene::new().and(BUDGETS, budget(0)), on, "the PodDisruptionBudgets of pod ci/api-1 let it not be evicted"),
    ];
    for (scene, settings, words) in table {
        let (json, text) = scene.explain_by(settings, "n2").await;
        assert_eq!((&json["group"], json.get("rank"), json.get("pods")), (&json!("Protected"), None, None), "{words}");
        let because = json["because"].as_str().unwrap();
        assert!(because.contains(words), "{words:?} is not in {because:?}");
        assert!(text.contains("Group: Protected") && text.contains(because) && text.contains("Rank: none"), "{text}");
        assert!(!text.contains("would have to run elsewhere"), "{text}");
    }
    let (json, _) = Scene::new().and(BUDGETS, budget(1)).explain("n2").await;
    assert_eq!(json["group"], "Normal", "a budget that lets it go");
}

#[tokio::test]
async fn why_a_node_is_to_empty_sooner_is_told() {
    let claim = |merge: &Value| {
        let claim = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "c3"},
            "status": {"nodeName": "n3"}});
        Scene::new().on_karpenter().and(CLAIMS, merged(claim, merge))
    };
    let node = |merge: &Value| Scene::new().with(NODES, "n3", merge);
    let deleted = json!({"metadata": {"deletionTimestamp": ago(1)}});
    let drifted = json!({"status": {"conditions": [{"type": "Drifted", "status": "True"}]}});
    let table = [
        (node(&json!({"spec": {"unschedulable": true}})), "Draining", "it is being removed: cordoned"),
        (
            node(&json!({"spec": {"taints": [{"key": "karpenter.sh/disrupted"}]}})),
            "Draining",
            "it is being removed: Karpenter",
        ),
        (node(&deleted), "Draining", "the Node or its NodeClaim is being deleted"),
        (claim(&deleted), "Draining", "the Node or its NodeClaim is being deleted"),
        (claim(&drifted), "Drifted", "its NodeClaim has the condition Drifted"),
        (claim(&json!({})), "Normal", "nothing keeps it"),
    ];
    for (scene, group, words) in table {
        let (json, _) = scene.explain("n3").await;
        assert_eq!(json["group"], group, "{words}");
        assert!(json["because"].as_str().unwrap().contains(words), "{words:?} is not in {}", json["because"]);
        assert_eq!(json["rank"]["place"], if group == "Normal" { 3 } else { 1 }, "{words}");
        assert_eq!(json.get("unread"), None);
    }
}

#[tokio::test]
async fn a_node_that_waits_for_a_rank_says_for_what() {
    let (json, text) = Scene::new().explain_by("deletionCost: {enabled: true, maxNodes: 1}", "n2").await;
    assert_eq!((&json["group"], &json["pods"], json.get("rank")), (&json!("Normal"), &json!(3), None));
    let words = "it has no rank, since others are to empty sooner (1 nodes are ranked, deletionCost.maxNodes)";
    assert!(json["because"].as_str().unwrap().ends_with(words), "{json}");
    assert!(text.contains("Rank: none"), "{text}");
}

#[tokio::test]
async fn why_the_pods_of_a_workload_get_no_values_is_told() {
    let ended = json!({"status": {"phase": "Succeeded"}});
    let one = Scene::new().with(ALL_PODS, "api-2", &ended).with(ALL_PODS, "api-3", &ended);
    let api = |replicas: i32| one.clone().with(ALL_SETS, "api", &json!({"spec": {"replicas": replicas}}));
    let table = [
        (api(1), Some("it has one pod, or none")),
        (api(0), Some("it has one pod, or none")),
        (
            Scene::new().with(ALL_PODS, "api-3", &annotated(COST, "-1")),
            Some("pod api-3 carries somebody else's value below 0"),
        ),
        (Scene::new().with(ALL_PODS, "api-3", &annotated(COST, "1")), None),
    ];
    for (scene, words) in table {
        let (json, text) = scene.explain("n2").await;
        let (api, web) = (&json["workloads"][0], &json["workloads"][1]);
        assert_eq!((&api["replicaSet"], &web["replicaSet"]), (&json!("api"), &json!("web")));
        assert_eq!(web.get("withheld"), None, "{words:?}");
        match words {
            None => assert_eq!(api.get("withheld"), None),
            Some(words) => {
                assert!(api["withheld"].as_str().unwrap().contains(words), "{words:?} is not in {api}");
                assert!(text.contains(&format!("no values: {}", api["withheld"].as_str().unwrap())), "{text}");
                assert!(api["next"].as_array().unwrap().iter().all(|next| next["aboutToBe"].is_null()), "{api}");
            }
        }
    }
}

#[tokio::test]
async fn that_another_controller_is_at_work_there_is_told() {
    let words = "another controller writes deletion costs there";
    let theirs = json!({"metadata": {"annotations": {COST: "7", MANAGED: json!({COST: "-9"}).to_string()}}});
    for (names, is_of_node) in [(["web-2", "web-3", "api-1"], true), (["api-1", "api-2", "api-3"], false)] {
        let scene = Scene::new();
        let (api, now) = (scene.api().await, Clock::wall());
        let config = testing::config("deletionCost: {enabled: true}");
        let mut seen = gather::cluster(&api.client, &config, "belay-system", now).await.unwrap();
        for (seconds, name) in [0, 60, 120].into_iter().zip(names) {
            let pod = scene.objects[ALL_PODS].iter().find(|pod| pod["metadata"]["name"] == name).unwrap();
            let pod = serde_json::from_value(merged(pod.clone(), &theirs)).unwrap();
            let now = now + SignedDuration::from_secs(seconds);
            seen.cluster.put_pod(project_cost::pod(&pod, &LeftOut::default(), now), now);
        }
        let now = now + SignedDuration::from_secs(121);
        seen.cluster.look(now);
        let report = node::explain(&seen, "n2", now).unwrap();
        let (json, text) = told(&report);
        assert_eq!((json["group"] == "Protected", json["because"] == words), (is_of_node, is_of_node), "{json}");
        let (api, web) = (&json["workloads"][0], &json["workloads"][1]);
        assert_eq!((api["withheld"] == words, web.get("withheld")), (!is_of_node, None), "{json}");
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn values_that_are_to_go_constraints_and_open_orders_are_told() {
    let constraint = json!({"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2,
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}});
    let spec = json!({"spec": {"replicas": 9, "template": {"spec": {"topologySpreadConstraints": [constraint]}}}});
    let mut scene = Scene::new().with(ALL_SETS, "web", &spec);
    for at in 5..=9 {
        scene.pod(&format!("web-{at}"), "n1");
    }
    // Kubernetes takes them for equals.
    let ended = json!({"status": {"phase": "Succeeded"}});
    scene = scene.with(ALL_SETS, "api", &json!({"spec": {"replicas": 1}})).with(ALL_PODS, "api-1", &ours("-7"));
    scene = scene.with(ALL_PODS, "api-2", &ended).with(ALL_PODS, "api-3", &ended);
    let (json, text) = scene.explain("n2").await;
    let (api, web) = (&json["workloads"][0], &json["workloads"][1]);
    assert_eq!((&api["next"][0]["pod"], &api["next"][0]["aboutToBe"]), (&json!("api-1"), &json!("(removed)")));
    assert_eq!(web["spreadOver"], json!(["topology.kubernetes.io/zone (maxSkew 2)"]));
    assert!(text.contains("kept level over topology.kubernetes.io/zone (maxSkew 2)"), "{text}");
    let next = web["next"].as_array().unwrap();
    assert_eq!(next.len(), 5, "not all nine");
    assert!(next.iter().all(|next| next["node"] == "n1" && next["interchangeable"] == true), "{web}");
    assert!(text.contains("or the one below"), "{text}");
}

#[tokio::test]
async fn what_is_said_to_be_kept_level_is_what_removals_keep() {
    let constraint = |key: &str, when: &str| {
        json!({"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "web"}}})
    };
    let zone = "topology.kubernetes.io/zone";
    let on = "deletionCost: {enabled: true}";
    let zones = "deletionCost: {enabled: true, spreadZones: true}";
    let table: [(&str, Vec<Value>, Option<&str>); 5] = [
        (on, vec![constraint("kubernetes.io/hostname", "ScheduleAnyway")], None),
        (on, vec![constraint("example.com/rack", "DoNotSchedule")], None),
        (on, vec![constraint(zone, "ScheduleAnyway")], Some("topology.kubernetes.io/zone (maxSkew 1)")),
        (on, vec![], None),
        (zones, vec![], Some("topology.kubernetes.io/zone (maxSkew 1, by deletionCost.spreadZones)")),
    ];
    for (settings, constraints, expected) in table {
        let spec = json!({"spec": {"template": {"spec": {"topologySpreadConstraints": constraints}}}});
        let (json, text) = Scene::new().with(ALL_SETS, "web", &spec).explain_by(settings, "n1").await;
        let told = json["workloads"][0]["spreadOver"].as_array().unwrap();
        assert_eq!(told.iter().map(|one| one.as_str().unwrap()).collect::<Vec<_>>(), Vec::from_iter(expected));
        assert_eq!(text.contains("kept level over"), expected.is_some(), "{text}");
    }
}

#[tokio::test]
async fn pods_that_ranks_give_no_value_have_no_workload_or_are_somebody_elses() {
    let (json, text) =
        Scene::new().explain_by("deletionCost: {enabled: true}\nevictionHold: {excludedNamespaces: [ci]}", "n2").await;
    assert_eq!((&json["workloads"], &json["pods"]), (&json!([]), &json!(3)), "they lie there all the same");
    assert!(text.contains("Workloads here: none of a ReplicaSet"), "{text}");
    let rules = "
deletionCost: {enabled: true}
busyHints:
  enabled: true
  rules:
    - name: api
      podSelector: {matchLabels: {app: api}}
      states: [{state: Busy, when: 'true'}]
      hints: {deletionCost: true}
";
    let (json, _) = Scene::new().with(ALL_PODS, "api-1", &ours("7")).explain_by(rules, "n2").await;
    let next = json["workloads"][0]["next"].as_array().unwrap();
    assert!(next.iter().all(|next| next["owner"] == "Other" && next["aboutToBe"].is_null()), "{next:?}");
}

#[tokio::test]
async fn while_costs_are_off_it_is_told_what_they_would_be() {
    let (json, text) = Scene::new().explain_by("", "n2").await;
    assert_eq!((&json["enabled"], &json["rank"]["place"]), (&json!(false), &json!(2)));
    assert!(text.contains("Deletion costs are off (deletionCost.enabled); this is what they would be."), "{text}");
}

#[tokio::test]
async fn what_of_a_cluster_could_not_be_read_is_said() {
    let denied = || Reply::Status(403, "User \"dev\" cannot");
    let scene = Scene::new().on_karpenter().refusing(BUDGETS, denied()).refusing(CLAIMS, denied());
    let (json, text) = scene.refusing(POOLS, denied()).explain("n2").await;
    let expected =
        ["PodDisruptionBudgets", "NodeClaims", "NodePools"].map(|what| format!("{what}: User \"dev\" cannot"));
    assert_eq!(json["unread"], json!(expected));
    assert_eq!(json["rank"]["place"], 2, "the rest is explained");
    for unread in expected {
        assert!(text.contains(&format!("Not read: {unread}")), "{text}");
    }
    // Without these there is nothing to explain.
    for (what, named) in [(NODES, "nodes"), (ALL_SETS, "ReplicaSets"), (ALL_PODS, "pods")] {
        let api = Scene::new().refusing(what, denied()).api().await;
        let config = testing::config("");
        let error = gather::cluster(&api.client, &config, "belay-system", Clock::wall()).await.map(|_| ()).unwrap_err();
        let words = format!("cannot read {named}: User \"dev\" cannot; ask for that right");
        assert!(format!("{error:#}").starts_with(&words), "{error:#}");
    }
}

#[tokio::test]
async fn of_a_node_that_is_not_there_nothing_is_said() {
    let api = Scene::new().api().await;
    let now = Clock::wall();
    let seen = gather::cluster(&api.client, &testing::config(""), "belay-system", now).await.unwrap();
    assert!(seen.unread.is_empty(), "where Karpenter is not installed nothing is missing: {:?}", seen.unread);
    assert!(node::explain(&seen, "n4", now).is_none());
}
