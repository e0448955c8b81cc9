//! The handover loop: looks at each workload with holds whenever something about it changes, or when its time
//! has come, and performs what `decide::handover::reconcile` says.
//!
//! It keeps no state but when to look again. A leader that is new, or did not lead for a while, looks at every
//! workload with holds once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use belay_decide::action::Action;
use belay_decide::handover::{Plan, reconcile, reconcile::Input};
use belay_decide::hold::Phase;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::cluster::apply::{Applier, ApplyError, Superseded};
use crate::cluster::clock::Clock;
use crate::cluster::index::{Dirty, Index, WorkloadKey};
use crate::cluster::lease::Leadership;
use crate::cluster::watch::{Health, synced};
use crate::metrics::Metrics;
use crate::settings::Settings;

/// How many workloads are written at once. Each waits mostly for the API server; the token bucket sets the rate.
const CONCURRENCY: usize = 16;

/// A watch brings a write back within milliseconds. One that takes this long is broken, or the API server's storage was
/// put back to an older state; then the conflict is the better answer.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// How soon a workload is looked at again after a write failed for no fault of ours.
const RETRY: SignedDuration = SignedDuration::from_secs(2);

/// How soon after a write was refused: somebody must mend rights or objects first.
const RETRY_REFUSED: SignedDuration = SignedDuration::from_secs(15);

/// Longest sleep, so that a wall clock that jumps forward is noticed in time.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// What the loop works with.
pub struct Loop {
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
    pub written: Written,
}

/// The versions of objects that our own writes have superseded, by workload.
///
/// The answer to a write is here before the watch brings the object back. Deciding on the old one in between would
/// only meet a conflict, so a workload is left alone until what was written is seen.
#[derive(Default)]
pub struct Written(Mutex<HashMap<WorkloadKey, (Instant, Vec<Superseded>)>>);

impl Written {
    fn forget(&self, key: &WorkloadKey) {
        self.0.lock().remove(key);
    }

    fn add(&self, key: &WorkloadKey, superseded: Vec<Superseded>) {
        if !superseded.is_empty() {
            let mut all = self.0.lock();
            let (since, known) = all.entry(key.clone()).or_insert_with(|| (Instant::now(), Vec::new()));
            *since = Instant::now();
            known.extend(superseded);
        }
    }

    /// One of these objects is still seen as it was before our write. Forgets what is seen anew.
    fn is_awaited(&self, key: &WorkloadKey, mut versions: impl Iterator<Item = (String, String)>) -> bool {
        let mut all = self.0.lock();
        let Some((since, superseded)) = all.get(key) else { return false };
        let awaited =
            versions.any(|(uid, version)| superseded.iter().any(|old| old.uid == uid && old.version == version));
        if !awaited || since.elapsed() > SEEN_WITHIN {
            all.remove(key);
            return false;
        }
        true
    }
}

