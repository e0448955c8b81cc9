//! What is put into a pod's own create, and that the controller then has nothing to add.

use std::collections::BTreeMap;

use serde_json::json;

use crate::busy::create::first_hints;
use crate::busy::hints::{DO_NOT_DISRUPT, SAFE_TO_EVICT};
use crate::busy::testing::{Scene, all_hints, in_words, patch, preset_rule};
use crate::ownership::{Key, MANAGED_ANNOTATION};
use crate::testing::after;
use crate::view::PodPhase;

/// A pod as its create has it: no UID, no node, no status.
fn new(phase: &str) -> Scene {
    Scene::of(phase).with(|scene| {
        scene.pod.uid = "".into();
        scene.pod.resource_version = "".into();
        scene.pod.created = scene.now;
        (scene.pod.node, scene.pod.phase, scene.pod.ready_since) = (None, PodPhase::Pending, None);
    })
}

fn first(scene: &Scene) -> Vec<String> {
    let adds = first_hints(&scene.compiled(), &scene.seen(), scene.now);
    adds.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

const SAFE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict=true";

#[test]
fn what_is_known_then_is_told_then() {
    let free = [r#"belay.dev/managed={"cluster-autoscaler.kubernetes.io/safe-to-evict":"true"}"#, SAFE];
    let missing = new("Idle").with(|scene| scene.owner = None);
    let unreadable = new("Idle").with(|scene| scene.owner.as_mut().unwrap().object = json!({}));
    for (name, scene) in [
        ("idle", new("Idle")),
        ("starting", new("Starting")),
        ("done", new("Done")),
        ("its owner is not in the cache yet", missing),
        ("its owner has no status yet", unreadable),
    ] {
        assert_eq!(first(&scene), free, "{name}");
    }
    let busy = first(&new("Busy"));
    let expected = [
        "belay.dev/busy-since=2026-11-30T14:00:00Z",
        "cluster-autoscaler.kubernetes.io/safe-to-evict=false",
        "descheduler.alpha.kubernetes.io/prefer-no-eviction=true",
        "karpenter.sh/do-not-disrupt=true",
        "label:belay.dev/busy=true",
    ];
    assert!(busy.iter().filter(|add| !add.starts_with(MANAGED_ANNOTATION)).eq(expected), "{busy:?}");
}

#[test]
fn a_value_in_the_create_is_its_authors_and_not_managed() {
    let scene = new("Busy").with(|scene| {
        scene.pod.marks.insert(Key::annotation(DO_NOT_DISRUPT), "true".into());
        scene.pod.marks.insert(Key::annotation(SAFE_TO_EVICT), "true".into());
    });
    let adds = first_hints(&scene.compiled(), &scene.seen(), scene.now);
    assert!(
        !adds.contains_key(&Key::annotation(DO_NOT_DISRUPT)) && !adds.contains_key(&Key::annotation(SAFE_TO_EVICT))
    );
    let record = &adds[&Key::annotation(MANAGED_ANNOTATION)];
    assert_eq!(
        record,
        r#"{"belay.dev/busy-since":"2026-11-30T14:00:00Z","descheduler.alpha.kubernetes.io/prefer-no-eviction":"true","label:belay.dev/busy":"true"}"#
    );
    let all = new("Idle").with(|scene| drop(scene.pod.marks.insert(Key::annotation(SAFE_TO_EVICT), "false".into())));
    assert_eq!(first(&all), Vec::<String>::new(), "nothing of ours, no record");
}

#[test]
fn what_needs_no_hints_gets_none() {
    for (name, scene) in [
        ("a static pod's mirror", new("Busy").with(|scene| scene.pod.mirror = true)),
        // Whose record it is, the controller will find out.
        ("a record is there already", new("Busy").with(|scene| scene.pod.managed = Some("{}".into()))),
        (
            "nobody reads any",
            new("Idle").with(|scene| scene.rule.hints.cluster_autoscaler = crate::busy::AutoscalerHint::None),
        ),
    ] {
        assert_eq!(first(&scene), Vec::<String>::new(), "{name}");
    }
}

/// The first look at the new pod, and every one after that, as long as nothing changes.
#[test]
fn the_controller_adds_nothing_to_a_runner_that_never_gets_a_job() {
    for hints in [all_hints(), crate::busy::HintSwitches::default()] {
        let mut scene = new("Starting").with(|scene| {
            scene.rule = preset_rule("arc-runner");
            scene.rule.hints = hints;
            scene.owner = None;
        });
        let adds = first_hints(&scene.compiled(), &scene.seen(), scene.now);
        let adds: BTreeMap<_, _> = adds.into_iter().map(|(key, value)| (key, Some(value))).collect();
        scene.pod.resource_version = "1".into();
        scene.pod.uid = "pod-1".into();
        patch(&mut scene.pod, &adds);
        let owner = Scene::of("").owner;
        for (second, object) in [
            (0, None),
            (2, Some(json!({"metadata": {}}))),
            (5, Some(json!({"metadata": {}, "status": {"phase": "Pending", "ready": false}}))),
            (20, Some(json!({"metadata": {}, "status": {"phase": "Running", "ready": true}}))),
            (3600, Some(json!({"metadata": {}, "status": {"phase": "Running", "ready": true}}))),
            (86_400, Some(json!({"metadata": {}, "status": {"phase": "Succeeded"}}))),
        ] {
            scene.owner = object.map(|object| crate::busy::Owner { object, ..owner.clone().unwrap() });
            if second == 20 {
                (scene.pod.node, scene.pod.phase, scene.pod.ready_since) =
                    (Some("n".into()), PodPhase::Running, Some(after(19)));
            }
            scene = scene.at(second);
            assert_eq!(in_words(&scene.look()), Vec::<Vec<String>>::new(), "after {second} s");
        }
    }
}

#[test]
fn the_same_create_gets_the_same_hints() {
    let scene = new("Busy").with(|scene| scene.rule.hints = all_hints());
    assert_eq!(first(&scene), first(&scene.clone()));
}
