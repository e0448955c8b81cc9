//! Two controllers that write the same annotation: Belay leaves it to Karpenter, says so, and is back when Karpenter has
//! gone.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::karpenter::Karpenter;
use belay_e2e::world::{Belay, PodInfo};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use crate::scene::{PATIENCE, Scene, counted};
use crate::values::{cost, ensure_ranked_but, is_belays, record};
use crate::writes::{GATE, passes};

/// Belay's values stand on all pods when this begins.
pub(crate) async fn belay_gives_way(scene: &Scene<'_>, belay: &Belay, period: Duration) -> anyhow::Result<()> {
    let ns = scene.ns;
    let karpenter = Karpenter::start(ns.cluster(), &[GATE]).await?;
    let left_alone = ns
        .eventually("Belay to stand down for nodes", PATIENCE, async || {
            let told = told(scene, "DeletionCostStoodDown").await?;
            let standing = standing_down(belay).await?;
            ensure!(standing > 0 && told.len() == standing, "it does for {standing}, and says so of {told:?}");
            Ok(told)
        })
        .await?;
    // Karpenter leaves a pod that changed under its hands to its next look, a minute later: not all carry its value yet.
    let foreign = ns
        .eventually("Belay to have given up all pods", PATIENCE, async || {
            let pods = scene.pods().await?;
            let kept = pods.iter().filter(|pod| record(pod).is_some()).count();
            ensure!(kept == 0, "{kept} pods have a record of Belay's value");
            Ok(pods.iter().filter(|pod| cost(pod).is_some()).count())
        })
        .await?;
    ensure!(foreign > 0, "no pod carries a value of Karpenter's");
    // From now on Belay writes nothing, not even to a pod that is new.
    passes(scene, belay, 2).await?;
    let before = ns.pod_writes()?.len();
    let fresh = replaced(scene, &left_alone).await?;
    passes(scene, belay, 2).await?;
    let writes = ns.pod_writes()?.split_off(before);
    ensure!(writes.is_empty(), "while it stands down, Belay wrote {writes:?}");
    let fresh = ns.pod_info(&fresh.name).await?;
    ensure!(!is_belays(&fresh), "while it stands down, Belay gave {} the value {:?}", fresh.name, cost(&fresh));
    karpenter.stop().await;
    ns.eventually("Belay to be back", PATIENCE + period, async || {
        let standing = standing_down(belay).await?;
        ensure!(standing == 0, "it stands down for {standing}");
        let told = told(scene, "DeletionCostResumed").await?;
        ensure!(left_alone.is_subset(&told), "it says so of {told:?} alone");
        Ok(())
    })
    .await?;
    // What Karpenter left would go before anything that Belay writes on the same ReplicaSets' pods: that is for people to
    // decide, and they take it off.
    scene.clear().await?;
    ns.eventually("all pods to carry Belay's values", PATIENCE, async || {
        let pods = scene.pods().await?;
        ensure!(pods.iter().all(is_belays), "some do not");
        ensure_ranked_but(&pods, &[])
    })
    .await
    .map(drop)
}

async fn standing_down(belay: &Belay) -> anyhow::Result<usize> {
    Ok(counted(belay, "belay_deletion_cost_stood_down", "kind=\"Node\"").await? as usize)
}

/// The nodes that Events with this reason are about.
async fn told(scene: &Scene<'_>, reason: &str) -> anyhow::Result<BTreeSet<String>> {
    let events: Api<Event> = Api::namespaced(scene.ns.cluster().client().clone(), "default");
    let events = events.list(&ListParams::default()).await?.items;
    let about = events.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
    Ok(about.filter_map(|event| event.involved_object.name).collect())
}

/// Deletes a pod on one of these nodes, and answers the one that comes in its place once it is Ready.
async fn replaced(scene: &Scene<'_>, nodes: &BTreeSet<String>) -> anyhow::Result<PodInfo> {
    let before = scene.pods().await?;
    let gone = before.iter().find(|pod| nodes.contains(&pod.node)).context("no pods on these nodes")?;
    scene.ns.api::<Pod>().delete(&gone.name, &DeleteParams::default()).await?;
    scene
        .ns
        .eventually("a pod in the place of one that was deleted", PATIENCE, async || {
            let now = scene.pods().await?;
            let fresh = now.into_iter().find(|pod| before.iter().all(|known| known.uid != pod.uid));
            let fresh = fresh.context("it is not there")?;
            ensure!(fresh.ready && !fresh.node.is_empty(), "{} is not Ready", fresh.name);
            Ok(fresh)
        })
        .await
}
