//! What deletion cost reads of nodes, pods and ReplicaSets, and nothing else.
//!
//! Names and UIDs that many objects say, or that a map is looked up by, are shared: a hundred and fifty thousand pods
//! stand in memory, and each of their texts should stand there once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{BOUND, COST_ANNOTATION, VICTIM};
use crate::ownership::{self, Holder, Key, Record};
use crate::view::{NodeView, PodPhase};

/// The most nodes that may be ranked. More would leave no room between their ranks.
pub const MOST_NODES: usize = 500;

/// A pod of this priority or a higher one may get any value of ours, and Karpenter still sees a pod in it:
/// `1 + value / 2^27 + priority / 2^25 > 0` for every value within ±[`BOUND`].
pub const LOWEST_PRIORITY: i32 = BOUND / 4 - (1 << 25) + 1;

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many nodes are ranked, at most [`MOST_NODES`].
    pub max_nodes: usize,
    /// Only nodes of these pools are ranked; absent for all nodes.
    pub pools: Option<BTreeSet<Box<str>>>,
    /// Treat workloads without topology spread constraints as if they asked to be spread over zones.
    pub span_zones: bool,
    /// What is younger is still changing: a node that fills, a pod that starts, a budget that is used up for a moment.
    pub settle: SignedDuration,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_nodes: 50, pools: None, span_zones: false, settle: SignedDuration::from_mins(5) }
    }
}

impl Options {
    /// It is not long ago: less than once or twice `settle`. What happened within one `settle` ceases to be recent at
    /// once, since what then changes should change once.
    pub(super) fn is_recent(&self, at: Timestamp, now: Timestamp) -> bool {
        let settle = self.settle.as_secs().max(1);
        let began = now.as_second() - now.as_second().rem_euclid(settle);
        at.as_second() >= began - settle
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name, cordon and taints.
    pub node: NodeView,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// The pool that it belongs to: label `karpenter.sh/nodepool`, or what else names pools in this cluster.
    pub pool: Option<Box<str>>,
    /// Its labels, as far as topology spread constraints name them, and `topology.kubernetes.io/zone`.
    pub topology: Arc<BTreeMap<Box<str>, Box<str>>>,
    /// It is being removed without a taint saying so: the Node or its NodeClaim has a deletion timestamp.
    pub leaving: bool,
    /// Its NodeClaim has the condition `Drifted`.
    pub drifted: bool,
    /// Why it is not to be emptied, if so.
    pub keep: Option<Keep>,
    /// Another controller writes deletion costs here, so Belay does not.
    pub stood_down: bool,
}

/// Why a node is not to be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    /// Annotation `karpenter.sh/do-not-disrupt: "true"`.
    DoNotDisrupt,
    /// Annotation `cluster-autoscaler.kubernetes.io/scale-down-disabled: "true"`.
    ScaleDownDisabled,
    /// It carries the control plane, which nobody scales.
    ControlPlane,
    /// Its pool is never consolidated (`consolidateAfter: Never`). It may still drift.
    ConsolidationOff,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostPod {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// UID of the ReplicaSet that controls it; absent for every other kind of owner.
    pub set: Option<Arc<str>>,
    /// `spec.nodeName`; absent until the pod is bound.
    pub node: Option<Arc<str>>,
    /// `status.phase`.
    pub phase: PodPhase,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// The `Ready` condition.
    pub readiness: Readiness,
    /// The highest restart count of its containers.
    pub restarts: i32,
    /// The highest restart count of its sidecars: init containers with `restartPolicy: Always`.
    pub sidecar_restarts: i32,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `spec.priority`; 0 where absent.
    pub priority: i32,
    /// The annotation as it stands, and whose it is.
    pub standing: Standing,
    /// It would have to run elsewhere if its node went: everything but DaemonSet and mirror pods.
    pub movable: bool,
    /// Why it keeps its node from being emptied, if so.
    pub hold: Option<PodHold>,
    /// Since when its PodDisruptionBudgets let it not be evicted; absent while they do.
    pub blocked_since: Option<Timestamp>,
}

/// The `Ready` condition, with when it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is true.
    Ready(Option<Timestamp>),
    /// It is not, or not there yet: then since when the pod has had its node.
    NotReady(Option<Timestamp>),
}

/// Why a pod keeps its node from being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodHold {
    /// Annotation `karpenter.sh/do-not-disrupt`, in force.
    DoNotDisrupt,
    /// Annotation `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`.
    NotSafeToEvict,
    /// No controller would make it anew.
    Unmanaged,
}

/// A ReplicaSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetView {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `spec.replicas`.
    pub replicas: i32,
    /// The template's topology spread constraints whose selector matches the template's own labels.
    pub constraints: Vec<Constraint>,
    /// Another controller writes deletion costs here, so Belay does not.
    pub stood_down: bool,
}

