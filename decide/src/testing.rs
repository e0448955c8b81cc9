//! Builders for tests: a surging single-replica Deployment `web`, its ReplicaSets and pods, at a fixed time.
//!
//! A [`Scene`] is one moment of a handover that every test may bend: the victim `web-7d9f-x` of revision 1 runs on
//! the doomed `node-1`, its replacement `web-58c6-y` of revision 2 comes up on `node-2`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use proptest::test_runner::{Config, RngSeed};

use crate::action::Action;
use crate::handover::reconcile::{Input, Plan, reconcile};
use crate::handover::record::HandoverRecord;
use crate::handover::{HandoverRules, Situation, Workload, situation};
use crate::hold::{HoldReason, HoldSpec, HoldStatus, HoldTrigger, HoldView, WorkloadRef, hold_name};
use crate::policy::{Protection, Settings, Source};
use crate::view::{DeploymentStatus, DeploymentView, IntOrPercent, Mark, PodPhase, PodView, ReplicaSetView, Strategy};

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
        query: format!("app={name}"),
        handover: None,
        records: Vec::new(),
        surge: None,
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
        marked: false,
        mark: Mark::Free,
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
        name: hold_name(HoldReason::Handover, victim, &uid),
        uid: format!("{victim}-hold"),
        resource_version: "7".into(),
        spec: HoldSpec {
            victim_name: victim.into(),
            victim_uid: uid,
            victim_node: "node-1".into(),
            victim_hash: hash.into(),
            reason: HoldReason::Handover,
            workload: WorkloadRef::deployment("web", "web-uid"),
            evictor: "drainer".into(),
            trigger: HoldTrigger::Eviction,
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
        dooms: BTreeMap::new(),
        autoscaler: None,
    }
}

/// How properties are run: the same cases every time, so that a red build is red for everybody. To look further, ask for
/// more and for others: `PROPTEST_CASES=100000 PROPTEST_RNG_SEED=7 cargo test -p belay-decide`. A history that breaks a
/// law becomes a named test (`model/found.rs`), so no file of seeds is kept.
pub(crate) fn runner(cases: u32) -> Config {
    Config { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..Config::with_cases(cases) }
}

/// The victim of every scene.
pub(crate) const VICTIM: &str = "web-7d9f-x";
/// Its template hash.
pub(crate) const OLD: &str = "7d9f";
/// The replacement of every scene that has one.
pub(crate) const REPLACEMENT: &str = "web-58c6-y";
/// Its template hash.
pub(crate) const NEW: &str = "58c6";

/// One moment of a handover.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) deployment: DeploymentView,
    pub(crate) sets: Vec<ReplicaSetView>,
    /// The victim first, where it exists.
    pub(crate) pods: Vec<PodView>,
    pub(crate) doomed: Vec<&'static str>,
    pub(crate) protection: Option<Protection>,
    /// The victim's hold first, where it is recorded.
    pub(crate) holds: Vec<HoldView>,
    pub(crate) now: Timestamp,
}

impl Scene {
    /// Nothing was asked for yet: the victim serves alone on the doomed node.
    pub(crate) fn quiet() -> Self {
        Self {
            deployment: deployment("shop", "web"),
            sets: vec![replica_set(OLD, 1, None)],
            pods: vec![pod(VICTIM, OLD, "node-1")],
            doomed: vec!["node-1"],
            protection: Some(protection()),
            holds: Vec::new(),
            now: START,
        }
    }

    /// The webhook held the eviction and recorded it; the controller has not looked yet.
    pub(crate) fn asked() -> Self {
        Self { holds: vec![hold(VICTIM, OLD)], ..Self::quiet() }
    }

    /// The restart was written, and nobody has observed it yet.
    pub(crate) fn restarted() -> Self {
        let mut scene = Self::asked();
        scene.deployment.slot = Some("a".into());
        scene.deployment.generation = 2;
        scene.deployment.records = vec![record()];
        scene.holds[0].status = HoldStatus {
            phase: crate::hold::Phase::Active,
            reason: "Restarting".into(),
            message: format!("restarting Deployment web to replace {VICTIM}"),
            from_revision: Some(1),
            ..HoldStatus::default()
        };
        scene
    }

    /// The Deployment controller has made the new ReplicaSet; there is no pod of it yet.
    pub(crate) fn rolling() -> Self {
        let mut scene = Self::restarted();
        scene.deployment.revision = Some(2);
        scene.deployment.status =
            DeploymentStatus { observed_generation: 2, replicas: 1, updated: 0, ..scene.deployment.status };
        scene.sets.push(replica_set(NEW, 2, Some("a")));
        scene
    }

    /// The replacement was scheduled to `node-2` and starts.
    pub(crate) fn starting() -> Self {
        let mut scene = Self::rolling();
        scene.deployment.status.replicas = 2;
        scene.deployment.status.updated = 1;
        let coming = PodView { phase: PodPhase::Pending, ready_since: None, ..pod(REPLACEMENT, NEW, "node-2") };
        scene.pods.push(coming);
        scene
    }

