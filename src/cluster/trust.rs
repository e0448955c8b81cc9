//! What is seen of our certificates: the CA Secret, and what each of our webhook configurations trusts.
//!
//! Both are watched by name, so the rights can be narrowed to exactly these objects.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use webhook_certs::secret::SecretData;
use webhook_certs::{CaSecret, ConfigKind, Entry, LiveCaBundle};

use super::watch::{Health, Sink, run};
use crate::config::Config;

/// What is seen. Cheap to clone.
#[derive(Clone)]
pub struct Trust {
    seen: Arc<RwLock<Seen>>,
    changed: watch::Sender<()>,
    health: [Health; 3],
}

#[derive(Default)]
struct Seen {
    secret: Option<Result<CaSecret, String>>,
    validating: Vec<LiveCaBundle>,
    mutating: Vec<LiveCaBundle>,
}

impl Trust {
    /// Begins to watch.
    pub fn watch(client: &Client, namespace: &str, config: &Config, stop: &CancellationToken) -> Self {
        let health = [
            Health::new("the CA Secret"),
            Health::new("our ValidatingWebhookConfiguration"),
            Health::new("our MutatingWebhookConfiguration"),
        ];
        let trust = Self { seen: Arc::default(), changed: watch::Sender::new(()), health };
        let [secret, validating, mutating] = &trust.health;
        let by_name = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        tokio::spawn(run(
            Api::<Secret>::namespaced(client.clone(), namespace),
            by_name(&config.certs.secret_name),
            parse_secret,
            SecretSink(trust.clone()),
            secret.clone(),
            stop.clone(),
        ));
        tokio::spawn(run(
            Api::<ValidatingWebhookConfiguration>::all(client.clone()),
            by_name(&config.webhook_configurations.validating),
            validating_bundles,
            BundleSink { trust: trust.clone(), kind: ConfigKind::Validating },
            validating.clone(),
            stop.clone(),
        ));
        tokio::spawn(run(
            Api::<MutatingWebhookConfiguration>::all(client.clone()),
            by_name(&config.webhook_configurations.mutating),
            mutating_bundles,
            BundleSink { trust: trust.clone(), kind: ConfigKind::Mutating },
            mutating.clone(),
            stop.clone(),
        ));
        trust
    }

    /// The Secret: absent, unusable and why, or sound.
    pub fn secret(&self) -> Option<Result<CaSecret, String>> {
        self.seen.read().secret.clone()
    }

    /// What each entry of our live configurations trusts.
    pub fn live(&self) -> Vec<LiveCaBundle> {
        let seen = self.seen.read();
        seen.validating.iter().chain(&seen.mutating).cloned().collect()
    }

    /// Everything was listed at least once.
    pub fn ready(&self) -> Result<(), String> {
        self.health.iter().try_for_each(Health::ready)
    }

    /// Tells of every change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.write());
        self.changed.send_replace(());
    }
}

/// Reads a Secret.
pub fn parse_secret(secret: &Secret) -> Result<CaSecret, String> {
    let data: SecretData = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect();
    CaSecret::parse(&data).map_err(|error| {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        format!("Secret {name}: {error}")
    })
}

/// What a configuration's entries trust.
pub fn validating_bundles(config: &ValidatingWebhookConfiguration) -> Vec<LiveCaBundle> {
    let name = config.metadata.name.clone().unwrap_or_default();
    config
        .webhooks
        .iter()
        .flatten()
        .map(|webhook| LiveCaBundle {
            entry: Entry { kind: ConfigKind::Validating, config: name.clone(), webhook: webhook.name.clone() },
            ca_bundle: webhook.client_config.ca_bundle.as_ref().map(|bundle| bundle.0.clone()).unwrap_or_default(),
        })
        .collect()
}

/// What a configuration's entries trust.
pub fn mutating_bundles(config: &MutatingWebhookConfiguration) -> Vec<LiveCaBundle> {
    let name = config.metadata.name.clone().unwrap_or_default();
    config
        .webhooks
        .iter()
        .flatten()
        .map(|webhook| LiveCaBundle {
            entry: Entry { kind: ConfigKind::Mutating, config: name.clone(), webhook: webhook.name.clone() },
            ca_bundle: webhook.client_config.ca_bundle.as_ref().map(|bundle| bundle.0.clone()).unwrap_or_default(),
        })
        .collect()
}

struct SecretSink(Trust);

impl Sink<Result<CaSecret, String>> for SecretSink {
    fn replace(&mut self, mut objects: Vec<Result<CaSecret, String>>) {
        self.0.change(|seen| seen.secret = objects.pop());
    }

    fn apply(&mut self, object: Result<CaSecret, String>) {
        self.0.change(|seen| seen.secret = Some(object));
    }

    fn delete(&mut self, _: Result<CaSecret, String>) {
        self.0.change(|seen| seen.secret = None);
    }
}

struct BundleSink {
    trust: Trust,
    kind: ConfigKind,
}

impl BundleSink {
    fn set(&self, bundles: Vec<LiveCaBundle>) {
        self.trust.change(|seen| match self.kind {
            ConfigKind::Validating => seen.validating = bundles,
            ConfigKind::Mutating => seen.mutating = bundles,
        });
    }
}

impl Sink<Vec<LiveCaBundle>> for BundleSink {
    fn replace(&mut self, objects: Vec<Vec<LiveCaBundle>>) {
        self.set(objects.into_iter().flatten().collect());
    }

    fn apply(&mut self, object: Vec<LiveCaBundle>) {
        self.set(object);
    }

    fn delete(&mut self, _: Vec<LiveCaBundle>) {
        self.set(Vec::new());
    }
}
