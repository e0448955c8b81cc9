//! Which autoscalers govern a Deployment, and by which numbers.

use serde_json::{Value, json};

use super::*;
use crate::testing;

fn horizontal_of(meta: &Value, spec: &Value) -> Autoscaler {
    let mut object = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "h", "resourceVersion": "7"}});
    json_patch::merge(&mut object["metadata"], meta);
    object["spec"] = spec.clone();
    horizontal(&serde_json::from_value(object).unwrap())
}

fn scaled_of(annotations: &Value, spec: &Value) -> Autoscaler {
    let object = json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "spec": spec,
        "metadata": {"namespace": "shop", "name": "web", "uid": "s", "resourceVersion": "7", "annotations": annotations}});
    scaled_object(&serde_json::from_value(object).unwrap())
}

fn target(autoscaler: &Autoscaler) -> Option<&str> {
    autoscaler.view.as_ref().map(|view| view.target.as_str())
}

#[test]
fn an_autoscaler_governs_the_deployment_that_its_target_names() {
    let spec = |version: &str, kind: &str| json!({"scaleTargetRef": {"apiVersion": version, "kind": kind, "name": "web"}, "minReplicas": 2, "maxReplicas": 9});
    let web = horizontal_of(&json!({}), &spec("apps/v1", "Deployment")).view.unwrap();
    assert_eq!((web.governor, web.target.as_str()), (Governor::HorizontalPodAutoscaler, "web"));
    assert_eq!((web.minimum, web.maximum, web.paused, web.surge), (Some(2), 9, false, None));
    assert_eq!((web.object.uid.as_str(), web.object.resource_version.as_str()), ("h", "7"));
    for (version, kind) in
        [("apps/v1", "StatefulSet"), ("v1", "ReplicationController"), ("argoproj.io/v1", "Deployment")]
    {
        let other = horizontal_of(&json!({}), &spec(version, kind));
        assert_eq!((target(&other), &*other.name), (None, "web"), "{version} {kind}");
        let surged = json!({"annotations": { surge::SURGE_ANNOTATION: surge::render(&testing::surge(Some(2))) }});
        let surged = horizontal_of(&surged, &spec(version, kind)).view.unwrap();
        assert_eq!(
            (&*surged.target, surged.surge),
            ("", Some(testing::surge(Some(2)))),
            "what is left on it is still looked after"
        );
    }
}

#[test]
fn what_keda_makes_of_a_scaled_object_is_kedas_whatever_stands_on_it() {
    let spec =
        json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 9});
    let owner = |version: &str, controller: bool| {
        json!({"ownerReferences": [{"apiVersion": version, "kind": "ScaledObject", "name": "web", "uid": "s",
            "controller": controller}]})
    };
    assert_eq!(target(&horizontal_of(&owner("keda.sh/v1alpha1", true), &spec)), None);
    assert_eq!(target(&horizontal_of(&owner("keda.sh/v1alpha1", false), &spec)), Some("web"));
    assert_eq!(target(&horizontal_of(&owner("example.com/v1", true), &spec)), Some("web"));
    let mut surged = owner("keda.sh/v1alpha1", true);
    surged["annotations"] = json!({ surge::SURGE_ANNOTATION: surge::render(&testing::surge(Some(2))) });
    assert_eq!(target(&horizontal_of(&surged, &spec)), None, "it is a copy of the ScaledObject's annotations");
}

#[test]
fn a_scaled_object_is_read_with_kedas_defaults() {
    let bare = scaled_of(&json!({}), &json!({"scaleTargetRef": {"name": "web"}})).view.unwrap();
    assert_eq!((bare.governor, bare.target.as_str()), (Governor::ScaledObject, "web"));
    assert_eq!((bare.minimum, bare.maximum, bare.paused), (None, 100, false));
    let full = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicaCount": 2, "maxReplicaCount": 5});
    let full =
        scaled_of(&json!({ surge::SURGE_ANNOTATION: surge::render(&testing::surge(Some(2))) }), &full).view.unwrap();
    assert_eq!((full.minimum, full.maximum, full.surge), (Some(2), 5, Some(testing::surge(Some(2)))));
    for other in [
        json!({"kind": "StatefulSet", "name": "web"}),
        json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web"}),
        json!({}),
        json!(null),
    ] {
        assert_eq!(target(&scaled_of(&json!({}), &json!({ "scaleTargetRef": other }))), None, "{other}");
    }
}

#[test]
fn a_scaled_object_is_paused_where_keda_says_so() {
    let table = [
        (json!({}), false),
        (json!({KEDA_PAUSED: "true"}), true),
        (json!({KEDA_PAUSED: "false"}), false),
        (json!({KEDA_PAUSED: "0"}), false),
        (json!({KEDA_PAUSED: "please"}), true),
        (json!({KEDA_PAUSED_REPLICAS: "0"}), true),
        (json!({KEDA_PAUSED: "false", KEDA_PAUSED_REPLICAS: "2"}), true),
        (json!({"autoscaling.keda.sh/paused-scale-down": "true"}), false),
    ];
    for (annotations, paused) in table {
        let view = scaled_of(&annotations, &json!({"scaleTargetRef": {"name": "web"}})).view.unwrap();
        assert_eq!(view.paused, paused, "{annotations}");
    }
}
