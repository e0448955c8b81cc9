//! The controller's step, as tables: what is written in which situation.

mod answers;
mod endings;
mod forgotten;
mod governors;
mod surge;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::cost::{COST_ANNOTATION, CostPod, Readiness, VICTIM};
use crate::doom::Doomed;
use crate::handover::reconcile::{HandoverRules, Input, Plan, reconcile};
use crate::handover::surge::SurgeRecord;
use crate::handover::{ClosePod, Workload};
use crate::hold::{HoldStatus, HoldView, Phase};
use crate::ownership::{Key, MANAGED_ANNOTATION, Record};
use crate::policy::{Mode, Protection};
use crate::testing::{START, after, deployment, hold, in_words, pod, protection, replica_set, workload};
use crate::view::{AutoscalerView, DeploymentView, Mark, PodPhase, PodView, ReplicaSetView};

use jiff::Timestamp;

const SET: &str = "7d9f";

/// What is known of a node that was cordoned an hour ago.
static CORDONED: LazyLock<Doomed> =
    LazyLock::new(|| Doomed { by: "cordoned".into(), since: after(-3600), soft: false, notice: None });

/// One moment of a drain of `web`, of which pods `a`, `b` and `c` of three replicas run on nodes of their names.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) deployment: DeploymentView,
    pub(super) sets: Vec<ReplicaSetView>,
    pub(super) pods: Vec<PodView>,
    pub(super) values: BTreeMap<&'static str, i32>,
    pub(super) doomed: Vec<&'static str>,
    /// Which of these nodes are cordoned.
    pub(super) cordoned: Vec<&'static str>,
    pub(super) holds: Vec<HoldView>,
    pub(super) protection: Option<Protection>,
    pub(super) autoscaler: Option<AutoscalerView>,
    pub(super) refused: Option<&'static str>,
    pub(super) now: Timestamp,
}

impl Stage {
    /// Nothing was asked for yet.
    pub(super) fn quiet() -> Self {
        let mut protection = protection();
        protection.settings.mode = Mode::Scale;
        let mut stage = Self {
            deployment: deployment("shop", "web"),
            sets: vec![replica_set(SET, 1, None)],
            pods: ["a", "b", "c"].map(|name| pod(name, SET, &format!("node-{name}"))).into(),
            values: BTreeMap::new(),
            doomed: Vec::new(),
            cordoned: Vec::new(),
            holds: Vec::new(),
            protection: Some(protection),
            autoscaler: None,
            refused: None,
            now: after(1),
        };
        stage.scaled(3);
        stage
    }

    /// So many replicas are asked for, and the Deployment controller has seen to it.
    pub(super) fn scaled(&mut self, replicas: i32) {
        self.deployment.replicas = replicas;
        let status = &mut self.deployment.status;
        (status.replicas, status.updated, status.available) = (replicas, replicas, replicas);
    }

