//! The endpoints as an API server calls them, with reviews that were recorded from one.

mod bindings;
mod busy_evictions;
mod canary;
mod handovers;
mod hints;
mod responders;

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Body;
use belay_decide::handover::record::RECORDS_ANNOTATION;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use super::recorder::{Entry, What};
use super::*;
use crate::cluster::index::{IndexSink, Policy, SeenNode, Target};
use crate::cluster::project;
use crate::cluster::subset::{DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use crate::cluster::watch::Sink as _;
use crate::config::Config;
use crate::testing;

pub(super) const EVICTION: &str =
    include_str!("../../tests/fixtures/admission-reviews/pod-eviction-by-kubectl-drain.json");
const DRY_RUN: &str =
    include_str!("../../tests/fixtures/admission-reviews/pod-eviction-by-kubectl-drain-dryrun-server.json");
const CREATION: &str = include_str!("../../tests/fixtures/admission-reviews/pod-create-by-replicaset.json");

/// A webhook, and what it would record.
pub(super) struct Webhook {
    pub(super) handlers: Arc<Handlers>,
    records: mpsc::Receiver<Entry>,
}

impl Webhook {
    /// With this configuration and an empty cache.
    pub(super) fn of(config: &Config) -> Self {
        Self::with(config, |_| {})
    }

    fn with(config: &Config, set_up: impl FnOnce(&mut Handlers)) -> Self {
        let metrics = Arc::new(Metrics::default());
        let (recorder, records) = Recorder::queue(Arc::clone(&metrics));
        let (rules, selects) = config.busy_hints.compile().unwrap();
        let settings = Arc::new(ArcSwap::from_pointee(Settings::of(config, "belay-system")));
        let mut handlers = Handlers {
            selects: Arc::new(selects),
            replica: "belay-webhook-1".to_owned(),
            ..Handlers::new(Index::new(rules), settings, recorder, metrics)
        };
        set_up(&mut handlers);
        Self { handlers: Arc::new(handlers), records }
    }

    /// Fills the cache with one protected Deployment `web` in `default`: its only pod is the one of the recorded
    /// eviction, and it is ready.
    pub(super) fn fill(&self) {
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
        let mut sink = IndexSink(self.handlers.index.clone());
        let node: NodeSubset = serde_json::from_value(json!({"metadata": {"name": "node-1"}})).unwrap();
        sink.apply(SeenNode { view: project::node(&node), at: Clock::wall() });
        sink.apply(project::deployment(&serde_json::from_value::<DeploymentSubset>(deployment).unwrap()));
        sink.apply(project::replica_set(&serde_json::from_value::<ReplicaSetSubset>(set).unwrap()));
        sink.apply(project::pod(&serde_json::from_value::<PodSubset>(pod).unwrap(), false));
        self.protect(&json!({"targetRef": {"name": "web"}}));
    }

    /// The Deployment is protected by a policy of this spec.
    fn protect(&self, spec: &Value) {
        let policy: crate::api::HandoverPolicy = serde_json::from_value(json!({
            "apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
            "metadata": {"namespace": "default", "name": "web", "uid": "h"}, "spec": spec,
        }))
        .unwrap();
        IndexSink(self.handlers.index.clone()).apply(Policy {
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
        self.hold_with(&json!({}));
    }

    /// The same with this status.
    fn hold_with(&self, status: &Value) {
        let hold = json!({
            "status": status,
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
async fn every_review_that_can_be_read_is_answered_with_200_whatever_it_holds() {
    let webhook = Webhook::of(&testing::config(""));
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
    for path in [EVICTION_PATH, CANARY_PATH, PODS_PATH, BUSY_PATH, BINDINGS_PATH] {
        for (name, body) in &table {
            let response = webhook.review(path, body.clone()).await;
            assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)), "{path}: {name}");
            assert!(response["patch"].is_null(), "{path}: {name}");
        }
    }
}

#[tokio::test]
async fn what_is_no_review_is_refused_with_400_and_says_why() {
    let webhook = Webhook::of(&testing::config(""));
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
    for path in [EVICTION_PATH, CANARY_PATH, PODS_PATH, BUSY_PATH, BINDINGS_PATH] {
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

/// The bytes of a patch.
fn decoded(response: &Value) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().expect("a patch")).unwrap()
}

/// The pod as the API server would store it after our patch.
fn patched(review: &Value, response: &Value) -> Value {
    let patch: json_patch::Patch = serde_json::from_slice(&decoded(response)).unwrap();
    let mut pod = review["request"]["object"].clone();
    json_patch::patch(&mut pod, &patch).expect("a refused patch blocks the pod's creation");
    pod
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
