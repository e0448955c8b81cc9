//! The handover loop: looks at each workload with holds whenever something about it changes, or when its time
//! has come, and performs what `decide::handover::reconcile` says.

use std::collections::BTreeSet;
use std::sync::Arc;

use belay_decide::action::Action;
use belay_decide::handover::{Plan, reconcile, reconcile::Input};
use belay_decide::hold::Phase;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::work::{self, RETRY, Work, Written};
use crate::cluster::clock::Clock;
use crate::cluster::index::WorkloadKey;

/// What the loop works with.
pub struct Loop {
    /// What it has in common with others.
    pub shared: Shared,
    /// What was written and not yet seen again.
    pub written: Written<WorkloadKey>,
}

impl Loop {
    /// Runs until `stop`, then ends what it is at.
    pub async fn run(self, stop: CancellationToken) {
        let (leadership, health) = (Arc::clone(&self.shared.leadership), self.shared.health.clone());
        work::run(self, &leadership, &health, stop).await;
    }

    /// Looks at one workload; when to look again.
    async fn look_at(&self, key: &WorkloadKey) -> Option<Timestamp> {
        let settings = self.shared.settings.load();
        let now = Clock::wall();
        let plan: Option<Plan> =
            self.shared.index.workload(key, &settings.default_policy, |workload, protection, holds| {
                let deployment = workload.map(|workload| workload.deployment);
                let versions = holds
                    .iter()
                    .map(|(hold, _)| (hold.uid.clone(), hold.resource_version.clone()))
                    .chain(deployment.map(|deployment| (deployment.uid.clone(), deployment.resource_version.clone())));
                if self.written.is_awaited(key, versions) {
                    return Plan { wake_at: now.saturating_add(RETRY).ok(), ..Plan::default() };
                }
                let protection = protection.filter(|_| settings.hold_enabled);
                reconcile(&Input { workload, protection, holds, close: None, rules: &settings.handovers, now })
            });
        let Some(plan) = plan else {
            // No holds any more.
            self.written.forget(key);
            return None;
        };
        let mut wake = plan.wake_at;
        for sequence in &plan.sequences {
            let (superseded, result) = self.shared.applier.perform(sequence).await;
            self.written.add(key, superseded);
            match result {
                Ok(()) => self.tell(key, sequence),
                Err(error) => {
                    if error.is_benign() {
                        tracing::debug!(workload = %key, %error, "looking again");
                    } else {
                        tracing::warn!(workload = %key, %error, "handover step failed, trying again");
                    }
                    wake = wake.into_iter().chain([work::again(&error, now)]).min();
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
                    self.shared.metrics.handover(outcome);
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