    /// The evictions of these pods were asked for, in this order, a second after the other.
    pub(super) fn asked(victims: &[&'static str]) -> Self {
        let mut stage = Self::quiet();
        for (victim, second) in victims.iter().zip(0..) {
            stage.ask(victim, second);
        }
        stage
    }

    pub(super) fn ask(&mut self, victim: &'static str, second: i64) {
        let mut held = hold(victim, SET);
        held.spec.victim_node = format!("node-{victim}");
        held.spec.requested_at = after(second);
        held.spec.deadline = after(second + 600);
        self.doomed.push(Box::leak(held.spec.victim_node.clone().into_boxed_str()));
        self.holds.push(held);
    }

    /// The replicas were raised by so many, and that is noted in the holds.
    pub(super) fn surged(victims: &[&'static str], surge: i32) -> Self {
        let mut stage = Self::asked(victims);
        let awaited = victims.iter().map(|victim| format!("{victim}-uid")).collect();
        stage.deployment.surge = Some(SurgeRecord { surge, awaited, ..record() });
        stage.scaled(3 + surge);
        for hold in &mut stage.holds {
            hold.status = HoldStatus {
                phase: Phase::Active,
                reason: "AwaitingSurge".into(),
                restarted_at: Some(after(2)),
                ..HoldStatus::default()
            };
        }
        stage.now = after(3);
        for victim in victims {
            stage.mark(victim);
        }
        stage
    }

    /// The stand-in has been ready since then, on a node of its name.
    pub(super) fn standing_in(mut self, name: &str, since: i64) -> Self {
        self.pods.push(PodView { ready_since: Some(after(since)), ..pod(name, SET, &format!("node-{name}")) });
        self.now = self.now.max(after(since));
        self.rest()
    }

    /// What is awaited was written down.
    pub(super) fn rest(mut self) -> Self {
        for sequence in self.plan_closely().sequences {
            if let [crate::action::Action::UpdateHold { hold, status }, ..] = &sequence[..]
                && !status.phase.is_released()
            {
                let found = self.holds.iter_mut().find(|one| one.name == hold.name);
                found.expect("the hold is there").status = status.clone();
            }
        }
        self
    }

    /// The pod carries the victims' value, by our hand.
    pub(super) fn mark(&mut self, name: &'static str) {
        self.values.insert(name, VICTIM);
        if let Some(pod) = self.find(name) {
            pod.mark = Mark::Lowest;
        }
    }

    pub(super) fn find(&mut self, name: &str) -> Option<&mut PodView> {
        self.pods.iter_mut().find(|pod| &*pod.name == name)
    }

    pub(super) fn record(&mut self) -> &mut SurgeRecord {
        self.deployment.surge.as_mut().expect("there is a surge")
    }

    pub(super) fn with(mut self, bend: impl FnOnce(&mut Self)) -> Self {
        bend(&mut self);
        self
    }

    fn close(&self) -> Vec<ClosePod> {
        let of = |pod: &PodView| {
            let value = self.values.get(&*pod.name);
            let mut record = Record::default();
            let ours = value.filter(|_| pod.mark == Mark::Lowest);
            if let Some(value) = ours {
                record.insert(Key::annotation(COST_ANNOTATION), value.to_string());
            }
            let value: Option<Box<str>> = value.map(|value| value.to_string().into());
            ClosePod {
                pod: CostPod {
                    namespace: pod.namespace.clone(),
                    name: pod.name.clone(),
                    uid: pod.uid.clone(),
                    set: pod.replica_set.clone(),
                    node: pod.node.clone(),
                    phase: pod.phase,
                    terminating: pod.terminating,
                    readiness: pod.ready_since.map_or(Readiness::NotReady(None), |at| Readiness::Ready(Some(at))),
                    restarts: 0,
                    sidecar_restarts: 0,
                    created: START,
                    priority: 0,
                    standing: crate::cost::Standing::read(value.as_deref(), &record),
                    movable: true,
                    hold: None,
                    blocked_since: None,
                },
                value,
                record,
                resource_version: "9".into(),
            }
        };
        self.pods.iter().map(of).collect()
    }

    pub(super) fn workload(&self) -> Workload<'_> {
        let workload = workload(&self.deployment, &self.sets, &self.pods, &self.doomed);
        let dooms = self.cordoned.iter().map(|node| (*node, &*CORDONED)).collect();
        Workload { autoscaler: self.autoscaler.as_ref(), dooms, ..workload }
    }

    fn decide(&self, close: Option<&[ClosePod]>) -> Plan {
        let workload = self.workload();
        let of = |hold: &HoldView| self.pods.iter().find(|pod| *pod.uid == *hold.spec.victim_uid);
        reconcile(&Input {
            workload: Some(&workload),
            protection: self.protection.as_ref(),
            holds: self.holds.iter().map(|hold| (hold, of(hold))).collect(),
            close,
            refused: self.refused,
            rules: &HandoverRules::default(),
            now: self.now,
        })
    }

    pub(super) fn plan(&self) -> Plan {
        self.decide(None)
    }

    /// As the loop does: with a close look where the first plan asks for one.
    pub(super) fn plan_closely(&self) -> Plan {
        let plan = self.plan();
        if !plan.look_closer {
            return plan;
        }
        let plan = self.decide(Some(&self.close()));
        assert!(!plan.look_closer, "a close look is enough");
        plan
    }

    pub(super) fn words(&self) -> Vec<Vec<String>> {
        in_words(&self.plan_closely())
    }
}

/// A surge of one replica over three that were all available, begun two seconds after [`START`].
pub(super) fn record() -> SurgeRecord {
    SurgeRecord {
        workload: "web-uid".into(),
        original: Some(3),
        base: 3,
        floor: 3,
        surge: 1,
        awaited: Vec::new(),
        released: Vec::new(),
        since: after(2),
        renewed: false,
    }
}

type Expected<'a> = &'a [&'a [&'a str]];

pub(super) fn check(table: Vec<(&str, Stage, Expected<'_>)>) {
    for (name, stage, expected) in table {
        assert_eq!(stage.words(), expected, "{name}");
    }
}
