//! Bindings of pods: `POST /mutate/bindings`, before a real client of an API server on the loopback.

mod cached;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use belay_decide::cost::COST_ANNOTATION as COST;
use belay_decide::cost::cluster::Cluster;
use belay_decide::ownership::MANAGED_ANNOTATION as MANAGED;
use jiff::SignedDuration;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cluster::costs::{CostSink, Costs};
use crate::cluster::owners::Resources;
use crate::cluster::project_cost::{self, LeftOut};
use crate::testing::{ApiServer, Asked, Reply};

const ZONE: &str = "topology.kubernetes.io/zone";
const POD: &str = "GET /api/v1/namespaces/shop/pods/web-1";

/// The rule writes costs itself.
const RULES: &str = "
busyHints:
  enabled: true
  rules:
    - name: worker
      podSelector: {matchLabels: {rule: worker}}
      states: [{state: Busy, when: 'true'}]
      hints: {deletionCost: true}
deletionCost: {enabled: true}
evictionHold: {excludedNamespaces: [shut]}
";

/// Pods as the API server has them, by the request that reads them.
type Stored = Arc<Mutex<BTreeMap<String, Reply>>>;

struct Stage {
    webhook: Webhook,
    costs: Costs,
    stored: Stored,
    api: ApiServer,
}

/// A pod of a ReplicaSet, not bound yet.
fn pod(set: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "uid": format!("{name}-uid"), "resourceVersion": "1",
            "creationTimestamp": Clock::wall(), "labels": {"app": set},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": set,
                "controller": true}]},
        "status": {"phase": "Pending"},
    })
}

fn merged(mut value: Value, merge: &Value) -> Value {
    json_patch::merge(&mut value, merge);
    value
}

/// The review of a bind, as the scheduler causes it.
fn bind(name: &str, node: &str) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Binding"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "binding",
        "name": name, "namespace": "shop", "operation": "CREATE", "userInfo": {"username": "system:kube-scheduler"},
        "object": {"kind": "Binding", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "shop", "uid": format!("{name}-uid")},
            "target": {"kind": "Node", "name": node}},
        "oldObject": null, "dryRun": false, "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}}})
}

/// Three nodes in three zones, the last of which is not to be emptied; the ReplicaSets `web`, `single`, which has one
/// pod, and `level`, which is to be spread over zones.
fn cluster(options: belay_decide::cost::Options) -> Cluster {
    let mut cluster = Cluster::new(options, SignedDuration::from_mins(10)).only_ranks();
    let now = Clock::wall();
    for (name, zone, keep) in [("n1", "a", "false"), ("n2", "b", "false"), ("kept", "c", "true")] {
        let raw = json!({"metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {ZONE: zone}, "annotations": {"karpenter.sh/do-not-disrupt": keep}}});
        cluster.put_node(project_cost::node(&serde_json::from_value(raw).unwrap(), now));
    }
    for (name, replicas) in [("web", 3), ("single", 1), ("level", 30)] {
        let constraints = match name {
            "level" => json!([{"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": name}}}]),
            _ => json!([]),
        };
        let raw = json!({"metadata": {"namespace": "shop", "name": name, "uid": name},
            "spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": name}},
                "spec": {"topologySpreadConstraints": constraints}}}});
        cluster.put_set(project_cost::set(&serde_json::from_value(raw).unwrap()));
    }
    cluster.look(now);
    cluster
}

async fn stage() -> Stage {
    let stored = Stored::default();
    let answering = Arc::clone(&stored);
    let api = ApiServer::start(move |asked: &Asked| {
        answering.lock().get(&asked.what).cloned().unwrap_or(Reply::Status(404, "there is no such pod"))
    })
    .await;
    let config = testing::config(RULES);
    let (rules, selects) = config.busy_hints.compile().unwrap();
    let costs = Costs::new(cluster(config.deletion_cost.options()));
    let left_out = LeftOut::of(config.rules("belay-system"), &selects, &rules);
    let webhook = Webhook::with(&config, |handlers| {
        handlers.bind_time = Some(BindTime::new(costs.clone(), Vec::new(), left_out));
        handlers.live = Some(LiveReader::new(api.client.clone(), Resources::default()).patient());
    });
    Stage { webhook, costs, stored, api }
}

