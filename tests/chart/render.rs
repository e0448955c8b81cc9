//! That renders are repeatable and clean, and that each value does what it says.

use std::path::Path;

use serde_json::{Value, json};

use crate::chart::{self, NAMESPACE, Objects};
use crate::documentation;
use crate::matrix;

/// What is installed even where no capability is enabled.
const BASE: &[&str] =
    &["CustomResourceDefinition/evictionholds.belay.dev", "CustomResourceDefinition/handoverpolicies.belay.dev"];

/// What the eviction hold adds; the busy hints need nearly the same.
const EVICTION_HOLD: &[&str] = &[
    "ClusterRole/belay-controller",
    "ClusterRole/belay-edit",
    "ClusterRole/belay-view",
    "ClusterRole/belay-webhook",
    "ClusterRoleBinding/belay-controller",
    "ClusterRoleBinding/belay-webhook",
    "ConfigMap/belay-config",
    "Deployment/belay-controller",
    "Deployment/belay-webhook",
    "MutatingWebhookConfiguration/belay",
    "PodDisruptionBudget/belay-controller",
    "PodDisruptionBudget/belay-webhook",
    "Role/belay-controller",
    "Role/belay-webhook",
    "RoleBinding/belay-controller",
    "RoleBinding/belay-webhook",
    "Service/belay-webhook",
    "ServiceAccount/belay-controller",
    "ServiceAccount/belay-webhook",
    "ValidatingWebhookConfiguration/belay",
];

fn rendered(values: &Value) -> String {
    chart::template(values, &[]).unwrap_or_else(|error| panic!("{values}: {error}"))
}

#[test]
fn lint_is_clean() {
    for case in matrix::cases() {
        let folder = chart::folder();
        let chart = folder.to_str().expect("the path is UTF-8");
        let output = chart::helm(&["lint", "--strict", chart, "--namespace", NAMESPACE, "-f", "-"], &case.values);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", case.name);
        assert!(!text.contains("[WARNING]") && !text.contains("[ERROR]"), "{}: {text}", case.name);
    }
}

#[test]
fn the_default_render_is_the_golden_one() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("chart/golden/default.yaml");
    // Without the CRDs, which are golden files themselves.
    chart::assert_generated(&golden, &rendered(&json!({ "crds": { "enabled": false } })));
}

#[test]
fn two_renders_are_equal_byte_for_byte() {
    for case in matrix::cases() {
        assert_eq!(rendered(&case.values), rendered(&case.values), "{}", case.name);
    }
}

#[test]
fn no_template_asks_the_cluster_the_clock_or_chance() {
    const FORBIDDEN: &[&str] =
        &["lookup", "now", "uuidv4", "genCA", "genCAWithKey", "genSelfSignedCert", "genSignedCert"];
    const FORBIDDEN_TOO: &[&str] = &["genPrivateKey", "htpasswd", "bcrypt", "getHostByName", "Capabilities"];
    let mut folders = vec![chart::folder().join("templates")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            read += 1;
            let text = std::fs::read_to_string(&path).expect("a template is text");
            for action in text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
                if action.trim_start_matches('-').trim_start().starts_with("/*") {
                    continue;
                }
                for word in action.split(|character: char| !character.is_alphanumeric()) {
                    let forbidden =
                        FORBIDDEN.contains(&word) || FORBIDDEN_TOO.contains(&word) || word.starts_with("rand");
                    assert!(!forbidden, "{} uses {word}: {action}", path.display());
                }
            }
        }
    }
    assert!(read > 15, "only {read} templates were found");
}

#[test]
fn the_defaults_make_just_these_objects() {
    let mut expected: Vec<&str> = BASE.iter().chain(EVICTION_HOLD).copied().collect();
    expected.sort_unstable();
    assert_eq!(Objects::render(&json!({})).names(), expected);
}

