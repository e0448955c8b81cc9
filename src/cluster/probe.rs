//! Asks the API server whether it reaches the webhook, as `belay_decide::probe` says: reads the webhook configuration,
//! then asks for an eviction that evicts nothing, and looks for the replica's word among the answer's warnings.
//!
//! Warnings are headers, which kube's typed calls do not give, so the request is made by hand.

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use belay_decide::probe::{ANNOTATION, CANARY_ENTRY, EVICTION_ENTRY, Entries, EntryView, Miss, POD, Reply, Verdict};
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::BodyExt as _;
use k8s_openapi::api::admissionregistration::v1::{
    ServiceReference, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::ListParams;
use kube::client::Body;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::apply::{ApplyError, bounded};
use super::client;

/// How long the API server may take. It gives a whole admission 30 s at most, as many as a webhook may have
/// (`timeoutSeconds`), and answers then.
const ASK_WITHIN: Duration = Duration::from_secs(35);

/// The port of a Service that a webhook leads to where none is named (`ServiceReference`).
const DEFAULT_PORT: i32 = 443;

/// Asks.
#[derive(Clone)]
pub struct Prober {
    client: Client,
    namespace: String,
    configuration: String,
}

/// What was found, and what could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What was found.
    pub verdict: Verdict,
    /// Why it is not known whether the entry of evictions leads to where the canary does; absent where it is known.
    pub unread: Option<String>,
}

impl Prober {
    /// Asks about the webhook in this namespace, to which the ValidatingWebhookConfiguration of this name leads.
    pub fn new(client: Client, namespace: String, configuration: String) -> Self {
        Self { client, namespace, configuration }
    }

    /// Asks once.
    pub async fn probe(&self) -> Found {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let object = format!("ValidatingWebhookConfiguration {}", self.configuration);
        let (entries, unread) = match bounded(object, configurations.get_opt(&self.configuration)).await {
            Ok(Some(configuration)) => (Some(entries(&configuration)), None),
            Ok(None) => return Verdict::NotReached(Miss::NoConfiguration).into(),
            Err(ApplyError::Forbidden { message, .. }) => (None, Some(message)),
            Err(ApplyError::Unreachable { message, .. }) => return Verdict::Unreachable { message }.into(),
            Err(error) => return Verdict::Unreachable { message: error.to_string() }.into(),
        };
        let Some(entries) = entries else { return Found { verdict: self.ask().await, unread } };
        match Verdict::without_asking(&entries) {
            Some(verdict) => verdict.into(),
            None => self.ask().await.for_evictions(&entries).into(),
        }
    }

    async fn ask(&self) -> Verdict {
        let nonce = nonce();
        match tokio::time::timeout(ASK_WITHIN, self.evict(&nonce)).await {
            Ok(Ok(reply)) => Verdict::of_reply(&reply, &nonce),
            Ok(Err(error)) => Verdict::Unreachable { message: client::describe(&error) },
            Err(_) => Verdict::Unreachable { message: format!("no answer within {} s", ASK_WITHIN.as_secs()) },
        }
    }

    /// Asks for the eviction, as a dry run by the URL and in the body.
    async fn evict(&self, nonce: &str) -> kube::Result<Reply> {
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": POD, "namespace": self.namespace, "annotations": { ANNOTATION: nonce } },
            "deleteOptions": { "dryRun": ["All"] },
        });
        let path = format!("/api/v1/namespaces/{}/pods/{POD}/eviction?dryRun=All", self.namespace);
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(eviction.to_string().into_bytes()))
            .map_err(kube::Error::HttpError)?;
        let (head, body) = self.client.send(request).await?.into_parts();
        let bytes = body.collect().await?.to_bytes();
        // An answer without a status is a proxy's, or an object.
        let status: Status = serde_json::from_slice(&bytes).unwrap_or_default();
        let missing = status.details.and_then(|details| details.kind).unwrap_or_default();
        Ok(Reply {
            code: head.status.as_u16(),
            warnings: warnings(&head.headers),
            message: status.message.unwrap_or_default(),
            missing,
        })
    }
}

impl From<Verdict> for Found {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, unread: None }
    }
}

/// A word that nobody has said before.
fn nonce() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// What a configuration says of the two entries.
fn entries(configuration: &ValidatingWebhookConfiguration) -> Entries {
    let of = |name: &str| {
        let entry = configuration.webhooks.iter().flatten().find(|entry| entry.name == name)?;
        Some(view(&entry.client_config))
    };
    Entries { eviction: of(EVICTION_ENTRY), canary: of(CANARY_ENTRY) }
}

fn view(client: &WebhookClientConfig) -> EntryView {
    let (server, path) = match &client.service {
        Some(ServiceReference { namespace, name, port, path }) => (
            format!("{namespace}/{name}:{}", port.unwrap_or(DEFAULT_PORT)),
            path.clone().unwrap_or_else(|| "/".to_owned()),
        ),
        None => (client.url.clone().unwrap_or_default(), String::new()),
    };
    EntryView { server, path, ca_bundle: client.ca_bundle.clone().map(|bundle| bundle.0).unwrap_or_default() }
}

/// Namespaces and names of what a probe can be about: the configurations with an entry of ours, and where that leads. One
/// that has lost its canary is one of them: it is what the probe will say.
pub async fn find(client: &Client) -> kube::Result<Vec<(String, String)>> {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let all = configurations.list(&ListParams::default()).await?;
    let found = all.items.into_iter().filter_map(|configuration| {
        let of = |name: &str| configuration.webhooks.iter().flatten().find(|entry| entry.name == name);
        let ours = of(CANARY_ENTRY).or_else(|| of(EVICTION_ENTRY))?;
        let namespace = ours.client_config.service.as_ref()?.namespace.clone();
        Some((namespace, configuration.name_any()))
    });
    Ok(found.collect())
}

/// The texts of all warnings: `299 - "text"`, in headers of their own or, by a proxy's doing, several in one (RFC 9111,
/// 5.5 obsoleted it; Kubernetes goes on using it). Quoted dates among them are no text of ours.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    headers.get_all("warning").iter().filter_map(|value| HeaderValue::to_str(value).ok()).flat_map(quoted).collect()
}

/// All quoted strings of a header.
fn quoted(header: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut open: Option<String> = None;
    let mut letters = header.chars();
    while let Some(letter) = letters.next() {
        match (letter, &mut open) {
            ('"', Some(_)) => texts.extend(open.take()),
            ('"', None) => open = Some(String::new()),
            ('\\', Some(text)) => text.extend(letters.next()),
            (_, Some(text)) => text.push(letter),
            (_, None) => {}
        }
    }
    texts
}
