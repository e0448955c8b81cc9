//! How holds end: released, completed, forgotten.

use crate::action::Action;
use crate::hold::{HoldStatus, Outcome, Phase};
use crate::policy::OnFailure;
use crate::testing::{OLD, Scene, VICTIM, after, hold, in_words, pod};
use crate::view::{IntOrPercent, Strategy};

/// What the step says about the one hold: its new status in words, and the reasons of the Events.
fn ends(table: Vec<(&str, Scene, &[&str])>) {
    for (name, scene, expected) in table {
        assert_eq!(in_words(&scene.plan()).concat(), expected, "{name}");
    }
}

const HANDED_OVER: &[&str] = &["web-7d9f-x-web7d9fx: Released HandedOver", "event: EvictionReleased"];
const VICTIM_GONE: &[&str] = &["web-7d9f-x-web7d9fx: Released VictimGone", "event: EvictionReleased"];
const NOT_NEEDED: &[&str] = &["web-7d9f-x-web7d9fx: Released NotNeeded", "event: EvictionReleased"];
const EXPIRED: &[&str] = &["web-7d9f-x-web7d9fx: Released Expired", "warning: HandoverFailed"];
const FAILED: &[&str] = &["web-7d9f-x-web7d9fx: Released Failed", "warning: HandoverFailed"];
const REVERTED: &[&str] = &["web-7d9f-x-web7d9fx: Released Reverted", "warning: HandoverFailed"];

const UNDONE: &str = "template: slot none, records web-7d9f-x-uid undone";

fn at(seconds: i64, scene: Scene) -> Scene {
    scene.with(|scene| scene.now = after(seconds))
}

fn roll_back(scene: Scene) -> Scene {
    scene.with(|scene| scene.protection.as_mut().unwrap().settings.on_failure = OnFailure::RollBack)
}

fn recreate(scene: Scene) -> Scene {
    scene.with(|scene| scene.deployment.strategy = Strategy::Recreate)
}

#[test]
fn a_victim_is_released_when_it_has_a_successor() {
    let terminating = |scene: Scene| scene.with(|scene| scene.victim().terminating = true);
    ends(vec![
        ("the replacement is available", Scene::ready_for(0), HANDED_OVER),
        ("even when the deadline has come", at(600, Scene::ready_for(0)), HANDED_OVER),
        (
            "even when the hold was never taken up",
            Scene::ready_for(0).with(|s| s.holds = vec![hold(VICTIM, OLD)]),
            HANDED_OVER,
        ),
        ("the rollout takes the victim away", terminating(Scene::ready_for(0)), HANDED_OVER),
        ("Recreate takes the victim away first", recreate(terminating(Scene::rolling())), HANDED_OVER),
        (
            "Recreate takes the victim away, and that is seen before the restart is",
            recreate(terminating(Scene::restarted().with(|scene| scene.deployment = Scene::quiet().deployment))),
            HANDED_OVER,
        ),
        ("the victim is gone after the rollout", Scene::handed_over(), HANDED_OVER),
        (
            "a user's release replaced the victim before its ReplicaSet is in the cache",
            Scene::asked().with(|scene| {
                scene.deployment.revision = Some(2);
                scene.pods.clear();
            }),
            HANDED_OVER,
        ),
        (
            "a user's release replaced the victim, and it is gone",
            Scene::handed_over().with(|scene| {
                scene.deployment.records.clear();
                scene.deployment.slot = None;
                scene.sets[1].slot = None;
                scene.holds = vec![hold(VICTIM, OLD)];
            }),
            HANDED_OVER,
        ),
    ]);
}

#[test]
fn a_hold_ends_when_there_is_nothing_to_wait_for() {
    let bent = |bend: fn(&mut Scene)| Scene::asked().with(bend);
    let lossy = Strategy::RollingUpdate { max_surge: IntOrPercent::Int(0), max_unavailable: IntOrPercent::Int(1) };
    ends(vec![
        ("somebody deleted the victim", bent(|scene| scene.victim().terminating = true), VICTIM_GONE),
        ("the victim is gone", bent(|scene| scene.pods.clear()), VICTIM_GONE),
        (
            "a pod of the victim's name is another pod",
            bent(|scene| scene.victim().uid = "another-uid".into()),
            VICTIM_GONE,
        ),
        ("protection was switched off", bent(|scene| scene.protection = None), NOT_NEEDED),
        ("the Deployment was paused", bent(|scene| scene.deployment.paused = true), NOT_NEEDED),
        ("the Deployment was scaled to several", bent(|scene| scene.deployment.replicas = 2), NOT_NEEDED),
        ("the Deployment was scaled to zero", bent(|scene| scene.deployment.replicas = 0), NOT_NEEDED),
        ("the strategy became lossy", Scene::asked().with(|scene| scene.deployment.strategy = lossy), NOT_NEEDED),
        (
            "paused in the middle of the rollout",
            Scene::starting().with(|scene| scene.deployment.paused = true),
            NOT_NEEDED,
        ),
    ]);
    let advice = Scene::asked().with(|scene| scene.deployment.paused = true).plan();
    let Action::UpdateHold { status, .. } = &advice.sequences[0][0] else { panic!("{advice:?}") };
    assert!(status.message.contains("kubectl rollout resume"), "{}", status.message);
    assert_eq!((status.outcome, status.released_at), (Some(Outcome::NotNeeded), Some(after(0))));
}

