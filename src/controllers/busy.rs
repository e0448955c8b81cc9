//! The busy loop: keeps the hints of each governed pod true, and looks after the holds of busy pods, by what
//! `decide::busy::reconcile` says.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use belay_decide::action::Action;
use belay_decide::busy::reconcile::{self, Input, Memory, Plan};
use belay_decide::busy::{Seen, State};
use belay_decide::hold::HoldStatus;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::work::{self, RETRY, Work, Written};
use crate::cluster::apply::{ApplyError, bounded, object_ref};
use crate::cluster::clock::Clock;
use crate::cluster::index::{BusyFacts, PodKey};
use crate::cluster::project_busy;
use crate::cluster::watch::{RuleHealth, settled, synced};
use crate::config::Selects;

/// How soon a pod is looked at again whose rule cannot see what it asks: the watch tries every few seconds, and touches
/// the pod when it sees.
const BLIND: SignedDuration = SignedDuration::from_secs(30);

/// What the loop works with.
pub struct Loop {
    /// What it has in common with others.
    pub shared: Shared,
    /// What each rule selects.
    pub selects: Arc<Vec<Selects>>,
    /// The watches that busy rules need.
    pub rule_health: RuleHealth,
    /// What was written and not yet seen again.
    pub written: Written<PodKey>,
    /// What is remembered of pods.
    pub remembered: Remembered,
}

/// What is remembered of pods between looks. Lost with the lead.
#[derive(Default)]
pub struct Remembered {
    memories: Mutex<HashMap<PodKey, Memory>>,
    /// Rule and state of each governed pod, as counted.
    states: Mutex<HashMap<PodKey, (usize, State)>>,
}

/// What is to be done about a pod.
enum Look {
    /// This; what was remembered before; the rule and state that the pod is counted under.
    Plan(Box<Plan>, Option<Memory>, Option<(usize, State)>),
    /// It is to be looked at later.
    Later(SignedDuration),
    /// Nothing by any rule: it is neither governed nor held.
    Free,
}

impl Loop {
    /// Runs until `stop`, then ends what it is at.
    pub async fn run(self, stop: CancellationToken) {
        let leadership = Arc::clone(&self.shared.leadership);
        let health: Vec<_> = self.shared.health.iter().chain(&self.rule_health.pods).cloned().collect();
        // What is only late must not be taken for missing; what cannot be seen is passed over, rule by rule.
        if synced(&health, &stop).await && settled(self.rule_health.asked.iter().flatten(), &stop).await {
            work::run(self, &leadership, &health, stop).await;
        }
    }

    fn decide(&self, key: &PodKey, now: Timestamp) -> Look {
        let settings = self.shared.settings.load();
        self.shared.index.busy(key, |BusyFacts { governed, living, holds }| {
            let of_pod = |seen: &Seen<'_>| (seen.pod.uid.to_string(), seen.pod.resource_version.to_string());
            let pod = governed.as_ref().map(|governed| of_pod(&governed.seen));
            let versions = holds.iter().map(|hold| (hold.uid.clone(), hold.resource_version.clone())).chain(pod);
            if self.written.is_awaited(key, versions) {
                return Look::Later(RETRY);
            }
            if governed.as_ref().is_some_and(|governed| self.rule_health.asked(governed.number).is_err()) {
                return Look::Later(BLIND);
            }
            if governed.is_none() && holds.is_empty() {
                return Look::Free;
            }
            let number = governed.as_ref().map(|governed| governed.number);
            let siblings = governed.as_ref().map_or(0, |governed| governed.siblings);
            let governed = governed.map(|governed| (governed.rule, governed.seen));
            let history_ttl = settings.handovers.history_ttl;
            let input = Input { governed, living, siblings, holds, history_ttl, now };
            let before = self.remembered.memories.lock().get(key).cloned();
            let plan = reconcile::reconcile(&input, before.as_ref());
            let counted = number.zip(plan.state);
            Look::Plan(Box::new(plan), before, counted)
        })
    }

    async fn look_at(&self, key: &PodKey) -> Option<Timestamp> {
        let now = Clock::wall();
        let (plan, before, counted) = match self.decide(key, now) {
            Look::Plan(plan, before, counted) => (plan, before, counted),
            Look::Later(pause) => return now.saturating_add(pause).ok(),
            Look::Free => {
                self.count(key, None);
                self.written.forget(key);
                self.remembered.memories.lock().remove(key);
                // Without rules there is no right to write to pods; the cleanup Job has been there.
                let is_left = !self.shared.index.rules().is_empty() && self.shared.index.is_marked(key);
                return if is_left { self.forget(key, now).await } else { None };
            }
        };
        self.count(key, counted);
        let mut wake = plan.wake_at;
        let mut memory = plan.memory;
        for sequence in &plan.sequences {
            let is_patch = matches!(sequence.first(), Some(Action::PatchPod { .. }));
            let (superseded, result) = self.shared.applier.perform(sequence).await;
            self.written.add(key, superseded);
            match result {
                Ok(()) => {
                    self.tell(key, sequence);
                    if is_patch && plan.yielded > 0 {
                        self.shared.metrics.hint_conflicts(plan.yielded);
                    }
                }
                Err(error) => {
                    if is_patch {
                        memory = memory.and_then(|memory| memory.unwritten(before.as_ref()));
                    }
                    wake = wake.into_iter().chain([failed(key, &error, now)]).min();
                }
            }
        }
        let mut memories = self.remembered.memories.lock();
        match memory {
            Some(memory) => drop(memories.insert(key.clone(), memory)),
            None => drop(memories.remove(key)),
        }
        wake
    }

