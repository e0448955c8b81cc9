use belay_decide::cost::cluster::Labels;
use serde_json::{Value, json};

use super::*;
use crate::testing;

const COST: &str = COST_ANNOTATION;
const MANAGED: &str = MANAGED_ANNOTATION;
const SAFE: &str = SAFE_TO_EVICT;

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

/// When the tests look.
fn now() -> Timestamp {
    at("2026-11-30T12:00:00Z")
}

/// What Belay records of this value.
fn record(value: &str) -> String {
    json!({COST: value}).to_string()
}

fn owner(api_version: &str, kind: &str, controller: bool) -> Value {
    json!([{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "o-1", "controller": controller}])
}

/// A pod of a ReplicaSet, that came at 9 and runs since a minute later.
fn raw_pod() -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": "web-1", "uid": "p-1", "resourceVersion": "7",
            "creationTimestamp": "2026-11-30T09:00:00Z", "labels": {"app": "web"},
            "ownerReferences": owner("apps/v1", "ReplicaSet", true),
        },
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running", "startTime": "2026-11-30T09:01:00Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T09:02:00Z"}],
        },
    })
}

fn with(merge: &Value) -> Value {
    let mut pod = raw_pod();
    json_patch::merge(&mut pod, merge);
    pod
}

fn annotated(annotations: &Value) -> Value {
    with(&json!({"metadata": {"annotations": annotations}}))
}

fn read_as(raw: Value, left_out: &LeftOut) -> KnownPod {
    pod(&serde_json::from_value(raw).unwrap(), left_out, now())
}

fn read(raw: Value) -> KnownPod {
    read_as(raw, &LeftOut::default())
}

#[test]
fn a_pod_is_read_as_it_stands() {
    let known = read(annotated(&json!({COST: "-9", MANAGED: record("-9"), "note": "x"})));
    let expected = KnownPod {
        pod: CostPod {
            namespace: "shop".into(),
            name: "web-1".into(),
            uid: "p-1".into(),
            set: Some("o-1".into()),
            node: Some("n1".into()),
            phase: PodPhase::Running,
            terminating: false,
            readiness: Readiness::Ready(Some(at("2026-11-30T09:02:00Z"))),
            restarts: 0,
            sidecar_restarts: 0,
            created: at("2026-11-30T09:00:00Z"),
            priority: 0,
            standing: Standing::Ours(-9),
            movable: true,
            hold: None,
            blocked_since: None,
        },
        resource_version: "7".into(),
        present: Some("-9".into()),
        managed: Some(record("-9").into()),
        labels: Arc::new(Labels::from([("app".to_owned(), "web".to_owned())])),
        hold_until: None,
    };
    assert_eq!(known, expected);
}

#[test]
fn a_pod_that_says_nothing_is_new_unbound_and_nobodys() {
    let known = read(json!({"metadata": {}}));
    let pod = &known.pod;
    assert_eq!((&pod.set, &pod.node, pod.phase, pod.created), (&None, &None, PodPhase::Pending, now()));
    assert_eq!((pod.readiness, pod.priority, pod.standing), (Readiness::NotReady(None), 0, Standing::Absent));
    assert_eq!((known.present, known.managed), (None, None));
    assert_eq!(read(with(&json!({"spec": {"nodeName": ""}}))).pod.node, None, "an empty name is none");
}

#[test]
fn what_is_not_ready_says_since_when() {
    let ready = |conditions: Value| read(with(&json!({"status": {"conditions": conditions}}))).pod.readiness;
    let nine = Some(at("2026-11-30T09:00:00Z"));
    let of = |status: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": "2026-11-30T09:00:00Z"}]);
    let other = json!([{"type": "ContainersReady", "status": "True"}]);
    let table = [
        ("true", of("True"), Readiness::Ready(nine)),
        ("true since nobody knows when", json!([{"type": "Ready", "status": "True"}]), Readiness::Ready(None)),
        ("false", of("False"), Readiness::NotReady(nine)),
        ("unknown", of("Unknown"), Readiness::NotReady(nine)),
        ("another condition", other, Readiness::NotReady(None)),
    ];
    for (name, conditions, expected) in table {
        assert_eq!(ready(conditions), expected, "{name}");
    }
}

#[test]
fn a_terminating_and_a_finished_pod_say_so() {
    assert!(read(with(&json!({"metadata": {"deletionTimestamp": "2026-11-30T11:59:00Z"}}))).pod.terminating);
    assert!(!read(raw_pod()).pod.terminating);
    assert_eq!(read(with(&json!({"status": {"phase": "Succeeded"}}))).pod.phase, PodPhase::Succeeded);
}

#[test]
fn a_priority_is_read_as_it_is() {
    for priority in [i32::MIN, -10, 0, 2_000_001_000] {
        assert_eq!(read(with(&json!({"spec": {"priority": priority}}))).pod.priority, priority);
    }
}

