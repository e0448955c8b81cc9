//! Small projections of API objects: exactly what decisions read, and nothing else.
//!
//! Tens of thousands of pods stand in memory as [`PodView`]s, so their strings are shared ones, of which each stands
//! there once, and whole sub-objects (containers, volumes, managed fields) never get here.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::action::ObjectRef;
use crate::cost::{self, COST_ANNOTATION, Standing, VICTIM};
use crate::handover::record::HandoverRecord;
use crate::handover::surge::SurgeRecord;
use crate::ownership::{Key, Record};

/// A pod, as far as decisions care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `spec.nodeName`; absent until the pod is bound.
    pub node: Option<Arc<str>>,
    /// UID of the ReplicaSet that controls the pod; absent for every other kind of owner.
    pub replica_set: Option<Arc<str>>,
    /// Label `pod-template-hash`, which a Deployment's ReplicaSets put on their pods.
    pub template_hash: Option<Arc<str>>,
    /// `status.phase`.
    pub phase: PodPhase,
    /// When the `Ready` condition became true; absent while it is not true.
    pub ready_since: Option<Timestamp>,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// The scheduler said that no node fits (`PodScheduled` false, reason `Unschedulable`).
    pub unschedulable: bool,
    /// It carries hints that Belay wrote because of a busy rule.
    pub marked: bool,
    /// Whether it is marked to go first in a scale-down.
    pub mark: Mark,
}

/// Whether a pod is marked to go first in a scale-down, as victims of the Scale handover are
/// ([`crate::cost::VICTIM`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// It is not, and may be.
    #[default]
    Free,
    /// It is.
    Lowest,
    /// It was, and somebody took that away.
    Stripped,
    /// Its deletion cost is somebody else's.
    Taken,
}

impl Mark {
    /// Reads it off what stands on the pod: the annotation's value, and the record of what Belay wrote.
    pub fn read(cost: Option<&str>, record: &Record) -> Self {
        let victim = record.written(&Key::annotation(COST_ANNOTATION)).and_then(cost::view::parse_cost) == Some(VICTIM);
        match (Standing::read(cost, record), victim) {
            (Standing::OtherPart(_), true) if cost.is_none() => Self::Stripped,
            (Standing::OtherPart(_), true) => Self::Lowest,
            (Standing::Theirs { .. } | Standing::GivenUp | Standing::OtherPart(_), _) => Self::Taken,
            (Standing::Absent | Standing::Ours(_) | Standing::Stripped(_), _) => Self::Free,
        }
    }
}

/// `status.phase` of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers were started yet.
    Pending,
    /// Bound, and at least one container runs, starts or restarts.
    Running,
    /// All containers ended well; the pod is finished.
    Succeeded,
    /// All containers ended, at least one badly; the pod is finished.
    Failed,
    /// The node does not answer.
    Unknown,
}

impl PodPhase {
    /// Reads `status.phase`; what is absent or unheard of has not started.
    pub fn parse(phase: Option<&str>) -> Self {
        match phase {
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some("Unknown") => Self::Unknown,
            _ => Self::Pending,
        }
    }
}

impl PodView {
    /// When the pod counts as available: ready for `min_ready_seconds` without a break.
    ///
    /// The rule is Kubernetes' own (`pkg/api/v1/pod`, `IsPodAvailable`). Absent while the pod is not ready.
    pub fn available_at(&self, min_ready_seconds: i32) -> Option<Timestamp> {
        let wait = SignedDuration::from_secs(i64::from(min_ready_seconds.max(0)));
        self.ready_since.map(|since| since.saturating_add(wait).unwrap_or(Timestamp::MAX))
    }

    /// The pod is ready and has been so for `min_ready_seconds`.
    pub fn is_available(&self, min_ready_seconds: i32, now: Timestamp) -> bool {
        self.available_at(min_ready_seconds).is_some_and(|at| at <= now)
    }

    /// The pod has ended, well or badly, and serves nobody.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }
}

/// A node, as far as decisions care.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `spec.unschedulable`: the node is cordoned.
    pub unschedulable: bool,
    /// Keys of the node's taints, in the order of the object.
    pub taints: Vec<Box<str>>,
    /// Types of the node's conditions that are true, in the order of the object, without `Ready`.
    pub conditions: Vec<Box<str>>,
}

/// A ReplicaSet of a Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetView {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// UID of the Deployment that controls it; absent for a ReplicaSet that stands alone.
    pub deployment: Option<Box<str>>,
    /// Annotation `deployment.kubernetes.io/revision`.
    pub revision: Option<u64>,
    /// Label `pod-template-hash`.
    pub template_hash: Option<Arc<str>>,
    /// Template annotation `belay.dev/restart`.
    pub slot: Option<Box<str>>,
}

