//! The deletion costs: what becomes of their values in the configuration and among the webhook entries.

use serde_json::{Value, json};

use crate::chart::{self, NAMESPACE, Objects};
use crate::matrix;

const ENTRY: &str = "binding.cost.belay.dev";

/// The entry that is asked about bindings, where there is one.
fn entry(objects: &Objects) -> Option<Value> {
    objects.webhooks().into_iter().find(|entry| entry["name"] == ENTRY).cloned()
}

#[test]
fn their_values_stand_in_the_configuration_while_they_are_on() {
    let config = Objects::render(&matrix::cost_alone()).config();
    let defaults = json!({
        "enabled": true,
        "maxNodes": 50,
        "nodePools": [],
        "spreadZones": false,
        "settlePeriod": "5m",
        "standDownPeriod": "10m",
        "writesPerSecond": 10,
    });
    assert_eq!(config["deletionCost"], defaults);
    let everything = matrix::everything();
    assert_eq!(Objects::render(&everything).config()["deletionCost"], everything["deletionCost"]);
}

#[test]
fn while_they_are_off_nothing_of_them_is_rendered() {
    let mut off = matrix::everything()["deletionCost"].clone();
    off["enabled"] = json!(false);
    let values = json!({ "deletionCost": off, "admission": { "binding": { "timeoutSeconds": 5 } } });
    let render = |values: &Value| chart::template(values, &[]).expect("the values are right");
    assert_eq!(render(&values), render(&json!({})));
}

#[test]
fn bindings_are_asked_about_while_they_are_on_and_only_then() {
    let service = json!({ "name": "belay-webhook", "namespace": NAMESPACE, "path": "/mutate/bindings", "port": 443 });
    let expected = json!({
        "name": ENTRY,
        "admissionReviewVersions": ["v1"],
        "clientConfig": { "service": service },
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"], "operations": ["CREATE"],
            "scope": "Namespaced",
        }],
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "reinvocationPolicy": "Never",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 2,
        "namespaceSelector": { "matchExpressions": [
            { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [NAMESPACE, "kube-system"] },
        ] },
    });
    for (name, values) in matrix::combinations() {
        let objects = Objects::render(&values);
        let found = entry(&objects);
        assert_eq!(found, name.contains("deletionCost").then(|| expected.clone()), "{name}");
        // Only the eviction hold and the busy hints have a use for evictions, and only they bring holds to read.
        let holds = name.contains("evictionHold") || name.contains("busyHints");
        let evictions = objects.of_kind("ValidatingWebhookConfiguration").count();
        assert_eq!(evictions, usize::from(holds), "{name}");
        let readers = objects.of_kind("ClusterRole").filter(|role| role["metadata"]["name"] == "belay-view").count();
        assert_eq!(readers, usize::from(holds), "{name}");
    }
}

#[test]
fn the_entry_follows_the_settings_of_bindings_and_the_common_selector() {
    let found = entry(&Objects::render(&matrix::everything())).expect("it is on");
    assert_eq!(found["failurePolicy"], "Fail");
    assert_eq!(found["timeoutSeconds"], 4);
    assert_eq!(found["namespaceSelector"]["matchLabels"], json!({ "example.com/belay": "on" }));
}

#[test]
fn both_components_are_told_which_pod_they_are() {
    let objects = Objects::render(&json!({}));
    for deployment in ["belay-webhook", "belay-controller"] {
        let container = &objects.get("Deployment", deployment)["spec"]["template"]["spec"]["containers"][0];
        for (name, field) in
            [("POD_NAME", "metadata.name"), ("POD_UID", "metadata.uid"), ("POD_NAMESPACE", "metadata.namespace")]
        {
            let expected = json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": field } } });
            let variables = container["env"].as_array().expect("variables");
            assert!(variables.contains(&expected), "{deployment}: {variables:?}");
        }
    }
}

#[test]
fn the_example_of_the_readme_is_accepted() {
    let readme = chart::read("README.md");
    let (_, section) = readme.split_once("## Deletion cost\n").expect("the README has the section");
    let (_, rest) = section.split_once("```yaml\n").expect("the section has an example");
    let (example, _) = rest.split_once("```").expect("the example ends");
    let objects = Objects::render(&chart::parse(example)[0]);
    assert_eq!(objects.config()["deletionCost"]["nodePools"], json!(["general"]));
}
