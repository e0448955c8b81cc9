//! The answers, as tables: a case's name is the rule it stands for.

mod cases;

use cases::{holds, let_through, released, released_hold};

use jiff::SignedDuration;

use super::*;
use crate::doom::Doomed;
use crate::handover::record::HandoverRecord;
use crate::policy::Unsupported;
use crate::testing::{NEW, OLD, REPLACEMENT, Scene, VICTIM, after, hold, record};
use crate::view::{IntOrPercent, Strategy};

/// A request, and everything that the replica knows when it comes.
#[derive(Clone)]
struct Case {
    scene: Scene,
    rules: Rules,
    synced: bool,
    known: bool,
    /// What is known of `node-1`.
    node: Option<Doomed>,
    namespace: &'static str,
    uid: Option<&'static str>,
    dry_run: bool,
    evictor: &'static str,
    memory: Option<Memory>,
    uptime: u64,
}

impl Case {
    fn of(scene: Scene) -> Self {
        Self {
            scene,
            rules: Rules {
                excluded_namespaces: vec!["kube-system".into(), "belay-system".into()],
                ignore_evictors: vec!["vpa".into()],
                ignore_restarters: true,
            },
            node: None,
            synced: true,
            known: true,
            namespace: "shop",
            uid: None,
            dry_run: false,
            evictor: "drainer",
            memory: None,
            uptime: 0,
        }
    }

    fn with(mut self, bend: impl FnOnce(&mut Self)) -> Self {
        bend(&mut self);
        self
    }

    /// First asked `seconds` ago, by both clocks.
    fn asked_ago(self, seconds: u64) -> Self {
        self.with(|case| {
            case.uptime = 1000 + seconds;
            case.memory = Some(Memory {
                first: Moment {
                    wall: case.scene.now - Duration::from_secs(seconds),
                    uptime: Duration::from_secs(1000),
                },
                limit: Duration::from_mins(10),
                released: false,
            });
        })
    }

    fn moment(&self) -> Moment {
        Moment { wall: self.scene.now, uptime: Duration::from_secs(self.uptime) }
    }

    fn decide(&self) -> Decision {
        let dooms = self.node.iter().map(|doomed| ("node-1", doomed)).collect();
        let workload = Workload { dooms, ..self.scene.workload() };
        let known = self.known && !self.scene.pods.is_empty();
        decide(
            &Request {
                namespace: self.namespace,
                name: VICTIM,
                uid: self.uid,
                dry_run: self.dry_run,
                evictor: self.evictor,
            },
            &self.rules,
            &Facts {
                synced: self.synced,
                victim: known.then(|| &self.scene.pods[0]),
                workload: Some(&workload),
                protection: self.scene.protection.as_ref(),
                hold: self.scene.holds.first(),
            },
            self.memory.as_ref(),
            self.moment(),
        )
    }
}

#[test]
fn lets_through_without_a_trace_what_needs_no_protection() {
    for (name, case, reason) in let_through() {
        let decision = case.decide();
        assert_eq!(decision.answer.reason(), reason, "{name}");
        assert!(matches!(decision.answer, Answer::Allow(_)), "{name}");
        assert_eq!((decision.memory, decision.record), (None, None), "{name}");
    }
}

#[test]
fn a_victim_is_held_no_longer_than_its_node_lasts() {
    let on_spot = |since, notice: Option<i64>| {
        let notice = notice.map(SignedDuration::from_secs);
        let node = Doomed { by: "AWS".into(), since, soft: false, notice };
        Case::of(Scene::quiet()).with(|case| case.node = Some(node)).decide()
    };
    let deadline = |decision: Decision| decision.record.map(|hold| hold.deadline);
    assert_eq!(deadline(on_spot(after(-30), Some(90))), Some(after(60)), "counted from when the signal was seen");
    assert_eq!(deadline(on_spot(after(-30), Some(6000))), Some(after(600)), "and never longer than the policy says");
    assert_eq!(deadline(on_spot(after(-3000), None)), Some(after(600)), "a node that waits shortens nothing");
    let late = on_spot(after(-90), Some(90));
    assert_eq!((late.answer, late.record), (Answer::Allow(Allowed::DeadlinePassed), None));
}

