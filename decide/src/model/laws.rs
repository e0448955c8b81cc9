//! What must hold after every step, whatever the step was.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::World;
use super::belay::{Ask, is_release};
use super::cluster::Seen;
use crate::handover::Plan;
use crate::handover::record::HandoverRecord;
use crate::hold::{Allowed, Answer, Decision, HoldStatus, Moment, UNRECORDED_GRACE};
use crate::testing::after;
use crate::view::PodView;

/// A replica's life, and a victim.
type Held = (usize, u32, String);

/// What was seen so far.
#[derive(Debug)]
pub(super) struct Laws {
    /// No clock was wrong so far.
    pub(super) clocks: bool,
    /// No record was lost or taken away so far.
    pub(super) durable: bool,
    /// Restarts made for each victim, by UID.
    pub(super) restarts: BTreeMap<String, u32>,
    /// Rollbacks of each victim's restart.
    rollbacks: BTreeMap<String, u32>,
    /// Victims whose restart left no trace that anybody could read.
    untraceable: BTreeSet<String>,
    /// When each replica first held each victim, in true time.
    first: BTreeMap<Held, i64>,
    /// What each replica released.
    released: BTreeSet<Held>,
    /// When each victim was first held by anybody.
    pub(super) held: BTreeMap<String, i64>,
    /// Every answer that was given, by its reason.
    pub(super) answers: BTreeSet<&'static str>,
}

impl Default for Laws {
    fn default() -> Self {
        Self {
            clocks: true,
            durable: true,
            restarts: BTreeMap::new(),
            rollbacks: BTreeMap::new(),
            untraceable: BTreeSet::new(),
            first: BTreeMap::new(),
            released: BTreeSet::new(),
            held: BTreeMap::new(),
            answers: BTreeSet::new(),
        }
    }
}

/// A hold's status was written.
pub(super) fn watch_hold(before: &HoldStatus, now: &HoldStatus) {
    let guards = matches!(&*now.reason, "Restarting" | "RollingBack") || now.message.ends_with("is withdrawn");
    assert!(before != now || guards, "a write that changes nothing, and guards nothing");
    assert!(before.phase <= now.phase, "a hold went back from {:?} to {:?}", before.phase, now.phase);
    if before.phase.is_released() {
        assert_eq!((before.outcome, before.released_at), (now.outcome, now.released_at), "the end was rewritten");
    }
}

impl Laws {
    /// The template was patched. Says for which victim.
    pub(super) fn watch_patch(&mut self, before: &[HandoverRecord], now: &[HandoverRecord]) -> String {
        let undone = |records: &[HandoverRecord], victim: &str| {
            records.iter().any(|record| record.victim == victim && record.rolled_back)
        };
        let rolled_back = now.iter().find(|one| one.rolled_back && !undone(before, &one.victim));
        let (counts, record) = match rolled_back {
            Some(record) => (&mut self.rollbacks, record),
            None => (&mut self.restarts, now.last().expect("a restart is recorded in its own write")),
        };
        let count = counts.entry(record.victim.clone()).or_default();
        *count += 1;
        let excused = self.untraceable.contains(&record.victim);
        assert!(*count <= 1 || excused, "the template was changed {count} times for {}: {now:?}", record.victim);
        record.victim.clone()
    }
}

/// A plan that does nothing now must say when to look again, where time alone will change it.
pub(super) fn watch_plan(plan: &Plan, seen: &Seen) {
    if !plan.sequences.is_empty() {
        return;
    }
    for hold in seen.holds.iter() {
        let open = !hold.status.phase.is_released();
        let gone = !seen.pods.iter().any(|pod| *pod.uid == *hold.spec.victim_uid);
        assert!(!(open || gone) || plan.wake_at.is_some(), "nobody will look again at {hold:?}");
        assert!(!open || plan.wake_at <= Some(hold.spec.deadline), "the deadline of {hold:?} will be missed");
    }
}

impl World {
    /// After every step.
    pub(super) fn check(&mut self) {
        self.note_lost_traces();
    }

