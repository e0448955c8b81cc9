//! Effects as values.
//!
//! A decision never writes. It returns actions; one applier performs them, checks leadership and preconditions,
//! counts outcomes, and abandons a sequence at the first action that did not succeed. Every action carries what
//! makes it safe to perform twice: the object's UID and the `resourceVersion` that the decision was made on.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::busy::GroupKind;
use crate::handover::record::HandoverRecord;
use crate::handover::surge::SurgeRecord;
use crate::hold::{HoldSpec, HoldStatus};
use crate::lifecycle::Report;
use crate::ownership::Key;
use crate::view::Governor;

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
    /// Note in an EvictionHold that its victim's eviction is still asked for.
    NoteRequest {
        /// The hold; its version is no precondition, since whatever was written to it does not change that.
        hold: ObjectRef,
        /// When it was.
        at: Timestamp,
    },
    /// Delete an EvictionHold whose history has been kept long enough, or whose eviction is not wanted any more.
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
    /// Create an EvictionHold for an eviction that nobody asked for yet. Where it exists, that is as well.
    CreateHold {
        /// Its namespace.
        namespace: String,
        /// What it says; its name derives from that.
        spec: HoldSpec,
    },
    /// Change the number that a workload's replicas follow, and the record of its surge, in one write on one object.
    Surge {
        /// Which kind of object.
        governor: Governor,
        /// The object.
        object: ObjectRef,
        /// The number; absent takes the field away.
        number: Option<i32>,
        /// The record that the object carries from then on; absent takes it away.
        record: Option<SurgeRecord>,
        /// Field manager to write as; absent for Belay's own.
        field_manager: Option<String>,
    },
    /// Change the record of a surge, and leave the number as it is. Where that changes nothing at all it still fails on
    /// another version of the object.
    NoteSurge {
        /// Which kind of object.
        governor: Governor,
        /// The object.
        object: ObjectRef,
        /// The record that the object carries from then on; absent takes it away.
        record: Option<SurgeRecord>,
    },
    /// Set `spec.replicas` of a Deployment whose autoscaler was put back, so that it need not find out by itself.
    Scale {
        /// The Deployment.
        deployment: ObjectRef,
        /// The number.
        replicas: i32,
        /// Field manager to write as; absent for Belay's own.
        field_manager: Option<String>,
    },
    /// Change labels and annotations of a pod, in one write.
    PatchPod {
        /// The pod.
        pod: ObjectRef,
        /// New values; nothing takes the key away.
        changes: BTreeMap<Key, Option<String>>,
    },
    /// Delete the owner of a pod that is to go. Its finalizer decides when.
    DeleteOwner {
        /// Its kind.
        kind: GroupKind,
        /// The owner; without a version, since whatever was written to it does not change whether it is to go.
        owner: ObjectRef,
    },
    /// Report to an Eviction of `lifecycle.k8s.io` how far Belay is with it, as one of its responders.
    Respond {
        /// The Eviction.
        eviction: ObjectRef,
        /// What to report.
        report: Report,
    },
    /// Tell people.
    Event(Event),
}

/// An object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `apiVersion`.
    pub api_version: &'static str,
    /// `kind`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Which field of it, in dots and brackets; absent for the whole object. Events of one reason that differ in this
    /// are told apart, where otherwise the later ones only raise a count.
    pub field: Option<String>,
}

impl Reference {
    /// A Deployment.
    pub fn deployment(name: &str, uid: &str) -> Self {
        Self { api_version: "apps/v1", kind: "Deployment", name: name.to_owned(), uid: uid.to_owned(), field: None }
    }

    /// A Node. Its UID is its name, as the kubelet has it in its Events, which `kubectl describe node` looks for.
    pub fn node(name: &str) -> Self {
        Self { api_version: "v1", kind: "Node", name: name.to_owned(), uid: name.to_owned(), field: None }
    }

    /// A ReplicaSet.
    pub fn replica_set(name: &str, uid: &str) -> Self {
        Self { api_version: "apps/v1", kind: "ReplicaSet", name: name.to_owned(), uid: uid.to_owned(), field: None }
    }

    /// A Pod.
    pub fn pod(name: &str, uid: &str) -> Self {
        Self { api_version: "v1", kind: "Pod", name: name.to_owned(), uid: uid.to_owned(), field: None }
    }

    /// A label or annotation of a pod.
    pub fn pod_mark(name: &str, uid: &str, key: &Key) -> Self {
        let map = match key {
            Key::Label(_) => "labels",
            Key::Annotation(_) => "annotations",
        };
        Self { field: Some(format!("metadata.{map}[{}]", key.name())), ..Self::pod(name, uid) }
    }
}

/// An Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Namespace of the objects; empty for those of the cluster.
    pub namespace: String,
    /// What it is about, where `kubectl describe` shows it.
    pub regarding: Reference,
    /// What else it has to do with.
    pub related: Option<Reference>,
    /// Warning rather than Normal.
    pub warning: bool,
    /// Machine-readable reason, in CamelCase.
    pub reason: &'static str,
    /// What was done, in CamelCase.
    pub action: &'static str,
    /// The sentence for people.
    pub note: String,
}
