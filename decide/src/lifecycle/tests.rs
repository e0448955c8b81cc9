//! One Eviction of the pod `web-7d9f-x`, which Belay is to respond to, at every stage.

mod entries;

use jiff::{SignedDuration, Timestamp};

use super::respond::{Asked, Input, Plan};
use super::{EvictionView, Reported, State, has_begun, respond, withdrawn};
use crate::action::{Action, ObjectRef};
use crate::handover::surge::SurgeRecord;
use crate::hold::{Allowed, Answer, Held, HoldReason, HoldSpec, HoldTrigger, HoldView, Outcome, Phase};
use crate::policy::Unsupported;
use crate::testing::{OLD, START, Scene, VICTIM, after, hold};

/// The Eviction, of which it has been Belay's turn since [`START`].
fn active() -> EvictionView {
    EvictionView {
        object: ObjectRef {
            namespace: "shop".into(),
            name: "ev".into(),
            uid: "ev-uid".into(),
            resource_version: "5".into(),
        },
        pod: VICTIM.into(),
        pod_uid: format!("{VICTIM}-uid"),
        requesters: "acme.io/upgrade".into(),
        state: Some(State::Active),
        reported: Reported { started: Some(START), ..Reported::default() },
        failed: false,
        evicted: false,
    }
}

/// The same, after this was reported at `seconds`.
fn reported(seconds: i64, message: &str) -> EvictionView {
    let mut eviction = active();
    eviction.reported.heartbeat = Some(after(seconds));
    eviction.reported.expected = Some(after(600));
    eviction.reported.message = message.into();
    eviction
}

/// Its hold, taken up.
fn taken_up(message: &str) -> HoldView {
    let mut hold = hold(VICTIM, OLD);
    hold.spec.trigger = HoldTrigger::EvictionRequest;
    hold.status.phase = Phase::Active;
    hold.status.message = message.into();
    hold
}

fn released(outcome: Outcome) -> HoldView {
    let hold = taken_up("");
    HoldView { status: hold.status.released(outcome, "replacement web-58c6-y is available".into(), after(30)), ..hold }
}

fn held() -> Asked {
    let answer = Answer::Hold(Held {
        victim: VICTIM.into(),
        reason: "AwaitingRestart",
        awaited: "Deployment web is about to be restarted to replace it".into(),
        message: String::new(),
        deadline: after(600),
        retry_after_seconds: None,
    });
    Asked { answer, record: Some(hold(VICTIM, OLD).spec) }
}

fn look(eviction: &EvictionView, holds: &[&HoldView], asked: Option<&Asked>, now: Timestamp) -> Plan {
    respond(&Input { eviction, holds, begun: false, asked, now })
}

/// A plan in words, one line an action.
fn words(plan: &Plan) -> Vec<Vec<String>> {
    crate::testing::in_words(&crate::handover::Plan { sequences: plan.sequences.clone(), ..Default::default() })
}

/// What the only sequence of a plan reports.
fn report(plan: &Plan) -> &super::Report {
    match plan.sequences.as_slice() {
        [sequence] => match sequence.last() {
            Some(Action::Respond { eviction, report }) => {
                assert_eq!((&*eviction.uid, &*eviction.resource_version), ("ev-uid", "5"));
                report
            }
            other => panic!("no report: {other:?}"),
        },
        other => panic!("not one sequence: {other:?}"),
    }
}

#[test]
fn a_turn_begins_with_the_hold_that_the_webhook_would_have_made_and_a_first_report() {
    assert!(look(&active(), &[], None, after(1)).ask, "the pod has to be looked at first");
    let plan = look(&active(), &[], Some(&held()), after(1));
    assert_eq!(words(&plan), [[format!("{VICTIM}: hold, EvictionRequest")]]);
    assert_eq!(plan.wake_at, Some(after(31)), "it is told of when it is seen");
    let Action::CreateHold { namespace, spec } = &plan.sequences[0][0] else { panic!("{plan:?}") };
    let as_recorded = HoldSpec { trigger: HoldTrigger::EvictionRequest, ..hold(VICTIM, OLD).spec };
    assert_eq!((&**namespace, spec), ("shop", &as_recorded));
    let made = HoldView { status: crate::hold::HoldStatus::default(), ..taken_up("") };
    let plan = look(&active(), &[&made], None, after(1));
    let report = report(&plan);
    assert_eq!(report.message, "the hold is recorded and will be taken up in a moment");
    assert_eq!((report.heartbeat, report.expected, report.completed), (Some(after(1)), Some(after(600)), None));
    assert_eq!(plan.wake_at, Some(after(121)));
}