/// A topology spread constraint, over the pods of one ReplicaSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// `topologyKey`: the node label whose values are the domains.
    pub key: Box<str>,
    /// `maxSkew`, at least 1.
    pub max_skew: i32,
    /// `whenUnsatisfiable: DoNotSchedule`, rather than `ScheduleAnyway`.
    pub hard: bool,
}

/// The annotation of a pod as it stands, and whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// There is none.
    #[default]
    Absent,
    /// Belay wrote it.
    Ours(i32),
    /// Belay wrote this, and somebody took it away.
    Stripped(i32),
    /// Somebody else's.
    Theirs {
        /// What Kubernetes reads there: 0 for what is not a number.
        value: i32,
        /// It replaced one of ours, and this was not recorded yet.
        replaced: bool,
    },
    /// There is none, and Belay has given up writing one.
    GivenUp,
    /// Another part of Belay sees to it, and wrote this; 0 where there is none. Ranks leave it alone like somebody
    /// else's, but it is no sign of another controller.
    OtherPart(i32),
}

impl Standing {
    /// Reads the annotation against the record of what Belay wrote.
    pub fn read(present: Option<&str>, record: &Record) -> Self {
        let key = Key::annotation(COST_ANNOTATION);
        let written = record.written(&key);
        match (ownership::holder(record, &key, present), present) {
            (Holder::Nobody, _) => Self::Absent,
            // The handover's, which sees to it by itself. Ranks do not go as low.
            (Holder::Belay, present) if written.and_then(parse_cost) == Some(VICTIM) => {
                Self::OtherPart(if present.is_some() { VICTIM } else { 0 })
            }
            (Holder::Belay, Some(present)) => Self::Ours(parse_cost(present).unwrap_or_default()),
            (Holder::Belay, None) => Self::Stripped(written.and_then(parse_cost).unwrap_or_default()),
            (Holder::Other, Some(present)) => {
                Self::Theirs { value: parse_cost(present).unwrap_or_default(), replaced: written.is_some() }
            }
            (Holder::Other, None) => Self::GivenUp,
        }
    }

    /// The value that Kubernetes sorts by.
    pub fn effective(self) -> i32 {
        match self {
            Self::Ours(value) | Self::Theirs { value, .. } | Self::OtherPart(value) => value,
            Self::Absent | Self::Stripped(_) | Self::GivenUp => 0,
        }
    }

    /// The last value that Belay wrote and that nobody replaced.
    pub fn written(self) -> Option<i32> {
        match self {
            Self::Ours(value) | Self::Stripped(value) => Some(value),
            Self::Absent | Self::Theirs { .. } | Self::GivenUp | Self::OtherPart(_) => None,
        }
    }

    /// Belay may write a value here.
    pub fn is_open(self) -> bool {
        !matches!(self, Self::Theirs { .. } | Self::GivenUp | Self::OtherPart(_))
    }

    /// There is something to write, or a record to give up, where this value is desired. Exactly then
    /// [`ownership::reconcile`] has something to say.
    pub fn asks_for_a_write(self, desired: Option<i32>) -> bool {
        match self {
            Self::Absent => desired.is_some(),
            Self::Ours(value) => desired != Some(value),
            Self::Stripped(_) => true,
            Self::Theirs { replaced, .. } => replaced,
            Self::GivenUp | Self::OtherPart(_) => false,
        }
    }
}

