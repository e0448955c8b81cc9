//! Nodes, ReplicaSets, PodDisruptionBudgets, and what Karpenter says.

use super::*;

fn read_node(metadata: &Value, spec: &Value) -> NodeFacts {
    let mut raw = json!({"metadata": {"name": "n1", "creationTimestamp": "2026-11-30T09:00:00Z"}, "spec": spec});
    json_patch::merge(&mut raw["metadata"], metadata);
    node(&serde_json::from_value(raw).unwrap(), now())
}

#[test]
fn a_nodes_pool_is_what_the_first_label_that_names_one_says() {
    let mut labels = serde_json::Map::new();
    assert_eq!(read_node(&json!({"labels": {"pool": "x"}}), &json!({})).pool, None);
    for (key, pool) in [
        ("kubernetes.azure.com/agentpool", "aks"),
        ("eks.amazonaws.com/nodegroup", "eks"),
        ("cloud.google.com/gke-nodepool", "gke"),
        ("karpenter.sh/nodepool", "karpenter"),
    ] {
        labels.insert(key.to_owned(), json!(pool));
        let facts = read_node(&json!({"labels": labels}), &json!({}));
        assert_eq!(facts.pool.as_deref(), Some(pool), "{key} goes before those below it");
    }
}

#[test]
fn a_node_is_kept_for_the_first_reason_that_it_has() {
    let disrupt = |value: &str| json!({"annotations": {DO_NOT_DISRUPT: value}});
    let disabled = |value: &str| json!({"annotations": {SCALE_DOWN_DISABLED: value}});
    let labelled = |key: &str| json!({"labels": {key: ""}});
    let every = json!({
        "annotations": {DO_NOT_DISRUPT: "true", SCALE_DOWN_DISABLED: "true"},
        "labels": {"node-role.kubernetes.io/control-plane": ""},
    });
    let table = [
        ("nothing said", json!({}), None),
        ("not to be disrupted", disrupt("true"), Some(Keep::DoNotDisrupt)),
        ("for a time, which is not for nodes", disrupt("1h"), None),
        ("to be disrupted", disrupt("false"), None),
        ("not to be scaled down", disabled("true"), Some(Keep::ScaleDownDisabled)),
        ("to be scaled down", disabled("false"), None),
        ("the control plane's", labelled("node-role.kubernetes.io/control-plane"), Some(Keep::ControlPlane)),
        ("the same, of an old cluster", labelled("node-role.kubernetes.io/master"), Some(Keep::ControlPlane)),
        ("a worker", labelled("node-role.kubernetes.io/worker"), None),
        ("all at once", every, Some(Keep::DoNotDisrupt)),
    ];
    for (name, metadata, expected) in table {
        assert_eq!(read_node(&metadata, &json!({})).keep, expected, "{name}");
    }
}

