//! From the first refusal to the scale-back, all going well.

use super::*;
use crate::action::Action;

#[test]
fn the_replicas_are_raised_for_the_first_victim() {
    let expected: &[&[&str]] =
        &[&["a-auid: Active AwaitingSurge", "event: EvictionHeld", "Deployment: 4, record", "event: HandoverStarted"]];
    check(vec![("one victim", Stage::asked(&["a"]), expected)]);
    let plan = Stage::asked(&["a"]).plan();
    let raised = plan.sequences.concat().into_iter().find_map(|action| match action {
        Action::Surge { record, object, .. } => Some((object.resource_version, record)),
        _ => None,
    });
    assert_eq!(
        raised,
        Some(("100".to_owned(), Some(SurgeRecord { since: after(1), awaited: vec!["a-uid".into()], ..record() })))
    );
}

#[test]
fn a_number_is_written_as_whom_the_policy_names() {
    let managers = |manager: Option<&str>| {
        let stage = Stage::asked(&["a"]).with(|stage| {
            let settings = &mut stage.protection.as_mut().expect("it is protected").settings;
            settings.field_manager = manager.map(str::to_owned);
        });
        let actions = stage.plan().sequences.concat().into_iter();
        let of_numbers = actions.filter_map(|action| match action {
            Action::Surge { field_manager, .. } | Action::Scale { field_manager, .. } => Some(field_manager),
            _ => None,
        });
        of_numbers.collect::<Vec<_>>()
    };
    assert_eq!(managers(Some("flux-client-side-apply")), [Some("flux-client-side-apply".to_owned())]);
    assert_eq!(managers(None), [None], "as Belay");
}

#[test]
fn a_refused_surge_is_said_in_the_hold() {
    let stage = Stage::asked(&["a"]).with(|stage| stage.refused = Some("missing right"));
    let told = stage.plan().sequences.concat().into_iter().find_map(|action| match action {
        Action::UpdateHold { status, .. } => Some((status.reason, status.message)),
        _ => None,
    });
    let message = "no replica can be added to stand in for it, tried again and again: missing right";
    assert_eq!(told, Some(("AwaitingSurge".to_owned(), message.to_owned())));
}

#[test]
fn a_surge_is_as_large_as_there_are_victims_and_the_policy_allows() {
    let of = |victims: &[&'static str], most| {
        Stage::asked(victims).with(|stage| {
            stage.protection.as_mut().expect("it is protected").settings.surge_replicas = most;
        })
    };
    let raised = |stage: Stage| {
        let words = stage.words().concat();
        words.into_iter().find(|word| word.starts_with("Deployment")).expect("the replicas are raised")
    };
    assert_eq!(raised(of(&["a", "b"], 1)), "Deployment: 4, record");
    assert_eq!(raised(of(&["a", "b"], 2)), "Deployment: 5, record");
    assert_eq!(raised(of(&["a", "b"], 9)), "Deployment: 5, record");
    let grown = Stage::surged(&["a", "b"], 1).with(|stage| {
        stage.protection.as_mut().expect("it is protected").settings.surge_replicas = 2;
    });
    assert_eq!(raised(grown.clone()), "Deployment: 5, record", "more victims came");
    let action = grown.plan_closely().sequences.concat();
    let record_then = action.iter().find_map(|action| match action {
        Action::Surge { record, .. } => record.clone(),
        _ => None,
    });
    let awaited = vec!["a-uid".into(), "b-uid".into()];
    assert_eq!(record_then, Some(SurgeRecord { surge: 2, awaited, ..record() }), "all else stays");
}

