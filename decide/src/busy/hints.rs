//! The labels and annotations by which other systems learn whether a pod may go.
//!
//! Each has its own words. Who reads which, with sources, is in `docs/busy.md`; the exact table is a test. Left out on
//! purpose: `cluster.x-k8s.io/drain: skip`, with which Cluster API removes the machine *without* waiting for the pod.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::rule::{AutoscalerHint, HintSwitches};
use crate::cost::VICTIM;
use crate::cost::view::parse_cost;
use crate::ownership::{Key, Record};

/// When the pod was first seen busy: what bounds how long it counts as busy, for any replica and after any restart.
pub const BUSY_SINCE: &str = "belay.dev/busy-since";

/// Label of a busy pod: for kured's `--blocking-pod-selector`, a PodDisruptionBudget, or people.
pub const BUSY_LABEL: &str = "belay.dev/busy";

/// Cluster Autoscaler (`simulator/drainability/rules/safetoevict`, `utils/drain`).
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Karpenter (`pkg/apis/v1/labels.go`). Never `"false"`, which it answers with a warning.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// descheduler (`pkg/framework/plugins/defaultevictor`); its presence counts.
pub const PREFER_NO_EVICTION: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";
/// CAST AI.
pub const REMOVAL_DISABLED: &str = "autoscaling.cast.ai/removal-disabled";
/// Spot Ocean.
pub const RESTRICT_SCALE_DOWN: &str = "spotinst.io/restrict-scale-down";
/// The ReplicaSet controller (`pkg/controller/controller_utils.go`).
pub const DELETION_COST: &str = crate::cost::COST_ANNOTATION;

/// A busy pod's cost. Within ±2^20, since Karpenter adds costs up and takes far larger ones for the whole story.
const BUSY_COST: &str = "1048576";

/// Before version 1.36, and when it drains, Cluster Autoscaler takes `on-completion` for no hint. A drain that began
/// before the pod became busy is over or given up after its taint, its wait of 5 s and one look; a minute is long
/// beside that.
const ON_COMPLETION_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// All keys that a rule may have Belay write, the one of its own included.
pub fn keys() -> [Key; 8] {
    [
        Key::annotation(BUSY_SINCE),
        Key::annotation(SAFE_TO_EVICT),
        Key::annotation(DO_NOT_DISRUPT),
        Key::annotation(PREFER_NO_EVICTION),
        Key::annotation(DELETION_COST),
        Key::label(BUSY_LABEL),
        Key::label(REMOVAL_DISABLED),
        Key::label(RESTRICT_SCALE_DOWN),
    ]
}

/// Those of them that only busy rules look after. Where nodes are ranked (`crate::cost`), the deletion cost of a pod is
/// that part's, but for pods whose rule asks for one.
pub fn own_keys(costs_are_ranked: bool) -> Vec<Key> {
    keys().into_iter().filter(|key| !costs_are_ranked || key.name() != DELETION_COST).collect()
}

/// A record of what Belay wrote has a key that only busy rules look after.
pub fn are_in(record: &str, costs_are_ranked: bool) -> bool {
    let record = Record::parse(Some(record));
    let keys = own_keys(costs_are_ranked);
    record.keys().any(|key| keys.contains(key) && !is_victims(key, &record))
}

/// This key is the deletion cost that a handover gave its victim, which no busy rule touches.
pub fn is_victims(key: &Key, record: &Record) -> bool {
    key.name() == DELETION_COST && record.written(key).and_then(parse_cost) == Some(VICTIM)
}

/// What a pod is to be told to the others as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It may go.
    Free,
    /// It may go, since it has been busy for longer than may be; that it was so since then stays noted.
    Overdue(Timestamp),
    /// It is to stay; busy since then.
    Busy(Timestamp),
}

/// The values of all keys, nothing for those that are to be absent, and when they change by themselves. A key that another
/// part of Belay looks after is left out.
pub fn desired(
    switches: &HintSwitches,
    told: Told,
    now: Timestamp,
) -> (BTreeMap<Key, Option<String>>, Option<Timestamp>) {
    let since = match told {
        Told::Free => None,
        Told::Overdue(since) | Told::Busy(since) => Some(since),
    };
    let busy = matches!(told, Told::Busy(_));
    let while_busy = |on: bool, value: &str| (on && busy).then(|| value.to_owned());
    let (safe, changes_at) = safe_to_evict(switches.cluster_autoscaler, told, now);
    let values = [
        since.map(|since| since.to_string()),
        safe.map(str::to_owned),
        while_busy(switches.karpenter, "true"),
        while_busy(switches.descheduler, "true"),
        while_busy(switches.deletion_cost, BUSY_COST),
        while_busy(switches.busy_label, "true"),
        while_busy(switches.cast_ai, "true"),
        while_busy(switches.spot_ocean, "true"),
    ];
    let leaves_cost = switches.costs_are_ranked && !switches.deletion_cost;
    let is_ours = |(key, _): &(Key, Option<String>)| !leaves_cost || key.name() != DELETION_COST;
    (keys().into_iter().zip(values).filter(is_ours).collect(), changes_at)
}

fn safe_to_evict(hint: AutoscalerHint, told: Told, now: Timestamp) -> (Option<&'static str>, Option<Timestamp>) {
    match (hint, told) {
        (AutoscalerHint::None, _) => (None, None),
        (_, Told::Free | Told::Overdue(_)) => (Some("true"), None),
        (AutoscalerHint::SafeToEvict, Told::Busy(_)) => (Some("false"), None),
        (AutoscalerHint::OnCompletion, Told::Busy(since)) => {
            let at = super::state::later(since, ON_COMPLETION_AFTER);
            if now < at { (Some("false"), Some(at)) } else { (Some("on-completion"), None) }
        }
    }
}
