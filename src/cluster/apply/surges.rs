//! Writes of the number that a workload's replicas follow, and of the surge's record beside it.

use belay_decide::action::ObjectRef;
use belay_decide::busy::GroupKind;
use belay_decide::handover::surge;
use belay_decide::view::Governor;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DynamicObject, Patch};
use serde_json::json;

use super::{FIELD_MANAGER, written_as};
use crate::cluster::owners::{Resources, Served};

/// KEDA's kind.
pub fn scaled_object() -> GroupKind {
    GroupKind::new("keda.sh", "ScaledObject")
}

/// The kind of what governs replicas, where it is served.
pub fn governor_kind(governor: Governor, resources: &Resources) -> Option<Served> {
    match governor {
        Governor::Deployment => Some(Served::built_in::<Deployment>()),
        Governor::HorizontalPodAutoscaler => Some(Served::built_in::<HorizontalPodAutoscaler>()),
        Governor::ScaledObject => resources.of(&scaled_object()),
    }
}

/// What governs replicas, as errors name it.
pub fn governor_name(governor: Governor, object: &ObjectRef) -> String {
    format!("{} {}/{}", governor.kind(), object.namespace, object.name)
}

/// The field of `spec` that says how many replicas there are to be, at least.
pub fn number_field(governor: Governor) -> &'static str {
    match governor {
        Governor::Deployment => "replicas",
        Governor::HorizontalPodAutoscaler => "minReplicas",
        Governor::ScaledObject => "minReplicaCount",
    }
}

/// Writes the number that replicas follow and the record of the surge, as far as the object is as it was; its metadata
/// from then on.
pub async fn write_surge(
    api: &Api<DynamicObject>,
    governor: Governor,
    object: &ObjectRef,
    number: Option<i32>,
    record: Option<&surge::SurgeRecord>,
) -> kube::Result<ObjectMeta> {
    patch(api, object, &surge_patch(governor, object, number, record), None).await
}

pub(super) async fn patch(
    api: &Api<DynamicObject>,
    object: &ObjectRef,
    changes: &serde_json::Value,
    manager: Option<&str>,
) -> kube::Result<ObjectMeta> {
    let params = written_as(manager.unwrap_or(FIELD_MANAGER));
    Ok(api.patch_metadata(&object.name, &params, &Patch::Merge(changes)).await?.metadata)
}

/// One merge patch: the number that replicas follow and the record of the surge, with both preconditions.
pub(super) fn surge_patch(
    governor: Governor,
    object: &ObjectRef,
    number: Option<i32>,
    record: Option<&surge::SurgeRecord>,
) -> serde_json::Value {
    let mut patch = record_patch(object, record);
    patch["spec"] = json!({ number_field(governor): number });
    patch
}

/// One merge patch: the record of the surge alone, with both preconditions.
pub(super) fn record_patch(object: &ObjectRef, record: Option<&surge::SurgeRecord>) -> serde_json::Value {
    json!({
        "metadata": {
            "uid": object.uid,
            "resourceVersion": object.resource_version,
            "annotations": { surge::SURGE_ANNOTATION: record.map(surge::render) },
        },
    })
}