    /// The replacement has been ready for `seconds`.
    pub(crate) fn ready_for(seconds: i64) -> Self {
        let mut scene = Self::starting();
        let replacement = scene.replacement();
        replacement.phase = PodPhase::Running;
        replacement.ready_since = Some(after(-seconds));
        scene
    }

    /// Somebody put the template back, and the rollout to it is over: the victim is of the newest revision again.
    pub(crate) fn reverted() -> Self {
        let mut scene = Self::rolling();
        scene.deployment.slot = None;
        scene.deployment.generation = 3;
        scene.deployment.revision = Some(3);
        scene.deployment.status =
            DeploymentStatus { observed_generation: 3, replicas: 1, updated: 1, ..scene.deployment.status };
        scene.sets[0].revision = Some(3);
        scene
    }

    /// The victim is gone after its replacement became available, and the rollout is complete.
    pub(crate) fn handed_over() -> Self {
        let mut scene = Self::ready_for(10);
        scene.pods.remove(0);
        scene.deployment.status.replicas = 1;
        scene
    }

    pub(crate) fn victim(&mut self) -> &mut PodView {
        &mut self.pods[0]
    }

    pub(crate) fn replacement(&mut self) -> &mut PodView {
        self.pods.iter_mut().find(|pod| &*pod.name == REPLACEMENT).expect("the scene has a replacement")
    }

    pub(crate) fn workload(&self) -> Workload<'_> {
        workload(&self.deployment, &self.sets, &self.pods, &self.doomed)
    }

    pub(crate) fn situation(&self) -> Situation<'_> {
        // The workload's parts outlive the collection of references to them.
        let workload: Workload<'_> = self.workload();
        situation(&workload, &self.pods[0], self.now)
    }

    /// The controller's step, for a history kept one hour.
    pub(crate) fn plan(&self) -> Plan {
        let workload = self.workload();
        let of = |hold: &HoldView| self.pods.iter().find(|pod| *pod.uid == *hold.spec.victim_uid);
        reconcile(&Input {
            workload: Some(&workload),
            protection: self.protection.as_ref(),
            holds: self.holds.iter().map(|hold| (hold, of(hold))).collect(),
            close: None,
            refused: None,
            rules: &HandoverRules::default(),
            now: self.now,
        })
    }

    /// This scene, bent.
    pub(crate) fn with(mut self, bend: impl FnOnce(&mut Self)) -> Self {
        bend(&mut self);
        self
    }
}

/// The record of the restart that replaces [`VICTIM`].
pub(crate) fn record() -> HandoverRecord {
    HandoverRecord {
        victim: format!("{VICTIM}-uid"),
        requested_at: START,
        deadline: after(600),
        restarted_at: after(1),
        from: None,
        to: "a".into(),
        rolled_back: false,
    }
}

/// A plan in words, one line an action: what tables compare.
pub(crate) fn in_words(plan: &Plan) -> Vec<Vec<String>> {
    let words = |action: &Action| match action {
        Action::UpdateHold { hold, status } => format!("{}: {} {}", hold.name, status.phase.as_str(), status.reason),
        Action::DeleteHold { hold } => format!("{}: delete", hold.name),
        Action::PatchTemplate { slot, records, .. } => {
            let of = |one: &HandoverRecord| format!("{}{}", one.victim, if one.rolled_back { " undone" } else { "" });
            let records: Vec<_> = records.iter().map(of).collect();
            format!("template: slot {}, records {}", slot.as_deref().unwrap_or("none"), records.join(" "))
        }
        Action::CreateHold { spec, .. } => format!("{}: hold, {}", spec.victim_name, spec.trigger.as_str()),
        Action::Surge { governor, number, record, .. } => format!(
            "{}: {}, {}",
            governor.kind(),
            number.map_or_else(|| "default".to_owned(), |number| number.to_string()),
            if record.is_some() { "record" } else { "no record" }
        ),
        Action::NoteSurge { governor, record, .. } => {
            format!("{}: {}", governor.kind(), if record.is_some() { "record" } else { "no record" })
        }
        Action::Scale { deployment, replicas, .. } => format!("{}: scale to {replicas}", deployment.name),
        Action::PatchPod { pod, .. } => format!("{}: patch", pod.name),
        Action::DeleteOwner { kind, owner } => format!("{kind} {}: delete", owner.name),
        Action::NoteRequest { hold, .. } => format!("{}: asked for", hold.name),
        Action::Respond { eviction, report } => {
            let word = if report.completed.is_some() { "completed" } else { "heartbeat" };
            format!("{}: {word}: {}", eviction.name, report.message)
        }
        Action::Event(event) => format!("{}: {}", if event.warning { "warning" } else { "event" }, event.reason),
    };
    plan.sequences.iter().map(|sequence| sequence.iter().map(words).collect()).collect()
}
