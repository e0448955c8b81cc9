//! Handovers that begin by themselves, when a node is seen to be about to go, and signals that begin none.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Namespace, PodInfo, Workload};

use crate::scene::{Scene, handed_over, only_node, web};
use crate::stage::{STABILITY, handover};
use crate::support::{SOON, hold_of, holds, policy, protected, restarts};
use crate::surge::{up_and_back, written_by_belay};

/// Cluster Autoscaler's taint of a node that it may take later, and does not schedule to if it need not.
const SOFT: &str = "DeletionCandidateOfClusterAutoscaler";

/// Cluster Autoscaler's taint of a node that it is about to take.
const HARD: &str = "ToBeDeletedByClusterAutoscaler";

async fn taint(ns: &Namespace, node: &str, taint: &str) -> anyhow::Result<()> {
    ns.kubectl(["taint", "node", node, taint, "--overwrite"]).ok().await.map(drop)
}

/// A protected single pod that is to be restarted when its node is about to go.
async fn restarted(ns: &Namespace) -> anyhow::Result<(Workload, PodInfo)> {
    ns.nodes(1).await?;
    let web = web(ns, 1).ready_after(Duration::from_secs(2)).create().await?;
    web.available(SOON).await?;
    ns.apply(&policy("web", "trigger: OnDoom")).await?;
    protected(ns, "web").await?;
    let pod = web.only_pod().await?;
    ns.nodes(2).await?;
    Ok((web, pod))
}

/// Waits until the pod has moved off its node by one restart that nobody asked for.
async fn moved(ns: &Namespace, web: &Workload, victim: &PodInfo) -> anyhow::Result<()> {
    let hold = handed_over(ns, victim).await?;
    ensure!(hold["spec"]["trigger"] == "Doom", "{}", hold["spec"]);
    ensure!(hold["spec"]["evictor"].as_str().unwrap_or_default().is_empty(), "nobody asked: {}", hold["spec"]);
    let now = web.only_pod().await?;
    ensure!(now.node != victim.node && now.uid != victim.uid, "{now:?}");
    ensure!(restarts(ns, "web").await? == 1 && holds(ns).await?.len() == 1);
    Ok(())
}

#[test]
fn a_cordon_alone_moves_a_single_pod_before_its_drain_comes() {
    handover("doom-restart", async |ns: &Namespace| {
        let (web, victim) = restarted(ns).await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;
        ns.cordon(&victim.node).await?;
        moved(ns, &web, &victim).await?;
        let exit = ns.drain(&victim.node, &["--timeout=60s"]).await?.exit(SOON).await?;
        ensure!(exit.success() && !exit.text().contains("will retry"), "{exit}");
        ensure!(restarts(ns, "web").await? == 1, "the drain restarted it again");
        let served = load.stop().await;
        ensure!(served.failed() == 0, "{served}");
        Ok(())
    });
}

#[test]
fn a_cordon_alone_moves_three_pods_one_after_the_other() {
    handover("doom-scale", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let spec = "handover: Scale\ntrigger: OnDoom";
        let scene = Scene::set(web(ns, 3).ready_after(Duration::from_secs(2)), spec).await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(2).await?;
        ns.cordon(&node).await?;
        let record = scene.surged().await?;
        ensure!(record["base"] == 3 && record["floor"] == 3, "{record}");
        ns.eventually("each pod has a hold that nobody asked for", SOON, async || {
            for victim in &scene.pods {
                let hold = hold_of(ns, victim).await?;
                ensure!(hold["spec"]["trigger"] == "Doom", "{}", hold["spec"]);
            }
            Ok(())
        })
        .await?;
        // Nobody asks for any of them: each goes with a replica less, and another stand-in comes for the next.
        let now = scene.at_rest().await?;
        scene.ensure_moved(&now, &[&node])?;
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(3).repeat(3), "{written:?}");
        scene.ensure_served().await
    });
}

