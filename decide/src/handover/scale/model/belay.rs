//! Belay's own processes: webhook replicas that answer, controllers that act.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::SignedDuration;

use super::{Cluster, World, set};
use crate::action::Action;
use crate::cost::COST_ANNOTATION;
use crate::doom::Doomed;
use crate::handover::reconcile::{HandoverRules, Input, Plan, reconcile};
use crate::handover::surge::SurgeRecord;
use crate::handover::{ClosePod, Workload};
use crate::hold::{
    Answer, Facts, HoldReason, HoldSpec, HoldStatus, HoldTrigger, HoldView, Memory, Moment, Request, Rules, decide,
    hold_name,
};
use crate::ownership::{Key, MANAGED_ANNOTATION, Record};
use crate::policy::{Mode, Protection, Settings, Source, Trigger};
use crate::testing::after;
use crate::view::{AutoscalerView, DeploymentView, Governor, PodView};

/// How long completed holds are kept here.
pub(super) const HISTORY: SignedDuration = SignedDuration::from_hours(1);

/// How long ago what an actor sees is, in steps of the history: Deployment and autoscaler, pods, holds.
pub(super) type Lag = [u8; 3];

/// A webhook replica: what it remembers, and since when it runs.
#[derive(Debug, Default)]
pub(super) struct Replica {
    pub(super) memory: BTreeMap<String, Memory>,
    pub(super) started: i64,
    pub(super) cache: Cache,
}

/// A controller that acts; two may at once.
#[derive(Debug, Default)]
pub(super) struct Leader {
    pub(super) cache: Cache,
}

/// How far each watch has come. It never goes back.
#[derive(Debug, Default)]
pub(super) struct Cache([usize; 3]);

impl Cache {
    fn look(&mut self, history: &[Cluster], lag: Lag) -> Seen {
        let newest = history.len() - 1;
        for (place, lag) in self.0.iter_mut().zip(lag) {
            *place = (*place).max(newest.saturating_sub(usize::from(lag)));
        }
        let [spec, pods, holds] = self.0.map(|place| &history[place]);
        Seen {
            deployment: spec.deployment.clone(),
            autoscaler: spec.autoscaler.clone(),
            pods: pods.pods.iter().map(|pod| pod.view.clone()).collect(),
            dooms: pods.cordoned.iter().map(|node| (*node, cordoned_long_ago())).collect(),
            cordoned: pods.cordoned.clone(),
            holds: holds.holds.clone(),
        }
    }
}

/// What an actor sees.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) deployment: DeploymentView,
    autoscaler: Option<AutoscalerView>,
    pods: Vec<PodView>,
    cordoned: BTreeSet<&'static str>,
    dooms: BTreeMap<&'static str, Doomed>,
    pub(super) holds: Vec<HoldView>,
}

/// What is known of a cordoned node: enough to begin by at once.
fn cordoned_long_ago() -> Doomed {
    Doomed { by: "cordoned".into(), since: after(-3600), soft: false, notice: None }
}

impl Seen {
    fn reverse(&mut self) {
        self.pods.reverse();
        self.holds.reverse();
    }

    fn with<R>(&self, ask: impl FnOnce(&Workload<'_>) -> R) -> R {
        let set = set();
        let victims = self.holds.iter().filter(|hold| !hold.status.phase.is_released());
        let doomed_nodes = victims.map(|hold| hold.spec.victim_node.as_str()).chain(self.cordoned.iter().copied());
        ask(&Workload {
            deployment: &self.deployment,
            replica_sets: vec![&set],
            pods: self.pods.iter().collect(),
            doomed_nodes: doomed_nodes.collect(),
            dooms: self.dooms.iter().map(|(node, doomed)| (*node, doomed)).collect(),
            autoscaler: self.autoscaler.as_ref(),
        })
    }
}

/// A write that does not go as the writer thinks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// The how-manieth write of the step it is.
    pub(super) write: usize,
    /// It was performed, and only the answer is lost.
    pub(super) performed: bool,
}

impl World {
    pub(super) fn protection(&self) -> Option<Protection> {
        let settings = Settings {
            mode: Mode::Scale,
            trigger: if self.config.on_doom { Trigger::OnDoom } else { Trigger::OnEviction },
            surge_replicas: self.config.most,
            readiness_deadline_seconds: self.config.limit,
            ..Settings::default()
        };
        (!self.unprotected).then(|| Protection { source: Source::Policy("web".into()), settings })
    }

