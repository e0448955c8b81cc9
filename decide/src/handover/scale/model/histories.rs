//! Histories in which anything may happen, and what is proved of all of them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::belay::{Fault, HISTORY, Lag};
use super::{Config, NODES, REPLICAS, World};
use crate::handover::HandoverRules;
use crate::hold::HoldView;
use crate::testing::runner;

/// One step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Round,
    RollOut,
    Replicate,
    RunPods,
    Autoscale,
    Advance(u8),
    /// Longer than a victim is held, and than it takes to count as abandoned.
    Pause,
    /// Longer than history is kept.
    Night,
    /// A pod's eviction is asked for, and a controller acts: what everything here is about.
    Begin(usize),
    Ask {
        replica: usize,
        pod: usize,
        lag: Lag,
        refused_later: bool,
    },
    /// Every pod of a node is asked for.
    Drain(usize),
    Restart(usize),
    Lead {
        who: usize,
        lag: Lag,
        fault: Option<Fault>,
    },
    Cordon(usize, bool),
    /// Somebody sets the number; an `apply` of what is in Git sets what they last set.
    Scale(i32),
    Apply,
    Load(i32),
    /// Protection is switched on or off.
    Protect(bool),
    DeletePod(usize),
    /// Pods created from now on take this long to be ready; absent for ever.
    Startup(Option<u8>),
    /// A user gives a pod a deletion cost.
    Cost(usize, i32),
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Round => self.round(),
            Step::RollOut => self.roll_out(),
            Step::Replicate => self.replicate(),
            Step::RunPods => self.run_pods(),
            Step::Autoscale => self.autoscale(),
            Step::Advance(seconds) => self.advance(i64::from(seconds)),
            Step::Pause => self.advance(HandoverRules::default().abandon_after.as_secs()),
            Step::Night => self.advance(HISTORY.as_secs() + 1),
            Step::Begin(pod) => {
                self.ask(0, pod, [0; 3], true);
                self.lead(0, [0; 3], None);
            }
            Step::Ask { replica, pod, lag, refused_later } => self.ask(replica, pod, lag, refused_later),
            Step::Drain(node) => {
                for at in (0..self.cluster.pods.len()).rev() {
                    if self.cluster.pods[at].view.node.as_deref() == Some(NODES[node]) {
                        self.ask(0, at, [0; 3], false);
                    }
                }
            }
            Step::Restart(replica) => self.restart(replica),
            Step::Lead { who, lag, fault } => drop(self.lead(who, lag, fault)),
            Step::Cordon(node, true) => drop(self.cluster.cordoned.insert(NODES[node])),
            Step::Cordon(node, false) => drop(self.cluster.cordoned.remove(NODES[node])),
            Step::Scale(number) => self.person_sets(number),
            Step::Apply => self.person_sets(self.laws.wanted.unwrap_or(REPLICAS)),
            Step::Load(load) => {
                self.laws.foul = true;
                self.cluster.load = load;
            }
            Step::Protect(on) => {
                self.laws.foul |= !on;
                self.unprotected = !on;
            }
            Step::DeletePod(at) => {
                self.laws.foul = true;
                if at < self.cluster.pods.len() {
                    self.cluster.delete(at, self.time);
                }
            }
            Step::Startup(startup) => {
                self.laws.foul |= startup.is_none();
                self.startup = startup.map(i64::from);
            }
            Step::Cost(at, value) => {
                self.laws.costs = true;
                if let Some(pod) = self.cluster.pods.get_mut(at) {
                    pod.value = Some(value.to_string().into());
                    self.cluster.pod_written(at);
                }
            }
        }
        self.watch_time();
        self.see();
    }

    /// Lets time pass.
    fn advance(&mut self, seconds: i64) {
        self.time += seconds;
        self.watch_time();
    }

    /// Where time runs into deadlines or counts as abandonment, more may happen than handovers.
    fn watch_time(&mut self) {
        let patience = HandoverRules::default().abandon_after;
        let is_over = |hold: &HoldView| {
            let asked = hold.status.last_requested_at.unwrap_or(hold.spec.requested_at);
            let soon = self.now() + jiff::SignedDuration::from_secs(30);
            soon >= hold.spec.deadline || soon >= asked + patience
        };
        let over = self.cluster.holds.iter().filter(|hold| !hold.status.phase.is_released()).any(is_over);
        self.laws.foul |= over;
    }

    fn person_sets(&mut self, number: i32) {
        // Who sets what stands there changes nothing that anybody could see, nor who comes back to what we wrote.
        if self.cluster.number() != Some(number) {
            let ours = self.record().as_ref().filter(|record| record.number() == Some(number));
            self.laws.wanted = ours.map_or(Some(number), |record| record.original);
            self.laws.foul = true;
            self.cluster.set_number(Some(number));
        }
    }

    /// From here on drainers ask every second for every victim that was ever held: all of them must be let go in time.
    fn drain_to_the_end(&mut self, led: bool) {
        self.laws.foul = true;
        let until = self.time + i64::from(self.config.limit) + 1;
        loop {
            let held = |at: &usize| {
                let view = &self.cluster.pods[*at].view;
                !view.terminating && self.laws.held.contains_key(&*view.uid)
            };
            let victims: Vec<usize> = (0..self.cluster.pods.len()).filter(held).collect();
            if victims.is_empty() {
                return;
            }
            assert!(self.time <= until, "still held after everybody asked for {} s", self.config.limit);
            for at in victims {
                self.ask(usize::from(self.time % 2 == 0), at, [0; 3], false);
            }
            if led {
                self.lead(0, [0; 3], None);
            }
            self.round();
        }
    }

    /// Comes to rest, after which nothing that happened before is an excuse any more.
    fn start_over(&mut self) {
        self.unprotected = false;
        self.come_to_rest();
        assert_eq!(self.lead(0, [0; 3], None), 0, "a world at rest costs no write");
        self.laws.fair_again();
    }

    /// Runs until neither Kubernetes nor Belay has anything left to do.
    fn come_to_rest(&mut self) {
        self.laws.foul = true;
        self.startup = Some(2);
        for pause in [0, 3_600, 3_600, HISTORY.as_secs(), 3_600] {
            self.time += pause;
            self.settle();
            for _ in 0..12 {
                self.lead(0, [0; 3], None);
                self.round();
            }
        }
    }
}

