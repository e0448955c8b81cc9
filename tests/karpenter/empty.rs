//! What Karpenter takes nodes for. It reads deletion costs back as what it costs to disrupt a pod, so a careless value
//! makes a full node look empty, and Karpenter deletes it without asking where its pods can go.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::karpenter::{Consolidation, Decision, Karpenter};
use belay_e2e::world::{Namespace, test_on};

use crate::scene::{PATIENCE, PODS_PER_NODE, Scene, cluster};
use crate::values::{COST, annotate};

const NODES: usize = 3;

/// Karpenter may take nodes as soon as it sees a reason.
const AT_ONCE: Duration = Duration::ZERO;

#[test]
fn karpenter_takes_a_full_node_for_empty_whose_pods_carry_the_lowest_cost() {
    let cluster = cluster();
    test_on(&cluster, "lowest", async |ns: &Namespace| {
        let karpenter = Karpenter::start(&cluster, &[]).await?;
        let scene = Scene::set(ns, NODES).await?;
        let node = scene.pool.initialized(NODES, PATIENCE).await?.swap_remove(1);
        for pod in scene.pods_on(&node).await? {
            annotate(ns, &pod.name, COST, Some(&i32::MIN.to_string())).await?;
        }
        scene.pool.consolidate(Consolidation::WhenEmpty, AT_ONCE).await?;
        let decisions = decided(ns, &karpenter).await?;
        let expected = Decision { reason: "Empty".into(), pods: PODS_PER_NODE, replacements: 0, nodes: vec![node] };
        ensure!(decisions == [expected], "Karpenter decided on {decisions:?}");
        Ok(())
    });
}

/// Waits until Karpenter has decided to disrupt something.
async fn decided(ns: &Namespace, karpenter: &Karpenter) -> anyhow::Result<Vec<Decision>> {
    ns.eventually("a decision of Karpenter's", PATIENCE, async || {
        let decisions = karpenter.decisions()?;
        ensure!(!decisions.is_empty(), "it has taken none");
        Ok(decisions)
    })
    .await
}
