//! Values that the chart refuses, and that the refusal says which value and what to do.

use std::path::Path;

use serde_json::{Value, json};

use crate::busy;
use crate::chart;
use crate::matrix;

/// Each set of values must be refused with a message that has all of these parts.
fn assert_refused(cases: &[(Value, &[&str])]) {
    assert_refused_by(&chart::folder(), cases);
}

/// The same of another chart.
fn assert_refused_by(folder: &Path, cases: &[(Value, &[&str])]) {
    for (values, parts) in cases {
        let error = chart::template_of(folder, values, &[]).err().unwrap_or_else(|| panic!("{values} was accepted"));
        for part in *parts {
            assert!(error.contains(part), "{values}: `{part}` is not in: {error}");
        }
    }
}

#[test]
fn values_that_contradict_each_other() {
    assert_refused(&[
        (json!({ "image": { "repository": "" } }), &["image.repository is empty", "name the image"]),
        (
            json!({ "webhook": { "replicas": 0 } }),
            &["webhook.replicas is 0", "evictionHold.enabled=false", "deletionCost.enabled=false"],
        ),
        (json!({ "controller": { "replicas": 0 } }), &["controller.replicas is 0", "uninstall"]),
        (
            json!({ "webhook": { "replicas": 1 }, "admission": { "eviction": { "failurePolicy": "Fail" } } }),
            &["admission.eviction.failurePolicy is Fail", "webhook.replicas to 2"],
        ),
        (
            json!({ "webhook": { "replicas": 1 }, "admission": { "podCreation": { "failurePolicy": "Fail" } } }),
            &["admission.podCreation.failurePolicy is Fail", "webhook.replicas to 2"],
        ),
        (
            cost(&json!({ "webhook": { "replicas": 1 }, "admission": { "binding": { "failurePolicy": "Fail" } } })),
            &["admission.binding.failurePolicy is Fail", "no pod", "webhook.replicas to 2"],
        ),
    ]);
    // What nobody is asked about cannot fail.
    let strict = json!({ "failurePolicy": "Fail" });
    let mut values = json!({ "webhook": { "replicas": 1 }, "admission": { "binding": strict } });
    chart::template(&values, &[]).expect("no binding is asked about");
    values["admission"] = json!({ "eviction": strict, "podCreation": strict });
    values["evictionHold"] = json!({ "enabled": false });
    chart::template(&cost(&values), &[]).expect("neither evictions nor new pods are asked about");
}

/// Deletion costs on, with these values.
fn cost(values: &Value) -> Value {
    let mut values = values.clone();
    values["deletionCost"]["enabled"] = json!(true);
    values
}

#[test]
fn a_probe_that_asks_all_the_time_or_hardly_ever() {
    let at = |interval: &str| json!({ "probe": { "interval": interval } });
    assert_refused(&[
        (at("4s"), &["probe.interval is 4s", "at least 5s and at most 10m"]),
        (at("10m1s"), &["probe.interval is 10m1s", "at most 10m"]),
        (at("soon"), &["/probe/interval", "'soon' does not match"]),
    ]);
    for interval in ["5s", "10m", "9m60s"] {
        chart::template(&at(interval), &[]).expect("these are within the bounds");
    }
}

#[test]
fn deletion_costs_that_are_out_of_bounds() {
    let at = |key: &str, value: Value| cost(&json!({ "deletionCost": { key: value } }));
    assert_refused(&[
        (at("settlePeriod", json!("0s")), &["deletionCost.settlePeriod is 0s", "at least 1s and at most 1h"]),
        (at("settlePeriod", json!("1h1s")), &["deletionCost.settlePeriod is 1h1s", "at most 1h"]),
        (at("standDownPeriod", json!("0m")), &["deletionCost.standDownPeriod is 0m", "at least 1s and at most 24h"]),
        (at("standDownPeriod", json!("24h1s")), &["deletionCost.standDownPeriod is 24h1s", "at most 24h"]),
        (
            at("writesPerSecond", json!(20)),
            &[
                "deletionCost.writesPerSecond (20) is not below writesPerSecond (20)",
                "lower the first or raise the second",
            ],
        ),
        (
            cost(&json!({ "writesPerSecond": 9 })),
            &["deletionCost.writesPerSecond (10) is not below writesPerSecond (9)"],
        ),
    ]);
    for (settle, stand_down, writes) in [("1s", "1s", 1), ("1h", "24h", 19), ("59m60s", "23h60m", 10)] {
        let values = json!({ "deletionCost": {
            "settlePeriod": settle, "standDownPeriod": stand_down, "writesPerSecond": writes,
        } });
        chart::template(&cost(&values), &[]).expect("these are within the bounds");
    }
    chart::template(&json!({ "writesPerSecond": 1 }), &[]).expect("they are off");
}