#[test]
fn a_hold_that_cannot_be_made_ends_the_turn_thirty_seconds_after_what_was_last_told() {
    let retaken =
        HoldView { spec: HoldSpec { reason: HoldReason::Busy, ..taken_up("").spec }, ..released(Outcome::Expired) };
    let table = [
        ("since the turn came", active(), None, 29, false),
        ("since the turn came", active(), None, 30, true),
        ("since the last report", reported(100, "starting"), None, 129, false),
        ("since the last report", reported(100, "starting"), None, 130, true),
        ("since the hold before it ended", active(), Some(&retaken), 59, false),
        ("since the hold before it ended", active(), Some(&retaken), 60, true),
    ];
    for (name, eviction, hold, now, ends) in table {
        let holds: Vec<&HoldView> = hold.into_iter().collect();
        let plan = look(&eviction, &holds, Some(&held()), after(now));
        assert_eq!(words(&plan), [[format!("{VICTIM}: hold, EvictionRequest")]], "{name}: it is tried first");
        let completed = match plan.otherwise.as_slice() {
            [Action::Respond { report, .. }] => report.completed,
            _ => None,
        };
        assert_eq!(completed, ends.then(|| after(now)), "{name} at {now}");
    }
}

#[test]
fn progress_is_what_the_hold_says_told_at_once_but_never_within_twenty_seconds() {
    let hold = taken_up("replacement web-58c6-y is starting");
    let table = [
        ("nothing was told yet", active(), 3, Some(3), 123),
        ("news, too soon", reported(3, "restarting"), 22, None, 23),
        ("news, in time", reported(3, "restarting"), 23, Some(23), 143),
        ("the same, too soon", reported(3, "replacement web-58c6-y is starting"), 122, None, 123),
        ("the same, in time", reported(3, "replacement web-58c6-y is starting"), 123, Some(123), 243),
    ];
    for (name, eviction, now, heartbeat, wake) in table {
        let plan = look(&eviction, &[&hold], None, after(now));
        assert!(!plan.ask, "{name}");
        assert_eq!(plan.wake_at, Some(after(wake)), "{name}");
        match heartbeat {
            Some(at) => {
                let report = report(&plan);
                assert_eq!((report.heartbeat, report.completed), (Some(after(at)), None), "{name}");
                assert_eq!(report.message, "replacement web-58c6-y is starting", "{name}");
            }
            None => assert_eq!(plan.sequences, Vec::<Vec<_>>::new(), "{name}"),
        }
    }
}

#[test]
fn a_hold_that_nobody_has_taken_up_is_no_news() {
    let mut pending = taken_up("");
    pending.status.phase = Phase::Pending;
    let plan = look(&reported(1, "Deployment web is about to be restarted"), &[&pending], None, after(60));
    assert_eq!((plan.sequences.len(), plan.wake_at), (0, Some(after(121))));
}

#[test]
fn completion_is_told_at_once_when_the_hold_is_released_and_says_how_it_ended() {
    let asked = Asked { answer: Answer::Allow(Allowed::Released), record: None };
    for outcome in [Outcome::HandedOver, Outcome::Expired, Outcome::NotNeeded, Outcome::JobEnded] {
        let hold = released(outcome);
        let eviction = reported(29, "replacement web-58c6-y is starting");
        assert!(look(&eviction, &[&hold], None, after(30)).ask, "another hold may be due after it");
        let plan = look(&eviction, &[&hold], Some(&asked), after(30));
        let report = report(&plan);
        assert_eq!((report.completed, report.heartbeat, report.expected), (Some(after(30)), None, None));
        assert_eq!(report.message, format!("{}: replacement web-58c6-y is available", outcome.as_str()));
    }
}

#[test]
fn what_is_not_held_is_completed_with_the_reason() {
    let table = [
        (Allowed::NotProtected, "NotProtected: nothing holds the pod"),
        (Allowed::IgnoredEvictor, "IgnoredEvictor: nothing holds the pod"),
        (
            Allowed::Unsupported(Unsupported::Paused),
            "Paused: not protected (Paused): the Deployment is paused and cannot roll out a replacement; `kubectl \
             rollout resume` protects it again",
        ),
    ];
    for (reason, message) in table {
        let plan = look(&active(), &[], Some(&Asked { answer: Answer::Allow(reason), record: None }), after(1));
        assert_eq!((report(&plan).completed, &*report(&plan).message), (Some(after(1)), message));
    }
}

