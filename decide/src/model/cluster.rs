//! The API server: objects, versions, and what caches see of them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use jiff::Timestamp;

use super::Config;
use crate::handover::Workload;
use crate::handover::record::HandoverRecord;
use crate::hold::{HoldSpec, HoldStatus, HoldView, Phase, hold_name};
use crate::steer::Avoid;
use crate::testing::deployment;
use crate::view::{DeploymentView, IntOrPercent, PodPhase, PodView, ReplicaSetView, Strategy};

/// The nodes there are.
pub(super) const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// A ReplicaSet.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) view: ReplicaSetView,
    /// Which of the user's releases its template is of.
    pub(super) release: u8,
    /// `spec.replicas`.
    pub(super) desired: i32,
    /// Annotation `deployment.kubernetes.io/desired-replicas`.
    pub(super) asked: i32,
    /// The Deployment's records as copied to it: the Deployment controller copies all annotations to the newest
    /// ReplicaSet, and `kubectl rollout undo` copies them back.
    pub(super) records: Vec<HandoverRecord>,
    /// `status.replicas`.
    pub(super) pods: i32,
    /// `status.availableReplicas`.
    pub(super) available: i32,
}

/// A pod, and what its node and the scheduler know of it.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) view: PodView,
    /// What the pod-create webhook made it avoid.
    pub(super) avoid: Avoid,
    pub(super) bound_at: i64,
    /// How long it takes to be ready once bound; absent for never.
    pub(super) startup: Option<i64>,
    /// When it is gone, once it terminates.
    pub(super) gone_at: Option<i64>,
}

/// What the Deployment's condition `Progressing` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Complete,
    Since(i64),
    TimedOut,
}

/// All objects.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) deployment: DeploymentView,
    /// Which of the user's releases the Deployment's template is of.
    pub(super) release: u8,
    pub(super) progress: Progress,
    pub(super) sets: Vec<Set>,
    pub(super) pods: Vec<Pod>,
    pub(super) cordoned: BTreeSet<&'static str>,
    pub(super) holds: Vec<HoldView>,
    /// Counts versions and UIDs.
    counter: u64,
}

impl Api {
    pub(super) fn new(config: &Config) -> Self {
        let strategy = if config.recreate {
            Strategy::Recreate
        } else {
            Strategy::RollingUpdate { max_surge: IntOrPercent::Int(1), max_unavailable: IntOrPercent::Int(0) }
        };
        Self {
            deployment: DeploymentView {
                strategy,
                min_ready_seconds: config.min_ready,
                revision: None,
                status: crate::view::DeploymentStatus::default(),
                ..deployment("shop", "web")
            },
            release: 1,
            progress: Progress::Since(0),
            sets: Vec::new(),
            pods: Vec::new(),
            cordoned: BTreeSet::new(),
            holds: Vec::new(),
            counter: 0,
        }
    }

    /// A number that was never given before.
    pub(super) fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// The Deployment was written.
    pub(super) fn deployment_written(&mut self) {
        self.deployment.resource_version = self.next().to_string();
    }

    /// The ReplicaSet whose template is the Deployment's.
    pub(super) fn newest(&self) -> Option<usize> {
        let slot = self.deployment.slot.as_deref();
        self.sets.iter().position(|set| set.release == self.release && set.view.slot.as_deref() == slot)
    }

    pub(super) fn pod(&self, uid: &str) -> Option<&Pod> {
        self.pods.iter().find(|pod| *pod.view.uid == *uid)
    }

    pub(super) fn hold_of(&self, uid: &str) -> Option<&HoldView> {
        self.holds.iter().find(|hold| hold.spec.victim_uid == uid)
    }

