//! What a webhook replica answers in the meantime.

use std::time::Duration;

use super::*;
use crate::hold::{Answer, Facts, Moment, Request, Rules, decide};

pub(super) fn answer(stage: &Stage) -> Answer {
    let workload = stage.workload();
    let facts = Facts {
        synced: true,
        victim: stage.pods.iter().find(|pod| &*pod.name == "a"),
        workload: Some(&workload),
        protection: stage.protection.as_ref(),
        hold: stage.holds.iter().find(|hold| hold.spec.victim_name == "a"),
    };
    let request = Request { namespace: "shop", name: "a", uid: None, dry_run: false, evictor: "drainer" };
    let now = Moment { wall: stage.now, uptime: Duration::ZERO };
    decide(&request, &Rules::default(), &facts, None, now).answer
}

#[test]
fn a_replica_tells_what_the_controller_writes_down() {
    let starting = |stage: &mut Stage| stage.find("d").expect("it is there").ready_since = None;
    let waiting = [
        Stage::asked(&["a"]),
        Stage::surged(&["a"], 1),
        Stage::surged(&["a"], 1).standing_in("d", 3).with(starting),
        Stage::surged(&["a"], 1).standing_in("d", 3).with(|stage| stage.deployment.min_ready_seconds = 60),
        Stage::asked(&["a"]).with(|stage| stage.deployment.generation = 2),
    ];
    for stage in waiting {
        let held = answer(&stage);
        let written = stage.rest();
        assert_eq!(held.reason(), written.holds[0].status.reason);
        assert_eq!(held.held().map(|held| held.awaited.as_str()), Some(written.holds[0].status.message.as_str()));
    }
}

#[test]
fn a_replica_lets_go_only_whom_the_controller_let_go() {
    let enough = Stage::surged(&["a", "b"], 1).standing_in("d", 3);
    let let_go = |victim: &'static str| {
        enough.clone().with(move |stage| stage.record().released = vec![format!("{victim}-uid")])
    };
    let plenty = Stage::asked(&["a"]).with(|stage| stage.pods.push(pod("d", SET, "node-d")));
    let table = [
        ("enough others serve, and which victim goes is not said", enough.clone(), "AwaitingTurn"),
        ("the record says so", let_go("a"), "Released"),
        ("the record says another, whose stand-in is to come first", let_go("b"), "ReplacementNotCreated"),
        ("enough others serve without any surge", plenty, "AwaitingSurge"),
    ];
    for (name, stage, reason) in table {
        assert_eq!(answer(&stage).reason(), reason, "{name}");
    }
}

#[test]
fn an_answer_says_how_many_serve_beside_the_victim() {
    let stage = Stage::surged(&["a"], 1).standing_in("d", 3).with(|stage| stage.deployment.min_ready_seconds = 2);
    let held = answer(&stage);
    let held = held.held().expect("it is held");
    assert_eq!(
        held.awaited,
        "2 of 3 pods that have to be available beside it are: replacement d is not yet available (0/1, \
         minReadySeconds 2)"
    );
    assert_eq!(held.retry_after_seconds, Some(1), "it comes within three seconds");
}