/// A Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentView {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`: the precondition of every write.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.labels`: what a HandoverPolicy's selector matches.
    pub labels: BTreeMap<String, String>,
    /// `spec.selector.matchLabels`: what all of its pods carry.
    pub selector: BTreeMap<String, String>,
    /// The whole of `spec.selector`, as a query for pods states it.
    pub query: String,
    /// Annotation `belay.dev/handover`, as written.
    pub handover: Option<String>,
    /// Annotation `belay.dev/handovers`: the durable record of restarts, oldest first.
    pub records: Vec<HandoverRecord>,
    /// Annotation `belay.dev/surge`: the durable record of raised `spec.replicas`.
    pub surge: Option<SurgeRecord>,
    /// `spec.replicas` (1 where absent, as the API server defaults it).
    pub replicas: i32,
    /// `spec.paused`.
    pub paused: bool,
    /// `spec.minReadySeconds`.
    pub min_ready_seconds: i32,
    /// `spec.strategy`.
    pub strategy: Strategy,
    /// Template annotation `belay.dev/restart`: the slot that Belay alternates.
    pub slot: Option<String>,
    /// Annotation `deployment.kubernetes.io/revision`: the revision of the newest ReplicaSet, once the
    /// Deployment controller has observed `generation`.
    pub revision: Option<u64>,
    /// `status`, as far as rollouts need it.
    pub status: DeploymentStatus,
}

/// What says how many replicas a Deployment has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Governor {
    /// The Deployment itself, by `spec.replicas`.
    Deployment,
    /// A HorizontalPodAutoscaler, from `spec.minReplicas` up.
    HorizontalPodAutoscaler,
    /// A KEDA ScaledObject, from `spec.minReplicaCount` up; KEDA makes a HorizontalPodAutoscaler of it.
    ScaledObject,
}

impl Governor {
    /// Its kind.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::HorizontalPodAutoscaler => "HorizontalPodAutoscaler",
            Self::ScaledObject => "ScaledObject",
        }
    }
}

/// A HorizontalPodAutoscaler that nobody else owns, or a KEDA ScaledObject, whose target is a Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoscalerView {
    /// Which of the two; never [`Governor::Deployment`].
    pub governor: Governor,
    /// The object, for a write.
    pub object: ObjectRef,
    /// Name of the Deployment that it scales, in its namespace; empty where it scales none any more, and a surge is left on
    /// it.
    pub target: String,
    /// `spec.minReplicas` or `spec.minReplicaCount`; absent where the object leaves it out.
    pub minimum: Option<i32>,
    /// `spec.maxReplicas` or `spec.maxReplicaCount`.
    pub maximum: i32,
    /// It does not act: KEDA's annotations `autoscaling.keda.sh/paused` and `…/paused-replicas`.
    pub paused: bool,
    /// Annotation `belay.dev/surge`: the durable record of a raised minimum.
    pub surge: Option<SurgeRecord>,
}

/// The part of a Deployment's status that `kubectl rollout status` reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeploymentStatus {
    /// `status.observedGeneration`.
    pub observed_generation: i64,
    /// `status.replicas`: pods of all revisions that are not terminating.
    pub replicas: i32,
    /// `status.updatedReplicas`: those of the newest revision.
    pub updated: i32,
    /// `status.availableReplicas`: those ready for `minReadySeconds`.
    pub available: i32,
    /// Condition `Progressing` has the reason `ProgressDeadlineExceeded`.
    pub progress_deadline_exceeded: bool,
}

/// How a Deployment replaces pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// All old pods terminate before a new one starts.
    Recreate,
    /// New pods start beside old ones, within these bounds.
    RollingUpdate {
        /// How many pods may exist above `replicas`.
        max_surge: IntOrPercent,
        /// How many pods may be missing below `replicas`.
        max_unavailable: IntOrPercent,
    },
}

/// A count, or a share of `replicas`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOrPercent {
    /// A number of pods.
    Int(i32),
    /// Percent of `replicas`, 0 to 100 and above.
    Percent(i32),
}

impl IntOrPercent {
    /// Reads the API's string form, `"25%"`. Absent for anything else.
    pub fn parse_percent(text: &str) -> Option<Self> {
        text.strip_suffix('%')?.parse().ok().filter(|percent| *percent >= 0).map(Self::Percent)
    }

