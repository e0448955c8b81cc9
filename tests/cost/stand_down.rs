//! Another controller that writes deletion costs is left alone, and followed by Belay when it has gone.

use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use belay_e2e::world::{Belay, Namespace, PodInfo, Workload};
use serde_json::json;

use crate::busy_support::{COST, mark, patch_metadata, record};
use crate::stage::{PATIENCE, STAND_DOWN, cost, counted, nodes};
use crate::support::SOON;
use crate::values::{only_on, order, ours, steady, told};

/// The other controller writes what is greater than this.
const LEAST: i32 = 5;

#[test]
fn a_replica_set_that_another_controller_writes_on_is_left_alone_until_it_has_gone_and_longer_the_second_time() {
    cost("set", async |ns: &Namespace, belay: &Belay| {
        let nodes = nodes(ns, 3, 4).await?;
        let mut bystanders = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let name = format!("bystander-{number}");
            bystanders.push(only_on(ns.web(&name).replicas(2).grace(1), node).create().await?);
        }
        for bystander in &bystanders {
            bystander.available(SOON).await?;
        }
        let web = ns.web("web").replicas(6).grace(1).create().await?;
        web.available(SOON).await?;
        order(ns, belay, &web).await?;
        let set = set_of(&web).await?;
        let [first, second] = one_of_each_node(&web, &nodes).await?;

        for (turn, rewritten, others) in [(1, &first, &second[..]), (2, &second, &[])] {
            let since = stands_down(ns, belay, rewritten, ("ReplicaSet", &set), turn).await?;
            without_ours(ns, others).await?;
            for bystander in &bystanders {
                ensure!(all_ours(bystander).await?, "{} has lost its values", bystander.name());
            }
            resumes(ns, belay, "ReplicaSet", &set, turn).await?;
            let (away, least) = (since.elapsed(), STAND_DOWN * turn);
            ensure!(away >= least, "it came back after {away:?}, not {least:?}");
            each_has_its_own(ns, others, rewritten).await?;
        }
        Ok(())
    });
}

#[test]
fn a_node_on_which_another_controller_writes_is_left_alone_until_it_has_gone() {
    cost("node", async |ns: &Namespace, belay: &Belay| {
        let nodes = nodes(ns, 2, 8).await?;
        let mut workloads = Vec::new();
        for name in ["web", "api"] {
            for (number, node) in nodes.iter().enumerate() {
                workloads.push(only_on(ns.web(&format!("{name}-{number}")).replicas(2).grace(1), node).create().await?);
            }
        }
        for workload in &workloads {
            workload.available(SOON).await?;
        }
        ns.eventually("all pods carry values", PATIENCE, async || {
            for workload in &workloads {
                ensure!(all_ours(workload).await?, "those of {} do not", workload.name());
            }
            Ok(())
        })
        .await?;
        let [web, elsewhere, api, also_elsewhere] = &workloads[..] else { bail!("not four workloads") };
        let mut pods: Vec<String> = Vec::new();
        for workload in [web, api] {
            pods.extend(steady(workload).await?.into_iter().map(|pod| pod.name));
        }
        let (rewritten, left) = pods.split_at(3);
        stands_down(ns, belay, rewritten, ("Node", &nodes[0]), 1).await?;
        without_ours(ns, left).await?;
        for workload in [elsewhere, also_elsewhere] {
            ensure!(all_ours(workload).await?, "{} has lost its values", workload.name());
        }
        resumes(ns, belay, "Node", &nodes[0], 1).await?;
        each_has_its_own(ns, left, rewritten).await
    });
}

/// Waits until pods that nobody else wrote on carry Belay's values again; those that were rewritten stay theirs.
async fn each_has_its_own(ns: &Namespace, others: &[String], rewritten: &[String]) -> anyhow::Result<()> {
    ns.eventually("the pods that nobody else wrote on carry values again", SOON, async || {
        for pod in others {
            ensure!(ours(&ns.pod_info(pod).await?)?.is_some(), "{pod} carries none");
        }
        Ok(())
    })
    .await?;
    for pod in rewritten {
        theirs(&ns.pod_info(pod).await?)?;
    }
    Ok(())
}

