//! The server under load, in a process of its own: the program's endpoints over filled caches, and beside them the same
//! server with a handler that does nothing.

use std::io::Read as _;
use std::process::ExitCode;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::routing::post;
use belay::cluster::clock::Clock;
use belay::cluster::index::{Index, IndexSink, Policy, Target};
use belay::cluster::project;
use belay::cluster::watch::Sink as _;
use belay::config::Config;
use belay::metrics::Metrics;
use belay::settings::Settings;
use belay::tasks::Tasks;
use belay::webhook::recorder::Recorder;
use belay::webhook::server::{Options, Server, Telemetry};
use belay::webhook::{Handlers, router, unserved};
use bytes::Bytes;
use http::{HeaderValue, header};
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use webhook_certs::{Ca, CertResolver, Jitter, Leaf, LeafRequest};

use crate::cluster::{Size, filled, read};

/// By which a child is told to serve.
pub(crate) const CHILD: &str = "serve";

/// The path of the handler that does nothing.
pub(crate) const BARE_PATH: &str = "/bare";

/// Serves until its standard input ends. Prints the ports of the program's endpoints and of the bare handler.
pub(crate) fn child(pods: usize) -> ExitCode {
    let served = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(serve(pods)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(pods: usize) -> anyhow::Result<()> {
    // As the program does when it begins.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let stop = CancellationToken::new();
    let (index, costs) = filled(Size { pods });
    fill_workload(&index);
    let metrics = Arc::new(Metrics::default());
    let telemetry = metrics.register(Telemetry::register);
    let endpoints = router(Arc::new(handlers(index, metrics, &stop)?));
    // Both as the program serves: its limits, its fallback, one certificate.
    let resolver = CertResolver::new();
    resolver.set(&leaf()?);
    let tls = resolver.server_config()?;
    let bare = Router::new().route(BARE_PATH, post(answer_nothing));
    for router in [endpoints, bare] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let server = Server::https(Arc::clone(&tls), router).fallback(unserved).telemetry(telemetry.clone());
        let options = Options { linger: std::time::Duration::ZERO, ..Options::default() };
        tokio::spawn(server.options(options).serve(listener, stop.clone()));
    }
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    stop.cancel();
    drop(costs);
    Ok(())
}

/// What every answer costs that is made without a thought.
async fn answer_nothing(_body: Bytes) -> ([(header::HeaderName, HeaderValue); 1], &'static str) {
    let json = HeaderValue::from_static("application/json");
    let answer =
        r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"0","allowed":true}}"#;
    ([(header::CONTENT_TYPE, json)], answer)
}

fn leaf() -> anyhow::Result<Leaf> {
    let ca = Ca::generate("benchmark", Clock::wall())?;
    let request = LeafRequest { dns_names: vec!["localhost".to_owned()], ips: Vec::new(), jitter: Jitter::NONE };
    Ok(Leaf::sign(&ca, &request, Clock::wall())?)
}

fn handlers(index: Index, metrics: Arc<Metrics>, stop: &CancellationToken) -> anyhow::Result<Handlers> {
    let text = "certs: {secretName: ca, dnsNames: [localhost]}\nwebhookConfigurations: {validating: b, mutating: b}\n";
    let config = Config::parse("benchmark.yaml".as_ref(), text)?;
    // There is no API server. Nothing on the way of a request asks for one; what is recorded is tried in vain.
    let client = kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse()?))?;
    let recorder = Recorder::start(&client, 20, Arc::clone(&metrics), &Tasks::new(stop.clone()), stop);
    let settings = Arc::new(ArcSwap::from_pointee(Settings::of(&config, "belay-system")));
    Ok(Handlers::new(index, settings, recorder, metrics))
}

/// The Deployment of the recorded reviews, protected and in a handover: the eviction of its pod is held, and its new pod
/// gets an affinity.
fn fill_workload(index: &Index) {
    let owner = |kind: &str, name: &str, uid: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let (asked, deadline) = (Clock::wall(), Clock::wall() + SignedDuration::from_hours(1));
    let deployment = json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "d", "generation": 1, "resourceVersion": "1",
            "annotations": {"deployment.kubernetes.io/revision": "1"}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
    });
    let set = json!({
        "metadata": {"namespace": "default", "name": "web-d7f965486", "uid": "r",
            "annotations": {"deployment.kubernetes.io/revision": "1"}, "labels": {"pod-template-hash": "d7f965486"},
            "ownerReferences": owner("Deployment", "web", "d")},
    });
    let pod = json!({
        "metadata": {"namespace": "default", "name": "web-d7f965486-ppzlz", "uid": "p",
            "labels": {"pod-template-hash": "d7f965486"},
            "ownerReferences": owner("ReplicaSet", "web-d7f965486", "r")},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T23:00:00Z"}]},
    });
    let policy = json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
        "metadata": {"namespace": "default", "name": "web", "uid": "h"}, "spec": {"targetRef": {"name": "web"}},
    });
    let hold = json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
        "metadata": {"namespace": "default", "name": "web-d7f965486-ppzlz-p", "uid": "e"},
        "spec": {
            "victim": {"name": "web-d7f965486-ppzlz", "uid": "p", "node": "node-1", "templateHash": "d7f965486"},
            "workload": {"kind": "Deployment", "name": "web", "uid": "d"}, "reason": "Handover",
            "requestedAt": asked, "deadline": deadline},
    });
    let mut sink = IndexSink(index.clone());
    sink.apply(project::deployment(&read(deployment)));
    sink.apply(project::replica_set(&read(set)));
    sink.apply(project::pod(&read(pod), true));
    let view = project::policy(&read(policy));
    let target = Target::of(Some("web"), None);
    let (resource_version, uid) = ("1".to_owned(), "h".to_owned());
    sink.apply(Policy { view, target, generation: 1, resource_version, uid, status: None });
    sink.apply(project::hold(&read(hold)));
}

/// A recorded creation of a pod, made as large as pods commonly are.
pub(crate) fn creation(bytes: usize) -> String {
    let text = include_str!("../../tests/fixtures/admission-reviews/pod-create-by-replicaset.json");
    let mut review: Value = serde_json::from_str(text).unwrap_or_default();
    review["request"]["object"]["metadata"]["annotations"] = json!({"example.com/more": ""});
    let more = bytes.saturating_sub(review.to_string().len());
    review["request"]["object"]["metadata"]["annotations"]["example.com/more"] = "x".repeat(more).into();
    review.to_string()
}

/// A recorded eviction.
pub(crate) fn eviction() -> String {
    include_str!("../../tests/fixtures/admission-reviews/pod-eviction-by-kubectl-drain.json").to_owned()
}
