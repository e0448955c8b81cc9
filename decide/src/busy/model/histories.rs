//! Histories in which anything may happen, and what is proved of all of them.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::json;

use super::controller::Fate;
use super::people::Deed;
use super::{Config, Lag, World};
use crate::busy::hints;
use crate::testing::runner;

/// One step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The owner says something else; nothing: it is gone.
    Owner(Option<&'static str>),
    Linked(bool),
    Kubelet,
    /// The pod is replaced, with this in its create.
    Recreate(Option<(usize, &'static str)>, Lag),
    /// The operator switches to the other version of the rule.
    Switch,
    /// The controller looks.
    Look(Lag, Fate),
    /// It looks, with fresh caches, until it has nothing to write.
    Settle,
    Restart,
    Person(Deed),
    /// Somebody removes a key, and the controller sees it.
    Feud(usize),
    Advance(i64),
    /// A drainer asks a replica; the record may be lost.
    Ask(usize, Lag, bool),
    RestartReplica(usize),
    Clock(usize, i64),
    LoseHolds,
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Owner(phase) => self.say(phase),
            Step::Linked(linked) => self.linked = if linked { vec![json!({})] } else { Vec::new() },
            Step::Kubelet => self.kubelet(),
            Step::Recreate(own, lag) => self.recreate(own.map(|(key, value)| (hints::keys()[key].clone(), value)), lag),
            Step::Switch => self.rule = 1 - self.rule,
            Step::Look(lag, fate) => drop(self.look(lag, fate)),
            Step::Settle => {
                for _ in 0..4 {
                    self.look([0; 3], Fate::Done);
                }
            }
            Step::Restart => self.restart(),
            Step::Person(deed) => self.person(deed),
            Step::Feud(key) => {
                self.person(Deed::Remove(key));
                self.see();
                self.look([0; 3], Fate::Done);
            }
            Step::Advance(seconds) => self.time += seconds,
            Step::Ask(who, lag, lost) => drop(self.ask(who, lag, lost)),
            Step::RestartReplica(who) => self.restart_replica(who),
            Step::Clock(who, ahead) => self.clock(who, ahead),
            Step::LoseHolds => self.lose_holds(),
        }
        self.see();
    }
}

fn configs() -> impl Strategy<Value = Config> {
    (prop_oneof![Just(300), Just(1000), Just(20_000)], any::<bool>())
        .prop_map(|(max_busy, on_completion)| Config { max_busy, on_completion })
}

fn lags() -> impl Strategy<Value = Lag> {
    let one = || prop_oneof![3 => Just(0_u8), 1 => 0..6_u8];
    prop_oneof![2 => Just([0; 3]), 1 => [one(), one(), one()]]
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![6 => Just(Fate::Done), 1 => Just(Fate::Lost), 2 => Just(Fate::Raced)]
}

/// Mostly the one that always stands there.
fn keys() -> impl Strategy<Value = usize> {
    let safe_to_evict = hints::keys().iter().position(|key| key.name() == hints::SAFE_TO_EVICT);
    prop_oneof![1 => Just(safe_to_evict.expect("it is one of them")), 1 => 0..hints::keys().len()]
}

fn owners() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::sample::select(vec!["Idle", "Busy", "Starting", "Done"]).prop_map(|phase| Step::Owner(Some(phase))),
        1 => Just(Step::Owner(None)),
        1 => any::<bool>().prop_map(Step::Linked),
        1 => Just(Step::Kubelet),
    ]
}

fn people() -> impl Strategy<Value = Step> {
    let values = prop::sample::select(vec!["true", "false", "theirs", "1048576"]);
    let deed = prop_oneof![
        3 => (keys(), values).prop_map(|(key, value)| Deed::Set(key, value)),
        5 => keys().prop_map(Deed::Remove),
        1 => Just(Deed::Strip),
        1 => Just(Deed::StripRecord),
        1 => Just(Deed::Prune),
        1 => prop::sample::select(vec!["junk", "{}", "[1]"]).prop_map(Deed::Junk),
        1 => (1..12_u8).prop_map(Deed::Restore),
    ];
    deed.prop_map(Step::Person)
}

fn times() -> impl Strategy<Value = Step> {
    prop_oneof![4 => 1..20_i64, 2 => Just(60), 1 => Just(900), 1 => Just(1801), 1 => Just(3600)].prop_map(Step::Advance)
}

