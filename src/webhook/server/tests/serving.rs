//! Requests that are served.

use super::*;
use tokio::sync::Notify;

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let server = start(sizes(), quick()).await;
    let mut clients = server.clients().await;
    for (client, version) in clients.iter_mut().zip([Version::HTTP_11, Version::HTTP_2]) {
        for size in [0, 1, 8_192, 100_000, 3 << 20] {
            let got = client.post("/size", vec![b'x'; size]).await.unwrap();
            assert_eq!((got.status, got.version, got.text), (StatusCode::OK, version, size.to_string()));
            assert_eq!(got.headers.get(header::CONNECTION), None, "a connection that may be used again");
        }
    }
    assert_eq!(server.telemetry.open_connections(), 2);
}

#[tokio::test]
async fn requests_share_one_http2_connection_at_the_same_time() {
    let all_here = Arc::new(tokio::sync::Barrier::new(20));
    let router = Router::new().route(
        "/meet",
        post({
            let all_here = Arc::clone(&all_here);
            async move || {
                all_here.wait().await;
                "met"
            }
        }),
    );
    let server = start(router, quick()).await;
    let client = server.http2().await;
    let requests = (0..20).map(|_| {
        let mut client = client.sibling();
        async move { client.post("/meet", "").await.unwrap().text }
    });
    assert_eq!(futures::future::join_all(requests).await, vec!["met"; 20]);
    assert_eq!(server.telemetry.open_connections(), 1);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_answered_413_and_the_connection_lives_on() {
    let server = start(sizes(), quick()).await;
    for mut client in server.clients().await {
        let got = client.post("/size", vec![b'x'; (3 << 20) + 1]).await.unwrap();
        assert_eq!((got.status, got.text.as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "belay: the body is too large\n"));
        let got = client.post("/size", "x").await.unwrap();
        assert_eq!(got.text, "1");
    }
    assert_eq!(server.telemetry.unserved_count("TooLarge"), 2);
}

#[tokio::test]
async fn a_body_of_unknown_length_is_held_to_the_same_limit() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let server = start(sizes(), Options { body_limit: 1000, ..quick() }).await;
    for (chunks, status, answer) in [(1, "200 OK", "\r\n\r\n600"), (2, "413 Payload Too Large", "too large\n")] {
        let mut stream = server.tls("http/1.1").await.unwrap();
        stream.write_all(b"POST /size HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        for _ in 0..chunks {
            stream.write_all(format!("258\r\n{}\r\n", "x".repeat(600)).as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        while !text.ends_with(answer) {
            let mut piece = [0; 1024];
            let size = stream.read(&mut piece).await.unwrap();
            assert!(size > 0, "{text}");
            text.push_str(str::from_utf8(&piece[..size]).unwrap());
        }
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
    }
}

/// A router whose handler keeps its body until it is released.
fn keeping(entered: &Arc<Notify>, release: &Arc<Notify>) -> Router {
    let (entered, release) = (Arc::clone(entered), Arc::clone(release));
    sizes().route(
        "/keep",
        post(async move |_body: Bytes| {
            entered.notify_one();
            release.notified().await;
            "kept"
        }),
    )
}

#[tokio::test]
async fn a_body_beyond_the_memory_for_bodies_waits_on_http1_and_is_refused_on_http2() {
    let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let options = Options { body_limit: 2 << 20, body_budget: 3 << 20, ..quick() };
    let server = start(keeping(&entered, &release), options).await;
    let large = vec![b'x'; 2 << 20];
    let (mut first, body) = (server.http1().await, large.clone());
    let first = tokio::spawn(async move { first.post("/keep", body).await.unwrap().text });
    entered.notified().await;

    let got = server.http2().await.post("/size", large.clone()).await.unwrap();
    assert_eq!((got.status, server.telemetry.unserved_count("NoRoom")), (StatusCode::SERVICE_UNAVAILABLE, 1));
    let mut second = server.http1().await;
    let second = second.post("/size", large.clone());
    let mut second = Box::pin(second);
    tokio::select! {
        _ = &mut second => panic!("there was room"),
        () = tokio::time::sleep(Duration::from_millis(200)) => {}
    }
    for mut client in server.clients().await {
        assert_eq!(client.post("/size", "x").await.unwrap().text, "1", "a small one is not held back");
    }
    release.notify_one();
    assert_eq!(first.await.unwrap(), "kept");
    assert_eq!(second.await.unwrap().text, large.len().to_string());
}

#[tokio::test]
async fn many_large_bodies_at_once_are_all_served_on_connections_of_their_own() {
    let options = Options { body_budget: 4 << 20, ..quick() };
    let server = start(sizes(), options).await;
    let requests =
        (0..12).map(|_| async { server.http1().await.post("/size", vec![b'x'; 3 << 20]).await.unwrap().text });
    assert_eq!(futures::future::join_all(requests).await, vec![(3 << 20).to_string(); 12]);
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_their_turn() {
    let server = start(sizes(), Options { max_connections: 2, spare_after: PATIENCE, ..quick() }).await;
    let [mut first, _second] = server.clients().await;
    first.post("/size", "x").await.unwrap();
    let third = async { server.http1().await.post("/size", "xx").await.unwrap().text };
    let mut third = Box::pin(third);
    tokio::select! {
        _ = &mut third => panic!("a third connection was served"),
        () = tokio::time::sleep(Duration::from_millis(200)) => {}
    }
    assert_eq!(server.telemetry.open_connections(), 2);
    drop(first);
    assert_eq!(tokio::time::timeout(PATIENCE, third).await.unwrap(), "2");
}
