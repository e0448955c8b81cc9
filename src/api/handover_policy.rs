//! `HandoverPolicy`: which workloads are handed over before their pods are evicted, and how.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which workloads are handed over before their pods are evicted, and how.
///
/// An eviction of a pod of such a workload is refused (HTTP 429, which every drainer retries) while Belay makes
/// the Deployment roll out a replacement; it goes through when the replacement is available on a node that
/// stays, or when the deadline has passed.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "belay.dev",
    version = "v1alpha1",
    kind = "HandoverPolicy",
    plural = "handoverpolicies",
    shortname = "hop",
    category = "belay",
    namespaced,
    status = "HandoverPolicyStatus",
    derive = "PartialEq",
    doc = "Which workloads are handed over before their pods are evicted, and how.",
    // The first of them that is there: a column shows one result.
    printcolumn(
        name = "Target",
        type_ = "string",
        json_path = ".spec['targetRef','selector']['name','matchLabels','matchExpressions']"
    ),
    printcolumn(name = "Handover", type_ = "string", json_path = ".spec.handover"),
    printcolumn(
        name = "Protected",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Protected\")].status"
    ),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Protected\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("has(self.targetRef) != has(self.selector)")
        .message("set exactly one of targetRef and selector"),
    validation = Rule::new("!has(self.selector) || (has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)")
        .message("selector must not be empty: to cover a whole namespace use the Helm value evictionHold.defaultPolicy"),
)]
#[serde(rename_all = "camelCase")]
pub struct HandoverPolicySpec {
    /// The Deployment by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// The Deployments by their labels (those of the Deployment, not of its pods).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// How the replacement is made to serve. Restart rolls the Deployment out once, as `kubectl rollout restart`
    /// does; it is for Deployments with one replica. Scale adds replicas for a while, by the Deployment or by the
    /// autoscaler that governs it; it is for Deployments that tolerate another copy.
    #[serde(default)]
    pub handover: HandoverMode,
    /// When a handover begins: OnEviction, when the eviction of a pod is asked for; OnDoom, also when the pod's node is
    /// seen to be about to go.
    #[serde(default)]
    pub trigger: Trigger,
    /// How many replicas are added at most while victims wait for their stand-ins (Scale).
    #[serde(default = "default_surge_replicas")]
    #[schemars(range(min = 1, max = 100))]
    pub surge_replicas: i32,
    /// A victim is held at most this long, in seconds; then it is released, whatever happened.
    #[serde(default = "default_readiness_deadline")]
    #[schemars(range(min = 1, max = 86400))]
    pub readiness_deadline_seconds: i32,
    /// What happens when no replacement came in time. Release lets the victim go; RollBack puts the pod template
    /// back first.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Field manager under which the pod template and the number of replicas are patched, for GitOps tools that strip
    /// what they do not know (Flux: flux-client-side-apply). Belay's own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub field_manager: Option<String>,
    /// User names whose evictions pass unheld; a trailing * matches a prefix. For evictors that do not drain
    /// nodes, as the VPA updater.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ignore_evictors: Vec<String>,
}

fn default_surge_replicas() -> i32 {
    belay_decide::policy::DEFAULT_SURGE_REPLICAS
}

fn default_readiness_deadline() -> i32 {
    belay_decide::policy::DEFAULT_READINESS_DEADLINE_SECONDS as i32
}

/// A workload by kind and name, in the policy's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// Deployment.
    #[serde(default)]
    pub kind: TargetKind,
    /// Name of the Deployment.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Kinds of workload that a policy can name.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum TargetKind {
    /// apps/v1 Deployment.
    #[default]
    Deployment,
}

/// How the replacement is made to serve.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum HandoverMode {
    /// One rollout of the Deployment, as `kubectl rollout restart` does.
    #[default]
    Restart,
    /// More replicas for a while.
    Scale,
}

/// When a handover begins.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Trigger {
    /// When the eviction of a pod is asked for.
    #[default]
    OnEviction,
    /// When the pod's node is seen to be about to go, or its eviction is asked for.
    OnDoom,
}

/// What happens when no replacement came in time.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum OnFailure {
    /// The victim is released; the template stays.
    #[default]
    Release,
    /// The template is put back, once, and the victim is released.
    RollBack,
}

/// What Belay found and did.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HandoverPolicyStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// TargetSupported, ZeroDowntimeUpdateStrategy, Protected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The last handover and how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handover: Option<LastHandover>,
}

/// A handover that ended.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastHandover {
    /// The pod that was held.
    pub victim: String,
    /// Its Deployment.
    pub workload: String,
    /// How it ended.
    pub outcome: String,
    /// When the victim was released.
    pub released_at: Time,
}
