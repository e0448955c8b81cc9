//! The controller's looks at the holds of one pod: taking them up, retiring owners, ending them.

use jiff::SignedDuration;

use crate::action::Action;
use crate::busy::reconcile::{Input, Plan, reconcile};
use crate::busy::testing::{Scene, hold, in_words};
use crate::busy::{OnBusy, OnIdle};
use crate::hold::{HoldReason, HoldStatus, HoldView, Outcome, Phase};
use crate::testing::after;
use crate::view::PodPhase;

const BUSY: &str = "w-pod1-busy";
const RETIRE: &str = "w-pod1-retire";
const NOTHING: [[&str; 0]; 0] = [];

/// A busy worker on whose hold the controller has not looked yet.
fn asked() -> Scene {
    Scene::busy_for(60).holding(HoldReason::Busy, 0)
}

/// The same, taken up.
fn held() -> Scene {
    asked().with(Scene::settle)
}

/// An idle worker whose owner is to be deleted.
fn retired() -> Scene {
    Scene::settled("Idle").with(|scene| scene.rule.on_idle = OnIdle::DeleteOwner).holding(HoldReason::Retire, 0)
}

fn status(scene: &Scene) -> &HoldStatus {
    &scene.holds.first().expect("the hold is still there").status
}

/// The plan for holds of a pod that is gone, or that nobody governs.
fn without_pod(holds: &[HoldView], seconds: i64) -> Plan {
    let input = Input {
        governed: None,
        living: None,
        siblings: 0,
        holds: holds.iter().collect(),
        history_ttl: SignedDuration::from_hours(1),
        now: after(seconds),
    };
    reconcile(&input, None)
}

fn updated(plan: &Plan) -> HoldStatus {
    match plan.sequences.iter().flatten().next() {
        Some(Action::UpdateHold { status, .. }) => status.clone(),
        other => panic!("{other:?}"),
    }
}

fn note(plan: &Plan) -> String {
    let event = plan.sequences.iter().flatten().find_map(|action| match action {
        Action::Event(event) => Some(event),
        _ => None,
    });
    event.expect("an Event").note.clone()
}

#[test]
fn a_hold_is_taken_up_with_a_word() {
    let mut scene = asked();
    let plan = scene.look();
    assert_eq!(in_words(&plan), [[format!("{BUSY}: Active Busy"), "event: EvictionHeld".into()]]);
    assert_eq!(
        note(&plan),
        "Eviction asked for by drainer is held while the pod is Busy, until 20:00:00Z at the latest"
    );
    assert_eq!(status(&scene).message, "it is busy (rule worker, states[1])");
    assert_eq!(in_words(&scene.plan()), NOTHING);
    assert!(scene.plan().wake_at <= Some(after(6 * 3600)), "its deadline is not missed");
}

#[test]
fn a_drainer_that_will_not_wait_so_long_is_named() {
    let autoscaler = "system:serviceaccount:kube-system:cluster-autoscaler";
    let scene = asked().with(|scene| scene.holds[0].spec.evictor = autoscaler.into());
    let plan = scene.plan();
    assert_eq!(
        in_words(&plan),
        [[format!("{BUSY}: Active Busy"), "event: EvictionHeld".into(), "warning: DrainMayNotWait".into()]]
    );
    let unnamed = asked().with(|scene| scene.holds[0].spec.evictor.clear());
    assert!(note(&unnamed.plan()).starts_with("Eviction asked for by somebody is held"));
}