#[test]
fn a_hold_ends_when_its_deployment_is_gone() {
    use crate::handover::HandoverRules;
    use crate::handover::reconcile::{Input, reconcile};
    let scene = Scene::asked();
    let plan = reconcile(&Input {
        workload: None,
        protection: None,
        holds: vec![(&scene.holds[0], None)],
        close: None,
        refused: None,
        rules: &HandoverRules::default(),
        now: scene.now,
    });
    assert_eq!(in_words(&plan).concat(), VICTIM_GONE);
}

#[test]
fn a_template_that_was_put_back_is_not_fought_over() {
    let settling = Scene::reverted().with(|scene| scene.deployment.status.replicas = 2);
    ends(vec![
        ("the rollout back is over", Scene::reverted(), REVERTED),
        ("the rollout back is under way", settling, REVERTED),
        (
            "a release is observed, and its ReplicaSet not made yet: with Recreate the old pods go first",
            recreate(Scene::reverted().with(|scene| scene.deployment.status.updated = 0)),
            &["web-7d9f-x-web7d9fx: Active RolloutNotObserved"],
        ),
        (
            "it is not yet known what comes",
            Scene::reverted().with(|scene| scene.deployment.generation = 4),
            &["web-7d9f-x-web7d9fx: Active RolloutNotObserved"],
        ),
    ]);
}

#[test]
fn a_hold_expires_at_its_deadline_and_not_before() {
    let stalled = |scene: Scene| scene.with(|scene| scene.deployment.status.progress_deadline_exceeded = true);
    ends(vec![
        ("nothing was done, the leader was dead", at(600, Scene::asked()), EXPIRED),
        ("the replacement does not come", at(600, Scene::starting()), EXPIRED),
        ("Recreate, and the victim does not go", recreate(at(600, Scene::rolling())), EXPIRED),
        ("long after", at(6000, Scene::starting()), EXPIRED),
        (
            "it went while no controller ran, and has a successor since",
            at(600, Scene::asked().with(|scene| scene.victim().uid = "another-uid".into())),
            EXPIRED,
        ),
        ("our rollout exceeded its progress deadline", stalled(Scene::starting()), FAILED),
    ]);
    for seconds in [0, 599] {
        let words = in_words(&at(seconds, Scene::starting()).plan()).concat();
        assert_eq!(words, ["web-7d9f-x-web7d9fx: Active ReplacementStarting"], "after {seconds} s");
    }
    // A user's own release that hangs is not ours to judge; the deadline is what ends the hold.
    let theirs = stalled(Scene::starting()).with(|scene| {
        scene.deployment.records.clear();
        scene.holds = vec![hold(VICTIM, OLD)];
    });
    let expected = ["web-7d9f-x-web7d9fx: Active ReplacementStarting", "event: EvictionHeld"];
    assert_eq!(in_words(&theirs.plan()).concat(), expected);
    let unobserved = stalled(Scene::starting()).with(|scene| scene.deployment.generation = 3);
    let expected = ["web-7d9f-x-web7d9fx: Active RolloutNotObserved"];
    assert_eq!(in_words(&unobserved.plan()).concat(), expected, "the condition speaks of an older spec");
}