#[test]
fn deletion_costs_that_the_schema_refuses() {
    let at = |key: &str, value: Value| json!({ "deletionCost": { key: value } });
    let binding = |key: &str, value: Value| json!({ "admission": { "binding": { key: value } } });
    assert_refused(&[
        (at("enable", json!(true)), &["/deletionCost", "'enable' not allowed"]),
        (at("enabled", json!("true")), &["/deletionCost/enabled", "want boolean"]),
        (at("maxNodes", json!(0)), &["/deletionCost/maxNodes"]),
        (at("maxNodes", json!(501)), &["/deletionCost/maxNodes"]),
        (at("maxNodes", json!(1.5)), &["/deletionCost/maxNodes", "want integer"]),
        (at("nodePools", json!("general")), &["/deletionCost/nodePools", "want array"]),
        (at("nodePools", json!([""])), &["/deletionCost/nodePools/0"]),
        (at("nodePools", json!(["a/b"])), &["/deletionCost/nodePools/0"]),
        (at("nodePools", json!(["*"])), &["/deletionCost/nodePools/0"]),
        (at("nodePools", json!(["a".repeat(64)])), &["/deletionCost/nodePools/0"]),
        (at("nodePools", json!(["a", "a"])), &["/deletionCost/nodePools"]),
        (at("spreadZones", json!("no")), &["/deletionCost/spreadZones", "want boolean"]),
        (at("settlePeriod", json!("1d")), &["/deletionCost/settlePeriod", "'1d' does not match"]),
        (at("settlePeriod", json!(300)), &["/deletionCost/settlePeriod", "want string"]),
        (at("standDownPeriod", json!("")), &["/deletionCost/standDownPeriod"]),
        (at("writesPerSecond", json!(0)), &["/deletionCost/writesPerSecond"]),
        (at("writesPerSecond", json!(101)), &["/deletionCost/writesPerSecond"]),
        (binding("failurePolicy", json!("ignore")), &["/admission/binding/failurePolicy", "'Fail'"]),
        (binding("timeoutSeconds", json!(0)), &["/admission/binding/timeoutSeconds"]),
        (binding("timeoutSeconds", json!(11)), &["/admission/binding/timeoutSeconds"]),
        (binding("matchConditions", json!([])), &["/admission/binding", "'matchConditions' not allowed"]),
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
            json!({ "controller": { "extraEnv": [{ "name": "POD_UID", "value": "x" }] } }),
            &["controller.extraEnv sets POD_UID", "the chart sets itself"],
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
        (
            json!({ "serviceMonitor": { "enabled": true, "scrapeTimeout": "31s" } }),
            &["serviceMonitor.scrapeTimeout (31s) is longer than serviceMonitor.interval (30s)"],
        ),
        (
            json!({ "serviceMonitor": { "enabled": true }, "podMonitor": { "enabled": true } }),
            &["podMonitor.enabled and serviceMonitor.enabled are both true", "Switch one of them off"],
        ),
        (
            json!({ "prometheusRule": { "disabled": ["BelaySlwo"] } }),
            &["prometheusRule.disabled names BelaySlwo", "use BelayFailedOpen"],
        ),
        (
            json!({ "prometheusRule": { "overrides": { "BelaySlwo": { "for": "1h" } } } }),
            &["prometheusRule.overrides names BelaySlwo"],
        ),
        (
            json!({ "prometheusRule": { "disabled": ["BelaySlow"], "overrides": { "BelaySlow": { "for": "1h" } } } }),
            &["prometheusRule.overrides changes BelaySlow, which prometheusRule.disabled leaves out"],
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
fn surges_that_end_before_an_evictor_comes_back() {
    let after = |time: &str| json!({ "evictionHold": { "scale": { "abandonAfter": time } } });
    let expected = ["evictionHold.scale.abandonAfter", "at least 4m30s", "Cluster Autoscaler"];
    assert_refused(&[(after("3m30s"), &expected), (after("4m29s"), &expected)]);
    chart::template(&after("4m30s"), &[]).expect("it comes back in time");
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

fn doom(keys: &Value) -> Value {
    json!({ "evictionHold": { "doom": keys } })
}

#[test]
fn signals_of_nodes_that_contradict_themselves() {
    assert_refused(&[
        (doom(&json!({ "signalStability": "0s" })), &["evictionHold.doom.signalStability is 0s", "1s to 10m"]),
        (doom(&json!({ "signalStability": "10m1s" })), &["evictionHold.doom.signalStability is 10m1s", "1s to 10m"]),
        (doom(&json!({ "taints": [{ "key": "a" }, { "key": "a", "notice": "5s" }] })), &["names a twice"]),
        (doom(&json!({ "taints": [{ "key": "a", "notice": "0s" }] })), &["a a notice of 0s", "leave it out"]),
        (doom(&json!({ "taints": [{ "key": "a", "notice": "24h1s" }] })), &["a a notice of 24h1s", "1s to 24h"]),
    ]);
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
        (json!({ "evictionHold": { "ignoreRestarters": "yes" } }), &["/evictionHold/ignoreRestarters", "want boolean"]),
        (doom(&json!({ "taints": ["example.com/going"] })), &["/evictionHold/doom/taints/0", "want object"]),
        (doom(&json!({ "taints": [{ "notice": "45s" }] })), &["missing property 'key'"]),
        (doom(&json!({ "taints": [{ "key": "a=b:NoSchedule" }] })), &["/evictionHold/doom/taints/0/key"]),
        (doom(&json!({ "taints": [{ "key": "a", "notice": 45 }] })), &["/evictionHold/doom/taints/0/notice"]),
        (doom(&json!({ "conditions": ["Ready"] })), &["/evictionHold/doom/conditions/0"]),
        (doom(&json!({ "conditions": ["KernelDeadlock=True"] })), &["/evictionHold/doom/conditions/0"]),
        (doom(&json!({ "softSignal": true })), &["'softSignal' not allowed"]),
        (json!({ "evictionHold": { "defaultPolicy": { "handover": "Move" } } }), &["defaultPolicy/handover"]),
        (json!({ "evictionHold": { "defaultPolicy": { "trigger": "OnWhim" } } }), &["defaultPolicy/trigger"]),
        (json!({ "evictionHold": { "defaultPolicy": { "surgeReplicas": 0 } } }), &["defaultPolicy/surgeReplicas"]),
        (json!({ "evictionHold": { "scale": { "abandonAfter": "soon" } } }), &["/evictionHold/scale/abandonAfter"]),
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

/// Every section of values.yaml, but for what a user may well leave out: what Kubernetes gets as it is.
#[test]
fn sections_that_an_upgrade_with_the_defaults_of_before_has_not() {
    const AS_IT_IS: [&str; 5] = ["resources", "nodeSelector", "podSecurityContext", "securityContext", "labels"];
    fn sections(value: &Value, path: &[&str], found: &mut Vec<String>) {
        for (key, inner) in value.as_object().into_iter().flatten() {
            let path = [path, &[key.as_str()]].concat();
            let is_section = inner.as_object().is_some_and(|map| !map.is_empty());
            if is_section && !AS_IT_IS.contains(&key.as_str()) {
                found.push(path.join("."));
                sections(inner, &path, found);
            }
        }
    }
    let mut all = Vec::new();
    sections(&chart::read_yaml("values.yaml"), &[], &mut all);
    assert!(all.len() > 25, "{all:?}");
    for section in &all {
        let gone = section.rsplit('.').fold(Value::Null, |inner, key| json!({ key: inner }));
        let error = chart::template(&gone, &[]).expect_err(section);
        for word in [&format!("the values have no {section},"), "--reset-then-reuse-values"] {
            assert!(error.contains(word), "{section}: `{word}` is not in: {error}");
        }
    }
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

/// Busy hints with one rule, which is the plain one with these keys.
fn rule(more: &Value) -> Value {
    let mut rule = matrix::plain_rule();
    for (key, value) in more.as_object().expect("keys") {
        rule[key] = value.clone();
    }
    json!({ "busyHints": { "enabled": true, "rules": [rule] } })
}

#[test]
fn busy_rules_that_contradict_themselves_or_each_other() {
    let owner = json!({ "group": "example.com", "kind": "Worker" });
    let mut far = owner.clone();
    far["through"] = json!({ "group": "apps", "kind": "StatefulSet" });
    let mut excluded = rule(&json!({ "namespaces": ["shop"] }));
    excluded["evictionHold"] = json!({ "excludedNamespaces": ["shop"] });
    let twice = json!({ "busyHints": { "enabled": true, "rules": [matrix::plain_rule(), matrix::plain_rule()] } });
    assert_refused(&[
        (json!({ "busyHints": { "enabled": true } }), &["presets and busyHints.rules are empty", "name a preset"]),
        (twice, &["two rules are named plain", "Rename yours"]),
        (
            rule(&json!({ "podSelector": { "matchLabels": {} } })),
            &["rule plain has an empty podSelector", "matchLabels"],
        ),
        (
            rule(&json!({ "podSelector": { "matchLabels": {}, "matchExpressions": [] } })),
            &["rule plain has an empty podSelector"],
        ),
        (
            rule(&json!({ "namespaces": ["ci", "kube-system"] })),
            &["rule plain is for namespace kube-system", "excluded"],
        ),
        (rule(&json!({ "namespaces": ["belay-system"] })), &["rule plain is for namespace belay-system"]),
        (excluded, &["rule plain is for namespace shop", "evictionHold.excludedNamespaces"]),
        (
            rule(&json!({ "eviction": { "idle": "DeleteOwner" } })),
            &["rule plain has eviction.idle DeleteOwner but no owner", "use Allow"],
        ),
        (
            rule(&json!({ "owner": far, "eviction": { "idle": "DeleteOwner" } })),
            &["rule plain has eviction.idle DeleteOwner", "through StatefulSet", "Use Allow"],
        ),
        (rule(&json!({ "maxBusy": "120h1s" })), &["rule plain has maxBusy 120h1s", "at most 120h"]),
        (rule(&json!({ "maxBusy": "0s" })), &["rule plain has maxBusy 0s", "more than 0s"]),
        (
            json!({ "webhook": { "extraEnv": [{ "name": "BELAY_CONTROLLER", "value": "x" }] } }),
            &["webhook.extraEnv sets BELAY_CONTROLLER"],
        ),
    ]);
    chart::template(&rule(&json!({ "owner": owner, "eviction": { "idle": "DeleteOwner" } })), &[]).expect("an owner");
}

#[test]
fn expressions_over_what_their_rule_does_not_name() {
    let states = |when: &str, more: &Value| {
        let mut values = rule(more);
        values["busyHints"]["rules"][0]["states"] =
            json!([{ "state": "Done", "when": "false" }, { "state": "Busy", "when": when }]);
        values
    };
    let none = json!({});
    assert_refused(&[
        (states("has(owner.status)", &none), &["rule plain reads owner in states[1].when", "Say which with owner"]),
        (states("pod.metadata.name == owner.metadata.name", &none), &["reads owner"]),
        (states("!has( owner.status )", &none), &["reads owner"]),
        (states("'owner' == owner.kind", &none), &["reads owner"]),
        (states("linked.size() > 0", &none), &["rule plain reads linked in states[1].when", "with linkedPods"]),
        (states("true ||\nlinked.exists(one, true)", &none), &["reads linked"]),
        (
            states("linked.size() > 0", &json!({ "owner": { "group": "", "kind": "ReplicationController" } })),
            &["reads linked"],
        ),
    ]);
    for innocent in [
        "pod.metadata.ownerReferences.exists(owner, owner.controller && owner.kind == 'Job')",
        "has(pod.metadata.labels.owner) && pod.metadata.labels.linked == 'owner'",
        "pod.metadata.name == \"the owner's, \\\"linked\\\"\"",
        "has(pod.spec.owner_linked) || 'linked' in pod.metadata.labels",
    ] {
        chart::template(&states(innocent, &none), &[]).unwrap_or_else(|error| panic!("{innocent}: {error}"));
    }
    let named = json!({ "owner": { "group": "", "kind": "Worker" }, "linkedPods": { "labelKey": "a" } });
    chart::template(&states("has(owner.status) || linked.size() > 0", &named), &[]).expect("both are named");
}

#[test]
fn presets_that_do_not_exist_or_are_not_what_they_should_be() {
    let presets = |presets: Value, overrides: Value| json!({ "busyHints": { "enabled": true, "presets": presets, "presetOverrides": overrides } });
    let mut clash = presets(json!(["one"]), json!({}));
    clash["busyHints"]["rules"] = json!([matrix::plain_rule()]);
    clash["busyHints"]["rules"][0]["name"] = json!("one");
    let mut excluded = presets(json!(["one"]), json!({}));
    excluded["evictionHold"] = json!({ "excludedNamespaces": ["b"] });
    let cases: &[(Value, &[&str])] = &[
        (json!({ "busyHints": { "enabled": true } }), &["this chart brings: boundless, broken, empty, one, two"]),
        (presets(json!(["onne"]), json!({})), &["names onne", "It brings: boundless, broken, empty, one, two"]),
        (presets(json!(["one"]), json!({ "two": { "maxBusy": "1h" } })), &["changes preset two", "(one)", "add it"]),
        (presets(json!(["broken"]), json!({})), &["presets/broken.yaml", "is not a list of busy rules"]),
        (presets(json!(["empty"]), json!({})), &["presets/empty.yaml", "has no busy rules"]),
        (presets(json!(["boundless"]), json!({})), &["rule boundless has an empty podSelector"]),
        (presets(json!(["one"]), json!({ "one": { "maxBusy": "121h" } })), &["rule one has maxBusy 121h"]),
        (presets(json!(["one"]), json!({ "one": { "namespaces": ["kube-system"] } })), &["for namespace kube-system"]),
        (
            presets(json!(["two"]), json!({ "two": { "eviction": { "idle": "DeleteOwner" } } })),
            &["rule two-a", "no owner"],
        ),
        (clash, &["two rules are named one"]),
        (excluded, &["rule one is for namespace b"]),
    ];
    assert_refused_by(&busy::WITH_PRESETS, cases);
}

#[test]
fn busy_rules_that_the_schema_refuses() {
    let states = |state: &str, when: Value| rule(&json!({ "states": [{ "state": state, "when": when }] }));
    let many: Vec<Value> = (0..17).map(|_| json!({ "state": "Busy", "when": "true" })).collect();
    let without = |key: &str| {
        let mut values = rule(&json!({}));
        values["busyHints"]["rules"][0].as_object_mut().expect("a rule").remove(key);
        values
    };
    let overridden = |value: Value| json!({ "busyHints": { "presetOverrides": { "arc": value } } });
    let at = |key: &str, value: Value| rule(&json!({ key: value }));
    let owner = |more: Value| {
        let mut owner = json!({ "group": "example.com", "kind": "Worker" });
        for (key, value) in more.as_object().expect("keys") {
            owner[key] = value.clone();
        }
        rule(&json!({ "owner": owner }))
    };
    assert_refused(&[
        (json!({ "busyHints": { "preset": ["arc"] } }), &["/busyHints", "'preset' not allowed"]),
        (json!({ "busyHints": { "presets": ["arc", "arc"] } }), &["/busyHints/presets"]),
        (json!({ "busyHints": { "presets": ["../arc"] } }), &["/busyHints/presets/0"]),
        (without("name"), &["/busyHints/rules/0", "missing property 'name'"]),
        (without("podSelector"), &["missing property 'podSelector'"]),
        (without("states"), &["missing property 'states'"]),
        (at("selector", json!({})), &["/busyHints/rules/0", "'selector' not allowed"]),
        (at("name", json!("Runner")), &["/busyHints/rules/0/name"]),
        (at("name", json!("a".repeat(41))), &["/busyHints/rules/0/name"]),
        (at("namespaces", json!(["*"])), &["/busyHints/rules/0/namespaces/0"]),
        (at("podSelector", json!({})), &["/busyHints/rules/0/podSelector", "minProperties"]),
        (at("podSelector", json!({ "matchLabel": {} })), &["'matchLabel' not allowed"]),
        (
            at("podSelector", json!({ "matchExpressions": [{ "key": "a", "operator": "In" }] })),
            &["matchExpressions/0", "missing property 'values'"],
        ),
        (
            at("podSelector", json!({ "matchExpressions": [{ "key": "a", "operator": "Exists", "values": ["b"] }] })),
            &["matchExpressions/0/values", "maxItems"],
        ),
        (at("states", json!([])), &["/busyHints/rules/0/states", "minItems"]),
        (at("states", json!(many)), &["/busyHints/rules/0/states", "maxItems"]),
        (states("busy", json!("true")), &["states/0/state", "'Busy'"]),
        (states("Busy", json!("")), &["states/0/when", "minLength"]),
        (states("Busy", json!(true)), &["states/0/when", "want string"]),
        (states("Busy", json!("a".repeat(2049))), &["states/0/when", "maxLength"]),
        (at("states", json!([{ "when": "true" }])), &["states/0", "missing property 'state'"]),
        (at("owner", json!({ "kind": "Worker" })), &["/owner", "missing property 'group'"]),
        (at("owner", json!({ "group": "example.com" })), &["/owner", "missing property 'kind'"]),
        (owner(json!({ "group": "Example.com" })), &["/owner/group"]),
        (owner(json!({ "group": "example.com/v1" })), &["/owner/group"]),
        (owner(json!({ "kind": "workers" })), &["/owner/kind"]),
        (owner(json!({ "resource": "workers/status" })), &["/owner/resource"]),
        (owner(json!({ "resource": "*" })), &["/owner/resource"]),
        (owner(json!({ "through": { "kind": "Job" } })), &["/owner/through", "missing property 'group'"]),
        (owner(json!({ "jobFields": ["status..id"] })), &["/owner/jobFields/0"]),
        (at("linkedPods", json!({})), &["/linkedPods", "missing property 'labelKey'"]),
        (at("linkedPods", json!({ "labelKey": "a/b/c" })), &["/linkedPods/labelKey"]),
        (at("onUnknown", json!("Hold")), &["/onUnknown", "'Idle'"]),
        (at("startupGrace", json!("90")), &["/startupGrace"]),
        (at("idleDebounce", json!("15sec")), &["/idleDebounce"]),
        (at("maxBusy", json!(6)), &["/maxBusy", "want string"]),
        (at("hints", json!({ "clusterAutoscaler": "true" })), &["/hints/clusterAutoscaler", "'SafeToEvict'"]),
        (at("hints", json!({ "karpenter": "true" })), &["/hints/karpenter", "want boolean"]),
        (at("hints", json!({ "kured": true })), &["/hints", "'kured' not allowed"]),
        (at("eviction", json!({ "busy": "DeleteOwner" })), &["/eviction/busy"]),
        (at("eviction", json!({ "idle": "Hold" })), &["/eviction/idle"]),
        (overridden(json!({ "states": [] })), &["/presetOverrides/arc", "'states' not allowed"]),
        (overridden(json!({})), &["/presetOverrides/arc", "minProperties"]),
        (overridden(json!({ "maxBusy": "1d" })), &["/presetOverrides/arc/maxBusy"]),
        (json!({ "cleanup": { "onUninstall": true } }), &["/cleanup", "'onUninstall' not allowed"]),
    ]);
}
