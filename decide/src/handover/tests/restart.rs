//! From the recorded hold to the restart, and what is waited for.

use crate::action::{Action, ObjectRef};
use crate::handover::record::HandoverRecord;
use crate::hold::{HoldStatus, Phase};
use crate::testing::{NEW, OLD, Scene, VICTIM, after, hold, in_words, pod, record, replica_set};
use crate::view::{PodPhase, Strategy};

/// Compares what a scene's step says with lines, sequences being separated by an empty one.
fn check(table: Vec<(&str, Scene, &[&str])>) {
    for (name, scene, expected) in table {
        let plan = scene.plan();
        assert_eq!(in_words(&plan).join(&String::new()), expected, "{name}");
    }
}

const RESTART: &[&str] = &[
    "web-7d9f-x-web7d9fx: Active Restarting",
    "event: EvictionHeld",
    "template: slot a, records web-7d9f-x-uid",
    "event: HandoverStarted",
];

#[test]
fn a_steady_workload_is_restarted_once() {
    let active = |bend: fn(&mut Scene)| {
        Scene::restarted().with(|scene| {
            scene.deployment = Scene::quiet().deployment;
            bend(scene);
        })
    };
    check(vec![
        ("RollingUpdate", Scene::asked(), RESTART),
        ("Recreate", Scene::asked().with(|scene| scene.deployment.strategy = Strategy::Recreate), RESTART),
        (
            "the hold was written, the restart was not: it is tried again behind the hold, and nothing is told twice",
            active(|_| ()),
            &[RESTART[0], RESTART[2], RESTART[3]],
        ),
        (
            "the slot is the other one",
            Scene::asked().with(|scene| {
                scene.deployment.slot = Some("a".into());
                scene.sets[0].slot = Some("a".into());
            }),
            &[
                "web-7d9f-x-web7d9fx: Active Restarting",
                "event: EvictionHeld",
                "template: slot b, records web-7d9f-x-uid",
                "event: HandoverStarted",
            ],
        ),
        (
            "other victims' records are kept",
            Scene::asked().with(|scene| {
                scene.deployment.records = vec![HandoverRecord { victim: "earlier".into(), ..record() }];
            }),
            &[
                "web-7d9f-x-web7d9fx: Active Restarting",
                "event: EvictionHeld",
                "template: slot a, records earlier web-7d9f-x-uid",
                "event: HandoverStarted",
            ],
        ),
    ]);
}

#[test]
fn a_restart_carries_what_makes_it_safe() {
    let scene = Scene::asked().with(|scene| {
        scene.now = after(3);
        scene.protection.as_mut().unwrap().settings.field_manager = Some("flux-client-side-apply".into());
    });
    let plan = scene.plan();
    let [Action::UpdateHold { hold, status }, Action::Event(_), patch, ..] = &plan.sequences[0][..] else {
        panic!("{plan:?}");
    };
    let expected = ObjectRef {
        namespace: "shop".into(),
        name: "web-7d9f-x-web7d9fx".into(),
        uid: "web-7d9f-x-hold".into(),
        resource_version: "7".into(),
    };
    assert_eq!(hold, &expected);
    assert_eq!(status.from_revision, Some(1), "noted before the restart is written");
    assert_eq!(status.restarted_at, None, "it is not seen yet");
    let deployment = ObjectRef {
        namespace: "shop".into(),
        name: "web".into(),
        uid: "web-uid".into(),
        resource_version: "100".into(),
    };
    let expected = Action::PatchTemplate {
        deployment,
        slot: Some("a".into()),
        records: vec![HandoverRecord { restarted_at: after(3), ..record() }],
        field_manager: Some("flux-client-side-apply".into()),
    };
    assert_eq!(patch, &expected);
    assert_eq!(plan.wake_at, Some(after(600)), "the deadline");
}

#[test]
fn the_event_of_a_hold_says_who_asks_and_until_when() {
    let note = |evictor: &str| {
        let scene = Scene::asked().with(|scene| scene.holds[0].spec.evictor = evictor.into());
        let notes = scene.plan().sequences.concat().into_iter().find_map(|action| match action {
            Action::Event(event) if event.reason == "EvictionHeld" => {
                Some((event.note, event.related.expect("the victim").uid))
            }
            _ => None,
        });
        notes.expect("the hold is told of")
    };
    let (text, uid) = note("drainer");
    assert_eq!(
        text,
        "Eviction of web-7d9f-x from node node-1, asked for by drainer, is held while its Deployment replaces it, \
         until 14:10:00Z at the latest"
    );
    assert_eq!(uid, "web-7d9f-x-uid");
    assert!(note("").0.contains("asked for by somebody"));
}

