//! The policy loop: keeps each HandoverPolicy's status true, so that `kubectl describe handoverpolicy` tells what
//! the next drain will meet. Writes only what differs.

use std::collections::BTreeSet;
use std::time::Duration;

use belay_decide::policy_status::{self, Condition};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as ApiCondition, Time};
use kube::Api;
use kube::api::Patch;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::api;
use crate::cluster::apply::{ApplyError, as_belay};
use crate::cluster::clock::Clock;
use crate::cluster::index::{PolicyState, Selected, Target};
use crate::cluster::watch::synced;

/// Deployments change many times during one rollout; their policies are looked at once it is quiet for this long.
const DEBOUNCE: Duration = Duration::from_millis(250);

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(5);

/// Longer than any process lives: nothing is to be tried again.
const FAR: Duration = Duration::from_hours(24 * 365);

/// What the loop works with.
pub struct Loop {
    /// What it has in common with others.
    pub shared: Shared,
}

/// A status to be written.
struct Update {
    name: String,
    uid: String,
    resource_version: String,
    status: api::HandoverPolicyStatus,
}

impl Loop {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut leadership = self.shared.leadership.changes();
        if !synced(&self.shared.health, &stop).await {
            return;
        }
        let mut again: BTreeSet<Box<str>> = BTreeSet::new();
        let mut retry_at = Instant::now();
        loop {
            let retry = if again.is_empty() { retry_at + FAR } else { retry_at };
            tokio::select! {
                () = self.shared.dirty.policies_changed() => tokio::time::sleep(DEBOUNCE).await,
                () = tokio::time::sleep_until(retry) => {}
                _ = leadership.changed() => {
                    if *leadership.borrow_and_update() {
                        self.shared.index.touch_policies();
                    }
                }
                () = stop.cancelled() => return,
            }
            if !self.shared.leadership.is_leader() {
                self.shared.dirty.take_policies();
                again.clear();
                continue;
            }
            let mut due = self.shared.dirty.take_policies();
            if Instant::now() >= retry_at {
                due.append(&mut again);
            }
            for namespace in due {
                if stop.is_cancelled() {
                    return;
                }
                if !self.namespace(&namespace).await {
                    again.insert(namespace);
                    retry_at = Instant::now() + RETRY;
                }
            }
        }
    }

    /// Brings the policies of one namespace up to date; false where a write failed.
    async fn namespace(&self, namespace: &str) -> bool {
        let settings = self.shared.settings.load();
        let now = Clock::wall();
        let excluded = !settings.hold_enabled || settings.rules.excludes(namespace);
        let updates =
            self.shared.index.policies(namespace, &settings.default_policy, |state| desired(state, excluded, now));
        let mut whole = true;
        for update in updates.into_iter().flatten() {
            if let Err(error) = self.write(namespace, &update).await {
                match error {
                    ApplyError::Gone { .. } => {}
                    // Its own change, or the new leader, sees to it.
                    ApplyError::Conflict { .. } | ApplyError::NotLeading { .. } => whole = false,
                    _ => {
                        tracing::warn!(%error, "policy status not written, trying again");
                        whole = false;
                    }
                }
            }
        }
        whole
    }

    async fn write(&self, namespace: &str, update: &Update) -> Result<(), ApplyError> {
        let api: Api<api::HandoverPolicy> = Api::namespaced(self.shared.client.clone(), namespace);
        let patch = Patch::Merge(json!({
            "metadata": { "uid": update.uid, "resourceVersion": update.resource_version },
            "status": update.status,
        }));
        let params = as_belay();
        let object = format!("HandoverPolicy {namespace}/{}", update.name);
        let write = api.patch_status(&update.name, &params, &patch);
        self.shared.applier.write("HandoverPolicyStatus", object, write).await.map(drop)
    }
}

/// The status that a policy should have, where it has another one.
fn desired(state: &PolicyState<'_>, excluded: bool, now: Timestamp) -> Option<Update> {
    let policy = state.policy;
    let invalid = match &policy.target {
        Target::Invalid(problem) => Some(problem.as_str()),
        Target::Name(_) | Target::Labels(_) => None,
    };
    let targets: Vec<_> = state.deployments.iter().map(Selected::target).collect();
    let before = policy.status.clone().unwrap_or_default();
    let conditions = policy_status::conditions(&policy.view, invalid, excluded, &targets)
        .into_iter()
        .map(|condition| stamped(condition, &before.conditions, policy.generation, now))
        .collect();
    let last = state.last.map(|hold| api::LastHandover {
        victim: hold.spec.victim_name.clone(),
        workload: hold.spec.workload.name.clone(),
        outcome: hold.status.outcome.map_or("Released", belay_decide::hold::Outcome::as_str).to_owned(),
        released_at: Time(hold.status.released_at.unwrap_or(now)),
    });
    let status = api::HandoverPolicyStatus {
        observed_generation: Some(policy.generation),
        conditions,
        // The history outlives the hold that it came from.
        last_handover: last.or(before.last_handover.clone()),
    };
    (status != before).then(|| Update {
        name: policy.view.name.clone(),
        uid: policy.uid.clone(),
        resource_version: policy.resource_version.clone(),
        status,
    })
}

/// The API's form of a condition; its time changes only when its status does.
fn stamped(new: Condition, before: &[ApiCondition], generation: i64, now: Timestamp) -> ApiCondition {
    let status = match new.status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let same = before.iter().find(|old| old.type_ == new.kind && old.status == status);
    ApiCondition {
        type_: new.kind.to_owned(),
        status: status.to_owned(),
        reason: new.reason.to_owned(),
        message: new.message,
        last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
        observed_generation: Some(generation),
    }
}
