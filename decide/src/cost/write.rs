//! What brings one pod's annotation to the value that it ought to carry.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::COST_ANNOTATION;
use super::cluster::KnownPod;
use crate::action::{Action, Event, ObjectRef, Reference};
use crate::ownership::{self, Key, MANAGED_ANNOTATION, Record, Removals};

#[cfg(test)]
mod tests;

/// A write to one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The patch, and the Event that tells of a value given up.
    pub sequence: Vec<Action>,
    /// The value is somebody else's from now on.
    pub yielded: bool,
}

/// What to write on a pod that ought to carry this value; absent where nothing is.
pub fn write(known: &KnownPod, desired: Option<i32>, removals: &mut Removals, now: Timestamp) -> Option<Write> {
    let pod = &known.pod;
    let key = Key::annotation(COST_ANNOTATION);
    let record = Record::parse(known.managed.as_deref());
    let present = known.present.iter().map(|value| (key.clone(), value.to_string())).collect();
    let desired = BTreeMap::from([(key.clone(), desired.map(|value| value.to_string()))]);
    removals.look_at(&known.resource_version);
    let outcome = ownership::reconcile(&record, &present, &desired, removals, now);
    let mut changes = outcome.changes;
    if outcome.record != record {
        changes.insert(Key::annotation(MANAGED_ANNOTATION), outcome.record.render());
    }
    if changes.is_empty() {
        return None;
    }
    let object = ObjectRef {
        namespace: pod.namespace.to_string(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        resource_version: known.resource_version.to_string(),
    };
    let yielded = !outcome.yielded.is_empty();
    let mut sequence = vec![Action::PatchPod { pod: object, changes }];
    if yielded {
        sequence.push(Action::Event(conflict(known, &key)));
    }
    Some(Write { sequence, yielded })
}

fn conflict(known: &KnownPod, key: &Key) -> Event {
    let pod = &known.pod;
    let now = known.present.as_ref().map_or_else(|| "keeps removing".to_owned(), |value| format!("set {value:?} in"));
    Event {
        namespace: pod.namespace.to_string(),
        regarding: Reference::pod(&pod.name, &pod.uid),
        related: Some(Reference::pod_mark(&pod.name, &pod.uid, key)),
        warning: true,
        reason: "DeletionCostConflict",
        action: "Yield",
        note: format!("Somebody else {now} {COST_ANNOTATION}; Belay leaves this pod's value to them"),
    }
}

/// The annotations by which a pod is bound with this value; `managed` is its record as it stands.
pub fn bind_annotations(value: i32, managed: Option<&str>) -> BTreeMap<&'static str, String> {
    let mut record = Record::parse(managed);
    record.insert(Key::annotation(COST_ANNOTATION), value.to_string());
    let record = record.render().unwrap_or_default();
    BTreeMap::from([(COST_ANNOTATION, value.to_string()), (MANAGED_ANNOTATION, record)])
}
