//! What a pod is doing, read from the cluster by its rule.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use super::expression::{EvaluationError, Inputs};
use super::rule::{GroupKind, OnUnknown, Rule, State};
use crate::ownership::Key;
use crate::view::PodPhase;

/// A pod that a rule selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyPod {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`: the precondition of every write.
    pub resource_version: Box<str>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// The mirror of a static pod: what is done to it has no effect.
    pub mirror: bool,
    /// `spec.nodeName`; absent until the pod is bound.
    pub node: Option<Box<str>>,
    /// `status.phase`.
    pub phase: PodPhase,
    /// When the `Ready` condition became true; absent while it is not true.
    pub ready_since: Option<Timestamp>,
    /// Its controller.
    pub controller: Option<ControllerRef>,
    /// The labels and annotations that Belay may write, as they stand.
    pub marks: BTreeMap<Key, String>,
    /// Annotation `belay.dev/managed`, as it stands.
    pub managed: Option<Box<str>>,
    /// What its rule reads of it.
    pub object: Json,
}

impl BusyPod {
    /// The pod has ended, well or badly.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }
}

/// A reference to the controller of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerRef {
    /// Its kind.
    pub kind: GroupKind,
    /// Its name.
    pub name: Box<str>,
    /// Its UID.
    pub uid: Box<str>,
}

/// An owner, or an object on the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// Its own controller.
    pub controller: Option<ControllerRef>,
    /// What rules read of it.
    pub object: Json,
    /// When each job field was last written, by its path; absent for those of which nobody knows.
    pub written: BTreeMap<Box<str>, Timestamp>,
}

/// The owner, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// The rule asks for none.
    NotAsked,
    /// It is not there, or not of the UID that the pod names.
    Missing,
    /// It is.
    Owner(&'a Owner),
}

/// Everything that a state is read from.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// The pod.
    pub pod: &'a BusyPod,
    /// Its owner.
    pub owner: Found<'a>,
    /// What the rule reads of each linked pod.
    pub linked: Vec<&'a Json>,
}

/// A pod's state and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The state.
    pub state: State,
    /// What decided it.
    pub because: Because,
    /// When it changes though nothing is written.
    pub changes_at: Option<Timestamp>,
}

/// What decided a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Because {
    /// The pod has ended, whatever its owner says.
    PodFinished,
    /// The expression of this number, from 0.
    Expression(usize),
    /// No expression is true.
    NoneTrue,
    /// No expression is true, but the pod is ready only since a moment ago, or not yet.
    StartupGrace,
    /// The owner was not seen yet, and the pod is young.
    OwnerNotSeenYet,
    /// The owner is missing.
    OwnerMissing,
    /// The expression of this number, from 0, gave no answer.
    Failed(usize, EvaluationError),
}

impl Because {
    /// The state is not known; the rule says what the pod counts as.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::OwnerMissing | Self::Failed(..))
    }
}

/// A pod and its owner come by two watches, of which one may be ahead. Seconds are much for that; a pod that is older
/// and whose owner is still not seen has none.
const OWNER_LATENESS: SignedDuration = SignedDuration::from_secs(30);

/// How soon a state is read again where an expression reads the time.
const READ_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// Reads a pod's state.
pub fn judge(rule: &Rule, seen: &Seen<'_>, now: Timestamp) -> Verdict {
    let pod = seen.pod;
    if pod.is_finished() {
        return Verdict { state: State::Done, because: Because::PodFinished, changes_at: None };
    }
    let owner = match seen.owner {
        Found::NotAsked => None,
        Found::Owner(owner) => Some(current(rule, owner, pod.created)),
        Found::Missing => {
            let seen_by = later(pod.created, OWNER_LATENESS);
            return if now < seen_by {
                Verdict { state: State::Starting, because: Because::OwnerNotSeenYet, changes_at: Some(seen_by) }
            } else {
                unknown(rule, Because::OwnerMissing)
            };
        }
    };
    let changes_at = rule.reads_time().then(|| later(now, READ_AGAIN));
    let inputs = Inputs { pod: &pod.object, owner: owner.as_ref(), linked: &seen.linked, now };
    for (index, (state, expression)) in rule.states.iter().enumerate() {
        match expression.evaluate(&inputs) {
            Ok(false) => {}
            Ok(true) if *state == State::Idle => return idle(rule, pod, Because::Expression(index), changes_at, now),
            Ok(true) => return Verdict { state: *state, because: Because::Expression(index), changes_at },
            Err(error) => return Verdict { changes_at, ..unknown(rule, Because::Failed(index, error)) },
        }
    }
    idle(rule, pod, Because::NoneTrue, changes_at, now)
}

fn unknown(rule: &Rule, because: Because) -> Verdict {
    let state = match rule.spec.on_unknown {
        OnUnknown::Busy => State::Busy,
        OnUnknown::Idle => State::Idle,
    };
    Verdict { state, because, changes_at: None }
}

/// Idle, or still starting: a runner that was made for a job looks idle until the job shows.
///
/// A pod that does not get ready counts from its creation, or one that never does would be held as starting for ever.
fn idle(rule: &Rule, pod: &BusyPod, because: Because, changes_at: Option<Timestamp>, now: Timestamp) -> Verdict {
    let until = later(pod.ready_since.unwrap_or(pod.created), rule.spec.startup_grace);
    if now < until {
        let changes_at = Some(changes_at.map_or(until, |at| at.min(until)));
        return Verdict { state: State::Starting, because: Because::StartupGrace, changes_at };
    }
    Verdict { state: State::Idle, because, changes_at }
}

/// The owner without what it says of a former pod's job.
///
/// The API server notes when a manager's fields were last changed, in whole seconds, as it does a pod's creation: in
/// one second both, the job counts as the pod's.
fn current(rule: &Rule, owner: &Owner, pod_created: Timestamp) -> Json {
    let mut object = owner.object.clone();
    let fields = rule.spec.owner.iter().flat_map(|owner| &owner.job_fields);
    for field in fields {
        let written = owner.written.get(field.as_str());
        if written.is_some_and(|written| written.as_second() < pod_created.as_second()) {
            remove(&mut object, field);
        }
    }
    object
}

fn remove(object: &mut Json, path: &str) {
    let (parents, last) = path.rsplit_once('.').map_or(("", path), |(parents, last)| (parents, last));
    let mut place = Some(object);
    for key in parents.split('.').filter(|key| !key.is_empty()) {
        place = place.and_then(|place| place.get_mut(key));
    }
    if let Some(fields) = place.and_then(Json::as_object_mut) {
        fields.remove(last);
    }
}

pub(super) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}
