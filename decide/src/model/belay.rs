//! Belay's own processes: webhook replicas that answer, leaders that act.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::cluster::{Cache, Lag, Seen};
use super::laws::{watch_hold, watch_plan};
use super::{ByUid, Queue, World};
use crate::action::{Action, ObjectRef};
use crate::handover::HandoverRules;
use crate::handover::reconcile::{Input, Plan, reconcile};
use crate::hold::{Allowed, Answer, Decision, Facts, Memory, Moment, Phase, Request, Rules, decide};
use crate::policy::{Protection, Settings, Source};
use crate::testing::after;

/// How long completed holds are kept here.
pub(super) const HISTORY: SignedDuration = SignedDuration::from_hours(1);

/// A webhook replica.
#[derive(Debug, Default)]
pub(super) struct Replica {
    /// How often it was restarted.
    pub(super) life: u32,
    /// When it was started, in true time.
    pub(super) started: i64,
    /// How far its wall clock is ahead.
    pub(super) offset: i64,
    pub(super) memory: ByUid<Memory>,
    pub(super) queue: Queue,
    pub(super) cache: Cache,
}

/// A controller that may act; whether it truly leads is left open on purpose, so two may act at once.
#[derive(Debug, Default)]
pub(super) struct Leader {
    pub(super) offset: i64,
    pub(super) cache: Cache,
}

/// One eviction request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// Which replica is asked.
    pub(super) replica: usize,
    /// Which of the pods that exist.
    pub(super) pod: usize,
    pub(super) lag: Lag,
    pub(super) dry_run: bool,
    /// A PodDisruptionBudget refuses after Belay allowed.
    pub(super) refused_later: bool,
}

/// A write that does not go as the writer thinks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// The how-manieth write of the step it is.
    pub(super) write: usize,
    /// It was performed, and only the answer is lost.
    pub(super) performed: bool,
}

impl World {
    pub(super) fn protection(&self) -> Protection {
        let settings = Settings {
            readiness_deadline_seconds: self.config.limit,
            on_failure: self.config.on_failure,
            ..Settings::default()
        };
        Protection { source: Source::Policy("web".into()), settings }
    }

    /// What replica `who` would answer, and its memory as it stands.
    fn answer(&mut self, ask: &Ask, reversed: bool) -> Option<(Decision, Moment, Seen)> {
        let target = self.api.pods.get(ask.pod)?.view.clone();
        let protection = self.protection();
        let replica = &mut self.replicas[ask.replica];
        let seen = replica.cache.look(&self.history, ask.lag);
        let now = Moment {
            wall: after(self.time + replica.offset),
            uptime: Duration::from_secs(u64::try_from(self.time - replica.started).unwrap_or(0)),
        };
        let victim = seen.pods.iter().find(|pod| pod.name == target.name);
        let workload = seen.workload(reversed);
        let decision = decide(
            &Request {
                namespace: "shop",
                name: &target.name,
                uid: Some(&target.uid),
                dry_run: ask.dry_run,
                evictor: "drainer",
            },
            &Rules::default(),
            &Facts {
                synced: true,
                victim,
                workload: Some(&workload),
                protection: Some(&protection),
                hold: seen.holds.iter().find(|hold| hold.spec.victim_uid == *target.uid),
            },
            replica.memory.get(&*target.uid),
            now,
        );
        Some((decision, now, seen))
    }

    /// A drainer asks to evict a pod. Says what it was answered; absent where there is no such pod.
    pub(super) fn ask(&mut self, ask: Ask) -> Option<Answer> {
        let (decision, now, seen) = self.answer(&ask, false)?;
        let again = self.answer(&ask, true).map(|(decision, ..)| decision);
        assert_eq!(again.as_ref(), Some(&decision), "the same input gives the same answer, in any order of the caches");

        let victim = self.api.pods[ask.pod].view.clone();
        self.watch_answer(&ask, &victim, &decision, now, &seen);
        let Decision { answer, memory, record } = decision;
        let replica = &mut self.replicas[ask.replica];
        if let Some(memory) = memory {
            replica.memory.insert(victim.uid.to_string(), memory);
        }
        if let Some(spec) = record {
            if self.config.prompt_records {
                self.api.create_hold(spec);
            } else {
                replica.queue.push(spec);
            }
        }
        if matches!(answer, Answer::Allow(_)) && !ask.dry_run && !ask.refused_later {
            self.terminate(ask.pod);
        }
        self.see();
        Some(answer)
    }

    /// A replica writes the oldest record that waits, or loses it.
    pub(super) fn flush(&mut self, replica: usize, lost: bool) {
        let queue = &mut self.replicas[replica].queue;
        if queue.is_empty() {
            return;
        }
        let spec = queue.remove(0);
        if lost {
            self.laws.durable = false;
        } else {
            self.api.create_hold(spec);
        }
        self.see();
    }

