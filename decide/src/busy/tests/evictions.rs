//! The answers to evictions of pods that a rule governs.

mod bounds;

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;

use crate::busy::eviction::{Decision, Facts, Memory, Passed, Read, Step, decide};
use crate::busy::hints::BUSY_SINCE;
use crate::busy::testing::{Scene, hold, moment, rule_of};
use crate::busy::{OnBusy, OnIdle, OnUnknown, State};
use crate::hold::{Allowed, Answer, Held, HoldReason, Moment, Outcome, Phase, Request, Rules, dry_run};
use crate::ownership::Key;
use crate::testing::after;
use crate::view::PodPhase;

/// A request, and everything that the replica knows when it comes.
#[derive(Clone)]
struct Case {
    scene: Scene,
    read: Read<'static>,
    uid: Option<&'static str>,
    evictor: &'static str,
    memory: Option<Memory>,
    /// Seconds since the process started.
    uptime: u64,
}

const FAILED: Read<'static> = Read::Failed("the API server does not answer");

impl Case {
    fn of(scene: Scene) -> Self {
        Self { scene, read: Read::Cached, uid: None, evictor: "drainer", memory: None, uptime: 10_000 }
    }

    fn live(scene: Scene) -> Self {
        Self { read: Read::Live, ..Self::of(scene) }
    }

    fn with(mut self, bend: impl FnOnce(&mut Self)) -> Self {
        bend(&mut self);
        self
    }

    fn now(&self) -> Moment {
        Moment { wall: self.scene.now, uptime: Duration::from_secs(self.uptime) }
    }

    /// Later, by both clocks.
    fn after(self, seconds: i64) -> Self {
        self.with(|case| {
            case.scene.now += SignedDuration::from_secs(seconds);
            case.uptime = case.uptime.checked_add_signed(seconds).expect("uptime only grows");
        })
    }

    fn step(&self) -> Step {
        let rule = self.scene.compiled();
        let of = |reason| self.scene.holds.iter().find(|hold| hold.spec.reason == reason);
        let facts = Facts {
            rule: &rule,
            seen: self.scene.seen(),
            busy: of(HoldReason::Busy),
            retire: of(HoldReason::Retire),
            read: self.read,
        };
        let request = Request { namespace: "ci", name: "w", uid: self.uid, dry_run: false, evictor: self.evictor };
        let rules =
            Rules { excluded_namespaces: Vec::new(), ignore_evictors: vec!["vpa*".into()], ignore_restarters: true };
        let step = decide(&request, &rules, &facts, self.memory.as_ref(), self.now());
        assert_eq!(decide(&request, &rules, &facts, self.memory.as_ref(), self.now()), step, "the same twice");
        step
    }

    /// Asks, and keeps what is to be kept; a hold is recorded where `recorded`.
    #[track_caller]
    fn ask(&mut self, recorded: bool) -> String {
        let step = self.step();
        if let Step::Decided(decision) = &step {
            self.memory = decision.memory.or(self.memory);
            if let Some(spec) = decision.record.clone().filter(|_| recorded) {
                let mut new = hold(spec.reason, spec.requested_at);
                new.spec = spec;
                self.scene.holds.push(new);
            }
        }
        in_words(&step)
    }

