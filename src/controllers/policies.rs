//! The policy loop: keeps each HandoverPolicy's status true, so that `kubectl describe handoverpolicy` tells what
//! the next drain will meet. Writes only what differs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use belay_decide::policy_status::{self, Condition};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as ApiCondition, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::cluster::apply::{ApplyError, FIELD_MANAGER};
use crate::cluster::clock::Clock;
use crate::cluster::index::{Index, PolicyState, Target};
use crate::cluster::lease::Leadership;
use crate::cluster::watch::{Health, synced};
use crate::metrics::Metrics;
use crate::rate::TokenBucket;
use crate::settings::Settings;

/// Deployments change many times during one rollout; their policies are looked at once it is quiet for this long.
const DEBOUNCE: Duration = Duration::from_millis(250);

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(5);

/// What the loop works with.
pub struct Loop {
    /// The client.
    pub client: Client,
    /// The cache.
    pub index: Index,
    /// The configuration in force.
    pub settings: Arc<ArcSwap<Settings>>,
    /// Whether this replica leads.
    pub leadership: Arc<Leadership>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// How fast this process may write.
    pub rate: Arc<TokenBucket>,
    /// The watches that fill the cache.
    pub health: Vec<Health>,
}

/// A status to be written.
struct Update {
    name: String,
    status: api::HandoverPolicyStatus,
}

impl Loop {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut leadership = self.leadership.changes();
        if !synced(&self.health, &stop).await {
            return;
        }
        let mut again: BTreeSet<Box<str>> = BTreeSet::new();
        // Changes that were let go of while another led, or nobody.
        let mut missed = true;
        loop {
            let retry = if again.is_empty() { Duration::MAX } else { RETRY };
            tokio::select! {
                () = self.index.dirty().policies_changed() => tokio::time::sleep(DEBOUNCE).await,
                () = tokio::time::sleep(retry) => {}
                _ = leadership.changed() => {}
                () = stop.cancelled() => return,
            }
            if !self.leadership.is_leader() {
                self.index.dirty().take_policies();
                again.clear();
                missed = true;
                continue;
            }
            if std::mem::take(&mut missed) {
                self.index.touch_policies();
            }
            let mut due = self.index.dirty().take_policies();
            due.append(&mut again);
            for namespace in due {
                if !self.namespace(&namespace).await {
                    again.insert(namespace);
                }
            }
        }
    }

    /// Brings the policies of one namespace up to date; false where a write failed.
    async fn namespace(&self, namespace: &str) -> bool {
        let settings = self.settings.load();
        let now = Clock::wall();
        let excluded =
            !settings.hold_enabled || settings.rules.excluded_namespaces.iter().any(|name| name == namespace);
        let updates = self.index.policies(namespace, &settings.default_policy, |state| desired(state, excluded, now));
        let mut whole = true;
        for update in updates.into_iter().flatten() {
            self.rate.take().await;
            let result = self.write(namespace, &update).await;
            self.metrics.write("HandoverPolicyStatus", result.as_ref().err().map_or("Ok", ApplyError::label));
            if let Err(error) = result
                && !matches!(error, ApplyError::Gone { .. })
            {
                tracing::warn!(%error, "policy status not written, trying again");
                whole = false;
            }
        }
        whole
    }

    async fn write(&self, namespace: &str, update: &Update) -> Result<(), ApplyError> {
        let api: Api<api::HandoverPolicy> = Api::namespaced(self.client.clone(), namespace);
        let patch = json!({ "status": update.status });
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let object = format!("HandoverPolicy {namespace}/{}", update.name);
        let result = api.patch_status(&update.name, &params, &Patch::Merge(patch)).await;
        result.map(drop).map_err(|error| ApplyError::of(error, object))
    }
}

/// The status that a policy should have, where it has another one.
fn desired(state: &PolicyState<'_>, excluded: bool, now: Timestamp) -> Option<Update> {
    let policy = state.policy;
    let invalid = match &policy.target {
        Target::Invalid(problem) => Some(problem.as_str()),
        Target::Name(_) | Target::Labels(_) => None,
    };
    let targets: Vec<_> = state.deployments.iter().map(|(target, protection)| (*target, protection.as_ref())).collect();
    let before = policy.status.clone().unwrap_or_default();
    let conditions = policy_status::conditions(&policy.view, invalid, excluded, &targets)
        .into_iter()
        .map(|condition| stamped(condition, &before.conditions, policy.generation, now))
        .collect();
    let last = state.last.map(|hold| api::LastHandover {
        victim: hold.spec.victim_name.clone(),
        workload: hold.spec.workload_name.clone(),
        outcome: hold.status.outcome.map_or("Released", belay_decide::hold::Outcome::as_str).to_owned(),
        released_at: Time(hold.status.released_at.unwrap_or(now)),
    });
    let status = api::HandoverPolicyStatus {
        observed_generation: Some(policy.generation),
        conditions,
        // The history outlives the hold that it came from.
        last_handover: last.or(before.last_handover.clone()),
    };
    (status != before).then(|| Update { name: policy.view.name.clone(), status })
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
