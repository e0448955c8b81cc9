//! Histories that once broke a law, as the random ones found them and shrinking left them.

use super::belay::Ask;
use super::cluster::Lag;
use super::people::Deed;
use super::{Config, World};
use crate::hold::{Outcome, Phase};
use crate::policy::OnFailure;

const FRESH: Lag = [0; 5];

/// A victim whose eviction is held and recorded, and a replacement that takes `startup` seconds.
fn held(on_failure: OnFailure, startup: Option<i64>) -> (World, String) {
    held_with(false, on_failure, startup)
}

fn held_with(recreate: bool, on_failure: OnFailure, startup: Option<i64>) -> (World, String) {
    let config = Config {
        recreate,
        min_ready: 0,
        limit: 20,
        on_failure,
        progress_deadline: None,
        grace: 5,
        prompt_records: true,
    };
    let mut world = World::new(config, startup);
    let victim = world.api.pods[0].view.uid.to_string();
    world.ask(Ask { replica: 0, pod: 0, lag: FRESH, dry_run: false, refused_later: true });
    (world, victim)
}

/// This many steps behind in holds alone.
fn holds_behind(steps: usize) -> Lag {
    [0, 0, 0, 0, u8::try_from(steps).expect("few steps")]
}

#[test]
fn a_leader_that_sees_an_old_hold_and_a_reverted_template_does_not_restart_again() {
    let (mut world, victim) = held(OnFailure::Release, None);
    world.lead(0, FRESH, None);
    let restarted = world.history.len();
    // The restart is noted in the hold; then somebody replaces the Deployment, before its controller saw the restart.
    world.lead(0, FRESH, None);
    world.person(Deed::StripBoth);
    world.round();
    // The other leader sees all of this, but the hold as it was before the note.
    let behind = holds_behind(world.history.len() - restarted);
    world.lead(1, behind, None);
    assert_eq!(world.laws.restarts.get(&victim), Some(&1));
}

#[test]
fn a_leader_that_sees_an_old_hold_does_not_take_back_what_was_handed_over() {
    let (mut world, victim) = held(OnFailure::RollBack, Some(2));
    world.lead(0, FRESH, None);
    let before = world.history.len();
    for _ in 0..4 {
        world.lead(0, FRESH, None);
        world.round();
    }
    let outcome = world.api.hold_of(&victim).and_then(|hold| hold.status.outcome);
    assert_eq!(outcome, Some(Outcome::HandedOver));
    let slot = world.api.deployment.slot.clone();
    // The deadline comes while the other leader still sees pods, nodes and holds as they were before.
    world.advance(20);
    let behind = u8::try_from(world.history.len() - before).expect("few steps");
    world.lead(1, [0, 0, behind, behind, behind], None);
    assert_eq!(world.api.deployment.slot, slot, "the template was put back");
}

#[test]
fn a_leader_that_sees_an_old_deployment_does_not_call_the_handover_reverted() {
    let (mut world, victim) = held(OnFailure::Release, Some(5));
    let before = world.history.len() - 1;
    world.lead(0, FRESH, None);
    world.round();
    world.lead(0, FRESH, None);
    let behind = u8::try_from(world.history.len() - 1 - before).expect("few steps");
    world.lead(1, [behind, 0, 0, 0, 0], None);
    assert_eq!(world.api.hold_of(&victim).map(|hold| hold.status.phase), Some(Phase::Active));
}

#[test]
fn an_undo_to_the_failed_revision_is_not_rolled_back_again() {
    let (mut world, victim) = held(OnFailure::RollBack, None);
    world.lead(0, FRESH, None);
    world.round();
    world.advance(20);
    world.lead(0, FRESH, None);
    world.round();
    assert_eq!(world.api.deployment.slot, None, "it is rolled back once");
    // The records that `undo` brings back with the template are the failed revision's own: without the rollback.
    world.person(Deed::StripBoth);
    world.person(Deed::Undo);
    let before = (world.api.deployment.slot.clone(), world.api.deployment.record_of(&victim).cloned());
    assert!(matches!(&before, (Some(_), Some(record)) if !record.rolled_back), "{before:?}");
    world.lead(0, FRESH, None);
    assert_eq!(world.api.deployment.slot, before.0);
}

#[test]
fn an_undo_while_the_rollback_is_under_way_is_not_rolled_back_again() {
    let (mut world, victim) = held(OnFailure::RollBack, None);
    world.lead(0, FRESH, None);
    world.round();
    world.advance(20);
    world.lead(0, FRESH, None);
    world.roll_out();
    world.person(Deed::Undo);
    world.roll_out();
    assert!(world.api.deployment.record_of(&victim).is_some_and(|record| !record.rolled_back));
    let slot = world.api.deployment.slot.clone();
    assert!(slot.is_some());
    world.lead(0, FRESH, None);
    assert_eq!(world.api.deployment.slot, slot);
}

#[test]
fn a_release_over_a_recreate_restart_is_not_called_reverted() {
    let (mut world, victim) = held_with(true, OnFailure::Release, Some(2));
    let before = world.history.len() - 1;
    world.lead(0, FRESH, None);
    world.round();
    // The release takes the slot away: the template's slot is the old ReplicaSet's again, and no newer one is made.
    world.person(Deed::Release { strips: true });
    world.roll_out();
    let behind = u8::try_from(world.history.len() - 1 - before).expect("few steps");
    world.lead(1, [0, 0, behind, 0, 0], None);
    assert_eq!(world.api.hold_of(&victim).and_then(|hold| hold.status.outcome), None);
}
