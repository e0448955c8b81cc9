//! The certificate loop: keeps the CA Secret and the `caBundle` of our webhook configurations as
//! `webhook_certs::plan` says; or, where certificates come from a mounted Secret, the `caBundle` as its `ca.crt` says
//! ([`webhook_certs::given`]).
//!
//! It plans on what is watched, and before it writes it reads the objects live and plans again, so a stale leader
//! changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use webhook_certs::cert::Certificate;
use webhook_certs::plan::Awaited;
use webhook_certs::{CaSecret, ConfigKind, Entry, Given, LiveCaBundle, Step, given, plan};

use crate::cluster::apply::{Applier, ApplyError, FIELD_MANAGER, as_belay, bounded};
use crate::cluster::clock::Clock;
use crate::cluster::lease::Leadership;
use crate::cluster::mounted;
use crate::cluster::trust::{Trust, mutating_bundles, parse_secret, validating_bundles};
use crate::config::WebhookConfigurations;
use crate::metrics::{Metrics, Role};

/// How often is planned where nothing changes: the planner's own bound.
const TICK: Duration = Duration::from_mins(1);

/// Pause after a step failed.
const RETRY: Duration = Duration::from_secs(2);

/// What is told in the place of a step where none can be planned.
const NO_STEP: &str = "Damaged";

/// Why a step failed. The variant's name is the metric label; of a read or write, its own error's.
#[derive(Debug, Error)]
enum StepError {
    /// A read or write failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The Secret is damaged.
    #[error("{0}")]
    Damaged(String),
    /// No key could be made, or the step does not fit any more.
    #[error(transparent)]
    NotMade(#[from] webhook_certs::plan::ApplyError),
    /// The mounted file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] mounted::ReadError),
    /// It holds nothing that could be trusted.
    #[error(transparent)]
    Unusable(#[from] given::GivenError),
}

impl StepError {
    /// The metric label.
    fn label(&self) -> &'static str {
        match self {
            Self::Apply(error) => error.label(),
            Self::Damaged(_) => "Damaged",
            Self::NotMade(_) => "NotMade",
            Self::Unreadable(_) => "Unreadable",
            Self::Unusable(_) => "Unusable",
        }
    }

    fn is_benign(&self) -> bool {
        match self {
            Self::Apply(error) => error.is_benign(),
            Self::Damaged(_) | Self::Unreadable(_) | Self::Unusable(_) => false,
            Self::NotMade(error) => matches!(error, webhook_certs::plan::ApplyError::Outdated { .. }),
        }
    }
}

/// What the loop works with.
pub struct Loop {
    /// The client.
    pub client: Client,
    /// What is seen.
    pub trust: Trust,
    /// Our own namespace.
    pub namespace: String,
    /// Our own pod, from which the Secret's owner is found.
    pub pod_name: Option<String>,
    /// Where authorities come from.
    pub source: Source,
    /// Names of our configurations.
    pub configurations: WebhookConfigurations,
    /// Whether this replica leads.
    pub leadership: Arc<Leadership>,
    /// The writer.
    pub applier: Arc<Applier>,
    /// What is told.
    pub metrics: Arc<Metrics>,
}

/// Where authorities come from.
pub enum Source {
    /// Made here, and kept in the Secret of this name.
    Own(String),
    /// Given in `ca.crt` in this folder; what is remembered of it since this replica leads.
    Files(PathBuf, Option<Given>),
}

impl Source {
    /// The `ca.crt` in this folder.
    pub fn files(folder: PathBuf) -> Self {
        Self::Files(folder, None)
    }

