//! Nodes that are about to go, and whom that concerns.

use belay_decide::doom::Signals;
use belay_decide::hold::{HoldReason, HoldTrigger, WorkloadRef};
use belay_decide::policy::{DefaultPolicy, Mode, Settings, Trigger};
use jiff::{SignedDuration, Timestamp};

use super::*;

const START: Timestamp = Timestamp::UNIX_EPOCH;

fn later(seconds: i64) -> Timestamp {
    START + SignedDuration::from_secs(seconds)
}

/// A node with this taint, seen so many seconds after the start.
fn tainted(name: &str, taint: &str, seconds: i64) -> SeenNode {
    let mut node = node(name, false);
    node.view.taints.push(taint.into());
    SeenNode { at: later(seconds), ..node }
}

fn staying(name: &str) -> SeenNode {
    node(name, false)
}

/// Workloads `x` and `y` with a pod each, on the nodes `a` and `b`.
fn two() -> (Index, Dirty) {
    let (index, dirty) = Index::following(Vec::new());
    for (name, node) in [("x", "a"), ("y", "b")] {
        put(&index, Object::Deployment(deployment(name, 0, false)));
        put(&index, Object::ReplicaSet(replica_set(name, 0, Some((name, 0)))));
        put(&index, Object::Pod(PodView { node: Some(node.into()), ..pod(name, 0, Some((name, 0))) }));
    }
    dirty.take_workloads();
    (index, dirty)
}

fn touched(dirty: &Dirty) -> Vec<String> {
    dirty.take_workloads().iter().map(ToString::to_string).collect()
}

fn on_doom() -> DefaultPolicy {
    let settings = Settings { trigger: Trigger::OnDoom, ..Settings::default() };
    DefaultPolicy { enabled: true, namespaces: vec!["*".into()], settings }
}

/// What is known of the node of `x`: since when, whether softly, and whether it counts for placement.
fn known(index: &Index, default: &DefaultPolicy) -> Option<(Timestamp, bool, bool)> {
    index.workload(&WorkloadKey::new("n", "x"), default, |workload, _, _| {
        let workload = workload.unwrap();
        let (node, doomed) = workload.dooms.first_key_value().unwrap();
        (doomed.since, doomed.soft, workload.doomed_nodes.contains(node))
    })
}

#[test]
fn a_node_that_is_about_to_go_touches_the_workloads_on_it_alone() {
    let (index, dirty) = two();
    let mut sink = IndexSink(index.clone());
    sink.apply(staying("a"));
    assert_eq!(touched(&dirty), [""; 0], "a node that stays concerns nobody");
    sink.apply(tainted("a", "karpenter.sh/disrupted", 0));
    assert_eq!(touched(&dirty), ["n/x"]);
    sink.apply(tainted("a", "karpenter.sh/disrupted", 9));
    assert_eq!(touched(&dirty), [""; 0], "nothing new");
    sink.apply(staying("a"));
    assert_eq!(touched(&dirty), ["n/x"]);
}

#[test]
fn a_workload_is_asked_about_while_a_handover_of_it_may_begin_by_itself() {
    let (index, _) = two();
    let mut sink = IndexSink(index.clone());
    assert_eq!(known(&index, &on_doom()), None, "no node is going");
    sink.apply(tainted("b", "karpenter.sh/disrupted", 0));
    assert_eq!(known(&index, &on_doom()), None, "its node is not");
    sink.apply(tainted("a", "karpenter.sh/disrupted", 5));
    assert_eq!(known(&index, &on_doom()), Some((later(5), false, true)));
    let by_evictions = DefaultPolicy { settings: Settings::default(), ..on_doom() };
    assert_eq!(known(&index, &by_evictions), None, "it waits for evictions");
    sink.apply(tainted("a", "DeletionCandidateOfClusterAutoscaler", 7));
    assert_eq!(known(&index, &on_doom()), Some((later(7), true, false)), "a soft signal keeps nobody off");
}

#[test]
fn since_when_a_node_is_about_to_go_outlives_a_list_that_is_read_anew() {
    let (index, _) = two();
    let mut sink = IndexSink(index.clone());
    sink.replace(vec![tainted("a", "karpenter.sh/disrupted", 0), staying("b")]);
    sink.replace(vec![tainted("a", "karpenter.sh/disrupted", 60), staying("b")]);
    assert_eq!(known(&index, &on_doom()), Some((later(0), false, true)));
    sink.replace(vec![staying("a"), staying("b")]);
    assert_eq!(known(&index, &on_doom()), None);
    sink.replace(vec![tainted("a", "karpenter.sh/disrupted", 90), staying("b")]);
    assert_eq!(known(&index, &on_doom()), Some((later(90), false, true)), "it began anew");
    sink.replace(vec![staying("b")]);
    assert_eq!(known(&index, &on_doom()), None, "the node is gone");
}

#[test]
fn whoever_leads_anew_looks_at_the_workloads_on_nodes_that_are_going() {
    let (index, dirty) = two();
    IndexSink(index.clone()).apply(tainted("b", "karpenter.sh/disrupted", 0));
    touched(&dirty);
    index.touch_workloads_with_holds();
    assert_eq!(touched(&dirty), ["n/y"]);
    IndexSink(index).apply(policy("p"));
    assert_eq!(touched(&dirty), ["n/y"], "a policy may have them begin");
}

#[test]
fn other_signals_are_judged_at_once_by_what_is_known_of_nodes() {
    let (index, dirty) = two();
    let mut sink = IndexSink(index.clone());
    sink.apply(tainted("a", "example.com/going", 0));
    assert_eq!((touched(&dirty).len(), known(&index, &on_doom())), (0, None));
    let ours = Signals { taints: vec![("example.com/going".into(), None)], ..Signals::default() };
    index.judge_by(&ours, later(30));
    assert_eq!(known(&index, &on_doom()), Some((later(30), false, true)));
    assert_eq!(touched(&dirty), ["n/x"]);
    index.judge_by(&Signals::default(), later(40));
    assert_eq!(known(&index, &on_doom()), None);
}

#[test]
fn nodes_that_are_going_are_named_for_a_stand_in_alone() {
    let (index, _) = two();
    let mut sink = IndexSink(index.clone());
    sink.apply(tainted("b", "karpenter.sh/disrupted", 0));
    let mut asked = requests::hold("x", 0, HoldReason::Handover, HoldTrigger::Eviction);
    asked.spec.workload = WorkloadRef::deployment("x", "u");
    sink.apply(asked);
    let going = |mode| {
        let settings = Settings { mode, ..Settings::default() };
        let default = DefaultPolicy { settings, ..on_doom() };
        let ask = |workload: &belay_decide::steer::Replacing<'_>| {
            workload.going.iter().map(|&node| node.to_owned()).collect()
        };
        index.new_pod::<Vec<String>>("n", "x-7", "7", &default, ask)
    };
    assert_eq!(going(Mode::Scale), Some(vec!["b".to_owned()]));
    assert_eq!(going(Mode::Restart), Some(Vec::new()));
}