fn configs() -> impl Strategy<Value = Config> {
    let limits = prop_oneof![Just(60), Just(600), Just(3600)];
    let maximum = prop_oneof![2 => Just(None), 1 => (3..7_i32).prop_map(Some)];
    (1..4_i32, prop_oneof![Just(0), Just(5)], limits, maximum).prop_map(|(most, min_ready, limit, maximum)| Config {
        most,
        min_ready,
        limit,
        maximum,
        on_doom: false,
    })
}

/// With time for every handover, and room for a stand-in.
fn long() -> impl Strategy<Value = Config> {
    configs().prop_map(|config| Config { limit: 3600, maximum: config.maximum.map(|most| most.max(4)), ..config })
}

fn lags() -> impl Strategy<Value = Lag> {
    let one = || prop_oneof![3 => Just(0_u8), 1 => 0..20_u8];
    prop_oneof![2 => Just([0; 3]), 1 => [one(), one(), one()]]
}

fn faults() -> impl Strategy<Value = Option<Fault>> {
    let fault = (0..3_usize, any::<bool>()).prop_map(|(write, performed)| Some(Fault { write, performed }));
    prop_oneof![3 => Just(None), 1 => fault]
}

/// What goes on where nobody asks for anything.
fn leads() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Round),
        1 => Just(Step::RollOut),
        1 => Just(Step::Replicate),
        1 => Just(Step::RunPods),
        1 => Just(Step::Autoscale),
        4 => (0..2_usize, lags(), faults()).prop_map(|(who, lag, fault)| Step::Lead { who, lag, fault }),
    ]
}

