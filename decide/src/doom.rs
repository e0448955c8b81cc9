//! Which nodes are about to go.
//!
//! A replacement that serves from a doomed node is no replacement: it would be the next victim. So nodes that
//! are cordoned or tainted for removal do not count. Soft signals are left out on purpose: Cluster Autoscaler
//! sets and clears `DeletionCandidateOfClusterAutoscaler` in every loop, and a signal that comes and goes would
//! make a finished handover look unfinished.

use jiff::{SignedDuration, Timestamp};

use crate::view::NodeView;

/// A node that is about to go, or may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doomed {
    /// Who says so, for people: `cordoned`, or the remover's name.
    pub by: Box<str>,
    /// Since when this process has seen it said.
    pub since: Timestamp,
    /// It comes and goes, and may mean nothing: no pod is kept off such a node, and only a Scale handover begins for it,
    /// where the configuration says so.
    pub soft: bool,
    /// How long after `since` an eviction from it may be held, where the node goes at a time of its own.
    pub notice: Option<SignedDuration>,
}

/// Taints by which node removers announce that a node is going, each with the remover that sets it.
///
/// Sources: Karpenter `pkg/apis/v1/taints.go`; Cluster Autoscaler `utils/taints/taints.go`; AWS Node
/// Termination Handler `pkg/node/node.go`; GKE and the cloud provider docs on spot termination; medik8s
/// Node Maintenance Operator and Node Healthcheck `api` packages; Kubernetes `node.kubernetes.io/out-of-service`.
pub const REMOVAL_TAINTS: &[(&str, &str)] = &[
    ("karpenter.sh/disrupted", "Karpenter"),
    ("ToBeDeletedByClusterAutoscaler", "Cluster Autoscaler"),
    ("aws-node-termination-handler/spot-itn", "AWS Node Termination Handler"),
    ("aws-node-termination-handler/scheduled-maintenance", "AWS Node Termination Handler"),
    ("aws-node-termination-handler/asg-lifecycle-termination", "AWS Node Termination Handler"),
    ("aws-node-termination-handler/rebalance-recommendation", "AWS Node Termination Handler"),
    ("cloud.google.com/impending-node-termination", "GKE"),
    ("medik8s.io/drain", "medik8s"),
    ("medik8s.io/remediation", "medik8s"),
    ("node.kubernetes.io/out-of-service", "an operator"),
];

/// Why a node is doomed; absent for a node that stays.
pub fn reason(node: &NodeView) -> Option<&'static str> {
    if node.unschedulable {
        return Some("cordoned");
    }
    REMOVAL_TAINTS
        .iter()
        .find(|(key, _)| node.taints.iter().any(|taint| taint.as_ref() == *key))
        .map(|(_, remover)| *remover)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tainted(keys: &[&str]) -> NodeView {
        NodeView { name: "n".into(), taints: keys.iter().map(|key| (*key).into()).collect(), ..NodeView::default() }
    }

    #[test]
    fn a_cordoned_or_removal_tainted_node_is_doomed_and_others_are_not() {
        assert_eq!(reason(&NodeView { unschedulable: true, ..NodeView::default() }), Some("cordoned"));
        assert_eq!(reason(&tainted(&["dedicated", "karpenter.sh/disrupted"])), Some("Karpenter"));
        assert_eq!(reason(&tainted(&["DeletionCandidateOfClusterAutoscaler"])), None, "soft signals do not count");
        assert_eq!(reason(&tainted(&["node.kubernetes.io/not-ready"])), None);
        assert_eq!(reason(&NodeView::default()), None);
    }
}
