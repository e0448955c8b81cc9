//! What a pod is taken for. (Each preset's states are tested beside the presets; here is what every rule has in common.)

use jiff::SignedDuration;
use serde_json::{Value as Json, json};

use crate::busy::testing::{Scene, preset_rule, rule_of};
use crate::busy::{Because, OnUnknown, RuleSpec, State, Verdict};
use crate::testing::after;
use crate::view::PodPhase;

fn span(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

/// State and reason, and in how many seconds that changes by itself.
fn told(scene: &Scene) -> (State, Because, Option<i64>) {
    let Verdict { state, because, changes_at } = scene.judge();
    (state, because, changes_at.map(|at| at.duration_since(scene.now).as_secs()))
}

#[test]
fn the_first_true_expression_counts_and_none_is_idle() {
    for (phase, expected) in [
        ("Done", (State::Done, Because::Expression(0), None)),
        ("Busy", (State::Busy, Because::Expression(1), None)),
        ("Starting", (State::Starting, Because::Expression(2), None)),
        ("Idle", (State::Idle, Because::NoneTrue, None)),
        ("anything", (State::Idle, Because::NoneTrue, None)),
    ] {
        assert_eq!(told(&Scene::of(phase)), expected, "{phase}");
    }
    let both = [(State::Busy, "true"), (State::Done, "true")];
    assert_eq!(told(&alone(&both)), (State::Busy, Because::Expression(0), None));
    assert_eq!(
        told(&alone(&[(State::Idle, "true"), (State::Busy, "true")])),
        (State::Idle, Because::Expression(0), None)
    );
    // What stands behind the first true one is not asked.
    assert_eq!(told(&alone(&[(State::Busy, "true"), (State::Done, "pod.absent")])).0, State::Busy);
}

/// A pod that tells for itself.
fn alone(states: &[(State, &str)]) -> Scene {
    Scene { rule: rule_of(states), owner: None, ..Scene::of("") }
}

#[test]
fn linked_pods_count_though_the_owner_knows_nothing() {
    let linked = |phase: &str| Scene::of(phase).with(|scene| scene.linked = vec![json!({})]);
    assert_eq!(told(&linked("Idle")).0, State::Busy);
    assert_eq!(told(&linked("Done")).0, State::Done, "what is asked first comes first");
}

#[test]
fn a_pod_that_has_ended_is_done_whatever_its_owner_says() {
    for phase in [PodPhase::Succeeded, PodPhase::Failed] {
        for owner in ["Busy", "Idle"] {
            let scene = Scene::of(owner).with(|scene| scene.pod.phase = phase);
            assert_eq!(told(&scene), (State::Done, Because::PodFinished, None), "{owner} {phase:?}");
        }
        let missing = Scene::of("Busy").with(|scene| (scene.pod.phase, scene.owner) = (phase, None));
        assert_eq!(told(&missing).0, State::Done);
    }
}

#[test]
fn what_cannot_be_known_is_as_the_rule_says() {
    let broken = |bend: fn(&mut Scene)| Scene::of("Busy").with(bend);
    let no_status = broken(|scene| scene.owner.as_mut().unwrap().object = json!({}));
    let missing = broken(|scene| scene.owner = None);
    for (on_unknown, state) in [(OnUnknown::Busy, State::Busy), (OnUnknown::Idle, State::Idle)] {
        for (scene, because) in [(&no_status, "states[0]: there is no status"), (&missing, "missing")] {
            let scene = scene.clone().with(|scene| scene.rule.on_unknown = on_unknown);
            let verdict = scene.judge();
            assert_eq!((verdict.state, verdict.because.is_unknown()), (state, true), "{on_unknown:?} {because}");
            let told = match verdict.because {
                Because::OwnerMissing => "missing".to_owned(),
                Because::Failed(index, error) => format!("states[{index}]: {error}"),
                other => panic!("{other:?}"),
            };
            assert_eq!(told, because);
        }
    }
    // An unknown pod is idle at once: its grace is for pods of which something is known.
    let idle = no_status.with(|scene| {
        (scene.rule.on_unknown, scene.rule.startup_grace) = (OnUnknown::Idle, span(7200));
    });
    assert_eq!(idle.judge().state, State::Idle);
}

#[test]
fn an_owner_that_is_not_seen_yet_is_waited_for_and_then_it_is_missing() {
    for (age, expected) in [
        (0, (State::Starting, Because::OwnerNotSeenYet, Some(30))),
        (29, (State::Starting, Because::OwnerNotSeenYet, Some(1))),
        (30, (State::Busy, Because::OwnerMissing, None)),
        (3600, (State::Busy, Because::OwnerMissing, None)),
        // A clock that is behind that of the API server.
        (-5, (State::Starting, Because::OwnerNotSeenYet, Some(35))),
    ] {
        let scene = Scene::of("Busy").with(|scene| {
            scene.owner = None;
            scene.pod.created = after(-age);
        });
        assert_eq!(told(&scene), expected, "{age} s old");
    }
}

#[test]
fn an_idle_pod_counts_as_starting_until_it_has_been_ready_for_the_grace() {
    let scene = |created: i64, ready: Option<i64>| {
        Scene::of("Idle").with(|scene| {
            scene.rule.startup_grace = span(90);
            scene.pod.created = after(-created);
            scene.pod.ready_since = ready.map(|ready| after(-ready));
        })
    };
    let starting = |seconds| (State::Starting, Because::StartupGrace, Some(seconds));
    for (created, ready, expected) in [
        (3600, Some(90), (State::Idle, Because::NoneTrue, None)),
        (3600, Some(89), starting(1)),
        (3600, Some(0), starting(90)),
        // One that never gets ready would be starting for ever.
        (89, None, starting(1)),
        (90, None, (State::Idle, Because::NoneTrue, None)),
        (3600, None, (State::Idle, Because::NoneTrue, None)),
    ] {
        assert_eq!(told(&scene(created, ready)), expected, "created {created} s ago, ready for {ready:?} s");
    }
    // It is for idle pods alone.
    for (phase, state) in [("Busy", State::Busy), ("Done", State::Done), ("Starting", State::Starting)] {
        let scene = scene(10, Some(0)).with(|scene| scene.say(phase));
        assert_eq!(scene.judge().state, state);
        assert_ne!(scene.judge().because, Because::StartupGrace);
    }
    // Also where the rule has an expression for it.
    let named = alone(&[(State::Idle, "true")]).with(|scene| {
        scene.rule.startup_grace = span(7200);
    });
    assert_eq!(told(&named), (State::Starting, Because::StartupGrace, Some(3600)));
}

#[test]
fn a_rule_that_reads_the_time_is_read_again() {
    let timed = |states: &[(State, &str)]| alone(states).judge().changes_at;
    assert_eq!(timed(&[(State::Busy, "now < timestamp('2026-11-30T15:00:00Z')")]), Some(after(30)));
    assert_eq!(
        timed(&[(State::Busy, "pod.absent"), (State::Done, "now == now")]),
        Some(after(30)),
        "also when it fails"
    );
    assert_eq!(timed(&[(State::Busy, "false"), (State::Done, "now != now")]), Some(after(30)));
    assert_eq!(timed(&[(State::Busy, "false")]), None);
    // Whatever comes first.
    let grace = alone(&[(State::Busy, "now != now")]).with(|scene| scene.rule.startup_grace = span(3610));
    assert_eq!(told(&grace), (State::Starting, Because::StartupGrace, Some(10)));
    let grace = grace.with(|scene| scene.rule.startup_grace = span(7200));
    assert_eq!(told(&grace), (State::Starting, Because::StartupGrace, Some(30)));
}

/// A runner whose pod was made again: the status still speaks of the job of the pod that went.
#[test]
fn a_job_that_was_written_before_the_pod_was_created_is_that_of_another_pod() {
    let rule = || RuleSpec {
        states: vec![(State::Busy, "has(owner.status.job) && owner.status.job != ''".into())],
        ..crate::busy::testing::worker_rule()
    };
    let scene = |created_millis: i64, written: Option<i64>| {
        Scene::of("").with(|scene| {
            scene.rule = rule();
            let owner = scene.owner.as_mut().unwrap();
            owner.object = json!({"status": {"job": "7", "phase": "Running"}});
            owner.written.extend(written.map(|at| ("status.job".into(), after(at))));
            scene.pod.created = after(0) + SignedDuration::from_millis(created_millis);
        })
    };
    for (name, created, written, state) in [
        ("written after", 0, Some(1), State::Busy),
        ("written in the same second", 0, Some(0), State::Busy),
        ("written in the second before", 0, Some(-1), State::Idle),
        ("written long before", 0, Some(-86_400), State::Idle),
        ("nobody knows when", 0, None, State::Busy),
        // In its own create a pod's age is told by a clock that knows more than seconds.
        ("in the create, the same second", 900, Some(0), State::Busy),
        ("in the create, the second before", 900, Some(-1), State::Idle),
    ] {
        assert_eq!(scene(created, written).judge().state, state, "{name}");
    }
}

#[test]
fn a_stale_job_takes_away_only_the_fields_that_speak_of_it() {
    let fields = ["status.a", "status.deep.b", "c", "status.absent.d"];
    let object = json!({"status": {"a": 1, "deep": {"b": 2, "kept": 3}, "kept": 4}, "c": 5, "kept": 6});
    let judged = |text: &str, stale: &[&str]| {
        let scene = Scene::of("").with(|scene| {
            scene.rule.states = vec![(State::Busy, text.into())];
            let rule = scene.rule.owner.as_mut().unwrap();
            rule.job_fields = fields.iter().map(|field| (*field).to_owned()).collect();
            let owner = scene.owner.as_mut().unwrap();
            owner.object = object.clone();
            owner.written = stale.iter().map(|field| ((*field).into(), after(-7200))).collect();
        });
        scene.judge().state
    };
    let whole = "owner == {'status': {'a': 1, 'deep': {'b': 2, 'kept': 3}, 'kept': 4}, 'c': 5, 'kept': 6}";
    let rest = "owner == {'status': {'deep': {'kept': 3}, 'kept': 4}, 'kept': 6}";
    assert_eq!(judged(whole, &[]), State::Busy);
    assert_eq!(judged(rest, &fields), State::Busy);
    assert_eq!(judged("!has(owner.status.a) && has(owner.c)", &["status.a"]), State::Busy);
}

/// Actions Runner Controller: old and new fields, and what its runners go through.
#[test]
fn a_runner_that_was_made_for_a_job_is_spared_until_the_job_shows() {
    let status = |fields: Json| {
        let mut status = json!({"phase": "Running", "ready": true});
        status.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"metadata": {"name": "r"}, "status": status})
    };
    let runner = |object: Json, ready: i64| {
        let scene = Scene::of("").with(|scene| {
            scene.rule = preset_rule("arc-runner");
            scene.pod.ready_since = Some(after(-ready));
            scene.owner.as_mut().unwrap().object = object;
        });
        scene.judge().state
    };
    let fresh = || json!({"metadata": {"name": "r"}});
    for (name, object, ready, state) in [
        ("just created", fresh(), 0, State::Starting),
        (
            "not ready though its pod is",
            json!({"metadata": {}, "status": {"phase": "Pending", "ready": false}}),
            600,
            State::Starting,
        ),
        ("ready for a moment", status(json!({})), 89, State::Starting),
        ("no job came", status(json!({})), 90, State::Idle),
        ("a job came at once, before 0.13", status(json!({"jobRequestId": 1, "workflowRunId": 2})), 5, State::Busy),
        (
            "a job came late, from 0.13 on",
            status(json!({"jobId": "a", "jobRequestId": 1, "workflowRunId": 2})),
            600,
            State::Busy,
        ),
        ("it is over", json!({"metadata": {}, "status": {"phase": "Succeeded", "jobId": "a"}}), 600, State::Done),
    ] {
        assert_eq!(runner(object, ready), state, "{name}");
    }
}
