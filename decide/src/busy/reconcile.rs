//! The controller's step for one pod: its hints, and the holds on it.
//!
//! Looked at afresh on every change, from what stands in the objects; only the debounce and the count of removals are
//! remembered between looks, and losing them costs seconds or three writes.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::hints::{self, BUSY_SINCE, Told};
use super::rule::{Rule, State};
use super::state::{Seen, Verdict, judge, later};
use crate::action::{Action, Event, ObjectRef, Reference};
use crate::hold::HoldView;
use crate::ownership::{self, Holder, Key, MANAGED_ANNOTATION, Record, Removals};

mod holds;

/// Everything that the step reads.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// The pod with its rule and what its state is read from; absent where it is gone or governed by no rule.
    pub governed: Option<(&'a Rule, Seen<'a>)>,
    /// UID of the pod of this name that is known to be there, governed or not.
    pub living: Option<&'a str>,
    /// How many other unfinished pods have the same controller.
    pub siblings: usize,
    /// The holds of this pod, or of one of its name that is gone, for being busy or to be retired.
    pub holds: Vec<&'a HoldView>,
    /// How long a completed hold is kept.
    pub history_ttl: SignedDuration,
    /// The time.
    pub now: Timestamp,
}

/// What the controller remembers of a pod between looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// UID of the pod: a pod recreated under the same name is another pod.
    pub uid: Box<str>,
    /// Since when it has been seen not busy.
    pub idle_since: Option<Timestamp>,
    /// Since when it has been seen busy, where the pod cannot say so: the key is somebody else's, or not yet written.
    pub busy_since: Option<Timestamp>,
    /// What was found removed.
    pub removals: Removals,
}

impl Memory {
    /// What to remember where the pod's patch was not performed; `before` is what was remembered before. The keys that
    /// it was to put back are still missing, which is no further removal when they are found so again.
    pub fn unwritten(self, before: Option<&Self>) -> Option<Self> {
        let before = before.filter(|before| before.uid == self.uid);
        let removals = before.map(|before| before.removals.clone()).unwrap_or_default();
        let memory = Self { removals, ..self };
        memory.is_worth_keeping().then_some(memory)
    }

