//! Values that the chart refuses, and that the refusal says which value and what to do.

use serde_json::{Value, json};

use crate::chart;

/// Each set of values must be refused with a message that has all of these parts.
fn assert_refused(cases: &[(Value, &[&str])]) {
    for (values, parts) in cases {
        let error = chart::template(values, &[]).err().unwrap_or_else(|| panic!("{values} was accepted"));
        for part in *parts {
            assert!(error.contains(part), "{values}: `{part}` is not in: {error}");
        }
    }
}

#[test]
fn values_that_contradict_each_other() {
    assert_refused(&[
        (json!({ "image": { "repository": "" } }), &["image.repository is empty", "name the image"]),
        (json!({ "webhook": { "replicas": 0 } }), &["webhook.replicas is 0", "evictionHold.enabled=false"]),
        (json!({ "controller": { "replicas": 0 } }), &["controller.replicas is 0", "uninstall"]),
        (
            json!({ "webhook": { "replicas": 1 }, "admission": { "eviction": { "failurePolicy": "Fail" } } }),
            &["admission.eviction.failurePolicy is Fail", "webhook.replicas to 2"],
        ),
        (
            json!({ "webhook": { "replicas": 1 }, "admission": { "podCreation": { "failurePolicy": "Fail" } } }),
            &["admission.podCreation.failurePolicy is Fail", "webhook.replicas to 2"],
        ),
    ]);
}

#[test]
fn workloads_that_would_block_or_share_too_much() {
    assert_refused(&[
        (
            json!({ "webhook": { "podDisruptionBudget": { "maxUnavailable": 0 } } }),
            &["webhook.podDisruptionBudget.maxUnavailable is 0", "at least 1"],
        ),
        (
            json!({ "controller": { "podDisruptionBudget": { "maxUnavailable": "0%" } } }),
            &["controller.podDisruptionBudget.maxUnavailable is 0%", "at least 1"],
        ),
        (
            json!({ "controller": { "serviceAccount": { "create": false } } }),
            &["controller.serviceAccount.name is empty", "Name an existing ServiceAccount"],
        ),
        (
            json!({
                "controller": { "serviceAccount": { "name": "a" } },
                "webhook": { "serviceAccount": { "name": "a" } },
            }),
            &["webhook.serviceAccount.name and controller.serviceAccount.name are the same"],
        ),
        (
            json!({ "webhook": { "podAntiAffinity": "Required", "affinity": { "podAntiAffinity": { "a": [] } } } }),
            &["webhook.podAntiAffinity is Required", "use one of them"],
        ),
        (
            json!({ "webhook": { "extraEnv": [{ "name": "BELAY_LISTEN", "value": "x" }] } }),
            &["webhook.extraEnv sets BELAY_LISTEN", "bindAddress"],
        ),
        (
            json!({ "commonLabels": { "helm.sh/chart": "x" } }),
            &["commonLabels sets helm.sh/chart", "the chart sets itself"],
        ),
        (
            json!({ "podMonitor": { "labels": { "app.kubernetes.io/name": "x" } } }),
            &["podMonitor.labels sets app.kubernetes.io/name"],
        ),
        (
            json!({ "controller": { "podLabels": { "app.kubernetes.io/component": "x" } } }),
            &["controller.podLabels sets app.kubernetes.io/component"],
        ),
        (json!({ "webhook": { "port": 8080 } }), &["webhook.port and adminPort are both 8080"]),
        (
            json!({ "podMonitor": { "enabled": true, "interval": "5s" } }),
            &["podMonitor.scrapeTimeout (10s) is longer than podMonitor.interval (5s)"],
        ),
    ]);
}

#[test]
fn selectors_that_would_make_belay_hold_itself() {
    let name = "kubernetes.io/metadata.name";
    let listed = |namespaces: Value| {
        json!({ "admission": { "namespaceSelector": {
            "matchExpressions": [{ "key": name, "operator": "In", "values": namespaces }],
        } } })
    };
    assert_refused(&[
        (listed(json!(["shop", "belay-system"])), &["selects namespace belay-system", "Remove it"]),
        (listed(json!(["kube-system"])), &["selects namespace kube-system", "Remove it"]),
        (
            json!({ "admission": { "namespaceSelector": { "matchLabels": { name: "belay-system" } } } }),
            &["matchLabels selects namespace belay-system", "Remove the label"],
        ),
    ]);
    chart::template(&listed(json!(["shop"])), &[]).expect("other namespaces may be named");
}

#[test]
fn namespaces_that_are_both_in_and_out() {
    let default_policy = |namespaces: Value, excluded: Value| {
        json!({ "evictionHold": {
            "excludedNamespaces": excluded,
            "defaultPolicy": { "enabled": true, "namespaces": namespaces },
        } })
    };
    let mut selected = default_policy(json!(["*"]), json!(["shop"]));
    selected["admission"] = json!({ "namespaceSelector": {
        "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["shop"] }],
    } });
    assert_refused(&[
        (default_policy(json!([]), json!([])), &["defaultPolicy.namespaces is empty", "covers nothing"]),
        (default_policy(json!(["kube-system"]), json!([])), &["defaultPolicy.namespaces contains kube-system"]),
        (default_policy(json!(["belay-system"]), json!([])), &["defaultPolicy.namespaces contains belay-system"]),
        (default_policy(json!(["shop"]), json!(["shop"])), &["contains shop", "excludedNamespaces excludes"]),
        (selected, &["selects namespace shop", "excludedNamespaces excludes"]),
    ]);
    chart::template(&default_policy(json!(["*"]), json!(["shop"])), &[]).expect("all but one is no contradiction");
}

