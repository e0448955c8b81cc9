//! Words for the deletion costs that stand on pods.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Namespace, PodInfo};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// The annotation that a ReplicaSet's scale-down reads.
pub(crate) const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Belay's record of what it wrote.
const RECORD: &str = "belay.dev/managed";

/// The value that a pod carries, whoever wrote it.
pub(crate) fn cost(pod: &PodInfo) -> Option<i32> {
    pod.pod.annotations().get(COST)?.parse().ok()
}

/// What Belay recorded as its value on a pod.
pub(crate) fn record(pod: &PodInfo) -> Option<String> {
    let record: Value = serde_json::from_str(pod.pod.annotations().get(RECORD)?).ok()?;
    record[COST].as_str().map(str::to_owned)
}

/// Whether the value that a pod carries is Belay's, by its own record.
pub(crate) fn is_belays(pod: &PodInfo) -> bool {
    record(pod).is_some_and(|recorded| pod.pod.annotations().get(COST) == Some(&recorded))
}

/// The one value of the pods of each node; `None` where they carry none.
pub(crate) fn by_node(pods: &[PodInfo]) -> anyhow::Result<BTreeMap<String, Option<i32>>> {
    let mut values = BTreeMap::new();
    for pod in pods {
        let value = cost(pod);
        let first = *values.entry(pod.node.clone()).or_insert(value);
        ensure!(first == value, "of {}, {} carries {value:?} and others {first:?}", pod.node, pod.name);
    }
    Ok(values)
}

/// An error unless the pods of these nodes carry none, and all others one value a node that no other node has.
pub(crate) fn ensure_ranked_but(pods: &[PodInfo], protected: &[&String]) -> anyhow::Result<Vec<String>> {
    let mut nodes: Vec<(i32, String)> = Vec::new();
    for (node, value) in by_node(pods)? {
        if protected.contains(&&node) {
            ensure!(value.is_none(), "pods of the protected node {node} carry {value:?}");
        } else {
            nodes.push((value.with_context(|| format!("pods of {node} carry none"))?, node));
        }
    }
    let values: BTreeSet<i32> = nodes.iter().map(|(value, _)| *value).collect();
    ensure!(values.len() == nodes.len(), "two nodes share a value: {nodes:?}");
    nodes.sort();
    Ok(nodes.into_iter().map(|(_, node)| node).collect())
}

/// Sets an annotation of a pod, or takes it away.
pub(crate) async fn annotate(ns: &Namespace, pod: &str, key: &str, value: Option<&str>) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
    ns.api::<Pod>().patch(pod, &PatchParams::default(), &patch).await?;
    Ok(())
}
