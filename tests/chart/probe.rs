//! `helm test`: its Pod, and all that it needs, which are there only meanwhile.

use serde_json::{Value, json};

use crate::chart::{Objects, name};
use crate::cleanup::assert_stands_alone;
use crate::matrix;

const KINDS: [&str; 6] = ["ClusterRole", "ClusterRoleBinding", "Pod", "Role", "RoleBinding", "ServiceAccount"];

/// What is made for `helm test`, sorted.
fn made(values: &Value) -> Vec<String> {
    let objects = Objects::render(values);
    let of_test = objects.hooks().into_iter().filter(|(hook, _)| *hook == "test");
    of_test.map(|(_, name)| name).collect()
}

#[test]
fn a_release_that_holds_evictions_can_be_tested() {
    let expected = KINDS.map(|kind| format!("{kind}/belay-probe"));
    for (name, values) in matrix::combinations() {
        let holds = name.contains("evictionHold") || name.contains("busyHints");
        assert_eq!(made(&values), if holds { &expected[..] } else { &[] }, "{name}");
    }
    assert_eq!(made(&json!({ "probe": { "enabled": false } })), expected, "by hand, whether or not by itself");
    assert_eq!(made(&json!({ "probe": { "helmTest": false } })), Vec::<String>::new());
}

#[test]
fn it_runs_the_program_itself_as_the_controller_is_run() {
    let mut values = matrix::everything();
    values["fullnameOverride"] = json!("rope");
    let objects = Objects::render(&values);
    let pod = objects.get("Pod", "rope-probe");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["probe", "--attempts=10"]));
    let expected = json!([
        { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
        { "name": "BELAY_VALIDATING_CONFIGURATION", "value": "rope" },
        { "name": "BELAY_LOG", "value": "info,belay::webhook=debug" },
        { "name": "BELAY_LOG_FORMAT", "value": "text" },
        { "name": "TZ", "value": "UTC" },
    ]);
    assert_eq!(container["env"], expected);
    // By hand, it runs in a controller's pod: `kubectl exec deploy/rope-controller -- /usr/local/bin/belay probe`.
    let controller = &objects.get("Deployment", "rope-controller")["spec"]["template"]["spec"]["containers"][0];
    for variable in &expected.as_array().expect("it is a list")[..2] {
        let its = controller["env"].as_array().expect("it has variables");
        assert!(its.contains(variable), "{variable} is not in {its:?}");
    }
    objects.get("ValidatingWebhookConfiguration", "rope");
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    assert_eq!(pod["spec"]["serviceAccountName"], "rope-probe");
    assert_eq!(pod["metadata"]["labels"]["example.com/tier"], "system");
    assert_eq!(pod["metadata"]["annotations"]["example.com/note"], "yes");
    let controller = &objects.get("Deployment", "rope-controller")["spec"]["template"]["spec"];
    for key in ["priorityClassName", "nodeSelector", "tolerations", "securityContext", "imagePullSecrets"] {
        assert_eq!(pod["spec"][key], controller[key], "{key}");
    }
    for key in ["image", "imagePullPolicy", "resources", "securityContext"] {
        assert_eq!(container[key], controller["containers"][0][key], "{key}");
    }
    assert_eq!(pod["spec"]["affinity"]["nodeAffinity"], controller["affinity"]["nodeAffinity"]);
    assert!(pod["spec"]["affinity"].get("podAntiAffinity").is_none(), "the controllers' nodes may be all there are");
}

#[test]
fn no_other_component_takes_its_pod_for_one_of_its_own() {
    let objects = Objects::render(&matrix::everything());
    assert_stands_alone(&objects, "belay-probe", objects.get("Pod", "belay-probe"));
    let without = json!({ "networkPolicy": { "enabled": true }, "probe": { "helmTest": false } });
    let objects = Objects::render(&without);
    let policies = objects.of_kind("NetworkPolicy").map(name);
    assert!(policies.into_iter().all(|policy| !policy.contains("probe")));
}