#[test]
fn programs_that_restart_pods_pass_unless_the_platform_wants_them_held() {
    for (evictor, passes) in [
        ("system:serviceaccount:kube-system:vpa-updater", true),
        ("system:serviceaccount:argo-rollouts:argo-rollouts", true),
        ("system:serviceaccount:kube-system:cluster-autoscaler", false),
        ("system:serviceaccount:kube-system:descheduler", false),
        ("alice", false),
    ] {
        let case = Case::of(Scene::quiet()).with(|case| case.evictor = evictor);
        assert_eq!(case.decide().answer == Answer::Allow(Allowed::IgnoredEvictor), passes, "{evictor}");
        let strict = case.with(|case| case.rules.ignore_restarters = false);
        assert!(strict.decide().answer.held().is_some(), "{evictor}");
    }
}

#[test]
fn releases_for_ever() {
    for (name, case, reason) in released() {
        let decision = case.decide();
        assert_eq!(decision.answer.reason(), reason, "{name}");
        assert!(matches!(decision.answer, Answer::Allow(_)), "{name}");
        assert_eq!(decision.record, None, "{name}");
        let memory = decision.memory.expect("a release is remembered");
        assert!(memory.released, "{name}");

        // Whatever the world looks like afterwards: a PodDisruptionBudget refused, the replacement died, the hold was
        // deleted. It is still released.
        let mut again = case.clone();
        again.memory = Some(memory);
        again.scene.holds.clear();
        again.scene.pods.truncate(1);
        again.scene.deployment.records.clear();
        assert_eq!(again.decide().answer, Answer::Allow(Allowed::Released), "{name}, asked again");
    }
}

#[test]
fn holds_and_says_what_is_awaited() {
    for (name, case, reason, awaited) in holds() {
        let decision = case.decide();
        let Answer::Hold(held) = decision.answer else {
            panic!("{name}: {:?}", decision.answer);
        };
        assert_eq!(held.reason, reason, "{name}");
        assert_eq!(held.awaited, awaited, "{name}");
        let message = format!("belay: holding web-7d9f-x: {awaited}; released by 14:10:00Z at the latest");
        assert_eq!(held.message, message, "{name}");
        assert_eq!(held.deadline, after(600), "{name}");
    }
}

#[test]
fn a_drainer_reads_who_is_awaited_and_until_when() {
    let scene = Scene::ready_for(12).with(|scene| {
        scene.deployment.min_ready_seconds = 30;
        scene.holds[0].spec.requested_at = after(-290);
        scene.holds[0].spec.deadline = after(310);
        scene.deployment.records.clear();
        scene.victim().name = "web-7d9f8c5b6d-x2x4v".into();
        scene.replacement().name = "web-58c6f7d9b8-q9m2k".into();
    });
    let decision = Case::of(scene).decide();
    assert_eq!(
        decision.answer.held().expect("it is held").message,
        "belay: holding web-7d9f8c5b6d-x2x4v: replacement web-58c6f7d9b8-q9m2k is not yet available (0/1, \
         minReadySeconds 30); released by 14:05:10Z at the latest"
    );
}

#[test]
fn the_client_waits_inside_its_call_only_when_the_release_is_near() {
    let ready = |seconds: i64, bend: fn(&mut Scene)| {
        Case::of(Scene::ready_for(seconds).with(|scene| scene.deployment.min_ready_seconds = 30).with(bend))
    };
    let table = [
        ("three seconds are near", ready(27, |_| ()), Some(1)),
        ("one second is near", ready(29, |_| ()), Some(1)),
        ("four seconds are not", ready(26, |_| ()), None),
        ("a pod that is not ready may take for ever", ready(29, |scene| scene.replacement().ready_since = None), None),
        ("no release comes from a doomed node", ready(29, |scene| scene.doomed.push("node-2")), None),
    ];
    for (name, case, expected) in table {
        let decision = case.decide();
        assert_eq!(decision.answer.held().expect(name).retry_after_seconds, expected, "{name}");
    }
    for (name, case, ..) in holds() {
        let held = case.decide().answer.held().cloned().expect(name);
        assert_eq!(held.retry_after_seconds.is_some(), held.reason == "ReplacementNotAvailable", "{name}");
    }
}

