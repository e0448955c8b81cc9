//! What a change of one node costs: the writes to pods that the API server recorded of Karpenter's own gate and of
//! Belay, on the same nodes with the same pods.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::audit::Write;
use belay_e2e::karpenter::{ANNOTATION_DO_NOT_DISRUPT, Karpenter};
use belay_e2e::world::{Belay, Namespace, test_on};

use crate::give_way;
use crate::scene::{PATIENCE, PODS_PER_NODE, Scene, cluster, counted, off, on};
use crate::values::{annotate, ensure_ranked_but, is_belays};

const NODES: usize = 10;

/// Karpenter's own ranking of nodes by deletion cost.
pub(crate) const GATE: &str = "PodDeletionCostManagement=true";

const BELAY: &str = "Belay";
const KARPENTER: &str = "Karpenter";

/// Places in the order in which nodes empty, of those that become protected.
const PLACES: [(usize, &str); 3] =
    [(0, "first becomes protected"), (NODES / 2, "middle becomes protected"), (NODES - 1, "last becomes protected")];

/// How long Belay leaves Karpenter alone: longer than the test looks at that.
const STAND_DOWN: Duration = Duration::from_secs(20);

#[test]
fn belay_writes_the_pods_of_the_changed_node_alone_and_gives_way_to_karpenters_own_gate() {
    let cluster = cluster();
    test_on(&cluster, "writes", async |ns: &Namespace| {
        let karpenter = Karpenter::start(&cluster, &[]).await?;
        let scene = Scene::set(ns, NODES).await?;
        let belay = cluster.install_belay(on(ns, STAND_DOWN)).await?;
        let mut rows = belay_and_protected_nodes(&scene, &belay).await?;
        karpenter.stop().await;
        give_way::belay_gives_way(&scene, &belay, STAND_DOWN).await?;
        belay.upgrade(off()).await?;
        rows.extend(karpenter_and_protected_nodes(&scene).await?);
        for (row, (index, _)) in rows.iter().zip(PLACES.iter().chain(&PLACES)) {
            // Karpenter numbers nodes from the last: whoever is before the protected one moves up.
            let others = if row.who == KARPENTER { index * PODS_PER_NODE } else { 0 };
            ensure!(
                row.of_the_node == PODS_PER_NODE && row.of_others == others,
                "{row:?}, expected {others} of others"
            );
        }
        rows.push(karpenter_and_a_new_node(&scene).await?);
        scene.clear().await?;
        let belay = cluster.install_belay(on(ns, STAND_DOWN)).await?;
        let new = belay_and_a_new_node(&scene, &belay).await?;
        ensure!(new.of_others == 0, "{new:?}");
        rows.push(new);
        print(&rows);
        Ok(())
    });
}

/// How many writes to pods came of a change of one node.
#[derive(Debug)]
struct Row {
    who: &'static str,
    change: &'static str,
    nodes: usize,
    of_the_node: usize,
    of_others: usize,
}

fn print(rows: &[Row]) {
    println!("writes to pods, {PODS_PER_NODE} on each node, when of the order in which nodes are to empty the");
    println!("{:<28} {:<10} {:>5} {:>11} {:>10} {:>5}", "", "", "nodes", "of the node", "of others", "all");
    for Row { who, change, nodes, of_the_node, of_others } in rows {
        println!("{change:<28} {who:<10} {nodes:>5} {of_the_node:>11} {of_others:>10} {:>5}", of_the_node + of_others);
    }
}

async fn belay_and_protected_nodes(scene: &Scene<'_>, belay: &Belay) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, change) in PLACES {
        let node = belay_ranks(scene, belay, &[]).await?.swap_remove(index);
        let before = scene.ns.pod_writes()?.len();
        let guard = protect(scene, &node).await?;
        belay_ranks(scene, belay, &[&node]).await?;
        let writes = scene.ns.pod_writes()?.split_off(before);
        rows.push(row(scene, BELAY, change, &node, &writes).await?);
        unprotect(scene, &guard).await?;
    }
    Ok(rows)
}

