//! The handover loop: looks at each workload that is being handed over whenever something about it changes, or when its
//! time has come, and performs what `decide::handover::reconcile` says. Where that depends on more of the workload's pods
//! than the cache keeps, they are read from the API first.

#[cfg(test)]
mod tests;

mod refusals;

use std::collections::BTreeSet;
use std::sync::Arc;

use belay_decide::action::{Action, Event, Reference};
use belay_decide::handover::close::ClosePod;
use belay_decide::handover::{Plan, Workload, reconcile, reconcile::Input, scale};
use belay_decide::hold::Phase;
use jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use tokio_util::sync::CancellationToken;

use self::refusals::Refusals;
use super::Shared;
use super::work::{self, RETRY, Work, Written};
use crate::cluster::apply::{ApplyError, bounded};
use crate::cluster::clock::Clock;
use crate::cluster::index::WorkloadKey;
use crate::cluster::project_cost::{self, LeftOut};
use crate::cluster::subset::PodSubset;

/// What the loop works with.
pub struct Loop {
    /// What it has in common with others.
    shared: Shared,
    /// What was written and not yet seen again.
    written: Written<WorkloadKey>,
    /// Pods whose deletion cost another part of Belay writes.
    left_out: LeftOut,
    /// Workloads whose number of replicas the API server does not let be changed.
    refusals: Refusals,
}

/// Where the pods of a workload are found in the API.
struct PodsOf {
    /// What the Deployment selects by, in a query's words.
    selector: String,
    /// UIDs of its ReplicaSets.
    sets: BTreeSet<Arc<str>>,
}

impl PodsOf {
    fn new(workload: &Workload<'_>) -> Self {
        Self {
            selector: workload.deployment.query.clone(),
            sets: workload.replica_sets.iter().map(|set| set.uid.clone()).collect(),
        }
    }
}

/// What was decided about a workload.
struct Decided {
    plan: Plan,
    /// Of which pods it takes a close look to decide more.
    pods: Option<PodsOf>,
    /// UID and version of what says how many replicas there are: the Deployment, and its autoscaler.
    numbers: Vec<(String, String)>,
}

impl Loop {
    /// A loop that has looked at nothing yet.
    pub fn new(shared: Shared, left_out: LeftOut) -> Self {
        Self { shared, written: Written::default(), left_out, refusals: Refusals::default() }
    }

    /// Runs until `stop`, then ends what it is at.
    pub async fn run(self, stop: CancellationToken) {
        let (leadership, health) = (Arc::clone(&self.shared.leadership), self.shared.health.clone());
        work::run(self, &leadership, &health, stop).await;
    }

    /// Looks at one workload; when to look again.
    async fn look_at(&self, key: &WorkloadKey) -> Option<Timestamp> {
        let now = Clock::wall();
        let Some(first) = self.decide(key, None, now) else {
            // It is not being handed over any more.
            self.written.forget(key);
            self.refusals.forget(key);
            return None;
        };
        let mut plan = first.plan;
        let mut retry = None;
        if let Some(pods) = first.pods {
            match self.look_closer(key, &pods, now).await {
                Ok(close) => match self.decide(key, Some(&close), now) {
                    // Decided on nothing that is older than what was read, nor on what has changed since.
                    Some(second) if second.numbers == first.numbers => plan = second.plan,
                    _ => retry = now.saturating_add(RETRY).ok(),
                },
                Err(error) => {
                    tracing::warn!(workload = %key, %error, "pods not read for a close look, trying again");
                    retry = Some(work::again(&error, now));
                }
            }
        }
        let performed = self.perform(key, &plan, now).await;
        plan.wake_at.into_iter().chain(retry).chain(performed).min()
    }

    /// What is to be done; absent where the workload is not being handed over.
    fn decide(&self, key: &WorkloadKey, close: Option<&[ClosePod]>, now: Timestamp) -> Option<Decided> {
        let settings = self.shared.settings.load();
        let leftover = self.shared.index.leftover(key);
        self.shared.index.workload(key, &settings.default_policy, |workload, protection, holds| {
            let deployment = workload.map(|workload| (&workload.deployment.uid, &workload.deployment.resource_version));
            let autoscaler = workload.map_or(leftover.as_ref(), |workload| workload.autoscaler);
            let autoscaler = autoscaler.map(|autoscaler| &autoscaler.object);
            let autoscaler = autoscaler.map(|object| (&object.uid, &object.resource_version));
            let owned = |(uid, version): (&String, &String)| (uid.clone(), version.clone());
            let numbers: Vec<_> = deployment.into_iter().chain(autoscaler).map(owned).collect();
            let of_holds = holds.iter().map(|(hold, _)| owned((&hold.uid, &hold.resource_version)));
            if self.written.is_awaited(key, of_holds.chain(numbers.iter().cloned())) {
                let plan = Plan { wake_at: now.saturating_add(RETRY).ok(), ..Plan::default() };
                return Decided { plan, pods: None, numbers };
            }
            let acts = settings.hold_enabled && !settings.rules.excludes(&key.namespace);
            let protection = protection.filter(|_| acts);
            let (refused, rules) = (self.refusals.of(key), &settings.handovers);
            let refused = refused.as_deref();
            let mut plan = reconcile(&Input { workload, protection, holds, close, refused, rules, now });
            // Seen at two moments: by the second there may be a Deployment.
            if let Some(autoscaler) = leftover.as_ref().filter(|_| workload.is_none()) {
                plan.sequences.push(scale::leftover(autoscaler));
            }
            let pods = workload.filter(|_| plan.look_closer).map(PodsOf::new);
            Decided { plan, pods, numbers }
        })
    }