#[test]
fn leases_that_two_replicas_could_hold_at_once() {
    let election = |lease: &str, renew: &str, retry: &str| {
        json!({ "controller": { "leaderElection": {
            "leaseDuration": lease, "renewDeadline": renew, "retryPeriod": retry,
        } } })
    };
    assert_refused(&[
        (election("10s", "10s", "2s"), &["leaseDuration (10s) must be longer than renewDeadline (10s)"]),
        (election("1m", "1m30s", "2s"), &["leaseDuration (1m) must be longer than renewDeadline (1m30s)"]),
        (election("15s", "10s", "10s"), &["renewDeadline (10s) must be longer than retryPeriod (10s)"]),
        (election("15s", "10s", "0s"), &["retryPeriod (0s) must be at least 1s"]),
    ]);
    for (lease, renew, retry) in [("1m", "59s", "2s"), ("1h", "59m59s", "1m"), ("1h1s", "1h", "10s")] {
        chart::template(&election(lease, renew, retry), &[]).expect("the order is right");
    }
}

#[test]
fn values_that_the_schema_refuses() {
    assert_refused(&[
        (json!({ "evictionhold": {} }), &["additional properties 'evictionhold' not allowed"]),
        (json!({ "webhook": { "replica": 2 } }), &["at '/webhook'", "'replica' not allowed"]),
        (
            json!({ "evictionHold": { "defaultPolicy": { "enable": true } } }),
            &["/evictionHold/defaultPolicy", "'enable'"],
        ),
        (json!({ "evictionHold": { "historyTTL": "1d" } }), &["/evictionHold/historyTTL", "'1d' does not match"]),
        (json!({ "evictionHold": { "historyTTL": "30s1h" } }), &["/evictionHold/historyTTL", "does not match"]),
        (json!({ "evictionHold": { "historyTTL": "" } }), &["/evictionHold/historyTTL"]),
        (json!({ "evictionHold": { "historyTTL": 3600 } }), &["/evictionHold/historyTTL", "want string"]),
        (json!({ "evictionHold": { "enabled": "yes" } }), &["/evictionHold/enabled", "want boolean"]),
        (json!({ "evictionHold": { "excludedNamespaces": ["*"] } }), &["/evictionHold/excludedNamespaces/0"]),
        (json!({ "evictionHold": { "ignoreEvictors": ["a*b"] } }), &["/evictionHold/ignoreEvictors/0"]),
        (json!({ "evictionHold": { "defaultPolicy": { "handover": "Scale" } } }), &["defaultPolicy/handover"]),
        (
            json!({ "evictionHold": { "defaultPolicy": { "readinessDeadlineSeconds": 0 } } }),
            &["readinessDeadlineSeconds"],
        ),
        (
            json!({ "admission": { "eviction": { "failurePolicy": "ignore" } } }),
            &["/admission/eviction/failurePolicy", "'Fail'"],
        ),
        (json!({ "admission": { "eviction": { "timeoutSeconds": 31 } } }), &["/admission/eviction/timeoutSeconds"]),
        (
            json!({ "admission": { "eviction": { "matchConditions": [{ "name": "a" }] } } }),
            &["missing property 'expression'"],
        ),
        (json!({ "admission": { "namespaceSelector": { "matchLabel": {} } } }), &["'matchLabel' not allowed"]),
        (json!({ "image": { "digest": "sha256:12" } }), &["/image/digest"]),
        (json!({ "image": { "tag": "a:b" } }), &["/image/tag"]),
        (json!({ "imagePullSecrets": ["pull"] }), &["/imagePullSecrets/0", "want object"]),
        (json!({ "bindAddress": "localhost" }), &["/bindAddress"]),
        (json!({ "adminPort": 70000 }), &["/adminPort"]),
        (json!({ "fullnameOverride": "Belay" }), &["/fullnameOverride"]),
        (json!({ "webhook": { "podAnnotations": { "a": true } } }), &["/webhook/podAnnotations/a", "want string"]),
        (json!({ "webhook": { "podAntiAffinity": "Hard" } }), &["/webhook/podAntiAffinity"]),
        (
            json!({ "webhook": { "topologySpreadConstraints": [{ "maxSkew": 1 }] } }),
            &["topologySpreadConstraints/0", "topologyKey"],
        ),
        (json!({ "webhook": { "podDisruptionBudget": { "maxUnavailable": "one" } } }), &["maxUnavailable"]),
    ]);
}

#[test]
fn a_name_that_no_service_can_have() {
    let folder = chart::folder();
    let folder = folder.to_str().expect("the path is UTF-8");
    for release in ["1st", "belay.prod"] {
        let output = chart::helm(&["template", release, folder, "-f", "-"], &json!({}));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{release} was accepted");
        assert!(error.contains("cannot be the name of a Service") && error.contains("fullnameOverride"), "{error}");
    }
}

#[test]
fn a_parent_chart_may_pass_its_own_keys() {
    let values = json!({ "global": { "imageRegistry": "registry.example.com" }, "enabled": true });
    chart::template(&values, &[]).expect("a parent chart's keys are allowed");
}
