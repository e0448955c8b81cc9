//! What holds of one replica's answers, whatever its cache shows.
//!
//! The histories in `model` only show caches that a cluster could have produced. Here each request meets any cache at
//! all: objects that contradict each other, records that come and go, a wall clock that reads anything. What is left
//! to trust is the replica's own memory and its uptime, and these laws need no more.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::{OLD, Scene, VICTIM, after, hold, record, runner};

/// One request, and the world as the cache shows it.
#[derive(Clone, Debug)]
struct Question {
    /// Since the last request, in seconds.
    elapsed: u64,
    /// The wall clock.
    wall: i64,
    scene: u8,
    /// When the recorded hold says that it was first asked for, and its phase; absent where none is recorded.
    hold: Option<(i64, Phase)>,
    /// The same for the Deployment's record, and whether it was rolled back.
    record: Option<(i64, bool)>,
    limit: u32,
    flags: [bool; 8],
    dry_run: bool,
}

impl Question {
    fn scene(&self) -> Scene {
        let mut scene = match self.scene {
            0 => Scene::quiet(),
            1 => Scene::restarted(),
            2 => Scene::rolling(),
            3 => Scene::starting(),
            4 => Scene::ready_for(5),
            _ => Scene::reverted(),
        };
        scene.now = after(self.wall);
        scene.holds.clear();
        scene.deployment.records.clear();
        if let Some((requested, phase)) = self.hold {
            let mut hold = hold(VICTIM, OLD);
            hold.spec.requested_at = after(requested);
            hold.spec.deadline = after(requested + i64::from(self.limit));
            hold.status.phase = phase;
            scene.holds.push(hold);
        }
        if let Some((requested, rolled_back)) = self.record {
            scene.deployment.records.push(crate::handover::record::HandoverRecord {
                requested_at: after(requested),
                deadline: after(requested + i64::from(self.limit)),
                rolled_back,
                ..record()
            });
        }
        if let Some(protection) = &mut scene.protection {
            protection.settings.readiness_deadline_seconds = self.limit;
        }
        let [paused, several, terminating, unready, doomed, unprotected, waiting, shuffled] = self.flags;
        scene.deployment.paused = paused;
        scene.deployment.replicas = if several { 2 } else { 1 };
        scene.deployment.min_ready_seconds = if waiting { 10 } else { 0 };
        scene.victim().terminating = terminating;
        if unready {
            scene.victim().ready_since = None;
        }
        if doomed {
            scene.doomed.push("node-2");
        }
        if unprotected {
            scene.protection = None;
        }
        if shuffled {
            scene.sets.reverse();
        }
        scene
    }

    fn decide(&self, memory: Option<&Memory>, now: Moment) -> Decision {
        let scene = self.scene();
        let workload = scene.workload();
        let facts = Facts {
            synced: true,
            victim: scene.pods.first(),
            workload: Some(&workload),
            protection: scene.protection.as_ref(),
            hold: scene.holds.first(),
        };
        let request = Request { namespace: "shop", name: VICTIM, uid: None, dry_run: self.dry_run, evictor: "drainer" };
        decide(&request, &Rules::default(), &facts, memory, now)
    }
}

fn questions() -> impl Strategy<Value = Question> {
    let phase = prop_oneof![
        4 => Just(Phase::Pending), 4 => Just(Phase::Active), 1 => Just(Phase::Released), 1 => Just(Phase::Completed),
    ];
    let seldom = || prop::bool::weighted(0.06);
    let flags = [seldom(), seldom(), seldom(), seldom(), seldom(), seldom(), seldom(), seldom()];
    let near = || prop_oneof![3 => -60..60_i64, 1 => -90_000..90_000_i64];
    (
        prop_oneof![3 => 0..10_u64, 1 => 0..200_u64],
        near(),
        prop_oneof![4 => 0..4_u8, 1 => 4..6_u8],
        prop::option::of((near(), phase)),
        prop::option::weighted(0.3, (near(), prop::bool::weighted(0.1))),
        prop_oneof![Just(1_u32), Just(60), Just(600), Just(86_400)],
        flags,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(elapsed, wall, scene, hold, record, limit, flags, dry_run)| Question {
            elapsed,
            wall,
            scene,
            hold,
            record,
            limit,
            flags,
            dry_run,
        })
}

fn is_final(answer: &Answer) -> bool {
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

proptest! {
    #![proptest_config(runner(2000))]

    /// One process, one victim, any caches and any wall clock: the first hold's limit bounds them all, by uptime; no
    /// hold at or past any deadline that the cache shows, by the wall clock; none without a record beyond the grace;
    /// none after a release; and a dry run neither remembers nor records.
    #[test]
    fn a_replicas_holds_end_whatever_its_cache_shows(questions in vec(questions(), 1..30)) {
        let mut memory: Option<Memory> = None;
        let mut first: Option<(u64, u64)> = None;
        let mut released = false;
        let mut uptime = 1_000;
        for question in questions {
            uptime += question.elapsed;
            let now = Moment { wall: after(question.wall), uptime: Duration::from_secs(uptime) };
            let decision = question.decide(memory.as_ref(), now);
            prop_assert_eq!(&question.decide(memory.as_ref(), now), &decision, "the same input, the same answer");

            if question.dry_run {
                prop_assert_eq!((&decision.memory, &decision.record), (&None, &None));
                prop_assert!(decision.answer.held().is_none());
                continue;
            }
            if is_final(&decision.answer) {
                released = true;
                prop_assert!(decision.memory.is_some_and(|memory| memory.released));
            }
            let deadlines = [question.hold.map(|(at, _)| at), question.record.map(|(at, _)| at)];
            if let Some(held) = decision.answer.held() {
                prop_assert!(!released, "held after a release");
                let (begun, limit) = *first.get_or_insert((uptime, u64::from(question.limit)));
                prop_assert!(uptime - begun < limit, "held for {} s, the limit being {limit} s", uptime - begun);
                let recorded = question.hold.is_some() || question.record.is_some();
                prop_assert!(recorded || uptime - begun < UNRECORDED_GRACE.as_secs());
                for requested in deadlines.into_iter().flatten() {
                    let deadline = after(requested + i64::from(question.limit));
                    prop_assert!(now.wall < deadline && held.deadline <= deadline);
                }
                prop_assert_eq!(decision.record.is_some(), question.hold.is_none(), "recorded where none is seen");
                if let Some(spec) = &decision.record {
                    prop_assert_eq!(spec.deadline, held.deadline);
                    prop_assert!(spec.requested_at <= decision.memory.expect("a hold is remembered").first.wall);
                }
                prop_assert!(held.message.starts_with("belay: holding web-7d9f-x: "));
            } else {
                prop_assert_eq!(&decision.record, &None, "what is let through is not recorded");
            }
            if let (Some(old), Some(new)) = (memory, decision.memory) {
                prop_assert_eq!((old.first, old.limit), (new.first, new.limit), "memory is never started afresh");
                prop_assert!(new.released >= old.released);
            }
            memory = decision.memory.or(memory);
        }
    }
}
