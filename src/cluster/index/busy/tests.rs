//! What the cache answers about busy pods, and which of them it has looked at.

mod answers;
mod properties;
mod touches;

use belay_decide::hold::{HoldSpec, HoldStatus, HoldTrigger, WorkloadRef};
use belay_decide::view::{Mark, PodPhase, PodView};
use serde_json::json;

use super::super::{Dirty, IndexSink, WorkloadKey};
use super::*;
use crate::cluster::watch::Sink as _;
use crate::testing;

/// Rules of every shape: an owner of the namespace with linked pods, an owner two hops away, one of the cluster, none.
const RULES: &str = "
- name: runner
  podSelector: {matchLabels: {rule: runner}}
  owner: {group: ci.example, kind: Runner}
  linkedPods: {labelKey: job-of}
  states: [{state: Busy, when: 'owner.status.busy || linked.exists(one, one.status.busy)'}]
  eviction: {idle: DeleteOwner}
- name: member
  podSelector: {matchLabels: {rule: member}}
  owner: {group: ci.example, kind: Pool, through: {group: apps, kind: Set}}
  states: [{state: Busy, when: owner.status.busy}]
- name: worker
  podSelector: {matchLabels: {rule: worker}}
  owner: {group: ci.example, kind: Pool}
  linkedPods: {labelKey: task-of}
  states: [{state: Busy, when: owner.status.busy || linked.size() > 0}]
- name: plain
  podSelector: {matchLabels: {rule: plain}}
  states: [{state: Busy, when: pod.status.busy}]
";
const RUNNER: usize = 0;
const MEMBER: usize = 1;
const WORKER: usize = 2;
const PLAIN: usize = 3;

fn runner() -> GroupKind {
    GroupKind::new("ci.example", "Runner")
}

/// A kind of the cluster: its objects have no namespace.
fn pool() -> GroupKind {
    GroupKind::new("ci.example", "Pool")
}

fn set() -> GroupKind {
    GroupKind::new("apps", "Set")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A cache and what it says has changed.
struct Cluster {
    index: Index,
    dirty: Dirty,
}

/// What the cache answers about a pod, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Answer {
    /// Rule and UID of the pod that it governs.
    governed: Option<String>,
    /// UID of the owner; nothing where it is missing or not asked for.
    owner: Option<String>,
    linked: BTreeSet<String>,
    /// UID of the pod that is there.
    living: Option<String>,
    holds: BTreeSet<String>,
}

impl Cluster {
    fn new() -> Self {
        let (index, dirty) = Index::following(testing::rules(RULES).0);
        Self { index, dirty }
    }

    fn pods(&self, rule: usize) -> BusyPodSink {
        BusyPodSink { index: self.index.clone(), rule }
    }

    fn owners(&self, kind: GroupKind) -> OwnerSink {
        OwnerSink { index: self.index.clone(), kind }
    }

    fn linked(&self, label: &str) -> LinkedSink {
        LinkedSink { index: self.index.clone(), label: label.into() }
    }

    fn views(&self) -> IndexSink {
        IndexSink(self.index.clone())
    }

    /// Which pods are to be looked at since this was last asked.
    fn touched(&self) -> Vec<String> {
        self.dirty.take_pods().iter().map(ToString::to_string).collect()
    }

    fn ask(&self, namespace: &str, name: &str) -> Answer {
        self.index.busy(&PodKey::new(namespace, name), |BusyFacts { governed, living, holds }| {
            let owner = |seen: &Seen<'_>| match seen.owner {
                Found::Owner(owner) => Some(owner.uid.to_string()),
                Found::NotAsked | Found::Missing => None,
            };
            Answer {
                owner: governed.as_ref().and_then(|governed| owner(&governed.seen)),
                linked: governed
                    .iter()
                    .flat_map(|governed| &governed.seen.linked)
                    .map(|one| one["is"].to_string())
                    .collect(),
                governed: governed.map(|one| format!("{} {}", one.rule.spec.name, one.seen.pod.uid)),
                living: living.map(str::to_owned),
                holds: holds.iter().map(|hold| hold.name.clone()).collect(),
            }
        })
    }

    /// How many other pods the pod's owner has.
    fn siblings(&self, namespace: &str, name: &str) -> usize {
        let key = PodKey::new(namespace, name);
        self.index.busy(&key, |facts| facts.governed.map_or(0, |governed| governed.siblings))
    }
}

/// The pod of this name in `ci`, made at this second.
fn pod(name: &str, uid: &str, second: i64) -> BusyPod {
    BusyPod {
        namespace: "ci".into(),
        name: name.into(),
        uid: uid.into(),
        resource_version: "1".into(),
        created: at(second),
        terminating: false,
        mirror: false,
        node: Some("node-1".into()),
        phase: PodPhase::Running,
        ready_since: Some(at(second)),
        controller: None,
        marks: BTreeMap::new(),
        managed: None,
        object: json!({}),
    }
}

fn controlled(pod: BusyPod, kind: GroupKind, name: &str, uid: &str) -> BusyPod {
    BusyPod { controller: Some(ControllerRef { kind, name: name.into(), uid: uid.into() }), ..pod }
}

/// An owner of this name: in `ci`, or of the cluster where the namespace is empty.
fn owner(namespace: &str, name: &str, uid: &str) -> Owner {
    Owner {
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
        terminating: false,
        controller: None,
        object: json!({}),
        written: BTreeMap::new(),
    }
}

/// A pod in `ci` that is linked to another.
fn linked(name: &str, to: &str, second: i64) -> Linked {
    Linked {
        namespace: "ci".into(),
        name: name.into(),
        to: to.into(),
        created: at(second),
        finished: false,
        object: json!({"is": name}),
    }
}

fn hold(name: &str, reason: HoldReason, victim: &str, workload: &str) -> HoldView {
    HoldView {
        namespace: "ci".into(),
        name: name.into(),
        uid: format!("uid of {name}"),
        resource_version: "1".into(),
        spec: HoldSpec {
            victim_name: victim.into(),
            victim_uid: "p-1".into(),
            victim_node: "node-1".into(),
            victim_hash: String::new(),
            reason,
            workload: WorkloadRef::deployment(workload, "d-1"),
            evictor: "drainer".into(),
            trigger: HoldTrigger::Eviction,
            requested_at: at(0),
            deadline: at(600),
        },
        status: HoldStatus::default(),
    }
}

fn view(name: &str, marked: bool) -> PodView {
    PodView {
        namespace: "ci".into(),
        name: name.into(),
        uid: "p-1".into(),
        node: None,
        replica_set: None,
        template_hash: None,
        phase: PodPhase::Running,
        ready_since: None,
        terminating: false,
        unschedulable: false,
        marked,
        mark: Mark::Free,
    }
}

fn words<const N: usize>(words: [&str; N]) -> BTreeSet<String> {
    words.map(|word| format!("{word:?}")).into()
}