#[test]
fn a_capability_that_is_off_leaves_no_object_behind() {
    assert_eq!(Objects::render(&json!({ "evictionHold": { "enabled": false } })).names(), BASE);
    let mut everything = matrix::everything();
    everything["evictionHold"]["enabled"] = json!(false);
    everything["busyHints"]["enabled"] = json!(false);
    everything["deletionCost"]["enabled"] = json!(false);
    everything["cleanup"]["enabled"] = json!(false);
    assert_eq!(Objects::render(&everything).names(), BASE);
    assert_eq!(Objects::render(&everything).hooks(), []);
}

#[test]
fn each_capability_alone_makes_what_it_needs() {
    let mut expected: Vec<&str> = BASE.iter().chain(EVICTION_HOLD).copied().collect();
    expected.retain(|name| *name != "ClusterRole/belay-edit");
    expected.sort_unstable();
    assert_eq!(Objects::render(&matrix::busy_alone()).names(), expected, "there are no policies to edit");
    expected.retain(|name| *name != "ClusterRole/belay-view" && *name != "ValidatingWebhookConfiguration/belay");
    assert_eq!(Objects::render(&matrix::cost_alone()).names(), expected, "no eviction is held, so none is asked about");
}

#[test]
fn options_add_their_objects() {
    let values = matrix::everything();
    let options = ["NetworkPolicy/belay-webhook", "NetworkPolicy/belay-controller", "PrometheusRule/belay"];
    for (values, monitor) in [
        (matrix::with_service_monitor(&values), &["ServiceMonitor/belay", "Service/belay-metrics"][..]),
        (values, &["PodMonitor/belay"]),
    ] {
        let names = Objects::render(&values).names();
        let policies = ["ValidatingAdmissionPolicy/belay-records", "ValidatingAdmissionPolicyBinding/belay-limits"];
        for name in options.iter().chain(monitor).chain(&policies).chain(&["ConfigMap/belay-dashboard"]) {
            assert!(names.iter().any(|rendered| rendered == name), "{name} is not among {names:?}");
        }
    }
}

#[test]
fn objects_without_a_namespace_are_cluster_scoped_ones() {
    const CLUSTER_SCOPED: &[&str] = &[
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    ];
    for case in matrix::cases() {
        for object in Objects::render(&case.values).iter() {
            let kind = object["kind"].as_str().expect("a kind");
            let expected = if CLUSTER_SCOPED.contains(&kind) { Value::Null } else { json!(NAMESPACE) };
            assert_eq!(object["metadata"]["namespace"], expected, "{}: {}", case.name, chart::name(object));
        }
    }
}

#[test]
fn the_configuration_file_has_exactly_the_keys_that_the_program_reads() {
    let expected = json!({
        "evictionHold": {
            "enabled": true,
            "historyTTL": "1h",
            "excludedNamespaces": [],
            "ignoreEvictors": [],
            "ignoreRestarters": true,
            "doom": { "signalStability": "30s", "softSignals": false, "taints": [], "conditions": [] },
            "scale": { "abandonAfter": "6m" },
            "defaultPolicy": {
                "enabled": false,
                "namespaces": [],
                "handover": "Restart",
                "trigger": "OnEviction",
                "surgeReplicas": 1,
                "readinessDeadlineSeconds": 600,
                "onFailure": "Release",
            },
        },
        "probe": { "enabled": true, "interval": "1m" },
        "certs": { "mode": "auto", "secretName": "belay-ca", "dnsNames": ["belay-webhook.belay-system.svc"] },
        "webhookConfigurations": { "validating": "belay", "mutating": "belay" },
        "leaderElection": {
            "leaseName": "belay-controller",
            "leaseDuration": "15s",
            "renewDeadline": "10s",
            "retryPeriod": "2s",
        },
        "writesPerSecond": 20,
    });
    assert_eq!(Objects::render(&json!({})).config(), expected);

    let everything = Objects::render(&matrix::everything()).config();
    assert_eq!(everything["evictionHold"]["ignoreEvictors"], json!(["system:serviceaccount:argo-rollouts:*", "yes"]));
    assert_eq!(everything["evictionHold"]["excludedNamespaces"], json!(["istio-system", "123"]));
    assert_eq!(everything["evictionHold"]["defaultPolicy"]["namespaces"], json!(["shop", "*"]));
    let taints = json!([{ "key": "example.com/going" }, { "key": "7", "notice": "45s" }]);
    assert_eq!(everything["evictionHold"]["doom"]["taints"], taints);
    assert_eq!(everything["evictionHold"]["doom"]["conditions"], json!(["KernelDeadlock", "true"]));
}

