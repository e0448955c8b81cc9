//! A webhook with a filled cache, and what must hold of its answers.

use std::cell::LazyCell;
use std::convert::Infallible;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use base64::Engine as _;
use belay::cluster::clock::Clock;
use belay::cluster::index::Index;
use belay::cluster::owners::{Resources, Served};
use belay::cluster::project_cost::LeftOut;
use belay::cluster::watch::RuleHealth;
use belay::config::{Config, Selects};
use belay::metrics::Metrics;
use belay::settings::Settings;
use belay::tasks::Tasks;
use belay::webhook::bindings::BindTime;
use belay::webhook::live::LiveReader;
use belay::webhook::recorder::Recorder;
use belay::webhook::review::Review;
use belay::webhook::server::{Trouble, Unserved};
use belay::webhook::{BINDINGS_PATH, BUSY_PATH, EVICTION_PATH, Handlers, PODS_PATH, router, unserved};
use belay_decide::lifecycle;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::fill;

/// Every feature on; the rules select the pods of the recorded reviews among others.
const CONFIG: &str = "
certs: {secretName: ca, dnsNames: [belay.svc]}
webhookConfigurations: {validating: b, mutating: b}
evictionHold: {defaultPolicy: {enabled: true, namespaces: [shop]}, ignoreEvictors: ['system:node:*']}
deletionCost: {enabled: true}
busyHints:
  enabled: true
  rules:
    - name: set
      podSelector: {matchLabels: {app: rec}}
      owner: {group: apps, kind: ReplicaSet}
      linkedPods: {labelKey: of}
      states:
        - {state: Busy, when: owner.status.busy}
        - {state: Starting, when: 'size(linked) > 3'}
      hints: {castAi: true, spotOcean: true}
      eviction: {idle: DeleteOwner}
    - name: bare
      podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}
      states: [{state: Busy, when: 'has(pod.metadata.annotations) && pod.metadata.annotations.exists(k, k == \"busy\")'}]
";

/// Where reviews of creations and bindings may be answered with a patch.
const MUTATING: [&str; 3] = [PODS_PATH, BUSY_PATH, BINDINGS_PATH];

thread_local! {
    static STAGE: LazyCell<Stage> = LazyCell::new(Stage::new);
}

/// Gives the stage, made at the first call.
pub(crate) fn with(play: impl FnOnce(&Stage)) {
    STAGE.with(|stage| play(stage));
}

/// What calls share. What a webhook remembers of victims, and of pods that it saw bound, is not among it.
pub(crate) struct Stage {
    runtime: Runtime,
    config: Config,
    index: Index,
    selects: Arc<Vec<Selects>>,
    left_out: LeftOut,
    client: Client,
    resources: Resources,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    clock: Clock,
}

