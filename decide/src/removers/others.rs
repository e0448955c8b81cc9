//! The descheduler, other vendors' autoscalers, and whatever deletes pods without asking anybody.
//!
//! Sources: kubernetes-sigs/descheduler `pkg/framework/plugins/defaultevictor/defaultevictor.go` (`Filter`),
//! `pkg/descheduler/pod/pods.go` (`SortPodsBasedOnPriorityLowToHigh`), `pkg/utils/pod.go`; CAST AI documentation,
//! Evictor and its FAQ, Kyverno's policy add-castai-removal-disabled for the label; Spot Ocean documentation, labels
//! and FAQ; Kubernetes `pkg/controller/controller_utils.go` (`ActivePodsWithRanks`), and
//! `pkg/registry/core/pod/storage/eviction.go` for what an eviction is and a deletion is not.

use super::{Draft, Outlook, PodFacts, Stage, Verdict};
use crate::busy::hints::{DELETION_COST, PREFER_NO_EVICTION, REMOVAL_DISABLED, RESTRICT_SCALE_DOWN};
use crate::evictors::{CAST_AI, DESCHEDULER};

/// Its presence, with any value, makes the descheduler forget its own protections.
const EVICT: &str = "descheduler.alpha.kubernetes.io/evict";

pub(super) fn descheduler(pod: &PodFacts<'_>) -> Outlook {
    descheduling(pod).by(DESCHEDULER.name)
}

fn descheduling(pod: &PodFacts<'_>) -> Draft {
    if let Some(why) = pod.out_of_reach() {
        return Draft::new(Verdict::Ignored, why);
    }
    if pod.annotation(EVICT).is_some() {
        return Draft::eviction(pod, &DESCHEDULER)
            .first("it has the annotation evict, which overrides every protection");
    }
    let protection = if pod.controller_kind.is_none() {
        Some("it has no owner (unless evictFailedBarePods)")
    } else if pod.is_of_daemon_set() {
        Some("it is a DaemonSet's (unless evictDaemonSetPods)")
    } else if !pod.local_volumes.is_empty() {
        Some("it has a volume on the node (unless evictLocalStoragePods)")
    } else {
        None
    };
    let last = pod.annotation(PREFER_NO_EVICTION).is_some();
    match protection {
        Some(why) => Draft::new(Verdict::Stays, why),
        None if last => Draft::eviction(pod, &DESCHEDULER).first(
            "it has the annotation prefer-no-eviction: among its like it is chosen last, and with noEvictionPolicy: \
             Mandatory never",
        ),
        None => Draft::eviction(pod, &DESCHEDULER),
    }
}

pub(super) fn cast_ai(pod: &PodFacts<'_>) -> Outlook {
    let disabled = pod.label(REMOVAL_DISABLED) == Some("true") || pod.annotation(REMOVAL_DISABLED) == Some("true");
    let draft = if let Some(why) = pod.out_of_reach() {
        Draft::new(Verdict::Ignored, why)
    } else if pod.is_of_daemon_set() {
        Draft::new(Verdict::Ignored, "a DaemonSet's pod goes with its node")
    } else if disabled && pod.stage == Stage::Active {
        Draft::new(Verdict::Stays, "autoscaling.cast.ai/removal-disabled is \"true\"")
    } else {
        Draft::eviction(pod, &CAST_AI)
            .and("unless it is set to be aggressive, it looks only at workloads of several replicas")
    };
    draft.by(CAST_AI.name)
}

pub(super) fn spot_ocean(pod: &PodFacts<'_>) -> Outlook {
    let draft = if let Some(why) = pod.out_of_reach() {
        Draft::new(Verdict::Ignored, why)
    } else if pod.is_of_daemon_set() {
        Draft::new(Verdict::Ignored, "a DaemonSet's pod goes with its node")
    } else if pod.label(RESTRICT_SCALE_DOWN) == Some("true") && pod.stage == Stage::Active {
        Draft::new(Verdict::Stays, "label spotinst.io/restrict-scale-down is \"true\"; a cluster roll overrides it")
    } else if pod.held {
        Draft::new(Verdict::Waits, "Belay refuses its eviction; how long Ocean waits is not known")
    } else {
        Draft::new(Verdict::Goes, "nothing that is known of it keeps it from being evicted")
    };
    draft.by("Spot Ocean")
}

/// A ReplicaSet that gets smaller. Other kinds choose by ordinal or not at all.
pub(super) fn scale_down(pod: &PodFacts<'_>) -> Option<Outlook> {
    if pod.controller_kind != Some("ReplicaSet") || pod.stage != Stage::Active {
        return None;
    }
    let cost = match pod.annotation(DELETION_COST) {
        Some(value) => format!("its pod-deletion-cost is {value}"),
        None => "it has no pod-deletion-cost, which counts as 0".to_owned(),
    };
    let why = format!("a scale-down deletes pods and asks nobody, those with a smaller cost first; {cost}");
    Some(Draft::new(Verdict::Goes, why).by("ReplicaSet scale-down"))
}

/// Removal that no eviction webhook sees and no hint stops.
pub(super) fn deletion(pod: &PodFacts<'_>) -> Outlook {
    let draft = match pod.out_of_reach() {
        Some(why) => Draft::new(Verdict::Ignored, why),
        None => Draft::new(
            Verdict::Goes,
            "nobody is asked: deletion by hand or by its owner, kubectl drain --disable-eviction, taints with \
             NoExecute, preemption, pressure on the node, Karpenter after terminationGracePeriod, the end of a spot \
             instance",
        ),
    };
    draft.by("deletion")
}