#[test]
fn a_changed_configuration_rolls_the_pods_and_nothing_else_does() {
    let checksums = |values: &Value| -> Vec<Value> {
        let objects = Objects::render(values);
        let deployments = objects.of_kind("Deployment");
        deployments
            .map(|object| object["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone())
            .collect()
    };
    let before = checksums(&json!({}));
    assert!(before[0].is_string() && before[0] == before[1]);
    let after = checksums(&json!({ "evictionHold": { "historyTTL": "2h" } }));
    assert!(after[0] != before[0] && after[0] == after[1]);
    assert_eq!(checksums(&json!({ "webhook": { "replicas": 5 }, "crds": { "enabled": false } })), before);
}

#[test]
fn the_image_is_named_by_digest_before_tag_before_version() {
    let image = |image: Value| -> String {
        let objects = Objects::render(&json!({ "image": image }));
        let deployment = objects.get("Deployment", "belay-webhook");
        deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str().expect("an image").to_owned()
    };
    let version = env!("CARGO_PKG_VERSION");
    let digest = format!("sha256:{}", "ab".repeat(32));
    let cases = [
        (json!({}), format!("belay-dev/belay:{version}")),
        (json!({ "registry": "registry.example.com" }), format!("registry.example.com/belay-dev/belay:{version}")),
        (json!({ "tag": "v2" }), "belay-dev/belay:v2".to_owned()),
        (json!({ "tag": "v2", "digest": digest }), format!("belay-dev/belay@{digest}")),
    ];
    for (values, expected) in cases {
        assert_eq!(image(values), expected);
    }
}

#[test]
fn chart_and_program_have_one_version() {
    let chart = chart::read_yaml("Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(chart["version"], version);
    assert_eq!(chart["appVersion"], version);
    let images = chart["annotations"]["artifacthub.io/images"].as_str().expect("the images are listed");
    assert!(images.contains(&format!("image: belay-dev/belay:{version}\n")), "{images}");
}

#[test]
fn older_servers_are_refused_by_name() {
    let error = chart::template(&json!({}), &["--kube-version", "1.32.9"]).expect_err("1.32 is too old");
    assert!(error.contains("chart requires kubeVersion: >=1.33.0-0"), "{error}");
    for version in ["1.33.0", "1.33.4-gke.1036000", "v1.37.2-eks-99d6cc0"] {
        chart::template(&json!({}), &["--kube-version", version]).expect("1.33 and newer are served");
    }
}

/// The value with every float that is a whole number as an integer.
fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 => json!(float as i64),
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, whole_numbers(value))).collect(),
        other => other,
    }
}

#[test]
fn crds_are_the_files_and_stay_unless_told_otherwise() {
    for (values, kept) in [(json!({}), true), (json!({ "crds": { "keep": false } }), false)] {
        let objects = Objects::render(&values);
        let mut count = 0;
        for entry in std::fs::read_dir(chart::folder().join("files/crds")).expect("the folder can be read") {
            let file = entry.expect("the entry can be read").file_name();
            let crd = chart::read_yaml(&format!("files/crds/{}", file.to_string_lossy()));
            let rendered = objects.get("CustomResourceDefinition", crd["metadata"]["name"].as_str().expect("a name"));
            // Helm writes 1.0 as 1, which is the same number.
            let same = whole_numbers(rendered["spec"].clone()) == whole_numbers(crd["spec"].clone());
            assert!(same, "the template changes {}", file.display());
            let policy = &rendered["metadata"]["annotations"]["helm.sh/resource-policy"];
            assert_eq!(policy == "keep", kept, "{}", file.display());
            count += 1;
        }
        assert_eq!(objects.of_kind("CustomResourceDefinition").count(), count);
    }
    let without = Objects::render(&json!({ "crds": { "enabled": false } }));
    assert_eq!(without.of_kind("CustomResourceDefinition").count(), 0);
}

