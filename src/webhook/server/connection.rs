//! One connection's life: handshake, requests, and its end when the server's phase asks for it.
//!
//! HTTP/2 can be asked to leave at any time: GOAWAY names the last request that will be answered, and a client sends
//! the others elsewhere. HTTP/1.1 cannot: closing an idle connection crosses with a request on its way, which a
//! client must not repeat. So there, leaving is said on answers, and only what is still idle at the end of the linger
//! is closed. A connection that has not had a request yet is left alone by both: its client opened it for one.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::crowd::Place;
use super::head_timer::{Activity, HeadTimer};
use super::stall_timer::StallTimer;
use super::{Phase, Shared, request};

/// Largest head of an HTTP/1.1 request. An API server's is below 1 KiB; its URL carries only a timeout.
const MAX_HEAD: usize = 32 << 10;

/// How often an HTTP/2 connection is pinged, and how long its answer may take: what a dead peer costs us.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// The handshake failure that has to be told: calls fail until somebody acts.
pub(super) const REFUSED: &str = "PeerRefused";

/// Serves one connection to its end.
pub(super) async fn live(shared: Arc<Shared>, stream: TcpStream, phase: watch::Receiver<Phase>) {
    let _open = shared.telemetry.connection();
    // Answers are small and waited for. A socket that is gone already says so at the next read.
    let _ = stream.set_nodelay(true);
    let place = shared.crowd.join();
    let Some(tls) = shared.tls.clone() else { return serve(&shared, &place, stream, false, phase).await };
    let mut cut = phase.clone();
    let handshake = timeout(shared.options.handshake_timeout, handshake(&tls, stream));
    let finished = tokio::select! {
        finished = handshake => finished,
        () = place.asked_to_go() => return,
        () = reached(&mut cut, Phase::Cut) => return note_cut(&shared, 0),
    };
    match finished.unwrap_or(Err("Timeout")) {
        Ok(stream) => {
            let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            serve(&shared, &place, stream, is_h2, phase).await;
        }
        Err(reason) => {
            shared.telemetry.handshake_failed(reason);
            if reason == REFUSED {
                tell_refusal(&shared);
            }
        }
    }
}

/// A TLS handshake, or why there is none, as a metric's label.
async fn handshake(tls: &TlsAcceptor, stream: TcpStream) -> Result<TlsStream<TcpStream>, &'static str> {
    tls.accept(stream).await.map_err(|error| {
        let reason = handshake_failure(&error);
        tracing::debug!(%error, reason, "TLS handshake failed");
        reason
    })
}

fn handshake_failure(error: &io::Error) -> &'static str {
    use rustls::AlertDescription as Alert;
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(
            Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown | Alert::CertificateExpired,
        )) => REFUSED,
        Some(rustls::Error::General(reason)) if reason.contains("no server certificate chain") => "NoCertificate",
        Some(_) => "Protocol",
        None => "PeerClosed",
    }
}

fn tell_refusal(shared: &Shared) {
    if shared.refusal_told.is_due() {
        tracing::warn!(
            "a caller does not trust the serving certificate; if it is an API server, compare the caBundle of the \
             webhook configurations with the CA Secret and see the controller's log"
        );
    }
}

async fn serve<S>(shared: &Arc<Shared>, place: &Place<'_>, stream: S, is_h2: bool, phase: watch::Receiver<Phase>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = &place.activity;
    let head_timeout = (!is_h2).then_some(shared.options.head_timeout);
    let stream = StallTimer::new(stream, shared.options.stall_timeout);
    let io = TokioIo::new(HeadTimer::new(stream, head_timeout, Arc::clone(activity)));
    let service = service_fn(|request| {
        let (shared, activity) = (Arc::clone(shared), Arc::clone(activity));
        async move { Ok::<_, Infallible>(request::answer(&shared, &activity, request).await) }
    });
    let builder = builder(shared, is_h2);
    let mut connection = pin!(builder.serve_connection(io, service));
    let (mut leave, mut cut) = (phase.clone(), phase);
    let leave_at = if is_h2 { Phase::Leaving } else { Phase::Closing };
    let mut is_leaving = false;
    let idle_timeout = shared.options.idle_timeout;
    let mut idle = interval_at(Instant::now() + idle_timeout, idle_timeout);
    let mut heads = 0;
    loop {
        tokio::select! {
            // In this order: a request that has arrived counts before an idle connection is closed.
            biased;
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended early");
                }
                return;
            }
            () = asked_to_leave(&mut leave, leave_at, activity), if !is_leaving => {
                is_leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            // Where a request has come meanwhile, another connection has to go.
            () = place.asked_to_go() => {
                if activity.active() == 0 {
                    if is_leaving || !is_h2 {
                        return;
                    }
                    // What crosses this is asked again elsewhere. Who does not go by it is asked once more.
                    is_leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
            () = reached(&mut cut, Phase::Cut) => return note_cut(shared, activity.active()),
            // hyper does this for HTTP/1.1, and does not for HTTP/2.
            _ = idle.tick(), if is_h2 => {
                if heads == activity.heads() && activity.active() == 0 {
                    if is_leaving {
                        return;
                    }
                    is_leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                heads = activity.heads();
            }
        }
    }
}

/// The protocol is known from the handshake, so it is not guessed from the first bytes, for which there is no timeout.
fn builder(shared: &Shared, is_h2: bool) -> Builder<TokioExecutor> {
    let builder = Builder::new(TokioExecutor::new());
    let mut builder = if is_h2 { builder.http2_only() } else { builder.http1_only() };
    builder.http1().timer(TokioTimer::new()).header_read_timeout(shared.options.idle_timeout).max_buf_size(MAX_HEAD);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    builder
}

async fn asked_to_leave(phase: &mut watch::Receiver<Phase>, at: Phase, activity: &Activity) {
    reached(phase, at).await;
    activity.first().await;
}

/// Waits until the server is at `at` or past it; for ever where the server is gone.
async fn reached(phase: &mut watch::Receiver<Phase>, at: Phase) {
    if phase.wait_for(|phase| *phase >= at).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn note_cut(shared: &Shared, requests: usize) {
    shared.cut_connections.fetch_add(1, Ordering::Relaxed);
    shared.cut_requests.fetch_add(requests, Ordering::Relaxed);
}