#[test]
fn its_status_says_what_the_pod_is_doing() {
    let mut scene = held();
    for (phase, reason, message) in [
        ("Starting", "Starting", "it is starting (rule worker, states[2])"),
        ("Busy", "Busy", "it is busy (rule worker, states[1])"),
        ("Idle", "Idle", "it may go; the drainer has to ask again"),
        ("Busy", "Busy", "it is busy (rule worker, states[1])"),
        ("Done", "Done", "it may go; the drainer has to ask again"),
    ] {
        scene.say(phase);
        let words = in_words(&scene.look());
        assert!(words.contains(&vec![format!("{BUSY}: Active {reason}")]), "{phase}: {words:?}");
        assert_eq!(status(&scene).message, message);
        assert_eq!(in_words(&scene.plan()), NOTHING, "{phase}, once");
        if phase == "Done" {
            break;
        }
    }
    let mut scene = held();
    scene.owner = None;
    scene.look();
    assert_eq!((&*status(&scene).reason, status(&scene).phase), ("Unknown", Phase::Active));
    assert_eq!(status(&scene).message, "its owner is missing, so it counts as busy (rule worker, onUnknown)");
}

#[test]
fn at_its_deadline_it_is_released_with_a_word() {
    let mut scene = held().at(6 * 3600 - 120);
    assert_eq!(in_words(&scene.plan()), NOTHING);
    scene.holds[0].spec.deadline = after(6 * 3600 - 119);
    assert_eq!(scene.plan().wake_at, Some(after(6 * 3600 - 119)));
    let mut scene = scene.at(6 * 3600 - 119);
    let plan = scene.look();
    assert_eq!(in_words(&plan), [[format!("{BUSY}: Released Expired"), "warning: HoldExpired".into()]]);
    assert_eq!(note(&plan), "Eviction is released: its job has not ended in time");
    assert_eq!((status(&scene).outcome, status(&scene).released_at), (Some(Outcome::Expired), Some(scene.now)));
    assert_eq!(in_words(&scene.plan()), NOTHING, "a release is final");
    // Though the job goes on.
    for second in [6 * 3600 - 118, 7 * 3600] {
        let mut scene = scene.clone().at(second);
        scene.settle();
        assert_eq!((status(&scene).phase, status(&scene).outcome), (Phase::Released, Some(Outcome::Expired)));
    }
    // One that nobody took up in time.
    let late = asked().with(|scene| scene.holds[0].spec.deadline = after(0));
    assert_eq!(in_words(&late.plan()), [[format!("{BUSY}: Released Expired"), "warning: HoldExpired".into()]]);
}

#[test]
fn when_the_pod_is_gone_it_is_completed_and_says_how_it_ended() {
    let of = |reason: HoldReason, phase: Phase, word: &str, outcome: Option<Outcome>| HoldView {
        status: HoldStatus { phase, reason: word.into(), outcome, ..HoldStatus::default() },
        ..hold(reason, after(0))
    };
    for (name, hold, expected) in [
        ("idle when last seen", of(HoldReason::Busy, Phase::Active, "Idle", None), Outcome::JobEnded),
        ("done when last seen", of(HoldReason::Busy, Phase::Active, "Done", None), Outcome::JobEnded),
        ("busy when last seen", of(HoldReason::Busy, Phase::Active, "Busy", None), Outcome::VictimGone),
        ("unknown when last seen", of(HoldReason::Busy, Phase::Active, "Unknown", None), Outcome::VictimGone),
        ("never looked at", of(HoldReason::Busy, Phase::Pending, "", None), Outcome::VictimGone),
        ("expired before", of(HoldReason::Busy, Phase::Released, "Expired", Some(Outcome::Expired)), Outcome::Expired),
        ("retired", of(HoldReason::Retire, Phase::Active, "OwnerRetiring", None), Outcome::Retired),
        (
            "retired too late",
            of(HoldReason::Retire, Phase::Released, "Expired", Some(Outcome::Expired)),
            Outcome::Expired,
        ),
    ] {
        let plan = without_pod(std::slice::from_ref(&hold), 100);
        assert_eq!(in_words(&plan), [[format!("{}: Completed {}", hold.name, expected.as_str())]], "{name}");
        let status = updated(&plan);
        assert_eq!((status.outcome, status.completed_at), (Some(expected), Some(after(100))), "{name}");
        assert_eq!(status.message, "w is gone");
        assert!(status.released_at.is_some(), "{name}");
        // A pod of the same name is another pod.
        let successor = Scene::busy_for(60).with(|scene| {
            scene.pod.uid = "pod-2".into();
            scene.holds = vec![hold.clone()];
        });
        let words = in_words(&successor.at(100).plan());
        assert_eq!(words, [[format!("{}: Completed {}", hold.name, expected.as_str())]], "{name}, with a successor");
    }
}

