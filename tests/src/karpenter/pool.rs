//! The objects that tell Karpenter which nodes to make.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, PodSpec};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::node_agent::SIMULATED;
use crate::world::Namespace;

/// `"true"` on a pod or a node keeps Karpenter from disrupting that node.
pub const ANNOTATION_DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// Which pool a node is of.
const POOL_LABEL: &str = "karpenter.sh/nodepool";

/// The one class of nodes, which says nothing of them.
const NODE_CLASS: &str = "default";

/// One type for all nodes of a pool, so that no other is cheaper: 4 CPUs, of which kwok keeps 100m back.
const INSTANCE_TYPE: &str = "c-4x-amd64-linux";

pub(super) fn node_class() -> Value {
    json!({
        "apiVersion": "karpenter.kwok.sh/v1alpha1",
        "kind": "KWOKNodeClass",
        "metadata": { "name": NODE_CLASS },
    })
}

fn node_pools() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool"), "nodepools")
}

/// Karpenter's records of its nodes, cluster-scoped.
pub fn node_claims() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"), "nodeclaims")
}

/// What Karpenter may take nodes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consolidation {
    /// Nodes without pods.
    WhenEmpty,
    /// Nodes without pods, and those whose pods would fit elsewhere.
    WhenEmptyOrUnderutilized,
}

impl fmt::Display for Consolidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WhenEmpty => "WhenEmpty",
            Self::WhenEmptyOrUnderutilized => "WhenEmptyOrUnderutilized",
        })
    }
}

/// A NodePool whose nodes are for one test's pods: they carry its label and its taint.
pub struct Pool<'a> {
    ns: &'a Namespace,
}

impl<'a> Pool<'a> {
    /// Creates the NodePool, called as the namespace. Its nodes may go `after` that long without a change of their pods,
    /// all of them at once.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn create(ns: &'a Namespace, policy: Consolidation, after: Duration) -> anyhow::Result<Self> {
        let mut pinned = PodSpec::default();
        ns.pin(&mut pinned);
        let mut labels = json!({ SIMULATED: "true" });
        for (key, value) in pinned.node_selector.into_iter().flatten() {
            labels[key] = json!(value);
        }
        let taints =
            pinned.tolerations.into_iter().flatten().map(
                |toleration| json!({ "key": toleration.key, "value": toleration.value, "effect": toleration.effect }),
            );
        let one_of = |key: &str, value: &str| json!({ "key": key, "operator": "In", "values": [value] });
        let pool: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": { "name": ns.name() },
            "spec": {
                "disruption": disruption(policy, after),
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "nodeClassRef": { "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": NODE_CLASS },
                        "taints": taints.collect::<Vec<_>>(),
                        "expireAfter": "Never",
                        "requirements": [
                            one_of("node.kubernetes.io/instance-type", INSTANCE_TYPE),
                            one_of("karpenter.sh/capacity-type", "on-demand"),
                        ],
                    },
                },
            },
        }))?;
        let made = Api::all_with(ns.client(), &node_pools()).create(&PostParams::default(), &pool).await;
        made.with_context(|| format!("cannot create the NodePool {}", ns.name()))?;
        Ok(Self { ns })
    }

    /// Changes what its nodes may be taken for.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn consolidate(&self, policy: Consolidation, after: Duration) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "disruption": disruption(policy, after) } }));
        let pools: Api<DynamicObject> = Api::all_with(self.ns.client(), &node_pools());
        let patched = pools.patch(self.ns.name(), &PatchParams::default(), &patch).await;
        patched.with_context(|| format!("cannot change the NodePool {}", self.ns.name())).map(drop)
    }

    /// Its nodes, by name.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let of_pool = ListParams::default().labels(&format!("{POOL_LABEL}={}", self.ns.name()));
        let mut nodes = Api::<Node>::all(self.ns.client()).list(&of_pool).await?.items;
        nodes.sort_by_key(kube::ResourceExt::name_any);
        Ok(nodes)
    }

    /// Waits until it has so many nodes, all of them initialized; answers their names.
    ///
    /// # Errors
    /// When it has not `within` that time, with what is missing.
    pub async fn initialized(&self, count: usize, within: Duration) -> anyhow::Result<Vec<String>> {
        let claims: Api<DynamicObject> = Api::all_with(self.ns.client(), &node_claims());
        let of_pool = ListParams::default().labels(&format!("{POOL_LABEL}={}", self.ns.name()));
        self.ns
            .eventually(&format!("{count} initialized nodes of Karpenter"), within, async || {
                let claims = claims.list(&of_pool).await?.items;
                let missing: Vec<String> = claims.iter().filter_map(not_initialized).collect();
                ensure!(missing.is_empty(), "{}", missing.join("; "));
                let names: Vec<String> = self.nodes().await?.iter().map(kube::ResourceExt::name_any).collect();
                ensure!(
                    names.len() == count && claims.len() == count,
                    "{} nodes, {} claims",
                    names.len(),
                    claims.len()
                );
                Ok(names)
            })
            .await
    }
}

fn disruption(policy: Consolidation, after: Duration) -> Value {
    json!({
        "consolidationPolicy": policy.to_string(),
        "consolidateAfter": format!("{}s", after.as_secs()),
        "budgets": [{ "nodes": "100%" }],
    })
}

/// Why a claim is not initialized, in Karpenter's words.
fn not_initialized(claim: &DynamicObject) -> Option<String> {
    let conditions = claim.data["status"]["conditions"].as_array();
    let initialized = conditions.into_iter().flatten().find(|condition| condition["type"] == "Initialized");
    match initialized {
        Some(condition) if condition["status"] == "True" => None,
        Some(condition) => Some(format!("{}: {} {}", claim.name_any(), condition["reason"], condition["message"])),
        None => Some(format!("{} is new", claim.name_any())),
    }
}
