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
    each_granted(objects, account).into_iter().collect()
}

/// The same, with every right as often as it is granted.
fn each_granted(objects: &Objects, account: &str) -> Vec<String> {
    let mut rights = Vec::new();
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
    "autoscaling/horizontalpodautoscalers, keda.sh/scaledobjects: list watch",
];
const HOLD_WEBHOOK_WRITES: &[&str] = &["belay.dev/evictionholds: create", "belay.dev/evictionholds/status: patch"];
const HOLD_CONTROLLER_WRITES: &[&str] = &[
    "apps/deployments, autoscaling/horizontalpodautoscalers, keda.sh/scaledobjects: patch",
    "pods: patch",
    "belay.dev/evictionholds: create delete",
    "lifecycle.k8s.io/evictions: list watch",
    "lifecycle.k8s.io/evictions/status: patch",
    "belay.dev/evictionholds/status, belay.dev/handoverpolicies/status: patch",
    "events.k8s.io/events: create patch",
];

/// What a probe compares: where evictions are sent.
const PROBED: &[&str] = &["admissionregistration.k8s.io/validatingwebhookconfigurations[belay]: get"];

/// The probe of whether evictions come to the webhook.
const PROBE: &[&str] = &["pods/eviction[belay-canary]: create"];

/// How the controller finds its own Deployment, which the Secret goes with; the eviction hold reads them anyway, and the
/// busy hints the pods.
const OWN_REPLICA_SET: &[&str] = &["apps/replicasets: get"];
const OWN_POD: &[&str] = &["pods: get"];

const BUSY_READS: &[&str] = &["pods: get list watch", "belay.dev/evictionholds: list watch"];
const BUSY_WEBHOOK_WRITES: &[&str] = &["belay.dev/evictionholds: create"];
const BUSY_CONTROLLER_WRITES: &[&str] = &[
    "pods: patch",
    "belay.dev/evictionholds: create delete",
    "lifecycle.k8s.io/evictions: list watch",
    "lifecycle.k8s.io/evictions/status: patch",
    "belay.dev/evictionholds/status: patch",
    "events.k8s.io/events: create patch",
];

const COST_READS: &[&str] = &[
    "pods, nodes, apps/replicasets, policy/poddisruptionbudgets: list watch",
    "karpenter.sh/nodeclaims, karpenter.sh/nodepools: list watch",
];
const COST_WEBHOOK_READS: &[&str] = &["pods: get"];
const COST_CONTROLLER_WRITES: &[&str] = &["pods: patch", "events.k8s.io/events: create patch"];

/// The rights of both components, webhook first, with these tables of the enabled capabilities.
fn expected(reads: &[&[&str]], webhook_writes: &[&[&str]], controller_writes: &[&[&str]]) -> [Rights; 2] {
    let component = |own: &[&str], namespace: &[&str], writes: &[&[&str]]| {
        let mut rights = grant("cluster", own);
        rights.extend(grant(NAMESPACE, namespace));
        rights.extend(reads.iter().chain(writes).flat_map(|lines| grant("cluster", lines)));
        rights
    };
    [
        component(WEBHOOK_CLUSTER, WEBHOOK_NAMESPACE, webhook_writes),
        component(CONTROLLER_CLUSTER, CONTROLLER_NAMESPACE, controller_writes),
    ]
}

/// The rights of both components of a render, webhook first.
fn components(objects: &Objects) -> [Rights; 2] {
    ["belay-webhook", "belay-controller"].map(|account| granted(objects, account))
}

#[test]
fn the_eviction_hold_gives_each_component_exactly_what_it_needs() {
    let mut expected = expected(&[HOLD_READS], &[HOLD_WEBHOOK_WRITES], &[HOLD_CONTROLLER_WRITES]);
    let quiet = Objects::render(&json!({ "probe": { "enabled": false } }));
    assert_eq!(components(&quiet), expected);
    expected[1].extend(grant(NAMESPACE, PROBE));
    assert_eq!(components(&Objects::render(&json!({}))), expected);
}

#[test]
fn the_busy_hints_give_each_component_exactly_what_it_needs() {
    let owners: &[&str] = &["actions.github.com/ephemeralrunners: get list watch"];
    let retired: &[&str] = &["actions.github.com/ephemeralrunners: delete"];
    let mut expected = expected(&[BUSY_READS, owners], &[BUSY_WEBHOOK_WRITES], &[BUSY_CONTROLLER_WRITES, retired]);
    expected[1].extend(grant(NAMESPACE, OWN_REPLICA_SET));
    expected[1].extend(grant(NAMESPACE, PROBE));
    assert_eq!(components(&Objects::render(&matrix::busy_alone())), expected);
}

#[test]
fn the_deletion_costs_give_each_component_exactly_what_it_needs() {
    let mut expected = expected(&[COST_READS], &[COST_WEBHOOK_READS], &[COST_CONTROLLER_WRITES]);
    expected[1].extend(grant(NAMESPACE, OWN_REPLICA_SET));
    expected[1].extend(grant(NAMESPACE, OWN_POD));
    assert_eq!(components(&Objects::render(&matrix::cost_alone())), expected);
}

