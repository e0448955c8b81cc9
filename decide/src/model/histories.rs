//! Histories in which anything may happen, and what is proved of all of them.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::belay::{Ask, Fault, HISTORY};
use super::cluster::{Lag, NODES};
use super::people::Deed;
use super::{Config, World};
use crate::handover::record::MAX_RECORDS;
use crate::hold::Outcome;
use crate::policy::OnFailure;
use crate::testing::runner;

/// One step of a history.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Round,
    RollOut,
    Replicate,
    RunPods,
    Advance(u8),
    /// Longer than history is kept.
    Night,
    /// A drainer asks for the oldest pod, the hold is recorded, and a leader takes it up: what everything here is about.
    Begin,
    Ask(Ask),
    Flush {
        replica: usize,
        lost: bool,
    },
    Restart(usize),
    /// Sets an actor's wall clock: two replicas, then two leaders.
    Clock {
        whose: usize,
        ahead: i16,
    },
    Lead {
        who: usize,
        lag: Lag,
        fault: Option<Fault>,
    },
    Person(Deed),
}

impl World {
    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Round => self.round(),
            Step::RollOut => self.roll_out(),
            Step::Replicate => self.replicate(),
            Step::RunPods => self.run_pods(),
            Step::Advance(seconds) => self.advance(i64::from(seconds)),
            Step::Night => self.advance(HISTORY.as_secs() + 1),
            Step::Begin => {
                self.ask(Ask { replica: 0, pod: 0, lag: [0; 5], dry_run: false, refused_later: true });
                self.flush(0, false);
                self.lead(0, [0; 5], None);
            }
            Step::Ask(ask) => drop(self.ask(ask)),
            Step::Flush { replica, lost } => self.flush(replica, lost),
            Step::Restart(replica) => self.restart(replica),
            Step::Clock { whose, ahead } => {
                self.laws.clocks &= ahead == 0;
                match whose {
                    0 | 1 => self.replicas[whose].offset = i64::from(ahead),
                    _ => self.leaders[whose - 2].offset = i64::from(ahead),
                }
            }
            Step::Lead { who, lag, fault } => drop(self.lead(who, lag, fault)),
            Step::Person(deed) => self.person(deed),
        }
    }

    /// From here on all is well, and drainers ask every second for every victim that was ever held: all of them must
    /// be let go within the limit. `led`: somebody leads.
    fn drain_to_the_end(&mut self, led: bool) {
        let until = self.time + i64::from(self.config.limit) + 1;
        loop {
            let victims: Vec<usize> = (0..self.api.pods.len())
                .filter(|pod| {
                    let view = &self.api.pods[*pod].view;
                    !view.terminating && self.laws.held.contains_key(&*view.uid)
                })
                .collect();
            if victims.is_empty() {
                return;
            }
            assert!(self.time <= until, "still held after everybody asked for {} s", self.config.limit);
            for pod in victims {
                let replica = usize::from(self.time % 2 == 0);
                self.ask(Ask { replica, pod, lag: [0; 5], dry_run: false, refused_later: false });
                self.flush(replica, false);
            }
            if led {
                self.lead(0, [0; 5], None);
            }
            self.round();
        }
    }

    /// Runs until neither Kubernetes nor Belay has anything left to do, with no clock wrong any more.
    fn come_to_rest(&mut self) {
        for leader in &mut self.leaders {
            leader.offset = 0;
        }
        // Long enough for a release from a clock that ran an hour ahead to be given up on, and for history to go.
        for pause in [0, 3_600, 3_600, HISTORY.as_secs(), 3_600] {
            self.advance(pause);
            for _ in 0..12 {
                self.lead(0, [0; 5], None);
                self.round();
            }
        }
    }
}

pub(super) fn configs() -> impl Strategy<Value = Config> {
    let limits = prop_oneof![Just(20), Just(45), Just(90)];
    let deadlines = prop_oneof![Just(None), Just(Some(15))];
    let failures = prop_oneof![Just(OnFailure::Release), Just(OnFailure::RollBack)];
    let settings = (any::<bool>(), prop_oneof![Just(0), Just(5)], limits, failures);
    (settings, deadlines, 0..12_i64, any::<bool>()).prop_map(
        |((recreate, min_ready, limit, on_failure), progress_deadline, grace, prompt_records)| Config {
            recreate,
            min_ready,
            limit,
            on_failure,
            progress_deadline,
            grace,
            prompt_records,
        },
    )
}

pub(super) fn lags() -> impl Strategy<Value = Lag> {
    let one = || prop_oneof![3 => Just(0_u8), 1 => 0..20_u8];
    prop_oneof![2 => Just([0; 5]), 1 => [one(), one(), one(), one(), one()]]
}

fn asks() -> impl Strategy<Value = Ask> {
    (0..2_usize, 0..3_usize, lags(), prop::bool::weighted(0.1), prop::bool::weighted(0.3))
        .prop_map(|(replica, pod, lag, dry_run, refused_later)| Ask { replica, pod, lag, dry_run, refused_later })
}

fn faults() -> impl Strategy<Value = Option<Fault>> {
    let fault = (0..3_usize, any::<bool>()).prop_map(|(write, performed)| Some(Fault { write, performed }));
    prop_oneof![3 => Just(None), 1 => fault]
}

fn startups() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![1 => Just(None), 3 => (0..15_u8).prop_map(Some)]
}

