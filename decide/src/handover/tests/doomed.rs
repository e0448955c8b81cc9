//! Handovers that begin by themselves.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use crate::action::Action;
use crate::doom::{Doomed, Judged};
use crate::handover::reconcile::{Input, Plan, reconcile};
use crate::handover::{HandoverRules, Workload};
use crate::hold::{HoldTrigger, HoldView, Outcome, Phase};
use crate::policy::{Mode, Trigger};
use crate::testing::{OLD, START, Scene, VICTIM, after, hold, in_words, pod, runner};
use crate::view::Strategy;

/// A moment, with what is known of `node-1`.
#[derive(Clone)]
struct Case {
    scene: Scene,
    node: Option<Doomed>,
    rules: HandoverRules,
}

fn doomed(since: Timestamp) -> Doomed {
    Doomed { by: "cordoned".into(), since, soft: false, notice: None }
}

/// The victim serves on a node that has been cordoned for a minute, and its policy has handovers begin by that.
fn cordoned() -> Case {
    let mut scene = Scene::quiet();
    scene.protection.as_mut().unwrap().settings.trigger = Trigger::OnDoom;
    Case { scene, node: Some(doomed(after(-60))), rules: HandoverRules::default() }
}

/// A hold of the victim that began by itself.
fn begun() -> HoldView {
    let mut hold = hold(VICTIM, OLD);
    hold.spec.trigger = HoldTrigger::Doom;
    hold.spec.evictor = String::new();
    hold
}

impl Case {
    fn with(mut self, bend: impl FnOnce(&mut Self)) -> Self {
        bend(&mut self);
        self
    }

    fn scaling(self) -> Self {
        self.with(|case| case.scene.protection.as_mut().unwrap().settings.mode = Mode::Scale)
    }

    fn soft(self) -> Self {
        self.with(|case| case.node.as_mut().unwrap().soft = true)
    }

    fn plan(&self) -> Plan {
        let scene = &self.scene;
        let dooms = self.node.iter().map(|doomed| ("node-1", doomed)).collect();
        let workload = Workload { dooms, ..scene.workload() };
        let of = |hold: &HoldView| scene.pods.iter().find(|pod| *pod.uid == *hold.spec.victim_uid);
        reconcile(&Input {
            workload: Some(&workload),
            protection: scene.protection.as_ref(),
            holds: scene.holds.iter().map(|hold| (hold, of(hold))).collect(),
            close: None,
            refused: None,
            rules: &self.rules,
            now: scene.now,
        })
    }

    /// The deadlines of the holds that begin.
    fn deadlines(&self) -> Vec<Timestamp> {
        let plan = self.plan();
        let created = plan.sequences.iter().flatten().filter_map(|action| match action {
            Action::CreateHold { spec, .. } => Some(spec.deadline),
            _ => None,
        });
        created.collect()
    }
}