/// What a component may do with these rights: one in a namespace is none beside the same in the whole cluster.
fn effective(mut rights: Rights) -> Rights {
    let whole = rights.clone();
    let in_namespace = format!("{NAMESPACE} ");
    rights.retain(|right| {
        let right = right.strip_prefix(&in_namespace);
        right.is_none_or(|right| !whole.contains(&format!("cluster {right}")))
    });
    rights
}

#[test]
fn capabilities_together_give_what_each_gives_and_nothing_twice() {
    let alone = |capability: &str| {
        let values = matrix::combinations().into_iter().find(|(name, _)| name == capability).expect("it is there").1;
        components(&Objects::render(&values))
    };
    let each: Vec<(&str, [Rights; 2])> =
        ["evictionHold", "busyHints", "deletionCost"].map(|name| (name, alone(name))).into();
    for (together, values) in matrix::combinations() {
        let objects = Objects::render(&values);
        for (index, account) in ["belay-webhook", "belay-controller"].into_iter().enumerate() {
            let of_each = each.iter().filter(|(name, _)| together.contains(name));
            let of_each: Rights = of_each.flat_map(|(_, rights)| rights[index].iter().cloned()).collect();
            let once = granted(&objects, account);
            assert_eq!(once, effective(of_each), "{together}: {account}");
            assert_eq!(each_granted(&objects, account).len(), once.len(), "{together}: {account}");
        }
    }
}

/// A rule of that name with these keys besides the required ones.
fn rule(name: &str, more: &Value) -> Value {
    let mut rule = matrix::plain_rule();
    rule["name"] = json!(name);
    for (key, value) in more.as_object().expect("keys") {
        rule[key] = value.clone();
    }
    rule
}

#[test]
fn rights_to_owners_follow_the_rules() {
    let retire = json!({ "idle": "DeleteOwner" });
    let runner = json!({ "group": "actions.github.com", "kind": "EphemeralRunner" });
    let rules = json!([
        rule("one", &json!({ "owner": runner, "eviction": retire })),
        // The same owner again, not to be deleted by this rule.
        rule("two", &json!({ "owner": runner })),
        rule("proxy", &json!({ "owner": { "group": "example.com", "kind": "Proxy", "resource": "proxies" } })),
        rule("core", &json!({ "owner": { "group": "", "kind": "ReplicationController" }, "eviction": retire })),
        rule(
            "far",
            &json!({ "owner": {
            "group": "example.com",
            "kind": "Pool",
            "through": { "group": "apps", "kind": "StatefulSet" },
        } })
        ),
        rule(
            "farther",
            &json!({ "owner": {
            "group": "other.example.com",
            "kind": "Policy",
            "resource": "policies",
            "through": { "group": "example.com", "kind": "Batch", "resource": "batches" },
        } })
        ),
        rule("ownerless", &json!({})),
    ]);
    let objects = Objects::render(
        &json!({ "evictionHold": { "enabled": false }, "busyHints": { "enabled": true, "rules": rules } }),
    );
    let owners: &[&str] = &[
        "actions.github.com/ephemeralrunners, replicationcontrollers, apps/statefulsets: get list watch",
        "example.com/batches, example.com/pools, example.com/proxies, other.example.com/policies: get list watch",
    ];
    let retired: &[&str] = &["actions.github.com/ephemeralrunners, replicationcontrollers: delete"];
    let mut expected = expected(&[BUSY_READS, owners], &[BUSY_WEBHOOK_WRITES], &[BUSY_CONTROLLER_WRITES, retired]);
    expected[1].extend(grant(NAMESPACE, OWN_REPLICA_SET));
    expected[1].extend(grant(NAMESPACE, PROBE));
    assert_eq!(components(&objects), expected);

    // One rule an API group, in order, nothing twice: a role that people can read.
    let rules = objects.get("ClusterRole", "belay-webhook")["rules"].as_array().expect("a role has rules").clone();
    let read = rules.iter().filter(|rule| rule["verbs"] == json!(["get", "list", "watch"]));
    let read = read.filter(|rule| rule["resources"] != json!(["pods"]) && rule.get("resourceNames").is_none());
    let read: Vec<(&Value, &Value)> = read.map(|rule| (&rule["apiGroups"][0], &rule["resources"])).collect();
    let in_order = json!([
        ["", ["replicationcontrollers"]],
        ["actions.github.com", ["ephemeralrunners"]],
        ["apps", ["statefulsets"]],
        ["example.com", ["batches", "pools", "proxies"]],
        ["other.example.com", ["policies"]],
    ]);
    assert_eq!(json!(read), in_order);
}