fn deeds() -> impl Strategy<Value = Deed> {
    prop_oneof![
        2 => any::<bool>().prop_map(|strips| Deed::Release { strips }),
        2 => Just(Deed::Undo),
        2 => Just(Deed::StripSlot),
        1 => Just(Deed::StripRecord),
        2 => Just(Deed::StripBoth),
        1 => any::<bool>().prop_map(Deed::Pause),
        1 => (0..3_i32).prop_map(Deed::Scale),
        1 => Just(Deed::Scale(1)),
        1 => Just(Deed::Pause(false)),
        1 => (0..2_usize).prop_map(Deed::DeleteHold),
        4 => (0..NODES.len()).prop_map(Deed::Cordon),
        2 => (0..NODES.len()).prop_map(Deed::Uncordon),
        1 => (0..3_usize).prop_map(Deed::DeletePod),
        1 => startups().prop_map(Deed::Startup),
    ]
}

/// Anything at all, in proportions that let handovers get somewhere.
fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Round),
        2 => Just(Step::RollOut),
        2 => Just(Step::Replicate),
        2 => Just(Step::RunPods),
        2 => (1..30_u8).prop_map(Step::Advance),
        1 => Just(Step::Night),
        3 => Just(Step::Begin),
        9 => asks().prop_map(Step::Ask),
        3 => (0..2_usize, prop::bool::weighted(0.2)).prop_map(|(replica, lost)| Step::Flush { replica, lost }),
        1 => (0..2_usize).prop_map(Step::Restart),
        1 => (0..4_usize, -3600..=3600_i16).prop_map(|(whose, ahead)| Step::Clock { whose, ahead }),
        9 => (0..2_usize, lags(), faults()).prop_map(|(who, lag, fault)| Step::Lead { who, lag, fault }),
        4 => deeds().prop_map(Step::Person),
    ]
}

proptest! {
    #![proptest_config(runner(1000))]

    /// Proved of every history, with both strategies, stale caches, two leaders at once, lost writes and answers,
    /// clocks an hour off, restarts, and people doing what they like (after each step, see [`super::laws`]):
    /// - a victim is restarted for at most once, and that restart is undone at most once; excused are only victims
    ///   whose every trace people removed, hold and record both, or the record with the template before the Deployment
    ///   controller had seen it;
    /// - the template is changed only while the victim's hold is open;
    /// - one replica process never holds a victim for longer than the limit, whatever the clocks do; nor past a recorded
    ///   deadline, by its own clock; nor for longer than the grace while it sees no record; nor after it released it, or
    ///   while it sees it released. Across processes: with right clocks, records kept and fresh caches, the first hold
    ///   sets the end for all. A clock that is behind by D adds at most D to a recorded deadline;
    /// - a dry run leaves nothing behind;
    /// - the order in which caches list objects changes no answer and no plan.
    ///
    /// And then, with drainers that go on asking and a leader or none: every victim is let go within the limit. And
    /// then, at rest: nothing is written, and no history is kept of victims that are gone.
    #[test]
    fn whatever_happens_every_hold_ends_and_no_victim_is_restarted_for_twice(
        config in configs(),
        startup in startups(),
        history in vec(steps(), 10..90),
        led in any::<bool>(),
    ) {
        let mut world = World::new(config, startup.map(i64::from));
        for step in history {
            world.step(step);
        }
        world.drain_to_the_end(led);
        world.come_to_rest();
        for who in 0..2 {
            prop_assert_eq!(world.lead(who, [0; 5], None), 0, "a world at rest costs no write");
        }
        for hold in &world.api.holds {
            prop_assert!(world.api.pod(&hold.spec.victim_uid).is_some(), "history is kept for ever: {hold:?}");
        }
        prop_assert!(world.api.deployment.records.len() <= MAX_RECORDS);
    }
}

/// A law that no history ever puts to the test proves nothing.
#[test]
fn histories_get_to_every_outcome_and_every_answer() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (configs(), startups(), vec(steps(), 60..150));
    let (mut outcomes, mut answers, mut restarts) = (BTreeSet::new(), BTreeSet::new(), 0);
    for _ in 0..600 {
        let (config, startup, history) = strategy.new_tree(&mut runner).expect("a history").current();
        let mut world = World::new(config, startup.map(i64::from));
        for step in history {
            world.step(step);
            outcomes.extend(world.api.holds.iter().filter_map(|hold| hold.status.outcome).map(Outcome::as_str));
        }
        answers.extend(world.laws.answers.iter().copied());
        restarts += world.laws.restarts.values().sum::<u32>();
    }
    let missing = |words: &[&'static str], reached: &BTreeSet<&'static str>| {
        let missing: Vec<_> = words.iter().copied().filter(|word| !reached.contains(word)).collect();
        assert_eq!(missing, [""; 0], "reached: {reached:?}");
    };
    missing(&["HandedOver", "NotNeeded", "VictimGone", "Expired", "Failed", "Reverted"], &outcomes);
    missing(
        &[
            "DryRun",
            "UnknownPod",
            "Terminating",
            "Pending",
            "NotReady",
            "Paused",
            "ZeroReplicas",
            "MoreThanOneReplica",
            "Released",
            "DeadlinePassed",
            "NotRecorded",
            "ReplacementAvailable",
            "Reverted",
            "AwaitingRestart",
            "RolloutNotObserved",
            "ReleaseUnderWay",
            "ReplacementNotCreated",
            "VictimTerminatesFirst",
            "ReplacementUnschedulable",
            "ReplacementStarting",
            "ReplacementNotReady",
            "ReplacementNotAvailable",
            "ReplacementOnDoomedNode",
        ],
        &answers,
    );
    assert!(restarts > 100, "{restarts} restarts");
}
