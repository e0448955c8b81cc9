//! The controller's looks at one pod: what it writes, when it looks again, and what it leaves alone.

mod others;

use std::collections::BTreeMap;

use jiff::SignedDuration;

use crate::action::{Action, ObjectRef};
use crate::busy::hints::{BUSY_LABEL, BUSY_SINCE, DELETION_COST, DO_NOT_DISRUPT, PREFER_NO_EVICTION, SAFE_TO_EVICT};
use crate::busy::reconcile::{Plan, forget};
use crate::busy::testing::{Scene, all_hints, bump, in_words, patch};
use crate::busy::{AutoscalerHint, HintSwitches, OnUnknown};
use crate::ownership::{Key, MANAGED_ANNOTATION};
use crate::testing::after;
use crate::view::PodPhase;

const FREE: &[&str] = &["cluster-autoscaler.kubernetes.io/safe-to-evict=true"];

/// What stands on a busy pod by default.
fn busy(since: &str) -> Vec<String> {
    vec![
        format!("belay.dev/busy-since={since}"),
        "cluster-autoscaler.kubernetes.io/safe-to-evict=false".into(),
        "descheduler.alpha.kubernetes.io/prefer-no-eviction=true".into(),
        "karpenter.sh/do-not-disrupt=true".into(),
        "label:belay.dev/busy=true".into(),
    ]
}

fn wakes_in(scene: &Scene, plan: &Plan) -> Option<i64> {
    plan.wake_at.map(|at| at.duration_since(scene.now).as_secs())
}

/// Nothing is to be written.
#[track_caller]
fn assert_quiet(scene: &Scene) {
    let plan = scene.plan();
    assert_eq!(in_words(&plan), Vec::<Vec<String>>::new());
}

fn key(name: &str) -> Key {
    Key::annotation(name)
}

#[test]
fn a_pod_that_was_there_before_is_told_in_one_patch() {
    for (phase, expected) in [
        ("Idle", FREE.iter().map(|&one| one.to_owned()).collect()),
        ("Starting", FREE.iter().map(|&one| one.to_owned()).collect()),
        ("Done", FREE.iter().map(|&one| one.to_owned()).collect()),
        ("Busy", busy("2026-11-30T14:00:00Z")),
    ] {
        let mut scene = Scene::of(phase);
        let plan = scene.look();
        assert_eq!(in_words(&plan), [["w: patch"]], "{phase}");
        assert_eq!(scene.marks(), expected, "{phase}");
        assert_quiet(&scene);
        // What was written is recorded, all of it and nothing else.
        let record = scene.record();
        assert!(record.keys().eq(scene.pod.marks.keys()), "{phase}");
        for (key, value) in &scene.pod.marks {
            assert_eq!(record.written(key), Some(&**value), "{phase}");
        }
    }
}

#[test]
fn every_patch_is_of_the_pod_that_was_looked_at() {
    let plan = Scene::of("Busy").plan();
    let Some(Action::PatchPod { pod, .. }) = plan.sequences.first().and_then(|sequence| sequence.first()) else {
        panic!("{plan:?}");
    };
    let expected =
        ObjectRef { namespace: "ci".into(), name: "w".into(), uid: "pod-1".into(), resource_version: "10".into() };
    assert_eq!(*pod, expected);
}

#[test]
fn switches_add_and_take_away_what_they_switch() {
    let mut scene = Scene::of("Busy").with(|scene| scene.rule.hints = all_hints());
    scene.settle();
    assert_eq!(scene.marks().len(), 8);
    let switched_off = HintSwitches {
        cluster_autoscaler: AutoscalerHint::None,
        karpenter: false,
        busy_label: false,
        descheduler: false,
        cast_ai: false,
        spot_ocean: false,
        deletion_cost: false,
        costs_are_ranked: false,
    };
    scene.rule.hints = switched_off;
    scene.settle();
    assert_eq!(scene.marks(), ["belay.dev/busy-since=2026-11-30T14:00:00Z"]);
    scene.rule.hints = HintSwitches::default();
    scene.settle();
    assert_eq!(scene.marks(), busy("2026-11-30T14:00:00Z"));
}