#[test]
fn a_failed_handover_is_rolled_back_once_before_the_release() {
    let undone: &[&str] = &[
        "web-7d9f-x-web7d9fx: Active RollingBack",
        "template: slot none, records web-7d9f-x-uid undone",
        "warning: HandoverRolledBack",
    ];
    let marked = |scene: Scene| roll_back(scene).with(|scene| scene.deployment.records[0].rolled_back = true);
    let exceeded = Scene::starting().with(|scene| scene.deployment.status.progress_deadline_exceeded = true);
    ends(vec![
        ("the deadline passed", roll_back(at(600, Scene::starting())), undone),
        ("the progress deadline was exceeded", roll_back(exceeded), undone),
        ("Release leaves the template alone", at(600, Scene::starting()), EXPIRED),
        ("no restart was made: there is nothing to put back", roll_back(at(600, Scene::asked())), EXPIRED),
        (
            "somebody changed the slot since",
            roll_back(at(600, Scene::starting())).with(|scene| scene.deployment.slot = Some("b".into())),
            EXPIRED,
        ),
        (
            "nobody knows which revision is the newest: somebody replaced the Deployment",
            roll_back(at(600, Scene::starting())).with(|scene| scene.deployment.revision = None),
            EXPIRED,
        ),
        (
            "somebody wrote a newer spec, and the Deployment controller has not observed it",
            roll_back(at(600, Scene::starting())).with(|scene| scene.deployment.generation = 3),
            EXPIRED,
        ),
        (
            "a user released over our restart: their template is not touched",
            roll_back(at(600, Scene::starting())).with(|scene| {
                scene.deployment.revision = Some(3);
                scene.sets.push(crate::testing::replica_set("user", 3, Some("a")));
            }),
            EXPIRED,
        ),
        ("it was put back: the release follows", marked(at(600, Scene::reverted())), EXPIRED),
        ("it was put back before the deadline: the release follows", marked(Scene::reverted()), FAILED),
        (
            "it was put back, and the rollout back is not observed yet",
            marked(Scene::starting().with(|scene| (scene.deployment.slot, scene.deployment.generation) = (None, 3))),
            FAILED,
        ),
        (
            "RollBack was chosen after the release: too late",
            roll_back(Scene::starting()).with(|scene| scene.holds[0].status.phase = Phase::Released),
            &[],
        ),
    ]);
}

fn released(scene: Scene) -> Scene {
    scene.with(|scene| {
        scene.holds[0].status = HoldStatus {
            phase: Phase::Released,
            outcome: Some(Outcome::HandedOver),
            released_at: Some(after(0)),
            ..HoldStatus::default()
        };
    })
}

#[test]
fn a_released_hold_is_completed_when_its_victim_is_gone_and_the_workload_whole() {
    const COMPLETED: &[&str] = &["web-7d9f-x-web7d9fx: Completed "];
    let gone = |scene: Scene| released(scene).with(|scene| drop(scene.pods.remove(0)));
    ends(vec![
        ("the victim is still there", released(Scene::ready_for(0)), &[]),
        (
            "the victim is terminating",
            released(Scene::ready_for(0)).with(|scene| scene.victim().terminating = true),
            &[],
        ),
        ("the victim is gone, its successor is available", gone(Scene::ready_for(0)), COMPLETED),
        ("the victim is gone, its successor starts", gone(Scene::starting()), &[]),
        ("the victim is gone, nothing is known of a successor", gone(Scene::restarted()), &[]),
        ("its successor never comes", at(600, gone(Scene::starting())), COMPLETED),
        (
            "nobody waits for a paused one",
            gone(Scene::starting()).with(|scene| scene.deployment.paused = true),
            COMPLETED,
        ),
        (
            "a pod of the same name and another UID is a successor like any other",
            released(Scene::asked()).with(|scene| scene.victim().uid = "another-uid".into()),
            COMPLETED,
        ),
    ]);
    assert_eq!(gone(Scene::starting()).plan().wake_at, Some(after(600)), "ten minutes after the release");
    let soon = gone(Scene::ready_for(3)).with(|scene| scene.deployment.min_ready_seconds = 10);
    assert_eq!(soon.plan().wake_at, Some(after(7)));
    assert_eq!(in_words(&soon.plan()), [[""; 0]; 0]);
}

#[test]
fn history_is_kept_for_its_time_and_never_deleted_while_the_victim_exists() {
    let completed = |scene: Scene| {
        scene.with(|scene| {
            scene.holds[0].status.phase = Phase::Completed;
            scene.holds[0].status.completed_at = Some(after(10));
        })
    };
    let long = 3_600 * 24 * 30;
    ends(vec![
        ("an hour is not over", at(3609, completed(Scene::handed_over())), &[]),
        ("an hour is over", at(3610, completed(Scene::handed_over())), &["web-7d9f-x-web7d9fx: delete"]),
        ("the victim still exists, which is kept released by it", at(long, completed(Scene::ready_for(0))), &[]),
        (
            "the victim still exists and terminates for ever",
            at(long, completed(Scene::ready_for(0))).with(|scene| scene.victim().terminating = true),
            &[],
        ),
        (
            "a pod of that name is not the victim",
            at(long, completed(Scene::quiet().with(|scene| scene.holds = vec![hold(VICTIM, OLD)])))
                .with(|scene| scene.victim().uid = "another-uid".into()),
            &["web-7d9f-x-web7d9fx: delete"],
        ),
    ]);
    assert_eq!(completed(Scene::handed_over()).plan().wake_at, Some(after(3610)));
    assert_eq!(completed(Scene::ready_for(0)).plan().wake_at, None, "its victim's end will wake it");
}