impl Stage {
    /// The API server has this pod.
    fn store(&self, pod: Value) {
        let meta = &pod["metadata"];
        let (namespace, name) = (meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
        let what = format!("GET /api/v1/namespaces/{namespace}/pods/{name}");
        self.stored.lock().insert(what, Reply::Json(pod));
    }

    /// The watch brings this pod.
    fn see(&self, pod: &Value) {
        let left_out = &self.webhook.handlers.bind_time.as_ref().unwrap().left_out;
        let now = Clock::wall();
        let known = project_cost::pod(&serde_json::from_value(pod.clone()).unwrap(), left_out, now);
        self.costs.write(|cluster| cluster.put_pod(known, now));
    }

    async fn review(&self, review: &Value) -> Value {
        let response = self.webhook.review(BINDINGS_PATH, review.to_string()).await;
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)), "{response}");
        response
    }

    /// Binds; the value that the pod gets by it.
    async fn bind(&self, review: &Value) -> Option<i32> {
        let response = self.review(review).await;
        if response["patch"].is_null() {
            return None;
        }
        let binding = patched(review, &response);
        Some(binding["metadata"]["annotations"][COST].as_str().unwrap().parse().unwrap())
    }

    fn asked(&self) -> Vec<String> {
        self.api.asked().into_iter().map(|asked| asked.what).collect()
    }

    fn rank(&self, node: &str) -> i32 {
        self.costs.read(|cluster| cluster.ranking().rank_of(node)).expect("it has a rank")
    }

    /// How many pods got their value so.
    fn stamps(&self) -> String {
        let text = self.webhook.handlers.metrics.encode().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("belay_deletion_cost_stamps_total "));
        line.expect("counted from the start").to_owned()
    }
}

#[tokio::test]
async fn a_pods_value_and_its_record_land_in_its_own_binding_whatever_that_carries() {
    let given = [None, Some(Value::Null), Some(json!({})), Some(json!({"other.example/a~b": "x", "": ""}))];
    for (name, node) in [("n1", "n1"), ("n2", "n2")] {
        for annotations in &given {
            let stage = stage().await;
            stage.store(pod("web", "web-1"));
            stage.see(&pod("web", "web-1"));
            let mut review = bind("web-1", node);
            if let Some(annotations) = annotations {
                review["request"]["object"]["metadata"]["annotations"] = annotations.clone();
            }
            let response = stage.review(&review).await;
            assert_eq!(response["patchType"], "JSONPatch");
            let mut expected = review["request"]["object"].clone();
            let rank = stage.rank(node).to_string();
            let mut written = annotations.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
            written.insert(MANAGED.to_owned(), json!(json!({COST: rank}).to_string()));
            written.insert(COST.to_owned(), json!(rank));
            expected["metadata"]["annotations"] = written.into();
            // What somebody writes to the pod from now on makes the bind fail, and is not overwritten.
            expected["metadata"]["resourceVersion"] = json!("1");
            assert_eq!(patched(&review, &response), expected, "{name}, and nothing else: {annotations:?}");
            assert_eq!((stage.asked(), stage.stamps()), (vec![POD.to_owned()], "1".to_owned()));
        }
    }
}

#[tokio::test]
async fn a_pod_that_was_not_seen_yet_is_read_and_gets_its_value_all_the_same() {
    let stage = stage().await;
    stage.store(pod("web", "web-1"));
    assert_eq!(stage.bind(&bind("web-1", "n1")).await, Some(stage.rank("n1")));
    // Without the UID that the scheduler sends.
    let mut review = bind("web-1", "n2");
    for uid in [Value::Null, json!("")] {
        review["request"]["object"]["metadata"]["uid"] = uid;
        assert_eq!(stage.bind(&review).await, Some(stage.rank("n2")));
    }
    // What is bound to nothing that is named is bound to a node.
    for kind in [json!(""), Value::Null] {
        review["request"]["object"]["target"]["kind"] = kind;
        assert_eq!(stage.bind(&review).await, Some(stage.rank("n2")));
    }
}