async fn belay_and_a_new_node(scene: &Scene<'_>, belay: &Belay) -> anyhow::Result<Row> {
    let karpenter = Karpenter::start(scene.ns.cluster(), &[]).await?;
    belay_ranks(scene, belay, &[]).await?;
    let before = scene.ns.pod_writes()?.len();
    let node = scene.one_more_node().await?;
    belay_ranks(scene, belay, &[]).await?;
    karpenter.stop().await;
    let writes = scene.ns.pod_writes()?.split_off(before);
    row(scene, BELAY, "new one comes with its pods", &node, &writes).await
}

/// Waits until Belay has ranked the nodes and looked once more; answers them in the order in which they are to empty.
async fn belay_ranks(scene: &Scene<'_>, belay: &Belay, protected: &[&String]) -> anyhow::Result<Vec<String>> {
    let ranked = async || {
        let pods = scene.pods().await?;
        ensure!(pods.iter().all(|pod| is_belays(pod) || protected.contains(&&pod.node)), "some values are not Belay's");
        ensure_ranked_but(&pods, protected)
    };
    scene.ns.eventually("Belay to have ranked the nodes", PATIENCE, ranked).await?;
    passes(scene, belay, 2).await?;
    ranked().await
}

/// Waits until Belay has looked at the nodes so many times more.
pub(crate) async fn passes(scene: &Scene<'_>, belay: &Belay, count: u64) -> anyhow::Result<()> {
    let before = counted(belay, "belay_deletion_cost_passes_total", "").await?;
    let what = format!("Belay to make {count} passes");
    scene
        .ns
        .eventually(&what, PATIENCE, async || {
            let made = counted(belay, "belay_deletion_cost_passes_total", "").await?.saturating_sub(before);
            ensure!(made >= count, "it has made {made}");
            Ok(())
        })
        .await
}

async fn karpenter_and_protected_nodes(scene: &Scene<'_>) -> anyhow::Result<Vec<Row>> {
    let order = karpenter_ranks(scene, &[]).await?;
    let mut rows = Vec::new();
    for (index, change) in PLACES {
        let node = &order[index];
        let before = Karpenter::pod_writes(scene.ns.cluster())?.len();
        let guard = protect(scene, node).await?;
        karpenter_ranks(scene, &[node]).await?;
        let writes = Karpenter::pod_writes(scene.ns.cluster())?.split_off(before);
        rows.push(row(scene, KARPENTER, change, node, &writes).await?);
        unprotect(scene, &guard).await?;
        karpenter_ranks(scene, &[]).await?;
    }
    Ok(rows)
}

async fn karpenter_and_a_new_node(scene: &Scene<'_>) -> anyhow::Result<Row> {
    let before = Karpenter::pod_writes(scene.ns.cluster())?.len();
    let karpenter = Karpenter::start(scene.ns.cluster(), &[GATE]).await?;
    let node = scene.one_more_node().await?;
    karpenter.stop().await;
    karpenter_ranks(scene, &[]).await?;
    let writes = Karpenter::pod_writes(scene.ns.cluster())?.split_off(before);
    row(scene, KARPENTER, "new one comes with its pods", &node, &writes).await
}

/// Lets Karpenter with its gate on rank the nodes; answers them in the order in which they are to empty.
///
/// It looks once a minute whether something changed, and for protection only after five more; a new process looks at
/// once, and writes what the old one would have.
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
    change: &'static str,
    node: &str,
    writes: &[Write],
) -> anyhow::Result<Row> {
    ensure!(writes.iter().all(|write| write.resource == "pods" && write.code == 200), "other writes: {writes:?}");
    let pods = scene.pods_on(node).await?;
    let of_the_node = writes.iter().filter(|write| pods.iter().any(|pod| pod.name == write.name)).count();
    let nodes = scene.pool.nodes().await?.len();
    Ok(Row { who, change, nodes, of_the_node, of_others: writes.len() - of_the_node })
}
