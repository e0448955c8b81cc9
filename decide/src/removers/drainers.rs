//! Everything that drains nodes and reads no hint of its own, or only one that Belay does not write.
//!
//! Sources: kubernetes/kubectl `pkg/drain/filters.go`; kubereboot/kured `cmd/kured/main.go` (`drain`),
//! `pkg/blockers/kubernetespod.go`; kubernetes-sigs/cluster-api `core/reconcilers/machine/drain/filters.go`
//! (`drainLabelFilter`); aws/aws-node-termination-handler `pkg/node/node.go`. The clouds' own upgraders say only that
//! they evict and respect budgets.

use super::{Draft, LocalVolumeKind, Outlook, PodFacts, Stage, Verdict};
use crate::busy::hints::BUSY_LABEL;
use crate::evictors::{
    AKS_UPGRADE, AWS_NODE_TERMINATION_HANDLER, CLUSTER_API, EKS_NODE_GROUP, Evictor, GKE_UPGRADE, KUBECTL, KURED,
};

/// Cluster API's label; `skip` and `wait-completed`, in any letters, are read.
const CLUSTER_API_DRAIN: &str = "cluster.x-k8s.io/drain";

pub(super) fn outlooks(pod: &PodFacts<'_>) -> Vec<Outlook> {
    let plain = [EKS_NODE_GROUP, AKS_UPGRADE, GKE_UPGRADE, AWS_NODE_TERMINATION_HANDLER];
    let mut outlooks = vec![kubectl(pod)];
    outlooks.extend(plain.iter().map(|evictor| drain(pod, evictor).by(evictor.name)));
    outlooks.extend([cluster_api(pod), kured(pod)]);
    outlooks
}

/// What every drain does: DaemonSet and static pods stay out of it, all others are evicted.
fn drain(pod: &PodFacts<'_>, evictor: &Evictor) -> Draft {
    if let Some(why) = pod.out_of_reach() {
        return Draft::new(Verdict::Ignored, why);
    }
    if pod.stage == Stage::Finished {
        return Draft::new(Verdict::Goes, "it has finished");
    }
    if pod.is_of_daemon_set() {
        return Draft::new(Verdict::Ignored, "a DaemonSet's pod is left out of drains and goes with its node");
    }
    Draft::eviction(pod, evictor)
}

fn kubectl(pod: &PodFacts<'_>) -> Outlook {
    let mut draft = drain(pod, &KUBECTL);
    let mut flags = Vec::new();
    if pod.out_of_reach().is_none() && pod.stage == Stage::Active {
        if pod.is_of_daemon_set() {
            flags.push("--ignore-daemonsets");
        } else {
            if pod.local_volumes.iter().any(|volume| volume.kind != LocalVolumeKind::HostPath) {
                flags.push("--delete-emptydir-data");
            }
            if pod.controller_kind.is_none() {
                flags.push("--force");
            }
        }
    }
    if !flags.is_empty() {
        draft = draft.and(format!("without {} the drain of its node does not begin", flags.join(" and ")));
    }
    draft.by(KUBECTL.name)
}

fn cluster_api(pod: &PodFacts<'_>) -> Outlook {
    let draft = drain(pod, &CLUSTER_API);
    let draft = match pod.label(CLUSTER_API_DRAIN) {
        Some(value) if pod.stage == Stage::Active && matches!(draft.verdict, Verdict::Goes | Verdict::Waits) => {
            match value.to_ascii_lowercase().as_str() {
                "skip" => Draft::new(
                    Verdict::Goes,
                    "label cluster.x-k8s.io/drain is \"skip\": it is not evicted, and the machine is deleted without \
                     waiting for it",
                ),
                "wait-completed" | "waitcompleted" => Draft::new(
                    Verdict::Stays,
                    "label cluster.x-k8s.io/drain is \"wait-completed\": it is not evicted, and the drain waits for \
                     its end",
                ),
                _ => draft,
            }
        }
        _ => draft,
    };
    draft.by(CLUSTER_API.name)
}

fn kured(pod: &PodFacts<'_>) -> Outlook {
    let draft = drain(pod, &KURED);
    let busy = pod.label(BUSY_LABEL) == Some("true") && pod.stage == Stage::Active;
    let draft = if busy {
        draft.and(format!("with --blocking-pod-selector={BUSY_LABEL}=true its node is not even drained"))
    } else {
        draft
    };
    draft.by(KURED.name)
}
