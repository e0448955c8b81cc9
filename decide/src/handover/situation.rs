//! Where a workload stands with respect to one victim.
//!
//! The Deployment's counters alone do not tell: they may speak of an older spec, count the victim itself, or
//! report a rollout complete that somebody has reverted. So the answer comes from the pods: is there another
//! one, of the newest revision, available, on a node that stays?

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::doom::Doomed;
use crate::view::{AutoscalerView, DeploymentView, PodPhase, PodView, ReplicaSetView, Strategy};

/// A Deployment with what belongs to it.
#[derive(Clone, Debug)]
pub struct Workload<'a> {
    /// The Deployment.
    pub deployment: &'a DeploymentView,
    /// Its ReplicaSets.
    pub replica_sets: Vec<&'a ReplicaSetView>,
    /// The pods of these ReplicaSets.
    pub pods: Vec<&'a PodView>,
    /// Names of nodes that are about to go, for this workload: cordoned or tainted ones, and the nodes of its
    /// own victims. An eviction says something about its pod, never about the node's other pods.
    pub doomed_nodes: BTreeSet<&'a str>,
    /// What is known of the nodes of its pods that are about to go, or may be (soft signals).
    pub dooms: BTreeMap<&'a str, &'a Doomed>,
    /// What governs its replicas, where that is not the Deployment itself.
    pub autoscaler: Option<&'a AutoscalerView>,
}

/// Where a workload stands with respect to one victim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Situation<'a> {
    /// Another available pod of the newest revision is on a node that stays: the victim may go.
    Served {
        /// That pod.
        by: &'a PodView,
    },
    /// The Deployment controller has not seen the newest spec yet, or its ReplicaSet is not known here yet.
    Unobserved,
    /// The victim is of an older revision: the rollout that is under way replaces it.
    Rolling(Replacement<'a>),
    /// The victim is of the newest revision and the rollout to it has not come to rest.
    Settling,
    /// The victim is of the newest revision and nothing is under way: a restart is what replaces it.
    Steady,
}

/// The pod that is to replace the victim, and what it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement<'a> {
    /// No pod of the newest revision exists yet.
    NotCreated,
    /// All old pods must terminate first (strategy `Recreate`).
    AfterTermination,
    /// No node fits it.
    Unschedulable(&'a PodView),
    /// It is being scheduled or started.
    Starting(&'a PodView),
    /// It runs and is not ready.
    NotReady(&'a PodView),
    /// It is ready, and counts as available at this time.
    AvailableAt(&'a PodView, Timestamp),
    /// It is ready, on a node that is about to go: being available there releases nobody.
    OnDoomedNode(&'a PodView),
}

impl Workload<'_> {
    /// The newest ReplicaSet: the one with the Deployment's own revision, which the Deployment controller
    /// writes before it reports the generation as observed (`pkg/controller/deployment/sync.go`,
    /// `getNewReplicaSet`).
    ///
    /// Two exceptions are known, in which the generation is reported while the revision is still an old ReplicaSet's:
    /// where replicas and template change at once, the old ReplicaSet is scaled first (`isScalingEvent`), and with
    /// Recreate the new one is made only when all old pods are gone (`rolloutRecreate`). So the template's slot must
    /// agree as well; where it happens to, [`situation`] sees that no pod is counted as updated.
    pub fn newest(&self) -> Option<&'_ ReplicaSetView> {
        let deployment = self.deployment;
        let revision = deployment.revision.filter(|_| deployment.is_observed())?;
        self.replica_sets
            .iter()
            .find(|set| set.revision == Some(revision) && set.slot.as_deref() == deployment.slot.as_deref())
            .copied()
    }
}

/// Where the workload stands with respect to this victim.
pub fn situation<'a>(workload: &Workload<'a>, victim: &PodView, now: Timestamp) -> Situation<'a> {
    let deployment = workload.deployment;
    let Some(newest) = workload.newest() else {
        return Situation::Unobserved;
    };
    let min_ready = deployment.min_ready_seconds;
    let others: Vec<&'a PodView> = workload
        .pods
        .iter()
        .copied()
        .filter(|pod| pod.replica_set.as_deref() == Some(&*newest.uid))
        .filter(|pod| pod.uid != victim.uid && !pod.terminating && !pod.is_finished())
        .collect();
    let stays = |pod: &PodView| {
        pod.node
            .as_deref()
            .is_some_and(|node| !workload.doomed_nodes.contains(node) && victim.node.as_deref() != Some(node))
    };
    // Caches list pods in any order; the first by name is the same for every replica.
    let serving = others.iter().filter(|pod| pod.is_available(min_ready, now) && stays(pod));
    if let Some(by) = serving.min_by_key(|pod| &pod.name) {
        return Situation::Served { by };
    }
    if victim.replica_set.as_deref() != Some(&*newest.uid) {
        let lacking = others.iter().map(|pod| lacks(pod, stays(pod), min_ready));
        return Situation::Rolling(nearest(deployment, lacking));
    }
    // The victim would be counted, were its ReplicaSet the newest: that one is not made yet.
    if deployment.status.updated == 0 {
        return Situation::Unobserved;
    }
    if deployment.is_rolled_out() { Situation::Steady } else { Situation::Settling }
}

