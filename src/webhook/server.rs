//! The HTTPS server under the webhook: from a socket to the router and back, at no time slower, larger or
//! less polite than it should be.
//!
//! An API server treats anything but a 200 with a valid answer as a failed webhook, and many drainers give up at the
//! first one. So whatever happens here ends in an answer as long as the request could be read: too many requests
//! at once, a panic, a handler that hangs. Such answers are made by the caller's [fallback](Server::fallback), which
//! is given the body: an answer without the review's uid is worth nothing. That is also why overload is noticed when
//! a request's head arrives and shed only after its body was read, and why no ready-made shedding layer is used:
//! those refuse before there is a body.
//!
//! A termination loses no call, although an API server goes on using connections to a terminating pod
//! (kubernetes/kubernetes#127335): readiness goes off, but for [a while](Options::linger) everything is served as
//! before, with the request to close (`Connection: close`, GOAWAY) on each answer; then what is idle is closed
//! and what is in flight is waited for.
//!
//! `accept` takes connections, `connection` lives one's life, `crowd` knows them all, `request` answers, `head_timer` ends slow heads and
//! `stall_timer` what is written to nobody.

mod accept;
mod connection;
mod crowd;
mod head_timer;
mod request;
mod stall_timer;
mod telemetry;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::seldom::Seldom;
use crowd::Crowd;
pub use request::{Trouble, Unserved};
pub use telemetry::Telemetry;

/// How long connections that are cut may take to notice. They notice at once unless a handler blocks its thread.
const CUT_BOUND: Duration = Duration::from_secs(1);

/// Every limit. The defaults are for admission webhooks.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections at once. Where all are taken, one that is idle makes room for the next, which else waits in the
    /// listener's backlog. An API server keeps 25 idle ones for each
    /// webhook (client-go, transport/cache.go) and opens more under load; a connection costs some 30 kB.
    pub max_connections: usize,
    /// How long a connection must have been idle to make room for another. An API server's is not for long while it
    /// has something to ask.
    pub spare_after: Duration,
    /// From a connection's acceptance to the end of its TLS handshake.
    pub handshake_timeout: Duration,
    /// From the first byte of an HTTP/1.1 head to its last.
    pub head_timeout: Duration,
    /// How long an answer may wait for its client to take it.
    pub stall_timeout: Duration,
    /// How long a connection may be idle. More than the 90 s after which API servers close theirs
    /// (http.DefaultTransport): who closes first must not be us, since a request that crosses with it is lost.
    pub idle_timeout: Duration,
    /// Bytes of one body; what is larger is answered 413. API servers accept objects of up to 3 MiB.
    pub body_limit: usize,
    /// Bytes of all bodies in memory, small ones aside; further ones are not read until there is room again.
    pub body_budget: usize,
    /// Requests whose head was read and that are not answered yet; what is above is shed.
    pub max_in_flight: usize,
    /// From a request's head to its answer. Well below the timeouts of the webhooks (2 s and 3 s in the chart), as
    /// an answer that comes too late is none.
    pub request_timeout: Duration,
    /// How long everything is served on after termination was asked for. Until endpoints have been updated
    /// everywhere, new connections keep coming.
    pub linger: Duration,
    /// How long is waited after that for what is in flight.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            spare_after: Duration::from_secs(1),
            handshake_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(150),
            body_limit: 3 << 20,
            body_budget: 32 << 20,
            // At 15,000 answers a second, the least that is promised, this is a queue of 70 ms.
            max_in_flight: 1024,
            request_timeout: Duration::from_secs(1),
            linger: Duration::from_secs(10),
            drain: Duration::from_secs(5),
        }
    }
}

type Fallback = dyn Fn(Unserved<'_>) -> Response + Send + Sync;

/// A server that is set up and not started.
pub struct Server {
    tls: Option<TlsAcceptor>,
    router: Router,
    options: Options,
    fallback: Arc<Fallback>,
    telemetry: Telemetry,
}

/// What a server left behind when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were still open at the end of the drain, and were cut.
    pub cut_connections: usize,
    /// Requests in flight on those: each is a failed call.
    pub cut_requests: usize,
}