#[test]
fn when_the_job_ends_with_its_pod_the_hold_says_so() {
    let mut scene = held().with(|scene| scene.say("Done"));
    scene.settle();
    let plan = without_pod(&scene.holds, 30);
    assert_eq!(updated(&plan).outcome, Some(Outcome::JobEnded));
}

#[test]
fn history_is_kept_for_its_time() {
    let mut hold = hold(HoldReason::Busy, after(0));
    hold.status = HoldStatus {
        phase: Phase::Completed,
        outcome: Some(Outcome::JobEnded),
        completed_at: Some(after(100)),
        ..HoldStatus::default()
    };
    let plan = without_pod(std::slice::from_ref(&hold), 100 + 3599);
    assert_eq!((in_words(&plan), plan.wake_at), (Vec::new(), Some(after(100 + 3600))));
    let plan = without_pod(std::slice::from_ref(&hold), 100 + 3600);
    assert_eq!(in_words(&plan), [[format!("{BUSY}: delete")]]);
}

#[test]
fn a_pod_that_stays_idle_is_not_being_evicted_any_more() {
    let mut scene = held().with(|scene| scene.say("Idle"));
    scene.look();
    scene.look();
    let scene = scene.at(59);
    assert!(!in_words(&scene.plan()).iter().flatten().any(|word| word.contains("delete")));
    assert!(scene.plan().wake_at <= Some(after(60)));
    let mut scene = scene.at(60);
    scene.settle();
    assert!(scene.holds.is_empty());
    assert_eq!((scene.memory.clone(), scene.plan().wake_at), (None, None), "and nothing is left to wait for");
}

#[test]
fn a_restart_begins_the_minute_anew() {
    let mut scene = held().with(|scene| scene.say("Idle"));
    scene.look();
    let mut scene = scene.at(59).with(|scene| scene.memory = None);
    scene.settle();
    let mut scene = scene.at(118);
    scene.settle();
    assert_eq!(scene.holds.len(), 1);
    let mut scene = scene.at(119);
    scene.settle();
    assert!(scene.holds.is_empty());
}

#[test]
fn a_released_hold_of_a_pod_that_stays_idle_goes_too() {
    for phase in [Phase::Released, Phase::Completed] {
        let mut scene = Scene::settled("Idle").holding(HoldReason::Busy, 0).with(|scene| {
            scene.holds[0].status = HoldStatus {
                phase,
                reason: "Expired".into(),
                outcome: Some(Outcome::Expired),
                released_at: Some(after(0)),
                ..HoldStatus::default()
            };
        });
        scene.settle();
        let mut scene = scene.at(60);
        scene.settle();
        assert!(scene.holds.is_empty(), "{phase:?}: its next job gets a hold of its own");
    }
}

/// A job that is killed with its pod has not ended.
#[test]
fn what_a_pod_does_while_it_is_killed_says_nothing_of_its_job() {
    let mut scene = held().with(|scene| {
        scene.pod.terminating = true;
        scene.say("Done");
    });
    assert_eq!(in_words(&scene.look()), NOTHING);
    let gone = updated(&without_pod(&scene.holds, 60));
    assert_eq!(gone.outcome, Some(Outcome::VictimGone));
    // One whose job had ended before is done.
    let mut scene = held().with(|scene| {
        scene.pod.terminating = true;
        scene.pod.phase = PodPhase::Succeeded;
    });
    scene.look();
    assert_eq!(updated(&without_pod(&scene.holds, 60)).outcome, Some(Outcome::JobEnded));
}