/// What goes on where nothing but a drain does: nothing is lost but writes, and pods get ready.
fn drains() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Round),
        2 => Just(Step::RollOut),
        2 => Just(Step::Replicate),
        2 => Just(Step::RunPods),
        1 => Just(Step::Autoscale),
        3 => (0..4_usize).prop_map(Step::Begin),
        8 => (0..2_usize, 0..5_usize, lags(), prop::bool::weighted(0.2))
            .prop_map(|(replica, pod, lag, refused_later)| Step::Ask { replica, pod, lag, refused_later }),
        3 => (0..NODES.len()).prop_map(Step::Drain),
        1 => (0..2_usize).prop_map(Step::Restart),
        10 => (0..2_usize, lags(), faults()).prop_map(|(who, lag, fault)| Step::Lead { who, lag, fault }),
        3 => (0..NODES.len(), any::<bool>()).prop_map(|(node, on)| Step::Cordon(node, on)),
        1 => (0..8_u8).prop_map(|startup| Step::Startup(Some(startup))),
    ]
}

/// Anything at all.
fn anything() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => drains(),
        2 => (1..30_u8).prop_map(Step::Advance),
        1 => Just(Step::Pause),
        1 => Just(Step::Night),
        1 => (1..4_i32).prop_map(Step::Scale),
        2 => Just(Step::Apply),
        1 => (1..6_i32).prop_map(Step::Load),
        1 => prop::bool::weighted(0.7).prop_map(Step::Protect),
        1 => (0..5_usize).prop_map(Step::DeletePod),
        1 => prop::option::of(0..15_u8).prop_map(Step::Startup),
        1 => (0..5_usize, prop_oneof![Just(-5), Just(5), Just(i32::MIN)]).prop_map(|(at, cost)| Step::Cost(at, cost)),
    ]
}

proptest! {
    #![proptest_config(runner(400))]

    /// Proved of every history, with and without an autoscaler, on stale caches, with two controllers at once, lost writes
    /// and answers, and people doing what they like (after each step, see [`super::laws`]):
    /// - no number is written beyond what it is raised from and `surgeReplicas`, nor beyond the autoscaler's maximum; it
    ///   is put back once for each time it is raised, to what it was; raised anew once at most;
    /// - no victim is held beyond its deadline, and none is taken back;
    /// - the order in which caches list objects changes no answer and no plan.
    ///
    /// And then, with drainers that go on asking and a controller or none: every victim is let go in time. And then, at
    /// rest: the number is what people last set, nothing is left on any object, nothing is written.
    #[test]
    fn whatever_happens_the_number_is_put_back_once_and_every_hold_ends(
        config in configs(),
        startup in prop_oneof![1 => Just(None), 4 => (0..10_i64).prop_map(Some)],
        history in vec(anything(), 10..90),
        led in any::<bool>(),
    ) {
        let mut world = World::new(config, startup);
        world.laws.foul = startup.is_none();
        for step in history {
            world.step(step);
        }
        world.unprotected = false;
        world.drain_to_the_end(led);
        world.come_to_rest();
        for who in 0..2 {
            prop_assert_eq!(world.lead(who, [0; 3], None), 0, "a world at rest costs no write");
        }
        prop_assert_eq!(world.cluster.number(), world.laws.wanted.or(Some(REPLICAS)), "the number is the user's");
        prop_assert_eq!(&*world.record(), &None);
        prop_assert!(!world.cluster.pods.iter().any(super::Pod::is_marked), "a mark is left");
        let holds = world.cluster.holds.iter().filter(|hold| world.cluster.find(&hold.spec.victim_uid).is_none());
        prop_assert_eq!(holds.count(), 0, "history is kept for ever");
    }

    /// And where all that happens is drains, of pods that get ready: at no step are fewer pods available than when the
    /// surge began, and no scale-back takes a pod that nobody asked for while a victim stands.
    #[test]
    fn drains_never_take_more_than_stand_ins_stand_in_for(
        config in long(),
        startup in 0..8_i64,
        history in vec(drains(), 10..120),
    ) {
        let mut world = World::new(config, Some(startup));
        for step in history {
            world.step(step);
        }
    }
}