#[test]
fn replicas_are_kept_apart_as_asked() {
    let affinity = |mode: &str| -> Value {
        let objects = Objects::render(&json!({ "webhook": { "podAntiAffinity": mode } }));
        objects.get("Deployment", "belay-webhook")["spec"]["template"]["spec"]["affinity"].clone()
    };
    let term = json!({
        "topologyKey": "kubernetes.io/hostname",
        "matchLabelKeys": ["pod-template-hash"],
        "labelSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": "belay",
                "app.kubernetes.io/instance": "belay",
                "app.kubernetes.io/component": "webhook",
            },
        },
    });
    assert_eq!(affinity("None"), Value::Null);
    let required = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } });
    assert_eq!(affinity("Required"), required);
    let preferred = json!([{ "weight": 100, "podAffinityTerm": term }]);
    let preferred = json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } });
    assert_eq!(affinity("Preferred"), preferred);
}

#[test]
fn names_that_look_like_numbers_or_booleans_stay_text() {
    let values = json!({ "fullnameOverride": "on", "nameOverride": "1" });
    let folder = chart::folder();
    let chart = folder.to_str().expect("the path is UTF-8");
    let output = chart::helm(&["template", "123", chart, "--namespace", "456", "-f", "-"], &values);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("a manifest is UTF-8");
    for object in chart::parse(&text) {
        // Helm reads YAML 1.1, where a bare `on` is true; a reader of YAML 1.2 would not notice.
        assert!(object["metadata"]["name"].is_string());
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/instance"], "123");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/name"], "1");
        assert!(object["metadata"]["namespace"].is_null() || object["metadata"]["namespace"] == "456");
    }
    let bare = text.lines().find(|line| line.ends_with(": on") || line.contains("[on]") || line.ends_with("- on"));
    assert_eq!(bare, None);
}

/// `values` with what the pointer leads to taken away.
fn without(values: &Value, pointer: &str) -> Value {
    let mut values = values.clone();
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer has a slash");
    let parent = values.pointer_mut(parent).and_then(Value::as_object_mut).expect("the parent is an object");
    parent.remove(key);
    values
}

#[test]
fn every_value_has_an_effect() {
    let everything = matrix::everything();
    let baseline = rendered(&everything);
    for row in documentation::rows() {
        let pointer = format!("/{}", row.path.replace('.', "/"));
        // Where another value hides the effect, that one goes first.
        let before = match row.path.as_str() {
            // The digest wins over it.
            "image.tag" => without(&everything, "/image/digest"),
            // Overrides of a preset that is not there are refused.
            "busyHints.presets" => without(&everything, "/busyHints/presetOverrides"),
            // There is another time for the Job while hints are on.
            "cleanup.onUpgrade" => without(&everything, "/busyHints/enabled"),
            path if path.starts_with("serviceMonitor.") => matrix::with_service_monitor(&everything),
            // An issuer that nobody asks is refused.
            "certs.mode" => without(&everything, "/certs/certManager/issuerRef"),
            "certs.existingSecret.name" => {
                let mut values = everything.clone();
                values["certs"] = matrix::existing_secret()["certs"].clone();
                values
            }
            _ => everything.clone(),
        };
        let mut changed = before.clone();
        if row.path == "evictionHold.defaultPolicy.namespaces" {
            // An enabled default policy that covers nothing is refused.
            changed["evictionHold"]["defaultPolicy"]["namespaces"] = json!(["shop"]);
        } else if row.path == "certs.existingSecret.name" {
            // Without a name it is refused.
            changed["certs"]["existingSecret"]["name"] = json!("other");
        } else if before.pointer(&pointer).is_some() {
            changed = without(&before, &pointer);
        } else {
            let default = row.default.as_bool();
            let default = default.unwrap_or_else(|| panic!("matrix::everything does not change {}", row.path));
            let mut place = &mut changed;
            for key in row.path.split('.') {
                place = &mut place[key];
            }
            *place = json!(!default);
        }
        let against = if before == everything { baseline.clone() } else { rendered(&before) };
        assert_ne!(rendered(&changed), against, "{} changes nothing", row.path);
    }
}

