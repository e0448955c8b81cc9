//! The questions that are asked of the cache, each answered under the read lock.

use std::collections::{BTreeSet, HashMap};

use belay_decide::handover::Workload;
use belay_decide::hold::{Facts, HoldReason, HoldView, Phase, hold_name};
use belay_decide::policy::{Mode, Trigger, evictor_matches, supported};
use belay_decide::policy_status;
use belay_decide::steer::Replacing;
use belay_decide::view::{AutoscalerView, PodView};
use jiff::Timestamp;
use kube::core::{Selector, SelectorExt};

use super::{
    DefaultPolicy, DeploymentView, Index, LabelSelector, Policy, PolicyView, Protection, State, WorkloadKey, get,
    protection,
};

/// What a HandoverPolicy selects.
#[derive(Clone, Debug)]
pub enum Target {
    /// The Deployment of this name.
    Name(String),
    /// Deployments with these labels.
    Labels(Selector),
    /// Nothing: the policy is invalid, and why.
    Invalid(String),
}

impl Target {
    /// Reads a policy's target.
    pub fn of(name: Option<&str>, selector: Option<&LabelSelector>) -> Self {
        match (name, selector) {
            (Some(_), Some(_)) => Self::Invalid("targetRef and selector are both set; set exactly one".to_owned()),
            (None, None) => Self::Invalid("neither targetRef nor selector is set; set exactly one".to_owned()),
            (Some(name), None) => Self::Name(name.to_owned()),
            (None, Some(selector)) => match Selector::try_from(selector.clone()) {
                Ok(selector) if selector.selects_all() => {
                    Self::Invalid("the selector is empty and would cover the whole namespace".to_owned())
                }
                Ok(selector) => Self::Labels(selector),
                Err(error) => Self::Invalid(format!("spec.selector is not a valid label selector: {error}")),
            },
        }
    }

    fn selects(&self, deployment: &DeploymentView) -> bool {
        match self {
            Self::Name(name) => *name == deployment.name,
            Self::Labels(selector) => selector.matches(&deployment.labels),
            Self::Invalid(_) => false,
        }
    }
}

/// A Deployment with what decides how it is handed over.
#[derive(Clone, Debug)]
pub struct Selected<'a> {
    /// It.
    pub deployment: &'a DeploymentView,
    /// What protects it.
    pub protection: Option<Protection>,
    /// What governs its replicas, where that is not itself.
    pub autoscaler: Option<&'a AutoscalerView>,
}

impl Selected<'_> {
    /// As a policy's status is made from it.
    pub fn target(&self) -> policy_status::Target<'_> {
        policy_status::Target {
            deployment: self.deployment,
            protection: self.protection.as_ref(),
            autoscaler: self.autoscaler,
        }
    }
}

/// A policy with the Deployments that it selects, and the policy that governs each.
#[derive(Clone, Debug)]
pub struct PolicyState<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// Its Deployments, in the order of their names.
    pub deployments: Vec<Selected<'a>>,
    /// The newest released hold of one of its Deployments.
    pub last: Option<&'a HoldView>,
}

/// A ReplicaSet's name is its Deployment's and the template hash.
fn deployment_named_in<'a>(replica_set: &'a str, template_hash: &str) -> Option<&'a str> {
    replica_set.strip_suffix(template_hash)?.strip_suffix('-')
}

impl State {
    fn protection(&self, deployment: &DeploymentView, default: &DefaultPolicy) -> Option<Protection> {
        let policies: Vec<&PolicyView> = self
            .policies
            .get(deployment.namespace.as_str())
            .into_iter()
            .flat_map(|policies| policies.values())
            .filter(|policy| policy.target.selects(deployment))
            .map(|policy| &policy.view)
            .collect();
        protection(deployment, &policies, default)
    }

