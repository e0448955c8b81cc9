//! Pods, and what the tests of the other kinds share.

mod objects;

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
        ("nothing", json!({}), Standing::Absent, Standing::OtherPart(0)),
        ("a user's", json!({COST: "100"}), theirs(100, false), theirs(100, false)),
        ("a user's that is no number", json!({COST: "low"}), theirs(0, false), theirs(0, false)),
        ("ours", json!({COST: "-9", MANAGED: record("-9")}), Standing::Ours(-9), Standing::OtherPart(-9)),
        ("ours, replaced", json!({COST: "5", MANAGED: record("-9")}), theirs(5, true), theirs(5, false)),
        ("ours, taken away", json!({MANAGED: record("-9")}), Standing::Stripped(-9), Standing::OtherPart(0)),
        ("given up", json!({MANAGED: given_up}), Standing::GivenUp, Standing::OtherPart(0)),
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
    for (value, expected) in [("1s", forever(PodHold::DoNotDisrupt)), ("-3h", nothing), ("0", nothing), ("x", nothing)]
    {
        let mut unstarted = annotated(&disrupt(value));
        unstarted["status"].as_object_mut().unwrap().remove("startTime");
        let known = read(unstarted);
        assert_eq!((known.pod.hold, known.hold_until), expected, "{value} from a start that is not known yet");
    }
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

#[test]
fn a_pod_of_which_the_kubelet_said_nothing_yet_starts_from_when_it_got_its_node() {
    let since = |conditions: Value| {
        let raw = json!({"metadata": {"namespace": "shop", "name": "web-1"}, "status": {"conditions": conditions}});
        pod(&serde_json::from_value(raw).unwrap(), &LeftOut::default(), now()).pod.readiness
    };
    let of = |kind: &str, status: &str, hour: u32| json!({"type": kind, "status": status, "lastTransitionTime": format!("2026-11-30T{hour:02}:00:00Z")});
    let at_nine = Readiness::NotReady(Some(at("2026-11-30T09:00:00Z")));
    let at_ten = Readiness::NotReady(Some(at("2026-11-30T10:00:00Z")));
    assert_eq!(since(json!([of("PodScheduled", "True", 9)])), at_nine);
    assert_eq!(since(json!([of("PodScheduled", "True", 9), of("Ready", "False", 10)])), at_ten);
    assert_eq!(since(json!([of("PodScheduled", "False", 9)])), Readiness::NotReady(None));
}
