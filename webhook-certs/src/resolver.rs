//! Serving a certificate that changes while connections are open.
//!
//! The server has one `ServerConfig` for its whole life. Only the certificate behind it is swapped,
//! atomically, so a handshake sees the old one or the new one and nothing between, connections that
//! are open go on, and session resumption survives.

use std::fmt;
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::leaf::Leaf;

/// The protocols offered, best first. API servers call webhooks over HTTP/1.1 and may use HTTP/2
/// on loopback (kubernetes/kubernetes#75791).
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));

/// The cryptography used everywhere in this package, named rather than taken from the process
/// default: that default panics where two providers are linked and none was installed.
pub fn provider() -> &'static Arc<CryptoProvider> {
    &PROVIDER
}

/// Hands the current certificate to each handshake. While none is set, handshakes are refused.
#[derive(Default)]
pub struct CertResolver {
    current: ArcSwapOption<CertifiedKey>,
}

impl fmt::Debug for CertResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.current.load().is_some();
        f.debug_struct("CertResolver").field("set", &set).finish()
    }
}

impl CertResolver {
    /// A resolver without a certificate.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Serves `leaf` from the next handshake on.
    pub fn set(&self, leaf: &Leaf) {
        self.set_certified(leaf.certified());
    }

    /// Serves a certificate from elsewhere, such as mounted files, from the next handshake on.
    pub fn set_certified(&self, certified: Arc<CertifiedKey>) {
        self.current.store(Some(certified));
    }

    /// Whether a certificate was ever set.
    pub fn is_set(&self) -> bool {
        self.current.load().is_some()
    }

    /// The one server configuration: TLS 1.2 and 1.3, `h2` and `http/1.1`, no client certificates.
    ///
    /// # Errors
    /// The provider lacks what those protocol versions need, which a fixed provider never does.
    pub fn server_config(self: Arc<Self>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(self);
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for CertResolver {
    /// The same certificate whatever name is asked for: callers by address send no name at all.
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}
