//! The EvictionHold object, as decisions see it, and the states it goes through.
//!
//! The states follow `lifecycle.k8s.io` (KEP-4563): asked, active, released, completed. A released hold is
//! never taken back: whoever reads `Released` lets the victim go, for ever.

use jiff::{SignedDuration, Timestamp};

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
    /// Name of the victim's Deployment.
    pub workload_name: String,
    /// UID of the victim's Deployment.
    pub workload_uid: String,
    /// User name of who asked first; empty where the request had none.
    pub evictor: String,
    /// When it was first asked for.
    pub requested_at: Timestamp,
    /// When the victim is released at the latest.
    pub deadline: Timestamp,
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
    /// When the restart was seen to be written.
    pub restarted_at: Option<Timestamp>,
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
        }
    }

    /// The workload may have been without a serving pod: an operator should look.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Expired | Self::Failed | Self::Reverted)
    }
}

/// Longest prefix of a pod name that is kept in a hold's name: an object name may have 253 characters, and the
/// UID's part takes nine.
const MAX_NAME_PREFIX: usize = 253 - 9;

/// The name of the hold of a victim. It derives from name and UID alone, so any replica's create meets the
/// others' and the API server keeps exactly one.
pub fn hold_name(victim_name: &str, victim_uid: &str) -> String {
    let mut prefix = victim_name;
    while prefix.len() > MAX_NAME_PREFIX || prefix.ends_with(['.', '-']) {
        let end = prefix.len().saturating_sub(1);
        prefix = prefix.get(..end).unwrap_or_default();
    }
    let uid: String = victim_uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    format!("{prefix}-{}", uid.to_ascii_lowercase())
}

/// When a victim that was first asked for at `requested_at` is released at the latest.
pub fn deadline(requested_at: Timestamp, seconds: u32) -> Timestamp {
    requested_at.saturating_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holds_name_is_valid_and_differs_by_uid() {
        let one = hold_name("web-7d9f", "371e4411-cf51-4018-ae12-4ddcc4b2a6c5");
        assert_eq!(one, "web-7d9f-371e4411");
        assert_ne!(one, hold_name("web-7d9f", "471e4411-cf51-4018-ae12-4ddcc4b2a6c5"));
        let long = hold_name(&"x".repeat(253), "371e4411-cf51");
        assert_eq!(long.len(), 253);
        let dotted = format!("{}.{}", "x".repeat(MAX_NAME_PREFIX - 1), "y".repeat(8));
        assert!(!hold_name(&dotted, "371e4411").contains(".-"), "no label of a name may end in a dot");
    }

    #[test]
    fn phases_only_go_forward() {
        assert!(
            Phase::Pending < Phase::Active && Phase::Active < Phase::Released && Phase::Released < Phase::Completed
        );
        assert!(!Phase::Active.is_released() && Phase::Released.is_released() && Phase::Completed.is_released());
    }
}