#[test]
fn a_node_tells_its_domains_its_age_and_that_it_is_leaving() {
    let labels = json!({"topology.kubernetes.io/zone": "a", "kubernetes.io/hostname": "n1", "rack": "7"});
    let spec = json!({"unschedulable": true, "taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]});
    let facts = read_node(&json!({"labels": labels, "deletionTimestamp": "2026-11-30T11:00:00Z"}), &spec);
    for (key, domain) in [("topology.kubernetes.io/zone", "a"), ("kubernetes.io/hostname", "n1"), ("rack", "7")] {
        assert_eq!(facts.topology.get(key).map(|value| &**value), Some(domain), "{key}");
    }
    assert_eq!((facts.created, facts.leaving), (at("2026-11-30T09:00:00Z"), true));
    assert_eq!((&*facts.node.name, facts.node.unschedulable, facts.node.taints.len()), ("n1", true, 1));
    // What only others know of it.
    assert_eq!((facts.drifted, facts.stood_down), (false, false));
    assert!(!read_node(&json!({}), &json!({})).leaving);
}

fn read_set(spec: &Value) -> KnownSet {
    let raw = json!({
        "metadata": {"namespace": "shop", "name": "web-1", "uid": "s-1",
            "ownerReferences": owner("apps/v1", "Deployment", true)},
        "spec": spec,
    });
    set(&serde_json::from_value(raw).unwrap())
}

#[test]
fn a_replica_set_tells_its_size_and_whose_it_is() {
    let known = read_set(&json!({"replicas": 3}));
    let set = &known.set;
    assert_eq!((&*set.namespace, &*set.name, &*set.uid, set.replicas), ("shop", "web-1", "s-1", 3));
    assert_eq!((known.deployment.as_deref(), set.stood_down, set.constraints.len()), (Some("o-1"), false, 0));
    assert_eq!(read_set(&json!({"replicas": 0})).set.replicas, 0);
    assert_eq!(read_set(&json!({})).set.replicas, 1, "as the API server fills it in");
}

#[test]
fn a_constraint_is_a_sets_own_where_it_selects_the_sets_own_pods() {
    let labels = json!({"app": "web", "tier": "front", "pod-template-hash": "h"});
    let own = |selector: &Value| {
        let constraint = json!({"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": selector});
        let template = json!({"metadata": {"labels": labels}, "spec": {"topologySpreadConstraints": [constraint]}});
        !read_set(&json!({"template": template})).set.constraints.is_empty()
    };
    let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let table = [
        ("one of its labels", json!({"matchLabels": {"app": "web"}}), true),
        ("all of them", json!({"matchLabels": labels}), true),
        ("another application's", json!({"matchLabels": {"app": "api"}}), false),
        ("one of its labels and one that it lacks", json!({"matchLabels": {"app": "web", "zone": "a"}}), false),
        ("an expression that holds", expression("tier", "In", &["front", "back"]), true),
        ("one that does not", expression("tier", "NotIn", &["front"]), false),
        ("everything", json!({}), true),
        ("nothing", Value::Null, false),
        ("what cannot be read", expression("tier", "Near", &["front"]), false),
    ];
    for (name, selector, expected) in table {
        assert_eq!(own(&selector), expected, "{name}");
    }
}

#[test]
fn constraints_are_read_in_their_order_with_their_skew_and_how_hard_they_are() {
    let constraint = |key: &str, max_skew: i32, unsatisfiable: &str| {
        json!({"topologyKey": key, "maxSkew": max_skew, "whenUnsatisfiable": unsatisfiable,
            "labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["pod-template-hash"], "minDomains": 3,
            "nodeTaintsPolicy": "Honor"})
    };
    let foreign = json!({"topologyKey": "row", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "api"}}});
    let constraints = json!([
        constraint("zone", 2, "DoNotSchedule"),
        foreign,
        constraint("kubernetes.io/hostname", 1, "ScheduleAnyway"),
        constraint("rack", 0, "DoNotSchedule"),
    ]);
    let template = json!({"metadata": {"labels": {"app": "web", "pod-template-hash": "h"}},
        "spec": {"topologySpreadConstraints": constraints}});
    let expected = [("zone", 2, true), ("kubernetes.io/hostname", 1, false), ("rack", 1, true)];
    let expected = expected.map(|(key, max_skew, hard)| Constraint { key: key.into(), max_skew, hard });
    assert_eq!(read_set(&json!({"template": template})).set.constraints, expected, "a skew is one at least");
}

fn read_budget(spec: &Value, status: &Value) -> Budget {
    let raw = json!({
        "metadata": {"namespace": "shop", "name": "web", "creationTimestamp": "2026-11-30T09:00:00Z"},
        "spec": spec, "status": status,
    });
    budget(&serde_json::from_value(raw).unwrap(), now())
}

#[test]
fn a_budget_covers_what_its_selector_matches() {
    let labels = |app: &str| Labels::from([("app".to_owned(), app.to_owned())]);
    let near = json!({"matchExpressions": [{"key": "app", "operator": "Near", "values": ["web"]}]});
    let table = [
        ("by label", json!({"matchLabels": {"app": "web"}}), true, false),
        ("everything", json!({}), true, true),
        ("nothing", Value::Null, false, false),
        ("what cannot be read", near, false, false),
    ];
    let mut written = std::collections::BTreeSet::new();
    for (name, selector, web, api) in table {
        let budget = read_budget(&json!({"selector": selector}), &json!({"disruptionsAllowed": 1}));
        let covers = ((budget.selects)(&labels("web")), (budget.selects)(&labels("api")));
        assert_eq!(covers, (web, api), "{name}");
        assert!(written.insert(budget.selector), "{name}: another selector is told from the others");
    }
}

