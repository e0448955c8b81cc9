//! From API objects to the views that decisions read.
//!
//! Projection never fails: an object that lacks what a view needs projects to a view without it, so one odd
//! object cannot stop a watch.

use belay_decide::busy::hints;
use belay_decide::cost::COST_ANNOTATION;
use belay_decide::handover::{record, surge};
use belay_decide::hold::{HoldReason, HoldSpec, HoldStatus, HoldTrigger, HoldView, Outcome, Phase, WorkloadRef};
use belay_decide::ownership::{MANAGED_ANNOTATION, Record};
use belay_decide::policy::{HANDOVER_ANNOTATION, Mode, OnFailure, PolicyView, Settings, Trigger};
use belay_decide::steer::TEMPLATE_HASH_LABEL;
use belay_decide::view::{
    DeploymentStatus, DeploymentView, IntOrPercent, Mark, NodeView, PodPhase, PodView, ReplicaSetView, Strategy,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::Selector;

use super::subset::{Condition, DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use crate::api;

/// Annotation by which the Deployment controller numbers revisions, on Deployments and ReplicaSets.
const REVISION_ANNOTATION: &str = "deployment.kubernetes.io/revision";

/// The API server's defaults where a RollingUpdate leaves its bounds out (`pkg/apis/apps/v1/defaults.go`).
const DEFAULT_BOUND: IntOrPercent = IntOrPercent::Percent(25);

/// A text of its own; empty where there is none.
pub(super) fn text<T: for<'a> From<&'a str>>(value: Option<&String>) -> T {
    value.map(String::as_str).unwrap_or_default().into()
}

pub(super) fn label<T: for<'a> From<&'a str>>(meta: &ObjectMeta, key: &str) -> Option<T> {
    meta.labels.as_ref()?.get(key).map(|value| value.as_str().into())
}

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

fn revision(meta: &ObjectMeta) -> Option<u64> {
    annotation(meta, REVISION_ANNOTATION)?.parse().ok()
}

/// UID of the controlling owner, if it is of this kind.
pub(super) fn controller_uid<T: for<'a> From<&'a str>>(meta: &ObjectMeta, kind: &str) -> Option<T> {
    let owners = meta.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    let apps = owner.api_version.starts_with("apps/");
    (apps && owner.kind == kind).then(|| owner.uid.as_str().into())
}

pub(super) fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Projects a Pod. Where `costs_are_ranked`, its deletion cost is no hint of a busy rule.
pub fn pod(pod: &PodSubset, costs_are_ranked: bool) -> PodView {
    let meta = &pod.metadata;
    let ready = condition(&pod.status.conditions, "Ready").filter(|ready| ready.status == "True");
    let scheduled = condition(&pod.status.conditions, "PodScheduled");
    let cost = annotation(meta, COST_ANNOTATION);
    let managed = annotation(meta, MANAGED_ANNOTATION);
    PodView {
        namespace: text(meta.namespace.as_ref()),
        name: text(meta.name.as_ref()),
        uid: text(meta.uid.as_ref()),
        node: pod.spec.node_name.as_deref().filter(|node| !node.is_empty()).map(Into::into),
        replica_set: controller_uid(meta, "ReplicaSet"),
        template_hash: label(meta, TEMPLATE_HASH_LABEL),
        phase: PodPhase::parse(pod.status.phase.as_deref()),
        // A condition without its time is as old as can be: the pod counts as long available.
        ready_since: ready
            .map(|ready| ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)),
        terminating: meta.deletion_timestamp.is_some(),
        unschedulable: scheduled.is_some_and(|scheduled| {
            scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable")
        }),
        marked: managed.is_some_and(|record| hints::are_in(record, costs_are_ranked)),
        // Nearly all pods have neither.
        mark: match (cost, managed) {
            (None, None) => Mark::Free,
            _ => Mark::read(cost, &Record::parse(managed)),
        },
    }
}

/// Projects a Node. Nearly every node is ready, which says nothing: that condition is left out.
pub fn node(node: &NodeSubset) -> NodeView {
    NodeView {
        name: text(node.metadata.name.as_ref()),
        unschedulable: node.spec.unschedulable,
        taints: node.spec.taints.iter().map(|taint| taint.key.as_str().into()).collect(),
        conditions: node
            .status
            .conditions
            .iter()
            .filter(|condition| condition.status == "True" && condition.type_ != "Ready")
            .map(|condition| condition.type_.as_str().into())
            .collect(),
    }
}

/// Projects a ReplicaSet.
pub fn replica_set(set: &ReplicaSetSubset) -> ReplicaSetView {
    let meta = &set.metadata;
    ReplicaSetView {
        namespace: text(meta.namespace.as_ref()),
        name: text(meta.name.as_ref()),
        uid: text(meta.uid.as_ref()),
        deployment: controller_uid(meta, "Deployment"),
        revision: revision(meta),
        template_hash: label(meta, TEMPLATE_HASH_LABEL),
        slot: set.spec.template.metadata.annotations.get(record::SLOT_ANNOTATION).map(|slot| slot.as_str().into()),
    }
}

fn bound(value: Option<&IntOrString>) -> IntOrPercent {
    match value {
        Some(IntOrString::Int(count)) => IntOrPercent::Int(*count),
        Some(IntOrString::String(share)) => IntOrPercent::parse_percent(share).unwrap_or(DEFAULT_BOUND),
        None => DEFAULT_BOUND,
    }
}

/// A selector in a query's words. The API server takes no Deployment whose selector cannot be read; all pods of the
/// namespace are then too many, and none too few.
fn query(selector: &LabelSelector) -> String {
    Selector::try_from(selector.clone()).map(|selector| selector.to_string()).unwrap_or_default()
}

/// Projects a Deployment.
pub fn deployment(deployment: &DeploymentSubset) -> DeploymentView {
    let meta = &deployment.metadata;
    let spec = &deployment.spec;
    let status = &deployment.status;
    let strategy = if spec.strategy.type_.as_deref() == Some("Recreate") {
        Strategy::Recreate
    } else {
        let bounds = spec.strategy.rolling_update.as_ref();
        Strategy::RollingUpdate {
            max_surge: bound(bounds.and_then(|bounds| bounds.max_surge.as_ref())),
            max_unavailable: bound(bounds.and_then(|bounds| bounds.max_unavailable.as_ref())),
        }
    };
    let progressing = condition(&status.conditions, "Progressing");
    DeploymentView {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        labels: meta.labels.clone().unwrap_or_default(),
        selector: spec.selector.match_labels.clone().unwrap_or_default(),
        query: query(&spec.selector),
        handover: annotation(meta, HANDOVER_ANNOTATION).map(str::to_owned),
        records: record::parse(annotation(meta, record::RECORDS_ANNOTATION)),
        surge: surge::parse(annotation(meta, surge::SURGE_ANNOTATION)),
        replicas: spec.replicas.unwrap_or(1),
        paused: spec.paused,
        min_ready_seconds: spec.min_ready_seconds,
        strategy,
        slot: spec.template.metadata.annotations.get(record::SLOT_ANNOTATION).cloned(),
        revision: revision(meta),
        status: DeploymentStatus {
            observed_generation: status.observed_generation.unwrap_or_default(),
            replicas: status.replicas,
            updated: status.updated_replicas,
            available: status.available_replicas,
            progress_deadline_exceeded: progressing
                .is_some_and(|progressing| progressing.reason.as_deref() == Some("ProgressDeadlineExceeded")),
        },
    }
}

pub(crate) fn mode(mode: api::HandoverMode) -> Mode {
    match mode {
        api::HandoverMode::Restart => Mode::Restart,
        api::HandoverMode::Scale => Mode::Scale,
    }
}

pub(crate) fn trigger(trigger: api::Trigger) -> Trigger {
    match trigger {
        api::Trigger::OnEviction => Trigger::OnEviction,
        api::Trigger::OnDoom => Trigger::OnDoom,
    }
}

/// Projects a HandoverPolicy.
pub fn policy(policy: &api::HandoverPolicy) -> PolicyView {
    let meta = &policy.metadata;
    let spec = &policy.spec;
    PolicyView {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        created: meta.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()),
        by_name: spec.target_ref.is_some(),
        settings: Settings {
            mode: mode(spec.handover),
            trigger: trigger(spec.trigger),
            surge_replicas: spec.surge_replicas,
            readiness_deadline_seconds: u32::try_from(spec.readiness_deadline_seconds).unwrap_or(1),
            on_failure: match spec.on_failure {
                api::OnFailure::Release => OnFailure::Release,
                api::OnFailure::RollBack => OnFailure::RollBack,
            },
            field_manager: spec.field_manager.clone(),
            ignore_evictors: spec.ignore_evictors.clone(),
        },
    }
}

