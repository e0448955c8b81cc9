//! The EvictionHold object, as decisions see it, and the states it goes through.
//!
//! The states follow `lifecycle.k8s.io` (KEP-4563): asked, active, released, completed. A released hold is
//! never taken back: whoever reads `Released` lets the victim go, for ever.

use jiff::{SignedDuration, Timestamp};

use crate::action::ObjectRef;

/// One held eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldView {
    /// `metadata.namespace`, also the victim's.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`: the precondition of every write.
    pub resource_version: String,
    /// What was recorded when the eviction was first held.
    pub spec: HoldSpec,
    /// How far it is.
    pub status: HoldStatus,
}

/// What was recorded when an eviction was first held. Immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldSpec {
    /// Name of the victim.
    pub victim_name: String,
    /// UID of the victim: a pod of the same name with another UID is another pod.
    pub victim_uid: String,
    /// Node of the victim.
    pub victim_node: String,
    /// Label `pod-template-hash` of the victim; empty where it has none.
    pub victim_hash: String,
    /// Why it is held.
    pub reason: HoldReason,
    /// What the victim belongs to: its Deployment, or its owner; of an empty name where it has none.
    pub workload: WorkloadRef,
    /// User name of who asked first; empty where the request had none.
    pub evictor: String,
    /// What it began with.
    pub trigger: HoldTrigger,
    /// When it was first asked for.
    pub requested_at: Timestamp,
    /// When the victim is released at the latest.
    pub deadline: Timestamp,
}

/// What a hold began with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HoldTrigger {
    /// The pod's eviction was asked for.
    #[default]
    Eviction,
    /// Its node was seen to be about to go.
    Doom,
    /// An EvictionRequest of `lifecycle.k8s.io` named it.
    EvictionRequest,
}

impl HoldTrigger {
    /// As written in `spec.trigger`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eviction => "Eviction",
            Self::Doom => "Doom",
            Self::EvictionRequest => "EvictionRequest",
        }
    }
}

/// Why a victim is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HoldReason {
    /// Its replacement is to serve first.
    #[default]
    Handover,
    /// It is busy.
    Busy,
    /// It is idle, and its owner is to retire it.
    Retire,
}

/// What a victim belongs to, in its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadRef {
    /// API group; empty for the core.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl WorkloadRef {
    /// A Deployment.
    pub fn deployment(name: &str, uid: &str) -> Self {
        Self { group: "apps".to_owned(), kind: "Deployment".to_owned(), name: name.to_owned(), uid: uid.to_owned() }
    }
}

/// How far a hold is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldStatus {
    /// Its state.
    pub phase: Phase,
    /// What it waits for or how it ended: a word for machines.
    pub reason: String,
    /// The same in a sentence.
    pub message: String,
    /// How it ended; absent before the release.
    pub outcome: Option<Outcome>,
    /// The Deployment's revision just before the restart, written before the restart itself. With the record on
    /// the Deployment it makes sure of "one restart", even where somebody strips that record.
    pub from_revision: Option<u64>,
    /// When the restart was seen to be written, or when the surge began (Scale).
    pub restarted_at: Option<Timestamp>,
    /// When its eviction was last asked for; absent where only `requestedAt` is known. The webhook writes it, seldom.
    pub last_requested_at: Option<Timestamp>,
    /// An earlier deadline than the one that it was recorded with, where its node goes at a time of its own. Since when the
    /// node is seen to do so is known to one process alone; this outlives it.
    pub deadline: Option<Timestamp>,
    /// When the victim was released.
    pub released_at: Option<Timestamp>,
    /// When the victim was gone and the workload whole again.
    pub completed_at: Option<Timestamp>,
}

/// The state of a hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Recorded by the webhook; the controller has not taken it up.
    #[default]
    Pending,
    /// The controller works on the replacement.
    Active,
    /// The victim may go. Never taken back.
    Released,
    /// The victim is gone.
    Completed,
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The replacement serves, or the victim is being replaced by its own Deployment.
    HandedOver,
    /// There was nothing to wait for any more: protection was switched off, or the workload cannot be handed over.
    NotNeeded,
    /// The victim was removed by somebody else.
    VictimGone,
    /// The deadline passed.
    Expired,
    /// The rollout failed before the deadline.
    Failed,
    /// Somebody put the template back; the replacement was taken away again.
    Reverted,
    /// Nobody asked for the eviction any more before the stand-in was available.
    Abandoned,
    /// The victim's job was over.
    JobEnded,
    /// The victim was idle, and its owner retired it.
    Retired,
}

