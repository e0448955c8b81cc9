//! `belay cleanup`: takes away what Belay wrote on pods, and the replicas that it added for a while, exactly that, and
//! nothing of anybody else's.
//!
//! Run by the chart's hooks: before an uninstall, and after an upgrade that leaves nobody to look after what stands
//! there. What writes must be silent first, or it would put back what is taken away: at an uninstall the controller is
//! scaled to zero and the mutating webhooks are removed; after an upgrade the controller's rollout is awaited.

mod report;
mod surges;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use belay_decide::busy::hints;
use belay_decide::cost::view::parse_cost;
use belay_decide::cost::{COST_ANNOTATION, VICTIM};
use belay_decide::ownership::{Key, MANAGED_ANNOTATION, Record, release};
use clap::Args;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Patch};
use kube::core::Selector;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use self::report::Cleaned;
pub(crate) use self::report::Report;
use super::LogArgs;
use super::connect::{BelayNamespace, ConnectArgs};
use super::output::OutputArgs;
use crate::cluster::apply::{ApplyError, as_belay, bounded, object_ref, patch_pod};
use crate::rate::TokenBucket;

/// How long the controller may take to stop, or to roll out: its own termination takes 30 s at most, a rollout pulls an
/// image.
const QUIET_WITHIN: Duration = Duration::from_mins(3);

/// Pause between two looks at the controller.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Passes over all pods. The second finds what a webhook call in flight stamped meanwhile; a pod that changed under our
/// hands is met again.
const PASSES: usize = 10;

/// The controller's pods by the chart's labels, where its Deployment is gone.
const CONTROLLER_PODS: &str = "app.kubernetes.io/part-of=belay,app.kubernetes.io/component=controller";

/// Pods in one page.
const PAGE: u32 = 500;

/// Writes a second: more than the controller makes, since somebody waits for the uninstall.
const WRITES_PER_SECOND: u32 = 50;

pub(super) const HELP: &str = "Examples:
  belay cleanup --dry-run
  belay cleanup --dry-run -o json --context production
  belay cleanup --stop-controller

It cleans all namespaces. The chart runs it where that is needed.

Exit codes: 0 nothing of Belay's is left, or the dry run is told;
1 something could not be read or cleaned; 2 the command line is not understood.";

#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Before that, scale the controller to zero and remove the mutating webhooks, so that nothing writes again: for an
    /// uninstall.
    #[arg(long)]
    stop_controller: bool,
    /// The controller's Deployment.
    #[arg(long, env = "BELAY_CONTROLLER", default_value = "belay-controller")]
    controller: String,
    /// The MutatingWebhookConfiguration.
    #[arg(long, env = "BELAY_MUTATING_CONFIGURATION", default_value = "belay")]
    mutating_configuration: String,
    #[command(flatten)]
    keep: Keep,
    /// Say what would be taken away, and change nothing.
    #[arg(long, conflicts_with = "stop_controller")]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    belay: BelayNamespace,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// What is left alone, since a capability that is on looks after it.
#[derive(Args, Clone, Copy, Debug, Default)]
struct Keep {
    /// Leave busy hints alone, deletion costs among them: busy rules are on.
    #[arg(long = "keep-busy-hints", conflicts_with = "stop_controller")]
    busy_hints: bool,
    /// Leave deletion costs alone: nodes are ranked.
    #[arg(long = "keep-deletion-costs", conflicts_with = "stop_controller")]
    deletion_costs: bool,
    /// Leave added replicas alone, and the deletion costs of the pods that are handed over: the eviction hold is on.
    #[arg(long = "keep-handovers", conflicts_with = "stop_controller")]
    handovers: bool,
}

impl Keep {
    /// This key stays, which was written with this value.
    fn keeps(self, key: &Key, value: Option<&str>) -> bool {
        if key.name() != COST_ANNOTATION {
            return self.busy_hints;
        }
        if value.and_then(parse_cost) == Some(VICTIM) {
            return self.handovers;
        }
        self.deletion_costs || self.busy_hints
    }
}