    /// A replica is killed; a new one takes its place and remembers nothing.
    pub(super) fn restart(&mut self, replica: usize) {
        let old = &mut self.replicas[replica];
        self.laws.durable &= old.queue.is_empty();
        *old = Replica { life: old.life + 1, started: self.time, offset: old.offset, ..Replica::default() };
    }

    /// What the controller would do, given what it sees.
    pub(super) fn plan(&self, seen: &Seen, now: Timestamp, reversed: bool) -> Plan {
        let workload = seen.workload(reversed);
        let protection = self.protection();
        let mut holds: Vec<_> = seen
            .holds
            .iter()
            .map(|hold| (hold, seen.pods.iter().find(|pod| *pod.uid == *hold.spec.victim_uid)))
            .collect();
        if reversed {
            holds.reverse();
        }
        let rules = HandoverRules { history_ttl: HISTORY, ..HandoverRules::default() };
        let (workload, protection) = (Some(&workload), Some(&protection));
        reconcile(&Input { workload, protection, holds, close: None, refused: None, rules: &rules, now })
    }

    /// A controller takes one step, and applies it with what the API server grants. Says how many writes it tried.
    pub(super) fn lead(&mut self, who: usize, lag: Lag, fault: Option<Fault>) -> usize {
        let leader = &mut self.leaders[who];
        let now = after(self.time + leader.offset);
        let seen = leader.cache.look(&self.history, lag);
        let plan = self.plan(&seen, now, false);
        assert_eq!(self.plan(&seen, now, true), plan, "the same input gives the same plan, in any order of the caches");
        watch_plan(&plan, &seen);
        let mut writes = 0;
        for sequence in plan.sequences {
            for action in sequence {
                if matches!(action, Action::Event(_)) {
                    continue;
                }
                let struck = fault.filter(|fault| fault.write == writes);
                writes += 1;
                let performed = struck.is_none_or(|fault| fault.performed) && self.apply(action);
                self.see();
                if !performed || struck.is_some() {
                    break;
                }
            }
        }
        writes
    }

    /// Performs a write as the API server would: not on another object, not on another version.
    fn apply(&mut self, action: Action) -> bool {
        let is = |object: &ObjectRef, uid: &str, version: &str| object.uid == uid && object.resource_version == version;
        match action {
            Action::UpdateHold { hold, status } => {
                let version = self.api.next().to_string();
                let found = self.api.holds.iter_mut().find(|one| is(&hold, &one.uid, &one.resource_version));
                let Some(found) = found else { return false };
                watch_hold(&found.status, &status);
                if found.status != status {
                    (found.status, found.resource_version) = (status, version);
                }
            }
            Action::DeleteHold { hold } => {
                let holds = &mut self.api.holds;
                let Some(index) = holds.iter().position(|one| is(&hold, &one.uid, &one.resource_version)) else {
                    return false;
                };
                let gone = holds.remove(index);
                assert!(self.api.pod(&gone.spec.victim_uid).is_none(), "a hold was deleted while its victim exists");
            }
            Action::PatchTemplate { deployment, slot, records, .. } => {
                let target = &mut self.api.deployment;
                if !is(&deployment, &target.uid, &target.resource_version) {
                    return false;
                }
                assert_ne!(target.slot, slot, "a template patch that changes nothing");
                let victim = self.laws.watch_patch(&target.records, &records);
                let phase = self.api.hold_of(&victim).map(|hold| hold.status.phase);
                // What no node takes is taken back after the release, too; nothing is restarted then.
                let taken_back = records.iter().any(|record| record.victim == victim && record.rolled_back);
                let last = if taken_back { Phase::Released } else { Phase::Active };
                assert!(phase.is_some_and(|phase| phase <= last), "the template was changed for {victim}: {phase:?}");
                let target = &mut self.api.deployment;
                (target.slot, target.records) = (slot, records);
                target.generation += 1;
                self.api.deployment_written();
            }
            other @ (Action::PatchPod { .. }
            | Action::DeleteOwner { .. }
            | Action::CreateHold { .. }
            | Action::Surge { .. }
            | Action::NoteSurge { .. }
            | Action::Scale { .. }
            | Action::NoteRequest { .. }
            | Action::Respond { .. }) => panic!("no part of a restart on eviction: {other:?}"),
            Action::Event(_) => {}
        }
        true
    }
}

/// The release speaks of the victim itself, and is for ever.
pub(super) fn is_release(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Allow(
            Allowed::Released
                | Allowed::DeadlinePassed
                | Allowed::NotRecorded
                | Allowed::ReplacementAvailable { .. }
                | Allowed::Reverted
        )
    )
}