#[test]
fn a_handover_begins_by_itself_for_a_serving_pod_whose_node_is_about_to_go() {
    let begins = vec![vec!["web-7d9f-x: hold, Doom", "event: NodeAboutToGo"]];
    let nothing: Vec<Vec<&str>> = Vec::new();
    let table = [
        ("cordoned long enough", cordoned(), &begins),
        (
            "a policy that waits for evictions",
            cordoned().with(|case| {
                case.scene.protection.as_mut().unwrap().settings.trigger = Trigger::OnEviction;
            }),
            &nothing,
        ),
        ("no protection", cordoned().with(|case| case.scene.protection = None), &nothing),
        ("a node that stays", cordoned().with(|case| case.node = None), &nothing),
        ("a soft signal, Restart", cordoned().soft().with(|case| case.rules.soft_signals = true), &nothing),
        ("a soft signal, Scale, not asked for", cordoned().soft().scaling(), &nothing),
        ("a soft signal, Scale", cordoned().soft().scaling().with(|case| case.rules.soft_signals = true), &begins),
        ("a hard signal, Scale", cordoned().scaling(), &begins),
        ("a paused Deployment", cordoned().with(|case| case.scene.deployment.paused = true), &nothing),
        (
            "a Recreate Deployment, Scale",
            cordoned().scaling().with(|case| {
                case.scene.deployment.strategy = Strategy::Recreate;
            }),
            &nothing,
        ),
        ("a pod that does not serve", cordoned().with(|case| case.scene.victim().ready_since = None), &nothing),
        ("a pod that goes", cordoned().with(|case| case.scene.victim().terminating = true), &nothing),
        ("a pod that works", cordoned().with(|case| case.scene.victim().marked = true), &nothing),
        ("a pod elsewhere", cordoned().with(|case| case.scene.victim().node = Some("node-2".into())), &nothing),
        (
            "a pod that its release has replaced already",
            cordoned().with(|case| {
                let settings = case.scene.protection.clone();
                case.scene = Scene { protection: settings, holds: Vec::new(), ..Scene::ready_for(10) };
            }),
            &nothing,
        ),
    ];
    for (name, case, expected) in table {
        assert_eq!(in_words(&case.plan()), *expected, "{name}");
    }
}

#[test]
fn one_hold_is_made_for_a_victim_whatever_became_of_it() {
    for phase in [Phase::Pending, Phase::Active, Phase::Released, Phase::Completed] {
        let mut case = cordoned();
        let mut hold = begun();
        hold.status.phase = phase;
        case.scene.holds.push(hold);
        assert_eq!(case.deadlines(), [], "{phase:?}");
    }
}

#[test]
fn several_pods_of_one_workload_begin_together() {
    let case = cordoned().scaling().with(|case| {
        case.scene.deployment.replicas = 2;
        case.scene.pods.push(pod("web-7d9f-a", OLD, "node-1"));
    });
    let words = in_words(&case.plan());
    assert_eq!(
        words.iter().map(|step| &*step[0]).collect::<Vec<_>>(),
        ["web-7d9f-a: hold, Doom", "web-7d9f-x: hold, Doom"]
    );
}

#[test]
fn a_signal_has_to_stand_for_a_while_and_is_looked_at_again_then() {
    let case = cordoned().with(|case| case.node = Some(doomed(after(-29))));
    let plan = case.plan();
    assert_eq!((plan.sequences.len(), plan.wake_at), (0, Some(after(1))));
    assert_eq!(cordoned().with(|case| case.node = Some(doomed(after(-30)))).deadlines(), [after(600)]);
}

#[test]
fn a_node_that_goes_at_a_time_of_its_own_is_not_waited_for() {
    let noticed = |since, seconds| {
        let notice = Some(SignedDuration::from_secs(seconds));
        cordoned().with(|case| case.node = Some(Doomed { notice, ..doomed(since) }))
    };
    assert_eq!(noticed(START, 90).deadlines(), [after(90)], "at once, and no longer than the node lasts");
    assert_eq!(noticed(START, 3600).deadlines(), [after(600)], "and no longer than the policy says");
    assert_eq!(noticed(after(-90), 90).deadlines(), [], "too late for anything");
}

#[test]
fn a_hold_ends_with_the_node_of_its_victim_whoever_asked_for_it() {
    let mut case = cordoned();
    case.scene.holds.push(hold(VICTIM, OLD));
    case.node = Some(Doomed { notice: Some(SignedDuration::from_secs(90)), ..doomed(START) });
    let plan = case.plan();
    let records = plan.sequences.iter().flatten().find_map(|action| match action {
        Action::PatchTemplate { records, .. } => Some(records.clone()),
        _ => None,
    });
    assert_eq!((records.unwrap()[0].deadline, plan.wake_at), (after(90), Some(after(90))));
    case.scene.now = after(90);
    assert_eq!(in_words(&case.plan())[0], ["web-7d9f-x-web7d9fx: Released Expired", "warning: HandoverFailed"]);
}

