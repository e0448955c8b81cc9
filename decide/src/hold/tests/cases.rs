//! The cases: requests, by what they must be answered.

use super::*;

pub(super) fn released_hold(phase: Phase) -> HoldView {
    let status = HoldStatus { phase, outcome: Some(Outcome::Failed), ..HoldStatus::default() };
    HoldView { status, ..hold(VICTIM, OLD) }
}

/// Every case that is let through without a trace: no memory, no record.
pub(super) fn let_through() -> Vec<(&'static str, Case, &'static str)> {
    let quiet = || Case::of(Scene::quiet());
    let bent = |bend: fn(&mut Scene)| Case::of(Scene::quiet().with(bend));
    let lossy = Strategy::RollingUpdate { max_surge: IntOrPercent::Int(0), max_unavailable: IntOrPercent::Int(1) };
    vec![
        (
            "a namespace that is excluded is nobody's concern",
            quiet().with(|case| case.namespace = "kube-system"),
            "ExcludedNamespace",
        ),
        (
            "an exclusion comes before everything else that could be wrong",
            quiet().with(|case| (case.namespace, case.synced) = ("belay-system", false)),
            "ExcludedNamespace",
        ),
        ("a replica whose caches are not filled fails open", quiet().with(|case| case.synced = false), "NotSynced"),
        ("a pod that nobody knows", quiet().with(|case| case.known = false), "UnknownPod"),
        (
            "the client meant another pod of that name",
            quiet().with(|case| case.uid = Some("another-uid")),
            "UidMismatch",
        ),
        ("a pod that is being deleted", bent(|scene| scene.victim().terminating = true), "Terminating"),
        ("a pod that ended well", bent(|scene| scene.victim().phase = PodPhase::Succeeded), "Finished"),
        ("a pod that ended badly", bent(|scene| scene.victim().phase = PodPhase::Failed), "Finished"),
        ("a pod that has not started", bent(|scene| scene.victim().phase = PodPhase::Pending), "Pending"),
        ("a pod that is not bound", bent(|scene| scene.victim().node = None), "Pending"),
        ("a pod that is not ready serves nobody", bent(|scene| scene.victim().ready_since = None), "NotReady"),
        ("a Deployment that nobody protects", bent(|scene| scene.protection = None), "NotProtected"),
        ("an evictor that the platform ignores", quiet().with(|case| case.evictor = "vpa"), "IgnoredEvictor"),
        (
            "an evictor that the policy ignores",
            bent(|scene| {
                scene.protection.as_mut().unwrap().settings.ignore_evictors = vec!["drain*".into()];
            }),
            "IgnoredEvictor",
        ),
        ("a paused Deployment cannot roll", bent(|scene| scene.deployment.paused = true), "Paused"),
        ("zero replicas leave nothing to hand over", bent(|scene| scene.deployment.replicas = 0), "ZeroReplicas"),
        (
            "several replicas are not Restart's business",
            bent(|scene| scene.deployment.replicas = 3),
            "MoreThanOneReplica",
        ),
        (
            "a strategy that lets the only pod go first gains nothing",
            Case::of(Scene::quiet().with(|scene| scene.deployment.strategy = lossy)),
            "LossyStrategy",
        ),
    ]
}

/// Every case that releases the victim for ever.
pub(super) fn released() -> Vec<(&'static str, Case, &'static str)> {
    let late = |scene: Scene| Case::of(scene).asked_ago(600);
    vec![
        (
            "this replica released it before",
            Case::of(Scene::starting()).asked_ago(5).with(|case| case.memory.as_mut().unwrap().released = true),
            "Released",
        ),
        (
            "the hold is released in the API",
            Case::of(Scene::quiet().with(|scene| scene.holds = vec![released_hold(Phase::Released)])),
            "Released",
        ),
        (
            "a completed hold of a pod that is still there stays released",
            Case::of(Scene::quiet().with(|scene| scene.holds = vec![released_hold(Phase::Completed)])),
            "Released",
        ),
        ("the replacement is available on another node", Case::of(Scene::ready_for(0)), "ReplacementAvailable"),
        (
            "an available replacement counts even when the hold was never recorded",
            Case::of(Scene::ready_for(0).with(|scene| scene.holds.clear())),
            "ReplacementAvailable",
        ),
        (
            "a second after the last minReadySeconds is late enough",
            Case::of(Scene::ready_for(30).with(|scene| scene.deployment.min_ready_seconds = 30)),
            "ReplacementAvailable",
        ),
        ("the recorded deadline has come", late(Scene::starting().with(|s| s.now = after(600))), "DeadlinePassed"),
        (
            "a replica that starts after the recorded deadline does not hold again",
            Case::of(Scene::starting().with(|scene| scene.now = after(600))),
            "DeadlinePassed",
        ),
        (
            "the deadline on the Deployment counts where the hold was deleted",
            Case::of(Scene::starting().with(|scene| {
                scene.now = after(600);
                scene.holds.clear();
            })),
            "DeadlinePassed",
        ),
        (
            "the limit has passed by uptime, though the wall clock was set back an hour",
            Case::of(Scene::starting()).asked_ago(600).with(|case| case.scene.now = after(-3600)),
            "DeadlinePassed",
        ),
        (
            "the limit has passed by the wall clock, though the process slept",
            Case::of(Scene::starting()).asked_ago(5).with(|case| case.scene.now = after(600)),
            "DeadlinePassed",
        ),
        (
            "an hour's readinessDeadlineSeconds set later does not prolong the hold",
            late(Scene::starting().with(|scene| {
                scene.protection.as_mut().unwrap().settings.readiness_deadline_seconds = 3600;
                scene.holds[0].spec.deadline = after(3600);
            })),
            "DeadlinePassed",
        ),
        ("a hold that nobody could record ends after the grace", Case::of(Scene::quiet()).asked_ago(30), "NotRecorded"),
        ("the template was put back, and the rollout back is over", Case::of(Scene::reverted()), "Reverted"),
        (
            "the template was put back, and the rollout back is under way",
            Case::of(Scene::reverted().with(|scene| scene.deployment.status.replicas = 2)),
            "Reverted",
        ),
    ]
}