impl Loop {
    /// Runs until `stop`, then ends what it is at.
    pub async fn run(self, stop: CancellationToken) {
        let mut wakes: BTreeMap<WorkloadKey, Timestamp> = BTreeMap::new();
        let mut leadership = self.leadership.changes();
        if !synced(&self.health, &stop).await {
            return;
        }
        // Changes that were let go of while another led, or nobody.
        let mut missed = true;
        // A workload whose write hangs holds up itself alone; what changes meanwhile waits in `due`.
        let mut due: BTreeSet<WorkloadKey> = BTreeSet::new();
        let mut busy: HashSet<WorkloadKey> = HashSet::new();
        let mut looks = FuturesUnordered::new();
        loop {
            let sleep = until_next(&wakes);
            tokio::select! {
                () = self.dirty.workloads_changed() => {}
                () = tokio::time::sleep(sleep) => {}
                _ = leadership.changed() => self.metrics.leading(*leadership.borrow_and_update()),
                Some((key, wake)) = looks.next() => {
                    busy.remove(&key);
                    if let Some(at) = wake {
                        wakes.insert(key, at);
                    }
                }
                () = stop.cancelled() => break,
            }
            if !self.leadership.is_leader() {
                // Dirt gathers no dust: the next leader, be it this one again, looks at everything anyway.
                self.dirty.take_workloads();
                due.clear();
                wakes.clear();
                self.metrics.holds(&[], None);
                missed = true;
                continue;
            }
            if std::mem::take(&mut missed) {
                self.index.touch_workloads_with_holds();
            }
            let now = Clock::wall();
            due.append(&mut self.dirty.take_workloads());
            due.extend(wakes.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()));
            let free: Vec<_> = due
                .iter()
                .filter(|key| !busy.contains(*key))
                .take(CONCURRENCY.saturating_sub(busy.len()))
                .cloned()
                .collect();
            for key in free {
                due.remove(&key);
                wakes.remove(&key);
                busy.insert(key.clone());
                looks.push(async {
                    let wake = self.look(&key).await;
                    (key, wake)
                });
            }
            self.count_holds();
        }
        while looks.next().await.is_some() {}
    }

    /// Looks at one workload; when to look again.
    async fn look(&self, key: &WorkloadKey) -> Option<Timestamp> {
        let settings = self.settings.load();
        let now = Clock::wall();
        let plan: Option<Plan> = self.index.workload(key, &settings.default_policy, |workload, protection, holds| {
            let deployment = workload.map(|workload| workload.deployment);
            let versions = holds
                .iter()
                .map(|(hold, _)| (hold.uid.clone(), hold.resource_version.clone()))
                .chain(deployment.map(|deployment| (deployment.uid.clone(), deployment.resource_version.clone())));
            if self.written.is_awaited(key, versions) {
                return Plan { sequences: Vec::new(), wake_at: now.saturating_add(RETRY).ok() };
            }
            let protection = protection.filter(|_| settings.hold_enabled);
            reconcile(&Input { workload, protection, holds, history_ttl: settings.history_ttl, now })
        });
        let Some(plan) = plan else {
            // No holds any more.
            self.written.forget(key);
            return None;
        };
        let mut wake = plan.wake_at;
        for sequence in &plan.sequences {
            let (superseded, result) = self.applier.perform(sequence).await;
            self.written.add(key, superseded);
            match result {
                Ok(()) => self.tell(key, sequence),
                Err(error) => {
                    if error.is_benign() {
                        tracing::debug!(workload = %key, %error, "looking again");
                    } else {
                        tracing::warn!(workload = %key, %error, "handover step failed, trying again");
                    }
                    // An API server that restarts is back within seconds, and a drain waits for this write.
                    let soon = error.is_benign() || matches!(error, ApplyError::Unreachable { .. });
                    let again = now.saturating_add(if soon { RETRY } else { RETRY_REFUSED });
                    let again = again.unwrap_or(Timestamp::MAX);
                    wake = Some(wake.map_or(again, |at| at.min(again)));
                }
            }
        }
        wake
    }

    /// One log line for each decision that changed something.
    fn tell(&self, key: &WorkloadKey, sequence: &[Action]) {
        for action in sequence {
            match action {
                Action::UpdateHold { hold, status } if status.phase == Phase::Released => {
                    let outcome = status.outcome.map_or("Released", belay_decide::hold::Outcome::as_str);
                    self.metrics.handover(outcome);
                    tracing::info!(workload = %key, hold = %hold.name, outcome, why = %status.message, "eviction released");
                }
                Action::PatchTemplate { slot, .. } => {
                    tracing::info!(workload = %key, slot = slot.as_deref().unwrap_or("none"), "pod template patched");
                }
                _ => {}
            }
        }
    }

    fn count_holds(&self) {
        let (phases, deadline) = self.index.hold_phases();
        self.metrics.holds(&phases, deadline.map(|at| at.as_second() as f64));
    }
}

fn until_next(wakes: &BTreeMap<WorkloadKey, Timestamp>) -> Duration {
    let Some(next) = wakes.values().min() else { return LONGEST_SLEEP };
    let wait = next.duration_since(Clock::wall());
    // A moment past the mark, so that the comparison with it holds when we wake.
    Duration::try_from(wait).unwrap_or_default().saturating_add(Duration::from_millis(5)).min(LONGEST_SLEEP)
}
