//! The first hints of a pod, put into its own create.
//!
//! They cost no write, and no reader ever sees the pod without them. What is not known yet counts as starting, whose
//! hints are those of an idle pod: a runner that never gets a job is never written to again.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::hints::{self, Told};
use super::rule::{Rule, State};
use super::state::{Because, Seen, judge};
use crate::ownership::{self, Key, MANAGED_ANNOTATION, Record, Removals};

/// The labels and annotations to add to a new pod, the record included; none where all are somebody's already.
///
/// A value that stands in the create is its author's choice: the key is not managed.
pub fn first_hints(rule: &Rule, seen: &Seen<'_>, now: Timestamp) -> BTreeMap<Key, String> {
    let pod = seen.pod;
    if pod.mirror || pod.managed.is_some() {
        return BTreeMap::new();
    }
    let verdict = judge(rule, seen, now);
    let told = match verdict {
        // A field that is not there yet is not a fault, in a pod that is being made.
        _ if verdict.because.is_unknown() && !matches!(verdict.because, Because::OwnerMissing) => Told::Free,
        _ if verdict.state == State::Busy => Told::Busy(super::reconcile::whole_seconds(now)),
        _ => Told::Free,
    };
    let (desired, _) = hints::desired(&rule.spec.hints, told, now);
    let outcome = ownership::reconcile(&Record::default(), &pod.marks, &desired, &mut Removals::default(), now);
    let mut adds: BTreeMap<_, _> = outcome.changes.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    if let Some(record) = outcome.record.render() {
        adds.insert(Key::annotation(MANAGED_ANNOTATION), record);
    }
    adds
}