    /// A webhook replica records a hold: a create that meets its like changes nothing.
    pub(super) fn create_hold(&mut self, spec: HoldSpec) {
        let name = hold_name(spec.reason, &spec.victim_name, &spec.victim_uid);
        if self.holds.iter().any(|hold| hold.name == name) {
            return;
        }
        let number = self.next();
        self.holds.push(HoldView {
            namespace: "shop".into(),
            name,
            uid: format!("hold-{number}"),
            resource_version: number.to_string(),
            spec,
            status: HoldStatus::default(),
        });
    }

    /// Another available pod than this one, on a node that stays.
    pub(super) fn serves_beside(&self, victim: &PodView, now: Timestamp) -> bool {
        self.pods.iter().map(|pod| &pod.view).any(|pod| {
            pod.uid != victim.uid
                && !pod.terminating
                && pod.is_available(self.deployment.min_ready_seconds, now)
                && pod.node != victim.node
                && pod.node.as_deref().is_some_and(|node| !self.cordoned.contains(node))
        })
    }

    pub(super) fn running(&self) -> usize {
        self.pods.iter().filter(|pod| pod.view.phase == PodPhase::Running).count()
    }

    /// What caches may show from now on; what did not change is shared with what they showed before.
    pub(super) fn seen(&self, before: Option<&Seen>) -> Seen {
        fn shared<T: PartialEq>(before: Option<&Rc<T>>, now: T) -> Rc<T> {
            before.filter(|before| ***before == now).map_or_else(|| Rc::new(now), Rc::clone)
        }
        Seen {
            deployment: shared(before.map(|seen| &seen.deployment), self.deployment.clone()),
            sets: shared(before.map(|seen| &seen.sets), self.sets.iter().map(|set| set.view.clone()).collect()),
            pods: shared(before.map(|seen| &seen.pods), self.pods.iter().map(|pod| pod.view.clone()).collect()),
            cordoned: shared(before.map(|seen| &seen.cordoned), self.cordoned.clone()),
            holds: shared(before.map(|seen| &seen.holds), self.holds.clone()),
        }
    }
}

/// The objects of each kind at one moment.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) deployment: Rc<DeploymentView>,
    pub(super) sets: Rc<Vec<ReplicaSetView>>,
    pub(super) pods: Rc<Vec<PodView>>,
    pub(super) cordoned: Rc<BTreeSet<&'static str>>,
    pub(super) holds: Rc<Vec<HoldView>>,
}

impl Seen {
    /// The workload as a cache presents it; `reversed` lists everything the other way round.
    pub(super) fn workload(&self, reversed: bool) -> Workload<'_> {
        let open = self.holds.iter().filter(|hold| hold.status.phase != Phase::Completed);
        let mut workload = Workload {
            deployment: &self.deployment,
            replica_sets: self.sets.iter().collect(),
            pods: self.pods.iter().collect(),
            doomed_nodes: self.cordoned.iter().copied().chain(open.map(|hold| &*hold.spec.victim_node)).collect(),
            dooms: BTreeMap::new(),
            autoscaler: None,
        };
        if reversed {
            workload.replica_sets.reverse();
            workload.pods.reverse();
        }
        workload
    }
}

/// How many steps each kind of an actor's cache lags behind: Deployments, ReplicaSets, pods, nodes, holds. Each
/// kind is a watch of its own, so each lags for itself.
pub(super) type Lag = [u8; 5];

/// An actor's cache: for each kind the step it has got to. A watch never goes back.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    at: [usize; 5],
}

impl Cache {
    pub(super) fn look(&mut self, history: &[Seen], lag: Lag) -> Seen {
        let last = history.len() - 1;
        for (at, lag) in self.at.iter_mut().zip(lag) {
            *at = (*at).max(last.saturating_sub(usize::from(lag)));
        }
        let [deployment, sets, pods, cordoned, holds] = self.at.map(|at| &history[at]);
        Seen {
            deployment: Rc::clone(&deployment.deployment),
            sets: Rc::clone(&sets.sets),
            pods: Rc::clone(&pods.pods),
            cordoned: Rc::clone(&cordoned.cordoned),
            holds: Rc::clone(&holds.holds),
        }
    }
}
