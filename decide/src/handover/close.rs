//! Pods as a close look at the API shows them.
//!
//! The cache keeps little of each pod, and what it keeps may be old. Which pod a scale-down takes depends on more, and
//! taking the wrong one would undo a handover; so before one, the pods of the one workload are read from the API.

use crate::cost::CostPod;
use crate::ownership::Record;

/// A pod of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosePod {
    /// What a scale-down goes by.
    pub pod: CostPod,
    /// The annotation [`crate::cost::COST_ANNOTATION`] as it stands.
    pub value: Option<Box<str>>,
    /// What Belay wrote on the pod.
    pub record: Record,
    /// `metadata.resourceVersion`: the precondition of a write.
    pub resource_version: Box<str>,
}