#[test]
fn a_hold_that_began_by_itself_restarts_once_and_does_not_tell_of_an_evictor() {
    let mut case = cordoned();
    case.scene.holds.push(begun());
    let words = in_words(&case.plan());
    assert_eq!(
        words,
        [[
            "web-7d9f-x-web7d9fx: Active Restarting",
            "template: slot a, records web-7d9f-x-uid",
            "event: HandoverStarted"
        ]]
    );
}

#[test]
fn a_signal_that_is_gone_before_anything_began_takes_the_hold_with_it() {
    let withdrawn = ["web-7d9f-x-web7d9fx: delete", "event: NodeStays"];
    let stays = |bend: &dyn Fn(&mut Case)| {
        let mut case = cordoned();
        case.scene.holds.push(begun());
        case.node = None;
        bend(&mut case);
        in_words(&case.plan()).concat()
    };
    assert_eq!(stays(&|_| {}), withdrawn);
    assert_eq!(stays(&|case| case.scene.holds[0].status.phase = Phase::Active), withdrawn, "still waiting");
    assert_eq!(stays(&|case| case.node = Some(Doomed { soft: true, ..doomed(START) })), withdrawn, "only soft now");
    let is_kept = |bend: &dyn Fn(&mut Case)| stays(bend).iter().all(|word| !word.contains("delete"));
    assert!(is_kept(&|case| case.node = Some(doomed(START))), "it is said again");
    assert!(is_kept(&|case| case.scene.holds[0].status.last_requested_at = Some(START)), "somebody asked");
    assert!(is_kept(&|case| case.scene.holds[0].spec.trigger = HoldTrigger::Eviction), "an eviction");
    assert!(is_kept(&|case| case.scene.holds[0].status.from_revision = Some(1)), "a restart may be written");
    assert!(is_kept(&|case| case.scene.holds[0].status.phase = Phase::Released), "it may go");
    assert!(is_kept(&|case| case.scene.victim().terminating = true), "it goes");
    assert!(is_kept(&|case| case.scene.protection = None), "released instead: it is not protected any more");
}

#[test]
fn after_one_that_came_to_nothing_no_other_begins_by_itself() {
    for (outcome, begins) in [
        (Outcome::Expired, false),
        (Outcome::Failed, false),
        (Outcome::Reverted, false),
        (Outcome::Abandoned, false),
        (Outcome::HandedOver, true),
        (Outcome::VictimGone, true),
    ] {
        let mut case = cordoned();
        let mut former = begun();
        former.name = "former".into();
        former.spec.victim_uid = "former-uid".into();
        former.status.phase = Phase::Completed;
        former.status.outcome = Some(outcome);
        case.scene.holds.push(former.clone());
        assert_eq!(!case.deadlines().is_empty(), begins, "{outcome:?}");
        case.scene.holds[0].spec.trigger = HoldTrigger::Eviction;
        assert_eq!(case.deadlines().len(), 1, "{outcome:?} of an eviction says nothing of the node");
    }
}

/// What the node says for some seconds: nothing, a soft signal or a hard one.
fn said() -> impl proptest::strategy::Strategy<Value = (Option<bool>, i64)> {
    (proptest::option::of(any::<bool>()), 1..30_i64)
}

