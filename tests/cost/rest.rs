//! A hundred nodes with three thousand pods: what is written, and what is not.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use belay_e2e::node_agent::IDLE_IMAGE;
use belay_e2e::world::{Belay, Namespace, PodInfo, Web, Workload};

use crate::busy_support::written;
use crate::stage::{PATIENCE, after_passes, all_writes, at_work, counted, nodes, off, on, on_own_cluster};
use crate::values::ours;

const NODES: usize = 100;
const PODS_A_NODE: usize = 30;
const WORKLOADS: usize = 10;

/// How many nodes are ranked, by default.
const RANKED: usize = 50;

/// What Karpenter reads as "leave this node alone".
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

#[test]
fn a_hundred_nodes_at_rest_cost_no_write_and_a_node_that_changes_costs_those_of_its_own_pods() {
    on_own_cluster("hundred", off(), async |ns: &Namespace, belay: &Belay| {
        // Room for just as many, so that every node is filled.
        nodes(ns, NODES, PODS_A_NODE as u32).await?;
        let replicas = NODES * PODS_A_NODE / WORKLOADS;
        for number in 1..=WORKLOADS {
            idle(ns.web(&format!("web-{number}")).replicas(replicas as i32)).create().await?;
        }
        let all = |number: usize| Workload::of(ns, &format!("web-{number}"));
        for number in 1..=WORKLOADS {
            all(number).available(PATIENCE * 2).await?;
        }
        ensure!(written(ns)?.is_empty(), "written while it is off: {:?}", written(ns)?);

        belay.upgrade(on()).await?;
        at_work(ns, belay).await?;
        // Lists of so many pods are long, so the first one waits until it may tell something.
        ns.eventually("the first values are written", PATIENCE, async || {
            let written = counted(belay, "belay_deletion_cost_writes_total", "result=\"Ok\"").await?;
            ensure!(written >= (RANKED * PODS_A_NODE) as u64, "{written} are");
            Ok(())
        })
        .await?;
        let ranks = ranked(ns, RANKED).await?;
        after_passes(ns, belay, 2).await?;
        let first = written(ns)?;
        let (writes, pods, expected) = (first.len(), as_set(&first).len(), RANKED * PODS_A_NODE);
        ensure!(writes == expected && pods == expected, "{writes} writes on {pods} pods to give {expected} a value");

        let quiet = all_writes(ns)?.len();
        after_passes(ns, belay, 5).await?;
        let since = all_writes(ns)?.split_off(quiet);
        ensure!(since.is_empty(), "five passes at rest wrote {since:#?}");

        // One in the middle of the order comes to be protected.
        let mut order: Vec<(&i32, &String)> = ranks.iter().map(|(node, rank)| (rank, node)).collect();
        order.sort_unstable();
        let (_, protected) = *order.get(order.len() / 2).context("no node is ranked")?;
        let own = on_node(ns, protected).await?;
        let before = written(ns)?.len();
        ns.kubectl(["annotate", "node", protected, &format!("{DO_NOT_DISRUPT}=true")]).ok().await?;
        let mut expected = ranks.clone();
        expected.remove(protected);
        let left = ranked(ns, RANKED - 1).await?;
        ensure!(left == expected, "the ranks of others changed: {left:?}, not {expected:?}");
        after_passes(ns, belay, 2).await?;
        let since: Vec<String> = written(ns)?.split_off(before);
        ensure!(
            as_set(&since) == own && since.len() == own.len(),
            "{} writes, not {}: {since:?}",
            since.len(),
            own.len()
        );

        // One comes, empty; and then it fills.
        let before = written(ns)?.len();
        let new = nodes(ns, 1, PODS_A_NODE as u32).await?.swap_remove(0);
        after_passes(ns, belay, 2).await?;
        let since = written(ns)?.split_off(before);
        ensure!(since.is_empty(), "an empty node that came cost {since:?}");
        let grown = all(1);
        grown.scale((replicas + PODS_A_NODE) as i32).await?;
        grown.available(PATIENCE).await?;
        let own = on_node(ns, &new).await?;
        ensure!(own.len() == PODS_A_NODE, "{} pods are on the new node", own.len());
        let after = ranked(ns, RANKED).await?;
        ensure!(after.contains_key(&new), "the new node has no rank: {after:?}");
        after_passes(ns, belay, 3).await?;
        let since = as_set(&written(ns)?.split_off(before));
        let others: Vec<&String> = since.difference(&own).collect();
        ensure!(others.is_empty(), "a node that came cost writes on others' pods: {others:?}");
        Ok(())
    });
}

/// Pods that run and serve nothing, which is less work for this machine.
fn idle(web: Web<'_>) -> Web<'_> {
    web.edit(|deployment| {
        let pod = deployment.spec.template.spec.get_or_insert_default();
        for container in &mut pod.containers {
            container.image = Some(IDLE_IMAGE.into());
            container.ports = None;
        }
    })
}

/// Waits until this many nodes are ranked: all pods on each carry its rank, and those on others nothing. The
/// answer is the ranks by node.
async fn ranked(ns: &Namespace, count: usize) -> anyhow::Result<BTreeMap<String, i32>> {
    ns.eventually(&format!("the pods of {count} nodes carry their ranks"), PATIENCE, async || {
        let pods = ns.pods("").await?;
        let mut of_node: BTreeMap<&String, Vec<&PodInfo>> = BTreeMap::new();
        for pod in &pods {
            of_node.entry(&pod.node).or_default().push(pod);
        }
        let mut ranks = BTreeMap::new();
        for (node, pods) in of_node {
            let values = pods.iter().map(|pod| ours(pod)).collect::<anyhow::Result<Vec<_>>>()?;
            ensure!(values.iter().all(|value| *value == values[0]), "{node} has {values:?}");
            ranks.extend(values[0].map(|value| (node.clone(), value)));
        }
        ensure!(ranks.len() == count, "{} nodes have ranks", ranks.len());
        ensure!(ranks.values().collect::<BTreeSet<_>>().len() == count, "some share a rank: {ranks:?}");
        Ok(ranks)
    })
    .await
}

async fn on_node(ns: &Namespace, node: &str) -> anyhow::Result<BTreeSet<String>> {
    Ok(ns.pods("").await?.into_iter().filter(|pod| pod.node == node).map(|pod| pod.name).collect())
}

fn as_set(names: &[String]) -> BTreeSet<String> {
    names.iter().cloned().collect()
}