#[tokio::test]
async fn what_the_live_pod_says_goes_before_what_the_cache_knows() {
    let annotated =
        |annotations: Value| merged(pod("web", "web-1"), &json!({"metadata": {"annotations": annotations}}));
    let ours = |value: &str| json!({COST: value}).to_string();
    let full = "x".repeat(253 << 10);
    let table = [
        ("a user's value", annotated(json!({COST: "7"}))),
        ("a user's value that is no number", annotated(json!({COST: ""}))),
        ("a value of ours", annotated(json!({COST: "-7", MANAGED: ours("-7")}))),
        ("a record of ours, whose value somebody took away", annotated(json!({MANAGED: ours("-7")}))),
        ("a value that was given up", annotated(json!({MANAGED: json!({COST: null}).to_string()}))),
        ("annotations without room for more", annotated(json!({"x": full}))),
        ("another pod of this name", merged(pod("web", "web-1"), &json!({"metadata": {"uid": "other"}}))),
        ("no ReplicaSet", merged(pod("web", "web-1"), &json!({"metadata": {"ownerReferences": null}}))),
        ("a ReplicaSet that nobody knows", pod("novel", "web-1")),
        ("a ReplicaSet of one pod", pod("single", "web-1")),
        (
            "a busy rule that writes costs",
            merged(pod("web", "web-1"), &json!({"metadata": {"labels": {"rule": "worker"}}})),
        ),
        (
            "a priority so low that Karpenter would take the pod for free",
            merged(pod("web", "web-1"), &json!({"spec": {"priority": -40_000_000}})),
        ),
    ];
    for (name, live) in table {
        for is_seen in [true, false] {
            let stage = stage().await;
            if is_seen {
                stage.see(&pod("web", "web-1"));
            }
            stage.store(live.clone());
            assert_eq!(stage.bind(&bind("web-1", "n1")).await, None, "{name}");
            assert_eq!((stage.asked(), stage.stamps()), (vec![POD.to_owned()], "0".to_owned()), "{name}");
        }
    }
}

#[tokio::test]
async fn a_record_of_other_hints_is_gone_on_with() {
    let hint = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    for (record, kept) in [(json!({hint: "true"}).to_string(), Some("true")), (String::new(), None)] {
        let stage = stage().await;
        let live = json!({"metadata": {"resourceVersion": "7", "annotations": {MANAGED: record, hint: "true"}}});
        stage.store(merged(pod("web", "web-1"), &live));
        let review = bind("web-1", "n1");
        let binding = patched(&review, &stage.review(&review).await);
        let annotations = &binding["metadata"]["annotations"];
        let written: Value = serde_json::from_str(annotations[MANAGED].as_str().unwrap()).unwrap();
        assert_eq!((written[COST].as_str(), written[hint].as_str()), (annotations[COST].as_str(), kept));
        assert_eq!(binding["metadata"]["resourceVersion"], "7");
    }
}

#[tokio::test]
async fn a_binding_of_another_version_of_the_pod_is_left_alone() {
    let stage = stage().await;
    stage.store(pod("web", "web-1"));
    let of_version = |version: &str| {
        merged(bind("web-1", "n1"), &json!({"request": {"object": {"metadata": {"resourceVersion": version}}}}))
    };
    assert_eq!(stage.bind(&of_version("0")).await, None);
    for same in ["1", ""] {
        assert!(stage.bind(&of_version(same)).await.is_some(), "{same:?}");
    }
}

