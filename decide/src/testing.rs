//! Builders for tests: a surging single-replica Deployment `web`, its ReplicaSets and pods, at a fixed time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::handover::Workload;
use crate::hold::{HoldSpec, HoldStatus, HoldView, hold_name};
use crate::policy::{Protection, Settings, Source};
use crate::view::{DeploymentStatus, DeploymentView, IntOrPercent, PodPhase, PodView, ReplicaSetView, Strategy};

/// The time at which every test starts: 2026-11-30 14:00:00Z.
pub(crate) const START: Timestamp = Timestamp::constant(1_796_047_200, 0);

pub(crate) fn after(seconds: i64) -> Timestamp {
    START + SignedDuration::from_secs(seconds)
}

pub(crate) fn deployment(namespace: &str, name: &str) -> DeploymentView {
    DeploymentView {
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("{name}-uid"),
        resource_version: "100".into(),
        generation: 1,
        labels: BTreeMap::new(),
        selector: BTreeMap::from([("app".into(), name.into())]),
        handover: None,
        records: Vec::new(),
        replicas: 1,
        paused: false,
        min_ready_seconds: 0,
        strategy: Strategy::RollingUpdate {
            max_surge: IntOrPercent::Percent(25),
            max_unavailable: IntOrPercent::Percent(25),
        },
        slot: None,
        revision: Some(1),
        status: DeploymentStatus {
            observed_generation: 1,
            replicas: 1,
            updated: 1,
            available: 1,
            progress_deadline_exceeded: false,
        },
    }
}

pub(crate) fn replica_set(hash: &str, revision: u64, slot: Option<&str>) -> ReplicaSetView {
    ReplicaSetView {
        namespace: "shop".into(),
        name: format!("web-{hash}").into(),
        uid: format!("rs-{hash}").into(),
        deployment: Some("web-uid".into()),
        revision: Some(revision),
        template_hash: Some(hash.into()),
        slot: slot.map(Into::into),
    }
}

pub(crate) fn pod(name: &str, hash: &str, node: &str) -> PodView {
    PodView {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("{name}-uid").into(),
        node: Some(node.into()),
        replica_set: Some(format!("rs-{hash}").into()),
        template_hash: Some(hash.into()),
        phase: PodPhase::Running,
        ready_since: Some(after(-3600)),
        terminating: false,
        unschedulable: false,
    }
}

pub(crate) fn protection() -> Protection {
    Protection { source: Source::Policy("web".into()), settings: Settings::default() }
}

/// A hold of a victim on node-1, asked for at [`START`], with the default deadline.
pub(crate) fn hold(victim: &str, hash: &str) -> HoldView {
    let uid = format!("{victim}-uid");
    HoldView {
        namespace: "shop".into(),
        name: hold_name(victim, &uid),
        uid: format!("{victim}-hold"),
        resource_version: "7".into(),
        spec: HoldSpec {
            victim_name: victim.into(),
            victim_uid: uid,
            victim_node: "node-1".into(),
            victim_hash: hash.into(),
            workload_name: "web".into(),
            workload_uid: "web-uid".into(),
            evictor: "drainer".into(),
            requested_at: START,
            deadline: after(600),
        },
        status: HoldStatus::default(),
    }
}

pub(crate) fn workload<'a>(
    deployment: &'a DeploymentView,
    replica_sets: &'a [ReplicaSetView],
    pods: &'a [PodView],
    doomed: &[&'a str],
) -> Workload<'a> {
    Workload {
        deployment,
        replica_sets: replica_sets.iter().collect(),
        pods: pods.iter().collect(),
        doomed_nodes: doomed.iter().copied().collect::<BTreeSet<_>>(),
    }
}