    #[track_caller]
    fn decision(&self) -> Decision {
        match self.step() {
            Step::Decided(decision) => *decision,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn held(&self) -> Held {
        self.decision().answer.held().cloned().expect("it is held")
    }
}

fn in_words(step: &Step) -> String {
    match step {
        Step::Pass(Passed::Idle) => "pass".into(),
        Step::Pass(Passed::NotBegun) => "pass not begun".into(),
        Step::Pass(Passed::NotHeld) => "pass unheld".into(),
        Step::ReadLive => "read".into(),
        Step::Decided(decision) => match &decision.answer {
            Answer::Allow(allowed) => format!("allow {}", allowed.reason()),
            Answer::Hold(held) => format!("hold {}", held.reason),
        },
    }
}

fn retiring(phase: &str) -> Scene {
    Scene::settled(phase).with(|scene| scene.rule.on_idle = OnIdle::DeleteOwner)
}

#[test]
fn each_state_is_answered_as_the_rule_says() {
    let table: [(&str, PodPhase, [&str; 4], [&str; 4]); 10] = [
        // State and phase; from the cache and from a live look, with Hold and with Allow of busy pods.
        // First with Allow of idle pods, then with DeleteOwner.
        ("Done", PodPhase::Running, ["pass"; 4], ["pass"; 4]),
        ("Done", PodPhase::Pending, ["pass"; 4], ["pass"; 4]),
        (
            "Busy",
            PodPhase::Running,
            ["hold PodBusy", "hold PodBusy", "pass unheld", "pass unheld"],
            ["hold PodBusy", "hold PodBusy", "pass unheld", "pass unheld"],
        ),
        // Its job may have begun though the kubelet has not said so yet.
        (
            "Busy",
            PodPhase::Pending,
            ["hold PodBusy", "hold PodBusy", "pass unheld", "pass unheld"],
            ["hold PodBusy", "hold PodBusy", "pass unheld", "pass unheld"],
        ),
        (
            "Busy",
            PodPhase::Unknown,
            ["hold PodBusy", "hold PodBusy", "pass unheld", "pass unheld"],
            ["hold PodBusy", "hold PodBusy", "pass unheld", "pass unheld"],
        ),
        (
            "Starting",
            PodPhase::Running,
            ["hold PodStarting", "hold PodStarting", "pass unheld", "pass unheld"],
            ["hold PodStarting", "hold PodStarting", "pass unheld", "pass unheld"],
        ),
        // Nothing has begun that could be lost.
        (
            "Starting",
            PodPhase::Pending,
            ["pass not begun", "pass not begun", "pass unheld", "pass unheld"],
            ["pass not begun", "pass not begun", "pass unheld", "pass unheld"],
        ),
        (
            "Idle",
            PodPhase::Running,
            ["read", "pass", "read", "pass"],
            ["read", "hold OwnerRetiring", "read", "hold OwnerRetiring"],
        ),
        (
            "Idle",
            PodPhase::Pending,
            ["read", "pass", "read", "pass"],
            ["read", "hold OwnerRetiring", "read", "hold OwnerRetiring"],
        ),
        (
            "anything else",
            PodPhase::Running,
            ["read", "pass", "read", "pass"],
            ["read", "hold OwnerRetiring", "read", "hold OwnerRetiring"],
        ),
    ];
    for (state, phase, allow, delete) in table {
        for (on_idle, expected) in [(OnIdle::Allow, allow), (OnIdle::DeleteOwner, delete)] {
            let ways = [
                (OnBusy::Hold, Read::Cached),
                (OnBusy::Hold, Read::Live),
                (OnBusy::Allow, Read::Cached),
                (OnBusy::Allow, Read::Live),
            ];
            for ((on_busy, read), expected) in ways.into_iter().zip(expected) {
                let scene = Scene::settled(state).with(|scene| {
                    scene.pod.phase = phase;
                    (scene.rule.on_busy, scene.rule.on_idle) = (on_busy, on_idle);
                });
                let step = Case { read, ..Case::of(scene) }.step();
                assert_eq!(in_words(&step), expected, "{state} {phase:?} {on_busy:?} {on_idle:?} {read:?}");
            }
        }
    }
}

#[test]
fn what_cannot_be_known_is_answered_as_the_rule_says() {
    let missing = |scene: &mut Scene| scene.owner = None;
    let broken = |scene: &mut Scene| scene.owner.as_mut().unwrap().object = json!({});
    let young = |scene: &mut Scene| (scene.owner, scene.pod.created) = (None, after(-10));
    for (name, bend, read, busy, idle) in [
        ("no owner", missing as fn(&mut Scene), Read::Cached, "hold PodStateUnknown", "read"),
        ("no owner, looked at live", missing, Read::Live, "hold PodStateUnknown", "pass"),
        ("no status", broken, Read::Cached, "hold PodStateUnknown", "read"),
        ("no status, looked at live", broken, Read::Live, "hold PodStateUnknown", "pass"),
        ("too young to be known", young, Read::Cached, "hold PodStarting", "hold PodStarting"),
        // The look itself failed.
        ("idle by the cache", |_| (), FAILED, "hold PodStateUnknown", "pass"),
        ("no owner in the cache", missing, FAILED, "hold PodStateUnknown", "pass"),
    ] {
        for (on_unknown, expected) in [(OnUnknown::Busy, busy), (OnUnknown::Idle, idle)] {
            let scene = Scene::settled("Idle").with(bend).with(|scene| scene.rule.on_unknown = on_unknown);
            let step = Case { read, ..Case::of(scene) }.step();
            assert_eq!(in_words(&step), expected, "{name}, {on_unknown:?}");
        }
    }
    // What may be held by nobody is not held for not being known.
    let unheld = Scene::settled("Idle").with(|scene| scene.rule.on_busy = OnBusy::Allow);
    assert_eq!(in_words(&Case { read: FAILED, ..Case::of(unheld) }.step()), "pass unheld");
    // What the cache knows of an owner is enough to retire it.
    let retired = retiring("Idle").with(|scene| scene.rule.on_unknown = OnUnknown::Idle);
    assert_eq!(in_words(&Case { read: FAILED, ..Case::of(retired) }.step()), "hold OwnerRetiring");
}

#[test]
fn lets_through_without_a_trace_what_needs_no_protection() {
    let busy = || Case::of(Scene::busy_for(60));
    for (name, case, reason) in [
        ("the client meant another pod of that name", busy().with(|case| case.uid = Some("pod-0")), "UidMismatch"),
        ("it is being deleted", busy().with(|case| case.scene.pod.terminating = true), "Terminating"),
        ("it ended well", busy().with(|case| case.scene.pod.phase = PodPhase::Succeeded), "Finished"),
        ("it ended badly", busy().with(|case| case.scene.pod.phase = PodPhase::Failed), "Finished"),
        ("it is bound to no node", busy().with(|case| case.scene.pod.node = None), "Pending"),
        ("who asks is ignored", busy().with(|case| case.evictor = "vpa-updater"), "IgnoredEvictor"),
    ] {
        let decision = case.decision();
        assert_eq!(decision.answer.reason(), reason, "{name}");
        assert_eq!((decision.memory, decision.record), (None, None), "{name}");
        assert!(decision.answer.held().is_none(), "{name}");
    }
    assert_eq!(in_words(&busy().with(|case| case.uid = Some("pod-1")).step()), "hold PodBusy");
    let restarter = busy().with(|case| case.evictor = "system:serviceaccount:kube-system:vpa-updater");
    assert_eq!(in_words(&restarter.step()), "hold PodBusy", "a job is lost whoever ends it");
}

#[test]
fn a_drainer_reads_what_is_awaited_and_until_when() {
    let starting = Scene::settled("Idle").with(|scene| {
        scene.rule.startup_grace = SignedDuration::from_secs(7200);
    });
    let young = Scene::settled("Idle").with(|scene| (scene.owner, scene.pod.created) = (None, after(-10)));
    for (case, expected) in [
        (
            Case::of(Scene::busy_for(60)),
            "belay: holding w: it is busy (rule worker, states[1]); released by 19:59:00Z at the latest",
        ),
        (
            Case::of(Scene::settled("Starting")),
            "belay: holding w: it is starting (rule worker, states[2]); released by 20:00:00Z at the latest",
        ),
        (
            Case::of(starting),
            "belay: holding w: it is starting (rule worker, startupGrace); released by 20:00:00Z at the latest",
        ),
        (
            Case::of(young),
            "belay: holding w: it is new and its owner is not seen yet (rule worker); released by 20:00:00Z at the \
             latest",
        ),
        (
            Case::of(Scene::settled("Busy").with(|scene| scene.owner = None)),
            "belay: holding w: its owner is missing, so it counts as busy (rule worker, onUnknown); released by \
             20:00:00Z at the latest",
        ),
        (
            Case::of(Scene::settled("Busy").with(|scene| scene.owner.as_mut().unwrap().object = json!({}))),
            "belay: holding w: whether it is busy is unknown, so it counts as busy (rule worker, states[0]: there is no \
             status); released by 20:00:00Z at the latest",
        ),
        (
            Case { read: FAILED, ..Case::of(Scene::settled("Idle")) },
            "belay: holding w: whether it is busy cannot be read (the API server does not answer), so it counts as \
             busy; released by 20:00:00Z at the latest",
        ),
        (
            Case::live(retiring("Idle")),
            "belay: holding w: its owner w is to retire it; released by 20:00:00Z at the latest",
        ),
        (
            Case::of(Scene::busy_for(60)).with(|case| case.evictor = "system:serviceaccount:x:cluster-autoscaler"),
            "belay: holding w: it is busy (rule worker, states[1]); released by 19:59:00Z at the latest; note: ",
        ),
    ] {
        let held = case.held();
        assert!(held.message.starts_with(expected), "{}", held.message);
        assert!(held.message == expected || expected.ends_with("note: "), "{}", held.message);
        assert_eq!(held.retry_after_seconds, None, "a job's end is never near");
    }
}

#[test]
fn a_first_hold_is_remembered_and_recorded() {
    for (case, reason, deadline) in [
        (Case::of(Scene::busy_for(60)), HoldReason::Busy, 6 * 3600 - 60),
        (Case::of(Scene::settled("Busy")), HoldReason::Busy, 6 * 3600),
        (Case::of(Scene::settled("Starting")), HoldReason::Busy, 6 * 3600),
        (Case::live(retiring("Idle")), HoldReason::Retire, 6 * 3600),
    ] {
        let decision = case.decision();
        let mut expected = hold(reason, after(0)).spec;
        expected.deadline = after(deadline);
        assert_eq!(decision.record, Some(expected), "{reason:?}");
        let memory = decision.memory.expect("it is remembered");
        assert_eq!((memory.first, memory.released), (moment(0, 10_000), false));
    }
    // A pod that tells for itself is of its controller, or of nobody.
    let alone = Scene::of("").with(|scene| {
        (scene.rule, scene.owner) = (rule_of(&[(State::Busy, "true")]), None);
    });
    let controlled = Case::of(alone.clone()).decision().record.expect("a record").workload;
    assert_eq!(controlled, hold(HoldReason::Busy, after(0)).spec.workload);
    let bare = Case::of(alone.with(|scene| scene.pod.controller = None)).decision().record.expect("a record").workload;
    assert_eq!((&*bare.kind, &*bare.name), ("", ""));
    // What is recorded is not recorded again.
    let again = Case::of(Scene::busy_for(60).holding(HoldReason::Busy, 0)).decision();
    assert!(again.answer.held().is_some() && again.record.is_none());
}

#[test]
fn a_record_of_another_pod_or_for_another_reason_is_none() {
    let foreign = Case::of(Scene::busy_for(60).holding(HoldReason::Busy, 0).with(|scene| {
        scene.holds[0].spec.victim_uid = "pod-0".into();
        scene.holds[0].status.phase = Phase::Released;
    }));
    assert!(foreign.decision().record.is_some() && foreign.decision().answer.held().is_some());
}

/// Each reason has its hold, its record and its time.
#[test]
fn a_pod_that_was_held_for_long_is_retired_all_the_same() {
    for before in ["Busy", "Starting"] {
        let mut case = Case::of(retiring(before));
        assert_eq!(case.ask(true), format!("hold Pod{before}"));
        // Its job ended, or never came.
        let mut case = case.after(600).with(|case| {
            case.scene.say("Idle");
            case.read = Read::Live;
        });
        assert_eq!(case.ask(false), "hold OwnerRetiring", "{before}");
        let spec = case.decision().record.expect("it is to be recorded");
        assert_eq!((spec.reason, spec.requested_at), (HoldReason::Retire, after(600)), "{before}");
        let mut case = case.after(10);
        assert_eq!(case.ask(true), "hold OwnerRetiring", "{before}");
        // The controller has deleted the owner, which takes its time.
        let mut case = case.after(1000).with(|case| {
            for hold in case.scene.holds.iter_mut().filter(|hold| hold.spec.reason == HoldReason::Retire) {
                hold.status.phase = Phase::Active;
            }
        });
        assert_eq!(case.ask(true), "hold OwnerRetiring", "{before}");
    }
    // Released for having been busy for too long, it is still for its owner to retire once it is idle.
    let mut case = Case::of(Scene::busy_for(6 * 3600)).with(|case| case.scene.rule.on_idle = OnIdle::DeleteOwner);
    assert_eq!(case.ask(true), "allow DeadlinePassed");
    case.scene.say("Idle");
    case.read = Read::Live;
    assert_eq!(case.ask(true), "hold OwnerRetiring");
}

/// No controller leads, it may not delete, or the owner is not the pod's alone.
#[test]
fn an_idle_pod_whose_owner_nobody_retires_is_let_go_after_a_minute() {
    let mut case = Case::live(retiring("Idle"));
    assert_eq!(case.ask(true), "hold OwnerRetiring");
    let mut case = case.after(59);
    assert_eq!(case.ask(true), "hold OwnerRetiring");
    let mut case = case.after(1);
    assert_eq!(case.ask(true), "pass");
    // It is looked at live like any idle pod, and held like any busy one.
    case.read = Read::Cached;
    assert_eq!(case.ask(true), "read");
    case.scene.say("Busy");
    assert_eq!(case.ask(true), "hold PodBusy");
}

#[test]
fn an_owner_that_is_on_its_way_out_has_the_last_word() {
    let going = |state: &str, on_idle| {
        Scene::settled(state).with(|scene| {
            scene.rule.on_idle = on_idle;
            scene.owner.as_mut().unwrap().terminating = true;
        })
    };
    for (state, read, delete, allow) in [
        ("Idle", Read::Cached, "hold OwnerRetiring", "read"),
        ("Idle", Read::Live, "hold OwnerRetiring", "pass"),
        ("Busy", Read::Cached, "hold OwnerRetiring", "hold PodBusy"),
        ("Starting", Read::Cached, "hold OwnerRetiring", "hold PodStarting"),
        ("Done", Read::Cached, "pass", "pass"),
    ] {
        for (on_idle, expected) in [(OnIdle::DeleteOwner, delete), (OnIdle::Allow, allow)] {
            let case = Case { read, ..Case::of(going(state, on_idle)) };
            assert_eq!(in_words(&case.step()), expected, "{state} {on_idle:?} {read:?}");
        }
    }
    // It was told to go, and the deletion has not shown yet.
    for state in ["Idle", "Busy"] {
        let mut case = Case::of(retiring(state).holding(HoldReason::Retire, 10));
        assert_eq!(case.ask(true), "hold OwnerRetiring", "{state}");
        case.scene.holds[0].status.phase = Phase::Released;
        assert_eq!(case.ask(true), "allow Released", "{state}");
    }
}

#[test]
fn a_dry_run_is_told_what_would_come() {
    let held = Case::of(Scene::busy_for(60)).decision().answer;
    let answer = dry_run(&held);
    let Answer::Allow(allowed) = &answer else { panic!("{answer:?}") };
    assert_eq!(
        allowed.warning().as_deref(),
        Some("belay: dry run: the eviction of w would be held: it is busy (rule worker, states[1])")
    );
}
