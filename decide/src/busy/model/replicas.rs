//! The webhook's replicas, as drainers meet them.

use std::time::Duration;

use super::controller::Fate;
use super::{Cache, Lag, World};
use crate::busy::State;
use crate::busy::eviction::{Facts, Memory, Read, Step, decide};
use crate::busy::hints::BUSY_SINCE;
use crate::hold::{Answer, HoldReason, HoldSpec, HoldStatus, HoldView, Moment, Request, Rules, hold_name};
use crate::ownership::{Holder, Key, Record, holder};
use crate::testing::after;

/// A replica.
#[derive(Debug, Default)]
pub(super) struct Replica {
    /// How often it was restarted.
    life: u32,
    /// When it was started, in true time.
    started: i64,
    /// How far its wall clock is ahead.
    offset: i64,
    /// Of which pod, and what.
    memory: Option<(Box<str>, Memory)>,
    pub(super) cache: Cache,
}

impl World {
    /// A drainer asks. Says whether the pod is held; the record of it is lost where `lost`.
    pub(super) fn ask(&mut self, who: usize, lag: Lag, lost: bool) -> bool {
        let replica = &mut self.replicas[who];
        let seen = replica.cache.look(&self.history, lag);
        let now = Moment {
            wall: after(self.time + replica.offset),
            uptime: Duration::from_secs(u64::try_from(self.time - replica.started).expect("time does not go back")),
        };
        let memory = replica.memory.as_ref().filter(|(uid, _)| *uid == seen.pod.uid).map(|(_, memory)| *memory);
        let of = |reason| seen.holds.iter().find(|hold| hold.is_of(reason, &seen.pod.uid));
        let request = Request { namespace: "ci", name: "w", uid: None, dry_run: false, evictor: "drainer" };
        let mut facts = Facts {
            rule: &self.rules[self.rule],
            seen: seen.seen(),
            busy: of(HoldReason::Busy),
            retire: of(HoldReason::Retire),
            read: Read::Cached,
        };
        let mut step = decide(&request, &Rules::default(), &facts, memory.as_ref(), now);
        if step == Step::ReadLive {
            // The API server's own word, of now.
            let live = self.history.last().expect("there is a present");
            facts.seen.owner = live.seen().owner;
            facts.seen.linked = live.seen().linked;
            facts.read = Read::Live;
            step = decide(&request, &Rules::default(), &facts, memory.as_ref(), now);
        }
        let Step::Decided(decision) = step else { return false };
        let uid = seen.pod.uid.clone();
        self.replicas[who].memory =
            decision.memory.map(|memory| (uid.clone(), memory)).or_else(|| self.replicas[who].memory.take());
        let Answer::Hold(held) = &decision.answer else {
            assert!(decision.record.is_none(), "what is let through is not recorded");
            self.laws.met.insert(decision.answer.reason());
            return false;
        };
        assert!(now.wall < held.deadline, "held at {} until {}", now.wall, held.deadline);
        if uid == self.pod.uid {
            self.watch_hold(who, lag);
        }
        match decision.record {
            Some(spec) if !lost => self.create_hold(spec),
            Some(_) => self.laws.recorded = false,
            None => {}
        }
        true
    }

    /// A create that meets its like changes nothing.
    fn create_hold(&mut self, spec: HoldSpec) {
        let name = hold_name(spec.reason, &spec.victim_name, &spec.victim_uid);
        if self.holds.iter().any(|hold| hold.name == name) {
            return;
        }
        self.counter += 1;
        self.holds.push(HoldView {
            namespace: "ci".into(),
            name,
            uid: format!("hold-{}", self.counter),
            resource_version: self.counter.to_string(),
            spec,
            status: HoldStatus::default(),
        });
    }