#[test]
fn holds_end_each_for_itself() {
    let scene = Scene::handed_over().with(|scene| {
        scene.pods.push(pod("web-7d9f-z", OLD, "node-1"));
        scene.holds.push(hold("web-7d9f-z", OLD));
        scene.holds.push(crate::hold::HoldView {
            status: HoldStatus { phase: Phase::Completed, completed_at: Some(after(-9000)), ..HoldStatus::default() },
            ..hold("web-0000-w", "0000")
        });
    });
    let expected: [&[&str]; 3] = [
        &["web-0000-w-web0000w: delete"],
        &["web-7d9f-x-web7d9fx: Released HandedOver", "event: EvictionReleased"],
        &["web-7d9f-z-web7d9fz: Released HandedOver", "event: EvictionReleased"],
    ];
    assert_eq!(in_words(&scene.plan()), expected);
}

#[test]
fn an_eviction_that_passed_at_the_deadline_is_not_called_a_handover() {
    // The drainer came back at the deadline and the webhook let it through before the controller looked.
    let evicted = at(600, Scene::starting()).with(|scene| scene.victim().terminating = true);
    let gone = at(601, Scene::starting()).with(|scene| drop(scene.pods.remove(0)));
    let served = at(600, Scene::ready_for(0)).with(|scene| scene.victim().terminating = true);
    ends(vec![
        ("the victim terminates, nobody serves", evicted, EXPIRED),
        ("the victim is gone, nobody serves", gone, EXPIRED),
        ("the victim terminates, its replacement serves", served, HANDED_OVER),
    ]);
}

/// The hold is over, and the replacement has no node.
fn homeless() -> Scene {
    Scene::starting().with(|scene| {
        scene.holds[0].status.phase = Phase::Released;
        scene.holds[0].status.outcome = Some(Outcome::Expired);
        scene.holds[0].status.reason = "Expired".into();
        scene.holds[0].status.released_at = Some(after(0));
        scene.replacement().node = None;
        scene.replacement().unschedulable = true;
    })
}

#[test]
fn a_restart_that_no_node_takes_is_withdrawn_once_nobody_waits_for_it() {
    const WITHDRAWN: &[&str] = &["web-7d9f-x-web7d9fx: Released Expired", UNDONE, "warning: HandoverRolledBack"];
    ends(vec![
        ("the victim is still there, and the rollout is stuck", homeless(), WITHDRAWN),
        ("protection was switched off since", homeless().with(|scene| scene.protection = None), WITHDRAWN),
        ("it has a node", homeless().with(|scene| scene.replacement().node = Some("node-2".into())), &[]),
        ("the scheduler has not said no", homeless().with(|scene| scene.replacement().unschedulable = false), &[]),
        ("a user released over it", homeless().with(|scene| scene.deployment.revision = Some(3)), &[]),
        ("it was withdrawn", homeless().with(|scene| scene.deployment.records[0].rolled_back = true), &[]),
        ("Recreate steers nothing away", recreate(homeless()), &[]),
    ]);
}

#[test]
fn a_withdrawal_that_fails_is_tried_again_in_the_same_words() {
    let again = homeless().with(|scene| {
        let Action::UpdateHold { status, .. } = scene.plan().sequences.concat().swap_remove(0) else {
            panic!("the hold is written first");
        };
        scene.holds[0].status = status;
    });
    let Action::UpdateHold { status, .. } = again.plan().sequences.concat().swap_remove(0) else {
        panic!("the hold is written first");
    };
    assert_eq!(status, again.holds[0].status);
}

#[test]
fn a_handover_whose_victim_went_at_the_deadline_is_rolled_back_where_the_policy_says_so() {
    let late = at(600, Scene::starting()).with(|scene| scene.victim().terminating = true);
    ends(vec![
        ("Release leaves the template", late.clone(), EXPIRED),
        (
            "RollBack puts it back",
            roll_back(late),
            &["web-7d9f-x-web7d9fx: Active RollingBack", UNDONE, "warning: HandoverRolledBack"],
        ),
    ]);
}