    /// Takes our hints off a pod that no rule governs any more.
    async fn forget(&self, key: &PodKey, now: Timestamp) -> Option<Timestamp> {
        let pods: Api<Pod> = Api::namespaced(self.shared.client.clone(), &key.namespace);
        let object = format!("Pod {key}");
        let pod = match bounded(object, pods.get_metadata_opt(&key.name)).await {
            Ok(pod) => pod?,
            Err(error) => return Some(failed(key, &error, now)),
        };
        let meta = &pod.metadata;
        // Two watches bring a pod, that of all pods and that of its rule's, and one may be ahead.
        let labels = meta.labels.clone().unwrap_or_default();
        let excluded = self.shared.settings.load().rules.excludes(&key.namespace);
        if !excluded && self.selects.iter().any(|selects| selects.matches(&key.namespace, &labels)) {
            return now.saturating_add(RETRY).ok();
        }
        let managed = project_busy::managed(meta);
        let costs_are_ranked = self.shared.settings.load().costs_are_ranked;
        let marks = project_busy::marks(meta);
        let action = reconcile::forget(&object_ref(meta), managed.as_deref(), &marks, costs_are_ranked)?;
        let sequence = [action];
        match self.shared.applier.perform(&sequence).await.1 {
            Ok(()) => self.tell(key, &sequence),
            Err(error) => return Some(failed(key, &error, now)),
        }
        None
    }

    /// One log line for each decision that changed something.
    fn tell(&self, key: &PodKey, sequence: &[Action]) {
        for action in sequence {
            match action {
                Action::PatchPod { changes, .. } => {
                    let hints: Vec<_> = changes
                        .iter()
                        .map(|(key, value)| format!("{key}={}", value.as_deref().unwrap_or("(removed)")))
                        .filter(|hint| !hint.starts_with("belay.dev/managed"))
                        .collect();
                    tracing::info!(pod = %key, hints = %hints.join(" "), "hints brought up to date");
                }
                Action::DeleteOwner { kind, owner } => {
                    tracing::info!(pod = %key, %kind, owner = %owner.name, "owner deleted to retire an idle pod");
                }
                Action::UpdateHold { hold, status } if is_ending(status) => {
                    let outcome = status.outcome.map_or("Released", belay_decide::hold::Outcome::as_str);
                    self.shared.metrics.busy_hold_ended(outcome);
                    tracing::info!(pod = %key, hold = %hold.name, outcome, why = %status.message, "hold ended");
                }
                _ => {}
            }
        }
    }

    /// Keeps the count of pods by rule and state.
    fn count(&self, key: &PodKey, now: Option<(usize, State)>) {
        let mut states = self.remembered.states.lock();
        let before = match now {
            Some(state) => states.insert(key.clone(), state),
            None => states.remove(key),
        };
        if before == now {
            return;
        }
        for (counted, change) in [(before, -1), (now, 1)] {
            if let Some((number, state)) = counted
                && let Some(rule) = self.shared.index.rules().get(number)
            {
                self.shared.metrics.busy_pod(&rule.spec.name, state.as_str(), change);
            }
        }
    }
}

/// The hold ends with this status: one that was released before has been told of.
fn is_ending(status: &HoldStatus) -> bool {
    status.released_at.is_some_and(|at| status.completed_at.is_none_or(|completed| completed == at))
}

fn failed(key: &PodKey, error: &ApplyError, now: Timestamp) -> Timestamp {
    work::pod_failed(key, "hints or hold", error, 0, now)
}

impl Work for Loop {
    type Key = PodKey;

    async fn changed(&self) {
        self.shared.dirty.pods_changed().await;
    }

    fn take(&self) -> BTreeSet<PodKey> {
        self.shared.dirty.take_pods()
    }

    fn touch_all(&self) {
        self.shared.index.touch_busy_pods();
    }

    async fn look(&self, key: &PodKey) -> Option<Timestamp> {
        self.look_at(key).await
    }

    fn is_urgent(&self, key: &PodKey) -> bool {
        self.shared.index.has_busy_holds(key)
    }

    fn observe(&self, leading: bool) {
        if !leading {
            self.remembered.memories.lock().clear();
            self.remembered.states.lock().clear();
            self.shared.metrics.no_busy_pods();
        }
    }
}
