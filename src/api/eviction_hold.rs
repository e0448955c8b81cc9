//! `EvictionHold`: one held eviction.
//!
//! By default `kubectl get` shows what fits 80 columns beside the namespace and the name, which begins with the victim's:
//! the reason, which from the release on is the outcome, so that it says the phase as well.
//!
//! Written by Belay alone. Its spec is what was known when the eviction was first held and never changes; that
//! makes the deadline durable.

use belay_decide::hold as decided;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One held eviction: what is awaited, and until when at the latest.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "belay.dev",
    version = "v1alpha1",
    kind = "EvictionHold",
    plural = "evictionholds",
    shortname = "hold",
    category = "belay",
    namespaced,
    status = "EvictionHoldStatus",
    derive = "PartialEq",
    doc = "One held eviction: what is awaited, and until when at the latest.",
    printcolumn(name = "Victim", type_ = "string", json_path = ".spec.victim.name", priority = 1),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Workload", type_ = "string", json_path = ".spec.workload.name", priority = 1),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.victim.node", priority = 1),
    printcolumn(name = "Evictor", type_ = "string", json_path = ".spec.evictor", priority = 1),
    printcolumn(name = "Deadline", type_ = "string", json_path = ".spec.deadline", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("the spec of an EvictionHold never changes"))]
#[serde(rename_all = "camelCase")]
pub struct EvictionHoldSpec {
    /// The pod whose eviction was asked for.
    pub victim: Victim,
    /// What it belongs to: its Deployment, or the owner that tells whether it is busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// Why it is held.
    pub reason: HoldReason,
    /// User name of who asked first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evictor: Option<String>,
    /// What it began with.
    #[serde(default)]
    pub trigger: HoldTrigger,
    /// When the eviction was first asked for.
    pub requested_at: Time,
    /// When the victim is released at the latest.
    pub deadline: Time,
}

/// The pod whose eviction was asked for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its label pod-template-hash: the revision that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
}

/// The workload that a victim belongs to, in the same namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Its API group; absent for the core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What a hold began with.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum HoldTrigger {
    /// The pod's eviction was asked for.
    #[default]
    Eviction,
    /// Its node was seen to be about to go.
    Doom,
    /// An EvictionRequest of lifecycle.k8s.io named it.
    EvictionRequest,
}

/// Why a victim is held.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum HoldReason {
    /// Its replacement is to serve first.
    #[default]
    Handover,
    /// It is busy.
    Busy,
    /// It is idle, and its owner is to retire it.
    Retire,
}

/// How far a hold is.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionHoldStatus {
    /// Its state; absent until the controller took the hold up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<HoldPhase>,
    /// What it waits for or how it ended, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<HoldOutcome>,
    /// Revision of the Deployment just before its restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_revision: Option<i64>,
    /// When the Deployment was restarted for this victim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<Time>,
    /// When its eviction was last asked for, as far as that is after requestedAt; noted once a minute at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_requested_at: Option<Time>,
    /// An earlier deadline than spec.deadline, where the node was seen to go at a time of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// When the victim was released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
    /// When the victim was gone and the workload whole again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// Released: the victim may go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The state of a hold.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum HoldPhase {
    /// Recorded by the webhook.
    Pending,
    /// The controller works on the replacement.
    Active,
    /// The victim may go.
    Released,
    /// The victim is gone.
    Completed,
}

/// How a hold ended.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum HoldOutcome {
    /// The replacement serves, or the victim is being replaced by its own Deployment.
    HandedOver,
    /// There was nothing to wait for any more.
    NotNeeded,
    /// The victim was removed by somebody else.
    VictimGone,
    /// The deadline passed.
    Expired,
    /// The rollout failed.
    Failed,
    /// Somebody put the template back.
    Reverted,
    /// Nobody asked for the eviction any more before the stand-in was available.
    Abandoned,
    /// The victim's job was over.
    JobEnded,
    /// The victim was idle, and its owner retired it.
    Retired,
}

impl EvictionHold {
    /// The object that says so.
    pub fn of(spec: &decided::HoldSpec) -> Self {
        let filled = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Self::new(
            &decided::hold_name(spec.reason, &spec.victim_name, &spec.victim_uid),
            EvictionHoldSpec {
                victim: Victim {
                    name: spec.victim_name.clone(),
                    uid: spec.victim_uid.clone(),
                    node: filled(&spec.victim_node),
                    template_hash: filled(&spec.victim_hash),
                },
                workload: filled(&spec.workload.name).map(|name| Workload {
                    group: filled(&spec.workload.group),
                    kind: spec.workload.kind.clone(),
                    name,
                    uid: spec.workload.uid.clone(),
                }),
                reason: match spec.reason {
                    decided::HoldReason::Handover => HoldReason::Handover,
                    decided::HoldReason::Busy => HoldReason::Busy,
                    decided::HoldReason::Retire => HoldReason::Retire,
                },
                evictor: filled(&spec.evictor),
                trigger: match spec.trigger {
                    decided::HoldTrigger::Eviction => HoldTrigger::Eviction,
                    decided::HoldTrigger::Doom => HoldTrigger::Doom,
                    decided::HoldTrigger::EvictionRequest => HoldTrigger::EvictionRequest,
                },
                requested_at: Time(spec.requested_at),
                deadline: Time(spec.deadline),
            },
        )
    }
}
