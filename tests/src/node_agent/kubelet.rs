//! The part of a kubelet's own API that a person at the keyboard needs: `kubectl logs`, with `-f` and `--tail`.
//!
//! The API server passes the request on to port 10250 of the pod's node. It does not check the certificate there when it
//! was given no authority to check it with, so each agent makes its own.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::SeekFrom;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::stream::{self, Stream};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::Host;

/// A kubelet's port, which the Node's status names too.
pub(super) const PORT: u16 = 10250;

/// How often a followed log is looked at for more.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

/// How much of a log is sent at once.
const CHUNK: usize = 64 * 1024;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The logs that programs write to now, with how many: a log is followed as long as there is one.
#[derive(Debug, Default, Clone)]
pub(super) struct Writers(Arc<Mutex<HashMap<PathBuf, usize>>>);

/// Held while a program writes to a log.
#[derive(Debug)]
pub(super) struct Writing {
    writers: Writers,
    log: PathBuf,
}

impl Writers {
    pub(super) fn begin(&self, log: PathBuf) -> Writing {
        *self.0.lock().entry(log.clone()).or_default() += 1;
        Writing { writers: self.clone(), log }
    }

    fn is_written(&self, log: &Path) -> bool {
        self.0.lock().contains_key(log)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut writers = self.writers.0.lock();
        if let Some(count) = writers.get_mut(&self.log) {
            *count -= 1;
            if *count == 0 {
                writers.remove(&self.log);
            }
        }
    }
}

/// What every simulated kubelet of an agent serves with.
///
/// # Errors
/// When no certificate can be made.
pub(super) fn tls() -> anyhow::Result<Arc<ServerConfig>> {
    let certified = rcgen::generate_simple_self_signed(["simulated-kubelet".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .context("no certificate for simulated kubelets")?;
    Ok(Arc::new(config))
}

/// Serves a node's kubelet API until dropped.
///
/// # Errors
/// When the node's address cannot be listened on.
pub(super) fn serve(host: Arc<Host>, node: Ipv4Addr) -> anyhow::Result<AbortOnDropHandle<()>> {
    let listener = TcpListener::from_std(host.network.listen(node, PORT)?)?;
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(host.tls.clone());
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    let (acceptor, host) = (acceptor.clone(), host.clone());
                    connections.spawn(async move {
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        let service = service_fn(|request| answer(&host, request));
                        let connection = hyper::server::conn::http1::Builder::new();
                        let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                    });
                },
                Some(_) = connections.join_next() => {}
            }
        }
    })))
}

async fn answer(host: &Host, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let asked = Asked::parse(request.uri());
    let (status, body) = match asked {
        Ok(asked) => match open(host, &asked).await {
            Ok(body) => (StatusCode::OK, body),
            Err(error) => (StatusCode::NOT_FOUND, text(format!("{error:#}\n"))),
        },
        Err(why) => (StatusCode::NOT_IMPLEMENTED, text(format!("{why}\n"))),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    Ok(response)
}

fn text(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// A request for a log.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    namespace: String,
    pod: String,
    container: String,
    follow: bool,
    /// Only so many last lines.
    tail: Option<usize>,
}

impl Asked {
    /// Reads `/containerLogs/NAMESPACE/POD/CONTAINER?follow=true&tailLines=N`.
    fn parse(uri: &http::Uri) -> Result<Self, String> {
        let path: Vec<&str> = uri.path().split('/').collect();
        let ["", "containerLogs", namespace, pod, container] = path.as_slice() else {
            return Err("a simulated node serves logs and nothing else".to_owned());
        };
        let mut asked = Self {
            namespace: (*namespace).to_owned(),
            pod: (*pod).to_owned(),
            container: (*container).to_owned(),
            follow: false,
            tail: None,
        };
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("follow", value) => asked.follow = value == "true",
                ("tailLines", value) => asked.tail = value.parse().ok(),
                (name, _) => return Err(format!("a simulated node does not know the log option {name}")),
            }
        }
        Ok(asked)
    }
}

async fn open(host: &Host, asked: &Asked) -> anyhow::Result<Body> {
    let log = host.log_file(&asked.namespace, &asked.pod, &asked.container);
    if !log.exists() {
        // A played container: it is there, and writes nothing.
        return Ok(text(String::new()));
    }
    let mut file = File::open(&log).await.with_context(|| format!("cannot read {}", log.display()))?;
    if let Some(lines) = asked.tail {
        let mut all = Vec::new();
        file.read_to_end(&mut all).await?;
        file.seek(SeekFrom::Start(start_of_tail(&all, lines) as u64)).await?;
    }
    let writers = asked.follow.then(|| host.writers.clone());
    let frames = chunks(file, log, writers);
    Ok(StreamBody::new(frames).boxed_unsync())
}

/// Where the last `lines` lines begin.
fn start_of_tail(text: &[u8], lines: usize) -> usize {
    let ends = text.iter().enumerate().rev().filter(|(index, byte)| **byte == b'\n' && index + 1 < text.len());
    match lines {
        0 => text.len(),
        lines => ends.map(|(index, _)| index + 1).nth(lines - 1).unwrap_or(0),
    }
}

/// The rest of a file, and what is added to it as long as somebody writes, when `writers` are given.
fn chunks(
    file: File,
    log: PathBuf,
    writers: Option<Writers>,
) -> impl Stream<Item = std::io::Result<Frame<Bytes>>> + Send {
    stream::try_unfold((file, log, writers), |(mut file, log, writers)| async move {
        loop {
            // Looked at before the end is reached: what the last writer wrote last must not be missed.
            let more_may_come = writers.as_ref().is_some_and(|writers| writers.is_written(&log));
            let mut chunk = Vec::with_capacity(CHUNK);
            if file.read_buf(&mut chunk).await? > 0 {
                return Ok(Some((Frame::data(Bytes::from(chunk)), (file, log, writers))));
            }
            if !more_may_come {
                return Ok(None);
            }
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_a_log_is_read_and_others_refused() {
        let read = |uri: &str| Asked::parse(&uri.parse().unwrap());
        let plain = read("/containerLogs/ns/web-0/c").unwrap();
        assert_eq!((plain.namespace.as_str(), plain.pod.as_str(), plain.container.as_str()), ("ns", "web-0", "c"));
        assert_eq!((plain.follow, plain.tail), (false, None));
        let followed = read("/containerLogs/ns/web-0/c?follow=true&tailLines=5").unwrap();
        assert_eq!((followed.follow, followed.tail), (true, Some(5)));
        for refused in ["/exec/ns/web-0/c", "/containerLogs/ns/web-0", "/containerLogs/ns/web-0/c?previous=true"] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_tail_is_that_many_lines() {
        let text = b"one\ntwo\nthree\n";
        for (lines, expected) in
            [(0, ""), (1, "three\n"), (2, "two\nthree\n"), (3, "one\ntwo\nthree\n"), (9, "one\ntwo\nthree\n")]
        {
            assert_eq!(&text[start_of_tail(text, lines)..], expected.as_bytes(), "{lines}");
        }
        assert_eq!(&b"one\ntwo"[start_of_tail(b"one\ntwo", 1)..], b"two", "an unfinished line is a line");
    }
}