    /// The pod as it is now was held.
    fn watch_hold(&mut self, who: usize, lag: Lag) {
        let (time, limit) = (self.time, self.config.max_busy);
        let life = self.replicas[who].life;
        if self.laws.spell.is_none() || lag != [0; 3] {
            // By a cache that lags: what holds of it is bounded when the cache is fresh again.
            return;
        }
        self.laws.met.insert("held");
        // By the API: a release that it can see is final.
        let fresh = self.holds.iter().find(|hold| hold.is_of(HoldReason::Busy, &self.pod.uid));
        assert!(fresh.is_none_or(|hold| !hold.status.phase.is_released()), "held although it is released");
        // By anybody who is right about the time: the record sets the end, and so does what stands on the pod.
        let begun = *self.laws.held.get_or_insert(time);
        if self.laws.recorded && self.laws.clocks && self.laws.fresh {
            assert!(time < begun + limit, "held for {} s, by the record", time - begun);
        }
        if self.laws.clocks
            && self.truth() == State::Busy
            && let Some(since) = self.noted()
        {
            assert!(time < since + limit, "held {} s after it became busy, by the pod", time - since);
        }
        // By one process: its uptime bounds it, whatever the clocks say and whatever became of the record; anew where the
        // controller says that it is another job.
        let says = self.noted();
        let begun = self.laws.held_by.entry((who, life)).or_insert((time, says));
        if begun.1 != says {
            *begun = (time, says);
        }
        if self.laws.noted {
            assert!(time < begun.0 + limit, "held by one process for {} s", time - begun.0);
        }
    }

    /// Since when the pod says that it is busy, where that is Belay's word.
    fn noted(&self) -> Option<i64> {
        let (key, record) = (Key::annotation(BUSY_SINCE), Record::parse(self.pod.managed.as_deref()));
        let present = self.pod.marks.get(&key).map(String::as_str);
        let is_ours = holder(&record, &key, present) == Holder::Belay;
        let since: jiff::Timestamp = record.written(&key).filter(|_| is_ours)?.parse().expect("a time");
        Some(since.duration_since(after(0)).as_secs())
    }

    /// After every step: whether the pod has become free to go, or begun something else.
    pub(super) fn note_spell(&mut self) {
        let kind = match self.truth() {
            State::Idle | State::Done => None,
            State::Busy => Some((&*self.pod.uid, true)),
            State::Starting => Some((&*self.pod.uid, false)),
        };
        let kind = kind.map(|(uid, is_busy)| (uid.to_owned(), is_busy));
        if kind != self.laws.spell {
            let laws = &mut self.laws;
            laws.spell = kind;
            (laws.held, laws.held_by) = Default::default();
            (laws.recorded, laws.noted, laws.fresh) = (true, true, true);
            laws.clocks = self.replicas.iter().all(|replica| replica.offset == 0);
        }
    }

    pub(super) fn restart_replica(&mut self, who: usize) {
        let Replica { life, offset, .. } = self.replicas[who];
        let cache = Cache([self.history.len() - 1; 3]);
        self.replicas[who] = Replica { life: life + 1, started: self.time, offset, memory: None, cache };
    }

    /// Sets a replica's wall clock so far ahead.
    pub(super) fn clock(&mut self, who: usize, ahead: i64) {
        self.laws.clocks &= ahead == 0;
        self.replicas[who].offset = ahead;
    }

    /// Somebody takes all holds away.
    pub(super) fn lose_holds(&mut self) {
        self.laws.recorded &= self.holds.is_empty();
        self.holds.clear();
    }

    /// From here on all is well, and drainers ask every five seconds: the pod must be let go in time, though nothing
    /// about it changes. `led`: a controller looks.
    pub(super) fn drain_to_the_end(&mut self, led: bool) {
        for replica in &mut self.replicas {
            replica.offset = 0;
        }
        let until = self.time + self.config.max_busy + 5;
        while [0, 1].map(|who| self.ask(who, [0; 3], false)).contains(&true) {
            self.see();
            assert!(self.time <= until, "still held after everybody asked for {} s", self.config.max_busy);
            if led {
                self.look([0; 3], Fate::Done);
            }
            self.time += 5;
            self.see();
        }
    }
}
