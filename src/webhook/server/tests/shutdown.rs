//! A termination loses nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A linger that is not over before a test is: however slow the machine, its own patience ends first.
const ENDLESS: Duration = Duration::from_hours(1);

/// A handler that waits for `release`, and tells when it is entered.
struct Gate {
    entered: Notify,
    release: Notify,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { entered: Notify::new(), release: Notify::new() })
    }

    fn router(self: &Arc<Self>) -> Router {
        let gate = Arc::clone(self);
        sizes().route(
            "/wait",
            post(async move || {
                gate.entered.notify_one();
                gate.release.notified().await;
                "served"
            }),
        )
    }
}

#[tokio::test]
async fn a_request_in_flight_is_answered_after_the_linger() {
    for http2 in [false, true] {
        let gate = Gate::new();
        let server = start(gate.router(), Options { drain: PATIENCE, ..quick() }).await;
        let mut client = if http2 { server.http2().await } else { server.http1().await };
        let request = tokio::spawn(async move { client.post("/wait", "").await });
        gate.entered.notified().await;
        server.terminate.cancel();
        // Until no connection is accepted any more.
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        gate.release.notify_one();
        assert_eq!(request.await.unwrap().unwrap().text, "served");
        assert_eq!(server.ended().await, Drained { cut_connections: 0, cut_requests: 0 });
    }
}

#[tokio::test]
async fn what_is_left_at_the_end_of_the_drain_is_cut_and_counted() {
    let gate = Gate::new();
    let server = start(gate.router(), quick()).await;
    let mut client = server.http1().await;
    let request = tokio::spawn(async move { client.post("/wait", "").await });
    gate.entered.notified().await;
    let _handshaking = TcpStream::connect(server.address).await.unwrap();
    server.terminate.cancel();
    assert_eq!(server.ended().await, Drained { cut_connections: 2, cut_requests: 1 });
    request.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn after_termination_every_http1_answer_asks_to_close_and_new_connections_are_served() {
    let server = start(sizes(), Options { linger: ENDLESS, ..quick() }).await;
    let mut old = server.http1().await;
    assert_eq!(old.post("/size", "x").await.unwrap().headers.get(header::CONNECTION), None);
    server.terminate.cancel();
    tokio::task::yield_now().await;

    // The connection that was idle is still good for a request.
    let got = old.post("/size", "xx").await.unwrap();
    assert_eq!((got.text.as_str(), got.headers.get(header::CONNECTION)), ("2", Some(&"close".parse().unwrap())));
    old.post("/size", "x").await.unwrap_err();
    let got = server.http1().await.post("/size", "xxx").await.unwrap();
    assert_eq!((got.text.as_str(), got.headers.get(header::CONNECTION)), ("3", Some(&"close".parse().unwrap())));
}

#[tokio::test]
async fn after_termination_http2_is_told_to_go_away_and_loses_nothing() {
    let gate = Gate::new();
    let server = start(gate.router(), Options { linger: ENDLESS, ..quick() }).await;
    let mut old = server.http2().await;
    let mut waiting = old.sibling();
    let waiting = tokio::spawn(async move { waiting.post("/wait", "").await });
    gate.entered.notified().await;
    server.terminate.cancel();

    // No new request on that connection, at some point soon; those before it are answered.
    let refused = async {
        loop {
            match old.post("/size", "x").await {
                Ok(got) => assert_eq!(got.text, "1"),
                Err(error) => return error,
            }
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.expect("no GOAWAY");
    gate.release.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap().text, "served");

    // A new connection serves what it was opened for.
    assert_eq!(server.http2().await.post("/size", "xx").await.unwrap().text, "2");
}

#[tokio::test]
async fn a_connection_serves_what_it_was_opened_for_even_after_the_linger() {
    let server = start(sizes(), Options { linger: Duration::from_secs(2), drain: PATIENCE, ..quick() }).await;
    let before = server.clients().await;
    server.terminate.cancel();
    let during = server.clients().await;
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for mut client in before.into_iter().chain(during) {
        assert_eq!(client.post("/size", "x").await.unwrap().text, "1");
    }
    assert_eq!(server.ended().await, Drained { cut_connections: 0, cut_requests: 0 });
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_the_linger_and_the_server_returns() {
    let server = start(sizes(), Options { drain: PATIENCE, ..quick() }).await;
    let mut clients = server.clients().await;
    for client in &mut clients {
        client.post("/size", "x").await.unwrap();
    }
    let asked = Instant::now();
    server.terminate.cancel();
    let drained = server.ended().await;
    assert_eq!(drained, Drained { cut_connections: 0, cut_requests: 0 });
    let took = asked.elapsed();
    assert!(took >= quick().linger && took < PATIENCE / 2, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_termination_under_load_fails_no_request() {
    let handled = Arc::new(AtomicUsize::new(0));
    let router = Router::new().route(
        "/size",
        post({
            let handled = Arc::clone(&handled);
            async move |body: Bytes| {
                handled.fetch_add(1, Ordering::Relaxed);
                body.len().to_string()
            }
        }),
    );
    let server = start(router, Options { linger: ENDLESS, ..quick() }).await;
    let address = server.address;
    let (is_named, answered) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    // As API servers behave: connections are used again, and a new one is made where the old one may not be, as long
    // as an endpoint names the server. The linger is to outlast that, so here it does.
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let protocol = if worker % 4 == 0 { "h2" } else { "http/1.1" };
            let connector = server.authority.connector(protocol);
            let (answered, is_named) = (Arc::clone(&answered), Arc::clone(&is_named));
            tokio::spawn(async move {
                let mut connections = 0;
                while is_named.load(Ordering::Relaxed) {
                    let mut client = client_over(connect(address, &connector).await.unwrap(), protocol).await;
                    connections += 1;
                    while is_named.load(Ordering::Relaxed) && client.is_usable().await {
                        let got = match client.post("/size", "12345678").await {
                            Ok(got) => got,
                            // HTTP/2 tells a client which requests it has to send elsewhere. That it says so only of
                            // those that were not handled is what the counts below show.
                            Err(_) if protocol == "h2" => break,
                            Err(error) => panic!("{protocol}: {error:?}"),
                        };
                        assert_eq!(got.text, "8");
                        answered.fetch_add(1, Ordering::Relaxed);
                        if got.headers.contains_key(header::CONNECTION) {
                            break;
                        }
                    }
                }
                connections
            })
        })
        .collect();
    eventually("requests are answered", || answered.load(Ordering::Relaxed) > 500).await;
    server.terminate.cancel();
    let before = answered.load(Ordering::Relaxed);
    eventually("requests are answered after termination", || answered.load(Ordering::Relaxed) > before + 100).await;
    is_named.store(false, Ordering::Relaxed);
    let mut connections = 0;
    for worker in workers {
        connections += worker.await.expect("a request failed");
    }
    eventually("what clients let go of is let go of", || server.telemetry.open_connections() == 0).await;
    let answered = answered.load(Ordering::Relaxed);
    println!(
        "{answered} requests on {connections} connections, {} of them after termination, 0 failed",
        answered - before
    );
    assert_eq!(answered, handled.load(Ordering::Relaxed), "each request that was handled is answered");
    assert!(connections > 8, "after termination nobody was asked to come again");
}
