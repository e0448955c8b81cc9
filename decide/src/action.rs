//! Effects as values.
//!
//! A decision never writes. It returns actions; one applier performs them, checks leadership and preconditions,
//! counts outcomes, and abandons a sequence at the first action that did not succeed. Every action carries what
//! makes it safe to perform twice: the object's UID and the `resourceVersion` that the decision was made on.

use crate::handover::record::HandoverRecord;
use crate::hold::HoldStatus;

/// An object as it was when the decision was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: a successor of the same name is not touched.
    pub uid: String,
    /// Its version: a write meets a conflict where somebody wrote in between.
    pub resource_version: String,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the status of an EvictionHold.
    UpdateHold {
        /// The hold.
        hold: ObjectRef,
        /// Its whole new status.
        status: HoldStatus,
    },
    /// Delete an EvictionHold whose history has been kept long enough.
    DeleteHold {
        /// The hold.
        hold: ObjectRef,
    },
    /// Change the restart slot of a Deployment's template, and the records on the Deployment, in one write.
    PatchTemplate {
        /// The Deployment.
        deployment: ObjectRef,
        /// The new slot; absent takes the annotation away.
        slot: Option<String>,
        /// All records that the Deployment carries from then on.
        records: Vec<HandoverRecord>,
        /// Field manager to write as; absent for Belay's own.
        field_manager: Option<String>,
    },
    /// Tell people.
    Event(Event),
}

/// An Event on a Deployment about one of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Namespace of both.
    pub namespace: String,
    /// Name of the Deployment.
    pub deployment: String,
    /// UID of the Deployment.
    pub deployment_uid: String,
    /// Name of the victim.
    pub pod: String,
    /// UID of the victim.
    pub pod_uid: String,
    /// Warning rather than Normal.
    pub warning: bool,
    /// Machine-readable reason, in CamelCase.
    pub reason: &'static str,
    /// What was done, in CamelCase.
    pub action: &'static str,
    /// The sentence for people.
    pub note: String,
}
