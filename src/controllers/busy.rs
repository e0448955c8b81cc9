//! The busy loop: keeps the hints of each governed pod true, and looks after the holds of busy pods, by what
//! `decide::busy::reconcile` says.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use belay_decide::action::{Action, ObjectRef};
use belay_decide::busy::reconcile::{self, Input, Memory, Plan};
use belay_decide::busy::{State, judge};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::work::{self, RETRY, Work, Written};
use crate::cluster::apply::{Applier, ApplyError, bounded};
use crate::cluster::clock::Clock;
use crate::cluster::index::{Dirty, Index, PodKey};
use crate::cluster::lease::Leadership;
use crate::cluster::project_busy;
use crate::cluster::watch::Health;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// What the loop works with.
pub struct Loop {
    /// The client, for the rare pod that carries hints and that no rule governs any more.
    pub client: Client,
    /// The cache.
    pub index: Index,
    /// What changes in it.
    pub dirty: Dirty,
    /// The writer.
    pub applier: Arc<Applier>,
    /// The configuration in force.
    pub settings: Arc<ArcSwap<Settings>>,
    /// Whether this replica leads.
    pub leadership: Arc<Leadership>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The watches that fill the cache.
    pub health: Vec<Health>,
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

/// A pod's own version and those of its holds, and what is to be done.
struct Look {
    plan: Plan,
    counted: Option<(usize, State)>,
    /// Neither governed nor held.
    is_free: bool,
}

impl Loop {
    /// Runs until `stop`, then ends what it is at.
    pub async fn run(self, stop: CancellationToken) {
        let (leadership, health) = (Arc::clone(&self.leadership), self.health.clone());
        work::run(self, &leadership, &health, stop).await;
    }

    fn decide(&self, key: &PodKey, now: Timestamp) -> Option<Look> {
        let settings = self.settings.load();
        self.index.busy(key, |governed, holds| {
            let pod =
                governed.as_ref().map(|(_, seen)| (seen.pod.uid.to_string(), seen.pod.resource_version.to_string()));
            let versions = holds.iter().map(|hold| (hold.uid.clone(), hold.resource_version.clone())).chain(pod);
            if self.written.is_awaited(key, versions) {
                return None;
            }
            let counted = governed.as_ref().map(|(rule, seen)| {
                let number = self.index.rules().iter().position(|one| one.spec.name == rule.spec.name);
                (number.unwrap_or_default(), judge(rule, seen, now).state)
            });
            let is_free = governed.is_none() && holds.is_empty();
            let input = Input { governed, holds, history_ttl: settings.history_ttl, now };
            let mut memories = self.remembered.memories.lock();
            let plan = reconcile::reconcile(&input, memories.get(key));
            match &plan.memory {
                Some(memory) => drop(memories.insert(key.clone(), memory.clone())),
                None => drop(memories.remove(key)),
            }
            Some(Look { plan, counted, is_free })
        })
    }

    async fn look_at(&self, key: &PodKey) -> Option<Timestamp> {
        let now = Clock::wall();
        let Some(look) = self.decide(key, now) else { return now.saturating_add(RETRY).ok() };
        self.count(key, look.counted);
        if look.is_free {
            self.written.forget(key);
            return if self.index.is_marked(key) { self.forget(key, now).await } else { None };
        }
        let mut wake = look.plan.wake_at;
        for sequence in &look.plan.sequences {
            let (superseded, result) = self.applier.perform(sequence).await;
            self.written.add(key, superseded);
            match result {
                Ok(()) => tell(key, sequence),
                Err(error) => wake = wake.into_iter().chain([failed(key, &error, now)]).min(),
            }
        }
        if look.plan.yielded > 0 {
            self.metrics.hint_conflicts(look.plan.yielded);
        }
        wake
    }

    /// Takes our hints off a pod that no rule governs any more.
    async fn forget(&self, key: &PodKey, now: Timestamp) -> Option<Timestamp> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let object = format!("Pod {key}");
        let pod = match bounded(object, pods.get_metadata_opt(&key.name)).await {
            Ok(pod) => pod?,
            Err(error) => return Some(failed(key, &error, now)),
        };
        let meta = &pod.metadata;
        let reference = ObjectRef {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: pod.uid().unwrap_or_default(),
            resource_version: pod.resource_version().unwrap_or_default(),
        };
        let managed = project_busy::managed(meta);
        let action = reconcile::forget(&reference, managed.as_deref(), &project_busy::marks(meta))?;
        let sequence = [action];
        match self.applier.perform(&sequence).await.1 {
            Ok(()) => tell(key, &sequence),
            Err(error) => return Some(failed(key, &error, now)),
        }
        None
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
                && let Some(rule) = self.index.rules().get(number)
            {
                self.metrics.busy_pod(&rule.spec.name, state.as_str(), change);
            }
        }
    }
}

fn failed(key: &PodKey, error: &ApplyError, now: Timestamp) -> Timestamp {
    if error.is_benign() {
        tracing::debug!(pod = %key, %error, "looking again");
    } else {
        tracing::warn!(pod = %key, %error, "hints or hold not brought up to date, trying again");
    }
    work::again(error, now)
}

/// One log line for each decision that changed something.
fn tell(key: &PodKey, sequence: &[Action]) {
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
            Action::UpdateHold { hold, status } if status.released_at.is_some() => {
                let outcome = status.outcome.map_or("Released", belay_decide::hold::Outcome::as_str);
                tracing::info!(pod = %key, hold = %hold.name, outcome, why = %status.message, "hold ended");
            }
            _ => {}
        }
    }
}

impl Work for Loop {
    type Key = PodKey;

    async fn changed(&self) {
        self.dirty.pods_changed().await;
    }

    fn take(&self) -> BTreeSet<PodKey> {
        self.dirty.take_pods()
    }

    fn touch_all(&self) {
        self.index.touch_busy_pods();
    }

    async fn look(&self, key: &PodKey) -> Option<Timestamp> {
        self.look_at(key).await
    }

    fn observe(&self, leading: bool) {
        if !leading {
            self.remembered.memories.lock().clear();
            self.remembered.states.lock().clear();
            self.metrics.no_busy_pods();
        }
    }
}
