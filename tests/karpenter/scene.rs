//! What the tests begin with: nodes that Karpenter made, full of the pods of two Deployments.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::karpenter::{Consolidation, Pool};
use belay_e2e::metrics;
use belay_e2e::world::{Belay, Cluster, Namespace, Options, PodInfo, Workload};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::values::COST;

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

    /// Waits until there are so many nodes, each of them full of pods that serve; answers their names.
    pub(crate) async fn filled(&self, nodes: usize) -> anyhow::Result<Vec<String>> {
        for workload in &self.workloads {
            workload.available(PATIENCE).await?;
        }
        let names = self.pool.initialized(nodes, PATIENCE).await?;
        self.ns
            .eventually("full nodes", PATIENCE, async || {
                let pods = self.pods().await?;
                ensure!(pods.len() == nodes * PODS_PER_NODE, "there are {} pods", pods.len());
                for node in &names {
                    let serving = pods.iter().filter(|pod| pod.node == *node && pod.ready).count();
                    ensure!(serving == PODS_PER_NODE, "{serving} pods serve on {node}");
                }
                Ok(())
            })
            .await?;
        Ok(names)
    }

    /// Scales both Deployments up by the pods of one node; answers that node's name once it is full.
    pub(crate) async fn one_more_node(&self) -> anyhow::Result<String> {
        let before: Vec<String> = self.pool.nodes().await?.iter().map(ResourceExt::name_any).collect();
        for workload in &self.workloads {
            let replicas = workload.deployment().await?.spec.replicas.unwrap_or(1);
            workload.scale(replicas + PODS_PER_NODE as i32 / 2).await?;
        }
        let now = self.filled(before.len() + 1).await?;
        now.into_iter().find(|node| !before.contains(node)).context("no node is new")
    }

    /// Scales each Deployment down by so many pods.
    pub(crate) async fn scale_down(&self, by: [usize; 2]) -> anyhow::Result<()> {
        for (workload, by) in self.workloads.iter().zip(by) {
            let replicas = workload.deployment().await?.spec.replicas.unwrap_or(1);
            workload.scale(replicas - by as i32).await?;
        }
        Ok(())
    }

    /// Takes the values off all pods, whoever wrote them.
    pub(crate) async fn clear(&self) -> anyhow::Result<()> {
        self.ns.kubectl(["annotate", "pods", "--all", &format!("{COST}-")]).ok().await.map(drop)
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

/// The chart's values with the deletion cost on for the nodes of a scene alone, and nothing new for longer than that.
pub(crate) fn on(ns: &Namespace, stand_down: Duration) -> Value {
    json!({
        "writesPerSecond": 200,
        "deletionCost": {
            "enabled": true,
            "nodePools": [ns.name()],
            "settlePeriod": "1s",
            "standDownPeriod": format!("{}s", stand_down.as_secs()),
            "writesPerSecond": 100,
        },
    })
}

/// The chart's values with the deletion cost off.
pub(crate) fn off() -> Value {
    json!({ "deletionCost": { "enabled": false } })
}

/// What Belay's controllers have counted together; one of them leads and counts.
pub(crate) async fn counted(belay: &Belay, name: &str, labels: &str) -> anyhow::Result<u64> {
    let mut sum = 0.0;
    for pod in belay.controller_pods().await? {
        sum += metrics::sum(&belay.metrics(&pod).await?, name, labels)?;
    }
    Ok(sum as u64)
}