/// The rule of `costs` writes costs, that of `hints` does not and comes first where both select.
const BUSY: &str = "
- name: hints
  podSelector: {matchLabels: {hints: 'yes'}}
  states: [{state: Busy, when: 'true'}]
- name: costs
  namespaces: [shop, shut]
  podSelector: {matchLabels: {costs: 'yes'}}
  states: [{state: Busy, when: 'true'}]
  hints: {deletionCost: true}
";

fn left_out() -> LeftOut {
    let (rules, selects) = testing::rules(BUSY);
    let excluded = Rules { excluded_namespaces: vec!["shut".to_owned()], ..Rules::default() };
    LeftOut::of(excluded, &selects, &rules)
}

#[test]
fn whose_a_value_is_the_record_says_and_a_busy_rule_that_writes_costs_as_a_user_would() {
    let theirs = |value, replaced| Standing::Theirs { value, replaced };
    let given_up = json!({COST: null}).to_string();
    // Annotations; whose the value is where ranks are its only writer; and where a busy rule writes it.
    let table = [
        ("nothing", json!({}), Standing::Absent, Standing::GivenUp),
        ("a user's", json!({COST: "100"}), theirs(100, false), theirs(100, false)),
        ("a user's that is no number", json!({COST: "low"}), theirs(0, false), theirs(0, false)),
        ("ours", json!({COST: "-9", MANAGED: record("-9")}), Standing::Ours(-9), theirs(-9, false)),
        ("ours, replaced", json!({COST: "5", MANAGED: record("-9")}), theirs(5, true), theirs(5, false)),
        ("ours, taken away", json!({MANAGED: record("-9")}), Standing::Stripped(-9), Standing::GivenUp),
        ("given up", json!({MANAGED: given_up}), Standing::GivenUp, Standing::GivenUp),
        (
            "a record of other keys",
            json!({COST: "-9", MANAGED: "{\"x\":\"-9\"}"}),
            theirs(-9, false),
            theirs(-9, false),
        ),
        ("a record that is none", json!({COST: "-9", MANAGED: "-9"}), theirs(-9, false), theirs(-9, false)),
    ];
    let left_out = left_out();
    for (name, annotations, ranked, busy) in table {
        let standing = |labels: Value, namespace: &str| {
            let mut raw = annotated(&annotations);
            json_patch::merge(&mut raw, &json!({"metadata": {"labels": labels, "namespace": namespace}}));
            read_as(raw, &left_out).pod.standing
        };
        let costs = json!({"costs": "yes"});
        assert_eq!(standing(json!({}), "shop"), ranked, "{name}: no rule");
        assert_eq!(standing(json!({"hints": "yes"}), "shop"), ranked, "{name}: a rule that writes other hints");
        assert_eq!(standing(costs.clone(), "shop"), busy, "{name}: a rule that writes costs");
        assert_eq!(standing(costs.clone(), "bank"), ranked, "{name}: a namespace that the rule is not for");
        assert_eq!(standing(costs, "shut"), ranked, "{name}: an excluded namespace, where no rule governs");
        let both = json!({"hints": "yes", "costs": "yes"});
        assert_eq!(standing(both, "shop"), ranked, "{name}: the first rule that selects a pod governs it");
    }
}

#[test]
fn a_pod_is_of_its_replica_set_unless_its_namespace_is_excluded() {
    let table = [
        ("a ReplicaSet's", owner("apps/v1", "ReplicaSet", true), "shop", true),
        ("in an excluded namespace", owner("apps/v1", "ReplicaSet", true), "shut", false),
        ("owned, not controlled", owner("apps/v1", "ReplicaSet", false), "shop", false),
        ("a StatefulSet's", owner("apps/v1", "StatefulSet", true), "shop", false),
        ("a ReplicaSet's of another group", owner("apps.example/v1", "ReplicaSet", true), "shop", false),
        ("nobody's", json!([]), "shop", false),
    ];
    for (name, owners, namespace, is_of_set) in table {
        let raw = with(&json!({"metadata": {"ownerReferences": owners, "namespace": namespace}}));
        assert_eq!(read_as(raw, &left_out()).pod.set.is_some(), is_of_set, "{name}");
    }
}

#[test]
fn containers_and_sidecars_are_counted_by_the_one_that_restarted_most() {
    let statuses = |counts: &[(&str, i32)]| -> Value {
        counts.iter().map(|(name, count)| json!({"name": name, "restartCount": count})).collect()
    };
    let sidecar = |name: &str| json!({"name": name, "restartPolicy": "Always"});
    let init =
        json!([{"name": "migrate"}, sidecar("proxy"), sidecar("logs"), {"name": "once", "restartPolicy": "Never"}]);
    let raw = with(&json!({
        "spec": {"initContainers": init},
        "status": {
            "containerStatuses": statuses(&[("a", 2), ("b", 5), ("c", 0)]),
            "initContainerStatuses": statuses(&[("migrate", 9), ("proxy", 1), ("logs", 3), ("once", 8), ("gone", 7)]),
        },
    }));
    let pod = read(raw).pod;
    assert_eq!((pod.restarts, pod.sidecar_restarts), (5, 3), "what only runs at the start is no sidecar");
    let untold = read(with(&json!({"status": {"containerStatuses": [{"name": "a"}]}}))).pod;
    assert_eq!((untold.restarts, untold.sidecar_restarts), (0, 0));
}

