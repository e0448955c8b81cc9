//! Replicas that an autoscaler governs.

use super::answers::answer;
use super::*;
use crate::action::ObjectRef;
use crate::view::Governor;

fn autoscaler(minimum: Option<i32>, maximum: i32) -> AutoscalerView {
    AutoscalerView {
        governor: Governor::HorizontalPodAutoscaler,
        object: ObjectRef {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "scaler-uid".into(),
            resource_version: "5".into(),
        },
        target: "web".into(),
        minimum,
        maximum,
        paused: false,
        surge: None,
    }
}

/// A surge whose record stands on the autoscaler, of which the Deployment has so many replicas by now.
fn surged(original: Option<i32>, replicas: i32) -> Stage {
    Stage::surged(&["a"], 1).with(|stage| {
        let record = stage.deployment.surge.take().expect("there is a surge");
        let surge = Some(SurgeRecord { original, ..record });
        stage.autoscaler = Some(AutoscalerView { surge, ..autoscaler(Some(4), 9) });
        stage.scaled(replicas);
    })
}

fn governed(autoscaler: AutoscalerView) -> Stage {
    Stage::asked(&["a"]).with(|stage| stage.autoscaler = Some(autoscaler))
}

#[test]
fn the_minimum_is_raised_over_the_replicas_that_there_are() {
    let begun = |number: &str| -> Vec<Vec<String>> {
        let words = ["a-auid: Active AwaitingSurge", "event: EvictionHeld", number, "event: HandoverStarted"];
        vec![words.map(str::to_owned).into()]
    };
    let keda = |minimum| AutoscalerView { governor: Governor::ScaledObject, ..autoscaler(minimum, 9) };
    let table = [
        ("of a HorizontalPodAutoscaler", autoscaler(Some(1), 9), "HorizontalPodAutoscaler: 4, record"),
        ("that says none", autoscaler(None, 9), "HorizontalPodAutoscaler: 4, record"),
        ("that is to have more replicas than there are", autoscaler(Some(5), 9), "HorizontalPodAutoscaler: 6, record"),
        ("of a ScaledObject", keda(None), "ScaledObject: 4, record"),
        ("up to the maximum", autoscaler(Some(1), 4), "HorizontalPodAutoscaler: 4, record"),
    ];
    for (name, autoscaler, number) in table {
        assert_eq!(governed(autoscaler).words(), begun(number), "{name}");
    }
    let many = governed(autoscaler(Some(1), 4)).with(|stage| {
        stage.ask("b", 1);
        stage.protection.as_mut().expect("it is protected").settings.surge_replicas = 2;
    });
    let words = many.words().concat();
    assert!(words.contains(&"HorizontalPodAutoscaler: 4, record".to_owned()), "no more than the maximum: {words:?}");
}

#[test]
fn without_room_nothing_is_held() {
    let released: Expected<'_> = &[&["a-auid: Released NotNeeded", "event: EvictionReleased"]];
    check(vec![
        ("at the maximum", governed(autoscaler(Some(1), 3)), released),
        ("paused", governed(AutoscalerView { paused: true, ..autoscaler(Some(1), 9) }), released),
    ]);
}

#[test]
fn the_minimum_goes_back_with_the_victim_and_then_the_replicas() {
    let served = |original| surged(original, 4).standing_in("d", 3);
    let released = &["a-auid: Released HandedOver", "event: EvictionReleased"];
    let follow: Expected<'_> = &[&["web: scale to 3", "a-auid: Released HandedOver", "event: EvictionReleased"]];
    let due = |stage: &mut Stage| {
        let scaler = stage.autoscaler.as_mut().expect("there is one");
        scaler.minimum = Some(1);
        let record = scaler.surge.as_mut().expect("there is a surge");
        (record.surge, record.awaited, record.released) = (0, Vec::new(), vec!["a-uid".into()]);
    };
    let another_goes_first = |stage: &mut Stage| stage.values.extend([("b", i32::MIN)]);
    let lagging = |stage: &mut Stage| {
        due(stage);
        stage.holds[0].status.phase = Phase::Released;
        stage.holds[0].status.reason = "HandedOver".into();
        stage.holds[0].status.released_at = Some(stage.now);
    };
    let down = served(Some(1)).with(lagging).with(|stage| stage.scaled(3));
    let gone = served(Some(1)).with(lagging).with(|stage| {
        stage.scaled(3);
        stage.pods[0].terminating = true;
    });
    check(vec![
        ("the minimum was one", served(Some(1)), &[&["HorizontalPodAutoscaler: 1, record"]]),
        ("there was none", served(None), &[&["HorizontalPodAutoscaler: default, record"]]),
        ("its evictor would be faster than the replicas", served(Some(1)).with(due), follow),
        ("a scale-down would take another pod", served(Some(1)).with(due).with(another_goes_first), &[released]),
        ("somebody else was faster", served(Some(1)).with(due).with(|stage| stage.scaled(3)), &[released]),
        ("the autoscaler would take its time", served(Some(1)).with(lagging), &[&["web: scale to 3"]]),
        ("the ReplicaSet is at it", down, &[]),
        ("it goes", gone, &[&["HorizontalPodAutoscaler: no record"]]),
    ]);
    let reason = |stage: &Stage| answer(stage).reason();
    assert_eq!(reason(&served(Some(1)).with(due)), "AwaitingTurn", "the webhook waits as well");
    assert_eq!(reason(&served(Some(1)).with(due).with(|stage| stage.scaled(3))), "Released");
    let busy = served(Some(1)).with(due).with(|stage| stage.scaled(5));
    assert_eq!(busy.words(), [released.map(str::to_owned)], "the load asks for more: its evictor takes it");
}

