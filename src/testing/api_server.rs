//! A server on the loopback that answers as an API server does, for a real client.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use belay_decide::busy::GroupKind;
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::cluster::owners::{Resources, look_up};

/// A request as it came in.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Asked {
    /// Method and path.
    pub(crate) what: String,
    /// Query, decoded.
    pub(crate) query: BTreeMap<String, String>,
    /// What the body is; empty where nothing is said.
    pub(crate) content_type: String,
    /// Body; null where there is none.
    pub(crate) body: Value,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// 200 with this.
    Json(Value),
    /// A `Status` of this code, with these words.
    Status(u16, &'static str),
    /// A `Status` that a pod is not found, with these warnings.
    NoSuchPod(Vec<String>),
    /// None at all.
    Silence,
}

/// A kind that is served.
pub(crate) struct Kind {
    /// Group, version, kind, plural.
    names: [&'static str; 4],
    namespaced: bool,
}

impl Kind {
    /// One whose objects are the cluster's: group, version, kind, plural.
    pub(crate) const fn of_cluster(names: [&'static str; 4]) -> Self {
        Self { names, namespaced: false }
    }

    /// One whose objects live in namespaces.
    pub(crate) const fn in_namespaces(names: [&'static str; 4]) -> Self {
        Self { names, namespaced: true }
    }
}

/// The server, until it is dropped.
pub(crate) struct ApiServer {
    /// A client of it.
    pub(crate) client: Client,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ApiServer {
    /// A server that answers so. What is asked of it in discovery it knows by itself: of `ci.example` the kinds
    /// `Runner` and, of the cluster, `Pool`; of `apps` the kind `Set`.
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::serving(&[], answer).await
    }

    /// The same, that also serves these kinds.
    pub(crate) async fn serving(
        more: &'static [Kind],
        answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        let router = Router::new().fallback(async move |request: Request| {
            let request = read(request).await;
            if let Some(known) = discovery(&request.what, more) {
                return encode(StatusCode::OK, &known);
            }
            log.lock().push(request.clone());
            match answer(&request) {
                Reply::Json(value) => encode(StatusCode::OK, &value),
                Reply::Status(code, message) => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
                        "code": code, "reason": reason(code), "message": message});
                    encode(StatusCode::from_u16(code).unwrap(), &status)
                }
                Reply::NoSuchPod(warnings) => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
                        "code": 404, "reason": "NotFound", "message": "pods not found", "details": {"kind": "pods"}});
                    let mut response = encode(StatusCode::NOT_FOUND, &status);
                    let warnings = warnings.iter().map(|text| format!("299 - \"{text}\"").parse().unwrap());
                    response.headers_mut().extend(warnings.map(|warning| (header::WARNING, warning)));
                    response
                }
                Reply::Silence => std::future::pending().await,
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        // As the program's own client.
        config.default_retry = false;
        Self { client: Client::try_from(config).unwrap(), asked, task }
    }

    /// What was asked of it since this was last called, discovery aside.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock())
    }

    /// The kinds that it serves, looked up.
    pub(crate) async fn resources(&self, kinds: &[(&str, &str)]) -> Resources {
        let resources = Resources::default();
        for (group, kind) in kinds {
            let kind = GroupKind::new(group, kind);
            resources.set(&kind, look_up(&self.client, &kind).await.unwrap());
        }
        resources
    }
}

async fn read(request: Request) -> Asked {
    let (parts, body) = request.into_parts();
    let body: Bytes = body.collect().await.unwrap().to_bytes();
    let content_type = parts.headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap()).unwrap_or_default();
    let query = parts.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    Asked {
        what: format!("{} {}", parts.method, parts.uri.path()),
        query: query.map(|(key, value)| (key.to_owned(), decode(value))).collect(),
        content_type: content_type.to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

/// Undoes percent-encoding.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let code = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(str::from_utf8(&code).unwrap(), 16).unwrap()
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).unwrap()
}

fn encode(status: StatusCode, value: &Value) -> Response {
    let json = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, json)], value.to_string()).into_response()
}

fn reason(code: u16) -> &'static str {
    match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    }
}

/// What an API server tells of the kinds that it serves.
fn discovery(what: &str, more: &[Kind]) -> Option<Value> {
    let version =
        |group: &str, version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let resource = |kind: &str, plural: &str, namespaced: bool| {
        json!({"name": plural, "singularName": "", "kind": kind, "namespaced": namespaced,
            "verbs": ["get", "list", "watch", "delete"]})
    };
    let list = |group_version: &str, resources: Vec<Value>| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources});
    let of_one = |[group, v, ..]: &[&str; 4]| json!({"name": group, "versions": [version(group, v)], "preferredVersion": version(group, v)});
    let of_group =
        |kind: &&Kind| what.strip_prefix("GET /apis/") == Some(&format!("{}/{}", kind.names[0], kind.names[1]));
    if let Some(Kind { names: [group, v, ..], .. }) = more.iter().find(of_group) {
        let kinds = more.iter().filter(of_group);
        let kinds = kinds.map(|Kind { names: [_, _, kind, plural], namespaced }| resource(kind, plural, *namespaced));
        return Some(list(&format!("{group}/{v}"), kinds.collect()));
    }
    Some(match what {
        "GET /apis" => {
            let known = [
                json!({"name": "ci.example", "versions": [version("ci.example", "v2"), version("ci.example", "v1")],
                    "preferredVersion": version("ci.example", "v2")}),
                of_one(&["apps", "v1", "", ""]),
            ];
            let groups: Vec<_> = known.into_iter().chain(more.iter().map(|kind| of_one(&kind.names))).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        "GET /apis/ci.example/v2" => {
            list("ci.example/v2", vec![resource("Runner", "runners", true), resource("Runner", "runners/status", true)])
        }
        "GET /apis/ci.example/v1" => {
            list("ci.example/v1", vec![resource("Runner", "runners", true), resource("Pool", "pools", false)])
        }
        "GET /apis/apps/v1" => list("apps/v1", vec![resource("Set", "sets", true)]),
        "GET /api" => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        "GET /api/v1" => list("v1", vec![resource("Pod", "pods", true)]),
        _ => return None,
    })
}
