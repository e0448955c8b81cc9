//! cert-manager, played: its controller issues the Certificates of Belay's namespace, its cainjector fills webhook
//! configurations that ask for it.
//!
//! The definitions are its own, so what the chart renders is what it takes. Of an issuer the self-signed kind and the one
//! of a Secret are played.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use belay_e2e::programs;
use belay_e2e::watching::changes;
use belay_e2e::world::Namespace;
use futures::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::stage::SYSTEM;

/// The annotation by which a configuration asks for the authority of a Certificate, `namespace/name`.
const INJECT: &str = "cert-manager.io/inject-ca-from";

/// How soon they try again what cannot be done yet, as with a Secret that is being made.
const AGAIN: Duration = Duration::from_millis(100);

/// Both at work; they end when dropped, and leave what they made.
pub(crate) struct CertManager<'a> {
    ns: &'a Namespace,
    _works: [AbortOnDropHandle<()>; 2],
}

impl<'a> CertManager<'a> {
    /// Installs its definitions, and starts it.
    pub(crate) async fn play(ns: &'a Namespace) -> anyhow::Result<Self> {
        let definitions = tokio::task::spawn_blocking(programs::cert_manager).await;
        ns.cluster().crds(&definitions.context("the download was interrupted")??).await?;
        let runtime = ns.cluster().runtime();
        let controller = runtime.spawn(control(ns.client()));
        let injector = runtime.spawn(inject(ns.client()));
        Ok(Self { ns, _works: [controller, injector].map(AbortOnDropHandle::new) })
    }

    /// Has a certificate issued anew into its Secret, as `cmctl renew` does.
    pub(crate) async fn renew(&self, secret: &str) -> anyhow::Result<()> {
        let found = certificates(&self.ns.client()).list(&ListParams::default()).await?;
        let of_secret = found.items.into_iter().find(|one| one.data["spec"]["secretName"] == *secret);
        issue(&self.ns.client(), &of_secret.with_context(|| format!("no Certificate for {secret}"))?).await
    }
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("cert-manager.io", "v1", kind), plural)
}

fn certificates(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), SYSTEM, &resource("Certificate", "certificates"))
}

/// Issues what has no Secret yet.
async fn control(client: Client) {
    let mut events = std::pin::pin!(changes_of(certificates(&client)));
    while events.next().await.is_some() {
        while let Err(not_yet) = issue_missing(&client).await {
            tracing::debug!("the played cert-manager waits: {not_yet:#}");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// That something changed, of dynamic objects.
fn changes_of(api: Api<DynamicObject>) -> impl futures::Stream<Item = ()> {
    watcher::watcher(api, watcher::Config::default()).filter_map(async |event| event.ok().map(drop))
}

/// All that can be: a leaf waits for its authority's Secret, which is made in the same way.
async fn issue_missing(client: &Client) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM);
    let mut outcome = Ok(());
    for certificate in certificates(client).list(&ListParams::default()).await? {
        let secret = certificate.data["spec"]["secretName"].as_str().context("no secretName")?;
        if secrets.get_opt(secret).await?.is_none() {
            outcome = outcome.and(issue(client, &certificate).await);
        }
    }
    outcome
}

/// Issues a Certificate into its Secret.
async fn issue(client: &Client, certificate: &DynamicObject) -> anyhow::Result<()> {
    let spec = &certificate.data["spec"];
    let issuers: Api<DynamicObject> = Api::namespaced_with(client.clone(), SYSTEM, &resource("Issuer", "issuers"));
    let issuer = issuers.get(spec["issuerRef"]["name"].as_str().context("no issuer")?).await?;
    let params = params(spec)?;
    let key = KeyPair::generate()?;
    let (pem, authority) = match (&issuer.data["spec"]["selfSigned"], &issuer.data["spec"]["ca"]["secretName"]) {
        (Value::Object(_), _) => {
            let pem = params.self_signed(&key)?.pem();
            (pem.clone(), pem)
        }
        (_, Value::String(secret)) => {
            let text = texts(client, secret).await?;
            let signer = Issuer::from_ca_cert_pem(&text("tls.crt")?, KeyPair::from_pem(&text("tls.key")?)?)?;
            (params.signed_by(&key, &signer)?.pem(), text("tls.crt")?)
        }
        (_, _) => bail!("this kind of issuer is not played: {}", issuer.data),
    };
    let encode = |text: String| ByteString(text.into_bytes());
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": spec["secretName"] },
        "type": "kubernetes.io/tls",
        "data": { "ca.crt": encode(authority), "tls.crt": encode(pem), "tls.key": encode(key.serialize_pem()) },
    });
    let name = spec["secretName"].as_str().context("no secretName")?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM);
    secrets.patch(name, &PatchParams::apply("cert-manager").force(), &Patch::Apply(secret)).await?;
    Ok(())
}