#[tokio::test]
async fn annotations_that_the_binding_itself_brings_are_left_alone() {
    for key in [COST, MANAGED] {
        let stage = stage().await;
        stage.store(pod("web", "web-1"));
        let review =
            merged(bind("web-1", "n1"), &json!({"request": {"object": {"metadata": {"annotations": {key: "5"}}}}}));
        assert!(stage.review(&review).await["patch"].is_null(), "{key}");
        assert_eq!(stage.stamps(), "0", "{key}");
    }
}

#[tokio::test]
async fn where_no_value_can_come_of_it_the_api_server_is_not_asked() {
    let merge = |merge: Value| merged(bind("web-1", "n1"), &merge);
    let object = |object: Value| merge(json!({"request": {"object": object}}));
    let single = pod("single", "web-1");
    let bare = merged(pod("web", "web-1"), &json!({"metadata": {"ownerReferences": null}}));
    let table = [
        ("a node that is to stay", Some(pod("web", "web-1")), bind("web-1", "kept")),
        ("a node that nobody knows", Some(pod("web", "web-1")), bind("web-1", "n9")),
        ("a ReplicaSet of one pod", Some(single), bind("web-1", "n1")),
        ("no ReplicaSet", Some(bare), bind("web-1", "n1")),
        ("a ReplicaSet that nobody knows", Some(pod("novel", "web-1")), bind("web-1", "n1")),
        ("an excluded namespace", None, merge(json!({"request": {"namespace": "shut"}}))),
        ("kube-system", None, merge(json!({"request": {"namespace": "kube-system"}}))),
        ("Belay's own", None, merge(json!({"request": {"namespace": "belay-system"}}))),
        ("what is no node", None, object(json!({"target": {"kind": "Machine"}}))),
        ("nothing to be bound to", None, object(json!({"target": null}))),
        ("metadata of another shape", None, object(json!({"metadata": 7}))),
        ("annotations of another shape", None, object(json!({"metadata": {"annotations": ["x"]}}))),
        ("no object", None, object(Value::Null)),
        ("no name", None, merge(json!({"request": {"name": null}}))),
        ("no namespace", None, merge(json!({"request": {"namespace": null}}))),
    ];
    for (name, seen, review) in table {
        let stage = stage().await;
        if let Some(seen) = seen {
            stage.see(&seen);
        }
        for namespace in ["shop", "shut", "kube-system", "belay-system"] {
            stage.store(merged(pod("web", "web-1"), &json!({"metadata": {"namespace": namespace}})));
        }
        assert_eq!(stage.bind(&review).await, None, "{name}");
        assert_eq!(stage.asked(), Vec::<String>::new(), "{name}");
    }
    // On a node that is to stay, pods that are spread get a value too.
    let stage = stage().await;
    stage.see(&pod("level", "web-1"));
    stage.store(pod("level", "web-1"));
    assert!(stage.bind(&bind("web-1", "kept")).await.is_some());
}

#[tokio::test]
async fn without_caches_or_costs_a_pod_is_bound_as_it_is() {
    let mut stage = stage().await;
    stage.store(pod("web", "web-1"));
    let health = |stage: &mut Stage, health| {
        Arc::get_mut(&mut stage.webhook.handlers).unwrap().bind_time.as_mut().unwrap().health = health;
    };
    let (filled, empty) = (Health::new("pods", Gauge::default()), Health::new("nodes", Gauge::default()));
    filled.absent();
    health(&mut stage, vec![filled.clone(), empty.clone()]);
    assert_eq!((stage.bind(&bind("web-1", "n1")).await, stage.asked().len()), (None, 0), "one cache is not filled");
    empty.absent();
    assert!(stage.bind(&bind("web-1", "n1")).await.is_some(), "all are");
    stage.asked();
    Arc::get_mut(&mut stage.webhook.handlers).unwrap().bind_time = None;
    assert_eq!((stage.bind(&bind("web-1", "n1")).await, stage.asked().len()), (None, 0), "costs are off");
}

