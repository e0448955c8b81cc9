//! Belay as a responder of `lifecycle.k8s.io` (KEP-4563, alpha in Kubernetes 1.37).
//!
//! There a pod names the responders that may prepare its eviction, from its creation on; whoever wants the pod gone
//! makes an EvictionRequest, of which the evictionrequest-controller makes one Eviction a pod, and it activates the
//! pod's responders one after the other, the highest priority first. The last one is `imperative-eviction.k8s.io/evictor`,
//! which calls `pods/eviction` as drainers always did.
//!
//! For Belay this is another way to be asked what its webhook is asked: [`respond`] has the same holds made, by the
//! same decisions, and reports how far they are; when a hold is released it reports completion, and the last
//! responder's call meets a released hold. What the API server demands of a report is in
//! `pkg/apis/lifecycle/validation/validation.go` (Kubernetes 1.37), what is asked of a responder in the types' comments.

mod entry;
mod respond;
#[cfg(test)]
mod tests;

use jiff::Timestamp;

pub use entry::entry;
pub use respond::{Asked, Input, Plan, respond, withdrawn};

pub use crate::handover::has_begun;

use crate::action::ObjectRef;
use crate::busy::GroupKind;

/// The version whose meaning is known here. An alpha API may change all of it.
pub const VERSION: &str = "v1alpha1";

/// The kind that responders read and report to.
pub fn eviction() -> GroupKind {
    GroupKind::new("lifecycle.k8s.io", "Eviction")
}

/// The name of Belay as a responder, of pods in handover and of busy ones alike.
pub const RESPONDER: &str = "belay.dev/hold";

/// The priority of Belay among a pod's responders.
///
/// Above 10000, where the pod's managing controller stands, which may end the pod: a replacement has to serve before
/// that. The KEP has what knows an application better than its controller at 11000 in its examples; whatever is to run
/// before a handover, such as a warning to users, has all numbers above.
pub const PRIORITY: i32 = 11_000;

/// An Eviction, as far as its responder cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionView {
    /// The object, for a write.
    pub object: ObjectRef,
    /// Name of the pod, in its namespace; empty where it has another target.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: String,
    /// Who asks for the eviction: the names of those whose intent is not withdrawn, with commas.
    pub requesters: String,
    /// The state that the evictionrequest-controller gave Belay; absent where Belay is no responder of it.
    pub state: Option<State>,
    /// What Belay reported.
    pub reported: Reported,
    /// The condition `Failed` is true: it was cancelled, or nobody could evict the pod.
    pub failed: bool,
    /// The condition `TargetEvicted` is true.
    pub evicted: bool,
}

impl EvictionView {
    /// Somebody still wants the pod gone.
    fn stands(&self) -> bool {
        !self.failed && self.state != Some(State::Canceled)
    }

    /// It is Belay's turn.
    pub fn is_active(&self) -> bool {
        self.state == Some(State::Active) && self.reported.completed.is_none() && !self.failed && !self.evicted
    }
}

/// The state of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is not its turn yet.
    Inactive,
    /// It is to act.
    Active,
    /// It did not report in time, and others were turned to.
    Interrupted,
    /// Nobody wants the eviction any more.
    Canceled,
    /// It has reported completion.
    Completed,
}

impl State {
    /// Reads `status.targetResponders[].state`; what is unheard of is no turn of ours.
    pub fn parse(state: &str) -> Self {
        match state {
            "Active" => Self::Active,
            "Interrupted" => Self::Interrupted,
            "Canceled" => Self::Canceled,
            "Completed" => Self::Completed,
            _ => Self::Inactive,
        }
    }
}

/// What Belay has reported of an Eviction: its entry of `status.responders`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// `startTime`, which the evictionrequest-controller sets when it makes a responder active.
    pub started: Option<Timestamp>,
    /// `heartbeatTime`.
    pub heartbeat: Option<Timestamp>,
    /// `expectedCompletionTime`.
    pub expected: Option<Timestamp>,
    /// `completionTime`.
    pub completed: Option<Timestamp>,
    /// `message`.
    pub message: String,
}

/// What is to be reported. Absent fields stay as they are. All times are of whole seconds, as they stand in the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// `heartbeatTime`.
    pub heartbeat: Option<Timestamp>,
    /// `expectedCompletionTime`.
    pub expected: Option<Timestamp>,
    /// `completionTime`.
    pub completed: Option<Timestamp>,
    /// `message`.
    pub message: String,
}
