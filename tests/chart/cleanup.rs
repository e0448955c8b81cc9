//! The cleanup Jobs: when each runs, with what, and that nothing of them stays.

use serde_json::{Value, json};

use crate::chart::{NAMESPACE, Objects, name};
use crate::matrix;

/// The kinds of a Job and of what it needs, which are all of its name.
const KINDS: [&str; 6] = ["ClusterRole", "ClusterRoleBinding", "Job", "Role", "RoleBinding", "ServiceAccount"];

/// When a Job runs, its name without the release's, and its arguments.
type Job = (&'static str, &'static str, &'static [&'static str]);

const UNINSTALL: Job = ("pre-delete", "cleanup", &["cleanup", "--stop-controller"]);
const UPGRADE: &str = "post-upgrade,post-rollback";

/// The Jobs of a combination of capabilities.
fn jobs(values: &Value) -> Vec<Job> {
    let on = |capability: &str| values[capability]["enabled"] != false;
    match (on("evictionHold"), on("busyHints"), on("deletionCost")) {
        // The controller itself takes off what nothing governs any more.
        (true, true, _) => vec![UNINSTALL],
        (true, false, true) => {
            vec![(UPGRADE, "leftovers", &["cleanup", "--keep-deletion-costs", "--keep-handovers"]), UNINSTALL]
        }
        (true, false, false) => vec![(UPGRADE, "leftovers", &["cleanup", "--keep-handovers"]), UNINSTALL],
        (false, true, true) => {
            vec![(UPGRADE, "leftovers", &["cleanup", "--keep-busy-hints", "--keep-deletion-costs"]), UNINSTALL]
        }
        (false, true, false) => vec![(UPGRADE, "leftovers", &["cleanup", "--keep-busy-hints"]), UNINSTALL],
        (false, false, true) => vec![(UPGRADE, "leftovers", &["cleanup", "--keep-deletion-costs"]), UNINSTALL],
        (false, false, false) => vec![(UPGRADE, "cleanup", &["cleanup"])],
    }
}

/// Just these Jobs are rendered, sorted by when they run, each with what it needs.
fn assert_jobs(values: &Value, jobs: &[Job]) {
    let objects = Objects::render(values);
    let names = jobs.iter().flat_map(|(hook, name, _)| KINDS.map(|kind| (*hook, format!("{kind}/belay-{name}"))));
    let mut hooks = objects.hooks();
    hooks.retain(|(hook, _)| *hook != "test");
    assert_eq!(hooks, names.collect::<Vec<_>>(), "{values}");
    for (_, name, args) in jobs {
        let job = objects.get("Job", &format!("belay-{name}"));
        assert_eq!(job["spec"]["template"]["spec"]["containers"][0]["args"], json!(args), "{values}");
    }
}

fn with_cleanup(mut values: Value, cleanup: Value) -> Value {
    values["cleanup"] = cleanup;
    values
}

#[test]
fn what_was_written_is_taken_off_before_an_uninstallation_and_what_was_switched_off_after_an_upgrade() {
    for (_, values) in matrix::combinations() {
        let jobs = jobs(&values);
        assert_jobs(&values, &jobs);
        let at_uninstallation: Vec<Job> = jobs.iter().copied().filter(|(hook, ..)| *hook == "pre-delete").collect();
        assert_jobs(&with_cleanup(values.clone(), json!({ "onUpgrade": false })), &at_uninstallation);
        assert_jobs(&with_cleanup(values, json!({ "enabled": false })), &[]);
    }
    assert_jobs(&json!({}), &[(UPGRADE, "leftovers", &["cleanup", "--keep-handovers"]), UNINSTALL]);
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
                Some("Job" | "Pod") => job,
                _ => rights,
            };
            assert_eq!(weight(object), expected, "{}: {}", case.name, name(object));
        }
    }
}

#[test]
fn each_job_runs_once_under_an_account_of_its_own() {
    for (name, values) in matrix::combinations() {
        let objects = Objects::render(&values);
        for job in objects.of_kind("Job") {
            let spec = &job["spec"];
            assert_eq!(spec["activeDeadlineSeconds"], 300, "{name}");
            assert_eq!(spec["backoffLimit"], 3, "{name}");
            let pod = &spec["template"]["spec"];
            assert_eq!(pod["restartPolicy"], "Never", "{name}");
            assert_eq!(pod["serviceAccountName"], job["metadata"]["name"], "{name}");
            let expected = json!([
                { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
                { "name": "BELAY_CONTROLLER", "value": "belay-controller" },
                { "name": "BELAY_MUTATING_CONFIGURATION", "value": "belay" },
                { "name": "BELAY_LOG", "value": "info" },
                { "name": "BELAY_LOG_FORMAT", "value": "json" },
            ]);
            assert_eq!(pod["containers"][0]["env"], expected, "{name}");
        }
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
        if objects.of_kind("Deployment").count() == 0 {
            continue;
        }
        let controller = &objects.get("Deployment", "belay-controller")["spec"]["template"];
        for job in objects.of_kind("Job").map(|job| &job["spec"]["template"]) {
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
    let mut two_jobs = matrix::cost_alone();
    two_jobs["networkPolicy"] = json!({ "enabled": true });
    for (values, jobs) in [(matrix::everything(), &["cleanup"][..]), (two_jobs, &["cleanup", "leftovers"])] {
        let objects = Objects::render(&values);
        for job in jobs {
            let name = format!("belay-{job}");
            assert_stands_alone(&objects, &name, &objects.get("Job", &name)["spec"]["template"]);
        }
    }
}

/// No selector but that of a NetworkPolicy of its own finds the pod of a hook, which is made from this template.
pub(crate) fn assert_stands_alone(objects: &Objects, job: &str, template: &Value) {
    let labels = &template["metadata"]["labels"];
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
        assert!(!finds(selector), "{job}: {}", name(object));
    }
    let policies = objects.of_kind("NetworkPolicy");
    let policies = policies.filter(|policy| finds(&policy["spec"]["podSelector"]["matchLabels"]));
    let policies: Vec<&Value> = policies.collect();
    assert_eq!(policies.len(), 1, "{job}");
    let labels = &policies[0]["metadata"]["labels"];
    // No hook, so it stays and is there before the Job.
    assert_eq!(policies[0]["metadata"], json!({ "name": job, "namespace": NAMESPACE, "labels": labels }));
    assert_eq!(policies[0]["spec"]["policyTypes"], json!(["Ingress", "Egress"]), "{job}");
    assert!(policies[0]["spec"].get("ingress").is_none(), "{job}");
    let controller = objects.get("NetworkPolicy", "belay-controller");
    assert_eq!(policies[0]["spec"]["egress"], controller["spec"]["egress"], "{job}");
}