pub(super) fn nearest<'a>(
    deployment: &DeploymentView,
    candidates: impl Iterator<Item = Replacement<'a>>,
) -> Replacement<'a> {
    candidates.min_by_key(Replacement::distance).unwrap_or(match deployment.strategy {
        Strategy::Recreate => Replacement::AfterTermination,
        Strategy::RollingUpdate { .. } => Replacement::NotCreated,
    })
}

/// What a pod that does not serve yet lacks.
pub(super) fn lacks(pod: &PodView, stays: bool, min_ready: i32) -> Replacement<'_> {
    match pod.available_at(min_ready) {
        Some(at) if stays => Replacement::AvailableAt(pod, at),
        Some(_) => Replacement::OnDoomedNode(pod),
        None if pod.node.is_none() && pod.unschedulable => Replacement::Unschedulable(pod),
        None if pod.phase == PodPhase::Running => Replacement::NotReady(pod),
        None => Replacement::Starting(pod),
    }
}

impl<'a> Replacement<'a> {
    /// Orders candidates by how near they are to serving, names breaking ties so that every replica tells the
    /// same story.
    fn distance(&self) -> (u8, Option<&'a str>) {
        let (rank, pod) = match *self {
            Self::AvailableAt(pod, _) => (0, Some(pod)),
            Self::NotReady(pod) => (1, Some(pod)),
            Self::Starting(pod) => (2, Some(pod)),
            Self::Unschedulable(pod) => (3, Some(pod)),
            Self::OnDoomedNode(pod) => (4, Some(pod)),
            Self::NotCreated | Self::AfterTermination => (5, None),
        };
        (rank, pod.map(|pod| &*pod.name))
    }

    /// What the replacement lacks, in words that follow "held:".
    pub fn describe(&self, min_ready_seconds: i32) -> String {
        match self {
            Self::NotCreated => "its replacement is not yet created".to_owned(),
            Self::AfterTermination => "it terminates before its replacement starts (strategy Recreate)".to_owned(),
            Self::Unschedulable(pod) => format!("no node fits replacement {} yet", pod.name),
            Self::Starting(pod) => format!("replacement {} is starting", pod.name),
            Self::NotReady(pod) | Self::AvailableAt(pod, _) => {
                let wait = if min_ready_seconds > 0 {
                    format!(", minReadySeconds {min_ready_seconds}")
                } else {
                    String::new()
                };
                format!("replacement {} is not yet available (0/1{wait})", pod.name)
            }
            Self::OnDoomedNode(pod) => format!(
                "replacement {} is on node {}, which is about to go too",
                pod.name,
                pod.node.as_deref().unwrap_or("?")
            ),
        }
    }

    /// A stable word for metrics and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotCreated => "ReplacementNotCreated",
            Self::AfterTermination => "VictimTerminatesFirst",
            Self::Unschedulable(_) => "ReplacementUnschedulable",
            Self::Starting(_) => "ReplacementStarting",
            Self::NotReady(_) => "ReplacementNotReady",
            Self::AvailableAt(..) => "ReplacementNotAvailable",
            Self::OnDoomedNode(_) => "ReplacementOnDoomedNode",
        }
    }
}