/// The hold as it stands once what is awaited was written down.
fn resting(scene: Scene) -> Scene {
    scene.with(|scene| {
        let plan = scene.plan();
        for action in plan.sequences.concat() {
            if let Action::UpdateHold { status, .. } = action {
                scene.holds[0].status = status;
            }
        }
    })
}

#[test]
fn what_is_awaited_is_written_down_once() {
    let recreate = |scene: Scene| scene.with(|scene| scene.deployment.strategy = Strategy::Recreate);
    let release = Scene::asked().with(|scene| {
        scene.deployment.revision = Some(2);
        scene.sets.push(replica_set(NEW, 2, None));
    });
    let table = [
        ("the restart is not observed", Scene::restarted(), "RolloutNotObserved"),
        ("the replacement is not created", Scene::rolling(), "ReplacementNotCreated"),
        ("the replacement is not created, Recreate", recreate(Scene::rolling()), "VictimTerminatesFirst"),
        ("the replacement starts", Scene::starting(), "ReplacementStarting"),
        (
            "the replacement is ready and not yet available",
            Scene::ready_for(1).with(|scene| scene.deployment.min_ready_seconds = 9),
            "ReplacementNotAvailable",
        ),
        ("a user's release replaces a victim of an old revision: no restart", release, "ReplacementNotCreated"),
        (
            "a user's release to the victim's revision is under way: no restart before it is over",
            Scene::asked().with(|scene| scene.deployment.status.replicas = 2),
            "ReleaseUnderWay",
        ),
        (
            "the Deployment controller has not seen the newest spec: no restart",
            Scene::asked().with(|scene| scene.deployment.generation = 2),
            "RolloutNotObserved",
        ),
    ];
    for (name, scene, reason) in table {
        let pending = scene.holds[0].status.phase == Phase::Pending;
        let mut expected = vec![format!("web-7d9f-x-web7d9fx: Active {reason}")];
        expected.extend(pending.then(|| "event: EvictionHeld".to_owned()));
        assert_eq!(in_words(&scene.plan()), [expected], "{name}");

        let resting = resting(scene);
        assert_eq!(in_words(&resting.plan()), [[""; 0]; 0], "{name}: a second look writes nothing");
        assert!(resting.plan().wake_at.is_some_and(|at| at > resting.now), "{name}: it will be looked at again");
    }
}

#[test]
fn the_restart_is_noted_in_the_hold_when_it_is_seen() {
    assert_eq!(resting(Scene::rolling()).holds[0].status.restarted_at, Some(after(1)));
    let stripped = Scene::rolling().with(|scene| scene.deployment.records.clear());
    assert_eq!(resting(stripped).holds[0].status.restarted_at, None, "nobody knows when it was");
}

#[test]
fn the_next_look_is_at_whichever_comes_first() {
    let soon = Scene::ready_for(4).with(|scene| scene.deployment.min_ready_seconds = 30);
    let late = Scene::ready_for(4).with(|scene| scene.deployment.min_ready_seconds = 3600);
    assert_eq!(soon.plan().wake_at, Some(after(26)), "the replacement counts as available");
    assert_eq!(late.plan().wake_at, Some(after(600)), "the deadline");
    assert_eq!(Scene::starting().plan().wake_at, Some(after(600)), "the deadline");
}

#[test]
fn one_restart_serves_two_victims() {
    // A scale-down left two pods of the newest revision for a moment; both are drained.
    let sibling = "web-7d9f-z";
    let mut second = hold(sibling, OLD);
    second.spec.requested_at = after(1);
    let scene = Scene::asked().with(|scene| {
        scene.pods.push(pod(sibling, OLD, "node-1"));
        scene.holds.insert(0, second);
    });
    let expected: [&[&str]; 2] = [RESTART, &["web-7d9f-z-web7d9fz: Active AwaitingRestart", "event: EvictionHeld"]];
    assert_eq!(in_words(&scene.plan()), expected, "the older hold asks for the restart");

    let rolling = Scene::rolling().with(|scene| {
        scene.pods.push(pod(sibling, OLD, "node-1"));
        scene.holds.push(hold(sibling, OLD));
    });
    let expected: [&[&str]; 2] = [
        &["web-7d9f-x-web7d9fx: Active ReplacementNotCreated"],
        &["web-7d9f-z-web7d9fz: Active ReplacementNotCreated", "event: EvictionHeld"],
    ];
    assert_eq!(in_words(&rolling.plan()), expected, "its rollout replaces both");
}

