//! The endpoints as an API server calls them, with reviews that were recorded from one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Body;
use belay_decide::handover::record::RECORDS_ANNOTATION;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use super::recorder::Entry;
use super::*;
use crate::cluster::index::{IndexSink, Policy, Target};
use crate::cluster::project;
use crate::cluster::subset::{DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use crate::cluster::watch::Sink as _;
use crate::config::Config;

const EVICTION: &str = include_str!("../../tests/fixtures/admission-reviews/pod-eviction-by-kubectl-drain.json");
const DRY_RUN: &str =
    include_str!("../../tests/fixtures/admission-reviews/pod-eviction-by-kubectl-drain-dryrun-server.json");
const CREATION: &str = include_str!("../../tests/fixtures/admission-reviews/pod-create-by-replicaset.json");

/// A webhook whose cache holds one protected Deployment `web` in `default`: its only pod is the one of the recorded
/// eviction, and it is ready.
struct Webhook {
    handlers: Arc<Handlers>,
    records: mpsc::Receiver<Entry>,
}

impl Webhook {
    fn new() -> Self {
        let config =
            "certs: {secretName: ca, dnsNames: [belay.svc]}\nwebhookConfigurations: {validating: b, mutating: b}";
        let config = Config::parse("config.yaml".as_ref(), config).unwrap();
        let metrics = Arc::new(Metrics::default());
        let (recorder, records) = Recorder::queue(Arc::clone(&metrics));
        let handlers = Handlers {
            index: Index::new(Vec::new()),
            health: Vec::new(),
            rule_health: RuleHealth::default(),
            settings: Arc::new(ArcSwap::from_pointee(Settings::of(&config, "belay-system"))),
            victims: Victims::default(),
            busy_victims: Victims::default(),
            selects: Arc::default(),
            live: None,
            recorder,
            metrics,
            clock: Clock::start(),
        };
        let webhook = Self { handlers: Arc::new(handlers), records };
        webhook.fill();
        webhook
    }

    fn fill(&self) {
        let owner = |kind: &str, name: &str, uid: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
        let deployment = json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "d", "generation": 1, "resourceVersion": "1",
                "annotations": {"deployment.kubernetes.io/revision": "1", RECORDS_ANNOTATION: "[]"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
        });
        let set = json!({
            "metadata": {"namespace": "default", "name": "web-d7f965486", "uid": "r",
                "annotations": {"deployment.kubernetes.io/revision": "1"},
                "labels": {"pod-template-hash": "d7f965486"}, "ownerReferences": owner("Deployment", "web", "d")},
        });
        let pod = json!({
            "metadata": {"namespace": "default", "name": "web-d7f965486-ppzlz", "uid": "p",
                "labels": {"pod-template-hash": "d7f965486"}, "ownerReferences": owner("ReplicaSet", "web-d7f965486", "r")},
            "spec": {"nodeName": "node-1"},
            "status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T23:00:00Z"}]},
        });
        let policy = json!({
            "apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
            "metadata": {"namespace": "default", "name": "web", "uid": "h"},
            "spec": {"targetRef": {"name": "web"}},
        });
        let mut sink = IndexSink(self.handlers.index.clone());
        let node: NodeSubset = serde_json::from_value(json!({"metadata": {"name": "node-1"}})).unwrap();
        sink.apply(project::node(&node));
        sink.apply(project::deployment(&serde_json::from_value::<DeploymentSubset>(deployment).unwrap()));
        sink.apply(project::replica_set(&serde_json::from_value::<ReplicaSetSubset>(set).unwrap()));
        sink.apply(project::pod(&serde_json::from_value::<PodSubset>(pod).unwrap()));
        let policy: crate::api::HandoverPolicy = serde_json::from_value(policy).unwrap();
        sink.apply(Policy {
            view: project::policy(&policy),
            target: Target::of(Some("web"), None),
            generation: 1,
            resource_version: "1".into(),
            uid: "h".into(),
            status: None,
        });
    }

    /// The hold of the recorded victim, as if the API had sent it.
    fn hold(&self) {
        let hold = json!({
            "apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
            "metadata": {"namespace": "default", "name": "web-d7f965486-ppzlz-p", "uid": "e"},
            "spec": {
                "victim": {"name": "web-d7f965486-ppzlz", "uid": "p", "node": "node-1", "templateHash": "d7f965486"},
                "workload": {"kind": "Deployment", "name": "web", "uid": "d"}, "reason": "Handover",
                "requestedAt": "2026-11-29T23:25:18Z", "deadline": "2026-11-29T23:35:18Z"},
        });
        let hold: crate::api::EvictionHold = serde_json::from_value(hold).unwrap();
        IndexSink(self.handlers.index.clone()).apply(project::hold(&hold));
    }

    async fn post(&self, path: &str, content_type: &str, body: impl Into<Body>) -> (StatusCode, String) {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .body(body.into())
            .unwrap();
        let response = router(Arc::clone(&self.handlers)).oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// The `response` of the answer to a review that can be read.
    async fn review(&self, path: &str, body: impl Into<String>) -> Value {
        let (status, text) = self.post(path, "application/json", body.into()).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&answer["kind"], &answer["apiVersion"]),
            (&json!("AdmissionReview"), &json!("admission.k8s.io/v1"))
        );
        answer["response"].clone()
    }
}