#[test]
fn the_cleanup_may_do_no_more_than_its_task_at_that_time() {
    let after_upgrade = || {
        let mut rights = grant("cluster", &["pods: list patch"]);
        rights.extend(grant(NAMESPACE, &["apps/deployments[belay-controller]: get"]));
        rights
    };
    let with_surges = || {
        let numbers = "apps/deployments, autoscaling/horizontalpodautoscalers, keda.sh/scaledobjects: get list patch";
        after_upgrade().into_iter().chain(grant("cluster", &[numbers])).collect::<Rights>()
    };
    let mut before_uninstallation = with_surges();
    let configuration = "admissionregistration.k8s.io/mutatingwebhookconfigurations[belay]: get delete";
    before_uninstallation.extend(grant("cluster", &[configuration]));
    before_uninstallation.extend(grant(NAMESPACE, &["apps/deployments/scale[belay-controller]: patch"]));
    // What is on, the controller looks after: no right to it.
    let default = Objects::render(&json!({}));
    assert_eq!(granted(&default, "belay-leftovers"), after_upgrade());
    assert_eq!(granted(&default, "belay-cleanup"), before_uninstallation);
    for values in [matrix::busy_alone(), matrix::cost_alone()] {
        let objects = Objects::render(&values);
        assert_eq!(granted(&objects, "belay-leftovers"), with_surges());
        assert_eq!(granted(&objects, "belay-cleanup"), before_uninstallation);
    }
    let off = Objects::render(&json!({ "evictionHold": { "enabled": false } }));
    assert_eq!(granted(&off, "belay-cleanup"), with_surges());
}

#[test]
fn certificates_from_elsewhere_take_along_the_rights_that_nobody_needs_for_them() {
    let without = |rights: &Rights, gone: &[(&str, &[&str])]| -> Rights {
        let gone: Rights = gone.iter().flat_map(|(scope, lines)| grant(scope, lines)).collect();
        assert!(gone.is_subset(rights), "{gone:?}");
        rights.difference(&gone).cloned().collect()
    };
    let of_secret: &[&str] = &["secrets[belay-ca]: get list watch update", "secrets: create"];
    for (capability, values) in matrix::combinations().into_iter().filter(|(name, _)| !name.is_empty()) {
        let [webhook, controller] = components(&Objects::render(&values));
        let own: Vec<&str> = controller.iter().map(String::as_str).collect();
        // Its own Deployment, the owner of the Secret, where these are not read of the whole cluster anyway.
        let owner: Vec<&str> = ["apps/replicasets: get", "pods: get"]
            .into_iter()
            .filter(|line| grant(NAMESPACE, &[line]).iter().all(|right| own.contains(&right.as_str())))
            .collect();
        for (certs, injected) in [
            (matrix::existing_secret()["certs"].clone(), false),
            (json!({ "mode": "certManager", "certManager": { "caInjector": false } }), false),
            (json!({ "mode": "certManager" }), true),
        ] {
            let mut values = values.clone();
            values["certs"] = certs;
            let objects = Objects::render(&values);
            let configurations: &[&str] = if injected { CONTROLLER_CLUSTER } else { &[] };
            let mut expected = [
                without(&webhook, &[(NAMESPACE, WEBHOOK_NAMESPACE)]),
                without(&controller, &[(NAMESPACE, of_secret), (NAMESPACE, &owner), ("cluster", configurations)]),
            ];
            if injected && capability != "deletionCost" {
                expected[1].extend(grant("cluster", PROBED));
            }
            assert_eq!(components(&objects), expected, "{capability}: {}", values["certs"]);
            // A role without rules would be none.
            assert!(objects.of_kind("Role").all(|role| role["metadata"]["name"] != "belay-webhook"));
        }
    }
}

#[test]
fn a_test_of_the_release_may_probe_and_nothing_else() {
    let mut expected = grant("cluster", PROBED);
    expected.extend(grant(NAMESPACE, PROBE));
    for values in [json!({}), matrix::busy_alone(), matrix::everything()] {
        assert_eq!(granted(&Objects::render(&values), "belay-probe"), expected);
    }
}

#[test]
fn a_capability_that_is_off_leaves_no_right_behind() {
    let off = json!({ "evictionHold": { "enabled": false }, "cleanup": { "enabled": false } });
    let objects = Objects::render(&off);
    for kind in ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"] {
        assert_eq!(objects.of_kind(kind).count(), 0, "{kind}");
    }
}

#[test]
fn named_service_accounts_get_the_same_rights() {
    let mut values = matrix::busy_alone();
    values["evictionHold"]["enabled"] = json!(true);
    values["deletionCost"] = json!({ "enabled": true });
    values["certs"] = matrix::everything()["certs"].clone();
    let defaults = Objects::render(&values);
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
    objects.get("ServiceAccount", "belay-cleanup");
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

    // Without the eviction hold there are no policies to see.
    let busy = Objects::render(&matrix::busy_alone());
    let view = busy.get("ClusterRole", "belay-view")["rules"].as_array().expect("a role has rules").clone();
    let view: Rights = view.iter().flat_map(|rule| expand(rule, "cluster")).collect();
    assert_eq!(view, grant("cluster", &["belay.dev/evictionholds: get list watch"]));
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