#[test]
fn a_pod_that_is_not_seen_yet_is_waited_for_a_moment() {
    for reason in [Allowed::UnknownPod, Allowed::NotSynced] {
        let asked = Asked { answer: Answer::Allow(reason), record: None };
        let plan = look(&active(), &[], Some(&asked), after(9));
        assert_eq!((plan.sequences.len(), plan.wake_at), (0, Some(after(10))));
        assert!(report(&look(&active(), &[], Some(&asked), after(10))).completed.is_some());
    }
}

#[test]
fn nothing_is_reported_but_in_ones_own_turn() {
    let hold = taken_up("replacement web-58c6-y is starting");
    let bent = |bend: fn(&mut EvictionView)| {
        let mut eviction = active();
        bend(&mut eviction);
        eviction
    };
    let table = [
        ("no responder of it", bent(|eviction| eviction.state = None)),
        ("not yet", bent(|eviction| eviction.state = Some(State::Inactive))),
        ("too late", bent(|eviction| eviction.state = Some(State::Interrupted))),
        ("cancelled", bent(|eviction| eviction.state = Some(State::Canceled))),
        ("over", bent(|eviction| eviction.state = Some(State::Completed))),
        ("said", bent(|eviction| eviction.reported.completed = Some(START))),
        ("failed", bent(|eviction| eviction.failed = true)),
        ("evicted", bent(|eviction| eviction.evicted = true)),
    ];
    for (name, eviction) in table {
        assert_eq!(look(&eviction, &[&hold], None, after(900)), Plan::default(), "{name}");
        assert_eq!(look(&eviction, &[], None, after(900)), Plan::default(), "{name}");
    }
}

#[test]
fn times_are_whole_seconds_and_never_before_what_was_reported() {
    let behind = after(-5) + SignedDuration::from_millis(700);
    let mut eviction = active();
    let hold = taken_up("starting");
    let plan = look(&eviction, &[&hold], None, behind);
    assert_eq!(report(&plan).heartbeat, Some(START), "the evictionrequest-controller's clock is ahead");
    eviction.reported.heartbeat = Some(after(3));
    let asked = Asked { answer: Answer::Allow(Allowed::NotProtected), record: None };
    let plan = look(&eviction, &[], Some(&asked), after(2) + SignedDuration::from_millis(700));
    assert_eq!(report(&plan).completed, Some(after(3)));
    let mut late = hold;
    late.spec.deadline = after(10) + SignedDuration::from_millis(300);
    let plan = look(&active(), &[&late], None, after(1) + SignedDuration::from_millis(900));
    assert_eq!((report(&plan).heartbeat, report(&plan).expected), (Some(after(1)), Some(after(10))));
    let plan = look(&active(), &[&late], None, after(11));
    assert_eq!(report(&plan).expected, None, "the API server takes no expectation of the past");
}

#[test]
fn a_message_is_no_longer_than_the_api_server_takes() {
    let hold = taken_up(&"ä".repeat(5000));
    let plan = look(&active(), &[&hold], None, after(1));
    assert_eq!(report(&plan).message.chars().count(), 4000);
    let plan = look(&reported(1, &report(&plan).message.clone()), &[&hold], None, after(30));
    assert_eq!(plan.sequences.len(), 0, "what was cut is no news");
}

#[test]
fn a_busy_pod_is_asked_about_each_time_since_its_hold_waits_for_that() {
    let mut busy = taken_up("it may go; the drainer has to ask again");
    busy.spec.reason = HoldReason::Busy;
    assert!(look(&active(), &[&busy], None, after(1)).ask);
    let mut still = held();
    still.record = None;
    let plan = look(&active(), &[&busy], Some(&still), after(1));
    assert_eq!(report(&plan).message, "Deployment web is about to be restarted to replace it");
    let idle = Asked { answer: Answer::Allow(Allowed::Idle), record: None };
    let plan = look(&reported(1, "Runner w is busy"), &[&busy], Some(&idle), after(2));
    assert_eq!((report(&plan).completed, &*report(&plan).message), (Some(after(2)), "Idle: nothing holds the pod"));
    let handover = taken_up("replacement web-58c6-y is starting");
    for holds in [[&busy, &handover], [&handover, &busy]] {
        let plan = look(&active(), &holds, None, after(1));
        assert_eq!(report(&plan).message, "replacement web-58c6-y is starting");
    }
    let mut other = handover.clone();
    other.spec.victim_uid = "another".into();
    assert!(look(&active(), &[&other], None, after(1)).ask, "the hold of another pod of that name");
}