/// Every thing that a victim can wait for, with the reason and what the drainer reads.
pub(super) fn holds() -> Vec<(&'static str, Case, &'static str, &'static str)> {
    let recreate = |scene: Scene| scene.with(|scene| scene.deployment.strategy = Strategy::Recreate);
    vec![
        (
            "nothing was done yet",
            Case::of(Scene::quiet()),
            "AwaitingRestart",
            "Deployment web is about to be restarted to replace it",
        ),
        (
            "nothing was done yet, Recreate",
            Case::of(recreate(Scene::asked())),
            "AwaitingRestart",
            "Deployment web is about to be restarted (strategy Recreate), which terminates it",
        ),
        (
            "the restart was written",
            Case::of(Scene::restarted()),
            "RolloutNotObserved",
            "the newest spec of Deployment web is not yet rolled out",
        ),
        (
            "a rollout to the victim's own revision is under way",
            Case::of(Scene::asked().with(|scene| scene.deployment.status.available = 0)),
            "ReleaseUnderWay",
            "a rollout of Deployment web is under way and must complete first",
        ),
        (
            "there is no new pod",
            Case::of(Scene::rolling()),
            "ReplacementNotCreated",
            "its replacement is not yet created",
        ),
        (
            "there is no new pod, Recreate",
            Case::of(recreate(Scene::rolling())),
            "VictimTerminatesFirst",
            "it terminates before its replacement starts (strategy Recreate)",
        ),
        (
            "the new pod fits nowhere",
            Case::of(Scene::starting().with(|scene| {
                let replacement = scene.replacement();
                (replacement.node, replacement.unschedulable) = (None, true);
            })),
            "ReplacementUnschedulable",
            "no node fits replacement web-58c6-y yet",
        ),
        (
            "the new pod starts",
            Case::of(Scene::starting()),
            "ReplacementStarting",
            "replacement web-58c6-y is starting",
        ),
        (
            "the new pod runs",
            Case::of(Scene::starting().with(|scene| scene.replacement().phase = PodPhase::Running)),
            "ReplacementNotReady",
            "replacement web-58c6-y is not yet available (0/1)",
        ),
        (
            "the new pod runs, and must be ready for a while",
            Case::of(Scene::starting().with(|scene| {
                scene.replacement().phase = PodPhase::Running;
                scene.deployment.min_ready_seconds = 30;
            })),
            "ReplacementNotReady",
            "replacement web-58c6-y is not yet available (0/1, minReadySeconds 30)",
        ),
        (
            "the new pod is ready, a second before minReadySeconds are over",
            Case::of(Scene::ready_for(29).with(|scene| scene.deployment.min_ready_seconds = 30)),
            "ReplacementNotAvailable",
            "replacement web-58c6-y is not yet available (0/1, minReadySeconds 30)",
        ),
        (
            "the new pod is available on a node that is doomed too",
            Case::of(Scene::ready_for(10).with(|scene| scene.doomed.push("node-2"))),
            "ReplacementOnDoomedNode",
            "replacement web-58c6-y is on node node-2, which is about to go too",
        ),
        (
            "the new pod is available on the victim's own node, which was not cordoned",
            Case::of(Scene::ready_for(10).with(|scene| {
                scene.doomed.clear();
                scene.replacement().node = Some("node-1".into());
            })),
            "ReplacementOnDoomedNode",
            "replacement web-58c6-y is on node node-1, which is about to go too",
        ),
    ]
}
