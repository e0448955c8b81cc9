//! The server on real sockets, with real TLS.

mod attack;
mod child;
mod descriptors;
mod faults;
mod frames;
mod hostile;
mod serving;
mod shutdown;
mod swap;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use webhook_certs::resolver::provider;
use webhook_certs::{CaSecret, CertResolver, Jitter, Leaf, LeafRequest, Step};

use super::{Drained, Options, Server, Telemetry, Trouble, Unserved};
use crate::cluster::clock::Clock;
use crate::testing;
use crate::webhook;
use crate::webhook::tests::{EVICTION, Webhook};

const NAME: &str = "belay-webhook.belay-system.svc";

/// Long enough for anything here to happen on a busy machine, and still an end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A CA and what it signs.
struct Authority {
    secret: CaSecret,
    resolver: Arc<CertResolver>,
}

impl Authority {
    fn new() -> Self {
        let create = Step::Create { keep: Vec::new() };
        let secret = create.apply(None, "belay", Clock::wall()).unwrap().unwrap();
        let authority = Self { secret, resolver: CertResolver::new() };
        authority.swap();
        authority
    }

    /// Serves a new leaf from now on.
    fn swap(&self) {
        let request = LeafRequest { dns_names: vec![NAME.into()], ips: Vec::new(), jitter: Jitter::NONE };
        self.resolver.set(&Leaf::sign(self.secret.active(), &request, Clock::wall()).unwrap());
    }

    /// A connector that trusts exactly this authority and makes a full handshake each time.
    fn connector(&self, protocol: &str) -> TlsConnector {
        trusting(&self.secret.bundle_pem(), protocol)
    }
}

/// A connector that trusts exactly these authorities and makes a full handshake each time.
fn trusting(bundle: &[u8], protocol: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// A server that runs.
struct Running {
    authority: Authority,
    address: SocketAddr,
    terminate: CancellationToken,
    telemetry: Telemetry,
    task: JoinHandle<Drained>,
}

/// Limits that a test can wait for; the time of a request is not one that a busy machine can exceed.
fn quick() -> Options {
    Options {
        request_timeout: PATIENCE,
        linger: Duration::from_millis(300),
        drain: Duration::from_millis(500),
        ..Options::default()
    }
}

async fn start(router: Router, options: Options) -> Running {
    start_with(router, options, |server| server).await
}

async fn start_with(router: Router, options: Options, set_up: impl FnOnce(Server) -> Server) -> Running {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let telemetry = Telemetry::default();
    let tls = Arc::clone(&authority.resolver).server_config().unwrap();
    let server = set_up(Server::https(tls, router).options(options).telemetry(telemetry.clone()));
    let terminate = CancellationToken::new();
    let task = tokio::spawn(server.serve(listener, terminate.clone()));
    Running { authority, address, terminate, telemetry, task }
}

impl Running {
    async fn tls(&self, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
        connect(self.address, &self.authority.connector(protocol)).await
    }

    async fn http1(&self) -> Client {
        client_over(self.tls("http/1.1").await.unwrap(), "http/1.1").await
    }

    async fn http2(&self) -> Client {
        client_over(self.tls("h2").await.unwrap(), "h2").await
    }

    /// Both kinds of clients.
    async fn clients(&self) -> [Client; 2] {
        [self.http1().await, self.http2().await]
    }

    async fn ended(self) -> Drained {
        tokio::time::timeout(PATIENCE, self.task).await.expect("the server does not end").unwrap()
    }
}

async fn connect(address: SocketAddr, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let connected = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        connector.connect(ServerName::try_from(NAME).unwrap(), stream).await
    };
    tokio::time::timeout(PATIENCE, connected).await.expect("neither connected nor refused")
}

async fn client_over(stream: TlsStream<TcpStream>, protocol: &str) -> Client {
    let io = TokioIo::new(stream);
    if protocol == "h2" {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Client::Http2(sender)
    } else {
        let (sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        Client::Http1(sender)
    }
}

/// One connection.
enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// An answer that was read whole.
#[derive(Debug)]
struct Got {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    text: String,
}

impl Client {
    /// Posts `body` on this connection.
    async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> hyper::Result<Got> {
        let request = Request::post(format!("https://{NAME}{path}"))
            .header(header::HOST, NAME)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.into()))
            .unwrap();
        let answered = async {
            let response = match self {
                Self::Http1(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await?
                }
                Self::Http2(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await?
                }
            };
            read(response).await
        };
        tokio::time::timeout(PATIENCE, answered).await.expect("neither an answer nor an error")
    }

    /// Whether this connection takes another request: what a client's pool asks before it uses one again.
    async fn is_usable(&mut self) -> bool {
        let ready = async {
            match self {
                Self::Http1(sender) => sender.ready().await.is_ok(),
                Self::Http2(sender) => sender.ready().await.is_ok(),
            }
        };
        tokio::time::timeout(PATIENCE, ready).await.expect("neither ready nor closed")
    }

    /// Another sender on the same HTTP/2 connection.
    fn sibling(&self) -> Self {
        match self {
            Self::Http2(sender) => Self::Http2(sender.clone()),
            Self::Http1(_) => panic!("HTTP/1.1 has one request at a time"),
        }
    }
}

async fn read(response: Response<hyper::body::Incoming>) -> hyper::Result<Got> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    Ok(Got { status: parts.status, version: parts.version, headers: parts.headers, text })
}

/// The webhook itself, as the program serves it, with a pod in its cache whose eviction it holds: the one of the
/// recorded review.
async fn start_webhook(options: Options) -> Running {
    let webhook = Webhook::of(&testing::config(""));
    webhook.fill();
    let router = webhook::router(Arc::clone(&webhook.handlers));
    start_with(router, options, |server| server.fallback(webhook::unserved)).await
}

/// Asks for the eviction, which is held: the webhook works.
async fn is_held(client: &mut Client) {
    let got = client.post(webhook::EVICTION_PATH, EVICTION).await.unwrap();
    let answer: serde_json::Value = serde_json::from_str(&got.text).unwrap();
    assert_eq!((got.status, &answer["response"]["status"]["code"]), (StatusCode::OK, &429.into()), "{answer}");
}

/// Answers a body's size.
fn sizes() -> Router {
    Router::new().route("/size", post(async |body: Bytes| body.len().to_string()))
}

/// What a caller would make of a request that was not served: a 200 that names the trouble and the body.
fn stand_in(unserved: Unserved<'_>) -> axum::response::Response {
    let body = String::from_utf8_lossy(unserved.body);
    let kind = unserved.content_type.map(|kind| kind.to_str().unwrap()).unwrap_or_default();
    format!("{} {} {kind} {body}", unserved.trouble.name(), unserved.uri.path()).into_response()
}

/// Waits until `check` holds.
async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let waited = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("never: {what}"));
}