    /// How long nothing is looked at where nothing changes.
    fn tick(&self) -> Duration {
        match self {
            Self::Own(_) => TICK,
            Self::Files(..) => mounted::POLL,
        }
    }
}

/// Our configurations as read live.
struct Live {
    validating: Option<ValidatingWebhookConfiguration>,
    mutating: Option<MutatingWebhookConfiguration>,
    bundles: Vec<LiveCaBundle>,
}

impl Loop {
    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.trust.changes();
        let mut leadership = self.leadership.changes();
        let mut reported: Option<String> = None;
        loop {
            let pause = self.look(&mut reported).await;
            tokio::select! {
                _ = changes.changed() => {}
                _ = leadership.changed() => {}
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// One look, and how long to wait until the next one. What was reported last is not told again.
    async fn look(&mut self, reported: &mut Option<String>) -> Duration {
        if !self.leadership.is_leader() {
            self.forget();
            return TICK;
        }
        if self.trust.ready().is_err() {
            // The watches complete without a word of their own.
            return RETRY;
        }
        match Box::pin(self.step()).await {
            Ok(true) => Duration::ZERO,
            Ok(false) => {
                *reported = None;
                self.source.tick()
            }
            Err(error) => {
                self.failed(&error, reported);
                RETRY
            }
        }
    }

    fn failed(&self, error: &StepError, reported: &mut Option<String>) {
        if error.is_benign() {
            return;
        }
        self.metrics.certificate_step_failed(error.label());
        if matches!(error, StepError::Damaged(_)) {
            self.metrics.certificate_validity(Role::Authority, None);
            self.metrics.rotation_step(Some(NO_STEP));
        }
        let text = error.to_string();
        if reported.as_ref() != Some(&text) {
            tracing::error!(error = %text, "certificates not brought up to date, trying again");
            *reported = Some(text);
        }
    }

    /// Another replica knows better from now on.
    fn forget(&mut self) {
        self.metrics.certificate_validity(Role::Authority, None);
        self.metrics.rotation_step(None);
        if let Source::Files(_, memory) = &mut self.source {
            *memory = None;
        }
    }

    /// One step; true where something was written.
    async fn step(&mut self) -> Result<bool, StepError> {
        match &mut self.source {
            Source::Own(secret_name) => {
                let secret_name = secret_name.clone();
                self.own_step(&secret_name).await
            }
            Source::Files(folder, memory) => {
                let now = Clock::wall();
                let found = authorities_in(folder, now);
                let longest = found.as_ref().ok().and_then(|authorities| given::longest(authorities));
                self.metrics.certificate_validity(Role::Authority, longest);
                let authorities = found?;
                let mut wanted = |live: &[LiveCaBundle]| Some(memory.as_mut()?.wanted(&authorities, live, now));
                if wanted(&self.trust.live()).is_some_and(|wanted| wanted.targets.is_empty()) {
                    return Ok(false);
                }
                let live = read_configurations(&self.client, &self.configurations).await?;
                let memory = memory.get_or_insert_with(|| Given::begin(&authorities, &live.bundles, now));
                let wanted = memory.wanted(&authorities, &live.bundles, now);
                if wanted.targets.is_empty() {
                    return Ok(false);
                }
                self.patch(&live, &wanted.ca_bundle, &wanted.targets).await?;
                tell("PatchBundles");
                Ok(true)
            }
        }
    }

    /// One step of an authority of our own.
    async fn own_step(&self, secret_name: &str) -> Result<bool, StepError> {
        let seen = match self.trust.secret() {
            Some(Err(damaged)) => return Err(StepError::Damaged(damaged)),
            Some(Ok(secret)) => Some(secret),
            None => None,
        };
        let validity = seen.as_ref().map(|secret| secret.active().certificate().validity);
        self.metrics.certificate_validity(Role::Authority, validity);
        let step = plan(seen.as_ref(), &self.trust.live(), Clock::wall());
        self.metrics.rotation_step(Some(coming(&step)));
        if matches!(step, Step::Wait { .. }) {
            return Ok(false);
        }
        let secret = self.read_secret(secret_name).await?;
        let parsed = secret.as_ref().map(parse_secret).transpose().map_err(StepError::Damaged)?;
        let live = read_configurations(&self.client, &self.configurations).await?;
        let now = Clock::wall();
        let step = plan(parsed.as_ref(), &live.bundles, now);
        match &step {
            Step::Wait { .. } => return Ok(false),
            Step::PatchBundles { ca_bundle, targets } => self.patch(&live, ca_bundle, targets).await?,
            _ => {
                if let Some(written) = step.apply(parsed.as_ref(), "belay-ca", now)? {
                    self.write(secret_name, secret, &written).await?;
                }
            }
        }
        tell(step.name());
        Ok(true)
    }

    async fn read_secret(&self, name: &str) -> Result<Option<Secret>, StepError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(bounded(self.secret_object(name), secrets.get_opt(name)).await?)
    }

    fn secret_object(&self, name: &str) -> String {
        format!("Secret {}/{name}", self.namespace)
    }

    /// Writes the Secret: created where there was none, else replaced with the version that was read.
    async fn write(&self, name: &str, present: Option<Secret>, secret: &CaSecret) -> Result<(), StepError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let data = secret.to_data().into_iter().map(|(key, value)| (key, ByteString(value))).collect();
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let write = async {
            match present {
                Some(mut object) => {
                    object.data = Some(data);
                    api.replace(name, &params, &object).await
                }
                None => {
                    let mut object =
                        Secret { type_: Some("kubernetes.io/tls".to_owned()), data: Some(data), ..Secret::default() };
                    object.metadata.name = Some(name.to_owned());
                    object.metadata.owner_references = self.owner().await.map(|owner| vec![owner]);
                    api.create(&params, &object).await
                }
            }
        };
        self.applier.write("Certificates", self.secret_object(name), Box::pin(write)).await?;
        Ok(())
    }