/// Where a server is on its way; each connection follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Termination was asked for: all is served, with the request to close.
    Leaving,
    /// No new connections; idle ones are closed.
    Closing,
    /// What is left is dropped.
    Cut,
}

/// What all connections share.
struct Shared {
    tls: Option<TlsAcceptor>,
    router: Router,
    options: Options,
    fallback: Arc<Fallback>,
    telemetry: Telemetry,
    in_flight: Semaphore,
    budget: Semaphore,
    crowd: Crowd,
    leaving: AtomicBool,
    cut_connections: AtomicUsize,
    cut_requests: AtomicUsize,
    /// When it was last said that a caller refuses our certificate.
    refusal_told: Seldom,
}

impl Server {
    /// A server for HTTPS: HTTP/1.1 and HTTP/2, as the client prefers. The router's own body limit is lifted, as
    /// bodies are limited here.
    pub fn https(tls: Arc<ServerConfig>, router: Router) -> Self {
        Self::new(Some(TlsAcceptor::from(tls)), router)
    }

    /// A server for plain HTTP/1.1.
    pub fn http(router: Router) -> Self {
        Self::new(None, router)
    }

    fn new(tls: Option<TlsAcceptor>, router: Router) -> Self {
        Self {
            tls,
            router: router.layer(DefaultBodyLimit::disable()),
            options: Options::default(),
            fallback: Arc::new(request::plain_answer),
            telemetry: Telemetry::default(),
        }
    }

    /// With these limits.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// With `answer` for requests that were read whole and that the router did not answer. It should be quick
    /// and not fail: a panic in it is answered with a bare 500.
    #[must_use]
    pub fn fallback(mut self, answer: impl Fn(Unserved<'_>) -> Response + Send + Sync + 'static) -> Self {
        self.fallback = Arc::new(answer);
        self
    }

    /// With these counters.
    #[must_use]
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// Serves until `terminate`, then lingers, drains and returns: at the latest after
    /// [`linger`](Options::linger), [`drain`](Options::drain) and a second. Readiness is the caller's to turn off
    /// at `terminate`. No error of a socket ends it.
    pub async fn serve(self, listener: TcpListener, terminate: CancellationToken) -> Drained {
        let Self { tls, router, options, fallback, telemetry } = self;
        let (linger, drain) = (options.linger, options.drain);
        let shared = Arc::new(Shared {
            in_flight: Semaphore::new(options.max_in_flight),
            budget: Semaphore::new(request::kibibytes(options.body_budget) as usize),
            crowd: Crowd::default(),
            leaving: AtomicBool::new(false),
            cut_connections: AtomicUsize::new(0),
            cut_requests: AtomicUsize::new(0),
            refusal_told: Seldom::new(),
            tls,
            router,
            options,
            fallback,
            telemetry,
        });
        let phase = watch::Sender::new(Phase::Serving);
        let connections = TaskTracker::new();

        let lingered = async {
            terminate.cancelled().await;
            shared.leaving.store(true, Ordering::Relaxed);
            phase.send_replace(Phase::Leaving);
            sleep(linger).await;
        };
        accept::until(lingered, &listener, &shared, |permit, stream| {
            let life = connection::live(Arc::clone(&shared), stream, phase.subscribe());
            connections.spawn(async move {
                life.await;
                drop(permit);
            });
        })
        .await;
        drop(listener);

        phase.send_replace(Phase::Closing);
        connections.close();
        if timeout(drain, connections.wait()).await.is_err() {
            phase.send_replace(Phase::Cut);
            if timeout(CUT_BOUND, connections.wait()).await.is_err() {
                tracing::warn!(connections = connections.len(), "connections did not end: a handler blocks its thread");
            }
        }
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Drained { cut_connections: count(&shared.cut_connections), cut_requests: count(&shared.cut_requests) }
    }
}
