//! What the servers watch: what fills the cache.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use belay_decide::busy::{GroupKind, Rule};
use belay_decide::hold::{HoldView, Rules};
use belay_decide::lifecycle;
use belay_decide::view::Governor;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::DynamicObject;
use kube::core::{ApiResource, DeserializeGuard};
use kube::runtime::watcher;

use crate::api::{EvictionHold, HandoverPolicy, HandoverPolicySpec};
use crate::cluster::apply::scaled_object;
use crate::cluster::clock::Clock;
use crate::cluster::costs::{CostSink, Costs, Pair};
use crate::cluster::index::{
    AutoscalerSink, BusyPodSink, Index, IndexSink, LinkedSink, OwnerSink, Policy, SeenNode, Target,
};
use crate::cluster::owners::{self, Followed, Resources};
use crate::cluster::pool::Alike;
use crate::cluster::project_cost::{self, LeftOut};
use crate::cluster::subset::{AutoscalerSubset, DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use crate::cluster::watch::{Health, RuleHealth, Watches};
use crate::cluster::{project, project_autoscaler, project_busy, project_lifecycle};
use crate::config::{Config, Selects};

/// What the watches of a server are for.
pub(super) struct Purpose {
    /// Evictions are held for handovers.
    pub(super) handovers: bool,
    /// Evictions are held, for handovers or for busy pods.
    pub(super) holds: bool,
    /// Where nodes are ranked, the cache for that.
    pub(super) costs: Option<Costs>,
    /// Pods that ranks give no value.
    pub(super) left_out: LeftOut,
}

impl Purpose {
    pub(super) fn of(config: &Config, costs: Option<Costs>, left_out: LeftOut) -> Self {
        let busy = config.busy_hints.enabled;
        // With every capability off the webhook still answers, and is ready.
        let handovers = config.eviction_hold.enabled || !busy && costs.is_none();
        Self { handovers, holds: handovers || busy, costs, left_out }
    }
}

/// The watches of what several capabilities read, by who does.
#[derive(Default)]
pub(super) struct Reading {
    /// What decisions about evictions read: nothing is decided before these have been complete.
    pub(super) holds: Vec<Health>,
    /// What deletion costs are made of: the rest goes on without.
    pub(super) costs: Vec<Health>,
}

impl Reading {
    fn add(&mut self, health: Health, holds: bool, costs: bool) {
        self.costs.extend(costs.then(|| health.clone()));
        self.holds.extend(holds.then_some(health));
    }
}

/// Watches everything that decisions about evictions read, for handovers or for busy pods alone, and the pods, nodes and
/// ReplicaSets that deletion costs are made of: each kind once, whoever reads it.
pub(super) fn fill(watches: &Watches, index: &Index, resources: &Resources, purpose: &Purpose) -> Reading {
    let client = || watches.client.clone();
    let autoscalers = |governor| AutoscalerSink { index: index.clone(), governor };
    let index = || IndexSink(index.clone());
    let both = || Pair(index(), CostSink(purpose.costs.clone()));
    let config = watcher::Config::default;
    let (handovers, holds, costs) = (purpose.handovers, purpose.holds, purpose.costs.is_some());
    let mut reading = Reading::default();
    let alike = Arc::<Alike>::default();
    if holds || costs {
        let (left_out, alike) = (purpose.left_out.clone(), Arc::clone(&alike));
        let project = move |pod: &PodSubset| {
            let mut view = holds.then(|| project::pod(pod, costs));
            let mut known = costs.then(|| project_cost::pod(pod, &left_out, Clock::wall()));
            alike.pod(view.as_mut(), known.as_mut());
            Some((view, known))
        };
        reading.add(watches.start("pods", Api::all(client()), config(), project, both()), holds, costs);
    }
    if handovers || costs {
        let of_nodes = Arc::clone(&alike);
        let project = move |node: &NodeSubset| {
            let mut cost = costs.then(|| project_cost::node(node, Clock::wall()));
            let mut seen = handovers.then(|| SeenNode { view: project::node(node), at: Clock::wall() });
            let views = seen.iter_mut().map(|seen| &mut seen.view).chain(cost.iter_mut().map(|facts| &mut facts.node));
            views.for_each(|view| of_nodes.node(view));
            Some((seen, cost))
        };
        reading.add(watches.start("nodes", Api::all(client()), config(), project, both()), handovers, costs);
        let project = move |set: &ReplicaSetSubset| {
            let mut cost = costs.then(|| project_cost::set(set));
            let mut view = handovers.then(|| project::replica_set(set));
            if let Some(view) = &mut view {
                alike.replica_set(view);
            }
            if let Some(known) = &mut cost {
                alike.set(&mut known.set.uid);
            }
            Some((view, cost))
        };
        reading.add(watches.start("ReplicaSets", Api::all(client()), config(), project, both()), handovers, costs);
    }
    if holds {
        reading.holds.push(watches.start("EvictionHolds", Api::all(client()), config(), hold, index()));
    }
    if handovers {
        let project = |deployment: &DeploymentSubset| Some(project::deployment(deployment));
        reading.holds.extend([
            watches.start("Deployments", Api::all(client()), config(), project, index()),
            watches.start("HandoverPolicies", Api::all(client()), config(), |object| Some(policy(object)), index()),
            watches.start(
                "HorizontalPodAutoscalers",
                Api::all(client()),
                config(),
                |autoscaler: &AutoscalerSubset| Some(project_autoscaler::horizontal(autoscaler)),
                autoscalers(Governor::HorizontalPodAutoscaler),
            ),
            owners::follow(
                watches,
                resources.clone(),
                scaled_object(),
                project_autoscaler::scaled_object,
                autoscalers(Governor::ScaledObject),
            ),
        ]);
    }
    reading
}

/// The kind that a responder reads, in the version whose meaning is known.
fn evictions() -> Followed {
    Followed::only_in(lifecycle::eviction(), lifecycle::VERSION)
}

/// Watches what EvictionRequests ask, where the API server serves them.
pub(super) fn fill_requests(watches: &Watches, index: &Index, resources: &Resources) -> Health {
    owners::follow(watches, resources.clone(), evictions(), project_lifecycle::eviction, IndexSink(index.clone()))
}

/// Keeps known whether there may be EvictionRequests, for new pods.
pub(super) fn look_out_for_requests(watches: &Watches, resources: &Resources) -> Health {
    owners::look_out(watches, resources.clone(), evictions())
}

/// Watches what deletion costs read besides: budgets, and what Karpenter says where it is installed.
pub(super) fn fill_costs(watches: &Watches, resources: &Resources, costs: &Costs) -> Vec<Health> {
    let sink = || CostSink(Some(costs.clone()));
    let budget = |budget: &PodDisruptionBudget| Some(project_cost::budget(budget, Clock::wall()));
    let budgets: Api<PodDisruptionBudget> = Api::all(watches.client.clone());
    let kind = |kind: &str| GroupKind::new("karpenter.sh", kind);
    vec![
        watches.start("PodDisruptionBudgets", budgets, watcher::Config::default(), budget, sink()),
        owners::follow(watches, resources.clone(), kind("NodeClaim"), project_cost::claim, sink()),
        owners::follow(watches, resources.clone(), kind("NodePool"), project_cost::pool, sink()),
    ]
}

/// Watches what busy rules read: the pods that each selects, whole; the kinds of their owners; linked pods.
pub(super) fn fill_busy(
    watches: &Watches,
    index: &Index,
    resources: &Resources,
    selects: &Arc<Vec<Selects>>,
    rules: &Rules,
) -> RuleHealth {
    let pods: Api<DynamicObject> = Api::all_with(watches.client.clone(), &ApiResource::erase::<Pod>(&()));
    let kinds: BTreeSet<_> = index.rules().iter().flat_map(Rule::asked_kinds).cloned().collect();
    let owners: BTreeMap<_, _> = kinds
        .into_iter()
        .map(|kind| {
            let sink = OwnerSink { index: index.clone(), kind: kind.clone() };
            let fields = sink.fields();
            let project = move |owner: &DynamicObject| project_busy::owner(owner, &fields);
            (kind.clone(), owners::follow(watches, resources.clone(), kind, project, sink))
        })
        .collect();
    let labels: BTreeSet<_> = index.rules().iter().filter_map(|rule| rule.spec.linked_label.clone()).collect();
    let linked: BTreeMap<_, _> =
        labels.into_iter().map(|label| (label.clone(), watch_linked(watches, index, &pods, &label))).collect();
    let mut health = RuleHealth::default();
    for (number, (rule, select)) in index.rules().iter().zip(selects.iter()).enumerate() {
        health.pods.push(watch_rule(watches, index, &pods, number, &rule.spec.name, select, rules));
        let of_rule = rule.asked_kinds().filter_map(|kind| owners.get(kind));
        let of_rule = of_rule.chain(rule.spec.linked_label.as_ref().and_then(|label| linked.get(label)));
        health.asked.push(of_rule.cloned().collect());
    }
    health
}

/// Watches the pods that a rule selects.
fn watch_rule(
    watches: &Watches,
    index: &Index,
    pods: &Api<DynamicObject>,
    number: usize,
    name: &str,
    select: &Selects,
    excluding: &Rules,
) -> Health {
    let (rules, select_pod, excluding) = (Arc::clone(index.rules()), select.clone(), excluding.clone());
    let project = move |pod: &DynamicObject| {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if !select_pod.covers(namespace) || excluding.excludes(namespace) {
            return None;
        }
        Some(project_busy::pod(pod, rules.get(number)?, Clock::wall()))
    };
    let config = watcher::Config::default().labels_from(&select.selector);
    let sink = BusyPodSink { index: index.clone(), rule: number };
    watches.start_named("busy pods", format!("pods of rule {name}").into(), pods.clone(), config, project, sink)
}

/// Watches the pods that are linked to others by a label.
fn watch_linked(watches: &Watches, index: &Index, pods: &Api<DynamicObject>, label: &str) -> Health {
    let sink = LinkedSink { index: index.clone(), label: label.into() };
    let (fields, key) = (sink.fields(), label.to_owned());
    let project = move |pod: &DynamicObject| project_busy::linked(pod, &key, &fields);
    let config = watcher::Config::default().labels(label);
    let what = format!("pods linked by {label}").into();
    watches.start_named("linked pods", what, pods.clone(), config, project, sink)
}

/// A policy that a newer version wrote may hold words that this one does not know: it selects nothing and says why,
/// and the others are read all the same.
pub(super) fn policy(policy: &DeserializeGuard<HandoverPolicy>) -> Policy {
    let (readable, problem) = match &policy.0 {
        Ok(policy) => (policy.clone(), None),
        Err(invalid) => {
            let mut blank = HandoverPolicy::new("", HandoverPolicySpec::default());
            blank.metadata = invalid.metadata.clone();
            (blank, Some(format!("this version of Belay cannot read the policy: {}", invalid.error)))
        }
    };
    let spec = &readable.spec;
    let target = Target::of(spec.target_ref.as_ref().map(|target| target.name.as_str()), spec.selector.as_ref());
    Policy {
        view: project::policy(&readable),
        target: problem.map_or(target, Target::Invalid),
        generation: readable.metadata.generation.unwrap_or_default(),
        resource_version: readable.metadata.resource_version.clone().unwrap_or_default(),
        uid: readable.metadata.uid.clone().unwrap_or_default(),
        status: readable.status.clone(),
    }
}

/// A hold that a newer version wrote, and that this one cannot read, is passed over.
pub(super) fn hold(hold: &DeserializeGuard<EvictionHold>) -> Option<HoldView> {
    match &hold.0 {
        Ok(hold) => Some(project::hold(hold)),
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            let namespace = invalid.metadata.namespace.as_deref().unwrap_or_default();
            tracing::warn!(%namespace, hold = %name, error = %invalid.error, "EvictionHold passed over");
            None
        }
    }
}
