//! Victims that nobody evicts: those of which a drainer gave up, and those that nobody ever asked for.

use super::*;
use crate::action::Action;
use crate::hold::{HoldTrigger, Outcome};
use crate::policy::Trigger;

/// `c` was asked for an hour ago and given up, and stands; `a` is asked for now.
fn given_up_before() -> Stage {
    Stage::asked(&["c", "a"]).with(|stage| {
        let status = stage.holds[0].status.clone();
        stage.holds[0].status = status.released(Outcome::Abandoned, String::new(), after(-3600));
        stage.doomed.retain(|node| *node == "node-a");
    })
}

fn surge_of(plan: &Plan) -> Option<SurgeRecord> {
    plan.sequences.concat().into_iter().find_map(|action| match action {
        Action::Surge { record, .. } | Action::NoteSurge { record, .. } => record,
        _ => None,
    })
}

#[test]
fn a_victim_that_was_given_up_serves_like_any_other_pod_in_later_surges() {
    let stage = given_up_before();
    assert_eq!(surge_of(&stage.plan()).map(|record| record.floor), Some(3), "it serves, and is to be spared");

    let surged = stage.with(|stage| {
        stage.deployment.surge = Some(SurgeRecord { awaited: vec!["a-uid".into()], ..super::record() });
        stage.scaled(4);
        stage.holds[1].status.phase = Phase::Active;
        stage.holds[1].status.restarted_at = Some(after(2));
        stage.mark("a");
    });
    let waiting = surged.clone().rest();
    assert_eq!(waiting.words(), [[""; 0]; 0], "one is let go for one stand-in, which is not there yet");
    let served = surged.standing_in("d", 3);
    let let_go: Expected<'_> = &[&["Deployment: 3, record", "a-auid: Released HandedOver", "event: EvictionReleased"]];
    let gone = served.clone().with(|stage| {
        let record = stage.record();
        (record.surge, record.awaited, record.released) = (0, Vec::new(), vec!["a-uid".into()]);
        stage.scaled(3);
        stage.pods.remove(0);
        let status = stage.holds[1].status.clone();
        stage.holds[1].status = status.released(Outcome::HandedOver, String::new(), stage.now);
    });
    check(vec![
        ("the stand-in serves", served, let_go),
        ("the surge ends with its own victim", gone, &[&["a-auid: Completed HandedOver"], &["Deployment: no record"]]),
    ]);
}

/// The nodes of these victims are cordoned, and that alone began their handovers, with one replica more.
fn cordoned(victims: &[&'static str]) -> Stage {
    Stage::surged(victims, 1).with(|stage| {
        stage.protection.as_mut().expect("it is protected").settings.trigger = Trigger::OnDoom;
        stage.cordoned = stage.doomed.clone();
        for hold in &mut stage.holds {
            hold.spec.trigger = HoldTrigger::Doom;
        }
    })
}

#[test]
fn victims_that_nobody_asks_for_go_one_after_the_other_with_a_replica_less() {
    let both = cordoned(&["a", "b"]).standing_in("d", 3);
    let first = both.clone().with(|stage| {
        stage.values.remove("b");
        stage.find("b").expect("it stands").mark = Mark::Free;
    });
    let let_go: Expected<'_> = &[&["Deployment: 3, record", "a-auid: Released HandedOver", "event: EvictionReleased"]];
    let going = first.clone().with(|stage| {
        let record = stage.record();
        (record.surge, record.awaited, record.released) = (0, vec!["b-uid".into()], vec!["a-uid".into()]);
        stage.scaled(3);
        let status = stage.holds[0].status.clone();
        stage.holds[0].status = status.released(Outcome::HandedOver, String::new(), stage.now);
    });
    let going = going.rest();
    let gone = going.clone().with(|stage| stage.pods[0].terminating = true);
    let busy = gone.clone().with(|stage| stage.deployment.status.replicas = 4);
    let asked = both.clone().with(|stage| {
        for hold in &mut stage.holds {
            hold.status.last_requested_at = Some(after(3));
        }
    });
    let by_evictor: Expected<'_> = &[&["Deployment: record", "a-auid: Released HandedOver", "event: EvictionReleased"]];
    let other = first.clone().with(|stage| stage.values.extend([("c", i32::MIN)]));
    check(vec![
        (
            "a scale-down would take either",
            both.with(|stage| stage.find("d").expect("it is there").ready_since = None).rest(),
            &[&["b: patch"]],
        ),
        ("the first", first, let_go),
        ("it stands", going, &[]),
        ("its evictor takes it, where there is one", asked, by_evictor),
        ("it cannot go, where a scale-down would take another pod", other, &[]),
    ]);
    let words = gone.words().concat();
    assert!(words.contains(&"Deployment: 4, record".to_owned()), "a stand-in is added for the next: {words:?}");
    assert!(!busy.words().concat().iter().any(|word| word.contains("no record")), "it does not end before that");
}

#[test]
fn the_hold_of_a_victim_that_nobody_asked_for_is_never_released_for_nothing() {
    let late = cordoned(&["a"]).with(|stage| stage.now = after(600));
    let asked = late.clone().with(|stage| stage.holds[0].status.last_requested_at = Some(after(599)));
    let forgotten = late.clone().with(|stage| stage.holds.clear());
    let stays = cordoned(&["a"]).rest().with(|stage| {
        stage.now = after(500);
        stage.cordoned.clear();
    });
    check(vec![
        ("its deadline passes", late, &[&["a-auid: delete", "event: HandoverPutOff"]]),
        ("somebody asked for it", asked, &[&["a-auid: Released Expired", "warning: HandoverFailed"]]),
        (
            "its node stays",
            stays,
            &[&["Deployment: 3, no record", "event: SurgeEnded", "a-auid: delete", "event: NodeStays"]],
        ),
    ]);
    let words = forgotten.words().concat();
    assert!(words.iter().any(|word| word.contains("a: hold, Doom")), "it begins anew: {words:?}");
    assert!(!words.iter().any(|word| word.contains("Deployment")), "and the surge goes on: {words:?}");
}

#[test]
fn an_eviction_request_that_was_withdrawn_keeps_no_surge() {
    let stage = Stage::surged(&["a"], 1).rest().with(|stage| {
        stage.holds[0].spec.trigger = HoldTrigger::EvictionRequest;
        stage.now = after(360);
    });
    assert_eq!(stage.words()[0][0], "Deployment: 3, no record");
}

#[test]
fn a_surge_does_not_wait_for_a_pod_that_is_gone_with_its_hold() {
    let deleted = Stage::surged(&["a"], 1).with(|stage| stage.holds.clear());
    let gone = deleted.clone().with(|stage| drop(stage.pods.remove(0)));
    check(vec![
        ("its hold was deleted", deleted, &[]),
        ("and it is gone", gone, &[&["Deployment: 3, no record", "event: SurgeEnded"]]),
    ]);
}