    /// The Deployment of a new pod, by the name of its ReplicaSet, which itself may be too new to be known.
    fn deployment_of_new(&self, namespace: &str, replica_set: &str, template_hash: &str) -> Option<&DeploymentView> {
        get(&self.deployments, namespace, deployment_named_in(replica_set, template_hash)?)
    }

    fn selected<'a>(&'a self, deployment: &'a DeploymentView, default: &DefaultPolicy) -> Selected<'a> {
        let key = WorkloadKey::new(&deployment.namespace, &deployment.name);
        Selected {
            deployment,
            protection: self.protection(deployment, default),
            autoscaler: self.autoscalers.governing(&key),
        }
    }

    fn holds_of<'a>(&'a self, key: &WorkloadKey) -> impl Iterator<Item = &'a HoldView> + use<'a> {
        let names = self.holds_of.get(key).into_iter().flatten();
        let namespace = self.holds.get(&key.namespace);
        names.filter_map(move |name| namespace?.get(name))
    }

    /// The workloads that are being handed over: those with holds, or with a surge that is to be put back. One may come
    /// twice.
    pub(super) fn handed_over(&self) -> impl Iterator<Item = &WorkloadKey> {
        self.holds_of.keys().chain(&self.surged)
    }

    /// The Deployment with its ReplicaSets and pods, in the order of their names.
    pub(super) fn workload<'a>(&'a self, deployment: &'a DeploymentView) -> Workload<'a> {
        let namespace = deployment.namespace.as_str();
        let replica_sets: Vec<_> = self
            .sets_of
            .get(deployment.uid.as_str())
            .into_iter()
            .flatten()
            .filter_map(|name| get(&self.replica_sets, namespace, name))
            .collect();
        let pods: Vec<_> = replica_sets
            .iter()
            .filter_map(|set| self.pods_of.get(&*set.uid))
            .flatten()
            .filter_map(|name| get(&self.pods, namespace, name))
            .map(|pod| &**pod)
            .collect();
        let key = WorkloadKey::new(namespace, &deployment.name);
        // A node whose victim was let go takes pods again, unless more than an eviction speaks against it.
        let victims = self
            .holds_of(&key)
            .filter(|hold| !hold.status.phase.is_released())
            .map(|hold| hold.spec.victim_node.as_str())
            .filter(|node| !node.is_empty());
        let autoscaler = self.autoscalers.governing(&key);
        let dooms = self.dooms(&pods);
        let going = dooms.iter().filter(|(_, doomed)| !doomed.soft).map(|(node, _)| *node);
        let doomed_nodes: BTreeSet<&str> = going.chain(victims).collect();
        Workload { deployment, replica_sets, pods, doomed_nodes, dooms, autoscaler }
    }

    /// A handover may begin by itself: it does for this Deployment, and one of its pods is on a node that is about to go,
    /// or may be.
    fn may_begin(&self, deployment: &DeploymentView, default: &DefaultPolicy) -> bool {
        // Asked for nearly every change in the cluster: what is seldom true comes first.
        let on_doom = |protection: Protection| protection.settings.trigger == Trigger::OnDoom;
        !self.doomed.is_empty()
            && self.protection(deployment, default).is_some_and(on_doom)
            && !self.workload(deployment).dooms.is_empty()
    }

    pub(super) fn deployment_of<'a>(&'a self, pod: &PodView) -> Option<&'a DeploymentView> {
        let uid = self.set_owner.get(pod.replica_set.as_deref()?)?;
        let key = self.deployment_names.get(uid)?;
        get(&self.deployments, &key.namespace, &key.name)
    }

    fn pod_of_uid(&self, namespace: &str, name: &str, uid: &str) -> Option<&PodView> {
        get(&self.pods, namespace, name).map(|pod| &**pod).filter(|pod| &*pod.uid == uid)
    }
}

