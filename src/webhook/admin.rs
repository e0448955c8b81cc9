//! The plain listener for kubelets and Prometheus: `/livez`, `/readyz`, `/metrics`.
//!
//! It is apart from the webhooks' listener so that a probe needs no certificate, and so that it goes on answering
//! when that one is full. Readiness is a list of named conditions, each cheap and looked at anew for each probe:
//! nothing has to remember to say that it is well again.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::server::{Options, Server};
use crate::metrics::Metrics;

/// What `prometheus_client` writes.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A condition of readiness: its name, and what tells why it is not met. Called for each probe; cheap.
pub type Condition = (&'static str, Arc<dyn Fn() -> Result<(), String> + Send + Sync>);

/// What is served.
#[derive(Clone)]
pub struct Admin {
    /// All that has to hold for `/readyz` to be 200. Names may repeat.
    pub conditions: Arc<Vec<Condition>>,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
}

/// A few clients with small requests, and nobody whose request must not be lost.
fn options() -> Options {
    Options {
        // Kubelets and Prometheus servers, with room for a person's browser.
        max_connections: 64,
        body_limit: 1024,
        body_budget: 64 << 10,
        max_in_flight: 64,
        // A kubelet's probe gives up after five (chart).
        request_timeout: Duration::from_secs(4),
        linger: Duration::ZERO,
        drain: Duration::from_secs(1),
        ..Options::default()
    }
}

/// Serves until `stop`. `/livez` says that the runtime answers, no more: what a restart would not mend belongs to
/// readiness.
///
/// # Errors
/// None: sockets that fail are tried again.
pub async fn serve(listener: TcpListener, admin: Admin, stop: CancellationToken) -> std::io::Result<()> {
    Server::http(router(admin)).options(options()).serve(listener, stop).await;
    Ok(())
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(async |State(admin): State<Admin>| readiness(&admin)))
        .route("/metrics", get(async |State(admin): State<Admin>| metrics(&admin)))
        .with_state(admin)
}

/// 200, or 503 with a line for each condition that is not met.
fn readiness(admin: &Admin) -> Response {
    let unmet: String = admin
        .conditions
        .iter()
        .filter_map(|(name, condition)| condition().err().map(|reason| line(name, &reason)))
        .collect();
    if unmet.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, unmet).into_response()
}

/// One line, whatever the reason holds.
fn line(name: &str, reason: &str) -> String {
    let words: Vec<&str> = reason.split_whitespace().collect();
    format!("{name}: {}\n", words.join(" "))
}

fn metrics(admin: &Admin) -> Response {
    match admin.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("belay: cannot write metrics: {error}\n")).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    async fn start(conditions: Vec<Condition>) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let admin = Admin { conditions: Arc::new(conditions), metrics: Arc::new(Metrics::default()) };
        let serving = serve(listener, admin, stop.clone());
        (address, stop, tokio::spawn(async { serving.await.unwrap() }))
    }

    /// Head and body of an answer.
    async fn get(address: SocketAddr, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: belay\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn readiness_follows_its_conditions_and_names_each_that_is_not_met() {
        let synced = Arc::new(AtomicBool::new(false));
        let cache: Condition = ("cache", {
            let synced = Arc::clone(&synced);
            Arc::new(move || {
                let problem = || "pods were not listed yet:\nconnection refused".to_owned();
                synced.load(Ordering::Relaxed).then_some(()).ok_or_else(problem)
            })
        });
        let certificate: Condition = ("certificate", Arc::new(|| Ok(())));
        let (address, ..) = start(vec![cache.clone(), certificate, cache]).await;

        let (head, body) = get(address, "/readyz").await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert_eq!(body, "cache: pods were not listed yet: connection refused\n".repeat(2));
        assert_eq!(get(address, "/livez").await.1, "ok\n", "alive all the same");

        synced.store(true, Ordering::Relaxed);
        let (head, body) = get(address, "/readyz").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(body, "ok\n");
    }

    #[tokio::test]
    async fn a_condition_that_panics_is_not_ready_and_takes_nothing_else_down() {
        let broken: Condition = ("broken", Arc::new(|| panic!("a defect")));
        let (address, ..) = start(vec![broken]).await;
        assert!(get(address, "/readyz").await.0.starts_with("HTTP/1.1 500 "));
        assert!(get(address, "/livez").await.0.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn metrics_are_served_as_openmetrics() {
        let (address, ..) = start(Vec::new()).await;
        let (head, body) = get(address, "/metrics").await;
        assert!(head.contains(OPENMETRICS), "{head}");
        assert!(body.contains("belay_") && body.ends_with("# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn stopping_ends_it_though_a_connection_is_idle() {
        let (address, stop, serving) = start(Vec::new()).await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET /livez HTTP/1.1\r\nhost: belay\r\n\r\n").await.unwrap();
        let mut some = [0; 12];
        idle.read_exact(&mut some).await.unwrap();
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
        TcpStream::connect(address).await.unwrap_err();
    }
}
