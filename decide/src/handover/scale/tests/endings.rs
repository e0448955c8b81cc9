//! Other ways for a surge to end, and what somebody else does to its number.

use super::*;

/// A stand-in that never gets ready.
fn waiting(victims: &[&'static str]) -> Stage {
    let stage = Stage::surged(victims, 1).standing_in("d", 3);
    stage.with(|stage| stage.find("d").expect("it is there").ready_since = None).rest()
}

/// The hold was released with this outcome, a second ago.
fn released(stage: &mut Stage, at: usize, outcome: &str) {
    let now = stage.now;
    let status = &mut stage.holds[at].status;
    status.phase = Phase::Released;
    status.reason = outcome.into();
    status.released_at = Some(now - jiff::SignedDuration::from_secs(1));
    let uid = stage.holds[at].spec.victim_uid.clone();
    stage.record().awaited.retain(|awaited| *awaited != uid);
}

#[test]
fn a_surge_ends_when_nobody_asks_any_more_and_not_before() {
    let at = |seconds| waiting(&["a"]).with(|stage| stage.now = after(seconds));
    let abandoned: Expected<'_> =
        &[&["Deployment: 3, no record", "event: SurgeEnded", "a-auid: Released Abandoned", "event: EvictionReleased"]];
    let asked = |seconds| at(360).with(|stage| stage.holds[0].status.last_requested_at = Some(after(seconds)));
    check(vec![
        ("asked for once, six minutes ago", at(360), abandoned),
        ("a second before", at(359), &[]),
        ("asked for again", asked(1), &[]),
        ("the cordon ended", at(300).with(|stage| stage.doomed.retain(|node| *node == "node-a")), &[]),
        (
            "its node is about to go, and nobody need ask",
            at(360).with(|stage| {
                stage.holds[0].spec.trigger = crate::hold::HoldTrigger::Doom;
                stage.cordoned.push("node-a");
            }),
            &[],
        ),
    ]);
    assert_eq!(at(300).plan().wake_at, Some(after(360)));
    assert_eq!(asked(100).plan().wake_at, Some(after(460)));
}

#[test]
fn a_released_victim_keeps_the_surge_until_it_is_gone_or_abandoned() {
    let expired = waiting(&["a"]).with(|stage| {
        stage.now = after(600);
        stage.holds[0].status.last_requested_at = Some(after(599));
    });
    let standing = expired.clone().with(|stage| released(stage, 0, "Expired"));
    let gone = standing.clone().with(|stage| drop(stage.pods.remove(0)));
    let left = standing.clone().with(|stage| stage.now = after(599 + 360));
    check(vec![
        ("the deadline passes", expired, &[&["a-auid: Released Expired", "warning: HandoverFailed"]]),
        ("the stand-in would go before it, so it is left to its evictor", standing, &[]),
        ("it is gone", gone, &[&["Deployment: 3, no record", "event: SurgeEnded"]]),
        ("nobody asks for it any more", left, &[&["Deployment: 3, no record", "event: SurgeEnded"]]),
    ]);
}

#[test]
fn a_released_victim_goes_with_the_scale_back_where_that_takes_it() {
    let stage = Stage::surged(&["a"], 1).standing_in("d", 4).with(|stage| released(stage, 0, "Expired"));
    check(vec![("the stand-in serves now", stage, &[&["Deployment: 3, record"]])]);
}

#[test]
fn the_mark_is_taken_off_a_victim_that_stays() {
    let stage = waiting(&["a"]).with(|stage| {
        released(stage, 0, "Abandoned");
        stage.deployment.surge = None;
        stage.scaled(3);
    });
    let plan = stage.plan_closely();
    let [crate::action::Action::PatchPod { changes, .. }] = &plan.sequences.concat()[..] else {
        panic!("{:?}", in_words(&plan));
    };
    assert!(changes.len() == 2 && changes.values().all(Option::is_none), "{changes:?}");
}

#[test]
fn a_number_that_somebody_else_set_is_raised_once_more_and_then_left_to_them() {
    let set = |replicas: i32| waiting(&["a"]).with(move |stage| stage.scaled(replicas));
    let again = set(3).with(|stage| stage.record().renewed = true);
    let given_up: Expected<'_> = &[&["Deployment: no record", "a-auid: Released Reverted", "warning: HandoverFailed"]];
    check(vec![
        ("as it was before", set(3), &[&["Deployment: 4, record", "warning: SurgeRenewed"]]),
        ("to more", set(6), &[&["Deployment: 7, record", "warning: SurgeRenewed"]]),
        ("to fewer", set(1), &[&["Deployment: 2, record", "warning: SurgeRenewed"]]),
        ("once more", again, given_up),
        (
            "nobody needs it any more",
            set(5).with(|stage| drop(stage.pods.remove(0))),
            &[
                &["a-auid: Released VictimGone", "event: EvictionReleased"],
                &["Deployment: no record", "event: SurgeEnded"],
            ],
        ),
        (
            "to nothing",
            set(0),
            &[
                &["a-auid: Released NotNeeded", "event: EvictionReleased"],
                &["Deployment: no record", "event: SurgeEnded"],
            ],
        ),
        (
            "the record was taken away",
            waiting(&["a"]).with(|stage| stage.deployment.surge = None),
            &[&["a: patch"], &["Deployment: no record", "a-auid: Released Reverted", "warning: HandoverFailed"]],
        ),
    ]);
    let renewed = set(6).plan().sequences.concat().into_iter().find_map(|action| match action {
        crate::action::Action::Surge { record, .. } => record,
        _ => None,
    });
    let renewed = renewed.expect("it is raised");
    assert_eq!((renewed.original, renewed.base, renewed.floor, renewed.since), (Some(6), 6, 3, after(2)));
}

#[test]
fn a_surge_without_protection_is_put_back_at_once() {
    let released: &[&str] = &["a-auid: Released NotNeeded", "event: EvictionReleased"];
    let back: &[&str] = &["Deployment: 3, no record", "event: SurgeEnded"];
    let by_restart = |stage: Stage| {
        stage.with(|stage| stage.protection.as_mut().expect("it is protected").settings.mode = Mode::Restart)
    };
    check(vec![
        ("protection was switched off", waiting(&["a"]).with(|stage| stage.protection = None), &[back, released]),
        (
            "the strategy is Recreate now",
            waiting(&["a"]).with(|stage| stage.deployment.strategy = crate::view::Strategy::Recreate),
            &[released, back],
        ),
        (
            "the handover is by restart now: the hold forgets the surge first",
            by_restart(waiting(&["a"])),
            &[&["a-auid: Active ReplacementNotReady", "Deployment: 3, no record", "event: SurgeEnded"]],
        ),
        ("there are no holds", waiting(&[]), &[back]),
        ("there are no holds, nor protection", waiting(&[]).with(|stage| stage.protection = None), &[back]),
    ]);
}

#[test]
fn a_surge_does_not_end_where_the_hold_that_it_was_made_for_is_not_seen() {
    let unseen = waiting(&["a"]).with(|stage| stage.holds.clear());
    let deleted = unseen.clone().with(|stage| stage.now = after(362));
    check(vec![
        ("the holds may be old", unseen, &[]),
        ("it was deleted", deleted, &[&["Deployment: 3, no record", "event: SurgeEnded"]]),
    ]);
}

#[test]
fn a_victim_that_goes_by_itself_is_accounted_for() {
    let gone = |stage: Stage| stage.with(|stage| drop(stage.pods.remove(0)));
    let served = || gone(Stage::surged(&["a"], 1).standing_in("d", 3));
    let alone = || gone(Stage::surged(&["a"], 1));
    let word = |stage: Stage| stage.words()[0][0].clone();
    assert_eq!(word(served()), "a-auid: Released HandedOver", "as many others serve as did");
    assert_eq!(word(alone()), "a-auid: Released VictimGone", "somebody else removed it");
    assert_eq!(word(alone().with(|stage| stage.now = after(600))), "a-auid: Released Expired");
    assert_eq!(word(served().with(|stage| stage.now = after(600))), "a-auid: Released HandedOver");
}
