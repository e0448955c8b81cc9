//! From HorizontalPodAutoscalers and KEDA's ScaledObjects to what says how many replicas a Deployment has.

#[cfg(test)]
mod tests;

use belay_decide::handover::surge;
use belay_decide::view::{AutoscalerView, Governor};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;

use super::apply::object_ref;
use super::project::{annotation, text};
use super::subset::{AutoscalerSubset, ScaleTarget};

/// KEDA's maximum where a ScaledObject leaves it out (`apis/keda/v1alpha1/scaledobject_types.go`,
/// `defaultHPAMaxReplicas`).
const KEDA_DEFAULT_MAXIMUM: i32 = 100;

/// Annotation by which KEDA holds a ScaledObject at a number, whatever it is set to once the controller took it up
/// (`scaledobject_types.go`, `NeedToBePausedByAnnotation`).
const KEDA_PAUSED_REPLICAS: &str = "autoscaling.keda.sh/paused-replicas";

/// Annotation by which KEDA stops acting for a ScaledObject; anything but a false counts as true (there,
/// `getBoolAnnotation`).
const KEDA_PAUSED: &str = "autoscaling.keda.sh/paused";

/// What Go's `strconv.ParseBool` reads as false.
const FALSE: [&str; 6] = ["0", "f", "F", "false", "False", "FALSE"];

/// An autoscaler of either kind, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autoscaler {
    /// Its kind; never [`Governor::Deployment`].
    pub governor: Governor,
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// What it is to a Deployment; absent where it governs none.
    pub view: Option<AutoscalerView>,
}

impl Autoscaler {
    fn of(governor: Governor, meta: &ObjectMeta, view: Option<AutoscalerView>) -> Self {
        Self { governor, namespace: text(meta.namespace.as_ref()), name: text(meta.name.as_ref()), view }
    }
}

/// Projects a HorizontalPodAutoscaler.
///
/// KEDA makes one of each ScaledObject and sets its bounds anew each time, so that one is not the one to write to. A surge
/// that stands on it is KEDA's copy of the ScaledObject's annotations (`controllers/keda/hpa.go`,
/// `newHPAForScaledObject`), or anybody's: the chart's admission policy keeps no record there.
pub fn horizontal(autoscaler: &AutoscalerSubset) -> Autoscaler {
    let (meta, spec) = (&autoscaler.metadata, &autoscaler.spec);
    let surge = surge::parse(annotation(meta, surge::SURGE_ANNOTATION));
    let target = deployment(&spec.scale_target_ref).or_else(|| nameless(surge.as_ref()));
    let view = target.filter(|_| !is_of_scaled_object(meta)).map(|target| AutoscalerView {
        governor: Governor::HorizontalPodAutoscaler,
        object: object_ref(meta),
        target,
        minimum: spec.min_replicas,
        maximum: spec.max_replicas,
        paused: false,
        surge,
    });
    Autoscaler::of(Governor::HorizontalPodAutoscaler, meta, view)
}

/// Whether KEDA made the autoscaler.
pub fn is_of_scaled_object(meta: &ObjectMeta) -> bool {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    owner.is_some_and(|owner| owner.kind == "ScaledObject" && owner.api_version.starts_with("keda.sh/"))
}

/// What an autoscaler is taken to scale that governs no Deployment any more while a surge stands on it: a Deployment that
/// there cannot be, so that the surge is put back as that of one that is gone.
fn nameless(surge: Option<&surge::SurgeRecord>) -> Option<String> {
    surge.map(|_| String::new())
}

/// Name of the Deployment that is scaled.
fn deployment(target: &ScaleTarget) -> Option<String> {
    let is_deployment = target.kind.as_deref() == Some("Deployment")
        && target.api_version.as_deref().is_some_and(|version| version.starts_with("apps/"));
    (is_deployment && !target.name.is_empty()).then(|| target.name.clone())
}

/// Projects a ScaledObject of `keda.sh/v1alpha1`, whose target is a Deployment where it does not say otherwise
/// (`apis/keda/v1alpha1/gvkr_types.go`, `ParseGVKR`).
pub fn scaled_object(object: &DynamicObject) -> Autoscaler {
    let (meta, spec) = (&object.metadata, &object.data["spec"]);
    let target = &spec["scaleTargetRef"];
    let word = |key: &str, default: &str| {
        let said = target[key].as_str().filter(|said| !said.is_empty());
        Some(said.unwrap_or(default).to_owned())
    };
    let target = ScaleTarget {
        api_version: word("apiVersion", "apps/v1"),
        kind: word("kind", "Deployment"),
        name: target["name"].as_str().unwrap_or_default().to_owned(),
    };
    let number = |key: &str| spec[key].as_i64().and_then(|number| i32::try_from(number).ok());
    let paused = annotation(meta, KEDA_PAUSED_REPLICAS).is_some()
        || annotation(meta, KEDA_PAUSED).is_some_and(|value| !FALSE.contains(&value));
    let surge = surge::parse(annotation(meta, surge::SURGE_ANNOTATION));
    let view = deployment(&target).or_else(|| nameless(surge.as_ref())).map(|target| AutoscalerView {
        governor: Governor::ScaledObject,
        object: object_ref(meta),
        target,
        minimum: number("minReplicaCount"),
        maximum: number("maxReplicaCount").unwrap_or(KEDA_DEFAULT_MAXIMUM),
        paused,
        surge,
    });
    Autoscaler::of(Governor::ScaledObject, meta, view)
}
