//! The stage: Belay with `failurePolicy: Fail` on a cluster of its own, and what is seen of its certificates.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::clock;
use belay_e2e::world::{Belay, Namespace, PodInfo, merge};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use webhook_certs::secret::SecretData;
use webhook_certs::verify::verify;

use crate::hammer::Seen;
use crate::support::{SOON, protected_web};

/// Where Belay runs.
pub(crate) const SYSTEM: &str = "belay-system";

/// The name by which the API server calls the webhook.
pub(crate) const NAME: &str = "belay-webhook.belay-system.svc";

/// For what waits out the settle time of a new authority twice, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_mins(8);

/// Values with which a call that does not get through is an error, together with these. The time-outs are the longest
/// there are: how fast a busy machine answers is not what is tested.
pub(crate) fn values(more: &Value) -> Value {
    let strict = json!({ "failurePolicy": "Fail", "timeoutSeconds": 10 });
    let mut values = json!({ "admission": { "eviction": strict, "podCreation": strict } });
    merge(&mut values, more);
    values
}

/// A protected pod whose eviction is held.
pub(crate) async fn victim(ns: &Namespace) -> anyhow::Result<PodInfo> {
    ns.nodes(2).await?;
    Ok(protected_web(ns.web("web"), "").await?.1)
}

/// Makes the namespace that Belay is installed to.
pub(crate) async fn system_namespace(ns: &Namespace) -> anyhow::Result<()> {
    ns.cluster().kubectl(["create", "namespace", SYSTEM]).ok().await.map(drop)
}

/// Secrets of Belay's namespace.
pub(crate) fn secrets(ns: &Namespace) -> Api<Secret> {
    Api::namespaced(ns.client(), SYSTEM)
}

/// A Secret's values.
pub(crate) async fn read(ns: &Namespace, name: &str) -> anyhow::Result<SecretData> {
    let secret = secrets(ns).get(name).await?;
    Ok(secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect())
}

/// Writes a Secret's values, all of them.
pub(crate) async fn write(ns: &Namespace, name: &str, data: SecretData) -> anyhow::Result<()> {
    let api = secrets(ns);
    let data = data.into_iter().map(|(key, value)| (key, ByteString(value))).collect();
    match api.get_opt(name).await? {
        Some(mut secret) => {
            secret.data = Some(data);
            api.replace(name, &PostParams::default(), &secret).await?;
        }
        None => {
            let mut secret =
                Secret { type_: Some("kubernetes.io/tls".to_owned()), data: Some(data), ..Secret::default() };
            secret.metadata.name = Some(name.to_owned());
            api.create(&PostParams::default(), &secret).await?;
        }
    }
    Ok(())
}

/// Writes one of a Secret's values.
pub(crate) async fn set(ns: &Namespace, name: &str, key: &str, value: &str) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({ "data": { key: ByteString(value.as_bytes().to_vec()) } }));
    secrets(ns).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until every entry of both configurations trusts just this.
pub(crate) async fn trusted(ns: &Namespace, seen: &Seen, bundle: &[u8]) -> anyhow::Result<()> {
    ns.eventually("every webhook configuration holds the bundle", SOON, async || {
        let bundles = seen.bundles();
        ensure!(!bundles.is_empty(), "no entry was seen yet");
        let others: Vec<_> = bundles.iter().filter(|(_, found)| found != bundle).map(|(entry, _)| entry).collect();
        ensure!(others.is_empty(), "{others:?} hold something else");
        Ok(())
    })
    .await
}

/// Waits until every replica serves a leaf that verifies against this bundle alone.
pub(crate) async fn served_by(ns: &Namespace, belay: &Belay, seen: &Seen, bundle: &[u8]) -> anyhow::Result<()> {
    ns.eventually("every replica serves a leaf of that authority", PATIENCE, async || {
        for pod in belay.webhook_pods().await? {
            let chain = seen.leaf_of(&pod.name).with_context(|| format!("{} was not asked yet", pod.name))?;
            verify(&chain, bundle, NAME, clock::now()).with_context(|| pod.name.clone())?;
        }
        Ok(())
    })
    .await
}

/// Waits until every replica serves just this certificate (PEM).
pub(crate) async fn serves(ns: &Namespace, belay: &Belay, seen: &Seen, certificate: &[u8]) -> anyhow::Result<()> {
    let certificate = CertificateDer::from_pem_slice(certificate)?;
    ns.eventually("every replica serves the new certificate", PATIENCE, async || {
        for pod in belay.webhook_pods().await? {
            let chain = seen.leaf_of(&pod.name).with_context(|| format!("{} was not asked yet", pod.name))?;
            ensure!(chain.first() == Some(&certificate), "{} serves another one", pod.name);
        }
        Ok(())
    })
    .await
}

/// Waits until every entry of both configurations trusts these authorities (PEM), in any order, and no others.
pub(crate) async fn trusted_are(ns: &Namespace, seen: &Seen, authorities: &[&str]) -> anyhow::Result<()> {
    let expected = certificates(authorities.concat().as_bytes())?;
    ns.eventually("every webhook configuration trusts these authorities", PATIENCE, async || {
        let bundles = seen.bundles();
        ensure!(!bundles.is_empty(), "no entry was seen yet");
        for (entry, bundle) in bundles {
            let found = certificates(&bundle)?;
            ensure!(found == expected, "{entry} trusts others, {} instead of {}", found.len(), expected.len());
        }
        Ok(())
    })
    .await
}

fn certificates(pem: &[u8]) -> anyhow::Result<BTreeSet<Vec<u8>>> {
    CertificateDer::pem_slice_iter(pem).map(|found| Ok(found?.to_vec())).collect()
}

/// `kubectl rollout restart` of the webhook, to its end.
pub(crate) async fn rolling_restart(ns: &Namespace) -> anyhow::Result<()> {
    let kubectl = async |args: &[&str]| ns.cluster().kubectl([&["-n", SYSTEM, "rollout"], args].concat()).ok().await;
    kubectl(&["restart", "deployment/belay-webhook"]).await?;
    kubectl(&["status", "deployment/belay-webhook", "--timeout=180s"]).await?;
    Ok(())
}

/// So long ago, as the Secret writes times.
pub(crate) fn ago(time: jiff::SignedDuration) -> String {
    Timestamp::to_string(&(clock::now() - time))
}
