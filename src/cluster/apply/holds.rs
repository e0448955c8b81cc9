//! Writes of EvictionHolds, as the applier makes them and the webhook's recorder.

use belay_decide::action::ObjectRef;
use belay_decide::hold::{HoldSpec, HoldStatus, Outcome, Phase};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::api::{DeleteParams, Patch, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;

use super::as_belay;
use crate::api;

fn api_of(client: &Client, namespace: &str) -> Api<api::EvictionHold> {
    Api::namespaced(client.clone(), namespace)
}

/// A hold, as errors name it.
pub fn name_of(namespace: &str, name: &str) -> String {
    format!("EvictionHold {namespace}/{name}")
}

/// Creates the hold that says so; false where it is there already, and says the same.
pub async fn create(client: &Client, namespace: &str, spec: &HoldSpec) -> kube::Result<bool> {
    match api_of(client, namespace).create(&PostParams::default(), &api::EvictionHold::of(spec)).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        result => result.map(|_| true),
    }
}

/// Notes that the eviction of a hold's victim was asked for at this time. Without a version: whatever the controller
/// wrote meanwhile, it was asked for.
pub async fn note_request(client: &Client, namespace: &str, name: &str, uid: &str, at: Timestamp) -> kube::Result<()> {
    let patch = json!({ "metadata": { "uid": uid }, "status": { "lastRequestedAt": Time(at) } });
    api_of(client, namespace).patch_status(name, &as_belay(), &Patch::Merge(patch)).await.map(drop)
}

/// Writes the whole status of a hold, as far as it is as it was; its metadata from then on.
pub(super) async fn update(client: &Client, hold: &ObjectRef, status: &HoldStatus) -> kube::Result<ObjectMeta> {
    let patch = json!({
        "apiVersion": "belay.dev/v1alpha1",
        "kind": "EvictionHold",
        "metadata": { "uid": hold.uid, "resourceVersion": hold.resource_version },
        "status": hold_status(status),
    });
    let api = api_of(client, &hold.namespace);
    Ok(api.patch_status(&hold.name, &as_belay(), &Patch::Merge(patch)).await?.metadata)
}

/// Deletes a hold, as far as it is as it was.
pub(super) async fn delete(client: &Client, hold: &ObjectRef) -> kube::Result<()> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(hold.uid.clone()),
            resource_version: Some(hold.resource_version.clone()),
        }),
        ..DeleteParams::default()
    };
    api_of(client, &hold.namespace).delete(&hold.name, &params).await.map(drop)
}

/// The status as it stands in the API. Absent fields are written as null, so that a merge patch takes them away.
pub(super) fn hold_status(status: &HoldStatus) -> serde_json::Value {
    let time = |at: Option<Timestamp>| at.map(Time);
    // Before the release there is no condition: its absence says the same, and has no time to be kept.
    let released = status.released_at.map(|at| Condition {
        type_: "Released".to_owned(),
        status: "True".to_owned(),
        reason: if status.reason.is_empty() { "Released".to_owned() } else { status.reason.clone() },
        message: status.message.clone(),
        last_transition_time: Time(at),
        observed_generation: None,
    });
    json!({
        "phase": match status.phase {
            Phase::Pending => api::HoldPhase::Pending,
            Phase::Active => api::HoldPhase::Active,
            Phase::Released => api::HoldPhase::Released,
            Phase::Completed => api::HoldPhase::Completed,
        },
        "reason": status.reason,
        "message": status.message,
        "outcome": status.outcome.map(|outcome| match outcome {
            Outcome::HandedOver => api::HoldOutcome::HandedOver,
            Outcome::NotNeeded => api::HoldOutcome::NotNeeded,
            Outcome::VictimGone => api::HoldOutcome::VictimGone,
            Outcome::Expired => api::HoldOutcome::Expired,
            Outcome::Failed => api::HoldOutcome::Failed,
            Outcome::Reverted => api::HoldOutcome::Reverted,
            Outcome::Abandoned => api::HoldOutcome::Abandoned,
            Outcome::JobEnded => api::HoldOutcome::JobEnded,
            Outcome::Retired => api::HoldOutcome::Retired,
        }),
        "fromRevision": status.from_revision,
        "restartedAt": time(status.restarted_at),
        "deadline": time(status.deadline),
        "releasedAt": time(status.released_at),
        "completedAt": time(status.completed_at),
        "conditions": Vec::from_iter(released),
    })
}
