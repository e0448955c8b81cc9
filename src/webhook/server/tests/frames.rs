//! HTTP/2 as no client speaks it, frame by frame: the connection is ended, or the streams that are too many refused, and
//! others are served.

use super::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Types of frames, flags and error codes (RFC 9113, sections 6 and 7).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const REFUSED_STREAM: u32 = 7;

/// A frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `POST https://w/`, in indices of HPACK's static table and one literal (RFC 7541, appendix A).
fn head() -> Vec<u8> {
    [&[0x83, 0x87, 0x84, 0x01, 0x01][..], b"w"].concat()
}

/// A header of this length that no table keeps.
fn long_header(length: usize) -> Vec<u8> {
    let mut field = vec![0x00, 0x01, b'x'];
    // An integer of seven bits' prefix (RFC 7541, section 5.1).
    field.push(0x7f);
    let mut rest = length - 0x7f;
    while rest >= 0x80 {
        field.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    field.push(rest as u8);
    field.extend(std::iter::repeat_n(b'x', length));
    field
}

/// A frame that was read.
struct Seen {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Seen {
    /// The error code of a RST_STREAM.
    fn code(&self) -> u32 {
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }
}

/// Says all of this after the preface, and hears what is answered until the server closes, or until `enough`.
async fn talk(server: &Running, said: Vec<u8>, enough: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
    let stream = server.tls("h2").await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let saying = tokio::spawn(async move {
        let said = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &said].concat();
        // The server may end it before everything is said.
        if write.write_all(&said).await.is_ok() {
            let _ = write.flush().await;
        }
        write
    });
    let mut seen = Vec::new();
    let hearing = async {
        let mut head = [0; 9];
        while !enough(&seen) && read.read_exact(&mut head).await.is_ok() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            if read.read_exact(&mut payload).await.is_err() {
                break;
            }
            seen.push(Seen {
                kind: head[3],
                stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
                payload,
            });
        }
    };
    tokio::time::timeout(PATIENCE, hearing).await.expect("neither answered nor closed");
    saying.abort();
    seen
}

/// Client streams have odd numbers.
fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| number * 2 + 1)
}

#[tokio::test]
async fn streams_that_are_opened_and_reset_without_end_end_the_connection() {
    let server = start_webhook(quick()).await;
    let cancel = 8_u32.to_be_bytes();
    let said = streams(20_000)
        .flat_map(|stream| {
            [frame(HEADERS, END_HEADERS, stream, &head()), frame(RST_STREAM, 0, stream, &cancel)].concat()
        })
        .collect();
    let seen = talk(&server, said, |_| false).await;
    assert!(seen.iter().any(|seen| seen.kind == GOAWAY), "it was not told to go");
    eventually("the connection is gone", || server.telemetry.open_connections() == 0).await;
    is_held(&mut server.http2().await).await;
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused_while_the_others_live() {
    let server = start_webhook(Options { request_timeout: Duration::from_secs(2), ..quick() }).await;
    // Each waits for its body.
    let said = streams(400).flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &head())).collect();
    let refused = |seen: &Seen| seen.kind == RST_STREAM && seen.code() == REFUSED_STREAM;
    let (mut answered, mut turned_away) = (0, 0);
    for seen in
        talk(&server, said, |seen| seen.iter().filter(|seen| seen.kind == HEADERS || refused(seen)).count() == 400)
            .await
    {
        answered += usize::from(seen.kind == HEADERS);
        turned_away += usize::from(refused(&seen));
    }
    assert_eq!((answered, turned_away), (200, 200), "as many as hyper's default allows, each answered 408");
    is_held(&mut server.http2().await).await;
}

#[tokio::test]
async fn a_head_without_end_or_measure_ends_its_stream_or_the_connection() {
    let server = start_webhook(quick()).await;
    let piece = long_header(16_000);
    let mut endless = frame(HEADERS, 0, 1, &head());
    endless.extend((0..2_000).flat_map(|_| frame(CONTINUATION, 0, 1, &piece)));
    let mut empty = frame(HEADERS, 0, 1, &head());
    empty.extend((0..100_000).flat_map(|_| frame(CONTINUATION, 0, 1, &[])));
    for (name, said) in [("of large pieces", endless), ("of empty pieces", empty)] {
        let seen = talk(&server, said, |_| false).await;
        assert!(seen.iter().all(|seen| seen.kind != HEADERS), "a head {name} was answered");
        eventually("the connection is gone", || server.telemetry.open_connections() == 0).await;
    }

    // One that ends, and is longer than may be: that stream alone.
    let mut long = frame(HEADERS, END_STREAM, 1, &head());
    long.extend((0..2).flat_map(|_| frame(CONTINUATION, 0, 1, &piece)));
    long.extend(frame(CONTINUATION, END_HEADERS, 1, &piece));
    let seen = talk(&server, long, |seen| seen.iter().any(|seen| seen.stream == 1)).await;
    let answer = seen.iter().find(|seen| seen.stream == 1 && seen.kind == HEADERS).expect("no answer");
    // `:status: 431` is in no static table: a literal with the name of index 8.
    assert!(answer.payload.windows(3).any(|text| text == b"431") || answer.payload.len() > 4, "{:?}", answer.payload);
    is_held(&mut server.http2().await).await;
}

#[tokio::test]
async fn frames_that_make_no_sense_end_the_connection() {
    let server = start_webhook(quick()).await;
    let table = [
        ("noise", (0..5_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
        ("a frame longer than may be", frame(DATA, 0, 1, &vec![0; 20_000])),
        ("data of no stream", frame(DATA, 0, 1, b"x")),
        ("a head of no stream", frame(HEADERS, END_HEADERS, 0, &head())),
        ("a stream of the server's", frame(HEADERS, END_HEADERS, 2, &head())),
        ("a head that is no HPACK", frame(HEADERS, END_HEADERS, 1, &[0xff; 100])),
        ("settings of odd length", frame(SETTINGS, 0, 0, &[1, 2, 3])),
        ("a window that overflows", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("a short ping", frame(PING, 0, 0, b"x")),
    ];
    for (name, said) in table {
        talk(&server, said, |_| false).await;
        eventually(&format!("{name} ends it"), || server.telemetry.open_connections() == 0).await;
    }
    is_held(&mut server.http2().await).await;
}

#[tokio::test]
async fn what_has_to_be_acknowledged_without_end_and_is_never_read_ends_the_connection() {
    let limit = Duration::from_millis(500);
    let server = start_webhook(Options { stall_timeout: limit, ..quick() }).await;
    for kind in [frame(PING, 0, 0, b"belaybel"), frame(SETTINGS, 0, 0, &[])] {
        let mut stream = server.tls("h2").await.unwrap();
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        let many = kind.repeat(1000);
        let flood = async { while stream.write_all(&many).await.is_ok() {} };
        tokio::time::timeout(PATIENCE, flood).await.expect("it takes them for ever");
        eventually("the connection is gone", || server.telemetry.open_connections() == 0).await;
    }
    is_held(&mut server.http2().await).await;
}
