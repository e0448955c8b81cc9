//! From API objects to what deletion costs are decided on.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use belay_decide::busy::Rule;
use belay_decide::busy::hints::{DO_NOT_DISRUPT, SAFE_TO_EVICT};
use belay_decide::cost::cluster::{Budget, Claim, KnownPod, KnownSet};
use belay_decide::cost::{
    COST_ANNOTATION, Constraint, CostPod, Keep, NodeFacts, PodHold, Readiness, SetView, Standing,
};
use belay_decide::handover::close::ClosePod;
use belay_decide::hold::Rules;
use belay_decide::ownership::{MANAGED_ANNOTATION, Record};
use belay_decide::removers::go_duration;
use belay_decide::view::PodPhase;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use kube::core::{Selector, SelectorExt as _};

use super::project::{self, annotation, condition, controller_uid, label, text};
use super::project_busy::MIRROR_ANNOTATION;
use super::subset::{NodeSubset, PodSubset, ReplicaSetSubset};
use crate::config::Selects;

/// Node annotation by which Cluster Autoscaler leaves alone (`cluster-autoscaler/core/scaledown/eligibility`).
const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";

/// Labels of nodes that carry the control plane; the second is what kubeadm used before 1.24.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Labels that name a node's pool: Karpenter's, GKE's, EKS managed node groups', AKS'.
const POOL_LABELS: [&str; 4] = [
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
];

/// Which pods get no value from ranks.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// Namespaces.
    pub rules: Rules,
    /// What busy rules that write costs themselves select, after those that come before them.
    pub busy: Arc<Vec<(Selects, bool)>>,
}

impl LeftOut {
    /// The busy rules' selections, and whether each writes costs, in their order: the first that selects a pod governs.
    pub fn of(rules: Rules, selects: &[Selects], busy: &[Rule]) -> Self {
        let writes_cost = busy.iter().map(|rule| rule.spec.hints.deletion_cost);
        Self { rules, busy: Arc::new(selects.iter().cloned().zip(writes_cost).collect()) }
    }

    fn writes_cost(&self, namespace: &str, meta: &ObjectMeta) -> bool {
        // In excluded namespaces no rule governs: what one wrote there before is not its own any more.
        if self.busy.is_empty() || self.rules.excludes(namespace) {
            return false;
        }
        let labels = meta.labels.clone().unwrap_or_default();
        let governing = self.busy.iter().find(|(selects, _)| selects.matches(namespace, &labels));
        governing.is_some_and(|(_, writes_cost)| *writes_cost)
    }
}

fn created(meta: &ObjectMeta, now: Timestamp) -> Timestamp {
    meta.creation_timestamp.as_ref().map_or(now, |time| time.0)
}

/// Projects a Pod.
pub fn pod(pod: &PodSubset, left_out: &LeftOut, now: Timestamp) -> KnownPod {
    let meta = &pod.metadata;
    let namespace: Arc<str> = text(meta.namespace.as_ref());
    let present = annotation(meta, COST_ANNOTATION);
    let managed = annotation(meta, MANAGED_ANNOTATION);
    let standing = Standing::read(present, &managed.map(|record| Record::parse(Some(record))).unwrap_or_default());
    // What a busy rule writes is as good as a user's: ranks do not touch it.
    let standing = match standing {
        standing if !left_out.writes_cost(&namespace, meta) => standing,
        Standing::Theirs { value, .. } => Standing::Theirs { value, replaced: false },
        mine => Standing::OtherPart(mine.effective()),
    };
    let ready = condition(&pod.status.conditions, "Ready");
    // Until the kubelet says anything about it, the pod starts from when it got its node.
    let scheduled = condition(&pod.status.conditions, "PodScheduled").filter(|scheduled| scheduled.status == "True");
    let ready_since = ready.or(scheduled).and_then(|told| told.last_transition_time.as_ref()).map(|time| time.0);
    let is_mirror = annotation(meta, MIRROR_ANNOTATION).is_some();
    let movable = !is_mirror && controller_uid::<Box<str>>(meta, "DaemonSet").is_none();
    let created = created(meta, now);
    let started = pod.status.start_time.as_ref().map(|time| time.0);
    let (hold, hold_until) = hold(meta, movable, started, now);
    let set = controller_uid(meta, "ReplicaSet").filter(|_| !left_out.rules.excludes(&namespace));
    KnownPod {
        pod: CostPod {
            name: text(meta.name.as_ref()),
            uid: text(meta.uid.as_ref()),
            set,
            node: pod.spec.node_name.as_deref().filter(|node| !node.is_empty()).map(Into::into),
            phase: PodPhase::parse(pod.status.phase.as_deref()),
            terminating: meta.deletion_timestamp.is_some(),
            readiness: match ready.map(|ready| ready.status == "True") {
                Some(true) => Readiness::Ready(ready_since),
                _ => Readiness::NotReady(ready_since),
            },
            restarts: pod.status.container_statuses.iter().map(|one| one.restart_count).max().unwrap_or(0),
            sidecar_restarts: sidecar_restarts(pod),
            created,
            priority: pod.spec.priority.unwrap_or(0),
            standing,
            movable,
            hold,
            blocked_since: None,
            namespace,
        },
        resource_version: text(meta.resource_version.as_ref()),
        present: present.map(Into::into),
        managed: managed.map(Into::into),
        labels: Arc::new(meta.labels.clone().unwrap_or_default()),
        hold_until,
    }
}

