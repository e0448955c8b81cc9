//! The sets of values that the tests render: every property below must hold for each of them.

use belay_e2e::world::merge;
use serde_json::{Value, json};

/// A set of values and what to call it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) values: Value,
}

/// Every case, the defaults first.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "defaults", values: json!({}) },
        Case { name: "nothing enabled", values: json!({ "evictionHold": { "enabled": false } }) },
        Case { name: "busy hints alone", values: busy_alone() },
        Case { name: "deletion costs alone", values: cost_alone() },
        Case { name: "small", values: small() },
        Case { name: "a service monitor", values: with_service_monitor(&everything()) },
        Case { name: "an existing Secret", values: existing_secret() },
        Case { name: "an authority of cert-manager's", values: json!({ "certs": { "mode": "certManager" } }) },
        Case { name: "everything", values: everything() },
    ]
}

/// A rule with an owner, linked pods and every other key that changes what is rendered.
pub(crate) fn runner_rule() -> Value {
    json!({
        "name": "runner",
        "namespaces": ["ci"],
        "podSelector": { "matchLabels": { "actions-ephemeral-runner": "True" } },
        "owner": {
            "group": "actions.github.com",
            "kind": "EphemeralRunner",
            "jobFields": ["status.jobId", "status.jobRequestId"],
        },
        "linkedPods": { "labelKey": "runner-pod" },
        "states": [
            { "state": "Done", "when": "has(owner.status) && owner.status.phase in ['Succeeded', \"Failed\"]" },
            { "state": "Busy", "when": "linked.size() > 0 ||\n(has(owner.status) && has(owner.status.jobId))\n" },
        ],
        "maxBusy": "120h",
        "hints": { "karpenter": false, "clusterAutoscaler": "OnCompletion" },
        "eviction": { "idle": "DeleteOwner" },
    })
}

/// A rule that has just what a rule must have.
pub(crate) fn plain_rule() -> Value {
    json!({
        "name": "plain",
        "podSelector": { "matchExpressions": [{ "key": "example.com/job", "operator": "Exists" }] },
        "states": [{ "state": "Busy", "when": "true" }],
    })
}

/// Busy hints with those two rules and without the eviction hold.
pub(crate) fn busy_alone() -> Value {
    json!({
        "evictionHold": { "enabled": false },
        "busyHints": { "enabled": true, "rules": [runner_rule(), plain_rule()] },
    })
}

/// Deletion costs without any other capability.
pub(crate) fn cost_alone() -> Value {
    json!({ "evictionHold": { "enabled": false }, "deletionCost": { "enabled": true } })
}

/// Certificates of a Secret of the user's.
pub(crate) fn existing_secret() -> Value {
    json!({ "certs": { "mode": "existingSecret", "existingSecret": { "name": "webhook" } } })
}

/// A name for the capabilities that are on, and values that switch on just these.
pub(crate) fn combinations() -> Vec<(String, Value)> {
    const NAMES: [&str; 3] = ["evictionHold", "busyHints", "deletionCost"];
    let combination = |set: usize| {
        let mut values = json!({ "busyHints": { "rules": [runner_rule(), plain_rule()] } });
        let mut on = Vec::new();
        for (bit, name) in NAMES.into_iter().enumerate() {
            let enabled = set >> bit & 1 == 1;
            values[name]["enabled"] = json!(enabled);
            on.extend(enabled.then_some(name));
        }
        (on.join("+"), values)
    };
    (0..1 << NAMES.len()).map(combination).collect()
}

/// One replica of each and nothing around them, as on a laptop.
pub(crate) fn small() -> Value {
    let component = json!({
        "replicas": 1,
        "podDisruptionBudget": { "enabled": false },
        "priorityClassName": "",
        "topologySpreadConstraints": [],
        "resources": { "requests": { "cpu": "1m", "memory": "16Mi" } },
    });
    json!({
        "webhook": component,
        "controller": component,
        "crds": { "keep": false },
        "rbac": { "aggregateToUserRoles": false },
        "cleanup": { "enabled": false },
    })
}

/// What both components can be told, under a ServiceAccount of that name.
fn component(account: &str) -> Value {
    json!({
        "replicas": 3,
        "podDisruptionBudget": { "maxUnavailable": "50%" },
        "serviceAccount": { "name": account, "annotations": { "example.com/role": account } },
        "resources": { "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "cpu": 1, "memory": "256Mi" } },
        "priorityClassName": "system-node-critical",
        "nodeSelector": { "example.com/pool": "system" },
        "tolerations": [{ "key": "example.com/system", "operator": "Exists", "effect": "NoSchedule" }],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        { "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "Exists" }] },
                    ],
                },
            },
        },
        "podAntiAffinity": if account == "hook" { "Required" } else { "Preferred" },
        "topologySpreadConstraints": [
            { "topologyKey": "example.com/rack", "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway" },
        ],
        "podAnnotations": { "example.com/note": "yes" },
        "podLabels": { "example.com/tier": "system" },
        "extraEnv": [{ "name": "TZ", "value": "UTC" }],
    })
}

