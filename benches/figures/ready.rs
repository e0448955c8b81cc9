//! How soon the program is ready, and how much memory it holds then: the real `belay webhook`, of this release build,
//! against an API server that lists as many pods as that.
//!
//! The API server is one of this program's own, on the loopback: it answers lists page by page, and opens watches on
//! which nothing happens. A real one takes minutes to be filled, and its own work would be measured as well.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use belay::cluster::clock::Clock;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use webhook_certs::{CaSecret, plan};

use crate::cluster::{Size, node_json, pod_json, set_json};
use crate::memory::{environment, resident};
use crate::table::{Table, Times, millis};

const SIZE: Size = Size { pods: 10_000 };

/// As often as is quick.
const TIMES: usize = 5;

/// One that takes longer will not come.
const PATIENCE: Duration = Duration::from_mins(1);

/// What the lists needed is given back by then, while the process is asked now and then, as by a kubelet.
const AT_REST_AFTER: Duration = Duration::from_secs(1);

/// Between two questions whether it is ready.
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) fn measure(table: &mut Table) {
    match Api::start().and_then(|api| (0..TIMES).map(|_| api.start_webhook()).collect::<anyhow::Result<Vec<_>>>()) {
        Ok(starts) => {
            let of = |figure: fn(&Start) -> f64| Times::from(starts.iter().map(figure).collect::<Vec<_>>());
            let what = format!("ready after start with {} pods, median of {TIMES}", SIZE.pods);
            table.at_most(&what, of(|start| start.millis).percentile(50), 2000.0, "ms");
            let what = format!("memory of the webhook with {} pods, a second later", SIZE.pods);
            table.at_most(&what, of(|start| start.resident).percentile(50), 64.0, "MiB");
            let most = of(|start| start.most).percentile(50);
            table.note("most memory of the webhook while it started", format!("{most:.2} MiB"));
        }
        Err(error) => table.note("ready after start", format!("not measured: {error:#}")),
    }
}

/// Pages of a list by path.
type Lists = BTreeMap<&'static str, Vec<Bytes>>;

/// As many objects of a list as kube asks for at once.
const PAGE: usize = 500;

struct Api {
    address: SocketAddr,
    folder: std::path::PathBuf,
    _runtime: tokio::runtime::Runtime,
}

impl Drop for Api {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Api {
    fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let lists = Arc::new(lists()?);
        let router = Router::new().fallback(move |request: Request| {
            let lists = Arc::clone(&lists);
            async move { answer(&lists, &request) }
        });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move { axum::serve(listener, router).await });
        let folder = std::env::temp_dir().join(format!("belay-figures-{}-ready", std::process::id()));
        fs::create_dir_all(&folder)?;
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
        fs::write(folder.join("kubeconfig"), kubeconfig.to_string())?;
        let config = json!({"certs": {"secretName": "belay-ca", "dnsNames": ["belay.belay-system.svc"]},
            "webhookConfigurations": {"validating": "belay", "mutating": "belay"}, "deletionCost": {"enabled": true}});
        fs::write(folder.join("config.yaml"), config.to_string())?;
        Ok(Self { address, folder, _runtime: runtime })
    }

    fn start_webhook(&self) -> anyhow::Result<Start> {
        let (listen, admin) = (free_address()?, free_address()?);
        let started = Instant::now();
        let child = Command::new(env!("CARGO_BIN_EXE_belay"))
            .arg("webhook")
            .envs(environment())
            .env("KUBECONFIG", self.folder.join("kubeconfig"))
            .env("BELAY_CONFIG", self.folder.join("config.yaml"))
            .env("BELAY_LISTEN", listen.to_string())
            .env("BELAY_ADMIN_LISTEN", admin.to_string())
            .env("BELAY_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the program")?;
        let mut process = Process(child);
        loop {
            if let Some(status) = process.0.try_wait()? {
                bail!("the webhook ended: {status}");
            }
            if is_ready(admin) {
                break;
            }
            if started.elapsed() > PATIENCE {
                bail!("the webhook at the API server {} is not ready after {PATIENCE:?}", self.address);
            }
            std::thread::sleep(PAUSE);
        }
        let millis = millis(started.elapsed());
        let ready = Instant::now();
        while ready.elapsed() < AT_REST_AFTER {
            std::thread::sleep(AT_REST_AFTER / 20);
            ensure!(is_ready(admin), "the webhook was ready, and is not any more");
        }
        let process = process.0.id();
        Ok(Start { millis, resident: resident(process, "VmRSS:"), most: resident(process, "VmHWM:") })
    }
}

