//! What it costs that one node becomes protected: the writes to pods that the API server recorded of Karpenter's own
//! gate and of Belay, on the same nodes with the same pods.

use anyhow::ensure;
use belay_e2e::audit::Write;
use belay_e2e::karpenter::{ANNOTATION_DO_NOT_DISRUPT, Karpenter};
use belay_e2e::world::{Namespace, test_on};

use crate::scene::{PATIENCE, PODS_PER_NODE, Scene, cluster};
use crate::values::{annotate, ensure_ranked_but};

const NODES: usize = 10;

/// Karpenter's own ranking of nodes by deletion cost.
const GATE: &str = "PodDeletionCostManagement=true";

/// Places in the order in which nodes empty, of those that become protected, and what people call them.
const PLACES: [(usize, &str); 3] = [(0, "first"), (NODES / 2, "middle"), (NODES - 1, "last")];

#[test]
fn karpenters_own_gate_rewrites_pods_of_other_nodes() {
    let cluster = cluster();
    test_on(&cluster, "writes", async |ns: &Namespace| {
        let karpenter = Karpenter::start(&cluster, &[]).await?;
        let scene = Scene::set(ns, NODES).await?;
        karpenter.stop().await;
        let rows = of_karpenter(&scene).await?;
        print(&rows);
        // Whoever is before it in line moves up, and their pods are written anew.
        for (row, (index, _)) in rows.iter().zip(PLACES) {
            ensure!(
                row.of_the_node == PODS_PER_NODE && row.of_others == index * PODS_PER_NODE,
                "the {} node",
                row.place
            );
        }
        Ok(())
    });
}

/// How many pods were written when the node in some place became protected.
struct Row {
    who: &'static str,
    place: &'static str,
    of_the_node: usize,
    of_others: usize,
}

fn print(rows: &[Row]) {
    println!("one of {NODES} nodes with {PODS_PER_NODE} pods each becomes protected; writes to pods:");
    println!("{:<12} {:<8} {:>11} {:>10} {:>6}", "", "in line", "of the node", "of others", "all");
    for Row { who, place, of_the_node, of_others } in rows {
        println!("{who:<12} {place:<8} {of_the_node:>11} {of_others:>10} {:>6}", of_the_node + of_others);
    }
}

/// Karpenter looks at its nodes again within six minutes of such a change; a new process looks at once, and writes what
/// the old one would have.
async fn of_karpenter(scene: &Scene<'_>) -> anyhow::Result<Vec<Row>> {
    let cluster = scene.ns.cluster();
    let order = karpenter_ranks(scene, &[]).await?;
    let mut rows = Vec::new();
    for (index, place) in PLACES {
        let node = &order[index];
        let before = Karpenter::pod_writes(cluster)?.len();
        let guard = protect(scene, node).await?;
        karpenter_ranks(scene, &[node]).await?;
        let writes = Karpenter::pod_writes(cluster)?.split_off(before);
        rows.push(row(scene, "Karpenter", place, node, &writes).await?);
        unprotect(scene, &guard).await?;
        karpenter_ranks(scene, &[]).await?;
    }
    Ok(rows)
}

/// Lets a new Karpenter with its gate on rank the nodes; answers them in the order in which they are to empty.
async fn karpenter_ranks(scene: &Scene<'_>, protected: &[&String]) -> anyhow::Result<Vec<String>> {
    let karpenter = Karpenter::start(scene.ns.cluster(), &[GATE]).await?;
    let ranked = scene
        .ns
        .eventually("Karpenter to have ranked its nodes", PATIENCE, async || {
            ensure_ranked_but(&scene.pods().await?, protected)
        })
        .await?;
    karpenter.stop().await;
    Ok(ranked)
}

/// Has a node kept by one of its pods, as users do; answers that pod.
async fn protect(scene: &Scene<'_>, node: &str) -> anyhow::Result<String> {
    let pods = scene.pods_on(node).await?;
    annotate(scene.ns, &pods[0].name, ANNOTATION_DO_NOT_DISRUPT, Some("true")).await?;
    Ok(pods[0].name.clone())
}

async fn unprotect(scene: &Scene<'_>, pod: &str) -> anyhow::Result<()> {
    annotate(scene.ns, pod, ANNOTATION_DO_NOT_DISRUPT, None).await
}

async fn row(
    scene: &Scene<'_>,
    who: &'static str,
    place: &'static str,
    node: &str,
    writes: &[Write],
) -> anyhow::Result<Row> {
    let own = scene.pods_on(node).await?;
    ensure!(writes.iter().all(|write| write.resource == "pods" && write.code == 200), "other writes: {writes:?}");
    let of_the_node = writes.iter().filter(|write| own.iter().any(|pod| pod.name == write.name)).count();
    Ok(Row { who, place, of_the_node, of_others: writes.len() - of_the_node })
}
