//! Cluster Autoscaler: its drainability rules in their order; the first that has an opinion decides.
//!
//! Source: kubernetes/autoscaler, branch cluster-autoscaler-release-1.37, `simulator/drainability/rules/rules.go`
//! (`Default`) with the rules beside it, `utils/drain/drain.go`, `utils/pod/pod.go`. Left out, since one pod does not
//! tell: `ReplicaCount`, `PDB`, and whether the pod fits elsewhere.

use super::{Draft, LocalVolumeKind, Outlook, PodFacts, Stage, Verdict};
use crate::busy::hints::SAFE_TO_EVICT;
use crate::evictors::CLUSTER_AUTOSCALER;

/// Names of volumes that do not count as local storage, separated by commas; spaces are not taken off.
const SAFE_LOCAL_VOLUMES: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";

/// `"true"` makes a pod count as a DaemonSet's.
const DAEMON_SET_POD: &str = "cluster-autoscaler.kubernetes.io/daemonset-pod";

/// Kinds whose pods are made again, by `--skip-nodes-with-custom-controller-pods`, which is on by default
/// (`rules/replicated/rule.go`, `replicatedKind`).
const REPLICATED: [&str; 4] = ["ReplicationController", "Job", "ReplicaSet", "StatefulSet"];

pub(super) fn outlook(pod: &PodFacts<'_>) -> Outlook {
    draft(pod).by(CLUSTER_AUTOSCALER.name)
}

fn draft(pod: &PodFacts<'_>) -> Draft {
    if let Some(why) = pod.out_of_reach() {
        return Draft::new(Verdict::Ignored, why);
    }
    if pod.is_of_daemon_set() || pod.annotation(DAEMON_SET_POD) == Some("true") {
        return Draft::new(Verdict::Ignored, "it counts as a DaemonSet's pod, which keeps no node and goes with it");
    }
    let hint = pod.annotation(SAFE_TO_EVICT);
    match hint {
        Some("true") => {
            let why = "safe-to-evict is \"true\", which counts for more than its kind of owner, its volumes and what a \
                       budget says at planning";
            return Draft::eviction(pod, &CLUSTER_AUTOSCALER).first(why);
        }
        _ if pod.stage == Stage::Finished => return Draft::new(Verdict::Goes, "it has finished"),
        Some("on-completion") => {
            let before = without_hint(pod);
            return Draft::new(
                Verdict::Stays,
                "safe-to-evict is \"on-completion\": its node may be given up once it has ended",
            )
            .and(format!("before version 1.36 this value says nothing, and then: {}", before.reasons.join("; ")));
        }
        _ => {}
    }
    let draft = without_hint(pod);
    match hint {
        // The rule for "false" comes after those for its owner and namespace, which say the same.
        Some("false") if draft.verdict != Verdict::Stays => Draft::new(Verdict::Stays, "safe-to-evict is \"false\""),
        Some("false") => draft.first("safe-to-evict is \"false\""),
        Some(other) => draft.first(format!(
            "safe-to-evict is {other:?}, which says nothing (\"true\", \"false\" and \"on-completion\" do, spelt so)"
        )),
        None => draft,
    }
}

/// The rules that look at the pod itself.
fn without_hint(pod: &PodFacts<'_>) -> Draft {
    match pod.controller_kind {
        None => return Draft::new(Verdict::Stays, "nothing would make it again: it has no controller"),
        Some(kind) if !REPLICATED.contains(&kind) => {
            let why = format!(
                "its controller, of kind {kind}, is not among those that are taken to make pods again (unless \
                 --skip-nodes-with-custom-controller-pods=false)"
            );
            return Draft::new(Verdict::Stays, why);
        }
        Some(_) => {}
    }
    if pod.namespace == "kube-system" {
        let why = "it is in kube-system, where pods stay for an hour unless a budget selects them \
                   (--blocking-system-pod-distruption-timeout, --skip-nodes-with-system-pods)";
        return Draft::new(Verdict::Stays, why);
    }
    let safe: Vec<&str> = pod.annotation(SAFE_LOCAL_VOLUMES).unwrap_or_default().split(',').collect();
    let local = pod
        .local_volumes
        .iter()
        .find(|volume| volume.kind != LocalVolumeKind::EmptyDirInMemory && !safe.contains(&volume.name));
    if let Some(volume) = local {
        let why = format!("its volume {} is on the node (unless --skip-nodes-with-local-storage=false)", volume.name);
        return Draft::new(Verdict::Stays, why);
    }
    Draft::eviction(pod, &CLUSTER_AUTOSCALER)
}