#[tokio::test]
async fn a_recorded_eviction_is_held_and_its_hold_recorded_once() {
    let mut webhook = Webhook::new();
    for _ in 0..3 {
        let response = webhook.review(EVICTION_PATH, EVICTION).await;
        assert_eq!(response["uid"], "371e4411-cf51-4018-ae12-4ddcc4b2a6c5");
        assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(429)));
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("belay: holding web-d7f965486-ppzlz: "), "{message}");
    }
    let entry = webhook.records.try_recv().unwrap();
    assert_eq!((entry.namespace.as_str(), entry.spec.victim_uid.as_str()), ("default", "p"));
    assert_eq!(entry.spec.evictor, "drainer");
    assert!(webhook.records.try_recv().is_err(), "retries must not queue the same hold again");
}

#[tokio::test]
async fn a_recorded_dry_run_passes_with_a_warning_and_leaves_nothing() {
    let mut webhook = Webhook::new();
    let named = DRY_RUN.replace("rec-6dbcd878fd-98q5c", "web-d7f965486-ppzlz");
    let response = webhook.review(EVICTION_PATH, named).await;
    assert_eq!(response["allowed"], true);
    assert!(response["warnings"][0].as_str().unwrap().contains("would be held"), "{response}");
    assert!(webhook.records.try_recv().is_err());
}

#[tokio::test]
async fn every_review_that_can_be_read_is_answered_with_200_whatever_it_holds() {
    let webhook = Webhook::new();
    let request = |request: Value| json!({"apiVersion": "admission.k8s.io/v1", "request": request}).to_string();
    let table = [
        ("nothing but a uid", request(json!({"uid": "u"}))),
        ("nulls", request(json!({"uid": "u", "object": null, "oldObject": null, "userInfo": null, "dryRun": null}))),
        ("an object that is none", request(json!({"uid": "u", "name": "x", "namespace": "default", "object": "text"}))),
        ("a list for an object", request(json!({"uid": "u", "object": [1, 2, {"a": []}]}))),
        ("delete options of another shape", request(json!({"uid": "u", "object": {"deleteOptions": 7}}))),
        ("owners of another shape", request(json!({"uid": "u", "object": {"metadata": {"ownerReferences": {}}}}))),
        ("a name that is huge", request(json!({"uid": "u", "name": "x".repeat(100_000), "namespace": "default"}))),
        ("fields of a future version", request(json!({"uid": "u", "novel": {"deep": [[[[1]]]]}}))),
        ("an unpaired surrogate written as an escape in a field that nobody reads", {
            r#"{"request":{"uid":"u","object":{"x":"\ud83d\ude00"}}}"#.to_owned()
        }),
    ];
    for path in [EVICTION_PATH, PODS_PATH] {
        for (name, body) in &table {
            let response = webhook.review(path, body.clone()).await;
            assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)), "{path}: {name}");
            assert!(response["patch"].is_null(), "{path}: {name}");
        }
    }
}

