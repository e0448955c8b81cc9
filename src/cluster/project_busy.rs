//! From whole objects to what busy rules read of them.
//!
//! Rules may read any field, so the objects are taken whole off the wire; what no expression of the rule reads is
//! thrown away at once.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use belay_decide::busy::{BusyPod, ControllerRef, Fields, GroupKind, Owner, Rule, hints};
use belay_decide::ownership::{Key, MANAGED_ANNOTATION};
use belay_decide::view::PodPhase;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::index::Linked;
use super::project::text;

/// The annotation that the kubelet puts on the mirror of a static pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What is kept of owners of one kind.
#[derive(Clone, Debug, Default)]
pub struct OwnerFields {
    /// What the rules that ask this kind read.
    pub read: Fields,
    /// Whose time of writing is wanted.
    pub job_fields: Vec<String>,
}

/// The controller of an object.
pub fn controller(meta: &ObjectMeta) -> Option<ControllerRef> {
    let owners = meta.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    Some(ControllerRef {
        kind: GroupKind::new(group, &owner.kind),
        name: owner.name.as_str().into(),
        uid: owner.uid.as_str().into(),
    })
}

/// The object as an expression sees it: without `managedFields`, which is a ledger and no state.
fn whole(object: &DynamicObject) -> Value {
    let mut meta = object.metadata.clone();
    meta.managed_fields = None;
    let mut value = object.data.clone();
    if !value.is_object() {
        value = json!({});
    }
    value["metadata"] = json!(meta);
    value
}

/// Labels and annotations that Belay may write, as they stand.
pub fn marks(meta: &ObjectMeta) -> BTreeMap<Key, String> {
    let present = |key: &Key| {
        let map = match key {
            Key::Label(_) => meta.labels.as_ref(),
            Key::Annotation(_) => meta.annotations.as_ref(),
        };
        map?.get(key.name()).cloned()
    };
    hints::keys().into_iter().filter_map(|key| present(&key).map(|value| (key, value))).collect()
}

/// Annotation `belay.dev/managed`.
pub fn managed(meta: &ObjectMeta) -> Option<Box<str>> {
    meta.annotations.as_ref()?.get(MANAGED_ANNOTATION).map(|record| record.as_str().into())
}

/// The phase; of a pod that was deleted while it ran, that it ran: its end says nothing of its job.
fn phase(meta: &ObjectMeta, status: &Value) -> PodPhase {
    let phase = PodPhase::parse(status["phase"].as_str());
    let has_ended = matches!(phase, PodPhase::Succeeded | PodPhase::Failed);
    let Some(deletion) = meta.deletion_timestamp.as_ref().filter(|_| has_ended) else { return phase };
    // The timestamp is when the grace is over.
    let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or_default());
    let asked_for = deletion.0.saturating_sub(grace).unwrap_or(deletion.0);
    let ended = status["containerStatuses"].as_array().into_iter().flatten();
    let ended = ended.filter_map(|container| container["state"]["terminated"]["finishedAt"].as_str()?.parse().ok());
    if ended.max().is_some_and(|at: Timestamp| at > asked_for) { PodPhase::Running } else { phase }
}

/// Projects a pod that a rule governs. `now` stands in for the creation of one that is being made.
pub fn pod(object: &DynamicObject, rule: &Rule, now: Timestamp) -> BusyPod {
    let meta = &object.metadata;
    let status = &object.data["status"];
    let ready = status["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == "Ready");
    let since = |ready: &Value| ready["lastTransitionTime"].as_str().and_then(|at| at.parse().ok());
    BusyPod {
        namespace: text(meta.namespace.as_ref()),
        name: text(meta.name.as_ref()),
        uid: text(meta.uid.as_ref()),
        resource_version: text(meta.resource_version.as_ref()),
        created: meta.creation_timestamp.as_ref().map_or(now, |time| time.0),
        terminating: meta.deletion_timestamp.is_some(),
        mirror: meta.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_ANNOTATION)),
        node: object.data["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()).map(Into::into),
        phase: phase(meta, status),
        ready_since: ready
            .filter(|ready| ready["status"] == "True")
            .map(|ready| since(ready).unwrap_or(Timestamp::UNIX_EPOCH)),
        controller: controller(meta),
        marks: marks(meta),
        managed: managed(meta),
        object: rule.pod_fields.of(&whole(object)),
    }
}

/// Projects a pod that may be linked to others by this label.
pub fn linked(object: &DynamicObject, label: &str, fields: &Fields) -> Option<Linked> {
    let meta = &object.metadata;
    let to = meta.labels.as_ref()?.get(label)?;
    let phase = PodPhase::parse(object.data["status"]["phase"].as_str());
    Some(Linked {
        namespace: text(meta.namespace.as_ref()),
        name: text(meta.name.as_ref()),
        to: to.as_str().into(),
        created: meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        finished: matches!(phase, PodPhase::Succeeded | PodPhase::Failed),
        object: fields.of(&whole(object)),
    })
}

/// Projects an owner, or an object on the way to one.
pub fn owner(object: &DynamicObject, fields: &OwnerFields) -> Owner {
    let meta = &object.metadata;
    let ledger = meta.managed_fields.as_deref().unwrap_or_default();
    let written =
        fields.job_fields.iter().filter_map(|field| Some((field.as_str().into(), last_written(ledger, field)?)));
    let whole = whole(object);
    Owner {
        namespace: text(meta.namespace.as_ref()),
        name: text(meta.name.as_ref()),
        uid: text(meta.uid.as_ref()),
        terminating: meta.deletion_timestamp.is_some(),
        controller: controller(meta),
        written: written.collect(),
        object: fields.read.of(&whole),
    }
}

/// When a field was last written, by the API server's ledger: the newest entry of a manager that owns it. Its time is
/// when that manager's fields last changed (`structured-merge-diff`), so it is never too early.
fn last_written(ledger: &[ManagedFieldsEntry], path: &str) -> Option<Timestamp> {
    let owns = |entry: &&ManagedFieldsEntry| {
        let Some(fields) = &entry.fields_v1 else { return false };
        let mut place = Some(&fields.0);
        for key in path.split('.') {
            place = place.and_then(|place| place.get(format!("f:{key}")));
        }
        place.is_some()
    };
    ledger.iter().filter(owns).filter_map(|entry| entry.time.as_ref().map(|time| time.0)).max()
}