#[test]
fn a_handover_is_kept_asked_for_as_long_as_its_eviction_stands() {
    let look = |eviction: &EvictionView, hold: &HoldView, begun: bool, seconds: i64| {
        let plan = respond(&Input { eviction, holds: &[hold], begun, asked: None, now: after(seconds) });
        words(&plan).into_iter().flatten().filter(|word| word.ends_with("asked for")).count()
    };
    let mut noted = taken_up("starting");
    noted.status.last_requested_at = Some(after(100));
    let mut turned_to_others = active();
    turned_to_others.state = Some(State::Completed);
    let mut cancelled = active();
    cancelled.state = Some(State::Canceled);
    let mut evicted = active();
    evicted.evicted = true;
    let mut completed = released(Outcome::HandedOver);
    completed.status.phase = Phase::Completed;
    let table = [
        ("just asked", active(), taken_up("starting"), true, 119, 0),
        ("asked a while ago", active(), taken_up("starting"), true, 120, 1),
        ("noted", active(), noted.clone(), true, 219, 0),
        ("noted a while ago", active(), noted, true, 220, 1),
        ("nothing was done yet", active(), taken_up("starting"), false, 500, 0),
        ("released, and still there", turned_to_others, released(Outcome::HandedOver), true, 500, 1),
        ("cancelled", cancelled, taken_up("starting"), true, 500, 0),
        ("evicted", evicted, released(Outcome::HandedOver), true, 500, 0),
        ("gone", active(), completed, true, 500, 0),
    ];
    for (name, eviction, hold, begun, seconds, expected) in table {
        assert_eq!(look(&eviction, &hold, begun, seconds), expected, "{name}");
    }
}

#[test]
fn what_nobody_wants_any_more_is_forgotten_before_anything_was_done() {
    let cancelled = EvictionView { state: Some(State::Canceled), ..active() };
    let failed = EvictionView { failed: true, ..active() };
    let passed_over = EvictionView { state: Some(State::Interrupted), ..active() };
    let of_another = EvictionView { pod_uid: "another".into(), ..active() };
    let ours = taken_up("a rollout is under way");
    let bent = |bend: fn(&mut HoldView)| {
        let mut hold = ours.clone();
        bend(&mut hold);
        hold
    };
    let table: [(&str, Option<&EvictionView>, HoldView, bool, bool); 10] = [
        ("cancelled", Some(&cancelled), ours.clone(), false, true),
        ("failed", Some(&failed), ours.clone(), false, true),
        ("gone", None, ours.clone(), false, true),
        ("of another pod", Some(&of_another), ours.clone(), false, true),
        ("wanted", Some(&active()), ours.clone(), false, false),
        ("left to others, who ask the webhook", Some(&passed_over), ours.clone(), false, false),
        ("begun", Some(&cancelled), ours.clone(), true, false),
        ("released", Some(&cancelled), released(Outcome::HandedOver), false, false),
        (
            "asked for by somebody else as well",
            Some(&cancelled),
            bent(|hold| hold.status.last_requested_at = Some(START)),
            false,
            false,
        ),
        ("begun by a drain", Some(&cancelled), bent(|hold| hold.spec.trigger = HoldTrigger::Eviction), false, false),
    ];
    for (name, eviction, hold, begun, expected) in table {
        let evictions: Vec<_> = eviction.into_iter().collect();
        let sequences = withdrawn(&evictions, &[&hold], |_| begun);
        let expected: Vec<Vec<String>> = if expected {
            vec![vec![format!("{}: delete", hold.name), "event: EvictionWithdrawn".into()]]
        } else {
            Vec::new()
        };
        assert_eq!(words(&Plan { sequences, ..Plan::default() }), expected, "{name}");
    }
}

#[test]
fn a_handover_has_begun_with_the_first_write_for_it() {
    let ours = taken_up("");
    let quiet = Scene::asked();
    assert!(!has_begun(&ours, Some(&quiet.workload())) && !has_begun(&ours, None));
    let about_to = HoldView { status: Scene::restarted().holds[0].status.clone(), ..ours.clone() };
    assert!(has_begun(&about_to, Some(&quiet.workload())), "the hold says so before the restart is written");
    assert!(has_begun(&ours, Some(&Scene::restarted().workload())), "the restart's record");
    let surging = |awaited: &str| {
        Scene::asked().with(|scene| {
            scene.deployment.surge = Some(SurgeRecord {
                workload: "web-uid".into(),
                original: Some(1),
                base: 1,
                floor: 1,
                surge: 1,
                since: START,
                renewed: false,
                awaited: vec![awaited.to_owned()],
                released: Vec::new(),
            });
        })
    };
    let victim = ours.spec.victim_uid.as_str();
    assert!(has_begun(&ours, Some(&surging(victim).workload())), "the surge's record");
    assert!(!has_begun(&ours, Some(&surging("another").workload())), "of another victim");
}
