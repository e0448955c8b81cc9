//! KEDA's operator, played: for each ScaledObject it makes the HorizontalPodAutoscaler that really governs the replicas,
//! and keeps that one's bounds true to the ScaledObject's.
//!
//! The definition is KEDA's own (see [`programs::scaled_objects`]), so what Belay reads and writes has the shape that
//! it has in production; the HorizontalPodAutoscaler is acted upon by the real controller.

use std::collections::BTreeMap;

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::programs;
use crate::watching::{Change, changes};
use crate::world::{Cluster, Namespace};

/// The most replicas where a ScaledObject does not say (KEDA, `apis/keda/v1alpha1/scaledobject_types.go`).
const DEFAULT_MAXIMUM: i64 = 100;

/// The fewest that the autoscaler keeps where a ScaledObject does not say, or says zero: going to zero and back is the
/// operator's own part (KEDA, `apis/keda/v1alpha1/scaledobject_types.go`, `GetHPAMinReplicas`).
const DEFAULT_MINIMUM: i64 = 1;

/// KEDA's resource.
pub fn scaled_objects() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject"), "scaledobjects")
}

/// Installs KEDA's definition, where it is missing.
///
/// # Errors
/// When it cannot be had, or the API server refuses it.
pub async fn define(cluster: &Cluster) -> anyhow::Result<()> {
    let definition = tokio::task::spawn_blocking(programs::scaled_objects).await;
    cluster.crds(&definition.context("the download was interrupted")??).await
}

/// The operator at work in one namespace; it ends when dropped, and leaves what it made.
pub struct Keda<'a> {
    ns: &'a Namespace,
    _operator: AbortOnDropHandle<()>,
}

impl<'a> Keda<'a> {
    /// Installs KEDA's definition where it is missing, and starts the operator.
    ///
    /// # Errors
    /// As [`define`].
    pub async fn play(ns: &'a Namespace) -> anyhow::Result<Self> {
        define(ns.cluster()).await?;
        let (objects, autoscalers) = (ns.custom(&scaled_objects()), ns.api());
        let operator = ns.cluster().runtime().spawn(operate(objects, autoscalers));
        Ok(Self { ns, _operator: AbortOnDropHandle::new(operator) })
    }

    /// A ScaledObject of the Deployment of the same name.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn scaled_object(&self, deployment: &str, minimum: i32, maximum: i32) -> anyhow::Result<()> {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": { "name": deployment },
            "spec": {
                "scaleTargetRef": { "name": deployment },
                "minReplicaCount": minimum,
                "maxReplicaCount": maximum,
                "triggers": [{ "type": "cpu", "metricType": "Utilization", "metadata": { "value": "60" } }],
            },
        }))?;
        self.ns.custom(&scaled_objects()).create(&PostParams::default(), &object).await?;
        Ok(())
    }
}

async fn operate(objects: Api<DynamicObject>, autoscalers: Api<HorizontalPodAutoscaler>) {
    let mut seen = BTreeMap::new();
    let mut changes = std::pin::pin!(changes(objects, watcher::Config::default()));
    while let Some(change) = changes.next().await {
        let Change::Applied(object) = change else { continue };
        let wanted = autoscaler_of(&object);
        if seen.get(&object.name_any()) == Some(&wanted) {
            continue;
        }
        let params = PatchParams::apply("keda-operator").force();
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
        match autoscalers.patch(name, &params, &Patch::Apply(&wanted)).await {
            Ok(_) => drop(seen.insert(object.name_any(), wanted)),
            Err(error) => tracing::warn!(%error, name, "the played operator cannot write an autoscaler"),
        }
    }
}

/// What KEDA makes of a ScaledObject (KEDA, `controllers/keda/hpa.go`, `newHPAForScaledObject`), of what tests use.
fn autoscaler_of(object: &DynamicObject) -> Value {
    let name = object.name_any();
    let spec = &object.data["spec"];
    let minimum = spec["minReplicaCount"].as_i64().filter(|count| *count > 0).unwrap_or(DEFAULT_MINIMUM);
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": format!("keda-hpa-{name}"),
            "labels": { "app.kubernetes.io/managed-by": "keda-operator", "scaledobject.keda.sh/name": name },
            "annotations": object.annotations(),
            "ownerReferences": [{
                "apiVersion": "keda.sh/v1alpha1",
                "kind": "ScaledObject",
                "name": name,
                "uid": object.uid(),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": spec["scaleTargetRef"]["name"] },
            "minReplicas": minimum,
            "maxReplicas": spec["maxReplicaCount"].as_i64().unwrap_or(DEFAULT_MAXIMUM),
            "metrics": [{ "type": "Resource", "resource": {
                "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 60 },
            } }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_autoscaler_has_the_bounds_of_its_scaled_object() {
        for (spec, minimum, maximum) in [
            (json!({}), 1, 100),
            (json!({ "minReplicaCount": 0 }), 1, 100),
            (json!({ "minReplicaCount": 3, "maxReplicaCount": 4 }), 3, 4),
        ] {
            let mut object = DynamicObject::new("web", &scaled_objects());
            object.data = json!({ "spec": spec });
            let made = autoscaler_of(&object);
            assert_eq!(
                (&made["spec"]["minReplicas"], &made["spec"]["maxReplicas"]),
                (&json!(minimum), &json!(maximum))
            );
            assert_eq!(made["metadata"]["name"], "keda-hpa-web");
        }
    }
}