proptest! {
    #![proptest_config(runner(512))]

    /// Each hard word is shorter than the wait, and something else is said in between.
    #[test]
    fn signals_that_come_and_go_sooner_than_they_are_believed_begin_nothing(
        pattern in proptest::collection::vec(said(), 1..40),
        scales in any::<bool>(),
    ) {
        let mut case = cordoned();
        if scales {
            case = case.scaling();
        }
        case.node = None;
        let mut last = None;
        for (soft, seconds) in pattern {
            // Two hard words in a row are one.
            let soft = if last == Some(Some(false)) && soft == Some(false) { None } else { soft };
            last = Some(soft);
            let now = case.scene.now;
            let judged = soft.map(|soft| Judged { by: "a signal".into(), soft, notice: None });
            case.node = judged.map(|judged| Doomed::seen(case.node.as_ref(), judged, now));
            prop_assert_eq!(case.deadlines(), []);
            // Looked at whenever it likes, last of all just before the next word.
            case.scene.now = now + SignedDuration::from_secs(seconds) - SignedDuration::from_millis(1);
            prop_assert_eq!(case.deadlines(), []);
            case.scene.now = now + SignedDuration::from_secs(seconds);
        }
    }

    /// However signals come and go and however often it is looked, no victim gets two holds nor is restarted twice, and
    /// Restart never begins by a soft signal.
    #[test]
    fn no_victim_gets_two_holds(
        pattern in proptest::collection::vec((proptest::option::of(any::<bool>()), 1..120_i64), 1..30),
        soft_signals in any::<bool>(),
    ) {
        let mut case = cordoned();
        case.rules.soft_signals = soft_signals;
        case.node = None;
        let mut restarts = 0;
        for (soft, seconds) in pattern {
            let now = case.scene.now;
            let judged = soft.map(|soft| Judged { by: "a signal".into(), soft, notice: None });
            case.node = judged.map(|judged| Doomed::seen(case.node.as_ref(), judged, now));
            case.scene.now = now + SignedDuration::from_secs(seconds);
            for _ in 0..2 {
                let is_hard = case.node.as_ref().is_some_and(|node| !node.soft);
                for action in case.plan().sequences.concat() {
                    match action {
                        Action::CreateHold { spec, .. } => {
                            prop_assert!(is_hard, "a restart cannot be taken back");
                            prop_assert!(case.scene.holds.is_empty(), "a second hold");
                            case.scene.holds.push(HoldView { spec, ..begun() });
                        }
                        Action::DeleteHold { .. } => case.scene.holds.clear(),
                        Action::UpdateHold { status, .. } => case.scene.holds[0].status = status,
                        Action::PatchTemplate { slot, records, .. } => {
                            restarts += 1;
                            case.scene.deployment.slot = slot;
                            case.scene.deployment.records = records;
                            case.scene.deployment.generation += 1;
                        }
                        _ => {}
                    }
                }
            }
        }
        prop_assert!(restarts <= 1, "{restarts} restarts");
    }
}

#[test]
fn a_deadline_that_a_notice_shortens_is_written_down_and_outlives_who_saw_the_notice() {
    let deadlines = |case: &Case| {
        let updates = case.plan().sequences.concat().into_iter().filter_map(|action| match action {
            Action::UpdateHold { status, .. } => Some(status.deadline),
            _ => None,
        });
        updates.collect::<Vec<_>>()
    };
    let noticed = |scene: Scene, since| {
        let node = Doomed { notice: Some(SignedDuration::from_secs(90)), ..doomed(since) };
        Case { scene, node: Some(node), rules: HandoverRules::default() }
    };
    assert_eq!(deadlines(&noticed(Scene::asked(), START)), [Some(after(90))], "in the write that takes the hold up");
    let mut waiting = Scene::restarted();
    let told = Case { node: None, ..noticed(waiting.clone(), START) }.plan().sequences.concat();
    if let Some(Action::UpdateHold { status, .. }) = told.first() {
        waiting.holds[0].status = status.clone();
    }
    assert_eq!(deadlines(&Case { node: None, ..noticed(waiting.clone(), START) }), [], "there is no news");
    assert_eq!(deadlines(&noticed(waiting.clone(), START)), [Some(after(90))], "in a write of its own");
    // As it is projected from then on. Whoever leads next sees the notice later.
    waiting.holds[0].status.deadline = Some(after(90));
    waiting.holds[0].spec.deadline = after(90);
    let next = noticed(waiting, after(60));
    assert_eq!((deadlines(&next), next.plan().wake_at), (vec![], Some(after(90))), "no later than was written");
}