#[test]
fn a_pod_keeps_its_node_for_reasons_of_its_own_and_some_of_them_end() {
    let forever = |hold: PodHold| (Some(hold), None);
    let until = |time: &str| (Some(PodHold::DoNotDisrupt), Some(at(time)));
    let nothing = (None, None);
    let disrupt = |value: &str| json!({DO_NOT_DISRUPT: value});
    let table = [
        ("nothing said", json!({}), nothing),
        ("not to be disrupted", disrupt("true"), forever(PodHold::DoNotDisrupt)),
        ("false", disrupt("false"), nothing),
        ("true in another spelling", disrupt("True"), nothing),
        ("empty", disrupt(""), nothing),
        ("a time from its start that has not passed", disrupt("3h"), until("2026-11-30T12:01:00Z")),
        ("in two units", disrupt("2h59m30s"), until("2026-11-30T12:00:30Z")),
        ("one that has just passed", disrupt("2h59m"), nothing),
        ("one that passed long ago", disrupt("5m"), nothing),
        ("the longest that Go knows", disrupt("2562047h"), until("2319-03-12T08:01:00Z")),
        ("one that Go does not know", disrupt("2562048h"), nothing),
        ("a number without a unit", disrupt("300"), nothing),
        ("a time that Go does not read, in words", disrupt("4 hours"), nothing),
        ("in ISO 8601", disrupt("PT4H"), nothing),
        ("in days", disrupt("1d"), nothing),
        ("of nothing", disrupt("0"), nothing),
        ("before its start", disrupt("-3h"), nothing),
        ("not safe to evict", json!({SAFE: "false"}), forever(PodHold::NotSafeToEvict)),
        ("safe to evict", json!({SAFE: "true"}), nothing),
        ("a time and for good", json!({DO_NOT_DISRUPT: "4h", SAFE: "false"}), forever(PodHold::NotSafeToEvict)),
        ("garbage and for good", json!({DO_NOT_DISRUPT: "x", SAFE: "false"}), forever(PodHold::NotSafeToEvict)),
    ];
    for (name, annotations, expected) in table {
        let known = read(annotated(&annotations));
        assert_eq!((known.pod.hold, known.hold_until), expected, "{name}");
    }
    let mut unstarted = annotated(&disrupt("1s"));
    unstarted["status"].as_object_mut().unwrap().remove("startTime");
    let known = read(unstarted);
    assert_eq!((known.pod.hold, known.hold_until), forever(PodHold::DoNotDisrupt), "until it is known when it started");
}

#[test]
fn only_what_would_have_to_run_elsewhere_is_movable_and_must_have_a_controller() {
    let mirror = json!({MIRROR_ANNOTATION: "m"});
    let unsafe_mirror = json!({MIRROR_ANNOTATION: "m", SAFE: "false"});
    let stays = json!({MIRROR_ANNOTATION: "m", DO_NOT_DISRUPT: "true"});
    let daemon = owner("apps/v1", "DaemonSet", true);
    let unsafe_ = json!({SAFE: "false"});
    let table = [
        ("a ReplicaSet's", owner("apps/v1", "ReplicaSet", true), json!({}), true, None),
        ("a Job's", owner("batch/v1", "Job", true), json!({}), true, None),
        ("bare", json!([]), json!({}), true, Some(PodHold::Unmanaged)),
        ("owned, not controlled", owner("v1", "ConfigMap", false), json!({}), true, Some(PodHold::Unmanaged)),
        ("a DaemonSet's", daemon.clone(), json!({}), false, None),
        ("a DaemonSet's, unsafe to evict", daemon.clone(), unsafe_, false, None),
        (
            "a DaemonSet's, not to be disrupted",
            daemon,
            json!({DO_NOT_DISRUPT: "true"}),
            false,
            Some(PodHold::DoNotDisrupt),
        ),
        ("a DaemonSet's of another group", owner("apps.kruise.io/v1alpha1", "DaemonSet", true), json!({}), true, None),
        ("mirror", json!([]), mirror, false, None),
        ("mirror, unsafe to evict", owner("v1", "Node", true), unsafe_mirror, false, None),
        ("mirror, not to be disrupted", json!([]), stays, false, Some(PodHold::DoNotDisrupt)),
    ];
    for (name, owners, annotations, movable, hold) in table {
        let raw = with(&json!({"metadata": {"ownerReferences": owners, "annotations": annotations}}));
        let pod = read(raw).pod;
        assert_eq!((pod.movable, pod.hold), (movable, hold), "{name}");
    }
}

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
