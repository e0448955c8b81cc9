//! The rights of each component, told in full: a right more is as wrong as a right less.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::chart::{NAMESPACE, Objects};
use crate::matrix;

/// `scope group/resource[name] verb`; the scope is `cluster` or the role's namespace.
type Rights = BTreeSet<String>;

/// Expands one line of a table, `"pods, nodes: get list"`, into single rights.
fn grant(scope: &str, lines: &[&str]) -> Rights {
    let mut rights = Rights::new();
    for line in lines {
        let (resources, verbs) = line.split_once(": ").expect("a line is `resources: verbs`");
        for resource in resources.split(", ") {
            rights.extend(verbs.split(' ').map(|verb| format!("{scope} {resource} {verb}")));
        }
    }
    rights
}

/// What the roles bound to a ServiceAccount grant.
fn granted(objects: &Objects, account: &str) -> Rights {
    let mut rights = Rights::new();
    for (binding, role, scope) in [("ClusterRoleBinding", "ClusterRole", "cluster"), ("RoleBinding", "Role", NAMESPACE)]
    {
        for binding in objects.of_kind(binding) {
            let subject = json!([{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }]);
            if binding["subjects"] != subject {
                continue;
            }
            assert_eq!(binding["roleRef"]["kind"], role);
            let role = objects.get(role, binding["roleRef"]["name"].as_str().expect("a role has a name"));
            if scope != "cluster" {
                assert_eq!(role["metadata"]["namespace"], NAMESPACE);
            }
            for rule in role["rules"].as_array().expect("a role has rules") {
                rights.extend(expand(rule, scope));
            }
        }
    }
    rights
}

fn expand(rule: &Value, scope: &str) -> Rights {
    let texts = |key: &str| -> Vec<&str> {
        let values = rule[key].as_array().into_iter().flatten();
        values.map(|value| value.as_str().expect("a rule is made of text")).collect()
    };
    let names = match texts("resourceNames") {
        names if names.is_empty() => vec![String::new()],
        names => names.iter().map(|name| format!("[{name}]")).collect(),
    };
    let mut rights = Rights::new();
    for group in texts("apiGroups") {
        let group = if group.is_empty() { String::new() } else { format!("{group}/") };
        for resource in texts("resources") {
            for name in &names {
                rights.extend(texts("verbs").iter().map(|verb| format!("{scope} {group}{resource}{name} {verb}")));
            }
        }
    }
    rights
}

const WEBHOOK_CLUSTER: &[&str] = &["admissionregistration.k8s.io/validatingwebhookconfigurations[belay], \
     admissionregistration.k8s.io/mutatingwebhookconfigurations[belay]: get list watch"];
const WEBHOOK_NAMESPACE: &[&str] = &["secrets[belay-ca]: get list watch"];
const CONTROLLER_CLUSTER: &[&str] = &["admissionregistration.k8s.io/validatingwebhookconfigurations[belay], \
     admissionregistration.k8s.io/mutatingwebhookconfigurations[belay]: get list watch patch"];
const CONTROLLER_NAMESPACE: &[&str] = &[
    "secrets[belay-ca]: get list watch update",
    "secrets: create",
    "coordination.k8s.io/leases[belay-controller]: get update",
    "coordination.k8s.io/leases: create",
];
const HOLD_READS: &[&str] = &[
    "pods, nodes, apps/deployments, apps/replicasets: get list watch",
    "belay.dev/handoverpolicies, belay.dev/evictionholds: get list watch",
];
const HOLD_WEBHOOK_WRITES: &[&str] = &["belay.dev/evictionholds: create"];
const HOLD_CONTROLLER_WRITES: &[&str] = &[
    "apps/deployments: patch",
    "belay.dev/evictionholds: delete",
    "belay.dev/evictionholds/status, belay.dev/handoverpolicies/status: patch",
    "events.k8s.io/events: create patch",
];

#[test]
fn the_eviction_hold_gives_each_component_exactly_what_it_needs() {
    let objects = Objects::render(&json!({}));
    let mut webhook = grant("cluster", WEBHOOK_CLUSTER);
    webhook.extend(grant(NAMESPACE, WEBHOOK_NAMESPACE));
    webhook.extend(grant("cluster", HOLD_READS));
    webhook.extend(grant("cluster", HOLD_WEBHOOK_WRITES));
    assert_eq!(granted(&objects, "belay-webhook"), webhook);

    let mut controller = grant("cluster", CONTROLLER_CLUSTER);
    controller.extend(grant(NAMESPACE, CONTROLLER_NAMESPACE));
    controller.extend(grant("cluster", HOLD_READS));
    controller.extend(grant("cluster", HOLD_CONTROLLER_WRITES));
    assert_eq!(granted(&objects, "belay-controller"), controller);
}

#[test]
fn a_capability_that_is_off_leaves_no_right_behind() {
    let objects = Objects::render(&json!({ "evictionHold": { "enabled": false } }));
    for kind in ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"] {
        assert_eq!(objects.of_kind(kind).count(), 0, "{kind}");
    }
}

#[test]
fn named_service_accounts_get_the_same_rights() {
    let defaults = Objects::render(&json!({}));
    let everything = Objects::render(&matrix::everything());
    for (account, default_account) in [("hook", "belay-webhook"), ("control", "belay-controller")] {
        everything.get("ServiceAccount", account);
        assert_eq!(granted(&everything, account), granted(&defaults, default_account));
    }
}

#[test]
fn without_rbac_no_role_is_made() {
    let objects = Objects::render(&json!({ "rbac": { "create": false } }));
    for kind in ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"] {
        assert_eq!(objects.of_kind(kind).count(), 0, "{kind}");
    }
}

#[test]
fn users_read_holds_and_write_policies_but_never_write_holds() {
    let objects = Objects::render(&json!({}));
    let rules = |name: &str| {
        let role = objects.get("ClusterRole", name);
        let rules = role["rules"].as_array().expect("a role has rules");
        rules.iter().flat_map(|rule| expand(rule, "cluster")).collect::<Rights>()
    };
    let aggregated_to = |name: &str| -> Vec<String> {
        let labels = objects.get("ClusterRole", name)["metadata"]["labels"].as_object().expect("labels");
        let targets = labels.keys().filter_map(|key| key.strip_prefix("rbac.authorization.k8s.io/aggregate-to-"));
        targets.map(str::to_owned).collect()
    };
    let read = grant("cluster", &["belay.dev/handoverpolicies, belay.dev/evictionholds: get list watch"]);
    let write = grant("cluster", &["belay.dev/handoverpolicies: create update patch delete deletecollection"]);
    assert_eq!(rules("belay-view"), read);
    assert_eq!(rules("belay-edit"), write);
    assert_eq!(aggregated_to("belay-view"), ["admin", "edit", "view"]);
    assert_eq!(aggregated_to("belay-edit"), ["admin", "edit"]);
}

#[test]
fn no_role_uses_a_wildcard() {
    for case in matrix::cases() {
        let objects = Objects::render(&case.values);
        for role in objects.of_kind("ClusterRole").chain(objects.of_kind("Role")) {
            assert!(!role["rules"].to_string().contains('*'), "{}: {role}", case.name);
        }
    }
}