#[test]
fn a_surge_begins_only_from_rest() {
    let bent = |bend: fn(&mut Stage)| Stage::asked(&["a"]).with(bend);
    let waits = |reason: &'static str| -> Vec<Vec<String>> {
        vec![vec![format!("a-auid: Active {reason}"), "event: EvictionHeld".into()]]
    };
    let table = [
        ("the newest spec is not observed", bent(|stage| stage.deployment.generation = 2), "RolloutNotObserved"),
        ("pods of an older revision are left", bent(|stage| stage.deployment.status.replicas = 4), "ReleaseUnderWay"),
        (
            "the victim is of an older revision, and no newer pod is there",
            bent(|stage| {
                stage.deployment.revision = Some(2);
                stage.sets.push(replica_set("58c6", 2, None));
            }),
            "ReplacementNotCreated",
        ),
        (
            "the victim is of an older revision, and newer ones serve",
            bent(|stage| {
                stage.deployment.revision = Some(2);
                stage.sets.push(replica_set("58c6", 2, None));
                stage.pods.push(pod("d", "58c6", "node-d"));
            }),
            "ReleaseUnderWay",
        ),
    ];
    for (name, stage, reason) in table {
        assert_eq!(stage.words(), waits(reason), "{name}");
        assert_eq!(stage.rest().words(), [[""; 0]; 0], "{name}: a second look writes nothing");
    }
    let broken = bent(|stage| {
        stage.deployment.status.available = 2;
        stage.pods[2].ready_since = None;
    });
    let begun = broken.plan().sequences.concat().into_iter().find_map(|action| match action {
        Action::Surge { record, .. } => record,
        _ => None,
    });
    assert_eq!(begun.map(|record| record.floor), Some(2), "a pod that is not well keeps nobody from being handed over");
}

#[test]
fn the_victim_is_marked_as_soon_as_the_surge_is_seen() {
    let stage = Stage::surged(&["a"], 1).with(|stage| {
        stage.values.clear();
        stage.find("a").expect("it stands").mark = Mark::Free;
        stage.holds[0].status.restarted_at = None;
    });
    let expected: &[&[&str]] = &[&["Deployment: record", "a: patch"], &["a-auid: Active ReplacementNotCreated"]];
    let changes = stage.plan_closely().sequences.concat().into_iter().find_map(|action| match action {
        Action::PatchPod { changes, .. } => Some(changes),
        _ => None,
    });
    let changes = changes.expect("the pod is marked");
    assert_eq!(changes[&Key::annotation(COST_ANNOTATION)].as_deref(), Some("-1048576"));
    let record = r#"{"controller.kubernetes.io/pod-deletion-cost":"-1048576"}"#;
    assert_eq!(changes[&Key::annotation(MANAGED_ANNOTATION)].as_deref(), Some(record));

    let taken = stage.clone().with(|stage| {
        stage.values.insert("a", 7);
        stage.find("a").expect("it stands").mark = Mark::Taken;
    });
    check(vec![("a free pod", stage, expected), ("a user's value is never touched", taken, &expected[1..])]);
}

#[test]
fn a_victim_waits_until_as_many_others_are_available_as_were() {
    let bent = |bend: fn(&mut Stage)| Stage::surged(&["a"], 1).standing_in("d", 3).with(bend);
    let table = [
        ("the stand-in is not there", Stage::surged(&["a"], 1), "ReplacementNotCreated"),
        (
            "it starts",
            bent(|stage| {
                let stand_in = stage.find("d").expect("it is there");
                (stand_in.ready_since, stand_in.phase) = (None, PodPhase::Pending);
            }),
            "ReplacementStarting",
        ),
        (
            "it is not ready",
            bent(|stage| stage.find("d").expect("it is there").ready_since = None),
            "ReplacementNotReady",
        ),
        ("it is not yet available", bent(|stage| stage.deployment.min_ready_seconds = 60), "ReplacementNotAvailable"),
        ("it is on a node that is about to go", bent(|stage| stage.doomed.push("node-d")), "ReplacementOnDoomedNode"),
        (
            "another pod is not well",
            bent(|stage| stage.find("b").expect("it is there").ready_since = None),
            "ReplacementNotReady",
        ),
        (
            "another pod is being deleted",
            bent(|stage| stage.find("b").expect("it is there").terminating = true),
            "ReplacementNotCreated",
        ),
    ];
    for (name, stage, reason) in table {
        let stage = stage.rest();
        assert_eq!(stage.holds[0].status.reason, reason, "{name}");
        assert_eq!(stage.words(), [[""; 0]; 0], "{name}: a second look writes nothing");
        assert!(stage.plan().wake_at.is_some_and(|at| at > stage.now), "{name}: it will be looked at again");
    }
    let minute = bent(|stage| stage.deployment.min_ready_seconds = 60).rest();
    assert_eq!(minute.plan().wake_at, Some(after(63)), "when the stand-in becomes available");
}

