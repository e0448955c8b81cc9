//! Words for what stands on pods, and for what a scale-down does.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use belay_e2e::world::{Belay, Namespace, PodInfo, Web, Workload};
use serde_json::Value;

use crate::busy_support::{COST, mark, record};
use crate::stage::{PATIENCE, rested};
use crate::support::SOON;

/// Every value of Belay's lies within this of 0.
const BOUND: i32 = 1 << 20;

/// Values of one node differ by multiples of this, and its rank is what remains.
const TIER: i32 = 2048;

/// The value of Belay's that a pod carries, recorded as it stands; an error where anything else stands there.
pub(crate) fn ours(pod: &PodInfo) -> anyhow::Result<Option<i32>> {
    match (mark(pod, COST), record(pod)?.remove(COST)) {
        (None, None) => Ok(None),
        (Some(value), Some(Some(recorded))) if value == recorded => {
            let number: i32 = value.parse().with_context(|| format!("{} carries {value:?}", pod.name))?;
            ensure!((-BOUND..0).contains(&number) && number.to_string() == value, "{} carries {value:?}", pod.name);
            Ok(Some(number))
        }
        (value, recorded) => bail!("{} carries {value:?}, and recorded is {recorded:?}", pod.name),
    }
}

/// The rank of a pod's node, as its value says it.
pub(crate) fn rank(value: i32) -> i32 {
    value % TIER
}

/// Lets the pods of a workload go to one node only.
pub(crate) fn only_on<'a>(web: Web<'a>, node: &str) -> Web<'a> {
    let node = node.to_owned();
    web.edit(move |deployment| {
        let pod = deployment.spec.template.spec.get_or_insert_default();
        pod.node_selector.get_or_insert_default().insert("kubernetes.io/hostname".into(), node);
    })
}

/// The pods of a workload that stay, by name; all are bound and Ready.
pub(crate) async fn steady(workload: &Workload) -> anyhow::Result<Vec<PodInfo>> {
    let mut pods = workload.pods().await?;
    pods.retain(|pod| !pod.terminating);
    let wanted = workload.deployment().await?.spec.replicas.unwrap_or(1);
    ensure!(pods.len() == wanted as usize, "{} has {} pods, not {wanted}", workload.name(), pods.len());
    for pod in &pods {
        ensure!(pod.ready && !pod.node.is_empty(), "{} is not ready", pod.name);
    }
    pods.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(pods)
}

/// How many pods of a workload each of these nodes has.
pub(crate) async fn placement(workload: &Workload, nodes: &[String]) -> anyhow::Result<Vec<usize>> {
    let pods = steady(workload).await?;
    Ok(nodes.iter().map(|node| pods.iter().filter(|pod| pod.node == *node).count()).collect())
}

/// The value that all of Belay's on each node say: an error where the pods of one node say different ones, or none.
pub(crate) fn by_node(pods: &[PodInfo]) -> anyhow::Result<BTreeMap<String, i32>> {
    let mut values = BTreeMap::new();
    for pod in pods {
        let value = ours(pod)?.with_context(|| format!("{} carries none", pod.name))?;
        let first = *values.entry(pod.node.clone()).or_insert(value);
        ensure!(first == value, "{} carries {value} where others of {} carry {first}", pod.name, pod.node);
    }
    Ok(values)
}

/// Waits until all is at rest, and the pods of a workload carry the ranks of their nodes. The answer is these nodes,
/// first to empty first.
pub(crate) async fn order(ns: &Namespace, belay: &Belay, workload: &Workload) -> anyhow::Result<Vec<String>> {
    rested(ns, belay).await?;
    ns.eventually(&format!("{} follows the ranks of its nodes", workload.name()), PATIENCE, async || {
        let values = by_node(&steady(workload).await?)?;
        let mut order: Vec<(i32, String)> = values.into_iter().map(|(node, value)| (value, node)).collect();
        order.sort_unstable();
        ensure!(order.windows(2).all(|two| two[0].0 < two[1].0), "nodes share a rank: {order:?}");
        Ok(order.into_iter().map(|(_, node)| node).collect())
    })
    .await
}

/// Waits until the pods of a workload carry the ranks of their nodes, and these ascend in this order.
pub(crate) async fn ranked_in_order(ns: &Namespace, workload: &Workload, nodes: &[&String]) -> anyhow::Result<()> {
    ns.eventually(&format!("{} is told to empty {nodes:?} in this order", workload.name()), PATIENCE, async || {
        let values = by_node(&steady(workload).await?)?;
        let row: Option<Vec<i32>> = nodes.iter().map(|node| values.get(*node).copied()).collect();
        let row = row.with_context(|| format!("not all of them have pods: {values:?}"))?;
        ensure!(row.is_sorted_by(|one, next| one < next), "the ranks are {values:?}");
        Ok(())
    })
    .await
}

/// Scales a workload down, and answers the pods that went, as they were before. They are those with the lowest values.
pub(crate) async fn shrink(ns: &Namespace, workload: &Workload, replicas: i32) -> anyhow::Result<Vec<PodInfo>> {
    let before = steady(workload).await?;
    let stay = resize(ns, workload, replicas).await?;
    let (stayed, gone): (Vec<_>, Vec<_>) = before.into_iter().partition(|pod| stay.contains(&pod.uid));
    ensure!(stayed.len() == stay.len(), "{} has new pods", workload.name());
    let highest = gone.iter().map(cost).max();
    if let Some(highest) = highest {
        let lower: Vec<_> = stayed.iter().filter(|pod| cost(pod) < highest).map(|pod| (&pod.name, cost(pod))).collect();
        ensure!(lower.is_empty(), "a pod with {highest} went, and these stayed: {lower:?}");
    }
    Ok(gone)
}

/// Scales a workload, and answers the UIDs of its pods once they are as many, all Ready.
pub(crate) async fn resize(ns: &Namespace, workload: &Workload, replicas: i32) -> anyhow::Result<BTreeSet<String>> {
    workload.scale(replicas).await?;
    ns.eventually(&format!("{} has {replicas} pods", workload.name()), SOON, async || {
        let pods = steady(workload).await?;
        Ok(pods.into_iter().map(|pod| pod.uid).collect())
    })
    .await
}

/// What a ReplicaSet reads on a pod, whoever wrote it.
pub(crate) fn cost(pod: &PodInfo) -> i32 {
    mark(pod, COST).and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Where pods are and what they carry, for a person who asks why a test failed.
pub(crate) fn sheet(pods: &[PodInfo]) -> Vec<String> {
    let line = |pod: &PodInfo| format!("{} on {} carries {:?}", pod.name, pod.node, mark(pod, COST));
    pods.iter().map(line).collect()
}

/// The Events with this reason about an object, in whatever namespace they are told.
pub(crate) async fn told(ns: &Namespace, reason: &str, object: &str) -> anyhow::Result<Vec<Value>> {
    let text = ns.cluster().kubectl(["get", "events.events.k8s.io", "--all-namespaces", "-o", "json"]).ok().await?;
    let mut list: Value = serde_json::from_str(&text).context("kubectl wrote no JSON")?;
    let Value::Array(mut events) = list["items"].take() else { bail!("kubectl listed no items") };
    events.retain(|event| event["reason"] == *reason && event["regarding"]["name"] == *object);
    Ok(events)
}