/// Lets the other controller come again and again until Belay stands down. The answer is when it came for the last time.
async fn stands_down(
    ns: &Namespace,
    belay: &Belay,
    pods: &[String],
    (kind, object): (&str, &str),
    times: u32,
) -> anyhow::Result<Instant> {
    let mut came: Option<Instant> = None;
    let mut value = LEAST;
    ns.eventually(&format!("Belay stands down for the {kind} {object}"), SOON, async || {
        if came.is_none_or(|came| came.elapsed() >= STAND_DOWN / 2) {
            came = Some(Instant::now());
            value += 1;
            for pod in pods {
                patch_metadata(ns, pod, json!({ "annotations": { COST: value.to_string() } })).await?;
            }
        }
        let standing = standing_down(belay, kind).await?;
        ensure!(standing == 1, "the metric says {standing}");
        told_times(ns, "DeletionCostStoodDown", object, times).await
    })
    .await?;
    came.context("the other controller never came")
}

async fn resumes(ns: &Namespace, belay: &Belay, kind: &str, object: &str, times: u32) -> anyhow::Result<()> {
    ns.eventually(&format!("Belay is back for the {kind} {object}"), SOON, async || {
        let standing = standing_down(belay, kind).await?;
        ensure!(standing == 0, "the metric says {standing}");
        told_times(ns, "DeletionCostResumed", object, times).await
    })
    .await
}

async fn standing_down(belay: &Belay, kind: &str) -> anyhow::Result<u64> {
    let series = format!("kind=\"{kind}\"");
    counted(belay, "belay_deletion_cost_stood_down", &series).await
}

/// An Event was told so often, whether as several or as a series of one.
async fn told_times(ns: &Namespace, reason: &str, object: &str, times: u32) -> anyhow::Result<()> {
    let events = told(ns, reason, object).await?;
    let count: u64 = events.iter().map(|event| event["series"]["count"].as_u64().unwrap_or(1)).sum();
    ensure!(count == u64::from(times), "{reason} about {object} was told {count} times: {events:#?}");
    Ok(())
}

async fn without_ours(ns: &Namespace, pods: &[String]) -> anyhow::Result<()> {
    ns.eventually("Belay takes its values away", SOON, async || {
        for pod in pods {
            let value = ours(&ns.pod_info(pod).await?)?;
            ensure!(value.is_none(), "{pod} carries {value:?}");
        }
        Ok(())
    })
    .await
}

fn theirs(pod: &PodInfo) -> anyhow::Result<()> {
    let value = mark(pod, COST);
    let number = value.as_ref().and_then(|value| value.parse::<i32>().ok());
    ensure!(number.is_some_and(|number| number > LEAST), "{} carries {value:?}", pod.name);
    ensure!(record(pod)?.is_empty(), "{} has a record", pod.name);
    Ok(())
}

async fn all_ours(workload: &Workload) -> anyhow::Result<bool> {
    let values = steady(workload).await?.iter().map(ours).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(values.iter().all(Option::is_some))
}

async fn set_of(workload: &Workload) -> anyhow::Result<String> {
    let set = workload.replica_sets().await?.into_iter().next().context("no ReplicaSet")?;
    set.metadata.name.context("a ReplicaSet without a name")
}

/// The pods of a workload that has two on each node, one of each in either half.
async fn one_of_each_node(workload: &Workload, nodes: &[String]) -> anyhow::Result<[Vec<String>; 2]> {
    let mut halves = [Vec::new(), Vec::new()];
    let pods = steady(workload).await?;
    for node in nodes {
        let on_node: Vec<&PodInfo> = pods.iter().filter(|pod| pod.node == *node).collect();
        let [one, other] = on_node[..] else { bail!("{} pods are on {node}", on_node.len()) };
        halves[0].push(one.name.clone());
        halves[1].push(other.name.clone());
    }
    Ok(halves)
}
