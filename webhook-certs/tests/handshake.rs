//! Real TLS over loopback: a client that trusts only the bundle, through a whole rotation.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use jiff::{SignedDuration, Timestamp};
use rustls::client::Resumption;
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use webhook_certs::plan::Fact;
use webhook_certs::resolver::provider;
use webhook_certs::{CaSecret, CertResolver, Jitter, Leaf, LeafRequest, Step};

const NAME: &str = "belay-webhook.belay-system.svc";

/// The clients here check validity by the machine's clock.
fn today() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "a real TLS client uses the real clock")]
    Timestamp::now()
}

fn apply(step: &Step, secret: Option<&CaSecret>) -> CaSecret {
    step.apply(secret, "belay", today()).unwrap().unwrap()
}

fn leaf(secret: &CaSecret) -> Leaf {
    let request =
        LeafRequest { dns_names: vec![NAME.into()], ips: vec!["127.0.0.1".parse().unwrap()], jitter: Jitter::NONE };
    Leaf::sign(secret.active(), &request, today()).unwrap()
}

/// Serves connections: each line is sent back. One `ServerConfig` for all of them.
fn serve(resolver: &Arc<CertResolver>) -> SocketAddr {
    let config = Arc::clone(resolver).server_config().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let config = Arc::clone(&config);
            thread::spawn(move || {
                let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), socket.unwrap());
                let mut byte = [0];
                while matches!(tls.read(&mut byte), Ok(1)) {
                    tls.write_all(&byte).unwrap();
                }
            });
        }
    });
    address
}

/// A client that trusts exactly `bundle` (PEM).
fn client(bundle: &[u8], versions: &[&'static rustls::SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Every connection is to see the certificate.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

type Connection = StreamOwned<ClientConnection, TcpStream>;

fn connect(address: SocketAddr, config: &Arc<ClientConfig>, name: &'static str) -> std::io::Result<Connection> {
    let name = ServerName::try_from(name).unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut tls = StreamOwned::new(connection, TcpStream::connect(address)?);
    echo(&mut tls)?;
    Ok(tls)
}

fn echo(tls: &mut Connection) -> std::io::Result<()> {
    let mut byte = [0];
    tls.write_all(b"x")?;
    tls.read_exact(&mut byte)
}

#[test]
fn a_client_that_trusts_only_the_live_bundle_is_served_through_a_whole_rotation_without_a_failure() {
    let first = apply(&Step::Create { keep: vec![] }, None);
    let published = apply(&Step::Publish, Some(&first));
    let observed = apply(&Step::Record(Fact::AllHold), Some(&published));
    let activated = apply(&Step::Activate, Some(&observed));
    let retired = apply(&Step::Retire, Some(&activated));
    // What is served and what a client trusts at each stage, the worst pairing of late readers.
    let stages = [
        (&first, &first),
        (&first, &published),
        (&published, &first),
        (&published, &activated),
        (&activated, &published),
        (&activated, &retired),
        (&retired, &activated),
        (&retired, &retired),
    ];

    let resolver = CertResolver::new();
    resolver.set(&leaf(&first));
    let address = serve(&resolver);
    let versions: [&[&rustls::SupportedProtocolVersion]; 2] = [&[&rustls::version::TLS13], &[&rustls::version::TLS12]];
    let mut open = connect(address, &client(&first.bundle_pem(), versions[0]), NAME).unwrap();
    let handshakes = AtomicUsize::new(0);
    for (served, trusted) in stages {
        resolver.set(&leaf(served));
        thread::scope(|scope| {
            for versions in versions {
                for name in [NAME, "127.0.0.1"] {
                    let (handshakes, config) = (&handshakes, client(&trusted.bundle_pem(), versions));
                    scope.spawn(move || {
                        for _ in 0..10 {
                            connect(address, &config, name).unwrap();
                            handshakes.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            }
            // Swaps go on under the handshakes.
            for _ in 0..10 {
                resolver.set(&leaf(served));
            }
        });
        // A connection that was opened under the first leaf outlives all swaps.
        echo(&mut open).unwrap();
    }
    assert_eq!(handshakes.into_inner(), stages.len() * 4 * 10);

    // And the authority that was retired is trusted no more.
    resolver.set(&leaf(&first));
    let error = connect(address, &client(&retired.bundle_pem(), versions[0]), NAME).unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
}

#[test]
fn both_protocol_versions_are_spoken_and_a_protocol_is_agreed_on() {
    let secret = apply(&Step::Create { keep: vec![] }, None);
    let resolver = CertResolver::new();
    resolver.set(&leaf(&secret));
    let address = serve(&resolver);
    for (version, expected) in
        [(&rustls::version::TLS12, ProtocolVersion::TLSv1_2), (&rustls::version::TLS13, ProtocolVersion::TLSv1_3)]
    {
        for (offered, agreed) in
            [(&[b"h2".to_vec(), b"http/1.1".to_vec()][..], "h2"), (&[b"http/1.1".to_vec()], "http/1.1")]
        {
            let mut config = Arc::unwrap_or_clone(client(&secret.bundle_pem(), &[version]));
            config.alpn_protocols = offered.to_vec();
            let tls = connect(address, &Arc::new(config), NAME).unwrap();
            assert_eq!(tls.conn.protocol_version(), Some(expected));
            assert_eq!(tls.conn.alpn_protocol(), Some(agreed.as_bytes()));
        }
    }
}

#[test]
fn without_a_certificate_a_handshake_is_refused_and_the_next_one_with_it_served() {
    let secret = apply(&Step::Create { keep: vec![] }, None);
    let resolver = CertResolver::new();
    assert!(!resolver.is_set());
    let address = serve(&resolver);
    let config = client(&secret.bundle_pem(), &[&rustls::version::TLS13]);
    connect(address, &config, NAME).unwrap_err();
    resolver.set(&leaf(&secret));
    connect(address, &config, NAME).unwrap();
}

#[test]
fn a_leaf_made_by_a_clock_a_little_ahead_is_accepted() {
    let ahead = today().checked_add(SignedDuration::from_mins(50)).unwrap();
    let secret = Step::Create { keep: vec![] }.apply(None, "belay", ahead).unwrap().unwrap();
    let request = LeafRequest { dns_names: vec![NAME.into()], ips: vec![], jitter: Jitter::NONE };
    let resolver = CertResolver::new();
    resolver.set(&Leaf::sign(secret.active(), &request, ahead).unwrap());
    connect(serve(&resolver), &client(&secret.bundle_pem(), &[&rustls::version::TLS13]), NAME).unwrap();
}