#[test]
fn a_first_hold_is_remembered_and_recorded() {
    let decision = Case::of(Scene::quiet()).with(|case| case.uptime = 77).decide();
    let first = Moment { wall: after(0), uptime: Duration::from_secs(77) };
    assert_eq!(decision.memory, Some(Memory { first, limit: Duration::from_mins(10), released: false }));
    assert_eq!(decision.record, Some(hold(VICTIM, OLD).spec));
}

#[test]
fn what_is_recorded_is_not_recorded_again() {
    let decision = Case::of(Scene::asked()).asked_ago(5).decide();
    assert!(decision.answer.held().is_some());
    assert_eq!(decision.record, None);
}

#[test]
fn the_earliest_word_bounds_a_hold() {
    let at = |seconds: i64| (after(seconds), after(seconds + 600));
    // What the hold, the record on the Deployment and this replica say: when it was first asked for.
    let table = [
        ("only this replica knows", None, None, Some(-20), at(-20)),
        ("nobody knows", None, None, None, at(0)),
        ("the hold is older", Some(-50), None, Some(-20), at(-50)),
        ("the replica is older", Some(-20), None, Some(-50), at(-50)),
        ("the record on the Deployment is older", Some(-20), Some(-90), None, at(-90)),
        ("the hold was deleted, the record stayed", None, Some(-90), None, at(-90)),
        ("a hold from a clock that runs ahead", Some(3000), None, Some(-20), at(-20)),
    ];
    for (name, held, recorded, remembered, (requested_at, deadline)) in table {
        let mut scene = Scene::starting();
        scene.holds.clear();
        scene.deployment.records.clear();
        if let Some(seconds) = held {
            let mut hold = hold(VICTIM, OLD);
            (hold.spec.requested_at, hold.spec.deadline) = at(seconds);
            scene.holds.push(hold);
        }
        if let Some(seconds) = recorded {
            let (requested_at, deadline) = at(seconds);
            scene.deployment.records.push(HandoverRecord { requested_at, deadline, ..record() });
        }
        let mut case = Case::of(scene);
        if let Some(seconds) = remembered {
            case = case.asked_ago(i64::unsigned_abs(seconds));
        }
        let decision = case.decide();
        assert_eq!(decision.answer.held().expect(name).deadline, deadline, "{name}");
        if let Some(record) = decision.record {
            assert_eq!((record.requested_at, record.deadline), (requested_at, deadline), "{name}: as recorded");
        }
    }
}

#[test]
fn a_hold_without_a_durable_word_ends_after_the_grace() {
    let aged = |seconds: u64, scene: Scene| Case::of(scene).asked_ago(seconds);
    let table = [
        ("within the grace it is held", aged(29, Scene::quiet()), "AwaitingRestart"),
        ("after it the eviction passes", aged(30, Scene::quiet()), "NotRecorded"),
        ("a hold that is seen bounds it instead", aged(30, Scene::asked()), "AwaitingRestart"),
        (
            "the record on the Deployment bounds it as well",
            aged(30, Scene::starting().with(|scene| scene.holds.clear())),
            "ReplacementStarting",
        ),
        (
            "another victim's record bounds nothing",
            aged(
                30,
                Scene::starting().with(|scene| {
                    scene.holds.clear();
                    scene.deployment.records[0].victim = "another-uid".into();
                }),
            ),
            "NotRecorded",
        ),
        (
            "a hold of another pod of that name bounds nothing",
            aged(30, Scene::asked().with(|scene| scene.holds[0].spec.victim_uid = "another-uid".into())),
            "NotRecorded",
        ),
    ];
    for (name, case, reason) in table {
        assert_eq!(case.decide().answer.reason(), reason, "{name}");
    }
}

