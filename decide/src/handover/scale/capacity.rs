//! How many pods serve beside a victim, and what is awaited until they are enough.
//!
//! One rule, for what the cache shows of pods and for what a close look at the API shows: a pod counts where it is
//! available, was not let go itself, and either is on a node that stays or has been ready since before the surge began.
//! The latter serves still, wherever it is; a stand-in on a node that is about to go would only be the next victim.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::lever::Lever;
use crate::cost::Readiness;
use crate::handover::ClosePod;
use crate::handover::Workload;
use crate::handover::situation::{self, Replacement};
use crate::handover::surge::SurgeRecord;
use crate::view::PodView;

/// A pod that is not going, as far as it serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serving<'a> {
    pub(super) uid: &'a str,
    node: Option<&'a str>,
    ready_since: Option<Timestamp>,
}

impl<'a> Serving<'a> {
    fn seen(pod: &'a PodView) -> Option<Self> {
        let is_active = !pod.terminating && !pod.is_finished();
        is_active.then_some(Self { uid: &pod.uid, node: pod.node.as_deref(), ready_since: pod.ready_since })
    }

    fn read(close: &'a ClosePod) -> Option<Self> {
        let pod = &close.pod;
        let ready_since = match pod.readiness {
            // A condition without its time is as old as can be, as in the cache.
            Readiness::Ready(since) => Some(since.unwrap_or(Timestamp::UNIX_EPOCH)),
            Readiness::NotReady(_) => None,
        };
        pod.is_active().then_some(Self { uid: &pod.uid, node: pod.node.as_deref(), ready_since })
    }
}

/// The pods of a workload that are not going, and which of them were let go.
#[derive(Clone, Debug)]
pub(super) struct Capacity<'a> {
    workload: &'a Workload<'a>,
    pods: Vec<Serving<'a>>,
    let_go: BTreeSet<&'a str>,
    now: Timestamp,
}

impl<'a> Capacity<'a> {
    /// By the cache.
    pub(super) fn seen(workload: &'a Workload<'a>, let_go: BTreeSet<&'a str>, now: Timestamp) -> Self {
        let pods = workload.pods.iter().filter_map(|pod| Serving::seen(pod)).collect();
        Self { workload, pods, let_go, now }
    }

    /// By a close look.
    pub(super) fn read(&self, close: &'a [ClosePod]) -> Self {
        Self { pods: close.iter().filter_map(Serving::read).collect(), ..self.clone() }
    }

    fn is_available(&self, pod: &Serving<'_>) -> bool {
        let wait = jiff::SignedDuration::from_secs(i64::from(self.workload.deployment.min_ready_seconds.max(0)));
        pod.ready_since.is_some_and(|since| since.saturating_add(wait).unwrap_or(Timestamp::MAX) <= self.now)
    }

    /// Available pods that were not let go, wherever they are.
    pub(super) fn available(&self) -> usize {
        self.pods.iter().filter(|pod| self.is_available(pod) && !self.let_go.contains(pod.uid)).count()
    }

    fn counts(&self, pod: &Serving<'_>, since: Timestamp) -> bool {
        self.is_available(pod)
            && !self.let_go.contains(pod.uid)
            && (pod.ready_since.is_some_and(|ready| ready < since) || stays(self.workload, pod.node))
    }

    /// How many pods serve beside this one, for a surge that began then.
    fn beside(&self, victim: &str, since: Timestamp) -> usize {
        self.pods.iter().filter(|pod| pod.uid != victim && self.counts(pod, since)).count()
    }

    /// The victim may go.
    pub(super) fn suffices_without(&self, victim: &str, record: &SurgeRecord) -> bool {
        i32::try_from(self.beside(victim, record.since)).unwrap_or(i32::MAX) >= record.floor
    }

    /// How many have to be available for a victim to go, in a surge of so many replicas that begins now.
    pub(super) fn floor(&self, base: i32) -> i32 {
        let available = i32::try_from(self.available()).unwrap_or(i32::MAX);
        available.min(base).max(1)
    }
}

fn stays(workload: &Workload<'_>, node: Option<&str>) -> bool {
    node.is_some_and(|node| !workload.doomed_nodes.contains(node))
}

/// What a victim waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited<'a> {
    /// The Deployment controller has not seen the newest spec yet, or its ReplicaSet is not known here yet.
    Unobserved,
    /// It is of an older revision: the rollout that is under way replaces it.
    Rolling(Replacement<'a>),
    /// It is of the newest revision, and the rollout to it has not come to rest.
    Rollout,
    /// The replicas are about to be raised.
    Surge,
    /// The replicas are raised, and this is the pod that is nearest to serving beside the others.
    StandIn {
        /// What it lacks.
        replacement: Replacement<'a>,
        /// How many pods serve beside the victim.
        serving: usize,
        /// How many have to.
        floor: i32,
    },
    /// Enough pods serve; the controller is about to let it go, or another victim before it.
    Turn,
}