    /// A drainer asks to evict a pod; `refused_later`: a PodDisruptionBudget refuses it after Belay allowed.
    pub(super) fn ask(&mut self, replica: usize, at: usize, lag: Lag, refused_later: bool) {
        let Some(target) = self.cluster.pods.get(at).map(|pod| pod.view.clone()) else { return };
        let protection = self.protection();
        let now = self.now();
        let asked = &mut self.replicas[replica];
        let seen = asked.cache.look(&self.history, lag);
        let uptime = Duration::from_secs(u64::try_from(self.time - asked.started).unwrap_or(0));
        let memory = asked.memory.get(&*target.uid).copied();
        let answer = |seen: &Seen| {
            seen.with(|workload| {
                let facts = Facts {
                    synced: true,
                    victim: seen.pods.iter().find(|pod| pod.name == target.name),
                    workload: Some(workload),
                    protection: protection.as_ref(),
                    hold: seen.holds.iter().find(|hold| hold.spec.victim_uid == *target.uid),
                };
                let (name, uid) = (&*target.name, Some(&*target.uid));
                let request = Request { namespace: "shop", name, uid, dry_run: false, evictor: "drainer" };
                decide(&request, &Rules::default(), &facts, memory.as_ref(), Moment { wall: now, uptime })
            })
        };
        let decision = answer(&seen);
        let mut reversed = seen.clone();
        reversed.reverse();
        assert_eq!(answer(&reversed), decision, "the same input gives the same answer, in any order of the caches");

        if let Some(memory) = decision.memory {
            asked.memory.insert(target.uid.to_string(), memory);
        }
        if let Some(spec) = decision.record {
            self.create_hold(spec);
        }
        self.watch_answer(at, &decision.answer, lag);
        if let Some(hold) = self.cluster.holds.iter().position(|hold| hold.spec.victim_uid == *target.uid) {
            let version = self.cluster.next().to_string();
            let hold = &mut self.cluster.holds[hold];
            hold.status.last_requested_at = Some(now);
            hold.resource_version = version;
        }
        if matches!(decision.answer, Answer::Allow(_)) && !refused_later {
            self.watch_passing(&target.uid);
            self.cluster.delete(at, self.time);
        }
        self.see();
    }

    fn create_hold(&mut self, spec: HoldSpec) {
        let name = hold_name(HoldReason::Handover, &spec.victim_name, &spec.victim_uid);
        if self.cluster.holds.iter().any(|hold| hold.name == name) {
            return;
        }
        let number = self.cluster.next();
        self.cluster.holds.push(HoldView {
            namespace: "shop".into(),
            name,
            uid: format!("hold-{number}"),
            resource_version: number.to_string(),
            spec,
            status: HoldStatus::default(),
        });
    }

    /// A replica is killed; another takes its place and remembers nothing.
    pub(super) fn restart(&mut self, replica: usize) {
        self.replicas[replica] = Replica { started: self.time, ..Replica::default() };
    }

    fn plan(&self, seen: &Seen, close: Option<&[ClosePod]>) -> Plan {
        let protection = self.protection();
        let rules = HandoverRules { history_ttl: HISTORY, ..HandoverRules::default() };
        let victim = |hold: &HoldView| seen.pods.iter().find(|pod| *pod.uid == *hold.spec.victim_uid);
        let holds: Vec<_> = seen.holds.iter().map(|hold| (hold, victim(hold))).collect();
        seen.with(|workload| {
            let (workload, protection) = (Some(workload), protection.as_ref());
            reconcile(&Input { workload, protection, holds, close, refused: None, rules: &rules, now: self.now() })
        })
    }

    /// A controller takes one step, with a close look where it asks for one, and applies it with what the API server
    /// grants. Says how many writes it tried.
    pub(super) fn lead(&mut self, who: usize, lag: Lag, fault: Option<Fault>) -> usize {
        let seen = self.leaders[who].cache.look(&self.history, lag);
        let mut reversed = seen.clone();
        reversed.reverse();
        let mut plan = self.plan(&seen, None);
        assert_eq!(self.plan(&reversed, None), plan, "the same input gives the same plan, in any order of the caches");
        if plan.look_closer {
            let close: Vec<_> = self.cluster.pods.iter().map(super::Pod::close).collect();
            plan = self.plan(&seen, Some(&close));
            let close: Vec<_> = close.into_iter().rev().collect();
            assert_eq!(self.plan(&reversed, Some(&close)), plan, "the same close look gives the same plan");
            assert!(!plan.look_closer, "a close look is enough");
        }
        let open = |hold: &HoldView| !hold.status.phase.is_released();
        let waits = plan.sequences.is_empty() && seen.holds.iter().any(open);
        assert!(!waits || plan.wake_at.is_some(), "an open hold is looked at again");
        let mut writes = 0;
        for sequence in plan.sequences {
            for action in sequence {
                if matches!(action, Action::Event(_)) {
                    continue;
                }
                let struck = fault.filter(|fault| fault.write == writes);
                writes += 1;
                let fresh = lag == [0; 3];
                let performed = struck.is_none_or(|fault| fault.performed) && self.apply(action, fresh);
                self.see();
                if !performed || struck.is_some() {
                    break;
                }
            }
        }
        writes
    }