/// A drainer that asks seldom may find a worker busy each time, with another job: its wait has one deadline.
#[test]
fn jobs_that_follow_each_other_closely_do_not_prolong_a_hold() {
    let mut scene = held();
    for second in [20, 40, 60, 80] {
        scene.say("Idle");
        let mut idle = scene.clone().at(second);
        idle.settle();
        idle.say("Busy");
        let mut busy = idle.at(second + 10);
        busy.settle();
        assert_eq!(busy.holds.len(), 1, "{second}");
        assert_eq!(busy.holds[0].spec.deadline, after(6 * 3600));
        scene = busy;
    }
}

/// Two watches bring a pod, and one may be ahead; a pod that stays without a rule was taken from it.
#[test]
fn a_hold_of_a_pod_that_is_there_and_ungoverned_waits_for_its_rule() {
    let hold = hold(HoldReason::Busy, after(0));
    let plan = |seconds| {
        let uid = hold.spec.victim_uid.clone();
        let input = Input {
            governed: None,
            living: Some(&uid),
            siblings: 0,
            holds: vec![&hold],
            history_ttl: SignedDuration::from_hours(1),
            now: after(seconds),
        };
        reconcile(&input, None)
    };
    assert_eq!(in_words(&plan(299)), NOTHING);
    assert_eq!(plan(299).wake_at, Some(after(300)));
    assert_eq!(in_words(&plan(300)), [[format!("{BUSY}: Completed NotNeeded")]]);
    assert_eq!(updated(&plan(300)).message, "w is governed by no busy rule any more");
}

#[test]
fn an_owner_with_other_pods_or_on_its_way_out_is_not_deleted() {
    let scene = retired();
    let rule = scene.compiled();
    let plan = |siblings| {
        let input = Input {
            governed: Some((&rule, scene.seen())),
            living: Some(&scene.pod.uid),
            siblings,
            holds: scene.holds.iter().collect(),
            history_ttl: SignedDuration::from_hours(1),
            now: scene.now,
        };
        reconcile(&input, None)
    };
    assert_eq!(in_words(&plan(1)), NOTHING, "the others may be busy");
    assert!(in_words(&plan(0)).concat().iter().any(|word| word.ends_with(": delete")));
    let going = retired().with(|scene| scene.owner.as_mut().expect("the owner").terminating = true);
    assert_eq!(in_words(&going.plan()), [[format!("{RETIRE}: Active OwnerRetiring")]], "somebody else deleted it");
}

#[test]
fn a_hold_of_a_rule_that_holds_no_more_is_released() {
    let mut scene = held().with(|scene| scene.rule.on_busy = OnBusy::Allow);
    let plan = scene.look();
    assert_eq!(in_words(&plan), [[format!("{BUSY}: Released NotNeeded"), "event: EvictionReleased".into()]]);
    assert_eq!(note(&plan), "Eviction is released: rule worker does not hold busy pods any more");
    // And one that retires no more owners.
    let mut scene = retired().with(|scene| scene.rule.on_idle = OnIdle::Allow);
    let plan = scene.look();
    assert_eq!(in_words(&plan), [[format!("{RETIRE}: Released NotNeeded"), "event: EvictionReleased".into()]]);
    assert_eq!(note(&plan), "Eviction is released: rule worker does not delete the owners of idle pods any more");
}

