//! What must hold after every step, whatever the step was.

use std::collections::{BTreeMap, BTreeSet};

use super::World;
use super::belay::Lag;
use crate::handover::surge::SurgeRecord;
use crate::hold::{Allowed, Answer, HoldStatus};

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Laws {
    /// Something happened that takes pods away or makes holds end without a stand-in: a pod was deleted or never gets
    /// ready, a deadline passed, protection was switched off, a victim was abandoned, somebody else set the number.
    pub(super) foul: bool,
    /// Users set deletion costs.
    pub(super) costs: bool,
    /// What is to be available, by the last surge.
    floor: i32,
    /// The number as somebody last set it, or as it was to begin with; absent before the world is at rest.
    pub(super) wanted: Option<i32>,
    /// The number is raised, by us.
    raised: bool,
    /// How often it was raised, put back, raised anew.
    pub(super) counts: [u32; 3],
    /// When each victim was first held.
    pub(super) held: BTreeMap<String, i64>,
    /// Pods that a scale-back of ours may take, where that is certain: until one of them goes otherwise.
    takes: Option<BTreeSet<String>>,
    /// Every reason that was answered or written.
    pub(super) reasons: BTreeSet<String>,
}

impl Laws {
    /// The world is at rest, and pods that are created get ready: nobody has an excuse any more.
    pub(super) fn fair_again(&mut self) {
        (self.foul, self.floor, self.takes) = (false, 0, None);
    }
}

/// A hold's status was written.
pub(super) fn watch_hold(before: &HoldStatus, now: &HoldStatus) {
    assert!(before.phase <= now.phase, "a hold went back from {:?} to {:?}", before.phase, now.phase);
    if before.phase.is_released() {
        assert_eq!((before.outcome, before.released_at), (now.outcome, now.released_at), "the end was rewritten");
    }
}

impl World {
    /// The number was written.
    pub(super) fn watch_number(
        &mut self,
        number: Option<i32>,
        before: Option<&SurgeRecord>,
        record: Option<&SurgeRecord>,
        fresh: bool,
    ) {
        let present = self.cluster.number();
        assert_ne!(number, present, "a number is written that stands there");
        self.watch_record(before, record);
        let surge = record.map_or(0, |record| record.surge);
        assert!((0..=self.config.most).contains(&surge), "{surge} added");
        if let Some(record) = record.filter(|record| record.surge > 0) {
            assert_eq!(number, Some(record.raised()), "the record says what was written");
            let maximum = self.config.maximum.unwrap_or(i32::MAX);
            assert!(record.raised() <= maximum, "{} beyond the maximum", record.raised());
        } else {
            assert_eq!(number, before.and_then(|before| before.original), "put back as it was");
            assert!(self.laws.raised, "put back twice");
            self.laws.raised = false;
            self.laws.counts[1] += 1;
        }
        let begins = record.is_some_and(|record| before.is_none_or(|before| before.since != record.since));
        if let Some(record) = record.filter(|_| begins && fresh && !self.laws.foul) {
            let available = self.cluster.available(self.now());
            assert_eq!(record.floor, available.min(record.base).max(1), "the surge spares all that serve");
        }
        if surge > 0 && !self.laws.raised {
            self.laws.raised = true;
            self.laws.counts[0] += 1;
        }
        let lowered = number < present;
        if lowered && fresh && !self.laws.costs && !self.laws.foul {
            let standing = |uid: &&str| self.cluster.find(uid).is_some_and(|at| self.cluster.is_active(at));
            let victims = self.cluster.holds.iter().map(|hold| hold.spec.victim_uid.as_str()).filter(standing);
            let victims: BTreeSet<String> = victims.map(str::to_owned).collect();
            self.laws.takes = (!victims.is_empty() && self.cluster.autoscaler.is_none()).then_some(victims);
        }
    }

    /// The record was written.
    pub(super) fn watch_record(&mut self, before: Option<&SurgeRecord>, record: Option<&SurgeRecord>) {
        if let Some(record) = record {
            self.laws.floor = record.floor;
        }
        if let (Some(before), Some(record)) = (before, record)
            && before.since == record.since
        {
            let renews = (before.base, before.original) != (record.base, record.original);
            assert!(!renews || (record.renewed && !before.renewed), "renewed more than once");
            self.laws.counts[2] += u32::from(renews);
        }
        let stays = record.is_some_and(|record| record.surge > 0);
        let is_theirs = before.is_some_and(|before| self.cluster.number() != before.number());
        if !stays && is_theirs {
            self.laws.raised = false;
        }
    }

    /// The ReplicaSet is about to remove these pods.
    pub(super) fn watch_removal(&mut self, gone: &[usize]) {
        let stands = |uid: &String| self.cluster.find(uid).is_some_and(|at| self.cluster.is_active(at));
        let takes = self.laws.takes.take().filter(|takes| takes.iter().all(stands));
        let takes = takes.filter(|_| !self.laws.foul && !self.laws.costs);
        for &at in gone {
            let pod = &self.cluster.pods[at];
            let is_victim = takes.as_ref().is_none_or(|takes| takes.contains(&*pod.view.uid));
            assert!(is_victim, "a scale-back takes {} while a victim stands", pod.view.name);
        }
    }

    /// An eviction was answered.
    pub(super) fn watch_answer(&mut self, at: usize, answer: &Answer, lag: Lag) {
        self.laws.reasons.insert(answer.reason().to_owned());
        let victim = &self.cluster.pods[at].view;
        // To a cache that is behind, a pod that has just got ready serves nobody yet.
        let serves_nobody = matches!(answer, Answer::Allow(Allowed::UnknownPod | Allowed::Pending | Allowed::NotReady));
        self.laws.foul |= serves_nobody && victim.ready_since.is_some();
        let Answer::Hold(held) = answer else { return };
        let asked = *self.laws.held.entry(victim.uid.to_string()).or_insert(self.time);
        if lag == [0; 3] {
            assert!(self.now() < self.limit(asked), "held beyond the limit");
            assert!(held.deadline <= self.limit(asked));
        }
    }

    /// An eviction passes. Of a victim that was released before this surge began, it takes a pod without a stand-in: what
    /// is released is so for ever.
    pub(super) fn watch_passing(&mut self, uid: &str) {
        let hold = self.cluster.holds.iter().find(|hold| hold.spec.victim_uid == uid);
        let Some(released_at) = hold.and_then(|hold| hold.status.released_at) else { return };
        let is_of_surge = self.record().as_ref().is_some_and(|record| {
            released_at >= record.since || record.released.iter().any(|released| released == uid)
        });
        self.laws.foul |= !is_of_surge;
    }

    /// After each step.
    pub(super) fn check(&mut self) {
        let outcomes = self.cluster.holds.iter().filter_map(|hold| hold.status.outcome);
        self.laws.reasons.extend(outcomes.map(|outcome| outcome.as_str().to_owned()));
        let available = self.cluster.available(self.now());
        if !self.laws.foul && self.laws.floor > 0 {
            assert!(available >= self.laws.floor, "{available} available of {}", self.laws.floor);
        }
    }
}