    fn scaled(self, replicas: i32, round_up: bool) -> i32 {
        match self {
            Self::Int(count) => count,
            Self::Percent(percent) => {
                let product = i64::from(percent) * i64::from(replicas);
                let whole = if round_up { (product + 99) / 100 } else { product / 100 };
                i32::try_from(whole).unwrap_or(i32::MAX)
            }
        }
    }
}

impl Strategy {
    /// How many pods may be missing during a rollout of `replicas` pods; `None` for Recreate, where all are.
    ///
    /// Surge rounds up, unavailable rounds down, and where both come to nothing one pod may be missing, or no
    /// rollout could move (`pkg/controller/deployment/util`, `ResolveFenceposts`).
    pub fn max_missing(self, replicas: i32) -> Option<i32> {
        match self {
            Self::Recreate => None,
            Self::RollingUpdate { max_surge, max_unavailable } => {
                let surge = max_surge.scaled(replicas, true);
                let missing = max_unavailable.scaled(replicas, false);
                Some(if surge == 0 && missing == 0 { 1 } else { missing })
            }
        }
    }
}

impl DeploymentView {
    /// The Deployment controller has seen the newest spec, so `status` and `revision` speak of it.
    pub fn is_observed(&self) -> bool {
        self.status.observed_generation >= self.generation
    }

    /// The rollout of the newest spec is complete, as `kubectl rollout status` judges it
    /// (`kubectl/pkg/polymorphichelpers/rollout_status.go`).
    pub fn is_rolled_out(&self) -> bool {
        let status = &self.status;
        self.is_observed()
            && status.updated >= self.replicas
            && status.replicas <= status.updated
            && status.available >= status.updated
    }

    /// The record of the restart made for this victim, if one was.
    pub fn record_of(&self, victim_uid: &str) -> Option<&HandoverRecord> {
        self.records.iter().find(|record| record.victim == victim_uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use IntOrPercent::{Int, Percent};

    #[test]
    fn missing_pods_resolve_as_the_deployment_controller_resolves_them() {
        let table = [
            ("the default of 25% and 25% surges for one replica", Percent(25), Percent(25), 1, 0),
            ("the default lets one of four go", Percent(25), Percent(25), 4, 1),
            ("surge 0 and unavailable 0 let one go, or nothing could move", Int(0), Int(0), 1, 1),
            ("surge 0 and a share that rounds to nothing let one go", Int(0), Percent(25), 1, 1),
            ("surge 1 and unavailable 0 let none go", Int(1), Int(0), 1, 0),
            ("unavailable 1 lets one go even with surge", Int(1), Int(1), 1, 1),
            ("100% unavailable lets all go", Percent(0), Percent(100), 3, 3),
        ];
        for (name, max_surge, max_unavailable, replicas, expected) in table {
            let strategy = Strategy::RollingUpdate { max_surge, max_unavailable };
            assert_eq!(strategy.max_missing(replicas), Some(expected), "{name}");
        }
        assert_eq!(Strategy::Recreate.max_missing(1), None);
    }

    #[test]
    fn a_mark_is_ours_only_where_the_record_says_so() {
        let victim = Record::parse(Some(r#"{"controller.kubernetes.io/pod-deletion-cost":"-1048576"}"#));
        let ranked = Record::parse(Some(r#"{"controller.kubernetes.io/pod-deletion-cost":"-7"}"#));
        let given_up = Record::parse(Some(r#"{"controller.kubernetes.io/pod-deletion-cost":null}"#));
        let none = Record::default();
        let table = [
            ("nothing stands there", None, &none, Mark::Free),
            ("a rank stands there", Some("-7"), &ranked, Mark::Free),
            ("a rank was taken away", None, &ranked, Mark::Free),
            ("it is marked", Some("-1048576"), &victim, Mark::Lowest),
            ("the mark was taken away", None, &victim, Mark::Stripped),
            ("the mark was changed", Some("5"), &victim, Mark::Taken),
            ("a user's value", Some("5"), &none, Mark::Taken),
            ("a user's value that happens to be the mark", Some("-1048576"), &none, Mark::Taken),
            ("given up", None, &given_up, Mark::Taken),
        ];
        for (name, cost, record, expected) in table {
            assert_eq!(Mark::read(cost, record), expected, "{name}");
        }
    }

    #[test]
    fn only_whole_percentages_parse() {
        assert_eq!(IntOrPercent::parse_percent("25%"), Some(Percent(25)));
        for wrong in ["25", "%", "-5%", "2.5%", ""] {
            assert_eq!(IntOrPercent::parse_percent(wrong), None, "{wrong:?}");
        }
    }
}