#[test]
fn the_release_of_another_pod_of_that_name_releases_nobody_else() {
    let mut other = released_hold(Phase::Released);
    other.spec.victim_uid = "another-uid".into();
    let decision = Case::of(Scene::quiet().with(|scene| scene.holds = vec![other])).decide();
    assert_eq!(decision.answer.reason(), "AwaitingRestart");
    assert!(decision.record.is_some(), "this victim's hold is not recorded yet");
}

#[test]
fn a_rollback_of_our_own_is_not_called_somebody_elses() {
    let decision = Case::of(Scene::reverted().with(|scene| scene.deployment.records[0].rolled_back = true)).decide();
    assert_eq!(decision.answer, Answer::Allow(Allowed::Released));
}

#[test]
fn every_replica_names_the_same_replacement() {
    let mut scene = Scene::ready_for(10);
    let second = PodView { name: "web-58c6-a".into(), uid: "second".into(), ..scene.replacement().clone() };
    scene.pods.push(second);
    let one = Case::of(scene.clone()).decide();
    scene.pods[1..].reverse();
    assert_eq!(Case::of(scene).decide(), one);
}

#[test]
fn a_dry_run_says_what_a_real_eviction_would_meet_and_leaves_no_trace() {
    let cases = let_through().into_iter().chain(released()).map(|(name, case, _)| (name, case));
    for (name, case) in cases.chain(holds().into_iter().map(|(name, case, ..)| (name, case))) {
        let wet = case.decide();
        let dry = case.with(|case| case.dry_run = true).decide();
        assert_eq!((&dry.memory, &dry.record), (&None, &None), "{name}");
        match (&dry.answer, &wet.answer) {
            // These are judged before anything about the pod is.
            (Answer::Allow(Allowed::ExcludedNamespace | Allowed::NotSynced), same) => {
                assert_eq!(&dry.answer, same, "{name}");
            }
            (Answer::Allow(Allowed::DryRun { would_hold, .. }), _) => {
                assert_eq!(would_hold.as_deref(), wet.answer.held(), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_warning_says_what_a_person_should_know() {
    let held = Case::of(Scene::quiet()).decide().answer.held().cloned();
    let table = [
        (
            Allowed::DryRun { would_hold: held.map(Box::new), unsupported: None },
            Some(
                "belay: dry run: the eviction of web-7d9f-x would be held: Deployment web is about to be restarted to \
                 replace it",
            ),
        ),
        (Allowed::DryRun { would_hold: None, unsupported: None }, None),
        (
            Allowed::DryRun { would_hold: None, unsupported: Some(Unsupported::ZeroReplicas) },
            Some(
                "belay: dry run: this eviction would pass unheld (ZeroReplicas): the Deployment has zero replicas; there is nothing to hand over",
            ),
        ),
        (Allowed::NotSynced, Some("belay: not ready yet, eviction let through unprotected")),
        (
            Allowed::Unsupported(Unsupported::ZeroReplicas),
            Some(
                "belay: not protected (ZeroReplicas): the Deployment has zero replicas; there is nothing to hand over",
            ),
        ),
        (Allowed::DeadlinePassed, Some("belay: released after its deadline; what it was held for has not come")),
        (
            Allowed::Reverted,
            Some("belay: somebody put the pod template back while the replacement was coming; eviction let through"),
        ),
        (Allowed::Terminating, None),
        (Allowed::NotProtected, None),
        (Allowed::Released, None),
        (Allowed::ReplacementAvailable { replacement: REPLACEMENT.into() }, None),
    ];
    for (allowed, expected) in table {
        assert_eq!(allowed.warning().as_deref(), expected, "{allowed:?}");
    }
    assert!(Allowed::NotRecorded.warning().is_some_and(|text| text.contains("could not be recorded")));
}

#[test]
fn the_pod_that_stands_in_must_be_of_the_newest_revision() {
    // A pod of the victim's own revision on another node: what a scale-down left behind.
    let scene = Scene::rolling().with(|scene| {
        scene.pods.push(PodView { uid: "sibling".into(), ..crate::testing::pod("web-7d9f-z", OLD, "node-2") });
    });
    assert_eq!(Case::of(scene).decide().answer.reason(), "ReplacementNotCreated");
    assert_ne!(OLD, NEW);
}