    fn is_worth_keeping(&self) -> bool {
        self.idle_since.or(self.busy_since).is_some() || !self.removals.is_empty()
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Independent sequences; each is performed in order and abandoned at the first action that fails.
    pub sequences: Vec<Vec<Action>>,
    /// When to look again, if nothing changes before.
    pub wake_at: Option<Timestamp>,
    /// What to remember; absent where there is nothing. See [`Memory::unwritten`].
    pub memory: Option<Memory>,
    /// Keys given up to somebody else, to be counted.
    pub yielded: usize,
    /// The state that was read; absent where no rule governs the pod.
    pub state: Option<State>,
}

impl Plan {
    fn wake(&mut self, at: Option<Timestamp>) {
        self.wake_at = self.wake_at.into_iter().chain(at).min();
    }
}

/// Decides what to write for one pod.
pub fn reconcile(input: &Input<'_>, memory: Option<&Memory>) -> Plan {
    let mut plan = Plan::default();
    let now = input.now;
    if let Some((rule, seen)) = &input.governed {
        let memory = memory.filter(|memory| memory.uid == seen.pod.uid).cloned();
        let mut memory = memory.unwrap_or_else(|| Memory { uid: seen.pod.uid.clone(), ..Memory::default() });
        let verdict = judge(rule, seen, now);
        plan.wake(verdict.changes_at);
        plan.state = Some(verdict.state);
        memory.idle_since = (verdict.state != State::Busy).then(|| memory.idle_since.unwrap_or(now));
        // What ends anyway is left alone: nobody asks whether it may go.
        let is_told = !seen.pod.terminating && !seen.pod.is_finished() && !seen.pod.mirror;
        if is_told {
            tell(rule, seen, &verdict, &mut memory, &mut plan, now);
        }
        holds::look(input, Some((rule, seen, &verdict, &memory)), &mut plan);
        // Without a trace of having been busy there is no debounce to remember.
        let was_busy = noted(seen, now).or(memory.busy_since).is_some() || !input.holds.is_empty();
        memory.idle_since = memory.idle_since.filter(|_| was_busy);
        plan.memory = memory.is_worth_keeping().then_some(memory);
    } else {
        holds::look(input, None, &mut plan);
    }
    plan
}

/// By how much the clock that told the beginning may be behind the one that told the pod's creation.
const CLOCKS_DIFFER_BY: SignedDuration = SignedDuration::from_secs(60);

/// When the pod was first seen busy, as far as that is our own word. The record says so also where the annotation was
/// stripped. What was busy before the pod was created was another, whose annotations it has: it was restored, or copied.
pub(super) fn since(seen: &Seen<'_>) -> Option<Timestamp> {
    let key = Key::annotation(BUSY_SINCE);
    let present = seen.pod.marks.get(&key).map(String::as_str);
    let record = Record::parse(seen.pod.managed.as_deref());
    if ownership::holder(&record, &key, present) != Holder::Belay {
        return None;
    }
    let since: Timestamp = record.written(&key)?.parse().ok()?;
    (later(since, CLOCKS_DIFFER_BY) >= seen.pod.created).then_some(since)
}

/// The same, where it can be: what is to begin later was written by somebody else, record and all. (A webhook whose
/// clock was set back must not take it so: it would hold the pod anew.)
fn noted(seen: &Seen<'_>, now: Timestamp) -> Option<Timestamp> {
    since(seen).filter(|since| *since <= later(now, CLOCKS_DIFFER_BY))
}

/// Plans the hints.
fn tell(rule: &Rule, seen: &Seen<'_>, verdict: &Verdict, memory: &mut Memory, plan: &mut Plan, now: Timestamp) {
    let noted = noted(seen, now);
    let known = noted.or(memory.busy_since);
    let told = match (verdict.state, known) {
        (State::Busy, None) => Told::Busy(whole_seconds(now)),
        (State::Busy, Some(since)) => busy_or_overdue(rule, since, plan, now),
        (_, None) | (State::Done, Some(_)) => Told::Free,
        // A pod between two jobs, or a status that flickers: only what lasts is told.
        (State::Idle | State::Starting, Some(since)) => {
            let idle_since = memory.idle_since.unwrap_or(now);
            let until = later(idle_since, rule.spec.idle_debounce);
            if now < until {
                plan.wake(Some(until));
                busy_or_overdue(rule, since, plan, now)
            } else {
                Told::Free
            }
        }
    };
    memory.busy_since = match told {
        Told::Busy(since) | Told::Overdue(since) if noted.is_none() => Some(since),
        _ => None,
    };
    write(rule, seen, told, memory, plan, now);
}

/// Plans what brings the pod's hints to what it is told as.
fn write(rule: &Rule, seen: &Seen<'_>, told: Told, memory: &mut Memory, plan: &mut Plan, now: Timestamp) {
    let pod = seen.pod;
    let (mut desired, changes_at) = hints::desired(&rule.spec.hints, told, now);
    plan.wake(changes_at);
    let record = Record::parse(pod.managed.as_deref());
    desired.retain(|key, _| !hints::is_victims(key, &record));
    memory.removals.look_at(&pod.resource_version);
    let outcome = ownership::reconcile(&record, &pod.marks, &desired, &mut memory.removals, now);
    plan.yielded += outcome.yielded.len();
    let mut changes = outcome.changes;
    if outcome.record != record {
        changes.insert(Key::annotation(MANAGED_ANNOTATION), outcome.record.render());
    }
    if changes.is_empty() {
        return;
    }
    let is_told = |key: &Key| key.name() != MANAGED_ANNOTATION && !outcome.restored.contains(key);
    let overdue = matches!(told, Told::Overdue(_)) && changes.keys().any(is_told);
    let object = ObjectRef {
        namespace: pod.namespace.to_string(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        resource_version: pod.resource_version.to_string(),
    };
    let mut sequence = vec![Action::PatchPod { pod: object, changes }];
    for key in &outcome.yielded {
        let note = format!("Somebody else changed or keeps removing {}; Belay leaves it to them", key.name());
        let about = Reference::pod_mark(&pod.name, &pod.uid, key);
        sequence.push(event(seen, true, "HintConflict", "Yield", note, Some(about)));
    }
    if overdue {
        let note = format!(
            "Busy for longer than {:#} (rule {}, maxBusy): it counts as idle from now on",
            rule.spec.max_busy, rule.spec.name
        );
        sequence.push(event(seen, true, "BusyTooLong", "Release", note, None));
    }
    plan.sequences.push(sequence);
}

fn busy_or_overdue(rule: &Rule, since: Timestamp, plan: &mut Plan, now: Timestamp) -> Told {
    let until = later(since, rule.spec.max_busy);
    if now >= until {
        return Told::Overdue(since);
    }
    plan.wake(Some(until));
    Told::Busy(since)
}

/// Annotations tell times to people: a second is exact enough.
pub(super) fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn event(
    seen: &Seen<'_>,
    warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
    related: Option<Reference>,
) -> Action {
    Action::Event(Event {
        namespace: seen.pod.namespace.to_string(),
        regarding: Reference::pod(&seen.pod.name, &seen.pod.uid),
        related,
        warning,
        reason,
        action,
        note,
    })
}

/// Takes away everything that busy rules had Belay write on a pod that none governs any more.
pub fn forget(
    pod: &ObjectRef,
    managed: Option<&str>,
    marks: &BTreeMap<Key, String>,
    costs_are_ranked: bool,
) -> Option<Action> {
    let record = Record::parse(managed);
    let keys = hints::own_keys(costs_are_ranked).into_iter().filter(|key| !hints::is_victims(key, &record));
    let desired: BTreeMap<_, _> = keys.map(|key| (key, None)).collect();
    let outcome = ownership::reconcile(&record, marks, &desired, &mut Removals::default(), Timestamp::UNIX_EPOCH);
    let mut kept = outcome.record.clone();
    kept.drop_given_up(&desired);
    let mut changes = outcome.changes;
    if kept != record {
        changes.insert(Key::annotation(MANAGED_ANNOTATION), kept.render());
    }
    (!changes.is_empty()).then(|| Action::PatchPod { pod: pod.clone(), changes })
}
