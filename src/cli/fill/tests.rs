//! The watches that busy rules need, against a server on the loopback.

use std::time::Duration;

use belay_decide::busy::{Found, GroupKind};
use belay_decide::cost::cluster::Cluster;
use belay_decide::handover::surge::SURGE_ANNOTATION;
use belay_decide::policy::DefaultPolicy;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cluster::index::{BusyFacts, PodKey, WorkloadKey};
use crate::metrics::Metrics;
use crate::tasks::Tasks;
use crate::testing::{self, ApiServer, Asked, Kind, Reply};

const RULES: &str = "
- name: runner
  namespaces: [ci, shut]
  podSelector: {matchLabels: {app: runner}, matchExpressions: [{key: tier, operator: NotIn, values: [test]}]}
  owner: {group: ci.example, kind: Runner}
  linkedPods: {labelKey: job-of}
  states: [{state: Busy, when: owner.status.busy || linked.size() > 0}]
- name: member
  podSelector: {matchExpressions: [{key: member, operator: Exists}]}
  owner: {group: ci.example, kind: Pool, through: {group: gone.example, kind: Set}}
  states: [{state: Busy, when: owner.status.busy}]
- name: plain
  podSelector: {matchLabels: {app: plain}}
  states: [{state: Busy, when: 'true'}]
";

fn pod(namespace: &str, name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("{namespace}/{name}"), "resourceVersion": "1",
            "labels": labels, "creationTimestamp": "2026-11-30T12:00:00Z",
            "ownerReferences": [{"apiVersion": "ci.example/v2", "kind": "Runner", "name": "r", "uid": "r-1",
                "controller": true}]}})
}

fn list(items: &[Value]) -> Reply {
    Reply::Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

/// Lists as an API server does, of the labels that are asked for; what changes later is nothing.
fn answer(asked: &Asked) -> Reply {
    let query = |key: &str| asked.query.get(key).map(String::as_str);
    if query("watch").is_some() {
        return Reply::Silence;
    }
    match (asked.what.as_str(), query("labelSelector").unwrap_or_default()) {
        ("GET /api/v1/pods", "app=runner,tier notin (test)") => list(&[
            pod("ci", "one", &json!({"app": "runner"})),
            pod("other", "one", &json!({"app": "runner"})),
            pod("shut", "one", &json!({"app": "runner"})),
        ]),
        ("GET /api/v1/pods", "job-of") => list(&[pod("ci", "job", &json!({"job-of": "one"}))]),
        ("GET /api/v1/pods", "member" | "app=plain") => list(&[]),
        ("GET /apis/ci.example/v2/runners", "") => list(&[json!({"apiVersion": "ci.example/v2", "kind": "Runner",
            "metadata": {"namespace": "ci", "name": "r", "uid": "r-1"}, "status": {"busy": true, "more": 1}})]),
        ("GET /apis/ci.example/v1/pools", "") => Reply::Status(403, "pools is forbidden"),
        _ => Reply::Status(404, "there is no such thing"),
    }
}

#[tokio::test]
async fn what_each_rule_reads_is_watched_and_what_one_may_not_see_is_its_own_trouble() {
    let api = ApiServer::start(answer).await;
    let (rules, selects) = testing::rules(RULES);
    let (index, selects, stop) = (Index::new(rules), Arc::new(selects), CancellationToken::new());
    let watches = Watches {
        client: api.client.clone(),
        tasks: Tasks::new(stop.clone()),
        metrics: Arc::new(Metrics::default()),
        stop: stop.clone(),
    };
    let resources = Resources::default();
    let rules = Rules { excluded_namespaces: vec!["kube-system".to_owned(), "shut".to_owned()], ..Rules::default() };
    let health = fill_busy(&watches, &index, &resources, &selects, &rules);
    let known = async {
        while !health.is_governing_known()
            || health.asked(0).is_err()
            || health.asked[1].iter().any(|one| one.settled().is_err())
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), known).await.expect("the caches are not filled");

    let governed = |namespace: &str| {
        index.busy(&PodKey::new(namespace, "one"), |BusyFacts { governed, .. }| {
            governed.map(|governed| {
                let owner = match governed.seen.owner {
                    Found::Owner(owner) => owner.object.clone(),
                    Found::Missing | Found::NotAsked => Value::Null,
                };
                (governed.number, owner, governed.seen.linked.len())
            })
        })
    };
    assert_eq!(governed("ci"), Some((0, json!({"status": {"busy": true}}), 1)), "with what its rule reads alone");
    assert_eq!(governed("other"), None, "its rule is not for that namespace");
    assert_eq!(governed("shut"), None, "an excluded one");

    assert_eq!((health.pods.len(), health.asked.iter().map(Vec::len).collect::<Vec<_>>()), (3, vec![2, 2, 0]));
    let trouble = health.asked(1).unwrap_err();
    assert!(trouble.contains("Pool.ci.example") && trouble.contains("pools is forbidden"), "{trouble}");
    assert_eq!(health.asked(2), Ok(()), "it asks nobody");
    let served = |group: &str, kind: &str| resources.of(&GroupKind::new(group, kind)).is_some();
    assert!(served("ci.example", "Runner") && served("ci.example", "Pool"));
    assert!(!served("gone.example", "Set") && health.asked[1].iter().any(Health::is_synced), "which is no fault");

    let asked = api.asked();
    assert!(asked.iter().all(|asked| asked.what.starts_with("GET ")), "nothing is written");
    let lists_all = |asked: &&Asked| asked.what == "GET /api/v1/pods" && !asked.query.contains_key("labelSelector");
    assert_eq!(asked.iter().filter(lists_all).count(), 0, "no rule has all pods sent, whole");
    stop.cancel();
}