proptest! {
    // Fewer: each comes to rest twice, or goes through many rounds.
    #![proptest_config(runner(80))]

    /// Drains take no more than stand-ins stand in for after anything at all, once that has come to rest: what was given up then is forgotten, even where its
    /// victims stay.
    #[test]
    fn what_came_to_nothing_spoils_no_later_surge(
        config in long(),
        startup in prop_oneof![1 => Just(None), 1 => (0..10_i64).prop_map(Some)],
        before in vec(anything(), 5..30),
        history in vec(drains(), 10..60),
    ) {
        let mut world = World::new(config, startup);
        world.laws.foul = true;
        // What nobody asks for any more, as Cluster Autoscaler does.
        for step in before.into_iter().chain([Step::Begin(1), Step::Round, Step::Lead { who: 0, lag: [0; 3], fault: None }]) {
            world.step(step);
        }
        world.start_over();
        for step in history {
            world.step(step);
        }
    }

    /// Where nodes are cordoned and handovers begin by that, every pod on them moves without any evictor, and all the
    /// while as many are available as were.
    #[test]
    fn cordons_alone_move_every_pod(
        config in long().prop_map(|config| Config { on_doom: true, ..config }),
        startup in 0..8_i64,
        cordoned in prop::sample::subsequence(vec![0_usize, 1, 2], 1..=3),
        history in vec(leads(), 0..60),
    ) {
        let mut world = World::new(config, Some(startup));
        for node in &cordoned {
            world.step(Step::Cordon(*node, true));
        }
        for step in history {
            world.step(step);
        }
        for _ in 0..90 {
            world.step(Step::Lead { who: 0, lag: [0; 3], fault: None });
            world.step(Step::Round);
        }
        let is_left = |pod: &super::Pod| pod.view.node.as_deref().is_some_and(|node| world.cluster.cordoned.contains(node));
        prop_assert!(!world.cluster.pods.iter().any(is_left), "a pod is left on a cordoned node");
        prop_assert_eq!(world.cluster.number(), Some(REPLICAS));
        prop_assert!(!world.laws.foul);
    }
}

/// A law that no history ever puts to the test proves nothing.
#[test]
fn histories_get_to_every_outcome_and_every_answer() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (configs(), prop::option::weighted(0.9, 0..10_i64), vec(anything(), 60..150));
    let mut reasons = std::collections::BTreeSet::new();
    let mut counts = [0; 3];
    for _ in 0..400 {
        let (config, startup, history) = strategy.new_tree(&mut runner).expect("a history").current();
        let mut world = World::new(config, startup);
        world.laws.foul = startup.is_none();
        for step in history {
            world.step(step);
        }
        reasons.extend(std::mem::take(&mut world.laws.reasons));
        for (total, count) in counts.iter_mut().zip(world.laws.counts) {
            *total += count;
        }
    }
    let expected = [
        "Abandoned",
        "AutoscalerAtMaximum",
        "AwaitingSurge",
        "AwaitingTurn",
        "DeadlinePassed",
        "Expired",
        "HandedOver",
        "NotNeeded",
        "Released",
        "ReplacementNotAvailable",
        "ReplacementNotCreated",
        "ReplacementNotReady",
        "ReplacementOnDoomedNode",
        "ReplacementStarting",
        "Reverted",
        "VictimGone",
    ];
    let missing: Vec<_> = expected.iter().filter(|reason| !reasons.contains(**reason)).collect();
    assert_eq!(missing, [&""; 0], "reached: {reasons:?}");
    assert!(counts.iter().all(|count| *count > 20), "raised, put back, renewed: {counts:?}");
}