#[test]
fn five_toggles_of_the_soft_taint_start_nothing() {
    handover("doom-soft", async |ns: &Namespace| {
        let (web, pod) = restarted(ns).await?;
        let generation = web.deployment().await?.metadata.generation;
        // Each stays for longer than a signal has to last: it is the kind of the signal that starts nothing.
        for _ in 0..5 {
            taint(ns, &pod.node, &format!("{SOFT}=1:PreferNoSchedule")).await?;
            untouched(ns, &web, &pod, generation, STABILITY + Duration::from_secs(1)).await?;
            taint(ns, &pod.node, &format!("{SOFT}-")).await?;
        }
        untouched(ns, &web, &pod, generation, Duration::from_secs(2)).await
    });
}

#[test]
fn a_signal_that_is_gone_before_it_is_stable_starts_nothing() {
    handover("doom-passing", async |ns: &Namespace| {
        let (web, pod) = restarted(ns).await?;
        let generation = web.deployment().await?.metadata.generation;
        // Together they last longer than a signal has to; none of them does.
        for _ in 0..4 {
            taint(ns, &pod.node, &format!("{HARD}=1:NoSchedule")).await?;
            untouched(ns, &web, &pod, generation, STABILITY / 2).await?;
            taint(ns, &pod.node, &format!("{HARD}-")).await?;
            untouched(ns, &web, &pod, generation, Duration::from_millis(500)).await?;
        }
        untouched(ns, &web, &pod, generation, STABILITY + Duration::from_secs(1)).await
    });
}

/// Nothing happens to the workload for that long.
async fn untouched(
    ns: &Namespace,
    web: &Workload,
    pod: &PodInfo,
    generation: Option<i64>,
    during: Duration,
) -> anyhow::Result<()> {
    ns.throughout("nothing is done", during, async || {
        ensure!(holds(ns).await?.is_empty(), "a hold was made");
        ensure!(web.deployment().await?.metadata.generation == generation, "the Deployment was changed");
        ensure!(web.only_pod().await?.uid == pod.uid, "the pod was replaced");
        Ok(())
    })
    .await
}

#[test]
fn the_taint_of_a_node_that_is_about_to_be_taken_starts_a_handover() {
    handover("doom-hard", async |ns: &Namespace| {
        let (web, victim) = restarted(ns).await?;
        taint(ns, &victim.node, &format!("{HARD}=1:NoSchedule")).await?;
        moved(ns, &web, &victim).await?;
        // The signal ends, and comes again: its node has nothing of this workload any more.
        taint(ns, &victim.node, &format!("{HARD}-")).await?;
        taint(ns, &victim.node, &format!("{HARD}=1:NoSchedule")).await?;
        let now = web.only_pod().await?;
        let generation = web.deployment().await?.metadata.generation;
        ns.throughout("the next pod stays", STABILITY + Duration::from_secs(2), async || {
            ensure!(web.deployment().await?.metadata.generation == generation, "the Deployment was changed");
            ensure!(web.only_pod().await?.uid == now.uid, "the pod was replaced");
            Ok(())
        })
        .await
    });
}

#[test]
fn a_workload_whose_policy_waits_for_evictions_is_left_alone_by_a_cordon() {
    handover("on-eviction", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 3), "handover: Scale").await?;
        let node = only_node(&scene.pods)?;
        let first = scene.pods.first().context("no pod")?;
        ns.nodes(1).await?;
        let generation = scene.web.deployment().await?.metadata.generation;
        ns.cordon(&node).await?;
        ns.throughout("nothing is done", STABILITY + Duration::from_secs(2), async || {
            ensure!(holds(ns).await?.is_empty(), "a hold was made");
            ensure!(scene.web.deployment().await?.metadata.generation == generation, "the Deployment was changed");
            Ok(())
        })
        .await?;
        ensure!(ns.pod_info(&first.name).await?.ready);
        scene.ensure_served().await
    });
}