#[test]
fn a_policy_or_hold_of_a_newer_version_is_passed_over_and_said() {
    let guarded = |spec: Value| {
        serde_json::from_value::<DeserializeGuard<HandoverPolicy>>(json!({
            "apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
            "metadata": {"namespace": "ci", "name": "web", "uid": "h", "generation": 3}, "spec": spec,
        }))
        .unwrap()
    };
    let good = policy(&guarded(json!({"targetRef": {"name": "web"}})));
    assert!(matches!(&good.target, Target::Name(name) if name == "web"), "{:?}", good.target);
    let newer = policy(&guarded(json!({"targetRef": {"name": "web"}, "handover": "Teleport"})));
    assert!(matches!(&newer.target, Target::Invalid(problem) if problem.contains("Teleport")), "{:?}", newer.target);
    assert_eq!(
        (newer.view.name.as_str(), newer.uid.as_str(), newer.generation),
        ("web", "h", 3),
        "its status can be written"
    );

    let guarded = |reason: &str| {
        serde_json::from_value::<DeserializeGuard<EvictionHold>>(json!({
            "apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
            "metadata": {"namespace": "ci", "name": "w", "uid": "e"},
            "spec": {"victim": {"name": "w", "uid": "p"}, "reason": reason, "requestedAt": "2026-11-30T12:00:00Z",
                "deadline": "2026-11-30T13:00:00Z"},
        }))
        .unwrap()
    };
    assert_eq!(hold(&guarded("Retire")).map(|hold| hold.name), Some("w".to_owned()));
    assert_eq!(hold(&guarded("Moonlight")), None);
}

/// What Karpenter and KEDA add to a cluster.
const OTHERS: &[Kind] = &[
    Kind::of_cluster(["karpenter.sh", "v1", "NodeClaim", "nodeclaims"]),
    Kind::of_cluster(["karpenter.sh", "v1", "NodePool", "nodepools"]),
    Kind::in_namespaces(["keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"]),
];

/// A surge, by which a workload is being handed over.
const SURGE: &str = r#"{"workload": "d", "base": 1, "floor": 1, "surge": 1, "since": "2026-11-30T12:00:00Z"}"#;

/// A cluster of one node, which Karpenter made, with one pod of a ReplicaSet, which KEDA scales. Watches bring nothing.
fn one_of_each(asked: &Asked) -> Reply {
    if asked.query.contains_key("watch") {
        return Reply::Silence;
    }
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "s", "controller": true}]);
    let objects = match asked.what.as_str() {
        "GET /api/v1/pods" => {
            json!({"metadata": {"namespace": "ci", "name": "web-1", "uid": "p", "labels": {"app": "web"},
            "ownerReferences": owner}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}})
        }
        "GET /api/v1/nodes" => json!({"metadata": {"name": "n1", "labels": {"karpenter.sh/nodepool": "default"}}}),
        "GET /apis/apps/v1/replicasets" => json!({"metadata": {"namespace": "ci", "name": "web", "uid": "s"}}),
        "GET /apis/policy/v1/poddisruptionbudgets" => json!({"metadata": {"namespace": "ci", "name": "web"},
            "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1,
                "expectedPods": 1}}),
        "GET /apis/karpenter.sh/v1/nodeclaims" => json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c"}, "status": {"nodeName": "n1", "conditions": [{"type": "Drifted", "status": "True"}]}}),
        "GET /apis/karpenter.sh/v1/nodepools" => json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": {"name": "default"}, "spec": {"disruption": {"consolidateAfter": "Never"}}}),
        "GET /apis/apps/v1/deployments" => json!({"metadata": {"namespace": "ci", "name": "web", "uid": "d",
            "annotations": {SURGE_ANNOTATION: SURGE}}}),
        "GET /apis/autoscaling/v2/horizontalpodautoscalers" => {
            json!({"metadata": {"namespace": "ci", "name": "horizontal"},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 3}})
        }
        "GET /apis/keda.sh/v1alpha1/scaledobjects" => json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"namespace": "ci", "name": "scaled"}, "spec": {"scaleTargetRef": {"name": "web"}}}),
        _ => return list(&[]),
    };
    list(&[objects])
}