#[test]
fn busy_is_told_at_once_and_idle_after_the_debounce() {
    let mut scene = Scene::settled("Busy");
    scene.look();
    assert_eq!(scene.marks(), busy("2026-11-30T14:00:00Z"));

    scene.say("Idle");
    let mut scene = scene.at(100);
    let plan = scene.look();
    assert_eq!((in_words(&plan).len(), wakes_in(&scene, &plan)), (0, Some(15)));
    let mut scene = scene.at(114);
    assert_eq!(wakes_in(&scene, &scene.plan()), Some(1));
    scene.look();
    assert_eq!(scene.marks(), busy("2026-11-30T14:00:00Z"), "still");
    let mut scene = scene.at(115);
    scene.look();
    assert_eq!(scene.marks(), FREE);
    assert_quiet(&scene);
    scene.look();
    assert_eq!((scene.memory.clone(), scene.plan().wake_at), (None, None), "nothing to remember, nothing to wait for");
}

#[test]
fn what_flickers_is_not_told() {
    let mut scene = Scene::busy_for(0);
    for second in 1..100 {
        scene.say(if second % 14 == 0 { "Busy" } else { "Idle" });
        scene = scene.at(second);
        assert_quiet(&scene);
        scene.look();
    }
    assert_eq!(scene.mark(&key(BUSY_SINCE)), Some("2026-11-30T14:00:00Z"), "one job all the while");
}

#[test]
fn starting_again_is_not_busy_and_is_debounced_too() {
    let mut scene = Scene::busy_for(60).with(|scene| scene.say("Starting"));
    scene.look();
    assert_quiet(&scene.clone().at(14));
    let mut scene = scene.at(15);
    scene.look();
    assert_eq!(scene.marks(), FREE);
}

#[test]
fn done_is_told_at_once() {
    let mut scene = Scene::busy_for(60).with(|scene| scene.say("Done"));
    scene.look();
    assert_eq!(scene.marks(), FREE);
    assert_quiet(&scene);
}

#[test]
fn the_next_job_is_told_with_its_own_beginning() {
    let mut scene = Scene::busy_for(0).with(|scene| scene.say("Idle"));
    scene.look();
    let mut scene = scene.at(15);
    scene.settle();
    scene.say("Busy");
    let mut scene = scene.at(40);
    scene.settle();
    assert_eq!(scene.marks(), busy("2026-11-30T14:00:40Z"));
}

#[test]
fn a_restart_in_the_middle_of_a_debounce_only_prolongs_it() {
    let mut scene = Scene::busy_for(60).with(|scene| scene.say("Idle"));
    scene.look();
    let mut scene = scene.at(14).with(|scene| scene.memory = None);
    assert_quiet(&scene);
    scene.look();
    let mut scene = scene.at(28);
    assert_quiet(&scene);
    scene.look();
    let mut scene = scene.at(29);
    scene.look();
    assert_eq!(scene.marks(), FREE);
}

#[test]
fn a_restart_at_rest_writes_nothing() {
    for phase in ["Idle", "Starting", "Busy", "Done"] {
        let mut scene = Scene::of(phase);
        scene.settle();
        for second in [0, 1, 3600, 20_000] {
            assert_quiet(&scene.clone().at(second).with(|scene| scene.memory = None));
        }
    }
}

/// The owner is a pod's own business only while the pod is the one that it was.
#[test]
fn a_pod_recreated_under_the_same_name_starts_afresh() {
    let mut scene = Scene::busy_for(60).with(|scene| scene.say("Idle"));
    scene.look();
    let memory = scene.memory.clone().expect("a debounce");
    // Its successor comes with the hints of a template that was copied, and is idle for less than the debounce.
    let mut next = Scene::busy_for(5).with(|scene| {
        scene.pod.uid = "pod-2".into();
        scene.say("Idle");
        scene.memory = Some(memory);
    });
    next = next.at(15);
    assert_quiet(&next);
    next.look();
    assert_eq!(next.memory.as_ref().map(|memory| &*memory.uid), Some("pod-2"));
    assert_quiet(&next.clone().at(29));
    let mut next = next.at(30);
    next.look();
    assert_eq!(next.marks(), FREE);
}

