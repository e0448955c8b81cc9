//! What is seen of our certificates: the CA Secret, where Belay makes its own, and what each of our webhook
//! configurations trusts.
//!
//! Both are watched by name, so the rights can be narrowed to exactly these objects.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhook, ValidatingWebhookConfiguration,
    WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::runtime::watcher;
use parking_lot::RwLock;
use tokio::sync::watch;
use webhook_certs::secret::SecretData;
use webhook_certs::{CaSecret, ConfigKind, Entry, LiveCaBundle};

use super::watch::{Health, Sink, Watches};
use crate::config::{CertsMode, Config};

/// What is seen. Cheap to clone.
#[derive(Clone)]
pub struct Trust {
    sight: Sight,
    health: Vec<Health>,
}

/// What the watches write and the rest reads.
#[derive(Clone)]
struct Sight {
    seen: Arc<RwLock<Seen>>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Seen {
    secret: Option<Result<CaSecret, String>>,
    validating: Vec<LiveCaBundle>,
    mutating: Vec<LiveCaBundle>,
}

impl Trust {
    /// Begins to watch.
    pub fn watch(watches: &Watches, namespace: &str, config: &Config) -> Self {
        let (seen, changed) = (Arc::default(), watch::Sender::new(()));
        let sight = Sight { seen, changed };
        let client = &watches.client;
        let by_name = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let names = &config.webhook_configurations;
        let secret = (config.certs.mode == CertsMode::Auto).then(|| {
            watches.start(
                "Secret",
                Api::<Secret>::namespaced(client.clone(), namespace),
                by_name(&config.certs.secret_name),
                |secret| Some(parse_secret(secret)),
                SecretSink(sight.clone()),
            )
        });
        let configurations = [
            watches.start(
                "ValidatingWebhookConfiguration",
                Api::<ValidatingWebhookConfiguration>::all(client.clone()),
                by_name(&names.validating),
                |config| Some(validating_bundles(config)),
                BundleSink { sight: sight.clone(), kind: ConfigKind::Validating },
            ),
            watches.start(
                "MutatingWebhookConfiguration",
                Api::<MutatingWebhookConfiguration>::all(client.clone()),
                by_name(&names.mutating),
                |config| Some(mutating_bundles(config)),
                BundleSink { sight: sight.clone(), kind: ConfigKind::Mutating },
            ),
        ];
        Self { sight, health: secret.into_iter().chain(configurations).collect() }
    }

    /// As if these entries trusted what they say, and nothing else were there.
    #[cfg(test)]
    pub(crate) fn seeing(live: Vec<LiveCaBundle>) -> Self {
        let seen = Arc::new(RwLock::new(Seen { validating: live, ..Seen::default() }));
        Self { sight: Sight { seen, changed: watch::Sender::new(()) }, health: Vec::new() }
    }

    /// As if the Secret were this now.
    #[cfg(test)]
    pub(crate) fn see_secret(&self, secret: Option<Result<CaSecret, String>>) {
        self.sight.change(|seen| seen.secret = secret);
    }

    /// As if these entries trusted what they say now.
    #[cfg(test)]
    pub(crate) fn see_live(&self, live: Vec<LiveCaBundle>) {
        self.sight.change(|seen| seen.validating = live);
    }

    /// The Secret: absent, unusable and why, or sound.
    pub fn secret(&self) -> Option<Result<CaSecret, String>> {
        self.sight.seen.read().secret.clone()
    }

    /// What each entry of our live configurations trusts.
    pub fn live(&self) -> Vec<LiveCaBundle> {
        let seen = self.sight.seen.read();
        seen.validating.iter().chain(&seen.mutating).cloned().collect()
    }

    /// Everything was listed at least once.
    pub fn ready(&self) -> Result<(), String> {
        self.health.iter().try_for_each(Health::ready)
    }

    /// Tells of every change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.sight.changed.subscribe()
    }
}

impl Sight {
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
    let trusts = |webhook: &ValidatingWebhook| {
        live(ConfigKind::Validating, &config.metadata, &webhook.name, &webhook.client_config)
    };
    config.webhooks.iter().flatten().map(trusts).collect()
}

/// What a configuration's entries trust.
pub fn mutating_bundles(config: &MutatingWebhookConfiguration) -> Vec<LiveCaBundle> {
    let trusts =
        |webhook: &MutatingWebhook| live(ConfigKind::Mutating, &config.metadata, &webhook.name, &webhook.client_config);
    config.webhooks.iter().flatten().map(trusts).collect()
}

fn live(kind: ConfigKind, config: &ObjectMeta, webhook: &str, client: &WebhookClientConfig) -> LiveCaBundle {
    LiveCaBundle {
        entry: Entry { kind, config: config.name.clone().unwrap_or_default(), webhook: webhook.to_owned() },
        ca_bundle: client.ca_bundle.as_ref().map(|bundle| bundle.0.clone()).unwrap_or_default(),
    }
}

struct SecretSink(Sight);

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
    sight: Sight,
    kind: ConfigKind,
}

impl BundleSink {
    fn set(&self, bundles: Vec<LiveCaBundle>) {
        self.sight.change(|seen| match self.kind {
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