#[test]
fn a_lingering_victim_and_its_drained_successor_each_get_their_restart() {
    // The first victim terminates slowly; its replacement's node is drained as well.
    let scene = Scene::handed_over().with(|scene| {
        scene.doomed.push("node-2");
        scene.deployment.status.updated = 1;
        let mut lingering = pod(VICTIM, OLD, "node-1");
        lingering.terminating = true;
        scene.pods.push(lingering);
        scene.holds[0].status = HoldStatus { phase: Phase::Released, ..HoldStatus::default() };
        let mut second = hold("web-58c6-y", NEW);
        second.spec.requested_at = after(30);
        scene.holds.push(second);
        scene.now = after(31);
    });
    let expected: [&[&str]; 1] = [&[
        "web-58c6-y-web58c6y: Active Restarting",
        "event: EvictionHeld",
        "template: slot b, records web-7d9f-x-uid web-58c6-y-uid",
        "event: HandoverStarted",
    ]];
    assert_eq!(in_words(&scene.plan()), expected);
}

#[test]
fn a_restart_is_never_made_twice() {
    let at_rest = |bend: fn(&mut Scene)| Scene::reverted().with(bend);
    let table = [
        ("the record is on the Deployment", at_rest(|_| ())),
        (
            "the record was stripped before the restart was noted: the revision has moved on since",
            at_rest(|scene| scene.deployment.records.clear()),
        ),
        (
            "the hold was deleted and made again, the record stayed",
            at_rest(|scene| scene.holds[0].status = HoldStatus::default()),
        ),
    ];
    for (name, scene) in table {
        let words = in_words(&scene.plan()).concat();
        assert!(!words.iter().any(|word| word.starts_with("template")), "{name}: {words:?}");
        assert_eq!(words[0], "web-7d9f-x-web7d9fx: Released Reverted", "{name}");
    }
}

#[test]
fn a_deployment_older_than_the_hold_is_neither_restarted_nor_called_reverted() {
    // Another controller restarted and noted it; this one's watch of Deployments is behind.
    let noted = |from_revision| {
        Scene::restarted().with(|scene| {
            scene.deployment = Scene::quiet().deployment;
            scene.holds[0].status.restarted_at = Some(after(1));
            scene.holds[0].status.from_revision = from_revision;
        })
    };
    let waits: &[&str] = &["web-7d9f-x-web7d9fx: Active AwaitingRestart"];
    check(vec![
        ("it shows the revision before the restart", noted(Some(1)), waits),
        ("it shows an even older revision", noted(Some(5)), waits),
        ("the hold was made again since, and knows no revision", noted(None), waits),
    ]);
}

#[test]
fn a_hold_never_restarts_a_successor_of_its_deployment() {
    let scene = Scene::asked().with(|scene| scene.deployment.uid = "another-web".into());
    let expected: [&[&str]; 1] = [&["web-7d9f-x-web7d9fx: Released VictimGone", "event: EvictionReleased"]];
    assert_eq!(in_words(&scene.plan()), expected);
}

#[test]
fn the_order_of_the_caches_changes_nothing() {
    let mut scene = Scene::ready_for(1).with(|scene| {
        scene.deployment.min_ready_seconds = 30;
        let starting = scene.replacement().clone();
        scene.pods.push(crate::view::PodView {
            name: "web-58c6-a".into(),
            uid: "a".into(),
            phase: PodPhase::Pending,
            ready_since: None,
            ..starting
        });
        let mut second = hold("web-7d9f-z", OLD);
        second.spec.requested_at = after(-9);
        scene.holds.push(second);
        scene.pods.push(pod("web-7d9f-z", OLD, "node-1"));
    });
    let one = scene.plan();
    scene.pods.reverse();
    scene.holds.reverse();
    scene.sets.reverse();
    assert_eq!(scene.plan(), one);
}