fn params(spec: &Value) -> anyhow::Result<CertificateParams> {
    let names = spec["dnsNames"].as_array().into_iter().flatten();
    let names: Vec<String> = names.filter_map(Value::as_str).map(str::to_owned).collect();
    let mut params = CertificateParams::new(names)?;
    if let Some(name) = spec["commonName"].as_str() {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    if spec["isCA"] == true {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    } else {
        let usages = spec["usages"].as_array().cloned().unwrap_or_default();
        ensure!(usages.contains(&json!("server auth")), "no server's certificate: {spec}");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    }
    Ok(params)
}

/// The texts of a Secret of Belay's namespace.
async fn texts(client: &Client, secret: &str) -> anyhow::Result<impl Fn(&str) -> anyhow::Result<String> + use<>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM);
    let data = secrets.get(secret).await?.data.unwrap_or_default();
    Ok(move |key: &str| {
        let value = data.get(key).with_context(|| format!("no {key}"))?;
        String::from_utf8(value.0.clone()).map_err(anyhow::Error::from)
    })
}

/// Fills configurations that ask for it, again whenever they change.
async fn inject(client: Client) {
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let of_validating = changes(validating, watcher::Config::default()).map(drop);
    let of_mutating = changes(mutating, watcher::Config::default()).map(drop);
    let mut events = std::pin::pin!(futures::stream::select(of_validating, of_mutating));
    while events.next().await.is_some() {
        while let Err(not_yet) = fill_all(&client).await {
            tracing::debug!("the played cainjector waits: {not_yet:#}");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn fill_all(client: &Client) -> anyhow::Result<()> {
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    for mut found in validating.list(&ListParams::default()).await? {
        let Some(bundle) = wanted(client, found.annotations().get(INJECT)).await? else { continue };
        if fill(found.webhooks.iter_mut().flatten().map(|entry| &mut entry.client_config), &bundle) {
            validating.replace(&found.name_any(), &PostParams::default(), &found).await?;
        }
    }
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    for mut found in mutating.list(&ListParams::default()).await? {
        let Some(bundle) = wanted(client, found.annotations().get(INJECT)).await? else { continue };
        if fill(found.webhooks.iter_mut().flatten().map(|entry| &mut entry.client_config), &bundle) {
            mutating.replace(&found.name_any(), &PostParams::default(), &found).await?;
        }
    }
    Ok(())
}

/// The authority that a configuration asks for.
async fn wanted(client: &Client, annotation: Option<&String>) -> anyhow::Result<Option<ByteString>> {
    let Some(annotation) = annotation else { return Ok(None) };
    let (namespace, name) = annotation.split_once('/').context("not namespace/name")?;
    ensure!(namespace == SYSTEM, "a Certificate of {namespace}");
    let certificate = certificates(client).get(name).await?;
    let secret = certificate.data["spec"]["secretName"].as_str().context("no secretName")?;
    let text = texts(client, secret).await?;
    Ok(Some(ByteString(text("ca.crt")?.into_bytes())))
}

/// Writes the bundle to every entry; whether that changed any.
fn fill<'c>(clients: impl Iterator<Item = &'c mut WebhookClientConfig>, bundle: &ByteString) -> bool {
    let mut changed = false;
    for client in clients.filter(|client| client.ca_bundle.as_ref() != Some(bundle)) {
        client.ca_bundle = Some(bundle.clone());
        changed = true;
    }
    changed
}
