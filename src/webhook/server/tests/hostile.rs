//! What no API server sends, to the webhook as the program serves it: each is answered in few words or closed in time,
//! and the next good call is served.

use super::*;
use crate::webhook::{BINDINGS_PATH, BUSY_PATH, CANARY_PATH, EVICTION_PATH, PODS_PATH};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

const PATHS: [&str; 5] = [EVICTION_PATH, CANARY_PATH, PODS_PATH, BUSY_PATH, BINDINGS_PATH];

/// The longest answer that is no review's, in bytes: what a stranger sends is not sent back.
const FEW_WORDS: usize = 512;

/// So many levels, each of which would be a call in a parser that recurses.
const DEEP: usize = 100_000;

fn nested() -> String {
    format!("{}{}", "[".repeat(DEEP), "]".repeat(DEEP))
}

fn nested_maps() -> String {
    format!("{}1{}", r#"{"a":"#.repeat(DEEP), "}".repeat(DEEP))
}

#[tokio::test]
async fn what_is_no_review_is_refused_in_few_words_and_the_next_good_call_is_served() {
    let server = start_webhook(quick()).await;
    let cut = |eighth: usize| EVICTION.as_bytes()[..EVICTION.len() * eighth / 8].to_vec();
    let noise: Vec<u8> = (0..10_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut table = vec![
        ("noise", noise),
        ("zeros", vec![0; 100_000]),
        ("invalid UTF-8 in a name", b"{\"request\":{\"uid\":\"u\",\"name\":\"\xff\xfe\"}}".to_vec()),
        ("invalid UTF-8 in an object", b"{\"request\":{\"uid\":\"u\",\"object\":{\"a\":\"\xc3\x28\"}}}".to_vec()),
        ("half of a surrogate pair", br#"{"request":{"uid":"\ud800"}}"#.to_vec()),
        ("a uid twice", br#"{"request":{"uid":"u","uid":"v"}}"#.to_vec()),
        ("a request twice", br#"{"request":{"uid":"u"},"request":{"uid":"v"}}"#.to_vec()),
        ("no uid", br#"{"request":{"name":"web"}}"#.to_vec()),
        ("a number for a uid", br#"{"request":{"uid":7}}"#.to_vec()),
        ("null for a uid", br#"{"request":{"uid":null}}"#.to_vec()),
        ("two reviews", br#"{"request":{"uid":"u"}}{"request":{"uid":"v"}}"#.to_vec()),
        ("a huge text for a request", format!(r#"{{"request":"{}"}}"#, "x".repeat(2 << 20)).into_bytes()),
        ("a huge name of no field", format!(r#"{{"request":{{"uid":{{"{}":1}}}}}}"#, "x".repeat(2 << 20)).into_bytes()),
        ("a huge number", format!(r#"{{"request":{{"uid":{}}}}}"#, "9".repeat(2 << 20)).into_bytes()),
        ("lists all the way down", nested().into_bytes()),
        ("maps all the way down", nested_maps().into_bytes()),
        ("a deep request", format!(r#"{{"request":{}}}"#, nested()).into_bytes()),
        ("a deep uid", format!(r#"{{"request":{{"uid":{}}}}}"#, nested_maps()).into_bytes()),
        ("lists that are never closed", "[".repeat(3 << 20).into_bytes()),
    ];
    table.extend((0..8).map(|eighth| ("a review that breaks off", cut(eighth))));
    for mut client in server.clients().await {
        for path in PATHS {
            for (name, body) in &table {
                let got = client.post(path, body.clone()).await.unwrap();
                assert_eq!(got.status, StatusCode::BAD_REQUEST, "{path}: {name}");
                assert!(got.text.len() <= FEW_WORDS, "{path}: {name}: {} bytes", got.text.len());
            }
        }
        is_held(&mut client).await;
    }
}

#[tokio::test]
async fn reviews_with_things_in_them_that_nobody_reads_are_answered_as_without_them() {
    let server = start_webhook(quick()).await;
    let held = |more: &str| EVICTION.replacen(r#""uid":"#, &format!(r#"{more},"uid":"#), 1);
    // Its first uid is the request's.
    assert!(held(r#""novel": 1"#).contains(r#""novel": 1,"uid":"#));
    let user = |more: &str| {
        let at = EVICTION.find(r#""userInfo""#).and_then(|at| Some(at + EVICTION[at..].find('{')? + 1)).unwrap();
        format!("{}{more},{}", &EVICTION[..at], &EVICTION[at..])
    };
    let table = [
        ("deep lists", held(&format!(r#""novel": {}"#, nested()))),
        ("deep maps", held(&format!(r#""novel": {}"#, nested_maps()))),
        ("deep extras of the user", user(&format!(r#""extra": {{"a": {}}}"#, nested()))),
        ("a huge text", held(&format!(r#""novel": "{}""#, "x".repeat(2 << 20)))),
        ("a huge name", held(&format!(r#""{}": 1"#, "x".repeat(2 << 20)))),
        ("a huge number", held(&format!(r#""novel": {}"#, "9".repeat(2 << 20)))),
        ("many of one name", held(&vec![r#""novel": 1"#; 100_000].join(","))),
    ];
    for mut client in server.clients().await {
        for (name, body) in &table {
            let got = client.post(EVICTION_PATH, body.clone()).await.unwrap();
            let answer: serde_json::Value = serde_json::from_str(&got.text).expect(name);
            assert_eq!((got.status, &answer["response"]["status"]["code"]), (StatusCode::OK, &429.into()), "{name}");
        }
    }
}

#[tokio::test]
async fn objects_that_cannot_be_read_are_let_through_untouched() {
    let server = start_webhook(quick()).await;
    let huge = "x".repeat(1 << 20);
    let table = [
        ("deep lists", nested()),
        ("deep maps", nested_maps()),
        ("a deep label", format!(r#"{{"metadata": {{"name": "web", "labels": {{"a": {}}}}}}}"#, nested())),
        ("deep options", format!(r#"{{"deleteOptions": {}}}"#, nested_maps())),
        ("deep affinity", format!(r#"{{"spec": {{"affinity": {}}}}}"#, nested_maps())),
        ("deep responders", format!(r#"{{"spec": {{"evictionResponders": {}}}}}"#, nested())),
        ("a field twice", r#"{"metadata": {"name": "a"}, "metadata": {"name": "b"}}"#.to_owned()),
        ("a huge name", format!(r#"{{"metadata": {{"name": "{huge}", "namespace": "{huge}"}}}}"#)),
        ("a huge target", format!(r#"{{"metadata": {{"name": "web"}}, "target": {{"name": "{huge}"}}}}"#)),
    ];
    for mut client in server.clients().await {
        for path in PATHS {
            for (name, object) in &table {
                let body = format!(r#"{{"request": {{"uid": "u", "namespace": "default", "object": {object}}}}}"#);
                let got = client.post(path, body).await.unwrap();
                let answer: serde_json::Value = serde_json::from_str(&got.text).expect(name);
                let response = &answer["response"];
                assert_eq!((got.status, &response["uid"]), (StatusCode::OK, &"u".into()), "{path}: {name}");
                assert_eq!(response["allowed"], true, "{path}: {name}: {answer}");
                assert!(response["patch"].is_null() && got.text.len() <= FEW_WORDS, "{path}: {name}: {answer}");
            }
        }
        is_held(&mut client).await;
    }
}

#[tokio::test]
async fn a_review_of_three_mebibytes_is_answered_and_one_byte_more_is_not() {
    let server = start_webhook(quick()).await;
    let limit = Options::default().body_limit;
    let padded = |size: usize| EVICTION.to_owned() + &" ".repeat(size - EVICTION.len());
    for mut client in server.clients().await {
        let got = client.post(EVICTION_PATH, padded(limit)).await.unwrap();
        assert!(got.status == StatusCode::OK && got.text.contains("429"), "{got:?}");
        let got = client.post(EVICTION_PATH, padded(limit + 1)).await.unwrap();
        assert_eq!(got.status, StatusCode::PAYLOAD_TOO_LARGE);
        is_held(&mut client).await;
    }
}

/// One exchange in bytes on a connection of its own: the first line of the answer, empty where there is none.
async fn say(server: &Running, said: &[u8]) -> String {
    let mut stream = server.tls("http/1.1").await.unwrap();
    let talk = async {
        // The server may close before it has taken everything.
        if stream.write_all(said).await.is_ok() {
            let _ = stream.flush().await;
        }
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        while !answer.contains(&b'\n') {
            match stream.read(&mut piece).await {
                Ok(size) if size > 0 => answer.extend_from_slice(&piece[..size]),
                _ => break,
            }
        }
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    };
    tokio::time::timeout(PATIENCE, talk).await.expect("neither answered nor closed")
}

#[tokio::test]
async fn heads_that_are_wrong_are_answered_or_closed() {
    let server = start_webhook(Options { request_timeout: Duration::from_secs(1), ..quick() }).await;
    let head = |line: &str, more: &str| format!("{line}\r\nhost: w\r\ncontent-type: application/json\r\n{more}\r\n");
    let post = |more: &str| head(&format!("POST {EVICTION_PATH} HTTP/1.1"), more);
    let table = [
        ("another method", head(&format!("GET {EVICTION_PATH} HTTP/1.1"), ""), "405"),
        ("a method that is none", head(&format!("B=D {EVICTION_PATH} HTTP/1.1"), ""), "400"),
        ("another path", head("POST /validate/everything HTTP/1.1", "content-length: 0\r\n"), "404"),
        ("a path that climbs", head("POST /../../etc/passwd HTTP/1.1", "content-length: 0\r\n"), "404"),
        ("a huge path", head(&format!("POST /{} HTTP/1.1", "x".repeat(64 << 10)), ""), "431"),
        ("a huge header", post(&format!("x: {}\r\n", "x".repeat(64 << 10))), "431"),
        ("many headers", post(&"x: y\r\n".repeat(5_000)), "431"),
        ("two lengths", post("content-length: 1\r\ncontent-length: 2\r\n"), "400"),
        ("a length and chunks", post("content-length: 5\r\ntransfer-encoding: chunked\r\n"), "408"),
        ("a length below nothing", post("content-length: -1\r\n"), "400"),
        ("a length beyond numbers", post("content-length: 99999999999999999999999\r\n"), "400"),
        ("a length beyond memory", post("content-length: 9999999999999999\r\n"), "413"),
        ("a chunk beyond memory", post("transfer-encoding: chunked\r\n") + "fffffffffffffff0\r\n", "408"),
        ("a chunk that is none", post("transfer-encoding: chunked\r\n") + "zz\r\n", "400"),
        ("another version", head(&format!("POST {EVICTION_PATH} HTTP/9.9"), ""), "400"),
    ];
    // The bodies of the two that are answered 408 never come.
    let mut wrong = Vec::new();
    for (name, said, expected) in table {
        let answer = say(&server, said.as_bytes()).await;
        if !answer.starts_with(&format!("HTTP/1.1 {expected} ")) {
            wrong.push(format!("{name}: {answer:?} and not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for noise in [
        &b"\x00\x01\x02\x03\r\n\r\n"[..],
        &vec![0xff; 100_000],
        b"\r\n\r\n\r\n\r\n garbage\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let answer = say(&server, noise).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
    }
    is_held(&mut server.http1().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_sends_a_byte_now_and_then_is_closed_and_holds_nobody_up() {
    /// Of each kind.
    const CROWD: usize = 60;
    let limit = Duration::from_millis(500);
    let options = Options { handshake_timeout: limit, head_timeout: limit, request_timeout: limit, ..quick() };
    let server = start_webhook(options).await;
    let mut crowd = JoinSet::new();
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    let body = format!("POST {EVICTION_PATH} HTTP/1.1\r\nhost: w\r\ncontent-length: 1000000\r\n\r\n");
    for _ in 0..CROWD {
        let stream = TcpStream::connect(server.address).await.unwrap();
        crowd.spawn(drip(stream, hello.to_vec()));
        crowd.spawn(drip(server.tls("http/1.1").await.unwrap(), b"POST /x HTTP/1.1\r\nx: ".to_vec()));
        crowd.spawn(drip(server.tls("http/1.1").await.unwrap(), body.clone().into_bytes()));
    }
    // They are at it, and others are served.
    is_held(&mut server.http1().await).await;
    let all = async { while crowd.join_next().await.is_some() {} };
    tokio::time::timeout(PATIENCE, all).await.expect("some are never closed");
    eventually("all are gone", || server.telemetry.open_connections() <= 1).await;
    assert_eq!(server.telemetry.unserved_count("SlowBody"), CROWD as u64);
    is_held(&mut server.http2().await).await;
}

/// Says the beginning, then a byte now and then, until the other side closes.
async fn drip(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, beginning: Vec<u8>) {
    let (mut read, mut write) = tokio::io::split(stream);
    let said = async {
        let mut piece = beginning.as_slice();
        while write.write_all(piece).await.is_ok() && write.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            piece = b"x";
        }
    };
    let mut answer = Vec::new();
    tokio::select! {
        _ = read.read_to_end(&mut answer) => {}
        () = said => {}
    }
}

#[tokio::test]
async fn a_client_that_never_reads_its_answers_is_closed() {
    let limit = Duration::from_millis(500);
    let server = start_webhook(Options { stall_timeout: limit, ..quick() }).await;
    // The system keeps little of what it does not read.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(server.address).await.unwrap();
    let connector = server.authority.connector("http/1.1");
    let mut stream = connector.connect(ServerName::try_from(NAME).unwrap(), stream).await.unwrap();
    let request = format!(
        "POST {EVICTION_PATH} HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{EVICTION}",
        EVICTION.len()
    );
    // Requests without end, one upon the other, until the server takes no more: its answers fill what the system keeps.
    let flood = async { while stream.write_all(request.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(3 * PATIENCE, flood).await.expect("it holds a connection for ever");
    eventually("the connection is gone", || server.telemetry.open_connections() == 0).await;
    is_held(&mut server.http1().await).await;
}

#[tokio::test]
async fn a_crowd_that_takes_all_connections_and_does_nothing_keeps_nobody_out() {
    /// Connections at once; the crowd is twice as many.
    const MOST: usize = 20;
    /// Longer than a good client needs between its handshake and its request, however busy the machine is.
    const SPARE_AFTER: Duration = Duration::from_millis(500);
    let options = Options { max_connections: MOST, spare_after: SPARE_AFTER, ..quick() };
    let server = start_webhook(options).await;
    let [mut first, mut second] = server.clients().await;
    is_held(&mut first).await;
    is_held(&mut second).await;
    // Of all kinds: those that never speak, that have shaken hands, that have begun to ask.
    let mut crowd = Vec::new();
    for number in 0..2 * MOST {
        if number % 2 == 0 {
            let connecting = TcpStream::connect(server.address).await.unwrap();
            crowd.push(tokio::spawn(drip(connecting, vec![0x16])));
        } else {
            let stream = server.tls("http/1.1").await.unwrap();
            crowd.push(tokio::spawn(drip(stream, b"POST /x HTTP/1.1\r\n".to_vec())));
        }
    }
    is_held(&mut server.http1().await).await;
    is_held(&mut server.http2().await).await;
    // Those who have asked for something are missed most.
    assert!(first.is_usable().await && second.is_usable().await);
    is_held(&mut first).await;
    is_held(&mut second).await;
}