impl Stage {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let entered = runtime.enter();
        let config = Config::parse("config.yaml".as_ref(), CONFIG).expect("a good configuration");
        let (rules, selects) = config.busy_hints.compile().expect("good rules");
        let left_out = LeftOut::of(config.rules("belay-system"), &selects, &rules);
        let index = Index::new(rules);
        fill::index(&index);
        let resources = Resources::default();
        resources.set(&lifecycle::eviction(), Some(Served::built_in::<Pod>()));
        let api_server = tower::service_fn(async |request| Ok::<_, Infallible>(serve(&request)));
        let client = Client::new(api_server, "default");
        let metrics = Arc::new(Metrics::default());
        let stop = CancellationToken::new();
        let recorder = Recorder::start(&client, 20, Arc::clone(&metrics), &Tasks::new(stop.clone()), &stop);
        drop(entered);
        let (selects, clock) = (Arc::new(selects), Clock::start());
        Self { runtime, config, index, selects, left_out, client, resources, recorder, metrics, clock }
    }

    /// A webhook that has not been asked for anything.
    fn webhook(&self) -> Router {
        let live = LiveReader::new(self.client.clone(), self.resources.clone());
        let costs = fill::costs(&self.config.deletion_cost);
        let settings = Arc::new(ArcSwap::from_pointee(Settings::of(&self.config, "belay-system")));
        router(Arc::new(Handlers {
            rule_health: RuleHealth { pods: Vec::new(), asked: vec![Vec::new(); self.index.rules().len()] },
            selects: Arc::clone(&self.selects),
            bind_time: Some(BindTime::new(costs, Vec::new(), self.left_out.clone())),
            live: Some(live),
            resources: self.resources.clone(),
            clock: self.clock,
            ..Handlers::new(self.index.clone(), settings, self.recorder.clone(), Arc::clone(&self.metrics))
        }))
    }

    /// Every endpoint answers what can be read with 200, its uid and a verdict, and all else with 400; only evictions
    /// are refused, only creations and bindings patched; and a patch can be applied, and changes nothing that was there. Says what
    /// each endpoint did.
    pub(crate) fn check(&self, body: &[u8]) -> Vec<String> {
        let readable = Review::parse(body).ok().and_then(|review| Some(review.request?.uid.into_owned()));
        let webhook = self.webhook();
        let mut kinds = Vec::new();
        for path in [EVICTION_PATH].into_iter().chain(MUTATING) {
            let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
            let request = request.body(Body::from(body.to_vec())).expect("a request");
            let response = self.runtime.block_on(webhook.clone().oneshot(request)).expect("routers do not fail");
            let Some(response) = self.judge(readable.as_deref(), response) else { continue };
            let is_allowed = response["allowed"] == true;
            assert!(is_allowed || path == EVICTION_PATH, "{path}: {response}");
            let code = &response["status"]["code"];
            assert!(is_allowed == code.is_null() && (is_allowed || *code == 429), "{path}: {response}");
            if let Some(patch) = response["patch"].as_str() {
                assert!(MUTATING.contains(&path), "{path}: {response}");
                check_patch(body, patch);
            }
            let is_patched = response["patch"].is_string();
            let kind = if is_patched {
                "patched"
            } else if is_allowed {
                "allowed"
            } else {
                "refused"
            };
            kinds.push(format!("{path} {kind}"));
        }
        let bytes = Bytes::copy_from_slice(body);
        let (uri, json) = (Uri::from_static(EVICTION_PATH), HeaderValue::from_static("application/json"));
        for trouble in [Trouble::Overloaded, Trouble::Panicked, Trouble::TimedOut] {
            let response = unserved(Unserved { trouble, uri: &uri, content_type: Some(&json), body: &bytes });
            if let Some(response) = self.judge(readable.as_deref(), response) {
                assert!(response["allowed"] == true && response["warnings"].is_array(), "{response}");
            }
        }
        kinds
    }

    /// The `response` of an answer to a review with this uid; absent where the body was none.
    fn judge(&self, readable: Option<&str>, response: Response<Body>) -> Option<Value> {
        let status = response.status();
        let bytes = self.runtime.block_on(to_bytes(response.into_body(), usize::MAX)).expect("a body");
        let Some(uid) = readable else {
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(bytes.len() < 1024, "{} bytes", bytes.len());
            return None;
        };
        assert_eq!(status, StatusCode::OK);
        let answer: Value = serde_json::from_slice(&bytes).expect("an answer is JSON");
        assert_eq!((&answer["kind"], &answer["response"]["uid"]), (&json!("AdmissionReview"), &json!(uid)));
        Some(answer["response"].clone())
    }
}

/// An API server with one pod, which is to be bound, and nothing else.
fn serve(request: &Request<kube::client::Body>) -> Response<kube::client::Body> {
    let (status, body) = match request.uri().path() {
        "/api/v1/namespaces/default/pods/many-1" => (200, fill::pod("many", "1", "many-1", &json!({ "app": "many" }))),
        _ => (404, json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404 })),
    };
    let mut response = Response::new(body.to_string().into_bytes().into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    response
}

/// Nothing refuses the patch, and what was there is there still.
fn check_patch(body: &[u8], patch: &str) {
    // What the webhook does not look at may be no text at all.
    let review: Value = serde_json::from_str(&String::from_utf8_lossy(body)).expect("what is patched was read");
    let before = &review["request"]["object"];
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).expect("base64");
    let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a JSON Patch");
    let mut after = before.clone();
    json_patch::patch(&mut after, &patch).unwrap_or_else(|error| panic!("{error}: {patch} of {before}"));
    assert!(contains(&after, before), "{patch} of {before}");
}

/// Everything of `part` stands in `whole`, lists at their beginning; what is empty may have been filled.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (_, Value::Null) => true,
        (_, Value::String(text)) if text.is_empty() => true,
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() >= part.len() && part.iter().zip(whole).all(|(part, whole)| contains(whole, part))
        }
        _ => whole == part,
    }
}
