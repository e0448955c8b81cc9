//! A workload under load whose pods are counted, and what became of it.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use belay_e2e::availability::Availability;
use belay_e2e::load::Load;
use belay_e2e::world::{Namespace, PodInfo, Web, Workload};
use serde_json::{Value, json};

use crate::support::{SOON, hold_in_phase, policy, protected};
use crate::surge::{self, PATIENCE};

/// Seconds that pods serve on after they were asked to go, while endpoints catch up on a machine that is busy.
const PRE_STOP: i64 = 4;

/// Web servers that serve on while they terminate, for as long as endpoints may take to tell.
pub(crate) fn web(ns: &Namespace, replicas: i32) -> Web<'_> {
    ns.web("web").replicas(replicas).pre_stop(PRE_STOP)
}

/// At most one more pod on a node than on any other, so that each has one as long as there are enough.
pub(crate) fn spread(web: Web<'_>) -> Web<'_> {
    let labels = json!({ "matchLabels": { "app": "web" } });
    let constraint = json!([{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": labels,
        // Other nodes of the cluster are no place for these pods, and a node that is drained is none either.
        "nodeAffinityPolicy": "Honor",
        "nodeTaintsPolicy": "Honor",
    }]);
    web.edit(move |deployment| {
        if let Some(spec) = deployment.spec.template.spec.as_mut() {
            spec.topology_spread_constraints = serde_json::from_value(constraint).ok();
        }
    })
}

/// A workload under load with a policy.
pub(crate) struct Scene<'a> {
    pub(crate) ns: &'a Namespace,
    pub(crate) web: Workload,
    /// Its pods at the beginning.
    pub(crate) pods: Vec<PodInfo>,
    pub(crate) load: Load,
    pub(crate) availability: Availability,
}

impl<'a> Scene<'a> {
    /// Creates the Deployment, protects it by a policy with these lines, and begins to count.
    pub(crate) async fn set(web: Web<'a>, policy_spec: &str) -> anyhow::Result<Self> {
        let ns = web.namespace();
        let web = web.create().await?;
        web.available(SOON).await?;
        ns.apply(&policy("web", policy_spec)).await?;
        protected(ns, "web").await?;
        Self::of(ns, web).await
    }

    /// Begins to count the pods of a Deployment that is there and protected.
    pub(crate) async fn of(ns: &'a Namespace, web: Workload) -> anyhow::Result<Self> {
        let pods = web.pods().await?;
        ensure!(pods.iter().all(|pod| pod.ready && !pod.terminating), "{pods:?}");
        let availability = Availability::watch(ns, "web").await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;
        Ok(Self { ns, web, pods, load, availability })
    }

    /// Its pods of the beginning on these nodes.
    pub(crate) fn on(&self, nodes: &[&str]) -> Vec<&PodInfo> {
        self.pods.iter().filter(|pod| nodes.contains(&&*pod.node)).collect()
    }

    /// Waits until the surge is written, and answers its record.
    pub(crate) async fn surged(&self) -> anyhow::Result<Value> {
        surge::begun(self.ns, "deployment", "web").await
    }

    /// Waits until no surge is left, the number is what it was, and every replica is available; answers the pods.
    pub(crate) async fn at_rest(&self) -> anyhow::Result<Vec<PodInfo>> {
        let wanted = self.pods.len();
        self.ns
            .eventually("the surge has ended and the workload is at rest", PATIENCE, async || {
                surge::none(self.ns, "deployment", "web").await?;
                let deployment = self.web.complete().await?;
                let replicas = deployment.spec.replicas.unwrap_or(1);
                let pods = self.web.pods().await?;
                ensure!(
                    replicas as usize == wanted && pods.len() == wanted,
                    "{replicas} replicas, {} pods",
                    pods.len()
                );
                Ok(pods)
            })
            .await
    }

    /// Has kubectl drain a node, with this option for how long; answers the pods once all is at rest and they have moved.
    pub(crate) async fn drained(&self, node: &str, timeout: &str) -> anyhow::Result<Vec<PodInfo>> {
        let exit = self.ns.drain(node, &[timeout]).await?.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        let now = self.at_rest().await?;
        self.ensure_moved(&now, &[node])?;
        Ok(now)
    }

    /// The drained nodes are empty of pods; every pod of the beginning that was elsewhere is still there, and the others
    /// are as many as had to go.
    pub(crate) fn ensure_moved(&self, now: &[PodInfo], drained: &[&str]) -> anyhow::Result<()> {
        let uids = |pods: &[PodInfo]| pods.iter().map(|pod| pod.uid.clone()).collect::<BTreeSet<_>>();
        let (before, after) = (uids(&self.pods), uids(now));
        let stayed: BTreeSet<String> =
            self.pods.iter().filter(|pod| !drained.contains(&&*pod.node)).map(|pod| pod.uid.clone()).collect();
        let kept: BTreeSet<String> = before.intersection(&after).cloned().collect();
        ensure!(kept == stayed, "of {:?}, not those that should stay did: {now:?}", self.pods);
        let left = now.iter().find(|pod| drained.contains(&&*pod.node));
        ensure!(left.is_none(), "{left:?} is on a drained node");
        Ok(())
    }

    /// No request failed, and never were fewer pods available than there were at the beginning.
    pub(crate) async fn ensure_served(self) -> anyhow::Result<()> {
        self.availability.ensure_never_fewer_than(self.pods.len())?;
        let served = self.load.stop().await;
        ensure!(served.failed() == 0 && served.ok > 0, "{served}: {:?}", served.failures);
        Ok(())
    }
}

/// The node that all pods of a list are on.
pub(crate) fn only_node(pods: &[PodInfo]) -> anyhow::Result<String> {
    let nodes: BTreeSet<&str> = pods.iter().map(|pod| pod.node.as_str()).collect();
    let node = nodes.first().context("no pods")?;
    ensure!(nodes.len() == 1, "they are on {nodes:?}");
    Ok((*node).to_owned())
}

/// The eviction of this pod was held until its handover was complete; answers the hold.
pub(crate) async fn handed_over(ns: &Namespace, victim: &PodInfo) -> anyhow::Result<Value> {
    let hold = hold_in_phase(ns, victim, "Completed").await?;
    ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
    Ok(hold)
}
