//! What Karpenter takes nodes for. It reads deletion costs back as what it costs to disrupt a pod, so a careless value
//! makes a full node look empty, and Karpenter deletes it without asking where its pods can go.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::karpenter::{Consolidation, Decision, Karpenter};
use belay_e2e::world::{Namespace, test_on};

use crate::scene::{NEVER, PATIENCE, PODS_PER_NODE, Scene, cluster, on};
use crate::values::{COST, annotate, ensure_ranked_but, is_belays};

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
        let decisions = ns
            .eventually("a decision of Karpenter's", PATIENCE, async || {
                let decisions = karpenter.decisions()?;
                ensure!(!decisions.is_empty(), "it has taken none");
                Ok(decisions)
            })
            .await?;
        let expected = Decision { reason: "Empty".into(), pods: PODS_PER_NODE, replacements: 0, nodes: vec![node] };
        ensure!(decisions == [expected], "Karpenter decided on {decisions:?}");
        Ok(())
    });
}

#[test]
fn beside_belay_karpenter_takes_only_nodes_that_are_empty_and_none_that_it_would_keep_without() {
    let cluster = cluster();
    test_on(&cluster, "belay", async |ns: &Namespace| {
        let karpenter = Karpenter::start(&cluster, &[]).await?;
        let plain = cluster.namespace("plain").await?;
        let (with, without) = tokio::try_join!(Scene::set(ns, NODES), Scene::set(&plain, NODES))?;
        cluster.install_belay(on(ns, NEVER)).await?;
        let order = ns
            .eventually("the pods of one pool to carry Belay's values", PATIENCE, async || {
                ensure!(with.pods().await?.iter().all(is_belays), "some do not");
                ensure_ranked_but(&with.pods().await?, &[])
            })
            .await?;

        // Underutilized first: that all nodes are looked at shows only there.
        for policy in [Consolidation::WhenEmptyOrUnderutilized, Consolidation::WhenEmpty] {
            for scene in [&with, &without] {
                scene.pool.consolidate(policy, AT_ONCE).await?;
            }
            looked_twice(ns, &karpenter, policy).await?;
            let decisions = karpenter.decisions()?;
            ensure!(decisions.is_empty(), "of full nodes, {policy}: {decisions:?}");
        }

        let by = of_each(&with, &order[0]).await?;
        for scene in [&with, &without] {
            scene.pool.consolidate(Consolidation::WhenEmptyOrUnderutilized, AT_ONCE).await?;
            scene.scale_down(by).await?;
        }
        for scene in [&with, &without] {
            scene.filled(NODES - 1).await?;
        }
        let decisions = karpenter.decisions()?;
        let evicted = Evicted::read(&with, &without)?;
        println!("a scale-down by the pods of one of {NODES} nodes, and what Karpenter evicted to remove it:");
        println!("without Belay: {} pods; with Belay: {}", evicted.without, evicted.with);
        let empty =
            |nodes: &[String]| Decision { reason: "Empty".into(), pods: 0, replacements: 0, nodes: nodes.into() };
        let (ours, others): (Vec<_>, Vec<_>) =
            decisions.into_iter().partition(|decision| decision.nodes.iter().any(|node| order.contains(node)));
        ensure!(ours == [empty(&order[..1])], "with Belay: {ours:?}");
        ensure!(evicted.with == 0, "with Belay: {} pods", evicted.with);
        // What it would have come to, for this to mean anything.
        let taken: usize = others.iter().map(|decision| decision.nodes.len()).sum();
        ensure!(taken == 1 && evicted.without > 0, "without Belay: {others:?}, {} pods", evicted.without);
        Ok(())
    });
}

/// Waits until Karpenter has looked at the nodes of both pools twice from now on: once may have begun before.
async fn looked_twice(ns: &Namespace, karpenter: &Karpenter, policy: Consolidation) -> anyhow::Result<()> {
    let reason = match policy {
        Consolidation::WhenEmpty => "reason=\"empty\"",
        Consolidation::WhenEmptyOrUnderutilized => "consolidation_type=\"single\"",
    };
    let looks = "karpenter_voluntary_disruption_decision_evaluation_duration_seconds_count";
    let before = karpenter.counted(looks, reason).await?;
    if policy == Consolidation::WhenEmptyOrUnderutilized {
        ns.eventually("Karpenter to see nodes that it may take", PATIENCE, async || {
            let eligible = "karpenter_voluntary_disruption_eligible_nodes";
            let nodes = karpenter.counted(eligible, "reason=\"underutilized\"").await?;
            ensure!(nodes as usize == 2 * NODES, "it sees {nodes}");
            Ok(())
        })
        .await?;
    }
    ns.eventually("Karpenter to have looked twice", PATIENCE, async || {
        let made = karpenter.counted(looks, reason).await? - before;
        ensure!(made >= 2.0, "it has {made} times");
        Ok(())
    })
    .await
}

/// How many pods of each Deployment are on a node.
async fn of_each(scene: &Scene<'_>, node: &str) -> anyhow::Result<[usize; 2]> {
    let pods = scene.pods_on(node).await?;
    Ok([0, 1].map(|index| {
        let prefix = format!("{}-", scene.workloads[index].name());
        pods.iter().filter(|pod| pod.name.starts_with(&prefix)).count()
    }))
}

/// How many pods Karpenter has evicted of each scene.
struct Evicted {
    with: usize,
    without: usize,
}

impl Evicted {
    fn read(with: &Scene<'_>, without: &Scene<'_>) -> anyhow::Result<Self> {
        let writes = Karpenter::pod_writes(with.ns.cluster())?;
        let evicted = |scene: &Scene<'_>| {
            let evictions = writes.iter().filter(|write| write.resource == "pods/eviction" && write.code == 201);
            evictions.filter(|write| write.namespace == scene.ns.name()).count()
        };
        Ok(Self { with: evicted(with), without: evicted(without) })
    }
}