pub(super) async fn run(args: CleanupArgs) -> anyhow::Result<()> {
    let client = args.connect.connect().await?;
    let namespace = &args.belay.belay_namespace;
    if args.stop_controller {
        remove_webhooks(&client, &args.mutating_configuration).await?;
        stop_controller(&client, namespace, &args.controller).await?;
    } else {
        // Most clusters have nothing to be cleaned after an upgrade, and should not wait for anything.
        let found = Passes::run(&client, None, args.keep).await?;
        if args.dry_run || found.found() == 0 {
            return args.output.print(&Report::of(args.dry_run, [found.surges.objects, found.pods.objects].concat()));
        }
        await_rollout(&client, namespace, &args.controller).await?;
    }
    let rate = TokenBucket::new(WRITES_PER_SECOND);
    let mut done = Report::of(false, Vec::new());
    for _ in 0..PASSES {
        let passes = Passes::run(&client, Some(&rate), args.keep).await?;
        let is_over = passes.found() == 0 && passes.pods.is_whole && passes.surges.is_whole;
        done.add(passes.surges.objects.into_iter().chain(passes.pods.objects));
        if is_over {
            return args.output.print(&done);
        }
        // What is refused now is so in the next pass.
        let refused: Vec<_> = passes.surges.refused.iter().chain(&passes.pods.refused).collect();
        if let Some(refusal) = refused.first() {
            args.output.print(&done)?;
            bail!(
                "{} objects cannot be cleaned, the first because: {refusal}; mend that and run it again",
                refused.len()
            );
        }
    }
    bail!("after {PASSES} passes there is still something of Belay's: something goes on writing it; see the log")
}

/// One look at everything.
struct Passes {
    surges: Pass,
    pods: Pass,
}

impl Passes {
    /// Surges first: what their pods carry says which of them go.
    async fn run(client: &Client, rate: Option<&TokenBucket>, keep: Keep) -> anyhow::Result<Self> {
        let surges = if keep.handovers {
            Pass { is_whole: true, ..Pass::default() }
        } else {
            surges::pass(client, rate).await?
        };
        Ok(Self { surges, pods: pass(client, rate, keep).await? })
    }

    fn found(&self) -> usize {
        self.surges.found + self.pods.found
    }
}

