//! Which nodes are about to go.
//!
//! A replacement that serves from a doomed node is no replacement: it would be the next victim. So nodes that
//! are cordoned or tainted for removal do not count, and where a policy says so a handover begins by such a signal
//! before anybody asks for an eviction.
//!
//! What node removers say stands in one table, [`SIGNALS`]. Soft signals come and go and may mean nothing (Cluster
//! Autoscaler sets and clears `DeletionCandidateOfClusterAutoscaler` in every loop): counted for placement, one that
//! comes and goes would make a finished handover look unfinished, so they only begin Scale handovers, and those only
//! where the platform says so. Left out on purpose is what says that a node is old rather than going (Cluster API's
//! `node.cluster.x-k8s.io/outdated-revision` stands on every node of a pool from the start of its update) or unwell
//! (node-problem-detector's conditions, Azure's `VMEventScheduled`, which a pause of some seconds sets too): whoever
//! removes nodes for that configures it ([`Signals`]).

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};

use crate::view::NodeView;

/// A node that is about to go, or may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doomed {
    /// Who says so, for people: `cordoned`, or the remover's name.
    pub by: Box<str>,
    /// Since when this process has seen it said, without a break.
    pub since: Timestamp,
    /// It comes and goes, and may mean nothing: no pod is kept off such a node, and only a Scale handover begins for it,
    /// where the configuration says so.
    pub soft: bool,
    /// How long after `since` an eviction from it may be held, where the node goes at a time of its own.
    pub notice: Option<SignedDuration>,
}

impl Doomed {
    /// What is known now of a node of which `before` was known. Another signal that says as much goes on where the one
    /// before it stopped; one that says more, or that the node goes at another time, is news.
    pub fn seen(before: Option<&Self>, judged: Judged, now: Timestamp) -> Self {
        let goes_on = before.filter(|before| before.soft == judged.soft && before.notice == judged.notice);
        let since = goes_on.map_or(now, |before| before.since);
        Self { by: judged.by.into(), since, soft: judged.soft, notice: judged.notice }
    }

    /// Until when an eviction from the node may be held; absent where the node waits for its pods.
    pub fn until(&self) -> Option<Timestamp> {
        self.notice.map(|notice| self.since.saturating_add(notice).unwrap_or(Timestamp::MAX))
    }
}

/// Where a signal stands on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A taint of that key, whatever its effect.
    Taint,
    /// A condition of that type that is true.
    Condition,
}

/// A word by which a node remover says that a node is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// What it is.
    pub place: Place,
    /// The taint's key or the condition's type.
    pub key: &'static str,
    /// Who sets it, for people.
    pub by: &'static str,
    /// See [`Doomed::soft`].
    pub soft: bool,
    /// See [`Doomed::notice`].
    pub notice: Option<SignedDuration>,
    /// Where this is known from: repository and file, or document.
    pub source: &'static str,
}

/// A Spot instance of AWS ends two minutes after its notice. What is left after these 90 s is what a pod has to stop in
/// by default (`terminationGracePeriodSeconds`).
const AWS_SPOT: SignedDuration = SignedDuration::from_secs(90);

/// A Spot VM of Google has at most 30 s, of which the kubelet gives 15 to pods that are not critical. (A VM with GPUs or
/// TPUs may have an hour under the same taint; who runs on such configures the taint with another notice.)
const GOOGLE_SPOT: SignedDuration = SignedDuration::from_secs(15);

/// A Spot VM of Azure has 30 s or a little more (`Preempt` of the Scheduled Events documentation); ten are left to stop in.
const AZURE_SPOT: SignedDuration = SignedDuration::from_secs(20);

const fn taint(key: &'static str, by: &'static str, source: &'static str) -> Signal {
    Signal { place: Place::Taint, key, by, soft: false, notice: None, source }
}

const fn within(notice: SignedDuration, signal: Signal) -> Signal {
    Signal { notice: Some(notice), ..signal }
}

const NTH: &str = "AWS Node Termination Handler";
const NTH_SOURCE: &str = "aws/aws-node-termination-handler pkg/node/node.go";
const AKS_NTH: &str = "aks-node-termination-handler";
const AKS_NTH_SOURCE: &str = "maksim-paskal/aks-node-termination-handler pkg/api/api.go (getTaintKey)";

