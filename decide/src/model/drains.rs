//! Drains in which nothing fails: what a user is promised.

use proptest::collection::vec;
use proptest::prelude::*;

use super::belay::Ask;
use super::cluster::NODES;
use super::histories::{Step, configs, lags};
use super::people::Deed;
use super::{Config, World};
use crate::handover::record::MAX_RECORDS;
use crate::hold::{Allowed, Answer, Outcome, Phase};
use crate::policy::OnFailure;
use crate::testing::{after, runner};
use crate::view::PodView;

/// What goes on within one second where nothing fails: controllers in any order, more than once, on caches that lag.
fn bustle() -> impl Strategy<Value = Vec<Step>> {
    let lead = (0..2_usize, lags()).prop_map(|(who, lag)| Step::Lead { who, lag, fault: None });
    let ask = (0..2_usize, lags(), prop::bool::weighted(0.3)).prop_map(|(replica, lag, refused_later)| {
        Step::Ask(Ask { replica, pod: 0, lag, dry_run: false, refused_later })
    });
    let step = prop_oneof![
        1 => Just(Step::RollOut), 1 => Just(Step::Replicate), 1 => Just(Step::RunPods), 2 => lead, 2 => ask,
    ];
    vec(step, 0..6)
}

/// A drain of `node-1` in which nothing fails and the replacement gets ready in time.
///
/// Where a user releases at the same time, the Deployment controller may take the replacement for one pod too many just
/// when the victim was let go for its sake: it counts from the ReplicaSets' statuses, which do not show the eviction
/// yet. And a release of the victim is for ever, while its reason may be gone a moment later. So what is promised then is
/// what a replica could know: that by a fresh cache another pod was available when it released the victim.
#[derive(Clone, Debug)]
struct Drain {
    config: Config,
    startup: u8,
    /// Somebody releases a new image in this second.
    release: Option<(usize, bool)>,
    /// Each second's bustle; begun again where the drain takes longer.
    seconds: Vec<Vec<Step>>,
}

fn drains() -> impl Strategy<Value = Drain> {
    let release = prop::option::weighted(0.4, (0..12_usize, any::<bool>()));
    (configs(), 0..15_u8, release, vec(bustle(), 1..25)).prop_map(|(config, startup, release, seconds)| {
        // Twice the longest way to a replacement: a release may take the place of the restart when that is all but over.
        let config = Config { limit: 90, progress_deadline: None, prompt_records: true, ..config };
        Drain { config, startup, release, seconds }
    })
}

impl Drain {
    /// Runs it, watching the service at every step.
    fn run(self) {
        let alone = self.release.is_none();
        let mut world = World::new(self.config, Some(i64::from(self.startup)));
        let victim = world.api.pods[0].view.uid.to_string();
        world.person(Deed::Cordon(0));
        let first = world.ask(Ask { replica: 0, pod: 0, lag: [0; 5], dry_run: false, refused_later: false });
        assert!(matches!(first, Some(Answer::Hold(_))), "{first:?}");

        let mut second = 0;
        while world.api.pod(&victim).is_some() {
            assert!(second < usize::try_from(world.config.limit).unwrap(), "the victim is still there");
            if let Some((_, strips)) = self.release.filter(|(at, _)| *at == second) {
                world.person(Deed::Release { strips });
            }
            for step in &self.seconds[second % self.seconds.len()] {
                match step {
                    Step::Ask(_) if world.api.pods.first().is_none_or(|pod| *pod.view.uid != *victim) => {}
                    Step::Ask(ask) if alone => world.ask_served(*ask, true),
                    Step::Ask(ask) => world.ask_served(Ask { lag: [0; 5], ..*ask }, false),
                    step => world.step(*step),
                }
                world.check_service(alone);
            }
            world.lead(second % 2, [0; 5], None);
            for step in [Step::RollOut, Step::Replicate, Step::RunPods, Step::Replicate, Step::RollOut] {
                world.step(step);
                world.check_service(alone);
            }
            world.advance(1);
            second += 1;
        }
        for _ in 0..60 {
            world.lead(0, [0; 5], None);
            world.round();
            world.check_service(alone);
        }
        let status = &world.api.hold_of(&victim).expect("history is kept").status;
        // With Recreate a release takes the victim away before its ReplicaSet exists: nothing tells yet who did it.
        let unknown = world.config.recreate && self.release.is_some() && status.outcome == Some(Outcome::VictimGone);
        assert!(status.outcome == Some(Outcome::HandedOver) || unknown, "{status:?}");
        assert_eq!(status.phase, Phase::Completed, "{status:?}");
        let restarts = world.laws.restarts.get(&victim).copied().unwrap_or(0);
        assert!(restarts == 1 || self.release.is_some(), "{restarts} restarts");
    }
}