impl Phase {
    /// As written in `status.phase`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Active => "Active",
            Self::Released => "Released",
            Self::Completed => "Completed",
        }
    }

    /// The victim may go.
    pub fn is_released(self) -> bool {
        self >= Self::Released
    }
}

impl Outcome {
    /// As written in `status.outcome`, in metrics and in Events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HandedOver => "HandedOver",
            Self::NotNeeded => "NotNeeded",
            Self::VictimGone => "VictimGone",
            Self::Expired => "Expired",
            Self::Failed => "Failed",
            Self::Reverted => "Reverted",
            Self::Abandoned => "Abandoned",
            Self::JobEnded => "JobEnded",
            Self::Retired => "Retired",
        }
    }

    /// The workload may have been without a serving pod: an operator should look.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Expired | Self::Failed | Self::Reverted)
    }
}

impl HoldView {
    /// It is the hold of this victim for this reason. (It is named after a part of the UID only, so that of another
    /// pod of the same name could have its name.)
    pub fn is_of(&self, reason: HoldReason, victim_uid: &str) -> bool {
        self.spec.reason == reason && self.spec.victim_uid == victim_uid
    }

    /// The object, for a write.
    pub fn object(&self) -> ObjectRef {
        ObjectRef {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            resource_version: self.resource_version.clone(),
        }
    }
}

impl HoldStatus {
    /// The status of the hold when its victim may go.
    #[must_use]
    pub fn released(&self, outcome: Outcome, message: String, now: Timestamp) -> Self {
        Self {
            phase: Phase::Released,
            reason: outcome.as_str().to_owned(),
            message,
            outcome: Some(outcome),
            released_at: Some(now),
            ..self.clone()
        }
    }
}

impl HoldReason {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Handover, Self::Busy, Self::Retire];

    /// As written in `spec.reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handover => "Handover",
            Self::Busy => "Busy",
            Self::Retire => "Retire",
        }
    }

    /// A pod may be held for one reason after the other; each hold has a name of its own.
    fn suffix(self) -> &'static str {
        match self {
            Self::Handover => "",
            Self::Busy => "-busy",
            Self::Retire => "-retire",
        }
    }
}

/// Longest prefix of a pod name that is kept in a hold's name: an object name may have 253 characters, the UID's part
/// takes nine and the longest suffix seven.
const MAX_NAME_PREFIX: usize = 253 - 9 - 7;

/// The name of the hold of a victim. It derives from reason, name and UID alone, so any replica's create meets the
/// others' and the API server keeps exactly one.
pub fn hold_name(reason: HoldReason, victim_name: &str, victim_uid: &str) -> String {
    let mut prefix = victim_name;
    while prefix.len() > MAX_NAME_PREFIX || prefix.ends_with(['.', '-']) {
        let end = prefix.len().saturating_sub(1);
        prefix = prefix.get(..end).unwrap_or_default();
    }
    let uid: String = victim_uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    format!("{prefix}-{}{}", uid.to_ascii_lowercase(), reason.suffix())
}

/// When a victim that was first asked for at `requested_at` is released at the latest.
pub fn deadline(requested_at: Timestamp, seconds: u32) -> Timestamp {
    requested_at.saturating_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::HoldReason::{Busy, Handover, Retire};
    use super::*;

    #[test]
    fn a_holds_name_is_valid_and_differs_by_uid() {
        let one = hold_name(Handover, "web-7d9f", "371e4411-cf51-4018-ae12-4ddcc4b2a6c5");
        assert_eq!(one, "web-7d9f-371e4411");
        assert_eq!(hold_name(Busy, "web-7d9f", "371e4411-cf51"), "web-7d9f-371e4411-busy");
        assert_ne!(one, hold_name(Handover, "web-7d9f", "471e4411-cf51-4018-ae12-4ddcc4b2a6c5"));
        let long = hold_name(Retire, &"x".repeat(253), "371e4411-cf51");
        assert_eq!(long.len(), 253);
        let dotted = format!("{}.{}", "x".repeat(MAX_NAME_PREFIX - 1), "y".repeat(16));
        assert!(!hold_name(Handover, &dotted, "371e4411").contains(".-"), "no label of a name may end in a dot");
    }

    #[test]
    fn phases_only_go_forward() {
        assert!(
            Phase::Pending < Phase::Active && Phase::Active < Phase::Released && Phase::Released < Phase::Completed
        );
        assert!(!Phase::Active.is_released() && Phase::Released.is_released() && Phase::Completed.is_released());
    }
}