/// A pod that was restored from a backup has the annotations of the one that was saved.
#[test]
fn what_was_busy_before_the_pod_was_created_was_another_pod() {
    let mut scene = Scene::busy_for(8 * 3600).with(|scene| scene.pod.created = after(-10));
    scene.look();
    assert_eq!(scene.marks(), busy("2026-11-30T14:00:00Z"), "busy since now, and not for too long");
    assert_quiet(&scene);
    // The clock of the webhook may be a little behind that of the API server.
    let mut scene = Scene::busy_for(60).with(|scene| scene.pod.created = after(0));
    scene.look();
    assert_eq!(scene.mark(&key(BUSY_SINCE)), Some("2026-11-30T13:59:00Z"));
    // Or much behind: one write, and not one each time.
    let mut scene = Scene::of("Busy").with(|scene| scene.pod.created = after(600));
    scene.settle();
    for second in 1..20 {
        scene = scene.at(second);
        assert_quiet(&scene);
        scene.look();
    }
}

#[test]
fn what_ends_anyway_is_left_alone() {
    let stale = |bend: fn(&mut Scene)| Scene::busy_for(60).with(|scene| scene.say("Done")).with(bend);
    assert_eq!(in_words(&stale(|_| ()).plan()), [["w: patch"]]);
    for (name, scene) in [
        ("terminating", stale(|scene| scene.pod.terminating = true)),
        ("succeeded", stale(|scene| scene.pod.phase = PodPhase::Succeeded)),
        ("failed", stale(|scene| scene.pod.phase = PodPhase::Failed)),
        ("a static pod's mirror", stale(|scene| scene.pod.mirror = true)),
    ] {
        assert_eq!(in_words(&scene.plan()), Vec::<Vec<String>>::new(), "{name}");
    }
    // One that is not bound or does not know itself is not.
    for phase in [PodPhase::Pending, PodPhase::Unknown] {
        let scene = Scene::of("Busy").with(|scene| (scene.pod.phase, scene.pod.node) = (phase, None));
        assert_eq!(in_words(&scene.plan()), [["w: patch"]]);
    }
}

#[test]
fn busy_for_too_long_counts_as_idle_with_one_word() {
    let six_hours = 6 * 3600;
    let scene = Scene::busy_for(six_hours - 1);
    assert_quiet(&scene);
    assert_eq!(wakes_in(&scene, &scene.plan()), Some(1));

    let mut scene = scene.at(1);
    let plan = scene.look();
    assert_eq!(in_words(&plan), [["w: patch", "warning: BusyTooLong"]]);
    let Some(Action::Event(event)) = plan.sequences[0].last() else { panic!("{plan:?}") };
    assert_eq!(event.note, "Busy for longer than 6h (rule worker, maxBusy): it counts as idle from now on");
    let overdue = ["belay.dev/busy-since=2026-11-30T08:00:01Z", FREE[0]];
    assert_eq!(scene.marks(), overdue);

    // And stays so, for any process, without another word.
    for second in [1, 2, 60, 86_400] {
        assert_quiet(&scene.clone().at(second));
        assert_quiet(&scene.clone().at(second).with(|scene| scene.memory = None));
    }
    // Also where somebody strips what says so.
    scene.somebody(&key(SAFE_TO_EVICT), None);
    assert_eq!(in_words(&scene.plan()), [["w: patch"]]);
    scene.settle();
    scene.somebody(&key(BUSY_SINCE), None);
    assert_eq!(in_words(&scene.plan()), [["w: patch"]]);
    scene.settle();
    assert_eq!(scene.marks(), overdue);

    // The next job is a new one.
    scene.say("Idle");
    scene.look();
    let mut scene = scene.at(16);
    scene.settle();
    scene.say("Busy");
    scene.settle();
    assert_eq!(scene.marks(), busy("2026-11-30T14:00:16Z"));
}

#[test]
fn it_is_told_that_a_pod_is_busy_for_too_long_also_when_a_hint_is_stripped_at_that_moment() {
    let scene = Scene::busy_for(6 * 3600).with(|scene| scene.somebody(&key(SAFE_TO_EVICT), None));
    assert_eq!(in_words(&scene.plan()), [["w: patch", "warning: BusyTooLong"]]);
}