impl World {
    /// Asks for a victim; `alone` as below.
    fn ask_served(&mut self, ask: Ask, alone: bool) {
        let victim = self.api.pods[ask.pod].view.clone();
        let served = self.api.serves_beside(&victim, after(self.time));
        let answer = self.ask(ask);
        let allowed = matches!(answer, Some(Answer::Allow(_)));
        if allowed && !victim.terminating {
            assert!(!self.config.recreate, "Recreate takes its pod away itself, before anybody may: {answer:?}");
            let known = alone || answer != Some(Answer::Allow(Allowed::Released));
            assert!(served || !known, "let go before its replacement serves: {answer:?}");
        }
    }

    /// RollingUpdate: somebody serves at any time, where Belay is `alone` at work. Recreate: never two run at once.
    fn check_service(&self, alone: bool) {
        let now = after(self.time);
        if self.config.recreate {
            assert!(self.api.running() <= 1, "{} pods run", self.api.running());
        } else if alone {
            let serves = |pod: &PodView| !pod.terminating && pod.is_available(self.config.min_ready, now);
            assert!(self.api.pods.iter().any(|pod| serves(&pod.view)), "nobody serves");
        }
    }
}

proptest! {
    #![proptest_config(runner(400))]

    /// No failure, and the replacement gets ready in time: with RollingUpdate the victim is let go only once another
    /// pod is available on a node that stays, and (no release meeting it) somebody serves at every step; with Recreate it
    /// is never let go before its own Deployment takes it away, and never do two pods run. With two leaders and caches
    /// that lag.
    #[test]
    fn a_drain_without_failures_is_a_handover(drain in drains()) {
        drain.run();
    }
}

/// Evicts the only pod until it is gone, all going well.
fn hand_over(world: &mut World, second_asked: &mut usize) {
    let victim = world.api.pods[0].view.clone();
    let node = NODES.iter().position(|node| victim.node.as_deref() == Some(*node)).expect("it is bound");
    world.person(Deed::Cordon(node));
    while world.api.pod(&victim.uid).is_some() {
        *second_asked += 1;
        world.ask_served(
            Ask { replica: *second_asked % 2, pod: 0, lag: [0; 5], dry_run: false, refused_later: false },
            true,
        );
        world.lead(0, [0; 5], None);
        world.round();
        world.check_service(true);
    }
    for _ in 0..20 {
        world.lead(1, [0; 5], None);
        world.round();
    }
    world.person(Deed::Uncordon(node));
    let status = &world.api.hold_of(&victim.uid).expect("history is kept").status;
    assert_eq!((status.phase, status.outcome), (Phase::Completed, Some(Outcome::HandedOver)), "{status:?}");
    assert_eq!(world.laws.restarts.get(&*victim.uid), Some(&1));
}

#[test]
fn twenty_handovers_leave_two_replica_sets_with_our_annotation_per_release() {
    for recreate in [false, true] {
        let config = Config {
            recreate,
            min_ready: 2,
            limit: 600,
            on_failure: OnFailure::Release,
            progress_deadline: Some(60),
            grace: 3,
            prompt_records: true,
        };
        let mut world = World::new(config, Some(4));
        let mut seconds = 0;
        for number in 0..20 {
            hand_over(&mut world, &mut seconds);
            if number == 9 {
                world.person(Deed::Release { strips: false });
                for _ in 0..20 {
                    world.round();
                }
            }
        }
        for release in 1..=2 {
            let of_release = world.api.sets.iter().filter(|set| set.release == release);
            let ours = of_release.filter(|set| set.view.slot.is_some()).count();
            assert_eq!(ours, 2, "release {release}, recreate {recreate}: {:?}", world.api.sets);
        }
        assert_eq!(world.api.sets.len(), 5, "and the one that the user made");
        assert_eq!(world.api.deployment.records.len(), MAX_RECORDS);
        assert_eq!(world.laws.restarts.values().sum::<u32>(), 20);
    }
}
