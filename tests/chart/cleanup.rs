//! The cleanup Job: when it runs, with what, and that nothing of it stays.

use serde_json::{Value, json};

use crate::chart::{NAMESPACE, Objects, name};
use crate::matrix;

/// The Job and what it needs.
const OBJECTS: [&str; 6] = [
    "ClusterRole/belay-cleanup",
    "ClusterRoleBinding/belay-cleanup",
    "Job/belay-cleanup",
    "Role/belay-cleanup",
    "RoleBinding/belay-cleanup",
    "ServiceAccount/belay-cleanup",
];

fn with_cleanup(mut values: Value, cleanup: Value) -> Value {
    values["cleanup"] = cleanup;
    values
}

#[test]
fn it_runs_before_an_uninstallation_with_hints_and_after_an_upgrade_without() {
    let cases = [
        (json!({}), Some("post-upgrade")),
        (json!({ "evictionHold": { "enabled": false } }), Some("post-upgrade")),
        (matrix::busy_alone(), Some("pre-delete")),
        (with_cleanup(matrix::busy_alone(), json!({ "onUpgrade": false })), Some("pre-delete")),
        (with_cleanup(matrix::busy_alone(), json!({ "enabled": false })), None),
        (with_cleanup(json!({}), json!({ "onUpgrade": false })), None),
        (with_cleanup(json!({}), json!({ "enabled": false })), None),
    ];
    for (values, hook) in cases {
        let expected: Vec<(&str, String)> =
            hook.into_iter().flat_map(|hook| OBJECTS.map(|object| (hook, object.to_owned()))).collect();
        assert_eq!(Objects::render(&values).hooks(), expected, "{values}");
    }
}

#[test]
fn all_it_needs_is_made_before_it_and_goes_with_it() {
    let weight = |object: &Value| -> i64 {
        let weight = object["metadata"]["annotations"]["helm.sh/hook-weight"].as_str().expect("a weight is text");
        weight.parse().expect("a weight is a number")
    };
    for case in matrix::cases() {
        let objects = Objects::render(&case.values);
        let hooks: Vec<String> = objects.hooks().into_iter().map(|(_, name)| name).collect();
        for object in objects.iter().filter(|object| hooks.contains(&name(object))) {
            let annotations = &object["metadata"]["annotations"];
            assert_eq!(annotations["helm.sh/hook-delete-policy"], "before-hook-creation,hook-succeeded");
            let (account, rights, job) = (-10, -5, 0);
            let expected = match object["kind"].as_str() {
                Some("ServiceAccount") => account,
                Some("Job") => job,
                _ => rights,
            };
            assert_eq!(weight(object), expected, "{}: {}", case.name, name(object));
        }
    }
}