impl CostPod {
    /// The ReplicaSet controller counts it (`pkg/controller`, `IsPodActive`).
    pub fn is_active(&self) -> bool {
        !self.terminating && !matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// The `Ready` condition is true.
    pub fn is_ready(&self) -> bool {
        matches!(self.readiness, Readiness::Ready(_))
    }

    /// It serves: among such pods values decide, and all others go before them.
    pub fn serves(&self) -> bool {
        self.is_ready() && self.phase == PodPhase::Running
    }

    /// The pod as it is once it is bound. However long it has waited for its node, it begins to start only now.
    pub(super) fn bound_to(&self, node: &str, now: Timestamp) -> Self {
        Self { node: Some(node.into()), readiness: Readiness::NotReady(Some(now)), ..self.clone() }
    }

    /// It has just come.
    pub fn is_young(&self, options: &Options, now: Timestamp) -> bool {
        options.is_recent(self.created, now)
    }

    /// It does not serve and has not done so for long: nothing is planned with it.
    pub fn is_down(&self, options: &Options, now: Timestamp) -> bool {
        if self.serves() {
            return false;
        }
        let since = match self.readiness {
            Readiness::NotReady(Some(since)) => since,
            Readiness::NotReady(None) | Readiness::Ready(_) => self.created,
        };
        now.duration_since(since) >= options.settle
    }
}

/// Reads a value as Kubernetes does (`pkg/apis/core/helper`, `GetDeletionCostFromPodAnnotations`): 32 bits, no plus
/// sign, no leading zero. Absent for anything else, which then counts as 0.
pub fn parse_cost(text: &str) -> Option<i32> {
    let plain = match text.as_bytes() {
        [b'0'] | [b'1'..=b'9', ..] => true,
        [b'-', rest @ ..] => rest.first().is_some_and(u8::is_ascii_digit),
        _ => false,
    };
    plain.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_kubernetes_reads_it() {
        let table = [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-1048576", Some(-1_048_576)),
            ("-008", Some(-8)),
            ("2147483647", Some(i32::MAX)),
            ("-2147483648", Some(i32::MIN)),
            ("2147483648", None),
            ("+10", None),
            ("008", None),
            ("00", None),
            ("1.5", None),
            ("1_0", None),
            ("-", None),
            ("--1", None),
            ("-+1", None),
            ("", None),
            (" 1", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_cost(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_standing_value_is_ours_only_where_the_record_says_so() {
        let ours = Record::parse(Some(r#"{"controller.kubernetes.io/pod-deletion-cost":"-7"}"#));
        let given_up = Record::parse(Some(r#"{"controller.kubernetes.io/pod-deletion-cost":null}"#));
        let victim = Record::parse(Some(r#"{"controller.kubernetes.io/pod-deletion-cost":"-1048576"}"#));
        let none = Record::default();
        let theirs = |value, replaced| Standing::Theirs { value, replaced };
        let table = [
            (None, &none, Standing::Absent),
            (Some("-7"), &none, theirs(-7, false)),
            (Some("seven"), &none, theirs(0, false)),
            (Some("-7"), &ours, Standing::Ours(-7)),
            (Some("-8"), &ours, theirs(-8, true)),
            (None, &ours, Standing::Stripped(-7)),
            (None, &given_up, Standing::GivenUp),
            (Some("3"), &given_up, theirs(3, false)),
            (Some("-1048576"), &victim, Standing::OtherPart(VICTIM)),
            (None, &victim, Standing::OtherPart(0)),
            (Some("-7"), &victim, theirs(-7, true)),
            (Some("-1048576"), &none, theirs(VICTIM, false)),
        ];
        for (present, record, expected) in table {
            assert_eq!(Standing::read(present, record), expected, "{present:?} with {record:?}");
        }
    }

    #[test]
    fn a_write_is_asked_for_where_ownership_has_something_to_say() {
        let theirs = |replaced| Standing::Theirs { value: 7, replaced };
        let table = [
            (Standing::Absent, None, false),
            (Standing::Absent, Some(-7), true),
            (Standing::Ours(-7), Some(-7), false),
            (Standing::Ours(-7), Some(-8), true),
            (Standing::Ours(-7), None, true),
            (Standing::Stripped(-7), Some(-7), true),
            (Standing::Stripped(-7), None, true),
            (theirs(true), Some(-7), true),
            (theirs(false), Some(-7), false),
            (Standing::GivenUp, Some(-7), false),
        ];
        let key = Key::annotation(COST_ANNOTATION);
        for (standing, desired, expected) in table {
            assert_eq!(standing.asks_for_a_write(desired), expected, "{standing:?} and {desired:?}");
            let mut record = Record::default();
            let written = match standing {
                Standing::Ours(value) | Standing::Stripped(value) => Some(value),
                Standing::Theirs { replaced: true, .. } => Some(-7),
                _ => None,
            };
            if let Some(value) = written {
                record.insert(key.clone(), value.to_string());
            }
            if standing == Standing::GivenUp {
                record = Record::parse(Some(r#"{"controller.kubernetes.io/pod-deletion-cost":null}"#));
            }
            let present = matches!(standing, Standing::Ours(_) | Standing::Theirs { .. });
            let present = present.then(|| (key.clone(), standing.effective().to_string())).into_iter().collect();
            let desired = BTreeMap::from([(key.clone(), desired.map(|value| value.to_string()))]);
            let mut removals = ownership::Removals::default();
            let outcome = ownership::reconcile(&record, &present, &desired, &mut removals, Timestamp::UNIX_EPOCH);
            assert_eq!(!outcome.changes.is_empty() || outcome.record != record, expected, "{standing:?}");
        }
    }

    #[test]
    fn all_that_came_within_five_minutes_cease_to_be_young_at_once() {
        use crate::testing::after;
        let options = Options::default();
        let came = |at: i64| CostPod { created: after(at), ..crate::cost::testing::pod("web-1", "web", "n1") };
        // The tests begin on the hour.
        for (created, until) in [(0, 600), (1, 600), (299, 600), (300, 900)] {
            assert!(came(created).is_young(&options, after(until - 1)), "{created}");
            assert!(!came(created).is_young(&options, after(until)), "{created}");
        }
    }

    #[test]
    fn a_pod_of_the_lowest_priority_is_a_pod_to_karpenter_and_one_lower_might_not_be() {
        let share = |priority: i32| i64::from(1 << 27) - i64::from(BOUND) + 4 * i64::from(priority);
        assert!(share(LOWEST_PRIORITY) > 0);
        assert!(share(LOWEST_PRIORITY - 1) <= 0);
    }
}