/// All that is known, in a fixed order.
pub const SIGNALS: &[Signal] = &[
    taint("karpenter.sh/disrupted", "Karpenter", "kubernetes-sigs/karpenter pkg/apis/v1/taints.go"),
    // Before version 1.
    taint("karpenter.sh/disruption", "Karpenter", "kubernetes-sigs/karpenter pkg/apis/v1beta1/taints.go"),
    taint(
        "ToBeDeletedByClusterAutoscaler",
        "Cluster Autoscaler",
        "kubernetes/autoscaler cluster-autoscaler/utils/taints/taints.go",
    ),
    Signal {
        soft: true,
        ..taint(
            "DeletionCandidateOfClusterAutoscaler",
            "Cluster Autoscaler",
            "kubernetes/autoscaler cluster-autoscaler/utils/taints/taints.go, core/scaledown/actuation/softtaint.go",
        )
    },
    within(AWS_SPOT, taint("aws-node-termination-handler/spot-itn", NTH, NTH_SOURCE)),
    taint("aws-node-termination-handler/scheduled-maintenance", NTH, NTH_SOURCE),
    taint("aws-node-termination-handler/asg-lifecycle-termination", NTH, NTH_SOURCE),
    taint("aws-node-termination-handler/rebalance-recommendation", NTH, NTH_SOURCE),
    within(
        GOOGLE_SPOT,
        taint(
            "cloud.google.com/impending-node-termination",
            "GKE",
            "GoogleCloudPlatform/k8s-node-termination-handler deploy/k8s.yaml; GKE documentation, handle-disruption-gpu-tpu",
        ),
    ),
    taint("remediator.kubernetes.azure.com/unschedulable", "AKS", "AKS documentation, node-auto-drain"),
    // Its older name.
    taint("remediator.aks.microsoft.com/unschedulable", "AKS", "Azure/AKS CHANGELOG.md"),
    within(
        AZURE_SPOT,
        Signal {
            place: Place::Condition,
            ..taint("PreemptionScheduled", "AKS", "Azure/karpenter-provider-azure pkg/controllers/node/interruption")
        },
    ),
    within(AZURE_SPOT, taint("aks-node-termination-handler/preempt", AKS_NTH, AKS_NTH_SOURCE)),
    taint("aks-node-termination-handler/terminate", AKS_NTH, AKS_NTH_SOURCE),
    taint("aks-node-termination-handler/redeploy", AKS_NTH, AKS_NTH_SOURCE),
    taint("aks-node-termination-handler/reboot", AKS_NTH, AKS_NTH_SOURCE),
    taint("autoscaling.cast.ai/draining", "CAST AI", "castai/spot-handler handler.go"),
    taint("kubevirt.io/drain", "KubeVirt", "kubevirt/kubevirt pkg/virt-config (NodeDrainTaintDefaultKey)"),
    taint("medik8s.io/drain", "medik8s", "medik8s/node-maintenance-operator controllers/taint.go"),
    taint("medik8s.io/remediation", "medik8s", "medik8s/self-node-remediation controllers"),
    taint("medik8s.io/fence-agents-remediation", "medik8s", "medik8s/fence-agents-remediation api/v1alpha1"),
    taint("remediation.medik8s.io/fence-agents-remediation", "medik8s", "medik8s/fence-agents-remediation pkg/utils"),
    taint("node.kubernetes.io/out-of-service", "an operator", "kubernetes/api core/v1/well_known_taints.go"),
];

/// Signals of the platform's own, beside the table. They are hard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Taints by key, each with its notice. One that the table has too replaces what the table says of it.
    pub taints: Vec<(String, Option<SignedDuration>)>,
    /// Types of conditions.
    pub conditions: Vec<String>,
}

/// What a node's signals come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// See [`Doomed::by`].
    pub by: Cow<'static, str>,
    /// See [`Doomed::soft`].
    pub soft: bool,
    /// See [`Doomed::notice`].
    pub notice: Option<SignedDuration>,
}

/// Whether the node is about to go, or may be; absent for a node that stays.
///
/// Of several signals a hard one tells, and among those the one with the shortest notice; then a cordon, then what the
/// platform configured, then the order of the table.
pub fn judge(node: &NodeView, signals: &Signals) -> Option<Judged> {
    let has_taint = |key: &str| node.taints.iter().any(|taint| **taint == *key);
    let has_condition = |kind: &str| node.conditions.iter().any(|condition| **condition == *kind);
    let cordon = node.unschedulable.then_some(Judged { by: "cordoned".into(), soft: false, notice: None });
    let taints = signals.taints.iter().filter(|(key, _)| has_taint(key));
    let taints = taints.map(|(key, notice)| Judged { by: format!("taint {key}").into(), soft: false, notice: *notice });
    let conditions = signals.conditions.iter().filter(|kind| has_condition(kind));
    let conditions =
        conditions.map(|kind| Judged { by: format!("condition {kind}").into(), soft: false, notice: None });
    let replaced = |signal: &Signal| match signal.place {
        Place::Taint => signals.taints.iter().any(|(key, _)| key == signal.key),
        Place::Condition => signals.conditions.iter().any(|kind| kind == signal.key),
    };
    let known = SIGNALS
        .iter()
        .filter(|signal| match signal.place {
            Place::Taint => has_taint(signal.key),
            Place::Condition => has_condition(signal.key),
        })
        .filter(|signal| !replaced(signal))
        .map(|signal| Judged { by: signal.by.into(), soft: signal.soft, notice: signal.notice });
    let all = cordon.into_iter().chain(taints).chain(conditions).chain(known);
    // Of equals the first.
    all.min_by_key(|judged| (judged.soft, judged.notice.unwrap_or(SignedDuration::MAX)))
}