    /// Reads the workload's pods from the API.
    async fn look_closer(&self, key: &WorkloadKey, pods: &PodsOf, now: Timestamp) -> Result<Vec<ClosePod>, ApplyError> {
        let api: Api<PodSubset> = Api::namespaced(self.shared.client.clone(), &key.namespace);
        let selected = ListParams::default().labels(&pods.selector);
        let found = bounded(format!("the pods of Deployment {key}"), api.list(&selected)).await?;
        let found = found.items.iter().map(|pod| project_cost::close_pod(pod, &self.left_out, now));
        // Another workload's labels may match as well.
        Ok(found.filter(|pod| pod.pod.set.as_ref().is_some_and(|set| pods.sets.contains(set))).collect())
    }

    /// Performs a plan; when to look again at what failed.
    async fn perform(&self, key: &WorkloadKey, plan: &Plan, now: Timestamp) -> Option<Timestamp> {
        let mut wake: Option<Timestamp> = None;
        for sequence in &plan.sequences {
            let (superseded, result) = self.shared.applier.perform(sequence).await;
            self.written.add(key, superseded);
            match result {
                Ok(()) => {
                    self.refusals.succeeded(key, sequence);
                    self.tell(key, sequence);
                }
                Err(error) => {
                    if error.is_benign() {
                        tracing::debug!(workload = %key, %error, "looking again");
                    } else {
                        tracing::warn!(workload = %key, %error, "handover step failed, trying again");
                    }
                    let news = self.refusals.failed(key, sequence, &error);
                    if let Some(why) = &news {
                        self.tell_refusal(key, why);
                    }
                    // The holds are to say so at once.
                    let again = if news.is_some() { now.saturating_add(RETRY).ok() } else { None };
                    wake = wake.into_iter().chain([again.unwrap_or_else(|| work::again(&error, now))]).min();
                }
            }
        }
        wake
    }

    fn tell_refusal(&self, key: &WorkloadKey, why: &str) {
        let settings = self.shared.settings.load();
        let uid = self
            .shared
            .index
            .deployment(key, &settings.default_policy, |selected, _, _| selected.deployment.uid.clone());
        self.shared.applier.tell(&Event {
            namespace: key.namespace.to_string(),
            regarding: Reference::deployment(&key.name, &uid.unwrap_or_default()),
            related: None,
            warning: true,
            reason: "SurgeRefused",
            action: "Surge",
            note: format!("The number of replicas cannot be changed for a handover, tried again and again: {why}"),
        });
    }

    /// One log line for each decision that changed something.
    fn tell(&self, key: &WorkloadKey, sequence: &[Action]) {
        for action in sequence {
            match action {
                Action::UpdateHold { hold, status } if status.phase == Phase::Released => {
                    let outcome = status.outcome.map_or("Released", belay_decide::hold::Outcome::as_str);
                    self.shared.metrics.handover(outcome);
                    tracing::info!(workload = %key, hold = %hold.name, outcome, why = %status.message, "eviction released");
                }
                Action::PatchTemplate { slot, .. } => {
                    tracing::info!(workload = %key, slot = slot.as_deref().unwrap_or("none"), "pod template patched");
                }
                Action::Surge { governor, object, number, record: Some(record), .. } => {
                    let (kind, surge) = (governor.kind(), record.surge);
                    tracing::info!(workload = %key, kind, object = %object.name, number, surge, "replicas set for a handover");
                }
                Action::Surge { governor, object, number, record: None, .. } => {
                    let kind = governor.kind();
                    tracing::info!(workload = %key, kind, object = %object.name, number, "replicas put back");
                }
                Action::Scale { replicas, .. } => {
                    tracing::info!(workload = %key, replicas, "Deployment scaled with its autoscaler");
                }
                Action::PatchPod { pod, .. } => tracing::debug!(workload = %key, pod = %pod.name, "pod marked"),
                _ => {}
            }
        }
    }

    fn count_holds(&self) {
        let (phases, deadline) = self.shared.index.hold_phases();
        self.shared.metrics.holds(&phases, deadline.map(|at| at.as_second() as f64));
    }
}

impl Work for Loop {
    type Key = WorkloadKey;

    async fn changed(&self) {
        self.shared.dirty.workloads_changed().await;
    }

    fn take(&self) -> BTreeSet<WorkloadKey> {
        self.shared.dirty.take_workloads()
    }

    fn touch_all(&self) {
        self.shared.index.touch_workloads_with_holds();
    }

    async fn look(&self, key: &WorkloadKey) -> Option<Timestamp> {
        self.look_at(key).await
    }

    fn observe(&self, leading: bool) {
        self.shared.metrics.leading(leading);
        if leading {
            self.count_holds();
        } else {
            self.shared.metrics.holds(&[], None);
        }
    }
}