/// Written with a record beside it, it looks like our own; what is to come was never seen.
#[test]
fn a_beginning_in_the_future_is_put_right() {
    let mut scene = Scene::of("Busy").with(|scene| {
        scene.pod.marks.insert(key(BUSY_SINCE), "2030-01-01T00:00:00Z".into());
        scene.pod.managed = Some(r#"{"belay.dev/busy-since":"2030-01-01T00:00:00Z"}"#.into());
    });
    scene.settle();
    assert_eq!(scene.mark(&key(BUSY_SINCE)), Some("2026-11-30T14:00:00Z"));
    assert_eq!(in_words(&scene.at(6 * 3600).look()), [["w: patch", "warning: BusyTooLong"]]);
}

/// Somebody insists on the key that says since when: the process's own memory has to do.
#[test]
fn a_pod_is_busy_for_too_long_also_where_its_beginning_cannot_be_noted() {
    let mut scene = Scene::of("Busy").with(|scene| scene.somebody(&key(BUSY_SINCE), Some("yesterday")));
    scene.settle();
    let mut scene = scene.at(6 * 3600 - 1);
    assert_quiet(&scene);
    scene.look();
    let mut scene = scene.at(6 * 3600);
    let plan = scene.look();
    assert_eq!(in_words(&plan), [["w: patch", "warning: BusyTooLong"]]);
    assert_eq!(scene.marks(), ["belay.dev/busy-since=yesterday", FREE[0]]);
    let scene = scene.at(6 * 3600 + 1);
    assert_quiet(&scene);
}

#[test]
fn on_completion_follows_after_a_minute_and_ends_with_the_job() {
    let on_completion = "on-completion";
    let mut scene = Scene::of("Busy").with(|scene| scene.rule.hints.cluster_autoscaler = AutoscalerHint::OnCompletion);
    let plan = scene.look();
    assert_eq!(scene.mark(&key(SAFE_TO_EVICT)), Some("false"));
    assert_eq!(wakes_in(&scene, &plan), Some(60));
    let mut scene = scene.at(59);
    assert_quiet(&scene);
    assert_eq!(wakes_in(&scene, &scene.plan()), Some(1));
    scene.look();
    let mut scene = scene.at(60);
    let plan = scene.look();
    assert_eq!(in_words(&plan), [["w: patch"]]);
    assert_eq!(scene.mark(&key(SAFE_TO_EVICT)), Some(on_completion));
    assert_eq!(wakes_in(&scene, &scene.plan()), Some(6 * 3600 - 60), "for maxBusy");
    assert_quiet(&scene);
    // Through a debounce, and not again "false" after it.
    scene.say("Idle");
    scene.look();
    scene.say("Busy");
    scene = scene.at(70);
    assert_quiet(&scene);
    scene.say("Idle");
    scene.look();
    let mut scene = scene.at(85);
    scene.look();
    assert_eq!(scene.mark(&key(SAFE_TO_EVICT)), Some("true"));
}

#[test]
fn what_is_unknown_is_told_as_the_rule_says() {
    let unknown = |on_unknown| {
        Scene::of("Busy").with(|scene| {
            scene.owner = None;
            scene.rule.on_unknown = on_unknown;
        })
    };
    let mut stays = unknown(OnUnknown::Busy);
    stays.settle();
    assert_eq!(stays.marks(), busy("2026-11-30T14:00:00Z"));
    let mut goes = unknown(OnUnknown::Idle);
    goes.settle();
    assert_eq!(goes.marks(), FREE);
}

#[test]
fn the_state_is_looked_at_again_when_it_changes_by_itself() {
    let scene = Scene::settled("Idle").with(|scene| scene.rule.startup_grace = SignedDuration::from_secs(3700));
    assert_eq!(wakes_in(&scene, &scene.plan()), Some(100));
    assert_quiet(&scene);
    let young = Scene::of("Idle").with(|scene| (scene.owner, scene.pod.created) = (None, after(-10)));
    assert_eq!(wakes_in(&young, &young.plan()), Some(20));
}
