//! Whatever comes and goes, nothing is kept of what is gone.

mod autoscalers;
mod nodes;
mod requests;

use belay_decide::action::ObjectRef;
use belay_decide::handover::surge;
use belay_decide::view::{AutoscalerView, Governor, Mark, NodeView, PodPhase};
use jiff::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::*;
use crate::cluster::project;
use crate::cluster::project_autoscaler::Autoscaler;
use crate::cluster::subset::DeploymentSubset;
use crate::cluster::watch::Sink;
use crate::testing;

#[derive(Clone, Debug)]
enum Object {
    Pod(PodView),
    ReplicaSet(ReplicaSetView),
    Deployment(DeploymentView),
    Node(SeenNode),
    Policy(Policy),
    Autoscaler(Autoscaler),
}

const NAMES: [&str; 2] = ["x", "y"];

fn names() -> impl Strategy<Value = &'static str> {
    select(NAMES.to_vec())
}

/// The UID of the object of this name, which a later one of the name does not share.
fn uid(what: &str, name: &str, generation: u8) -> String {
    format!("{what} {name} {generation}")
}

fn pod(name: &str, generation: u8, set: Option<(&str, u8)>) -> PodView {
    PodView {
        namespace: "n".into(),
        name: name.into(),
        uid: uid("pod", name, generation).as_str().into(),
        node: None,
        replica_set: set.map(|(name, generation)| uid("set", name, generation).as_str().into()),
        template_hash: None,
        phase: PodPhase::Running,
        ready_since: None,
        terminating: false,
        unschedulable: false,
        marked: false,
        mark: Mark::Free,
    }
}

fn node(name: &str, unschedulable: bool) -> SeenNode {
    let view = NodeView { name: name.into(), unschedulable, ..NodeView::default() };
    SeenNode { view, at: Timestamp::UNIX_EPOCH }
}

fn replica_set(name: &str, generation: u8, deployment: Option<(&str, u8)>) -> ReplicaSetView {
    ReplicaSetView {
        namespace: "n".into(),
        name: name.into(),
        uid: uid("set", name, generation).as_str().into(),
        deployment: deployment.map(|(name, generation)| uid("deployment", name, generation).as_str().into()),
        revision: None,
        template_hash: None,
        slot: None,
    }
}

fn deployment(name: &str, generation: u8, surged: bool) -> DeploymentView {
    let mut meta = json!({"namespace": "n", "name": name, "uid": uid("deployment", name, generation)});
    if surged {
        meta["annotations"] = json!({ surge::SURGE_ANNOTATION: surge::render(&testing::surge(Some(3))) });
    }
    project::deployment(&serde_json::from_value::<DeploymentSubset>(json!({ "metadata": meta })).unwrap())
}

/// An autoscaler of the Deployment of that name; of none where that is absent.
fn autoscaler(governor: Governor, name: &str, target: Option<&str>, surged: bool) -> Autoscaler {
    let view = target.map(|target| AutoscalerView {
        governor,
        object: ObjectRef {
            namespace: "n".into(),
            name: name.into(),
            uid: uid("autoscaler", name, 0),
            resource_version: "1".into(),
        },
        target: target.into(),
        minimum: Some(3),
        maximum: 9,
        paused: false,
        surge: surged.then(|| testing::surge(Some(3))),
    });
    Autoscaler { governor, namespace: "n".into(), name: name.into(), view }
}

const GOVERNORS: [Governor; 2] = [Governor::HorizontalPodAutoscaler, Governor::ScaledObject];

fn policy(name: &str) -> Policy {
    let policy: api::HandoverPolicy = serde_json::from_value(json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
        "metadata": {"namespace": "n", "name": name}, "spec": {"targetRef": {"name": name}},
    }))
    .unwrap();
    Policy {
        view: project::policy(&policy),
        target: Target::of(Some(name), None),
        generation: 1,
        resource_version: "1".into(),
        uid: uid("policy", name, 0),
        status: None,
    }
}

fn objects() -> impl Strategy<Value = Object> {
    let of = || (names(), 0..2_u8);
    prop_oneof![
        3 => (of(), proptest::option::of(of()), proptest::option::of(names())).prop_map(|((name, generation), set, node)| {
            Object::Pod(PodView { node: node.map(Into::into), ..pod(name, generation, set) })
        }),
        3 => (of(), proptest::option::of(of()))
            .prop_map(|((name, generation), above)| Object::ReplicaSet(replica_set(name, generation, above))),
        2 => (of(), any::<bool>())
            .prop_map(|((name, generation), surged)| Object::Deployment(deployment(name, generation, surged))),
        2 => (select(GOVERNORS.to_vec()), names(), proptest::option::of(names()), any::<bool>()).prop_map(
            |(governor, name, target, surged)| Object::Autoscaler(autoscaler(governor, name, target, surged))
        ),
        1 => (names(), any::<bool>()).prop_map(|(name, unschedulable)| {
            Object::Node(node(name, unschedulable))
        }),
        1 => names().prop_map(|name| Object::Policy(policy(name))),
    ]
}

fn put(index: &Index, object: Object) {
    let mut sink = IndexSink(index.clone());
    match object {
        Object::Pod(one) => sink.apply(one),
        Object::ReplicaSet(one) => sink.apply(one),
        Object::Deployment(one) => sink.apply(one),
        Object::Node(one) => sink.apply(one),
        Object::Policy(one) => sink.apply(one),
        Object::Autoscaler(one) => AutoscalerSink { index: index.clone(), governor: one.governor }.apply(one),
    }
}

/// The object of that name is gone; what the watch sends for it may differ from what was last known.
fn take(index: &Index, object: Object) {
    let mut sink = IndexSink(index.clone());
    match object {
        Object::Pod(one) => sink.delete(one),
        Object::ReplicaSet(one) => sink.delete(one),
        Object::Deployment(one) => sink.delete(one),
        Object::Node(one) => sink.delete(one),
        Object::Policy(one) => sink.delete(one),
        Object::Autoscaler(one) => AutoscalerSink { index: index.clone(), governor: one.governor }.delete(one),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_comes_and_goes_leaves_nothing(changes in proptest::collection::vec((any::<bool>(), objects()), 1..60)) {
        let index = Index::default();
        for (comes, object) in changes {
            if comes { put(&index, object) } else { take(&index, object) }
        }
        for name in NAMES {
            let last = [
                Object::Pod(pod(name, 9, None)),
                Object::ReplicaSet(replica_set(name, 9, None)),
                Object::Deployment(deployment(name, 9, false)),
                Object::Node(node(name, false)),
                Object::Policy(policy(name)),
            ];
            for object in last {
                take(&index, object);
            }
            for governor in GOVERNORS {
                take(&index, Object::Autoscaler(autoscaler(governor, name, Some(name), false)));
            }
        }
        prop_assert!(index.is_empty(), "something is kept of what is gone");
    }
}
