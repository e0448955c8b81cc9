//! What the tests begin with: nodes that Karpenter made, full of the pods of two Deployments.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::karpenter::{Consolidation, Pool};
use belay_e2e::world::{Cluster, Namespace, Options, PodInfo, Workload};
use serde_json::json;

/// For nodes and pods to come and go, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// So long has a node's pods to stay the same before Karpenter may take it: longer than any test.
pub(crate) const NEVER: Duration = Duration::from_hours(1);

/// How many pods fill a node: 380m each, of the 3.9 CPUs that pods can have on Karpenter's one type of node.
pub(crate) const PODS_PER_NODE: usize = 10;
const CPU: &str = "380m";

/// A pool of nodes, and the two Deployments that fill them.
pub(crate) struct Scene<'a> {
    pub(crate) ns: &'a Namespace,
    pub(crate) pool: Pool<'a>,
    pub(crate) workloads: [Workload; 2],
}

/// A cluster for one test, which has Karpenter's nodes as well.
pub(crate) fn cluster() -> Cluster {
    Cluster::start(Options::default()).expect("a cluster")
}

impl<'a> Scene<'a> {
    /// Lets Karpenter make so many nodes, and waits until they are full. Nothing is to be disrupted yet.
    pub(crate) async fn set(ns: &'a Namespace, nodes: usize) -> anyhow::Result<Self> {
        let pool = Pool::create(ns, Consolidation::WhenEmptyOrUnderutilized, NEVER).await?;
        let half = (nodes * PODS_PER_NODE / 2) as i32;
        let deploy = async |name: &str| {
            let web = ns.web(name).replicas(half).grace(1).edit(|deployment| {
                let spec = deployment.spec.template.spec.get_or_insert_default();
                let requests = json!({ "requests": { "cpu": CPU } });
                spec.containers[0].resources = serde_json::from_value(requests).ok();
            });
            web.create().await
        };
        let scene = Self { ns, pool, workloads: [deploy("shop").await?, deploy("search").await?] };
        scene.filled(nodes).await?;
        Ok(scene)
    }

    /// Waits until all pods are available on so many nodes, each of them full.
    pub(crate) async fn filled(&self, nodes: usize) -> anyhow::Result<Vec<String>> {
        for workload in &self.workloads {
            workload.available(PATIENCE).await?;
        }
        let names = self.pool.initialized(nodes, PATIENCE).await?;
        for node in &names {
            let pods = self.pods_on(node).await?.len();
            ensure!(pods == PODS_PER_NODE, "{node} has {pods} pods");
        }
        Ok(names)
    }

    /// The pods that stay.
    pub(crate) async fn pods(&self) -> anyhow::Result<Vec<PodInfo>> {
        let mut pods = self.ns.pods("").await?;
        pods.retain(|pod| !pod.terminating);
        Ok(pods)
    }

    pub(crate) async fn pods_on(&self, node: &str) -> anyhow::Result<Vec<PodInfo>> {
        let mut pods = self.pods().await?;
        pods.retain(|pod| pod.node == node);
        Ok(pods)
    }
}