impl Index {
    /// Asks about the victim of an eviction. `synced` is passed on.
    pub fn victim<R>(
        &self,
        namespace: &str,
        name: &str,
        default: &DefaultPolicy,
        synced: bool,
        ask: impl FnOnce(&Facts<'_>) -> R,
    ) -> R {
        let state = self.state.read();
        let Some(victim) = get(&state.pods, namespace, name) else {
            return ask(&Facts { synced, ..Facts::default() });
        };
        let deployment = state.deployment_of(victim);
        let protection = deployment.and_then(|deployment| state.protection(deployment, default));
        let workload = deployment.filter(|_| protection.is_some()).map(|deployment| state.workload(deployment));
        let hold = get(&state.holds, namespace, &hold_name(HoldReason::Handover, &victim.name, &victim.uid))
            .filter(|hold| hold.spec.victim_uid == *victim.uid);
        ask(&Facts { synced, victim: Some(victim), workload: workload.as_ref(), protection: protection.as_ref(), hold })
    }

    /// Asks about a workload that is being handed over, or may be soon by itself; `None` where it has neither holds nor a
    /// surge, and where none of its pods that are handed over by themselves is on a node that is about to go.
    pub fn workload<R>(
        &self,
        key: &WorkloadKey,
        default: &DefaultPolicy,
        ask: impl FnOnce(Option<&Workload<'_>>, Option<&Protection>, Vec<(&HoldView, Option<&PodView>)>) -> R,
    ) -> Option<R> {
        let state = self.state.read();
        let holds: Vec<_> = state
            .holds_of(key)
            .map(|hold| (hold, state.pod_of_uid(&hold.namespace, &hold.spec.victim_name, &hold.spec.victim_uid)))
            .collect();
        let deployment = get(&state.deployments, &key.namespace, &key.name);
        if holds.is_empty()
            && !state.surged.contains(key)
            && !deployment.is_some_and(|deployment| state.may_begin(deployment, default))
        {
            return None;
        }
        let protection = deployment.and_then(|deployment| state.protection(deployment, default));
        let workload = deployment.map(|deployment| state.workload(deployment));
        // A Deployment of the same name but another UID is another workload: to its predecessor's holds it is gone.
        Some(ask(workload.as_ref(), protection.as_ref(), holds))
    }

    /// Asks about a Deployment, whether anything is handed over or not; `None` where there is none.
    pub fn deployment<R>(
        &self,
        key: &WorkloadKey,
        default: &DefaultPolicy,
        ask: impl FnOnce(&Selected<'_>, &Workload<'_>, Vec<&HoldView>) -> R,
    ) -> Option<R> {
        let state = self.state.read();
        let deployment = get(&state.deployments, &key.namespace, &key.name)?;
        let holds = state.holds_of(key).collect();
        Some(ask(&state.selected(deployment, default), &state.workload(deployment), holds))
    }

    /// Asks about the holds of the workload that a new pod belongs to, by the ReplicaSet's name: the ReplicaSet
    /// itself may be too new to be known here, but its name is the Deployment's and the template hash.
    pub fn new_pod<R>(
        &self,
        namespace: &str,
        replica_set: &str,
        template_hash: &str,
        default: &DefaultPolicy,
        ask: impl FnOnce(&Replacing<'_>) -> R,
    ) -> Option<R> {
        let name = deployment_named_in(replica_set, template_hash)?;
        let state = self.state.read();
        let holds: Vec<_> = state.holds_of(&WorkloadKey::new(namespace, name)).collect();
        if holds.is_empty() {
            return None;
        }
        let deployment = get(&state.deployments, namespace, name)?;
        let mode = state.protection(deployment, default).map(|protection| protection.settings.mode).unwrap_or_default();
        let (strategy, selector) = (deployment.strategy, &deployment.selector);
        // Asked for every new pod of a workload with a hold, of which a restart makes many: only a stand-in needs them.
        let going = if mode == Mode::Scale { state.going() } else { BTreeSet::new() };
        Some(ask(&Replacing { mode, strategy, selector, holds: &holds, going: &going }))
    }

    /// Whether a new pod belongs to a protected Deployment, by the ReplicaSet's name as in [`Index::new_pod`]. One that is
    /// not known yet is not known to be protected.
    pub fn protects_new_pod(
        &self,
        namespace: &str,
        replica_set: &str,
        template_hash: &str,
        default: &DefaultPolicy,
    ) -> bool {
        let state = self.state.read();
        let deployment = state.deployment_of_new(namespace, replica_set, template_hash);
        deployment.is_some_and(|deployment| state.protection(deployment, default).is_some())
    }

    /// Whether a new pod belongs to a Deployment whose pods are held against this evictor, by the ReplicaSet's name as in
    /// [`Index::new_pod`].
    pub fn holds_new_pod(
        &self,
        namespace: &str,
        replica_set: &str,
        template_hash: &str,
        default: &DefaultPolicy,
        evictor: &str,
    ) -> bool {
        let state = self.state.read();
        let Some(deployment) = state.deployment_of_new(namespace, replica_set, template_hash) else { return false };
        let selected = state.selected(deployment, default);
        selected.protection.is_some_and(|Protection { settings, .. }| {
            !evictor_matches(&settings.ignore_evictors, evictor)
                && supported(deployment, settings.mode, selected.autoscaler).is_ok()
        })
    }

    /// Asks about each policy of a namespace, in the order of their names.
    pub fn policies<R>(
        &self,
        namespace: &str,
        default: &DefaultPolicy,
        mut ask: impl FnMut(&PolicyState<'_>) -> R,
    ) -> Vec<R> {
        let state = self.state.read();
        let Some(policies) = state.policies.get(namespace) else { return Vec::new() };
        let mut policies: Vec<_> = policies.values().collect();
        policies.sort_by(|a, b| a.view.name.cmp(&b.view.name));
        let mut answers = Vec::with_capacity(policies.len());
        for policy in policies {
            let all = state.deployments.get(namespace);
            let mut deployments: Vec<_> = all
                .into_iter()
                .flat_map(|deployments| deployments.values())
                .filter(|deployment| policy.target.selects(deployment))
                .map(|deployment| state.selected(deployment, default))
                .collect();
            deployments.sort_by(|one, other| one.deployment.name.cmp(&other.deployment.name));
            let last = deployments
                .iter()
                .flat_map(|selected| state.holds_of(&WorkloadKey::new(namespace, &selected.deployment.name)))
                .filter(|hold| hold.status.released_at.is_some())
                .max_by_key(|hold| (hold.status.released_at, &hold.name));
            answers.push(ask(&PolicyState { policy, deployments, last }));
        }
        answers
    }

    /// Has every workload looked at that is being handed over, or may be soon by itself.
    pub fn touch_workloads_with_holds(&self) {
        self.change(|state, touched| {
            touched.all_with_holds(state, None);
            state.touch_doomed(touched);
        });
    }

    /// Has every policy looked at.
    pub fn touch_policies(&self) {
        let Some(dirty) = &self.dirty else { return };
        let namespaces: Vec<_> = self.state.read().policies.keys().cloned().collect();
        for namespace in namespaces {
            dirty.policies(&namespace);
        }
    }

    /// How many holds are in each phase, and the earliest deadline of an open one.
    pub fn hold_phases(&self) -> ([(&'static str, i64); 4], Option<Timestamp>) {
        let state = self.state.read();
        let mut counts =
            [Phase::Pending, Phase::Active, Phase::Released, Phase::Completed].map(|phase| (phase.as_str(), 0));
        let mut deadline: Option<Timestamp> = None;
        for hold in state.holds.values().flat_map(HashMap::values) {
            let phase = hold.status.phase;
            for (name, count) in &mut counts {
                *count += i64::from(*name == phase.as_str());
            }
            if !phase.is_released() {
                deadline = Some(deadline.map_or(hold.spec.deadline, |earliest| earliest.min(hold.spec.deadline)));
            }
        }
        (counts, deadline)
    }
}