/// Why a node is being removed, by the table alone and without soft signals; absent for a node that stays.
pub fn reason(node: &NodeView) -> Option<Cow<'static, str>> {
    judge(node, &Signals::default()).filter(|judged| !judged.soft).map(|judged| judged.by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, after};

    fn node(unschedulable: bool, taints: &[&str], conditions: &[&str]) -> NodeView {
        let boxed = |words: &[&str]| words.iter().map(|word| (*word).into()).collect();
        NodeView { name: "n".into(), unschedulable, taints: boxed(taints), conditions: boxed(conditions) }
    }

    #[test]
    fn a_node_is_judged_by_its_hardest_and_most_urgent_signal() {
        let seconds = |seconds| Some(SignedDuration::from_secs(seconds));
        let own = Signals {
            taints: vec![
                ("example.com/going".into(), seconds(60)),
                ("cloud.google.com/impending-node-termination".into(), seconds(3000)),
                ("DeletionCandidateOfClusterAutoscaler".into(), None),
            ],
            conditions: vec!["KernelDeadlock".into()],
        };
        let none = Signals::default();
        let soft = "DeletionCandidateOfClusterAutoscaler";
        let spot = "aws-node-termination-handler/spot-itn";
        let table = [
            ("nothing", node(false, &[], &["Ready"]), &none, None),
            ("other taints", node(false, &["dedicated", "node.kubernetes.io/not-ready"], &[]), &none, None),
            ("a cordon", node(true, &[], &[]), &none, Some(("cordoned", false, None))),
            ("a taint", node(false, &["x", "karpenter.sh/disrupted"], &[]), &none, Some(("Karpenter", false, None))),
            ("a soft taint", node(false, &[soft], &[]), &none, Some(("Cluster Autoscaler", true, None))),
            ("a cordon beside a soft one", node(true, &[soft], &[]), &none, Some(("cordoned", false, None))),
            ("a notice beside a cordon", node(true, &[spot], &[]), &none, Some((NTH, false, seconds(90)))),
            ("a condition", node(false, &[], &["PreemptionScheduled"]), &none, Some(("AKS", false, seconds(20)))),
            ("a condition of no known remover", node(false, &[], &["KernelDeadlock"]), &none, None),
            (
                "a configured condition",
                node(false, &[], &["KernelDeadlock"]),
                &own,
                Some(("condition KernelDeadlock", false, None)),
            ),
            (
                "a configured taint",
                node(true, &["example.com/going"], &[]),
                &own,
                Some(("taint example.com/going", false, seconds(60))),
            ),
            (
                "a configured notice in place of the table's",
                node(false, &["cloud.google.com/impending-node-termination"], &[]),
                &own,
                Some(("taint cloud.google.com/impending-node-termination", false, seconds(3000))),
            ),
            (
                "a soft taint that the platform takes for hard",
                node(false, &[soft], &[]),
                &own,
                Some(("taint DeletionCandidateOfClusterAutoscaler", false, None)),
            ),
        ];
        for (name, node, signals, expected) in table {
            let judged = judge(&node, signals);
            let judged = judged.as_ref().map(|judged| (judged.by.as_ref(), judged.soft, judged.notice));
            assert_eq!(judged, expected, "{name}");
        }
        assert_eq!(reason(&node(false, &[soft], &[])), None, "a soft signal removes no node");
        assert_eq!(reason(&node(true, &[], &[])).as_deref(), Some("cordoned"));
    }

    #[test]
    fn a_signal_goes_on_while_nothing_new_is_said() {
        let hard = || Judged { by: "cordoned".into(), soft: false, notice: None };
        let soft = || Judged { soft: true, ..hard() };
        let noticed = || Judged { notice: Some(SignedDuration::from_secs(90)), ..hard() };
        let first = Doomed::seen(None, hard(), START);
        assert_eq!((first.since, first.until()), (START, None));
        let other = Judged { by: "Karpenter".into(), ..hard() };
        let next = Doomed::seen(Some(&first), other, after(9));
        assert_eq!((next.since, &*next.by), (START, "Karpenter"), "who says it may change");
        let urgent = Doomed::seen(Some(&next), noticed(), after(20));
        assert_eq!(urgent.until(), Some(after(110)), "a notice counts from when it is seen");
        assert_eq!(Doomed::seen(Some(&urgent), noticed(), after(30)).until(), Some(after(110)));
        let weak = Doomed::seen(None, soft(), START);
        assert_eq!(Doomed::seen(Some(&weak), hard(), after(40)).since, after(40), "it was only soft before");
    }

    #[test]
    fn each_signal_stands_once_and_names_its_remover_and_its_source() {
        for (at, signal) in SIGNALS.iter().enumerate() {
            assert!(!signal.by.is_empty() && !signal.source.is_empty(), "{}", signal.key);
            assert!(SIGNALS[at + 1..].iter().all(|other| other.key != signal.key), "{} stands twice", signal.key);
        }
    }
}
