//! Belay goes in mid-surge: what it raised is put back before it is gone.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::keda::Keda;
use belay_e2e::world::{Cluster, Namespace, Options, PodInfo, Workload, test_on};
use kube::ResourceExt as _;

use crate::scene::web;
use crate::stage::values;
use crate::support::{SOON, evict, policy, protected};
use crate::surge::{self, PATIENCE};

/// What Belay writes on a pod is recorded there.
const MANAGED: &str = "belay.dev/managed";

/// What a ReplicaSet's scale-down reads.
const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

#[test]
fn an_uninstallation_in_mid_surge_puts_every_number_back() {
    let cluster = Cluster::start(Options::default()).unwrap();
    test_on(&cluster, "leaving", async |ns: &Namespace| {
        let other = cluster.namespace("leaving-keda").await?;
        let keda = Keda::play(&other).await?;
        let belay = cluster.install_belay(values()).await?;
        // No stand-in ever comes, so both surges stand for as long as nobody ends them.
        let (plain, governed) = (surging(ns).await?, surging(&other).await?);
        keda.scaled_object("web", 2, 8).await?;
        let victims = [begin(ns, &plain).await?, begin(&other, &governed).await?];
        let record = surge::begun(ns, "deployment", "web").await?;
        ensure!(record["original"] == 2, "{record}");
        let record = surge::begun(&other, "scaledobjects", "web").await?;
        ensure!(record["original"] == 2, "{record}");
        for (ns, victim) in [(ns, &victims[0]), (&other, &victims[1])] {
            ns.eventually("the victim is marked", SOON, async || {
                let pod = ns.pod_info(&victim.name).await?.pod;
                ensure!(pod.annotations().contains_key(COST) && pod.annotations().contains_key(MANAGED));
                Ok(())
            })
            .await?;
        }

        belay.uninstall().await?;
        ns.eventually("everything is as it was", PATIENCE, async || {
            surge::none(ns, "deployment", "web").await?;
            surge::none(&other, "scaledobjects", "web").await?;
            let object = other.get("scaledobjects", "web").await?;
            ensure!(object["spec"]["minReplicaCount"] == 2, "{}", object["spec"]);
            let replicas = plain.deployment().await?.spec.replicas;
            ensure!(replicas == Some(2), "{replicas:?} replicas");
            for (ns, victim) in [(ns, &victims[0]), (&other, &victims[1])] {
                let pod = ns.pod_info(&victim.name).await?.pod;
                let left = pod.annotations().keys().find(|key| [COST, MANAGED].contains(&key.as_str()));
                ensure!(left.is_none(), "{left:?} is left on {}", victim.name);
            }
            Ok(())
        })
        .await
    });
}

/// Two pods on one node, and no room for a third elsewhere.
async fn surging(ns: &Namespace) -> anyhow::Result<Workload> {
    ns.nodes(1).await?;
    let web = web(ns, 2).ready_after(Duration::from_secs(1)).create().await?;
    web.available(SOON).await?;
    ns.apply(&policy("web", "handover: Scale")).await?;
    protected(ns, "web").await?;
    Ok(web)
}

/// Asks for an eviction that is held.
async fn begin(ns: &Namespace, web: &Workload) -> anyhow::Result<PodInfo> {
    let victim = web.pods().await?.swap_remove(0);
    ns.cordon(&victim.node).await?;
    ensure!(evict(ns, &victim.name).await?.is_some(), "{} was not held", victim.name);
    Ok(victim)
}