fn notes(values: &Value) -> String {
    let folder = chart::folder();
    let chart = folder.to_str().expect("the path is UTF-8");
    let arguments = ["install", "belay", chart, "--namespace", NAMESPACE, "--dry-run=client", "-f", "-"];
    let output = chart::helm(&arguments, values);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("notes are UTF-8");
    text.split_once("NOTES:\n").expect("there are notes").1.to_owned()
}

#[test]
fn the_notes_say_how_to_opt_in_where_to_look_and_what_failure_means() {
    let default = notes(&json!({}));
    for part in [
        "kind: HandoverPolicy",
        "kubectl get evictionholds --all-namespaces",
        "helm test belay --namespace belay-system",
        "failurePolicy is Ignore",
        "kubectl delete crd",
    ] {
        assert!(default.contains(part), "{part}: {default}");
    }
    let policy = default.split("<<POLICY\n").nth(1).and_then(|rest| rest.split("POLICY\n").next()).expect("a policy");
    assert_eq!(chart::parse(policy)[0]["spec"]["targetRef"]["kind"], "Deployment");

    let strict = notes(&json!({
        "admission": { "eviction": { "failurePolicy": "Fail" } },
        "evictionHold": { "defaultPolicy": { "enabled": true, "namespaces": ["shop"] } },
        "crds": { "keep": false },
    }));
    for part in ["failurePolicy is Fail", "covered too in: shop", "belay.dev/handover=Off"] {
        assert!(strict.contains(part), "{part}: {strict}");
    }
    assert!(!strict.contains("kubectl delete crd"), "{strict}");

    let busy = notes(&matrix::busy_alone());
    for part in ["\n  runner in ci\n  plain\n", "belay.dev/busy=true", "by the Job belay-cleanup"] {
        assert!(busy.contains(part), "{part}: {busy}");
    }
    assert!(!busy.contains("HandoverPolicy\n") && !default.contains("belay.dev/busy"), "{busy}");

    let cost = notes(&matrix::cost_alone());
    for part in ["belay explain node NODE", "COST:.metadata.annotations.controller", "by the Job belay-cleanup"] {
        assert!(cost.contains(part), "{part}: {cost}");
    }
    for part in ["kind: HandoverPolicy", "get evictionholds", "failurePolicy"] {
        assert!(!cost.contains(part), "{part}: {cost}");
    }
    assert!(!default.contains("explain node") && default.contains("by the Job belay-cleanup"), "{default}");
    let mut strict = matrix::cost_alone();
    strict["admission"] = json!({ "binding": { "failurePolicy": "Fail" } });
    let strict = notes(&strict);
    assert!(strict.contains("admission.binding.failurePolicy is Fail") && strict.contains("scheduled"), "{strict}");

    let unscraped = "BelayWebhookAbsent fires in ten minutes";
    let alerts = json!({ "prometheusRule": { "enabled": true } });
    assert!(notes(&alerts).contains(unscraped) && !default.contains(unscraped));
    for monitor in ["podMonitor", "serviceMonitor"] {
        let mut values = alerts.clone();
        values[monitor]["enabled"] = json!(true);
        assert!(!notes(&values).contains(unscraped), "{monitor}");
    }

    let off = notes(&json!({ "evictionHold": { "enabled": false } }));
    assert!(off.contains("No capability is enabled") && !off.contains("HandoverPolicy"), "{off}");
}