/// The victim was let go in the surge of its workload: by the record, which is written first. One that is to go with a
/// replica is not let go to its evictor while the replicas have yet to follow an autoscaler's minimum: the ReplicaSet
/// would make another pod for it, which nobody takes back.
pub fn is_let_go(workload: &Workload<'_>, victim_uid: &str) -> bool {
    let lever = Lever::of(workload);
    lever.record.is_some_and(|record| is_named(record, victim_uid)) && lever.lag(workload.deployment) == 0
}

fn is_named(record: &SurgeRecord, victim_uid: &str) -> bool {
    record.released.iter().any(|uid| uid == victim_uid)
}

/// What this victim waits for, as far as the cache shows.
pub fn awaited<'a>(workload: &Workload<'a>, victim: &PodView, now: Timestamp) -> Awaited<'a> {
    let record = Lever::of(workload).record;
    if record.is_some_and(|record| is_named(record, &victim.uid)) {
        return Awaited::Turn;
    }
    let Some(record) = record.filter(|record| record.surge > 0) else {
        return at_rest(workload, victim, now).err().unwrap_or(Awaited::Surge);
    };
    let let_go = record.released.iter().map(String::as_str).collect();
    let capacity = Capacity::seen(workload, let_go, now);
    if capacity.suffices_without(&victim.uid, record) {
        return Awaited::Turn;
    }
    let coming = workload.pods.iter().filter(|pod| pod.uid != victim.uid).filter(|pod| {
        let serving = Serving::seen(pod);
        serving.is_some_and(|pod| !capacity.let_go.contains(pod.uid) && !capacity.counts(&pod, record.since))
    });
    let min_ready = workload.deployment.min_ready_seconds;
    let lacking = coming.map(|pod| situation::lacks(pod, stays(workload, pod.node.as_deref()), min_ready));
    Awaited::StandIn {
        replacement: situation::nearest(workload.deployment, lacking),
        serving: capacity.beside(&victim.uid, record.since),
        floor: record.floor,
    }
}

/// Whether a surge may begin for this victim: every pod is of the newest revision, and the victim one of them. Whether all
/// of them are well does not matter; a pod that never gets ready must not keep the others from being handed over.
pub(super) fn at_rest<'a>(workload: &Workload<'a>, victim: &PodView, now: Timestamp) -> Result<(), Awaited<'a>> {
    let deployment = workload.deployment;
    let Some(newest) = workload.newest() else { return Err(Awaited::Unobserved) };
    let is_newest = |pod: &PodView| pod.replica_set.as_deref() == Some(&*newest.uid);
    if !is_newest(victim) {
        let min_ready = deployment.min_ready_seconds;
        let newest =
            workload.pods.iter().copied().filter(|pod| is_newest(pod) && !pod.terminating && !pod.is_finished());
        let (serving, coming): (Vec<_>, Vec<_>) = newest.partition(|pod| pod.is_available(min_ready, now));
        if coming.is_empty() && !serving.is_empty() {
            return Err(Awaited::Rollout);
        }
        let lacking = coming.iter().map(|pod| situation::lacks(pod, stays(workload, pod.node.as_deref()), min_ready));
        return Err(Awaited::Rolling(situation::nearest(deployment, lacking)));
    }
    // The victim would be counted, were its ReplicaSet the newest: that one is not made yet.
    if deployment.status.updated == 0 {
        return Err(Awaited::Unobserved);
    }
    if deployment.status.replicas > deployment.status.updated { Err(Awaited::Rollout) } else { Ok(()) }
}

impl Awaited<'_> {
    /// A stable word for metrics and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unobserved => "RolloutNotObserved",
            Self::Rolling(replacement) | Self::StandIn { replacement, .. } => replacement.reason(),
            Self::Rollout => "ReleaseUnderWay",
            Self::Surge => "AwaitingSurge",
            Self::Turn => "AwaitingTurn",
        }
    }

    /// When what is awaited comes by itself, where that is known.
    pub fn comes_at(&self) -> Option<Timestamp> {
        match self {
            Self::Rolling(Replacement::AvailableAt(_, at))
            | Self::StandIn { replacement: Replacement::AvailableAt(_, at), .. } => Some(*at),
            _ => None,
        }
    }

    /// What is awaited, in words that follow "held:".
    pub fn describe(&self, workload: &Workload<'_>) -> String {
        let deployment = workload.deployment;
        let name = &deployment.name;
        match self {
            Self::Unobserved => format!("the newest spec of Deployment {name} is not yet rolled out"),
            Self::Rolling(replacement) => replacement.describe(deployment.min_ready_seconds),
            Self::Rollout => format!("a rollout of Deployment {name} is under way and must complete first"),
            Self::Surge => format!("a replica is about to be added to Deployment {name} to stand in for it"),
            Self::StandIn { replacement, serving, floor } => {
                format!(
                    "{serving} of {floor} pods that have to be available beside it are: {}",
                    replacement.describe(deployment.min_ready_seconds)
                )
            }
            Self::Turn => "enough pods are available, and it is about to be released".to_owned(),
        }
    }
}
