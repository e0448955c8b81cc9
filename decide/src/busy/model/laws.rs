//! What must hold after every step, and at the end.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::World;
use super::controller::Fate;
use crate::busy::hints::{self, BUSY_SINCE, Told, desired};
use crate::busy::{BusyPod, State};
use crate::ownership::{Holder, Key, MANAGED_ANNOTATION, Record, holder};
use crate::testing::after;

/// Within so many seconds removals count together.
const HOUR: i64 = 3600;

/// What was seen so far.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a condition of its own")]
pub(super) struct Laws {
    /// Keys whose value is not Belay's, by who wrote them.
    foreign: BTreeSet<Key>,
    /// How often people took away what was recorded, of the present pod.
    removed: BTreeMap<Key, usize>,
    /// When the controller of this life put a key back, of the present pod.
    restored: BTreeMap<(u32, Key), Vec<i64>>,
    /// The same of giving up.
    given_up: BTreeMap<(u32, Key), Vec<i64>>,
    /// Answers that were lost: each may cost one attempt more.
    lost: usize,
    /// What was met, to show that histories meet it at all.
    pub(super) met: BTreeSet<&'static str>,
    /// What the pod is at, by the truth, where it is not free to go: which pod, and whether it is busy rather than
    /// starting.
    pub(super) spell: Option<(String, bool)>,
    /// When anybody first held it in this spell, in true time.
    pub(super) held: Option<i64>,
    /// The same of each replica's life, and what the pod said then of when it became busy.
    pub(super) held_by: BTreeMap<(usize, u32), (i64, Option<i64>)>,
    /// Nobody took a hold away in this spell.
    pub(super) recorded: bool,
    /// Nobody touched what stands on the pod in this spell.
    pub(super) noted: bool,
    /// No wall clock was wrong in this spell.
    pub(super) clocks: bool,
    /// The controller's cache did not lag in this spell.
    pub(super) fresh: bool,
}

fn record(pod: &BusyPod) -> Record {
    Record::parse(pod.managed.as_deref())
}

fn present<'a>(pod: &'a BusyPod, key: &Key) -> Option<&'a str> {
    pod.marks.get(key).map(String::as_str)
}

impl Laws {
    /// When the controller of this life did something about a removal of this key.
    fn answers(&self, life: u32, key: &Key) -> Vec<i64> {
        let of = (life, key.clone());
        [&self.restored, &self.given_up].into_iter().filter_map(|times| times.get(&of)).flatten().copied().collect()
    }

    /// A new pod has just been created.
    pub(super) fn another_pod(&mut self, pod: &BusyPod) {
        let record = record(pod);
        self.foreign = pod.marks.keys().filter(|key| record.written(key).is_none()).cloned().collect();
        for (key, value) in &pod.marks {
            assert!(record.written(key).is_none_or(|written| written == value), "the record says what was written");
        }
        (self.removed, self.restored, self.given_up) = Default::default();
        self.met.insert("a pod recreated");
    }
}

impl World {
    /// Belay is about to write this on the pod as it stands.
    pub(super) fn watch_patch(&mut self, changes: &BTreeMap<Key, Option<String>>, lost: bool) {
        let (before, mut then) = (record(&self.pod), self.pod.clone());
        crate::busy::testing::patch(&mut then, changes);
        let now = record(&then);
        let (time, life) = (self.time, self.leader.life);
        assert!(!changes.is_empty(), "an empty patch");
        let laws = &mut self.laws;
        laws.lost += usize::from(lost);
        for (key, value) in changes.iter().filter(|(key, _)| key.name() != MANAGED_ANNOTATION) {
            let there = present(&self.pod, key);
            assert!(!laws.foreign.contains(key), "{key}={there:?} is somebody else's and became {value:?}");
            assert!(!before.is_given_up(key), "{key} was given up");
            assert_ne!(there, value.as_deref(), "a change that changes nothing");
            assert_eq!(now.written(key), value.as_deref(), "what is written is recorded");
            if there.is_none() && before.written(key).is_some() {
                laws.met.insert("a key put back");
                let times = laws.restored.entry((life, key.clone())).or_default();
                times.push(time);
                let lately = times.iter().filter(|at| time - **at < HOUR).count();
                assert!(lately <= 2 + laws.lost, "{key} was put back {lately} times within an hour");
            }
        }
        // What is not ours any more.
        for key in hints::keys().iter().filter(|key| before.written(key).is_some() && now.written(key).is_none()) {
            if now.is_given_up(key) {
                laws.met.insert("a key given up");
                // Answered by putting it back, or by giving it up though the record of that went.
                let answers = laws.answers(life, key);
                let lately = answers.iter().filter(|at| time - **at < HOUR).count();
                assert!(lately >= 2, "{key} was given up when {lately} removals within an hour had been answered");
                let removals = laws.removed.get(key).copied().unwrap_or_default();
                assert!(removals > answers.len(), "{key} was removed only {removals} times");
                laws.given_up.entry((life, key.clone())).or_default().push(time);
            } else if present(&then, key).is_some() {
                laws.met.insert("a key yielded");
                assert!(laws.foreign.contains(key), "{key} was yielded, and nobody had changed it");
            }
        }
        // The record is true of everything else.
        for key in now.keys().filter(|key| now.written(key).is_some()) {
            assert_eq!(present(&then, key), now.written(key), "{key} is not as recorded");
        }
        for name in ["false", "on-completion"] {
            if changes.values().flatten().any(|value| value == name) {
                laws.met.insert(name);
            }
        }
    }

