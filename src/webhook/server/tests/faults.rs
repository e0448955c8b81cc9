//! Requests and clients that go wrong.

use super::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Waits until the peer closes, and says how long that took.
async fn closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Duration {
    let started = Instant::now();
    let mut rest = Vec::new();
    // Cut off with an error or an end, both are closed.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("never closed");
    started.elapsed()
}

#[tokio::test]
async fn a_handshake_that_never_finishes_is_cut() {
    let limit = Duration::from_millis(200);
    let server = start(sizes(), Options { handshake_timeout: limit, ..quick() }).await;
    // Nothing at all, and the beginning of a record that announces 512 bytes of ClientHello.
    for (count, beginning) in [&b""[..], &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]].into_iter().enumerate() {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        let took = closed(&mut stream).await;
        assert!(took >= limit / 2, "{took:?}");
        assert_eq!(server.telemetry.handshake_failure_count("Timeout"), count as u64 + 1);
    }
    assert_eq!(server.http1().await.post("/size", "x").await.unwrap().text, "1");
}

#[tokio::test]
async fn handshakes_that_fail_are_counted_by_what_is_wrong() {
    let server = start(sizes(), quick()).await;
    let stranger = Authority::new();
    connect(server.address, &stranger.connector("http/1.1")).await.unwrap_err();
    let count = |reason| server.telemetry.handshake_failure_count(reason);
    eventually("a refused certificate is counted", || count("PeerRefused") == 1).await;

    drop(TcpStream::connect(server.address).await.unwrap());
    eventually("a peer that goes away is counted", || count("PeerClosed") == 1).await;

    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: w\r\n\r\n").await.unwrap();
    closed(&mut plain).await;
    eventually("plain HTTP is counted", || count("Protocol") == 1).await;
    eventually("all are gone", || server.telemetry.open_connections() == 0).await;
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_and_an_idle_connection_is_not() {
    let limit = Duration::from_millis(200);
    let server = start(sizes(), Options { head_timeout: limit, ..quick() }).await;
    let mut idle = server.http1().await;
    idle.post("/size", "x").await.unwrap();

    let mut slow = server.tls("http/1.1").await.unwrap();
    // A byte now and then does not help.
    slow.write_all(b"POST /size HTTP/1.1\r\n").await.unwrap();
    let took = {
        let (mut read, mut write) = tokio::io::split(slow);
        let drip = async {
            loop {
                tokio::time::sleep(limit / 4).await;
                if write.write_all(b"x").await.is_err() {
                    std::future::pending::<()>().await;
                }
                let _ = write.flush().await;
            }
        };
        tokio::select! {
            took = closed(&mut read) => took,
            () = drip => unreachable!(),
        }
    };
    assert!(took >= limit / 2 && took < PATIENCE / 2, "{took:?}");
    assert_eq!(idle.post("/size", "xx").await.unwrap().text, "2");
}

#[tokio::test]
async fn a_connection_that_is_idle_for_too_long_is_closed() {
    let limit = Duration::from_secs(1);
    let server = start(sizes(), Options { idle_timeout: limit, ..quick() }).await;
    let [mut first, mut second] = server.clients().await;
    for client in [&mut first, &mut second] {
        client.post("/size", "x").await.unwrap();
    }
    // And one that never asks for anything.
    let _silent = server.tls("h2").await.unwrap();
    eventually("idle connections are closed", || server.telemetry.open_connections() == 0).await;
}

#[tokio::test]
async fn a_panic_is_answered_and_the_connection_lives_on() {
    let router = sizes().route("/panic", post(async |body: Bytes| -> String { panic!("a defect with {body:?}") }));
    let server = start_with(router, quick(), |server| server.fallback(stand_in)).await;
    for mut client in server.clients().await {
        let got = client.post("/panic", "uid-1").await.unwrap();
        assert_eq!((got.status, got.text.as_str()), (StatusCode::OK, "Panicked /panic application/json uid-1"));
        assert_eq!(client.post("/size", "x").await.unwrap().text, "1");
    }
    assert_eq!(server.telemetry.unserved_count("Panicked"), 2);
}

#[tokio::test]
async fn a_panic_in_the_fallback_is_answered_too() {
    let router = sizes().route("/panic", post(async || -> String { panic!("a defect") }));
    let server = start_with(router, quick(), |server| server.fallback(|_| panic!("another one"))).await;
    for mut client in server.clients().await {
        assert_eq!(client.post("/panic", "").await.unwrap().status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(client.post("/size", "x").await.unwrap().text, "1");
    }
}

#[tokio::test]
async fn overload_is_answered_with_the_body_at_hand_and_what_is_in_flight_is_served() {
    let release = Arc::new(Notify::new());
    let entered = Arc::new(Notify::new());
    let router = sizes().route(
        "/wait",
        post({
            let (release, entered) = (Arc::clone(&release), Arc::clone(&entered));
            async move || {
                entered.notify_one();
                release.notified().await;
                "served"
            }
        }),
    );
    let options = Options { max_in_flight: 1, ..quick() };
    let server = start_with(router, options, |server| server.fallback(stand_in)).await;
    let mut first = server.http1().await;
    let first = tokio::spawn(async move { first.post("/wait", "uid-1").await });
    entered.notified().await;

    for mut client in server.clients().await {
        let got = client.post("/wait", "uid-2").await.unwrap();
        assert_eq!((got.status, got.text.as_str()), (StatusCode::OK, "Overloaded /wait application/json uid-2"));
    }
    assert_eq!(server.telemetry.unserved_count("Overloaded"), 2);
    release.notify_one();
    assert_eq!(first.await.unwrap().unwrap().text, "served");
    for mut client in server.clients().await {
        assert_eq!(client.post("/size", "x").await.unwrap().text, "1", "there is room again");
    }
}

#[tokio::test]
async fn a_handler_that_hangs_is_answered_for_in_time() {
    let router = sizes().route("/hang", post(async || std::future::pending::<String>().await));
    let options = Options { request_timeout: Duration::from_millis(100), ..quick() };
    let server = start_with(router, options, |server| server.fallback(stand_in)).await;
    for mut client in server.clients().await {
        let got = client.post("/hang", "uid-1").await.unwrap();
        assert_eq!((got.status, got.text.as_str()), (StatusCode::OK, "TimedOut /hang application/json uid-1"));
        assert_eq!(client.post("/size", "x").await.unwrap().text, "1");
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_answered_408_in_time() {
    let options = Options { request_timeout: Duration::from_millis(100), ..quick() };
    let server = start(sizes(), options).await;
    let mut stream = server.tls("http/1.1").await.unwrap();
    stream.write_all(b"POST /size HTTP/1.1\r\nhost: w\r\ncontent-length: 10\r\n\r\nx").await.unwrap();
    let mut text = String::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text)).await.expect("never answered");
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    assert_eq!(server.telemetry.unserved_count("SlowBody"), 1);
}

#[tokio::test]
async fn without_a_fallback_trouble_is_answered_plainly() {
    let router = Router::new()
        .route("/panic", post(async || -> String { panic!("a defect") }))
        .route("/hang", post(async || std::future::pending::<String>().await));
    let options = Options { request_timeout: Duration::from_millis(100), ..quick() };
    let server = start(router, options).await;
    let mut client = server.http1().await;
    for (path, status) in [("/panic", StatusCode::INTERNAL_SERVER_ERROR), ("/hang", StatusCode::SERVICE_UNAVAILABLE)] {
        assert_eq!(client.post(path, "").await.unwrap().status, status);
    }
    let names = [Trouble::Overloaded, Trouble::Panicked, Trouble::TimedOut].map(Trouble::name);
    assert_eq!(names, ["Overloaded", "Panicked", "TimedOut"]);
}
