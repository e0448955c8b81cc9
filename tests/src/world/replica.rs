//! A webhook replica asked by itself, past the API server: what one replica knows another may not know yet.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::belay::{Belay, WEBHOOK_PORT};
use super::namespace::Namespace;
use super::waiting::eventually;

/// The name that its certificate is for.
const NAME: &str = "belay-webhook.belay-system.svc";

/// Makes connections to replicas, as the API server does.
#[derive(Clone)]
pub struct Caller(TlsConnector);

impl Caller {
    /// One that trusts what the API server is told to trust.
    ///
    /// # Errors
    /// When the webhook configuration carries no good `caBundle`.
    pub async fn trusting(ns: &Namespace) -> anyhow::Result<Self> {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(ns.client());
        let mut entries = configurations.get("belay").await?.webhooks.into_iter().flatten();
        let bundle = entries.next().and_then(|entry| entry.client_config.ca_bundle);
        let bundle = bundle.context("the webhook configuration carries no caBundle")?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&bundle.0) {
            roots.add(certificate.context("a certificate of the caBundle")?)?;
        }
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Shakes hands on a connection.
    ///
    /// # Errors
    /// When it is not trusted, or breaks off.
    pub async fn shake_hands(&self, stream: TcpStream) -> anyhow::Result<TlsStream<TcpStream>> {
        Ok(self.0.connect(ServerName::try_from(NAME)?, stream).await?)
    }

    /// What a replica says of the eviction of a pod, as a dry run: the response's text.
    async fn asks(&self, address: SocketAddr, ns: &Namespace, pod: &str) -> anyhow::Result<String> {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "0", "namespace": ns.name(), "name": pod, "dryRun": true,
                "userInfo": {"username": "belay-admin"},
                "object": {"metadata": {"namespace": ns.name(), "name": pod}},
            },
        })
        .to_string();
        let request =
            format!("{}content-length: {}\r\nconnection: close\r\n\r\n{review}", eviction_head(), review.len());
        let mut stream = self.shake_hands(TcpStream::connect(address).await?).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// The first lines of a request about an eviction.
pub fn eviction_head() -> String {
    format!("POST /validate/eviction HTTP/1.1\r\nhost: {NAME}\r\ncontent-type: application/json\r\n")
}

impl Belay {
    /// The addresses of all webhook replicas.
    ///
    /// # Errors
    /// When there are none, or they cannot be reached.
    pub async fn replicas(&self, ns: &Namespace) -> anyhow::Result<Vec<SocketAddr>> {
        let pods = self.webhook_pods().await?;
        ensure!(!pods.is_empty(), "there are no webhook replicas");
        pods.iter().map(|pod| ns.cluster().reach(&pod.address, WEBHOOK_PORT)).collect()
    }

    /// Waits until every webhook replica would hold the eviction of this pod: each follows policies by itself.
    ///
    /// # Errors
    /// When one does not `within` that time.
    pub async fn held_by_all(&self, ns: &Namespace, pod: &str, within: Duration) -> anyhow::Result<()> {
        eventually(&format!("every replica would hold {pod}"), within, async || {
            let caller = Caller::trusting(ns).await?;
            for address in self.replicas(ns).await? {
                let answer = caller.asks(address, ns, pod).await?;
                ensure!(answer.contains("would be held"), "{address}: {answer}");
            }
            Ok(())
        })
        .await
    }
}