fn admission() -> Value {
    json!({
        "annotations": { "admissions.enforcer/disabled": "true" },
        "namespaceSelector": {
            "matchLabels": { "example.com/belay": "on" },
            "matchExpressions": [
                { "key": "example.com/env", "operator": "In", "values": ["prod"] },
                { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["belay-system"] },
            ],
        },
        "eviction": {
            "failurePolicy": "Fail",
            "timeoutSeconds": 5,
            "matchConditions": [
                { "name": "not-the-breaker-of-glass", "expression": "request.userInfo.username != \"breaker\"" },
            ],
        },
        "podCreation": { "failurePolicy": "Fail", "timeoutSeconds": 1, "reinvocationPolicy": "Never" },
        "binding": { "failurePolicy": "Fail", "timeoutSeconds": 4 },
    })
}

/// These values with the ServiceMonitor in the PodMonitor's place: the chart refuses both at once.
pub(crate) fn with_service_monitor(values: &Value) -> Value {
    let mut values = values.clone();
    values["podMonitor"]["enabled"] = json!(false);
    values["serviceMonitor"]["enabled"] = json!(true);
    values
}

/// Certificates of an issuer of the user's.
fn issued() -> Value {
    json!({
        "mode": "certManager",
        "certManager": {
            "issuerRef": { "name": "platform", "kind": "ClusterIssuer", "group": "cert-manager.io" },
            "duration": "720h",
            "caInjector": false,
        },
    })
}

/// An image by its digest, from a registry of the user's.
fn image() -> Value {
    json!({
        "registry": "registry.example.com:5000",
        "repository": "mirror/belay",
        "tag": "ignored",
        "digest": format!("sha256:{}", "0123456789abcdef".repeat(4)),
        "pullPolicy": "Always",
    })
}

/// Every value changed from its default, but for what excludes another one.
pub(crate) fn everything() -> Value {
    let mut all = everything_but_monitoring();
    merge(&mut all, &monitoring());
    all
}

fn monitoring() -> Value {
    json!({
        "podMonitor": {
            "enabled": true,
            "labels": { "release": "prometheus" },
            "interval": "1m",
            "scrapeTimeout": "20s",
        },
        "serviceMonitor": { "labels": { "release": "prometheus" }, "interval": "2m", "scrapeTimeout": "15s" },
        "prometheusRule": {
            "enabled": true,
            "labels": { "release": "prometheus" },
            "disabled": ["BelayHintConflict"],
            "overrides": { "BelayStoodDown": { "for": "3h", "severity": "warning" } },
            "groupBy": ["cluster"],
            "runbookUrl": "https://wiki.example.com/belay",
        },
        "dashboard": {
            "enabled": true,
            "labels": { "example.com/dashboard": "yes" },
            "annotations": { "grafana_folder": "Platform" },
        },
    })
}

fn everything_but_monitoring() -> Value {
    let mut webhook = component("hook");
    webhook["port"] = json!(10250);
    webhook["hostNetwork"] = json!(true);
    let mut controller = component("control");
    controller["leaderElection"] = json!({ "leaseDuration": "20s", "renewDeadline": "12s", "retryPeriod": "3s" });
    json!({
        "nameOverride": "rope",
        "fullnameOverride": "belay",
        "commonLabels": { "example.com/team": "platform" },
        "image": image(),
        "imagePullSecrets": [{ "name": "pull" }],
        "logLevel": "info,belay::webhook=debug",
        "logFormat": "text",
        "bindAddress": "[::]",
        "adminPort": 9090,
        "writesPerSecond": 50,
        "crds": { "keep": false },
        "evictionHold": {
            "historyTTL": "1h30m",
            "excludedNamespaces": ["istio-system", "123"],
            "ignoreEvictors": ["system:serviceaccount:argo-rollouts:*", "yes"],
            "ignoreRestarters": false,
            "doom": {
                "signalStability": "1m",
                "softSignals": true,
                "taints": [{ "key": "example.com/going" }, { "key": "7", "notice": "45s" }],
                "conditions": ["KernelDeadlock", "true"],
            },
            "scale": { "abandonAfter": "10m" },
            "defaultPolicy": {
                "enabled": true,
                "namespaces": ["shop", "*"],
                "handover": "Scale",
                "trigger": "OnDoom",
                "surgeReplicas": 2,
                "readinessDeadlineSeconds": 120,
                "onFailure": "RollBack",
            },
        },
        "busyHints": {
            "enabled": true,
            "presets": ["arc"],
            "presetOverrides": { "arc": { "namespaces": ["ci"], "maxBusy": "24h" } },
            "rules": [runner_rule(), plain_rule()],
        },
        "deletionCost": {
            "enabled": true,
            "maxNodes": 500,
            "nodePools": ["general", "on", "7"],
            "spreadZones": true,
            "settlePeriod": "1h",
            "standDownPeriod": "24h",
            "writesPerSecond": 15,
        },
        "probe": { "interval": "2m" },
        "admission": admission(),
        "admissionPolicy": { "enabled": true, "exemptUsers": ["alice@example.com", "it's \"bob\""] },
        "certs": issued(),
        "podSecurityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "privileged": false,
            "capabilities": { "drop": ["ALL"] },
        },
        "webhook": webhook,
        "controller": controller,
        "networkPolicy": {
            "enabled": true,
            "webhookFrom": [{ "ipBlock": { "cidr": "192.0.2.0/24" } }],
            "metricsFrom": [{ "podSelector": { "matchLabels": { "example.com/prometheus": "yes" } } }],
            "apiServerPorts": [6443],
        },
    })
}