#[test]
fn the_owner_is_deleted_once() {
    let mut scene = retired();
    let plan = scene.look();
    let expected = [
        "Runner.ci.example w runner-1: delete".to_owned(),
        format!("{RETIRE}: Active OwnerRetiring"),
        "event: OwnerRetired".into(),
    ];
    assert_eq!(in_words(&plan), [expected]);
    assert_eq!(
        note(&plan),
        "Eviction asked for by drainer of an idle pod: Runner w is deleted instead, so that no job is lost"
    );
    assert_eq!(status(&scene).message, "Runner w was deleted and retires it");
    // Its finalizer has the last word, whatever comes of the pod meanwhile.
    for phase in ["Idle", "Busy", "Idle", "Done"] {
        scene.say(phase);
        scene.settle();
        assert_eq!((&*status(&scene).reason, status(&scene).phase), ("OwnerRetiring", Phase::Active), "{phase}");
        scene.now += SignedDuration::from_secs(100);
    }
    // Any process sees that it was done.
    scene.memory = None;
    assert!(!in_words(&scene.plan()).iter().flatten().any(|word| word.contains("delete")));
    let plan = without_pod(&scene.holds, 1000);
    assert_eq!(updated(&plan).outcome, Some(Outcome::Retired));
}

/// Deletion and status are one sequence: where the first fails, the second is not performed, and both are tried again.
#[test]
fn the_owner_is_deleted_before_that_is_said() {
    let plan = retired().plan();
    let kinds: Vec<_> = plan.sequences[0]
        .iter()
        .map(|action| match action {
            Action::DeleteOwner { owner, .. } => {
                assert_eq!((&*owner.name, &*owner.uid, &*owner.resource_version), ("w", "runner-1", ""));
                "delete"
            }
            Action::UpdateHold { .. } => "status",
            Action::Event(_) => "event",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["delete", "status", "event"]);
}

#[test]
fn an_owner_that_does_not_let_go_in_time_is_told() {
    let mut scene = retired().with(Scene::settle).at(6 * 3600);
    let plan = scene.look();
    assert_eq!(in_words(&plan), [[format!("{RETIRE}: Released Expired"), "warning: HoldExpired".into()]]);
    assert_eq!(note(&plan), "Eviction is released: its owner has not let it go in time");
}

#[test]
fn holds_are_looked_after_in_the_same_order_each_time() {
    let mut scene = asked().holding(HoldReason::Retire, 5);
    scene.rule.on_idle = OnIdle::DeleteOwner;
    let expected = [
        vec![
            "Runner.ci.example w runner-1: delete".to_owned(),
            format!("{RETIRE}: Active OwnerRetiring"),
            "event: OwnerRetired".into(),
        ],
        vec![format!("{BUSY}: Active Busy"), "event: EvictionHeld".into()],
    ];
    assert_eq!(in_words(&scene.plan()), expected);
    scene.holds.reverse();
    assert_eq!(in_words(&scene.plan()), expected);
}

#[test]
fn a_terminating_pods_hold_stays_until_it_is_gone() {
    for phase in ["Busy", "Idle"] {
        let mut scene = held().with(|scene| scene.pod.terminating = true);
        scene.say(phase);
        scene.settle();
        let mut scene = scene.at(600);
        scene.settle();
        assert_eq!(scene.holds.len(), 1, "{phase}");
    }
}

/// Who may create holds must not be able to delete what the controller may delete.
#[test]
fn only_the_pods_own_owner_is_deleted_for_it() {
    type Bend = fn(&mut Scene);
    for (name, bend) in [
        ("another object of the kind", (|scene| scene.holds[0].spec.workload.uid = "runner-2".into()) as Bend),
        ("another kind", |scene| scene.holds[0].spec.workload.kind = "RunnerSet".into()),
        ("another group", |scene| scene.holds[0].spec.workload.group = "apps".into()),
        ("nothing", |scene| scene.holds[0].spec.workload = crate::hold::WorkloadRef::default()),
        ("its owner is not there", |scene| scene.owner = None),
        ("an owner of the whole cluster", |scene| scene.owner.as_mut().unwrap().namespace = "".into()),
    ] {
        let scene = retired().with(bend);
        let words = in_words(&scene.plan());
        assert!(!words.iter().flatten().any(|word| word.contains("delete")), "{name}: {words:?}");
        assert!(scene.plan().wake_at <= Some(after(6 * 3600)), "{name}: it ends all the same");
    }
}