/// Everything that can happen to hints.
fn steps() -> impl Strategy<Value = Step> {
    let own = prop::option::of((keys(), prop::sample::select(vec!["true", "theirs"])));
    prop_oneof![
        4 => owners(),
        4 => people(),
        2 => keys().prop_map(Step::Feud),
        3 => times(),
        4 => (lags(), fates()).prop_map(|(lag, fate)| Step::Look(lag, fate)),
        3 => Just(Step::Settle),
        1 => Just(Step::Restart),
        1 => prop_oneof![3 => (own, lags()).prop_map(|(own, lag)| Step::Recreate(own, lag)), 1 => Just(Step::Switch)],
    ]
}

/// Everything that can happen to holds.
fn drains() -> impl Strategy<Value = Step> {
    let asks = (0..2_usize, lags(), prop::bool::weighted(0.2));
    prop_oneof![
        3 => owners(),
        1 => people(),
        4 => prop_oneof![3 => 1..40_i64, 1 => Just(100), 1 => Just(290)].prop_map(Step::Advance),
        2 => (lags(), fates()).prop_map(|(lag, fate)| Step::Look(lag, fate)),
        3 => Just(Step::Settle),
        8 => asks.prop_map(|(who, lag, lost)| Step::Ask(who, lag, lost)),
        1 => prop_oneof![
            2 => (0..2_usize).prop_map(Step::RestartReplica),
            2 => (0..2_usize, prop_oneof![Just(0_i64), -400..400_i64]).prop_map(|(who, ahead)| Step::Clock(who, ahead)),
            1 => Just(Step::LoseHolds),
            1 => Just(Step::Restart),
        ],
    ]
}

fn hints_history() -> impl Strategy<Value = (Config, Vec<Step>)> {
    (configs(), vec(steps(), 1..60))
}

fn holds_history() -> impl Strategy<Value = (Config, Vec<Step>, bool)> {
    let config = any::<bool>().prop_map(|on_completion| Config { max_busy: 300, on_completion });
    // Mostly a busy pod.
    (config, vec(drains(), 1..60), any::<bool>()).prop_map(|(config, steps, led)| {
        let begun = [Step::Owner(Some("Busy")), Step::Settle];
        (config, begun.into_iter().chain(steps).collect(), led)
    })
}

proptest! {
    #![proptest_config(runner(500))]

    /// Whatever happens, no value of somebody else is ever written over or taken away, no key is put back more than twice
    /// an hour by one process, and none is given up that was not removed three times. And once everybody rests, every
    /// hint that is Belay's or free is true, for any process, and nothing is written any more.
    #[test]
    fn hints_come_true_and_nothing_of_others_is_touched((config, steps) in hints_history()) {
        let mut world = World::new(config);
        for step in steps {
            world.step(step);
        }
        world.come_to_rest();
        world.check_rest();
    }

    /// Whatever happens, a hold on a pod that stays busy ends: by its record, by what stands on the pod, and by the uptime
    /// of each process, so that it takes the loss of all three to prolong it.
    #[test]
    fn every_hold_on_a_busy_pod_ends((config, steps, led) in holds_history()) {
        let mut world = World::new(config);
        for step in steps {
            world.step(step);
        }
        world.drain_to_the_end(led);
    }
}

/// The histories meet what the laws speak of.
#[test]
fn the_histories_meet_what_the_laws_speak_of() {
    let mut runner = proptest::test_runner::TestRunner::new(runner(1));
    let mut met = BTreeSet::new();
    for _ in 0..200 {
        let (config, steps) = hints_history().new_tree(&mut runner).unwrap().current();
        let mut world = World::new(config);
        for step in steps {
            world.step(step);
        }
        met.extend(world.laws.met);
        let (config, steps, _) = holds_history().new_tree(&mut runner).unwrap().current();
        let mut world = World::new(config);
        for step in steps {
            world.step(step);
        }
        met.extend(world.laws.met);
    }
    let expected = BTreeSet::from([
        "DeadlinePassed",
        "NotRecorded",
        "Released",
        "a key given up",
        "a key put back",
        "a key yielded",
        "a pod recreated",
        "false",
        "held",
        "on-completion",
    ]);
    assert_eq!(met, expected);
}
