//! Each remover's rules, as tables over one pod.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::Verdict::{Goes, Ignored, Stays, Waits};
use super::*;

const SAFE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
const WORK: LocalVolume<'static> = LocalVolume { name: "work", kind: LocalVolumeKind::EmptyDir };

fn now() -> Timestamp {
    "2026-09-20T10:00:00Z".parse().unwrap()
}

/// A pod in the making; as it begins, every remover would take it.
#[derive(Clone)]
struct Pod {
    namespace: &'static str,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    controller_kind: Option<&'static str>,
    stage: Stage,
    is_mirror: bool,
    local_volumes: Vec<LocalVolume<'static>>,
    started: Option<Timestamp>,
    held: bool,
}

fn pod() -> Pod {
    Pod {
        namespace: "runners",
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        controller_kind: Some("ReplicaSet"),
        stage: Stage::Active,
        is_mirror: false,
        local_volumes: Vec::new(),
        started: Some("2026-09-20T09:00:00Z".parse().unwrap()),
        held: false,
    }
}

impl Pod {
    fn annotated(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    fn labelled(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    fn of(mut self, kind: Option<&'static str>) -> Self {
        self.controller_kind = kind;
        self
    }

    fn with(mut self, volumes: &[LocalVolume<'static>]) -> Self {
        self.local_volumes = volumes.to_vec();
        self
    }

    fn at(mut self, stage: Stage) -> Self {
        self.stage = stage;
        self
    }

    fn mirrored(self) -> Self {
        Self { is_mirror: true, ..self }
    }

    fn held(self) -> Self {
        Self { held: true, ..self }
    }

    fn within(self, namespace: &'static str) -> Self {
        Self { namespace, ..self }
    }

    fn outlooks(&self) -> Vec<Outlook> {
        let facts = PodFacts {
            namespace: self.namespace,
            labels: &self.labels,
            annotations: &self.annotations,
            controller_kind: self.controller_kind,
            stage: self.stage,
            is_mirror: self.is_mirror,
            local_volumes: &self.local_volumes,
            started: self.started,
            held: self.held,
        };
        outlooks(&facts, now())
    }

    fn outlook(&self, remover: &str) -> Outlook {
        self.outlooks().into_iter().find(|outlook| outlook.remover == remover).expect("the remover has an outlook")
    }
}

/// Each line: the pod, the verdict, and a part of the reason.
fn check(remover: &str, table: &[(Pod, Verdict, &str)]) {
    for (line, (pod, verdict, because)) in table.iter().enumerate() {
        let outlook = pod.outlook(remover);
        assert_eq!(outlook.verdict, *verdict, "{remover}, line {line}: {}", outlook.because);
        assert!(outlook.because.contains(because), "{remover}, line {line}: {}", outlook.because);
    }
}

#[test]
fn cluster_autoscaler_goes_by_its_rules_in_their_order() {
    let runner = || pod().of(Some("EphemeralRunner")).with(&[WORK]);
    check(
        "Cluster Autoscaler",
        &[
            (pod(), Goes, "nothing that is known"),
            (pod().held(), Waits, "waits up to 2 min (--max-pod-eviction-time)"),
            // "true" counts for more than the owner, kube-system and volumes.
            (runner(), Stays, "EphemeralRunner"),
            (runner().annotated(SAFE, "true"), Goes, "\"true\""),
            (runner().annotated(SAFE, "true").held(), Waits, "gives the node up"),
            (pod().of(None).annotated(SAFE, "true"), Goes, "\"true\""),
            (pod().within("kube-system").annotated(SAFE, "true"), Goes, "\"true\""),
            (pod().annotated(SAFE, "false"), Stays, "\"false\""),
            (runner().annotated(SAFE, "false"), Stays, "\"false\"; its controller, of kind EphemeralRunner"),
            // Any other spelling says nothing, either way.
            (pod().annotated(SAFE, "False"), Goes, "\"False\", which says nothing"),
            (runner().annotated(SAFE, "True"), Stays, "\"True\", which says nothing"),
            (runner().annotated(SAFE, ""), Stays, "\"\", which says nothing"),
            (runner().annotated(SAFE, "true "), Stays, "which says nothing"),
            (pod().annotated(SAFE, "on-completion"), Stays, "before version 1.36 this value says nothing"),
            (runner().annotated(SAFE, "on-completion"), Stays, "EphemeralRunner"),
            // Static, DaemonSet, finished and ending pods keep no node, whatever they say.
            (pod().mirrored().annotated(SAFE, "false"), Ignored, "static"),
            (pod().of(Some("DaemonSet")).annotated(SAFE, "false"), Ignored, "DaemonSet"),
            (pod().annotated("cluster-autoscaler.kubernetes.io/daemonset-pod", "true"), Ignored, "DaemonSet"),
            (pod().annotated("cluster-autoscaler.kubernetes.io/daemonset-pod", "yes"), Goes, ""),
            (runner().annotated(SAFE, "false").at(Stage::Finished), Goes, "finished"),
            (runner().annotated(SAFE, "on-completion").at(Stage::Finished), Goes, "finished"),
            (runner().annotated(SAFE, "false").at(Stage::Terminating), Ignored, "deleted already"),
            // Owners.
            (pod().of(None), Stays, "no controller"),
            (pod().of(Some("Job")), Goes, ""),
            (pod().of(Some("StatefulSet")), Goes, ""),
            (pod().of(Some("ReplicationController")), Goes, ""),
            (pod().of(Some("GameServer")), Stays, "--skip-nodes-with-custom-controller-pods"),
            (pod().within("kube-system"), Stays, "kube-system"),
        ],
    );
}

#[test]
fn cluster_autoscaler_counts_only_local_volumes_on_disk_that_are_not_named_safe() {
    const KEY: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
    let host = LocalVolume { name: "logs", kind: LocalVolumeKind::HostPath };
    let memory = LocalVolume { name: "shm", kind: LocalVolumeKind::EmptyDirInMemory };
    check(
        "Cluster Autoscaler",
        &[
            (pod().with(&[WORK]), Stays, "its volume work"),
            (pod().with(&[host]), Stays, "its volume logs"),
            (pod().with(&[memory]), Goes, ""),
            (pod().with(&[WORK]).annotated(KEY, "work"), Goes, ""),
            (pod().with(&[WORK, host]).annotated(KEY, "work"), Stays, "its volume logs"),
            (pod().with(&[WORK, host]).annotated(KEY, "logs,work"), Goes, ""),
            // Spaces are part of a name.
            (pod().with(&[WORK, host]).annotated(KEY, "logs, work"), Stays, "its volume work"),
            (pod().with(&[WORK]).annotated(SAFE, "false"), Stays, "\"false\""),
            // It helps nothing where the owner's kind is the reason.
            (pod().of(Some("EphemeralRunner")).with(&[WORK]).annotated(KEY, "work"), Stays, "EphemeralRunner"),
        ],
    );
}

#[test]
fn karpenter_reads_true_and_positive_durations_from_the_pods_start_and_nothing_else() {
    let hint = |value: &str| pod().annotated(DO_NOT_DISRUPT, value);
    let not_started = |value: &str| Pod { started: None, ..hint(value) };
    check(
        "Karpenter",
        &[
            (pod(), Goes, "nothing that is known"),
            (pod().held(), Waits, "terminationGracePeriod"),
            (hint("true"), Stays, "\"true\"; a drain that has begun waits for it"),
            (hint("true").held(), Stays, "\"true\""),
            // It started an hour ago.
            (hint("90m"), Stays, "until 2026-09-20T10:30:00Z"),
            (hint("1h"), Goes, "is over"),
            (hint("59m59s"), Goes, "is over"),
            (hint("1h0m1s"), Stays, "until 2026-09-20T10:00:01Z"),
            (hint("30m").held(), Waits, "is over; Belay refuses"),
            (not_started("1s"), Stays, "not known yet"),
            (hint("2562047h"), Stays, "until 2318-12-31T08:00:00Z"),
            (hint("false"), Goes, "InvalidDoNotDisruptAnnotation"),
            (hint("True"), Goes, "InvalidDoNotDisruptAnnotation"),
            (hint(""), Goes, "InvalidDoNotDisruptAnnotation"),
            (hint("0"), Goes, "InvalidDoNotDisruptAnnotation"),
            (hint("-5m"), Goes, "InvalidDoNotDisruptAnnotation"),
            (hint("1d"), Goes, "InvalidDoNotDisruptAnnotation"),
            (not_started("false"), Goes, "InvalidDoNotDisruptAnnotation"),
            // A static or DaemonSet pod's annotation keeps the node as well; a finished or ending one's does not.
            (hint("true").mirrored(), Stays, "\"true\""),
            (hint("true").of(Some("DaemonSet")), Stays, "\"true\""),
            (pod().mirrored(), Ignored, "static"),
            (pod().of(Some("DaemonSet")), Goes, ""),
            (hint("true").at(Stage::Finished), Ignored, "finished"),
            (hint("true").at(Stage::Terminating), Ignored, "deleted already"),
        ],
    );
}

#[test]
fn the_descheduler_takes_evict_over_everything_and_prefer_no_eviction_for_a_wish() {
    const EVICT: &str = "descheduler.alpha.kubernetes.io/evict";
    const PREFER_NOT: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";
    let memory = LocalVolume { name: "shm", kind: LocalVolumeKind::EmptyDirInMemory };
    check(
        "descheduler",
        &[
            (pod(), Goes, ""),
            (pod().held(), Waits, "asks once a pass"),
            (pod().annotated(PREFER_NOT, "true"), Goes, "noEvictionPolicy: Mandatory"),
            (pod().annotated(PREFER_NOT, "false"), Goes, "prefer-no-eviction"),
            (pod().annotated(PREFER_NOT, "true").held(), Waits, "prefer-no-eviction"),
            (pod().of(None), Stays, "no owner"),
            (pod().of(Some("DaemonSet")), Stays, "DaemonSet"),
            (pod().with(&[WORK]), Stays, "volume"),
            (pod().with(&[memory]), Stays, "volume"),
            (pod().with(&[WORK]).annotated(EVICT, ""), Goes, "overrides"),
            (pod().of(None).annotated(EVICT, "false").annotated(PREFER_NOT, "true"), Goes, "overrides"),
            (pod().with(&[WORK]).annotated(EVICT, "").held(), Waits, "overrides"),
            (pod().mirrored(), Ignored, "static"),
            (pod().at(Stage::Terminating), Ignored, "deleted already"),
        ],
    );
}

#[test]
fn a_drain_asks_for_every_pod_but_static_and_daemon_set_ones_and_waits_as_long_as_it_does() {
    for (remover, limit) in [
        ("kubectl drain", "--timeout"),
        ("EKS managed node group", "15 min"),
        ("AKS node pool upgrade", "30 min"),
        ("GKE node upgrade", "1 h"),
        ("AWS Node Termination Handler", "2 min"),
        ("Cluster API", "nodeDrainTimeoutSeconds"),
        ("kured", "--drain-timeout"),
    ] {
        check(
            remover,
            &[
                (pod(), Goes, ""),
                (pod().held(), Waits, limit),
                // They read none of these.
                (pod().annotated(SAFE, "false").annotated(DO_NOT_DISRUPT, "true"), Goes, ""),
                (pod().at(Stage::Finished), Goes, "finished"),
                (pod().at(Stage::Terminating), Ignored, "deleted already"),
                (pod().of(Some("DaemonSet")), Ignored, "DaemonSet"),
                (pod().mirrored(), Ignored, "static"),
            ],
        );
    }
}

#[test]
fn kubectl_drain_names_the_flags_without_which_it_does_not_begin() {
    let host = LocalVolume { name: "logs", kind: LocalVolumeKind::HostPath };
    check(
        "kubectl drain",
        &[
            (pod().with(&[WORK]), Goes, "without --delete-emptydir-data the drain"),
            (pod().of(None).with(&[WORK]), Goes, "without --delete-emptydir-data and --force"),
            (pod().of(None).held(), Waits, "without --force"),
            (pod().of(Some("DaemonSet")).with(&[WORK]), Ignored, "without --ignore-daemonsets the drain"),
        ],
    );
    for plain in [pod(), pod().with(&[host]), pod().of(None).with(&[WORK]).at(Stage::Finished)] {
        assert!(!plain.outlook("kubectl drain").because.contains("without"));
    }
}

#[test]
fn cluster_api_reads_its_own_label_in_any_letters() {
    const KEY: &str = "cluster.x-k8s.io/drain";
    check(
        "Cluster API",
        &[
            (pod().labelled(KEY, "skip"), Goes, "without waiting for it"),
            (pod().labelled(KEY, "Skip").held(), Goes, "without waiting for it"),
            (pod().labelled(KEY, "wait-completed"), Stays, "waits for its end"),
            (pod().labelled(KEY, "WaitCompleted").held(), Stays, "waits for its end"),
            (pod().labelled(KEY, "other").held(), Waits, "Machine"),
            (pod().labelled(KEY, "wait-completed").at(Stage::Finished), Goes, "finished"),
            (pod().labelled(KEY, "skip").of(Some("DaemonSet")), Ignored, "DaemonSet"),
        ],
    );
}

#[test]
fn kured_can_be_told_of_the_busy_label() {
    let busy = || pod().labelled("belay.dev/busy", "true");
    check(
        "kured",
        &[
            (busy().held(), Waits, "--blocking-pod-selector=belay.dev/busy=true"),
            (busy(), Goes, "--blocking-pod-selector=belay.dev/busy=true"),
        ],
    );
    assert!(!busy().at(Stage::Finished).outlook("kured").because.contains("blocking"));
}

#[test]
fn cast_ai_and_spot_ocean_read_their_own_keys_where_each_reads_them() {
    const CAST: &str = "autoscaling.cast.ai/removal-disabled";
    const OCEAN: &str = "spotinst.io/restrict-scale-down";
    check(
        "CAST AI Evictor",
        &[
            (pod().labelled(CAST, "true"), Stays, CAST),
            (pod().annotated(CAST, "true"), Stays, CAST),
            (pod().labelled(CAST, "false"), Goes, ""),
            (pod().held(), Waits, "an unknown time"),
            (pod().labelled(CAST, "true").at(Stage::Finished), Goes, ""),
            (pod().labelled(CAST, "true").of(Some("DaemonSet")), Ignored, "DaemonSet"),
        ],
    );
    check(
        "Spot Ocean",
        &[
            (pod().labelled(OCEAN, "true"), Stays, "cluster roll"),
            (pod().annotated(OCEAN, "true"), Goes, ""),
            (pod().held(), Waits, "not known"),
            (pod().mirrored(), Ignored, "static"),
        ],
    );
}

#[test]
fn nothing_holds_a_deletion_and_a_scale_down_only_chooses_by_cost() {
    let cost = || pod().annotated("controller.kubernetes.io/pod-deletion-cost", "1048576");
    check(
        "ReplicaSet scale-down",
        &[(cost().held(), Goes, "pod-deletion-cost is 1048576"), (pod(), Goes, "counts as 0")],
    );
    for other in [pod().of(Some("StatefulSet")), pod().of(None), pod().at(Stage::Finished)] {
        assert!(other.outlooks().iter().all(|outlook| outlook.remover != "ReplicaSet scale-down"));
    }
    check(
        "deletion",
        &[
            (pod().annotated(SAFE, "false").annotated(DO_NOT_DISRUPT, "true").held(), Goes, "nobody is asked"),
            (pod().mirrored(), Ignored, "static"),
        ],
    );
}

#[test]
fn the_removers_come_in_one_order_each_once() {
    let names: Vec<_> = pod().outlooks().iter().map(|outlook| outlook.remover).collect();
    assert_eq!(
        names,
        [
            "Cluster Autoscaler",
            "Karpenter",
            "descheduler",
            "kubectl drain",
            "EKS managed node group",
            "AKS node pool upgrade",
            "GKE node upgrade",
            "AWS Node Termination Handler",
            "Cluster API",
            "kured",
            "CAST AI Evictor",
            "Spot Ocean",
            "ReplicaSet scale-down",
            "deletion",
        ]
    );
    assert_eq!(pod().outlooks(), pod().outlooks());
}

#[test]
fn what_belay_writes_on_a_busy_pod_keeps_every_remover_that_reads_hints_away_and_the_hold_makes_the_others_wait() {
    let busy = pod()
        .annotated(SAFE, "false")
        .annotated(DO_NOT_DISRUPT, "true")
        .annotated("descheduler.alpha.kubernetes.io/prefer-no-eviction", "true")
        .labelled("belay.dev/busy", "true")
        .labelled("autoscaling.cast.ai/removal-disabled", "true")
        .labelled("spotinst.io/restrict-scale-down", "true")
        .held();
    for outlook in busy.outlooks() {
        let unstoppable = ["ReplicaSet scale-down", "deletion"].contains(&outlook.remover);
        assert_eq!(outlook.verdict == Goes, unstoppable, "{outlook:?}");
    }
}