    /// A restart is known by the record on the Deployment, by the hold's `restartedAt`, or by the hold's
    /// `fromRevision` once there is a later revision. Where people take all of these away and put the
    /// template back as well, nothing in the cluster tells that there was a restart.
    fn note_lost_traces(&mut self) {
        let api = &self.api;
        for victim in self.laws.restarts.keys() {
            let Some(pod) = api.pod(victim) else { continue };
            let of_newest =
                api.newest().is_some_and(|newest| Some(&api.sets[newest].view.uid) == pod.view.replica_set.as_ref());
            let by_hold = api.hold_of(victim).is_some_and(|hold| {
                let moved_on = |from| api.sets.iter().any(|set| set.view.revision > Some(from));
                hold.status.restarted_at.is_some() || hold.status.from_revision.is_some_and(moved_on)
            });
            if of_newest && !by_hold && api.deployment.record_of(victim).is_none() {
                self.laws.untraceable.insert(victim.clone());
            }
        }
    }

    /// A replica has decided, and nothing came of it yet.
    pub(super) fn watch_answer(&mut self, ask: &Ask, victim: &PodView, decision: &Decision, now: Moment, seen: &Seen) {
        self.laws.answers.insert(decision.answer.reason());
        if ask.dry_run {
            assert_eq!((&decision.memory, &decision.record), (&None, &None), "a dry run leaves no trace");
            assert!(matches!(decision.answer, Answer::Allow(_)), "a dry run is never held");
            return;
        }
        let uid = victim.uid.to_string();
        let key: Held = (ask.replica, self.replicas[ask.replica].life, uid.clone());
        if matches!(decision.answer, Answer::Allow(Allowed::ReplacementAvailable { .. })) && ask.lag == [0; 5] {
            assert!(
                self.api.serves_beside(victim, after(self.time + self.replicas[ask.replica].offset)),
                "nobody serves"
            );
        }
        if is_release(&decision.answer) {
            self.laws.released.insert(key);
            return;
        }
        let Answer::Hold(_) = &decision.answer else { return };
        assert!(!self.laws.released.contains(&key), "held again after this replica had released it");

        // By one process: never longer than the limit, whatever clocks, caches and records say.
        let first = *self.laws.first.entry(key).or_insert(self.time);
        let limit = i64::from(self.config.limit);
        assert!(self.time - first < limit, "one replica held for {} s, the limit being {limit} s", self.time - first);

        // By what it sees: never at or after a recorded deadline, by its own clock; never unrecorded beyond the grace.
        let hold = seen.holds.iter().find(|hold| hold.spec.victim_uid == uid);
        let record = seen.deployment.record_of(&uid);
        for deadline in
            [hold.map(|hold| hold.spec.deadline), record.map(|record| record.deadline)].into_iter().flatten()
        {
            assert!(now.wall < deadline, "held at {} after the recorded deadline {deadline}", now.wall);
        }
        let grace = Duration::as_secs(&UNRECORDED_GRACE) as i64;
        assert!(hold.is_some() || record.is_some() || self.time - first < grace, "held without a record");

        // By the API: a release that it can see is final.
        let fresh = self.api.hold_of(&uid).filter(|_| ask.lag == [0; 5]);
        assert!(fresh.is_none_or(|hold| !hold.status.phase.is_released()), "held although the hold is released");

        // By anybody: where clocks are right, records are kept and caches are fresh, the first hold sets the end.
        let begun = *self.laws.held.entry(uid.clone()).or_insert(self.time);
        if self.laws.clocks && self.laws.durable && self.config.prompt_records && ask.lag == [0; 5] {
            assert!(
                self.time < begun + limit,
                "held {} s after the first hold, the limit being {limit} s",
                self.time - begun
            );
        }
        let known = seen.pods.iter().find(|pod| *pod.uid == *uid);
        assert!(
            known.is_some_and(|pod| pod.ready_since.is_some() && !pod.terminating),
            "held, though it serves nobody"
        );
    }
}