#[test]
fn its_task_follows_from_when_it_runs() {
    for (values, args) in
        [(json!({}), json!(["cleanup"])), (matrix::busy_alone(), json!(["cleanup", "--stop-controller"]))]
    {
        let objects = Objects::render(&values);
        let spec = &objects.get("Job", "belay-cleanup")["spec"];
        assert_eq!(spec["activeDeadlineSeconds"], 300);
        assert_eq!(spec["backoffLimit"], 3);
        let pod = &spec["template"]["spec"];
        assert_eq!(pod["restartPolicy"], "Never");
        assert_eq!(pod["serviceAccountName"], "belay-cleanup");
        let container = &pod["containers"][0];
        assert_eq!(container["args"], args);
        let expected = json!([
            { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
            { "name": "BELAY_CONTROLLER", "value": "belay-controller" },
            { "name": "BELAY_MUTATING_CONFIGURATION", "value": "belay" },
            { "name": "BELAY_LOG", "value": "info" },
            { "name": "BELAY_LOG_FORMAT", "value": "json" },
        ]);
        assert_eq!(container["env"], expected);
    }
}

#[test]
fn the_names_it_is_given_are_those_of_the_release() {
    let mut values = matrix::busy_alone();
    values["fullnameOverride"] = json!("rope");
    let objects = Objects::render(&values);
    let container = &objects.get("Job", "rope-cleanup")["spec"]["template"]["spec"]["containers"][0];
    let given = |name: &str| {
        let variables = container["env"].as_array().expect("variables");
        let entry = variables.iter().find(|entry| entry["name"] == name).expect("it is given");
        entry["value"].as_str().expect("a value").to_owned()
    };
    objects.get("Deployment", &given("BELAY_CONTROLLER"));
    objects.get("MutatingWebhookConfiguration", &given("BELAY_MUTATING_CONFIGURATION"));
}

#[test]
fn its_pod_is_made_and_placed_like_the_controllers() {
    for case in matrix::cases() {
        let objects = Objects::render(&case.values);
        let Some(job) = objects.of_kind("Job").next().filter(|_| objects.of_kind("Deployment").count() > 0) else {
            continue;
        };
        let job = &job["spec"]["template"];
        let controller = &objects.get("Deployment", "belay-controller")["spec"]["template"];
        for key in ["priorityClassName", "nodeSelector", "tolerations", "securityContext", "imagePullSecrets"] {
            assert_eq!(job["spec"][key], controller["spec"][key], "{}: {key}", case.name);
        }
        for key in ["image", "imagePullPolicy", "resources", "securityContext"] {
            let (own, theirs) = (&job["spec"]["containers"][0], &controller["spec"]["containers"][0]);
            assert_eq!(own[key], theirs[key], "{}: {key}", case.name);
        }
        let nodes = &controller["spec"]["affinity"]["nodeAffinity"];
        assert_eq!(job["spec"]["affinity"]["nodeAffinity"], *nodes, "{}", case.name);
        // Nothing keeps it off the controllers' own nodes, which may be all there are.
        assert!(job["spec"]["affinity"].get("podAntiAffinity").is_none(), "{}", case.name);
        assert!(job["spec"].get("topologySpreadConstraints").is_none(), "{}", case.name);
    }
    let everything = Objects::render(&matrix::everything());
    let job = &everything.get("Job", "belay-cleanup")["spec"]["template"];
    assert_eq!(job["metadata"]["annotations"], json!({ "example.com/note": "yes" }));
    assert_eq!(job["metadata"]["labels"]["example.com/tier"], "system");
    let variables = job["spec"]["containers"][0]["env"].as_array().expect("variables");
    assert!(variables.contains(&json!({ "name": "TZ", "value": "UTC" })), "{variables:?}");
}

#[test]
fn no_other_component_takes_its_pod_for_one_of_its_own() {
    let objects = Objects::render(&matrix::everything());
    let labels = &objects.get("Job", "belay-cleanup")["spec"]["template"]["metadata"]["labels"];
    let finds = |selector: &Value| {
        let wanted = selector.as_object().expect("a selector");
        wanted.iter().all(|(key, value)| labels[key] == *value)
    };
    for object in objects.iter() {
        let selector = match object["kind"].as_str() {
            Some("Deployment" | "PodDisruptionBudget") => &object["spec"]["selector"]["matchLabels"],
            Some("Service") => &object["spec"]["selector"],
            _ => continue,
        };
        assert!(!finds(selector), "{}", name(object));
    }
    let policies = objects.of_kind("NetworkPolicy");
    let policies = policies.filter(|policy| finds(&policy["spec"]["podSelector"]["matchLabels"]));
    let policies: Vec<&Value> = policies.collect();
    assert_eq!(policies.len(), 1);
    assert_eq!(
        policies[0]["metadata"],
        json!({
            "name": "belay-cleanup",
            "namespace": NAMESPACE,
            "labels": policies[0]["metadata"]["labels"],
        })
    );
    assert_eq!(policies[0]["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    assert!(policies[0]["spec"].get("ingress").is_none());
    assert_eq!(policies[0]["spec"]["egress"], objects.get("NetworkPolicy", "belay-controller")["spec"]["egress"]);
}