#[tokio::test]
async fn what_is_no_review_is_refused_with_400_and_says_why() {
    let webhook = Webhook::new();
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let table = [
        ("no JSON", "application/json", "{".to_owned(), "not an AdmissionReview"),
        ("empty", "application/json", String::new(), "not an AdmissionReview"),
        ("a list", "application/json", "[]".to_owned(), "AdmissionReview"),
        ("no request", "application/json", "{}".to_owned(), "has no request"),
        ("no uid", "application/json", r#"{"request":{}}"#.to_owned(), "uid"),
        ("nested too deep", "application/json", format!(r#"{{"request":{deep}}}"#), "not an AdmissionReview"),
        ("YAML", "application/yaml", EVICTION.to_owned(), "content type"),
        ("no type", "", EVICTION.to_owned(), "content type"),
    ];
    for path in [EVICTION_PATH, PODS_PATH] {
        for (name, content_type, body, expected) in &table {
            let (status, text) = webhook.post(path, content_type, body.clone()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {name}: {text}");
            assert!(text.contains(expected), "{path}: {name}: {text}");
        }
    }
    let (status, _) = webhook.post(EVICTION_PATH, "application/json; charset=utf-8", EVICTION).await;
    assert_eq!(status, StatusCode::OK, "parameters of the content type do not matter");
}

#[test]
fn what_the_endpoints_did_not_get_to_is_let_through_with_its_uid_and_a_word() {
    let json = HeaderValue::from_static("application/json");
    let body = Bytes::from_static(EVICTION.as_bytes());
    let uri = EVICTION_PATH.parse().unwrap();
    for trouble in [Trouble::Overloaded, Trouble::Panicked, Trouble::TimedOut] {
        let response = unserved(Unserved { trouble, uri: &uri, content_type: Some(&json), body: &body });
        assert_eq!(response.status(), StatusCode::OK);
        let bytes =
            tokio::runtime::Runtime::new().unwrap().block_on(response.into_body().collect()).unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(answer["response"]["uid"], "371e4411-cf51-4018-ae12-4ddcc4b2a6c5");
        assert_eq!(answer["response"]["allowed"], true);
        assert!(answer["response"]["warnings"][0].as_str().unwrap().contains("let through"), "{answer}");
    }
}

/// The recorded creation, of another revision of `web`, with this affinity.
fn creation(affinity: Option<Value>) -> Value {
    let text = CREATION.replace("rec-6dbcd878fd", "web-6dbcd878fd");
    let mut review: Value = serde_json::from_str(&text).unwrap();
    if let Some(affinity) = affinity {
        review["request"]["object"]["spec"]["affinity"] = affinity;
    }
    review
}

/// The pod as the API server would store it after our patch.
fn patched(review: &Value, response: &Value) -> Value {
    use base64::Engine as _;
    let patch = response["patch"].as_str().expect("a patch");
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut pod = review["request"]["object"].clone();
    json_patch::patch(&mut pod, &patch).expect("a refused patch blocks the pod's creation");
    pod
}

#[tokio::test]
async fn a_recorded_creation_is_kept_off_its_victims_node_while_a_handover_runs() {
    let webhook = Webhook::new();
    let review = creation(None);
    let response = webhook.review(PODS_PATH, review.to_string()).await;
    assert!(response["patch"].is_null(), "without a hold there is nothing to avoid");

    webhook.hold();
    let response = webhook.review(PODS_PATH, review.to_string()).await;
    let pod = patched(&review, &response);
    let terms = &pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let expected = json!([{
        "labelSelector": {"matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "pod-template-hash", "operator": "In", "values": ["d7f965486"]}]},
        "topologyKey": "kubernetes.io/hostname",
    }]);
    assert_eq!(*terms, expected);

    let mut mirror = review.clone();
    mirror["request"]["object"]["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert!(webhook.review(PODS_PATH, mirror.to_string()).await["patch"].is_null(), "mirror pods are left alone");
    let mut placed = review.clone();
    placed["request"]["object"]["spec"]["nodeName"] = json!("node-1");
    assert!(webhook.review(PODS_PATH, placed.to_string()).await["patch"].is_null(), "a placed pod cannot avoid");
}

/// Anything that JSON can hold, with the keys of an affinity made likely.
fn any_affinity() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        Just("podAntiAffinity".to_owned()),
        Just("nodeAffinity".to_owned()),
        Just("requiredDuringSchedulingIgnoredDuringExecution".to_owned()),
        Just("preferredDuringSchedulingIgnoredDuringExecution".to_owned()),
        "[a-z~/]{0,4}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        ".{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_patch_always_applies_and_takes_nothing_away(affinity in any_affinity()) {
        let webhook = Webhook::new();
        webhook.hold();
        let review = creation(Some(affinity.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(webhook.review(PODS_PATH, review.to_string()));
        prop_assert_eq!(&response["allowed"], &json!(true));
        if !response["patch"].is_null() {
            let pod = patched(&review, &response);
            prop_assert!(contains(&pod["spec"]["affinity"], &affinity), "{} lost something of {}", pod, affinity);
        }
    }
}

/// Everything of `part` stands in `whole`, lists at their beginning.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (_, Value::Null) => true,
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() >= part.len() && part.iter().zip(whole).all(|(part, whole)| contains(whole, part))
        }
        _ => whole == part,
    }
}