/// How a start went.
struct Start {
    /// From the start of the process until it says that it is ready.
    millis: f64,
    /// Its memory when it was at rest, in MiB.
    resident: f64,
    /// The most that it ever was, in MiB.
    most: f64,
}

/// A process that ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where nobody listens now.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn is_ready(admin: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(admin)?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: belay\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn lists() -> anyhow::Result<Lists> {
    let now = Clock::wall();
    let ca: CaSecret = plan(None, &[], now).apply(None, "benchmark", now)?.context("no authority was made")?;
    let encode = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
    let data: BTreeMap<_, _> = ca.to_data().iter().map(|(key, value)| (key.clone(), encode(value))).collect();
    let secret = json!({"metadata": {"name": "belay-ca", "namespace": "belay-system", "uid": "s"}, "data": data});
    let trusting = |name: &str| {
        json!({"metadata": {"name": "belay", "uid": name}, "webhooks": [{"name": format!("{name}.belay.dev"),
            "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"caBundle": encode(&ca.bundle_pem())}}]})
    };
    let list = |all: Vec<Value>| -> Vec<Bytes> {
        let count = all.len().div_ceil(PAGE).max(1);
        let page = |at: usize| {
            let items: Vec<_> = all.iter().skip(at * PAGE).take(PAGE).collect();
            let more = if at + 1 < count { (at + 1).to_string() } else { String::new() };
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": more},
                "items": items})
        };
        (0..count).map(|at| page(at).to_string().into()).collect()
    };
    Ok(Lists::from([
        ("/api/v1/pods", list((0..SIZE.pods).map(|number| whole(pod_json(SIZE, number))).collect())),
        ("/api/v1/nodes", list((0..SIZE.nodes()).map(node_json).collect())),
        ("/apis/apps/v1/replicasets", list((0..SIZE.nodes()).map(set_json).collect())),
        ("/api/v1/namespaces/belay-system/secrets", list(vec![secret])),
        ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", list(vec![trusting("validating")])),
        ("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", list(vec![trusting("mutating")])),
    ]))
}

/// A pod with all that decisions do not read: most of what comes over the wire.
fn whole(mut pod: Value) -> Value {
    let text = include_str!("../../tests/fixtures/admission-reviews/pod-create-by-replicaset.json");
    let review: Value = serde_json::from_str(text).unwrap_or_default();
    let recorded = &review["request"]["object"];
    let node = pod["spec"]["nodeName"].take();
    pod["spec"] = recorded["spec"].clone();
    pod["spec"]["nodeName"] = node;
    pod["metadata"]["managedFields"] = recorded["metadata"]["managedFields"].clone();
    pod
}

fn answer(lists: &Lists, request: &Request) -> Response {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let asked = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    if matches!(asked("watch"), Some("true" | "1")) {
        return Body::from_stream(futures::stream::pending::<Result<Bytes, std::convert::Infallible>>())
            .into_response();
    }
    let page: usize = asked("continue").and_then(|page| page.parse().ok()).unwrap_or_default();
    let body = match (path, lists.get(path)) {
        ("/apis", _) => Bytes::from_static(br#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#),
        (_, Some(pages)) => pages.get(page).cloned().unwrap_or_default(),
        (_, None) => {
            Bytes::from_static(br#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#)
        }
    };
    (StatusCode::OK, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