#[test]
fn what_the_autoscaler_scales_up_by_itself_is_left_to_it() {
    let busy = surged(Some(1), 6).with(|stage| drop(stage.pods.remove(0)));
    let busy = busy.standing_in("d", 3);
    let word = busy.words().concat();
    assert!(word.contains(&"HorizontalPodAutoscaler: 1, no record".to_owned()), "{word:?}");
    assert!(!word.iter().any(|word| word.contains("scale to")), "{word:?}");
    let quiet = surged(Some(1), 4).with(|stage| drop(stage.pods.remove(0))).standing_in("d", 3);
    assert!(quiet.words().concat().contains(&"web: scale to 3".to_owned()), "at the raised minimum it goes down");
}

#[test]
fn a_minimum_that_somebody_set_back_is_raised_from_the_replicas_without_the_stand_ins() {
    let set = |minimum, replicas| {
        surged(Some(1), replicas).with(move |stage| {
            stage.autoscaler.as_mut().expect("there is one").minimum = Some(minimum);
        })
    };
    let word = |stage: Stage| stage.words().concat().into_iter().find(|word| word.starts_with("Horizontal"));
    assert_eq!(word(set(1, 4)).as_deref(), Some("HorizontalPodAutoscaler: 4, record"));
    assert_eq!(word(set(2, 3)).as_deref(), Some("HorizontalPodAutoscaler: 4, record"));
    assert_eq!(word(set(6, 4)).as_deref(), Some("HorizontalPodAutoscaler: 7, record"));
}

#[test]
fn a_surge_on_what_does_not_govern_any_more_is_put_back_first() {
    let came = Stage::surged(&["a"], 1).rest().with(|stage| stage.autoscaler = Some(autoscaler(Some(1), 9)));
    let first: Expected<'_> =
        &[&["a-auid: Active ReplacementNotCreated", "Deployment: 3, no record", "event: SurgeEnded"]];
    let then = came.clone().with(|stage| {
        let plan = stage.plan_closely().sequences.concat();
        let Some(crate::action::Action::UpdateHold { status, .. }) = plan.first() else { panic!("{plan:?}") };
        stage.holds[0].status = status.clone();
        stage.deployment.surge = None;
        stage.scaled(3);
        stage.values.clear();
        stage.find("a").expect("it stands").mark = Mark::Free;
    });
    let begun: Expected<'_> =
        &[&["a-auid: Active AwaitingSurge", "HorizontalPodAutoscaler: 4, record", "event: HandoverStarted"]];
    check(vec![("it comes in mid-surge", came.clone(), first), ("and is raised for the same victim", then, begun)]);
    let pointed = surged(Some(1), 4).with(|stage| {
        let scaler = stage.autoscaler.as_mut().expect("there is one");
        scaler.surge.as_mut().expect("there is a surge").workload = "another".into();
    });
    let word = |stage: Stage| stage.words().concat().into_iter().find(|word| word.contains("record"));
    assert_eq!(word(came).as_deref(), Some("Deployment: 3, no record"), "an autoscaler came");
    assert_eq!(word(pointed).as_deref(), Some("HorizontalPodAutoscaler: 1, no record"), "it scaled another Deployment");
}
