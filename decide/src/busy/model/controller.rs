//! The controller: looks from lagging caches, writes under preconditions, and forgets everything with a restart.

use super::{Cache, Lag, World};
use crate::action::Action;
use crate::busy::reconcile::{Input, Memory, Plan, reconcile};
use crate::busy::testing::patch;
use crate::testing::after;

/// How long completed holds are kept here.
const HISTORY: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);

/// What becomes of the writes of one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    /// They are performed, and nobody is told so.
    Lost,
    /// The kubelet writes the pod in between.
    Raced,
}

/// The controller that leads.
#[derive(Debug, Default)]
pub(super) struct Leader {
    /// How often it was restarted.
    pub(super) life: u32,
    pub(super) memory: Option<Memory>,
    pub(super) cache: Cache,
}

impl World {
    /// One look, and what comes of it.
    pub(super) fn look(&mut self, lag: Lag, fate: Fate) -> Plan {
        let lost = fate == Fate::Lost;
        self.laws.fresh &= lag == [0; 3];
        let seen = self.leader.cache.look(&self.history, lag);
        let rule = &self.rules[self.rule];
        let input = Input {
            governed: Some((rule, seen.seen())),
            living: None,
            siblings: 0,
            holds: seen.holds.iter().collect(),
            history_ttl: HISTORY,
            now: after(self.time),
        };
        let before = self.leader.memory.clone();
        let plan = reconcile(&input, before.as_ref());
        assert_eq!(reconcile(&input, before.as_ref()), plan, "the same input, the same plan");
        self.leader.memory.clone_from(&plan.memory);
        if fate == Fate::Raced {
            self.kubelet();
        }
        for sequence in &plan.sequences {
            let done = sequence.iter().take_while(|action| self.perform(action, lost)).count();
            let is_patch = matches!(sequence.first(), Some(Action::PatchPod { .. }));
            if is_patch && (done == 0 || lost) {
                self.leader.memory = self.leader.memory.take().and_then(|memory| memory.unwritten(before.as_ref()));
            }
            self.see();
            if done > 0 && !lost {
                // Nothing is decided before the own write is seen.
                self.leader.cache.0 = [self.history.len() - 1; 3];
            }
        }
        plan
    }

    /// Says whether it was performed.
    fn perform(&mut self, action: &Action, lost: bool) -> bool {
        match action {
            Action::PatchPod { pod, changes } => {
                let is_same = *pod.uid == *self.pod.uid && *pod.resource_version == *self.pod.resource_version;
                if is_same {
                    self.watch_patch(changes, lost);
                    patch(&mut self.pod, changes);
                }
                is_same
            }
            Action::UpdateHold { hold, status } => {
                let known = self.holds.iter_mut().find(|known| known.uid == hold.uid);
                let Some(known) = known.filter(|known| known.resource_version == hold.resource_version) else {
                    return false;
                };
                assert_ne!(known.status, *status, "a write that changes nothing");
                assert!(known.status.phase <= status.phase, "a hold went back");
                known.status = status.clone();
                self.counter += 1;
                known.resource_version = self.counter.to_string();
                true
            }
            Action::DeleteHold { hold } => {
                self.holds.retain(|known| known.uid != hold.uid);
                true
            }
            Action::DeleteOwner { .. } | Action::Event(_) => true,
            other => panic!("no busy rule changes a Deployment or begins a hold: {other:?}"),
        }
    }

    /// Another process leads from now on. Its caches are as fresh as a list.
    pub(super) fn restart(&mut self) {
        self.leader = Leader { life: self.leader.life + 1, ..Leader::default() };
        self.leader.cache.0 = [self.history.len() - 1; 3];
    }

    /// From here on nobody changes anything. Runs until there is nothing left to do soon.
    pub(super) fn come_to_rest(&mut self) {
        for _ in 0..40 {
            let plan = self.look([0; 3], Fate::Done);
            if plan.sequences.is_empty() {
                let soon = after(self.time + 600);
                match plan.wake_at.filter(|at| *at <= soon) {
                    // A moment that has come is looked at in that moment.
                    Some(at) => self.time = (at.duration_since(after(0)).as_secs()).max(self.time + 1),
                    None => return,
                }
            }
        }
        panic!("it does not come to rest: {:?}", self.look([0; 3], Fate::Done));
    }
}