/// New pods get no hints any more.
async fn remove_webhooks(client: &Client, name: &str) -> anyhow::Result<()> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    match bounded(format!("MutatingWebhookConfiguration {name}"), api.delete(name, &DeleteParams::default())).await {
        Ok(_) | Err(ApplyError::Gone { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn stop_controller(client: &Client, namespace: &str, name: &str) -> anyhow::Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let object = || format!("Deployment {namespace}/{name}");
    let found = bounded(object(), api.get_opt(name)).await.map_err(unreadable)?;
    let Some(deployment) = found else { return Ok(()) };
    let zero = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    let params = as_belay();
    match bounded(object(), api.patch_scale(name, &params, &zero)).await {
        Ok(_) => {}
        Err(ApplyError::Gone { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let selector = Selector::try_from(deployment.spec.selector).context("the controller's selector cannot be read")?;
    let of_controller = ListParams::default().labels_from(&selector);
    let what = format!("the pods of {} to end", object());
    eventually(&what, async || no_pods(client, namespace, &of_controller).await).await
}

async fn no_pods(client: &Client, namespace: &str, which: &ListParams) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let left = bounded("the controller's pods".to_owned(), pods.list_metadata(which)).await.map_err(unreadable)?;
    let names: Vec<_> = left.items.iter().map(ResourceExt::name_any).collect();
    ensure!(names.is_empty(), "{} are still there", names.join(", "));
    Ok(())
}

/// The old configuration's controller may put back what is taken away; it must be gone.
async fn await_rollout(client: &Client, namespace: &str, name: &str) -> anyhow::Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let object = format!("Deployment {namespace}/{name}");
    eventually(&format!("the rollout of {object}"), async || {
        let Some(deployment) = bounded(object.clone(), api.get_opt(name)).await.map_err(unreadable)? else {
            // Nothing is enabled any more; its pods may take a moment to end.
            return no_pods(client, namespace, &ListParams::default().labels(CONTROLLER_PODS)).await;
        };
        let status = deployment.status.unwrap_or_default();
        let wanted = deployment.spec.replicas.unwrap_or(1);
        let observed = status.observed_generation >= deployment.metadata.generation;
        let (all, updated) = (status.replicas.unwrap_or(0), status.updated_replicas.unwrap_or(0));
        let terminating = status.terminating_replicas.unwrap_or(0);
        ensure!(
            observed && updated >= wanted && all <= updated && terminating == 0,
            "{updated} of {wanted} replicas are new, {} old ones are left",
            (all - updated).max(0) + terminating
        );
        Ok(())
    })
    .await
}

/// Asks again until it is so. What it waits for comes by other programs' doing, which no watch of one object tells
/// better than a look twice a second for a minute.
async fn eventually(what: &str, is_so: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        match is_so().await {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() >= QUIET_WITHIN => {
                return Err(error.context(format!("waited {} s for {what}", QUIET_WITHIN.as_secs())));
            }
            Err(error) => tracing::debug!(%error, "waiting for {what}"),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

#[derive(Default)]
struct Pass {
    found: usize,
    /// What was cleaned; without a rate, what would be.
    objects: Vec<Cleaned>,
    refused: Vec<String>,
    /// All were looked at.
    is_whole: bool,
}

impl Pass {
    fn add(&mut self, other: Self) {
        self.found += other.found;
        self.objects.extend(other.objects);
        self.refused.extend(other.refused);
        self.is_whole &= other.is_whole;
    }
}

/// Why something could not be read, and what to do: the applier's errors speak of writes.
fn unreadable(error: ApplyError) -> anyhow::Error {
    match error {
        ApplyError::Forbidden { object, message } => {
            anyhow!(
                "cannot read {object}: {message}; ask for that right, or act as somebody who has it (--context, --as)"
            )
        }
        ApplyError::Refused { object, message } | ApplyError::Unreachable { object, message } => {
            anyhow!("cannot read {object}: {message}")
        }
        other => other.into(),
    }
}

/// Looks at every pod once; without a rate it only notes what it finds.
async fn pass(client: &Client, rate: Option<&TokenBucket>, keep: Keep) -> anyhow::Result<Pass> {
    let all: Api<Pod> = Api::all(client.clone());
    let mut page = ListParams::default().limit(PAGE);
    let mut pass = Pass::default();
    loop {
        let pods = match bounded("the list of pods".to_owned(), all.list_metadata(&page)).await {
            Ok(pods) => pods,
            // The list grew too old while its pods were written: the next pass begins a new one.
            Err(error) if error.is_benign() => return Ok(pass),
            Err(error) => return Err(unreadable(error)),
        };
        for pod in &pods.items {
            let Some(changes) = undo(&pod.metadata, keep) else { continue };
            pass.found += 1;
            let object = object_ref(&pod.metadata);
            let cleaned = Cleaned::of("Pod", &object, changes.keys().map(Key::name));
            let Some(rate) = rate else {
                pass.objects.push(cleaned);
                continue;
            };
            rate.take().await;
            match bounded(cleaned.to_string(), patch_pod(client, &object, &changes)).await {
                Ok(_) => pass.objects.push(cleaned),
                // Met again in the next pass.
                Err(error) if error.is_benign() || matches!(error, ApplyError::Unreachable { .. }) => {
                    tracing::debug!(%error, "looking again");
                }
                // One pod that cannot be written keeps no other from being cleaned.
                Err(error) => pass.refused.push(error.to_string()),
            }
        }
        match pods.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(Pass { is_whole: true, ..pass }),
        }
    }
}

/// What takes ours off a pod, the record included; absent where there is nothing of ours on it.
///
/// Only keys that Belay ever writes: the record stands on the pod, where somebody may have written into it, and who runs
/// this may remove more than they.
fn undo(meta: &ObjectMeta, keep: Keep) -> Option<BTreeMap<Key, Option<String>>> {
    let annotations = meta.annotations.as_ref()?;
    let text = annotations.get(MANAGED_ANNOTATION)?;
    let mut record = Record::parse(Some(text));
    let rest = record.split_off(|key, value| keep.keeps(key, value)).render();
    // There is nothing but what is kept.
    if rest.as_ref() == Some(text) {
        return None;
    }
    let labels = meta.labels.iter().flatten().map(|(key, value)| (Key::label(key), value.clone()));
    let present = annotations.iter().map(|(key, value)| (Key::annotation(key), value.clone())).chain(labels).collect();
    let mut changes = release(&record, &present);
    changes.retain(|key, _| hints::keys().contains(key));
    changes.insert(Key::annotation(MANAGED_ANNOTATION), rest);
    Some(changes)
}