/// Projects an EvictionHold.
pub fn hold(hold: &api::EvictionHold) -> HoldView {
    let meta = &hold.metadata;
    let spec = &hold.spec;
    let status = hold.status.clone().unwrap_or_default();
    HoldView {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        spec: HoldSpec {
            victim_name: spec.victim.name.clone(),
            victim_uid: spec.victim.uid.clone(),
            victim_node: spec.victim.node.clone().unwrap_or_default(),
            victim_hash: spec.victim.template_hash.clone().unwrap_or_default(),
            reason: match spec.reason {
                api::HoldReason::Handover => HoldReason::Handover,
                api::HoldReason::Busy => HoldReason::Busy,
                api::HoldReason::Retire => HoldReason::Retire,
            },
            workload: spec.workload.as_ref().map_or_else(WorkloadRef::default, |workload| WorkloadRef {
                group: workload.group.clone().unwrap_or_default(),
                kind: workload.kind.clone(),
                name: workload.name.clone(),
                uid: workload.uid.clone(),
            }),
            evictor: spec.evictor.clone().unwrap_or_default(),
            trigger: match spec.trigger {
                api::HoldTrigger::Eviction => HoldTrigger::Eviction,
                api::HoldTrigger::Doom => HoldTrigger::Doom,
                api::HoldTrigger::EvictionRequest => HoldTrigger::EvictionRequest,
            },
            requested_at: spec.requested_at.0,
            // The earlier counts for everybody who asks.
            deadline: status.deadline.as_ref().map_or(spec.deadline.0, |earlier| earlier.0.min(spec.deadline.0)),
        },
        status: HoldStatus {
            phase: match status.phase {
                None | Some(api::HoldPhase::Pending) => Phase::Pending,
                Some(api::HoldPhase::Active) => Phase::Active,
                Some(api::HoldPhase::Released) => Phase::Released,
                Some(api::HoldPhase::Completed) => Phase::Completed,
            },
            reason: status.reason.unwrap_or_default(),
            message: status.message.unwrap_or_default(),
            outcome: status.outcome.map(|outcome| match outcome {
                api::HoldOutcome::HandedOver => Outcome::HandedOver,
                api::HoldOutcome::NotNeeded => Outcome::NotNeeded,
                api::HoldOutcome::VictimGone => Outcome::VictimGone,
                api::HoldOutcome::Expired => Outcome::Expired,
                api::HoldOutcome::Failed => Outcome::Failed,
                api::HoldOutcome::Reverted => Outcome::Reverted,
                api::HoldOutcome::Abandoned => Outcome::Abandoned,
                api::HoldOutcome::JobEnded => Outcome::JobEnded,
                api::HoldOutcome::Retired => Outcome::Retired,
            }),
            from_revision: status.from_revision.and_then(|revision| u64::try_from(revision).ok()),
            restarted_at: status.restarted_at.map(|time| time.0),
            last_requested_at: status.last_requested_at.map(|time| time.0),
            deadline: status.deadline.map(|time| time.0),
            released_at: status.released_at.map(|time| time.0),
            completed_at: status.completed_at.map(|time| time.0),
        },
    }
}
