//! Where a workload stands with respect to one victim.

use crate::handover::Situation;
use crate::handover::situation::Replacement;
use crate::testing::{NEW, OLD, REPLACEMENT, Scene, after, pod, replica_set};
use crate::view::{PodPhase, PodView, Strategy};

fn word(situation: &Situation<'_>) -> String {
    match situation {
        Situation::Served { by } => format!("Served by {}", by.name),
        Situation::Unobserved => "Unobserved".into(),
        Situation::Rolling(replacement) => format!("Rolling: {}", replacement.reason()),
        Situation::Settling => "Settling".into(),
        Situation::Steady => "Steady".into(),
    }
}

fn check(table: Vec<(&str, Scene, &str)>) {
    for (name, scene, expected) in table {
        assert_eq!(word(&scene.situation()), expected, "{name}");
    }
}

#[test]
fn a_workload_at_rest_is_steady() {
    let bent = |bend: fn(&mut Scene)| Scene::quiet().with(bend);
    check(vec![
        ("one available pod of the newest revision", Scene::quiet(), "Steady"),
        ("its node may stay: an eviction speaks of the pod", bent(|scene| scene.doomed.clear()), "Steady"),
        ("the victim is not available yet", bent(|scene| scene.deployment.status.available = 0), "Settling"),
        ("a pod of an old revision still runs", bent(|scene| scene.deployment.status.replicas = 2), "Settling"),
        (
            "no pod is counted as updated, not even the victim: the newest ReplicaSet is not made yet",
            bent(|scene| scene.deployment.status.updated = 0),
            "Unobserved",
        ),
        ("a newer spec was not observed", bent(|scene| scene.deployment.generation = 2), "Unobserved"),
    ]);
}

#[test]
fn the_newest_revision_is_known_only_when_everybody_agrees() {
    let bent = |bend: fn(&mut Scene)| Scene::rolling().with(bend);
    check(vec![
        ("revision, slot and generation agree", Scene::rolling(), "Rolling: ReplacementNotCreated"),
        ("the Deployment has no revision", bent(|scene| scene.deployment.revision = None), "Unobserved"),
        ("its ReplicaSet is not in the cache yet", bent(|scene| drop(scene.sets.pop())), "Unobserved"),
        (
            "the generation is observed, the revision is still the old ReplicaSet's",
            bent(|scene| scene.deployment.revision = Some(1)),
            "Unobserved",
        ),
        (
            "the ReplicaSet of that revision is of another slot",
            bent(|scene| scene.sets[1].slot = Some("b".into())),
            "Unobserved",
        ),
        (
            "somebody took the slot away, and the rollback is not observed",
            bent(|scene| (scene.deployment.slot, scene.deployment.generation) = (None, 3)),
            "Unobserved",
        ),
        (
            "the release is the user's own, of the same slot",
            Scene::quiet().with(|scene| {
                scene.deployment.revision = Some(2);
                scene.sets.push(replica_set(NEW, 2, None));
            }),
            "Rolling: ReplacementNotCreated",
        ),
    ]);
}

#[test]
fn a_victim_is_served_only_by_an_available_pod_of_the_newest_revision_on_a_node_that_stays() {
    let bent = |bend: fn(&mut Scene)| Scene::ready_for(0).with(bend);
    let waiting = |seconds| Scene::ready_for(seconds).with(|scene| scene.deployment.min_ready_seconds = 10);
    check(vec![
        ("ready, and no minReadySeconds to wait for", Scene::ready_for(0), "Served by web-58c6-y"),
        ("ready for minReadySeconds", waiting(10), "Served by web-58c6-y"),
        ("a second before", waiting(9), "Rolling: ReplacementNotAvailable"),
        ("its node is doomed", bent(|scene| scene.doomed.push("node-2")), "Rolling: ReplacementOnDoomedNode"),
        (
            "its node is the victim's own",
            bent(|scene| {
                scene.doomed.clear();
                scene.replacement().node = Some("node-1".into());
            }),
            "Rolling: ReplacementOnDoomedNode",
        ),
        ("it is being deleted", bent(|scene| scene.replacement().terminating = true), "Rolling: ReplacementNotCreated"),
        ("it has ended", bent(|scene| scene.replacement().phase = PodPhase::Failed), "Rolling: ReplacementNotCreated"),
        ("it is not ready", bent(|scene| scene.replacement().ready_since = None), "Rolling: ReplacementNotReady"),
        (
            "it is of an old revision",
            bent(|scene| scene.replacement().replica_set = Some("rs-older".into())),
            "Rolling: ReplacementNotCreated",
        ),
        (
            "a newer spec is not observed: it may be of an old revision",
            bent(|scene| scene.deployment.generation = 3),
            "Unobserved",
        ),
        (
            "two pods of the newest revision serve: the victim is one of them, the other stays",
            Scene::quiet().with(|scene| scene.pods.push(pod("web-7d9f-z", OLD, "node-2"))),
            "Served by web-7d9f-z",
        ),
    ]);
}

#[test]
fn what_is_lacking_is_told_of_the_pod_that_is_nearest_to_serving() {
    let candidate = |name: &str, bend: fn(&mut PodView)| {
        let mut candidate = pod(name, NEW, "node-2");
        bend(&mut candidate);
        candidate
    };
    // From the nearest to the farthest.
    let order = [
        candidate("available-soon", |pod| pod.ready_since = Some(after(-1))),
        candidate("not-ready", |pod| pod.ready_since = None),
        candidate("starting", |pod| (pod.ready_since, pod.phase) = (None, PodPhase::Pending)),
        candidate("nowhere", |pod| {
            (pod.ready_since, pod.phase, pod.node, pod.unschedulable) = (None, PodPhase::Pending, None, true);
        }),
        candidate("doomed", |pod| pod.node = Some("node-1".into())),
    ];
    let reasons = [
        "ReplacementNotAvailable",
        "ReplacementNotReady",
        "ReplacementStarting",
        "ReplacementUnschedulable",
        "ReplacementOnDoomedNode",
    ];
    for (first, reason) in reasons.iter().enumerate() {
        let mut scene = Scene::rolling();
        scene.deployment.min_ready_seconds = 10;
        scene.pods.extend(order[first..].iter().cloned());
        assert_eq!(word(&scene.situation()), format!("Rolling: {reason}"));
        scene.pods[1..].reverse();
        assert_eq!(word(&scene.situation()), format!("Rolling: {reason}"), "in the other order");
    }
    let recreate = Scene::rolling().with(|scene| scene.deployment.strategy = Strategy::Recreate);
    assert_eq!(recreate.situation(), Situation::Rolling(Replacement::AfterTermination));
    assert_eq!(word(&Scene::starting().situation()), "Rolling: ReplacementStarting", "{REPLACEMENT}");
}
