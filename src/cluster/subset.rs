//! The parts of API objects that are read off the wire.
//!
//! A whole Pod decodes to tens of kilobytes of which decisions read a handful of fields; these types make the
//! decoder skip the rest. They inherit the real types' group, version and paths.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Node, Pod, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A Pod.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = Pod)]
pub struct PodSubset {
    /// `metadata`.
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: PodSpec,
    #[serde(default)]
    pub(super) status: PodStatus,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) node_name: Option<String>,
    pub(super) priority: Option<i32>,
    #[serde(default)]
    pub(super) init_containers: Vec<InitContainer>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct InitContainer {
    pub(super) name: String,
    pub(super) restart_policy: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    pub(super) start_time: Option<Time>,
    #[serde(default)]
    pub(super) conditions: Vec<Condition>,
    #[serde(default)]
    pub(super) container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    pub(super) init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    #[serde(default)]
    pub(super) restart_count: i32,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) last_transition_time: Option<Time>,
}

/// A Node.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = Node)]
pub struct NodeSubset {
    /// `metadata`.
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: NodeSpec,
    #[serde(default)]
    pub(super) status: NodeStatus,
}

#[derive(Deserialize, Clone, Debug, Default)]
pub(super) struct NodeStatus {
    #[serde(default)]
    pub(super) conditions: Vec<NodeCondition>,
}

#[derive(Deserialize, Clone, Debug)]
pub(super) struct NodeCondition {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) status: String,
}

#[derive(Deserialize, Clone, Debug, Default)]
pub(super) struct NodeSpec {
    #[serde(default)]
    pub(super) unschedulable: bool,
    #[serde(default)]
    pub(super) taints: Vec<Taint>,
}

#[derive(Deserialize, Clone, Debug, Default)]
pub(super) struct Taint {
    pub(super) key: String,
}

/// A ReplicaSet.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = ReplicaSet)]
pub struct ReplicaSetSubset {
    /// `metadata`.
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: ReplicaSetSpec,
}

#[derive(Deserialize, Clone, Debug, Default)]
pub(super) struct ReplicaSetSpec {
    pub(super) replicas: Option<i32>,
    #[serde(default)]
    pub(super) template: Template,
}

#[derive(Deserialize, Clone, Debug, Default)]
pub(super) struct Template {
    #[serde(default)]
    pub(super) metadata: TemplateMeta,
    #[serde(default)]
    pub(super) spec: TemplateSpec,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct TemplateSpec {
    #[serde(default)]
    pub(super) topology_spread_constraints: Vec<TopologySpreadConstraint>,
}

#[derive(Deserialize, Clone, Debug, Default)]
pub(super) struct TemplateMeta {
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
}

/// A Deployment.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = Deployment)]
pub struct DeploymentSubset {
    /// `metadata`.
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: DeploymentSpec,
    #[serde(default)]
    pub(super) status: DeploymentStatus,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeploymentSpec {
    pub(super) replicas: Option<i32>,
    #[serde(default)]
    pub(super) paused: bool,
    #[serde(default)]
    pub(super) min_ready_seconds: i32,
    #[serde(default)]
    pub(super) selector: LabelSelector,
    #[serde(default)]
    pub(super) strategy: Strategy,
    #[serde(default)]
    pub(super) template: Template,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Strategy {
    #[serde(rename = "type")]
    pub(super) type_: Option<String>,
    pub(super) rolling_update: Option<RollingUpdate>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RollingUpdate {
    pub(super) max_surge: Option<IntOrString>,
    pub(super) max_unavailable: Option<IntOrString>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeploymentStatus {
    pub(super) observed_generation: Option<i64>,
    #[serde(default)]
    pub(super) replicas: i32,
    #[serde(default)]
    pub(super) updated_replicas: i32,
    #[serde(default)]
    pub(super) available_replicas: i32,
    #[serde(default)]
    pub(super) conditions: Vec<Condition>,
}

/// A HorizontalPodAutoscaler.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = HorizontalPodAutoscaler)]
pub struct AutoscalerSubset {
    /// `metadata`.
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: AutoscalerSpec,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct AutoscalerSpec {
    #[serde(default)]
    pub(super) scale_target_ref: ScaleTarget,
    pub(super) min_replicas: Option<i32>,
    #[serde(default)]
    pub(super) max_replicas: i32,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScaleTarget {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) name: String,
}