    /// The Deployment that this pod belongs to: the Secret goes with it. Without one (a program started by hand)
    /// the Secret stays until somebody deletes it.
    async fn owner(&self) -> Option<OwnerReference> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let sets: Api<ReplicaSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let pod = pods.get_opt(self.pod_name.as_deref()?).await.ok().flatten()?;
        let set = pod.owner_references().iter().find(|owner| owner.kind == "ReplicaSet")?.name.clone();
        let set = sets.get_opt(&set).await.ok().flatten()?;
        let owner = set.owner_references().iter().find(|owner| owner.kind == "Deployment")?.clone();
        Some(OwnerReference { controller: None, block_owner_deletion: None, ..owner })
    }

    /// Writes the bundle into the entries that lack it, each configuration with the version that was read.
    async fn patch(&self, live: &Live, ca_bundle: &[u8], targets: &[Entry]) -> Result<(), StepError> {
        let bundle = ByteString(ca_bundle.to_vec());
        for kind in [ConfigKind::Validating, ConfigKind::Mutating] {
            let entries: Vec<_> = targets
                .iter()
                .filter(|target| target.kind == kind)
                .map(|target| json!({ "name": target.webhook, "clientConfig": { "caBundle": bundle } }))
                .collect();
            if entries.is_empty() {
                continue;
            }
            let params = as_belay();
            let patch = |version: Option<String>| {
                Patch::Strategic(json!({ "metadata": { "resourceVersion": version }, "webhooks": entries }))
            };
            let name = match kind {
                ConfigKind::Validating => &self.configurations.validating,
                ConfigKind::Mutating => &self.configurations.mutating,
            };
            let object = format!("{kind} {name}");
            let write = async {
                match kind {
                    ConfigKind::Validating => {
                        let version = live.validating.as_ref().and_then(ResourceExt::resource_version);
                        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
                        api.patch_metadata(name, &params, &patch(version)).await.map(drop)
                    }
                    ConfigKind::Mutating => {
                        let version = live.mutating.as_ref().and_then(ResourceExt::resource_version);
                        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
                        api.patch_metadata(name, &params, &patch(version)).await.map(drop)
                    }
                }
            };
            self.applier.write("Certificates", object, write).await?;
        }
        Ok(())
    }
}

/// The authorities that are given in this folder.
fn authorities_in(folder: &Path, now: Timestamp) -> Result<Vec<Certificate>, StepError> {
    Ok(given::authorities(&mounted::authorities(folder)?, now)?)
}

fn tell(step: &'static str) {
    tracing::info!(step, "certificates brought up to date");
}

/// The step that is taken next, or that comes when the wait is over.
fn coming(step: &Step) -> &'static str {
    match step {
        Step::Wait { reason: Awaited::Renewal, .. } => "Publish",
        Step::Wait { reason: Awaited::Settled, .. } => "Activate",
        Step::Wait { reason: Awaited::Retirement, .. } => "Retire",
        step => step.name(),
    }
}

async fn read_configurations(client: &Client, names: &WebhookConfigurations) -> Result<Live, StepError> {
    let object = format!("ValidatingWebhookConfiguration {}", names.validating);
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let validating = bounded(object, configurations.get_opt(&names.validating)).await?;
    let object = format!("MutatingWebhookConfiguration {}", names.mutating);
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let mutating = bounded(object, configurations.get_opt(&names.mutating)).await?;
    let bundles =
        validating.iter().flat_map(validating_bundles).chain(mutating.iter().flat_map(mutating_bundles)).collect();
    Ok(Live { validating, mutating, bundles })
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