    /// Performs a write as the API server would: not on another object, not on another version.
    fn apply(&mut self, action: Action, fresh: bool) -> bool {
        match action {
            Action::UpdateHold { hold, status } => {
                let version = self.cluster.next().to_string();
                let holds = self.cluster.holds.iter_mut();
                let Some(found) = holds.into_iter().find(|one| one.object() == hold) else { return false };
                super::laws::watch_hold(&found.status, &status);
                if found.status != status {
                    (found.status, found.resource_version) = (status, version);
                }
            }
            Action::DeleteHold { hold } => {
                let Some(at) = self.cluster.holds.iter().position(|one| one.object() == hold) else { return false };
                let gone = self.cluster.holds.remove(at);
                let is_forgotten = gone.spec.trigger == HoldTrigger::Doom && gone.status.last_requested_at.is_none();
                let is_history = self.cluster.find(&gone.spec.victim_uid).is_none();
                assert!(is_history || is_forgotten, "deleted while its victim exists");
            }
            Action::CreateHold { spec, .. } => self.create_hold(spec),
            Action::Surge { governor, object, number, record, .. } => {
                if !self.governs(governor, &object) {
                    return false;
                }
                let before = self.record().clone();
                self.watch_number(number, before.as_ref(), record.as_ref(), fresh);
                self.cluster.set_number(number);
                *self.record() = record;
            }
            Action::NoteSurge { governor, object, record } => {
                if !self.governs(governor, &object) {
                    return false;
                }
                let before = self.record().clone();
                if before != record {
                    self.watch_record(before.as_ref(), record.as_ref());
                    let (number, generation) = (self.cluster.number(), self.cluster.deployment.generation);
                    self.cluster.set_number(number);
                    self.cluster.deployment.generation = generation;
                    *self.record() = record;
                }
            }
            Action::Scale { deployment, replicas, .. } => {
                let target = &mut self.cluster.deployment;
                if super::super::object_of(target) != deployment {
                    return false;
                }
                assert!(replicas < target.replicas && self.cluster.autoscaler.is_some(), "only down, by an autoscaler");
                self.scale_to(Some(replicas));
            }
            Action::PatchPod { pod, changes } => {
                let Some(at) = self.cluster.find(&pod.uid) else { return false };
                let target = &mut self.cluster.pods[at];
                if pod.resource_version != target.version.to_string() {
                    return false;
                }
                for (key, value) in changes {
                    match key {
                        key if key == Key::annotation(COST_ANNOTATION) => target.value = value.map(Into::into),
                        key if key == Key::annotation(MANAGED_ANNOTATION) => {
                            target.record = Record::parse(value.as_deref());
                        }
                        other => panic!("no part of a surge: {other}"),
                    }
                }
                self.cluster.pod_written(at);
            }
            other => panic!("no part of a surge: {other:?}"),
        }
        true
    }

    /// The object governs the replicas, and is of this version.
    fn governs(&self, governor: Governor, object: &crate::action::ObjectRef) -> bool {
        let (kind, present) = match &self.cluster.autoscaler {
            Some(autoscaler) => (autoscaler.governor, autoscaler.object.clone()),
            None => (Governor::Deployment, super::super::object_of(&self.cluster.deployment)),
        };
        assert_eq!(kind, governor);
        present == *object
    }

    pub(super) fn record(&mut self) -> &mut Option<SurgeRecord> {
        match &mut self.cluster.autoscaler {
            Some(autoscaler) => &mut autoscaler.surge,
            None => &mut self.cluster.deployment.surge,
        }
    }

    /// Until when a victim may be held.
    pub(super) fn limit(&self, asked: i64) -> jiff::Timestamp {
        after(asked + i64::from(self.config.limit))
    }
}