    /// Somebody else has written the pod.
    pub(super) fn watch_person(&mut self, before: &BusyPod) {
        let (was, now) = (record(before), record(&self.pod));
        self.laws.noted = false;
        for key in hints::keys() {
            let (then, there) = (present(before, &key), present(&self.pod, &key));
            // Whose it is by what stands there: also by a record that was restored or thrown away.
            let is_foreign = there.is_some() && holder(&now, &key, there) == Holder::Other;
            if is_foreign {
                self.laws.foreign.insert(key.clone())
            } else {
                self.laws.foreign.remove(&key)
            };
            let missing = |record: &Record, present: Option<&str>| record.written(&key).is_some() && present.is_none();
            if missing(&now, there) && !missing(&was, then) {
                *self.laws.removed.entry(key.clone()).or_default() += 1;
            }
        }
    }

    /// The state by the truth, without Belay's reading of it.
    pub(super) fn truth(&self) -> State {
        let Some(owner) = &self.owner else {
            let is_young = after(self.time) < self.pod.created + jiff::SignedDuration::from_secs(30);
            return if is_young { State::Starting } else { State::Busy };
        };
        match owner.object["status"]["phase"].as_str() {
            Some("Done") => State::Done,
            _ if !self.linked.is_empty() => State::Busy,
            Some("Busy") => State::Busy,
            Some("Starting") => State::Starting,
            _ => State::Idle,
        }
    }

    /// At rest every hint that is ours or free is true, and stays so without a write.
    pub(super) fn check_rest(&mut self) {
        let pod = &self.pod;
        let recorded = record(pod);
        let of = |key: &Key| holder(&recorded, key, present(pod, key));
        let key = Key::annotation(BUSY_SINCE);
        let now = after(self.time);
        let noted: Option<Timestamp> =
            recorded.written(&key).filter(|_| of(&key) == Holder::Belay).and_then(|since| since.parse().ok());
        let limit = jiff::SignedDuration::from_secs(self.config.max_busy);
        let possible: Vec<Told> = match (self.truth(), noted) {
            (State::Busy, Some(since)) if now >= since + limit => vec![Told::Overdue(since)],
            (State::Busy, Some(since)) => vec![Told::Busy(since)],
            // Since when is known to the process alone; a minute ago for the second step, or long ago.
            (State::Busy, None) => {
                assert_eq!(of(&key), Holder::Other, "a busy pod says since when");
                let minute = now - jiff::SignedDuration::from_secs(60);
                vec![Told::Busy(now), Told::Busy(minute), Told::Overdue(now)]
            }
            _ => vec![Told::Free],
        };
        let is_true = |told: &Told| {
            let (values, _) = desired(&self.rules[self.rule].spec.hints, *told, now);
            let ours = values.iter().filter(|(key, _)| of(key) != Holder::Other);
            ours.clone().all(|(key, value)| present(pod, key) == value.as_deref())
        };
        assert!(possible.iter().any(is_true), "{:?} {:?} is not {possible:?}", pod.marks, pod.managed);
        if let Some(since) = noted {
            assert!(since <= now && self.truth() == State::Busy);
        }

        // For any process, as long as nothing comes by itself.
        let moments = if matches!(possible[..], [Told::Busy(_)]) { [0, 1] } else { [0, 100] };
        for (index, moment) in moments.into_iter().enumerate() {
            self.time += moment;
            if index == 1 && noted.is_some() {
                self.restart();
            }
            let plan = self.look([0; 3], Fate::Done);
            let soon = plan.wake_at.is_some_and(|at| at <= after(self.time));
            assert!(plan.sequences.is_empty() && !soon, "not at rest: {plan:?}");
        }
    }
}