#[tokio::test]
async fn each_kind_that_a_capability_reads_is_listed_once_whoever_reads_it_and_no_other() {
    const ALL: &[&str] = &[
        "pods",
        "nodes",
        "replicasets",
        "evictionholds",
        "deployments",
        "handoverpolicies",
        "horizontalpodautoscalers",
    ];
    // Without ScaledObjects it is waited for to be known that there are none.
    const SCALED: (&str, &str) = ("scaledobject.keda.sh", "scaledobjects");
    const COSTS: &[&str] = &["poddisruptionbudgets", "nodeclaims", "nodepools"];
    const RANKED: &[&str] = &["pods", "nodes", "replicasets"];
    const BUSY: &[&str] = &["pods", "evictionholds"];
    // Eviction hold, busy hints, deletion costs; what is listed, and without which of it nothing is decided.
    let table: [([bool; 3], &[&str], &[&str]); 8] = [
        // The webhook still answers, and is ready.
        ([false, false, false], ALL, ALL),
        ([true, false, false], ALL, ALL),
        ([false, true, false], BUSY, BUSY),
        ([true, true, false], ALL, ALL),
        ([false, false, true], RANKED, &[]),
        ([true, false, true], ALL, ALL),
        ([false, true, true], &["pods", "nodes", "replicasets", "evictionholds"], BUSY),
        ([true, true, true], ALL, ALL),
    ];
    for ([hold, busy, cost], expected, needed) in table {
        for has_others in [true, false] {
            let label = format!("hold {hold}, busy {busy}, cost {cost}, others {has_others}");
            let api = ApiServer::serving(if has_others { OTHERS } else { &[] }, one_of_each).await;
            let rules = "[{name: plain, podSelector: {matchLabels: {app: x}}, states: [{state: Busy, when: 'true'}]}]";
            let config = testing::config(&format!(
                "evictionHold: {{enabled: {hold}}}\nbusyHints: {{enabled: {busy}, rules: {rules}}}\n\
                 deletionCost: {{enabled: {cost}}}"
            ));
            let stop = CancellationToken::new();
            let watches = Watches {
                client: api.client.clone(),
                tasks: Tasks::new(stop.clone()),
                metrics: Arc::new(Metrics::default()),
                stop: stop.clone(),
            };
            let options = &config.deletion_cost;
            let costs = cost.then(|| Costs::new(Cluster::new(options.options(), options.stand_down())));
            let left_out = LeftOut::of(config.rules("belay-system"), &[], &[]);
            let purpose = Purpose::of(&config, costs.clone(), left_out);
            let index = Index::new(Vec::new());
            let resources = Resources::default();
            let Reading { holds, costs: of_costs } = fill(&watches, &index, &resources, &purpose);
            let names = |health: &[Health]| health.iter().map(|one| one.what.to_lowercase()).collect::<Vec<_>>();
            let hands_over = expected.len() == ALL.len();
            let scaled = hands_over.then_some(SCALED.0);
            assert_eq!(names(&holds), needed.iter().copied().chain(scaled).collect::<Vec<_>>(), "{label}");
            assert_eq!(names(&of_costs), if cost { RANKED } else { &[] }, "{label}");
            let mut health = [holds, of_costs].concat();
            if let Some(costs) = &costs {
                health.extend(fill_costs(&watches, &resources, costs));
            }
            let filled = crate::cluster::watch::synced(&health, &stop);
            assert!(tokio::time::timeout(Duration::from_secs(20), filled).await.expect("the caches are not filled"));

            let is_list = |asked: &Asked| !asked.query.contains_key("watch");
            let mut listed: Vec<_> = api.asked().into_iter().filter(is_list).map(|asked| asked.what).collect();
            let mut expected: Vec<_> = expected.to_vec();
            expected.extend((hands_over && has_others).then_some(SCALED.1));
            match (cost, has_others) {
                (true, true) => expected.extend(COSTS),
                (true, false) => expected.push(COSTS[0]),
                (false, _) => {}
            }
            let mut listed: Vec<_> = listed.iter_mut().map(|what| what.rsplit('/').next().unwrap()).collect();
            listed.sort_unstable();
            expected.sort_unstable();
            assert_eq!(listed, expected, "{label}");
            let governing =
                index.workload(&WorkloadKey::new("ci", "web"), &DefaultPolicy::default(), |workload, _, _| {
                    Some(workload?.autoscaler?.object.name.clone())
                });
            let expected = if has_others { "scaled" } else { "horizontal" };
            assert_eq!(governing, hands_over.then(|| Some(expected.to_owned())), "{label}");

            let Some(costs) = costs else { continue };
            costs.read(|cluster| {
                assert_eq!(cluster.known_set_of("ci", "web-1"), Some(Some("s")), "{label}");
                assert!(cluster.set("s").is_some(), "{label}");
                let node = cluster.node("n1").expect("it was listed");
                assert_eq!((node.drifted, node.keep.is_some()), (has_others, has_others), "{label}");
            });
            stop.cancel();
        }
    }
}