#[tokio::test]
async fn an_api_server_that_fails_holds_up_no_bind() {
    let failing = [
        ("overloaded", Reply::Status(429, "too many requests"), true),
        ("broken", Reply::Status(500, "etcdserver: leader changed"), true),
        ("out of reach of our rights", Reply::Status(403, "pods is forbidden"), true),
        ("gone", Reply::Status(404, "pods \"web-1\" not found"), false),
        ("of another mind", Reply::Json(json!({"metadata": []})), true),
    ];
    for (name, reply, is_rested) in failing {
        let stage = stage().await;
        stage.see(&pod("web", "web-1"));
        stage.stored.lock().insert(POD.to_owned(), reply);
        assert_eq!((stage.bind(&bind("web-1", "n1")).await, stage.asked().len()), (None, 1), "{name}");
        stage.store(pod("web", "web-1"));
        if is_rested {
            assert_eq!((stage.bind(&bind("web-1", "n1")).await, stage.asked().len()), (None, 0), "{name}: not at once");
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(5)).await;
            tokio::time::resume();
        }
        assert!(stage.bind(&bind("web-1", "n1")).await.is_some(), "{name}: nothing is left of it");
    }
}

#[tokio::test]
async fn an_api_server_that_is_slow_or_not_there_is_not_waited_for() {
    let silent = {
        let mut stage = stage().await;
        stage.see(&pod("web", "web-1"));
        stage.stored.lock().insert(POD.to_owned(), Reply::Silence);
        // Not the patient reader of the other tests.
        let live = LiveReader::new(stage.api.client.clone(), Resources::default());
        Arc::get_mut(&mut stage.webhook.handlers).unwrap().live = Some(live);
        stage
    };
    let bound = tokio::time::timeout(Duration::from_secs(20), silent.bind(&bind("web-1", "n1"))).await;
    assert_eq!((bound, silent.asked().len()), (Ok(None), 1), "slow");

    let mut away = stage().await;
    away.see(&pod("web", "web-1"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = kube::Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    Arc::get_mut(&mut away.webhook.handlers).unwrap().live = Some(LiveReader::new(client, Resources::default()));
    let bound = tokio::time::timeout(Duration::from_secs(20), away.bind(&bind("web-1", "n1"))).await;
    assert_eq!(bound, Ok(None), "not there");
    Arc::get_mut(&mut away.webhook.handlers).unwrap().live = None;
    assert_eq!(away.bind(&bind("web-1", "n1")).await, None, "none at all");
}

#[tokio::test]
async fn a_dry_run_is_told_the_value_and_changes_nothing() {
    let stage = stage().await;
    stage.store(pod("level", "web-1"));
    stage.store(pod("level", "web-2"));
    let dry = merged(bind("web-1", "n1"), &json!({"request": {"dryRun": true}}));
    let first = stage.bind(&dry).await.expect("it is to be spread");
    assert_eq!(stage.bind(&dry).await, Some(first));
    assert_eq!(stage.bind(&bind("web-2", "n1")).await, Some(first), "as if the other had not been asked for");
    assert_eq!(stage.stamps(), "1");
    assert!(stage.bind(&bind("web-1", "n1")).await.unwrap() < first, "that one counts");
    assert_eq!(stage.stamps(), "2");
}

#[tokio::test]
async fn a_pod_that_is_bound_without_a_value_is_reckoned_with_all_the_same() {
    let stage = stage().await;
    for name in ["web-1", "web-2"] {
        stage.store(pod("level", name));
    }
    let alone = merged(bind("web-2", "n1"), &json!({"request": {"dryRun": true}}));
    let alone = stage.bind(&alone).await.unwrap();
    stage.store(merged(pod("level", "web-1"), &json!({"metadata": {"annotations": {COST: "100"}}})));
    assert_eq!(stage.bind(&bind("web-1", "n1")).await, None, "a user's");
    assert!(stage.bind(&bind("web-2", "n1")).await.unwrap() < alone, "two lie in that zone now");
}
