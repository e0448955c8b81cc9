//! What everything that removes pods would do with one pod now.
//!
//! "Why is this node still here?" and "may this pod be killed?" have as many answers as a cluster has removers, since
//! each reads other hints, in another order, and takes another spelling for nothing. This is each one's own rule, as
//! its source has it, applied to one pod: what `belay explain pod` prints. It knows the pod and whether Belay would
//! refuse its eviction; it does not know budgets, the other pods of the node, or how a remover is configured, so every
//! answer is for the remover's defaults, and says which setting would change it.

mod cluster_autoscaler;
mod drainers;
mod go_duration;
mod karpenter;
mod others;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::evictors::Evictor;
pub use go_duration::parse as go_duration;

/// What is known of the pod.
#[derive(Clone, Copy, Debug)]
pub struct PodFacts<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.labels`.
    pub labels: &'a BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: &'a BTreeMap<String, String>,
    /// Kind of the owner reference with `controller: true`; absent for a bare pod.
    pub controller_kind: Option<&'a str>,
    /// How far its life has come.
    pub stage: Stage,
    /// It has the annotation `kubernetes.io/config.mirror`: the kubelet's picture of a static pod.
    pub is_mirror: bool,
    /// Its volumes that live on the node.
    pub local_volumes: &'a [LocalVolume<'a>],
    /// `status.startTime`.
    pub started: Option<Timestamp>,
    /// Belay would refuse its eviction now.
    pub held: bool,
}

/// How far a pod's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Pending or running.
    Active,
    /// Phase `Succeeded` or `Failed`.
    Finished,
    /// `metadata.deletionTimestamp` is set.
    Terminating,
}

/// A volume that lives on the pod's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalVolume<'a> {
    /// Its name in `spec.volumes`.
    pub name: &'a str,
    /// What it is.
    pub kind: LocalVolumeKind,
}

/// What a local volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalVolumeKind {
    /// `hostPath`.
    HostPath,
    /// `emptyDir` on disk.
    EmptyDir,
    /// `emptyDir` with `medium: Memory`.
    EmptyDirInMemory,
}

/// What one remover would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// It leaves the pod where it is, and with it the node.
    Stays,
    /// It asks for the pod's eviction, is refused, and waits, at least for a while.
    Waits,
    /// It removes the pod.
    Goes,
    /// The pod does not count for it: it neither removes it nor waits for it.
    Ignored,
}

/// What one remover would do, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outlook {
    /// Who.
    pub remover: &'static str,
    /// What.
    pub verdict: Verdict,
    /// Why, for people.
    pub because: String,
}

/// What each remover would do with the pod, always in the same order.
pub fn outlooks(pod: &PodFacts<'_>, now: Timestamp) -> Vec<Outlook> {
    let mut outlooks = vec![cluster_autoscaler::outlook(pod), karpenter::outlook(pod, now), others::descheduler(pod)];
    outlooks.extend(drainers::outlooks(pod));
    outlooks.extend([others::cast_ai(pod), others::spot_ocean(pod)]);
    outlooks.extend(others::scale_down(pod));
    outlooks.push(others::deletion(pod));
    outlooks
}

impl PodFacts<'_> {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    fn is_of_daemon_set(&self) -> bool {
        self.controller_kind == Some("DaemonSet")
    }

    /// Why no remover has to do with the pod any more, or ever had.
    fn out_of_reach(&self) -> Option<&'static str> {
        if self.is_mirror {
            Some("a static pod: the API server shows it, but only the node's kubelet can remove it")
        } else if self.stage == Stage::Terminating {
            Some("it is being deleted already")
        } else {
            None
        }
    }
}

/// An answer in the making: a verdict and its reasons in order.
struct Draft {
    verdict: Verdict,
    reasons: Vec<String>,
}

impl Draft {
    fn new(verdict: Verdict, reason: impl Into<String>) -> Self {
        Self { verdict, reasons: vec![reason.into()] }
    }

    /// It asks for the eviction: what comes of it is Belay's answer.
    fn eviction(pod: &PodFacts<'_>, evictor: &Evictor) -> Self {
        if pod.held {
            Self::new(
                Verdict::Waits,
                format!(
                    "Belay refuses its eviction; {} {}: {}",
                    evictor.name,
                    evictor.patience(),
                    evictor.when_refused
                ),
            )
        } else {
            Self::new(Verdict::Goes, "nothing that is known of it keeps it from being evicted")
        }
    }

    fn first(mut self, reason: impl Into<String>) -> Self {
        self.reasons.insert(0, reason.into());
        self
    }

    fn and(mut self, reason: impl Into<String>) -> Self {
        self.reasons.push(reason.into());
        self
    }

    fn by(self, remover: &'static str) -> Outlook {
        Outlook { remover, verdict: self.verdict, because: self.reasons.join("; ") }
    }
}