#[test]
fn a_budget_is_used_up_since_the_controller_said_so_last() {
    let denied = |status: &str| {
        json!({"type": "DisruptionAllowed", "status": status, "reason": "", "message": "",
            "lastTransitionTime": "2026-11-30T11:00:00Z"})
    };
    let other = json!({"type": "Else", "status": "False", "reason": "", "message": "",
        "lastTransitionTime": "2026-11-30T10:00:00Z"});
    let conditions =
        |allowed: i32, conditions: &[Value]| json!({"disruptionsAllowed": allowed, "conditions": conditions});
    let (nine, eleven) = (Some(at("2026-11-30T09:00:00Z")), Some(at("2026-11-30T11:00:00Z")));
    let table = [
        ("it allows one", conditions(1, &[denied("True")]), None),
        ("it allows one, whatever an old condition says", conditions(1, &[denied("False")]), None),
        ("it allows none", conditions(0, &[other.clone(), denied("False")]), eleven),
        ("less than none", conditions(-1, &[denied("False")]), eleven),
        ("that is not known any more", conditions(0, &[denied("Unknown")]), eleven),
        ("none, and the condition is late", conditions(0, &[denied("True")]), nine),
        ("none, and no such condition", conditions(0, &[other]), nine),
        ("nothing is said yet", Value::Null, nine),
    ];
    for (name, status, expected) in table {
        assert_eq!(read_budget(&json!({"selector": {}}), &status).exhausted_since, expected, "{name}");
    }
}

#[test]
fn a_budget_may_let_unready_pods_go() {
    let lets_go = |spec: &Value| read_budget(spec, &Value::Null).lets_unready_go;
    assert!(lets_go(&json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"})));
    assert!(!lets_go(&json!({"unhealthyPodEvictionPolicy": "IfHealthyBudget"})));
    assert!(!lets_go(&json!({})));
    for (current, wanted, expected) in [(3, 3, true), (4, 3, true), (2, 3, false), (0, 0, false)] {
        let status = json!({"currentHealthy": current, "desiredHealthy": wanted, "disruptionsAllowed": 0});
        assert_eq!(read_budget(&json!({}), &status).lets_unready_go, expected, "{current} of {wanted}");
    }
}

fn object(raw: Value) -> DynamicObject {
    serde_json::from_value(raw).unwrap()
}

#[test]
fn a_node_claim_tells_its_node_and_what_becomes_of_it() {
    let drifted = |status: &str| json!([{"type": "Ready", "status": "True"}, {"type": "Drifted", "status": status}]);
    let table = [
        ("calm", json!({"status": {"nodeName": "n1", "conditions": drifted("False")}}), (Some("n1"), false, false)),
        ("drifted", json!({"status": {"nodeName": "n1", "conditions": drifted("True")}}), (Some("n1"), false, true)),
        (
            "drifted perhaps",
            json!({"status": {"nodeName": "n1", "conditions": drifted("Unknown")}}),
            (Some("n1"), false, false),
        ),
        ("not registered", json!({"status": {"nodeName": ""}}), (None, false, false)),
        ("without a status", json!({}), (None, false, false)),
        (
            "of another shape",
            json!({"status": {"nodeName": 7, "conditions": {"type": "Drifted"}}}),
            (None, false, false),
        ),
        (
            "being deleted",
            json!({"metadata": {"deletionTimestamp": "2026-11-30T11:00:00Z"}, "status": {"nodeName": "n1"}}),
            (Some("n1"), true, false),
        ),
    ];
    for (name, merge, (node, leaving, drifted)) in table {
        let mut raw = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "c1"}});
        json_patch::merge(&mut raw, &merge);
        let expected = Claim { name: "c1".into(), node: node.map(Into::into), leaving, drifted };
        assert_eq!(claim(&object(raw)), expected, "{name}");
    }
}

#[test]
fn a_node_pool_is_still_where_it_is_never_consolidated() {
    let table = [
        (json!({"spec": {"disruption": {"consolidateAfter": "Never"}}}), true),
        (json!({"spec": {"disruption": {"consolidateAfter": "0s"}}}), false),
        (json!({"spec": {"disruption": {}}}), false),
        (json!({"spec": {}}), false),
        (json!({}), false),
    ];
    for (merge, is_still) in table {
        let mut raw = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"}});
        json_patch::merge(&mut raw, &merge);
        assert_eq!(pool(&object(raw)), Pool { name: "default".into(), is_still }, "{merge}");
    }
}