/// Projects a Pod that was read from the API just now, for a close look.
pub fn close_pod(pod: &PodSubset, left_out: &LeftOut, now: Timestamp) -> ClosePod {
    let KnownPod { pod, resource_version, present, managed, .. } = self::pod(pod, left_out, now);
    ClosePod { pod, value: present, record: Record::parse(managed.as_deref()), resource_version }
}

fn sidecar_restarts(pod: &PodSubset) -> i32 {
    let is_sidecar = |name: &str| {
        let named = pod.spec.init_containers.iter().find(|container| container.name == name);
        named.is_some_and(|container| container.restart_policy.as_deref() == Some("Always"))
    };
    let sidecars = pod.status.init_container_statuses.iter().filter(|status| is_sidecar(&status.name));
    sidecars.map(|status| status.restart_count).max().unwrap_or(0)
}

/// Why a pod keeps its node from being emptied, and until when. What lasts goes before what ends.
fn hold(
    meta: &ObjectMeta,
    movable: bool,
    started: Option<Timestamp>,
    now: Timestamp,
) -> (Option<PodHold>, Option<Timestamp>) {
    let do_not_disrupt = annotation(meta, DO_NOT_DISRUPT);
    let has_controller = meta.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
    let lasting = if do_not_disrupt == Some("true") {
        Some(PodHold::DoNotDisrupt)
    } else if movable && annotation(meta, SAFE_TO_EVICT) == Some("false") {
        Some(PodHold::NotSafeToEvict)
    } else if movable && !has_controller {
        Some(PodHold::Unmanaged)
    } else {
        None
    };
    // Karpenter also takes a time from the pod's start, and waits for one that is not known yet; what it cannot read it
    // ignores (`pkg/utils/pod/scheduling.go`, `IsDoNotDisruptActive`).
    let time = do_not_disrupt.and_then(go_duration).filter(SignedDuration::is_positive);
    let (None, Some(time)) = (lasting, time) else { return (lasting, None) };
    // A time beyond all times is for ever.
    let until = started.and_then(|started| started.checked_add(time).ok());
    let is_over = until.is_some_and(|until| until <= now);
    if is_over { (None, None) } else { (Some(PodHold::DoNotDisrupt), until) }
}

/// Projects a Node.
pub fn node(node: &NodeSubset, now: Timestamp) -> NodeFacts {
    let meta = &node.metadata;
    let labels = meta.labels.iter().flatten();
    let keep = if annotation(meta, DO_NOT_DISRUPT) == Some("true") {
        Some(Keep::DoNotDisrupt)
    } else if annotation(meta, SCALE_DOWN_DISABLED) == Some("true") {
        Some(Keep::ScaleDownDisabled)
    } else {
        CONTROL_PLANE.iter().any(|key| label::<Box<str>>(meta, key).is_some()).then_some(Keep::ControlPlane)
    };
    NodeFacts {
        node: project::node(node),
        created: created(meta, now),
        pool: POOL_LABELS.iter().find_map(|key| label(meta, key)),
        topology: Arc::new(labels.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect()),
        leaving: meta.deletion_timestamp.is_some(),
        drifted: false,
        keep,
        stood_down: false,
    }
}