#[test]
fn pods_that_served_before_the_surge_count_wherever_they_are() {
    let stage = Stage::surged(&["a"], 1).standing_in("d", 3).with(|stage| stage.doomed.extend(["node-b", "node-c"]));
    assert_eq!(stage.words()[0][0], "Deployment: 3, record");
}

#[test]
fn the_last_victim_goes_with_the_scale_back() {
    let stage = Stage::surged(&["a"], 1).standing_in("d", 3);
    let expected: &[&[&str]] = &[&["Deployment: 3, record", "a-auid: Released HandedOver", "event: EvictionReleased"]];
    let record_then = stage.plan_closely().sequences.concat().into_iter().find_map(|action| match action {
        Action::Surge { record, .. } => record,
        _ => None,
    });
    let released = vec!["a-uid".to_owned()];
    let back = SurgeRecord { surge: 0, released, ..record() };
    assert_eq!(record_then, Some(back.clone()), "the number is put back in the write that lets it go");

    let released = stage.clone().with(|stage| {
        stage.deployment.surge = Some(back.clone());
        stage.deployment.replicas = 3;
        stage.holds[0].status.phase = Phase::Released;
        stage.holds[0].status.reason = "HandedOver".into();
        stage.holds[0].status.released_at = Some(stage.now);
    });
    let lost = released.clone().with(|stage| stage.holds[0].status.phase = Phase::Active);
    let going = released.clone().with(|stage| stage.pods[0].terminating = true);
    let gone = released.clone().with(|stage| drop(stage.pods.remove(0)));
    check(vec![
        ("as many others are available as were", stage, expected),
        ("nothing more is done while it stands", released, &[]),
        ("the release was lost", lost, &[&["a-auid: Released HandedOver", "event: EvictionReleased"]]),
        ("it goes", going, &[&["Deployment: no record"]]),
        ("it is gone", gone, &[&["a-auid: Completed HandedOver"], &["Deployment: no record"]]),
    ]);
}

#[test]
fn of_several_victims_all_but_the_last_go_with_their_evictors() {
    let first = Stage::surged(&["a", "b"], 1).standing_in("d", 3);
    let released: &[&[&str]] = &[&["Deployment: record", "a-auid: Released HandedOver", "event: EvictionReleased"]];
    let let_go = first.clone().with(|stage| {
        stage.record().released = vec!["a-uid".into()];
        stage.record().awaited = vec!["b-uid".into()];
        stage.holds[0].status.phase = Phase::Released;
        stage.holds[0].status.reason = "HandedOver".into();
    });
    let waiting = let_go.clone().rest();
    let replaced = waiting.clone().with(|stage| drop(stage.pods.remove(0))).standing_in("e", 9);
    let last: &[&[&str]] = &[
        &["a-auid: Completed HandedOver"],
        &["Deployment: 3, record", "b-buid: Released HandedOver", "event: EvictionReleased"],
    ];
    check(vec![
        ("the first, since both need the stand-in", first, released),
        ("the second waits until the first is replaced", waiting, &[]),
        ("and goes with the scale-back", replaced, last),
    ]);
}

#[test]
fn a_victim_is_left_to_its_evictor_where_a_scale_down_would_take_another_pod() {
    let bent = |bend: fn(&mut Stage)| Stage::surged(&["a"], 1).standing_in("d", 3).with(bend);
    let released: &[&[&str]] = &[&["Deployment: record", "a-auid: Released HandedOver", "event: EvictionReleased"]];
    let user = |stage: &mut Stage| {
        stage.values.insert("a", 7);
        stage.find("a").expect("it stands").mark = Mark::Taken;
    };
    check(vec![
        ("the user gave it a value", bent(user), released),
        ("the user gave another pod a lower one", bent(|stage| stage.values.extend([("b", i32::MIN)])), released),
        (
            "another pod is not ready, in a surge over pods of which one was not",
            bent(|stage| {
                stage.record().floor = 2;
                stage.find("b").expect("it is there").ready_since = None;
            }),
            released,
        ),
        (
            "not all pods are there",
            bent(|stage| {
                stage.scaled(5);
                stage.record().surge = 2;
            }),
            &[&["Deployment: record", "a-auid: Released HandedOver", "event: EvictionReleased"]],
        ),
    ]);
}