/// Projects a ReplicaSet.
pub fn set(set: &ReplicaSetSubset) -> KnownSet {
    let meta = &set.metadata;
    let template = &set.spec.template;
    let own = |constraint: &&TopologySpreadConstraint| {
        let selector = constraint.label_selector.clone().and_then(|selector| Selector::try_from(selector).ok());
        selector.is_some_and(|selector| selector.matches(&template.metadata.labels))
    };
    let constraints = template.spec.topology_spread_constraints.iter().filter(own);
    let constraints = constraints.map(|constraint| Constraint {
        key: constraint.topology_key.as_str().into(),
        max_skew: constraint.max_skew.max(1),
        hard: constraint.when_unsatisfiable == "DoNotSchedule",
    });
    KnownSet {
        set: SetView {
            namespace: text(meta.namespace.as_ref()),
            name: text(meta.name.as_ref()),
            uid: text(meta.uid.as_ref()),
            replicas: set.spec.replicas.unwrap_or(1),
            constraints: constraints.collect(),
            stood_down: false,
        },
        deployment: controller_uid(meta, "Deployment"),
    }
}

/// Projects a PodDisruptionBudget. One whose selector cannot be read covers nothing.
pub fn budget(budget: &PodDisruptionBudget, now: Timestamp) -> Budget {
    let meta = &budget.metadata;
    let spec = budget.spec.clone().unwrap_or_default();
    let status = budget.status.clone().unwrap_or_default();
    let written = serde_json::to_string(&spec.selector).unwrap_or_default();
    let selector = spec.selector.and_then(|selector| Selector::try_from(selector).ok());
    let created = created(meta, now);
    let denied =
        status.conditions.iter().flatten().find(|one| one.type_ == "DisruptionAllowed" && one.status != "True");
    let since = denied.map_or(created, |denied| denied.last_transition_time.0);
    // What is not ready disrupts nobody while enough others are (`pkg/registry/core/pod/storage/eviction.go`).
    let (current, wanted) = (status.current_healthy.unwrap_or(0), status.desired_healthy.unwrap_or(0));
    let healthy = current >= wanted && wanted > 0;
    Budget {
        namespace: text(meta.namespace.as_ref()),
        name: text(meta.name.as_ref()),
        created,
        selector: written.into(),
        selects: Arc::new(move |labels| selector.as_ref().is_some_and(|selector| selector.matches(labels))),
        exhausted_since: (status.disruptions_allowed.unwrap_or(0) <= 0).then_some(since),
        lets_unready_go: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow") || healthy,
    }
}

/// Projects a NodeClaim of Karpenter's.
pub fn claim(claim: &DynamicObject) -> Claim {
    let status = &claim.data["status"];
    let drifted = |condition: &serde_json::Value| condition["type"] == "Drifted" && condition["status"] == "True";
    Claim {
        name: text(claim.metadata.name.as_ref()),
        node: status["nodeName"].as_str().filter(|node| !node.is_empty()).map(Into::into),
        leaving: claim.metadata.deletion_timestamp.is_some(),
        drifted: status["conditions"].as_array().into_iter().flatten().any(drifted),
    }
}

/// A NodePool of Karpenter's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// `metadata.name`.
    pub name: Box<str>,
    /// It is never consolidated: `spec.disruption.consolidateAfter: Never`, or a static pool (`spec.replicas`).
    pub is_still: bool,
}

/// Projects a NodePool.
pub fn pool(pool: &DynamicObject) -> Pool {
    let spec = &pool.data["spec"];
    // One of a fixed number of nodes is never consolidated either (`pkg/controllers/disruption/consolidation.go`).
    let is_still = spec["disruption"]["consolidateAfter"] == "Never" || !spec["replicas"].is_null();
    Pool { name: text(pool.metadata.name.as_ref()), is_still }
}
