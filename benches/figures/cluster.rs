//! A large cluster, as the API server would tell it: objects as JSON, read and projected as the program does.

use belay::cluster::costs::{CostSink, Costs, Pair};
use belay::cluster::index::{Index, IndexSink, SeenNode};
use belay::cluster::pool::Alike;
use belay::cluster::project_cost::LeftOut;
use belay::cluster::subset::{NodeSubset, PodSubset, ReplicaSetSubset};
use belay::cluster::watch::Sink as _;
use belay::cluster::{project, project_cost};
use belay_decide::cost::Options;
use belay_decide::cost::cluster::{Cluster, KnownPod};
use belay_decide::view::PodView;
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// When the cluster is looked at.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_796_047_200).unwrap_or_default()
}

/// So many pods, thirty on a node, thirty in a ReplicaSet; every third ReplicaSet is spread over three zones.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) pods: usize,
}

/// What is usual on a node of middle size, and in a Deployment.
pub(crate) const EACH: usize = 30;

impl Size {
    pub(crate) fn nodes(self) -> usize {
        self.pods.div_ceil(EACH)
    }

    fn sets(self) -> usize {
        self.pods.div_ceil(EACH)
    }

    /// The node of a pod: a ReplicaSet's pods lie on thirty nodes.
    pub(crate) fn node_of(self, pod: usize) -> usize {
        let (set, at) = (pod / EACH, pod % EACH);
        (set + at * (self.nodes() / EACH).max(1)) % self.nodes()
    }
}

pub(crate) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_else(|error| unreachable!("an object of the API server's: {error}"))
}

/// Sixteen hexadecimal digits in the shape of a UID.
fn uid(kind: u32, number: usize) -> String {
    format!("{kind:08x}-5c1f-4e0b-9d7a-{number:012x}")
}

pub(crate) fn node_name(number: usize) -> String {
    format!("ip-10-{}-{}-{}.eu-central-1.compute.internal", number >> 16, number >> 8 & 255, number & 255)
}

pub(crate) fn node_json(number: usize) -> Value {
    let zone = ["eu-central-1a", "eu-central-1b", "eu-central-1c"][number % 3];
    json!({
        "metadata": {"name": node_name(number), "uid": uid(1, number), "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": {
                "kubernetes.io/hostname": node_name(number), "topology.kubernetes.io/zone": zone,
                "topology.kubernetes.io/region": "eu-central-1", "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m7i.2xlarge",
                "karpenter.sh/nodepool": "default", "karpenter.sh/capacity-type": "on-demand"}},
        "spec": {},
    })
}

pub(crate) fn set_json(number: usize) -> Value {
    let labels = json!({"app.kubernetes.io/name": format!("service-{number}"), "pod-template-hash": "6d4cf56db6"});
    let spread = json!([{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": labels}}]);
    json!({
        "metadata": {"namespace": format!("team-{}", number % 40), "name": format!("service-{number}-6d4cf56db6"),
            "uid": uid(2, number), "labels": labels, "ownerReferences": [{"apiVersion": "apps/v1",
                "kind": "Deployment", "name": format!("service-{number}"), "uid": uid(3, number), "controller": true}]},
        "spec": {"replicas": EACH, "template": {"metadata": {"labels": labels},
            "spec": {"topologySpreadConstraints": if number.is_multiple_of(3) { spread } else { json!([]) }}}},
    })
}

pub(crate) fn pod_json(size: Size, number: usize) -> Value {
    let set = number / EACH;
    json!({
        "metadata": {"namespace": format!("team-{}", set % 40),
            "name": format!("service-{set}-6d4cf56db6-{:05x}", number % EACH), "uid": uid(4, number),
            "resourceVersion": format!("{}", 700_000_000 + number), "creationTimestamp": "2026-11-20T08:00:00Z",
            "labels": {"app.kubernetes.io/name": format!("service-{set}"), "app.kubernetes.io/part-of": "shop",
                "pod-template-hash": "6d4cf56db6"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                "name": format!("service-{set}-6d4cf56db6"), "uid": uid(2, set), "controller": true}]},
        "spec": {"nodeName": node_name(size.node_of(number)), "priority": 0},
        "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T08:00:20Z"}],
            "containerStatuses": [{"name": "service", "restartCount": 0}]},
    })
}

pub(crate) fn node(number: usize) -> NodeSubset {
    read(node_json(number))
}

fn set(number: usize) -> ReplicaSetSubset {
    read(set_json(number))
}

pub(crate) fn pod(size: Size, number: usize) -> PodSubset {
    read(pod_json(size, number))
}

/// Both caches, filled.
pub(crate) fn filled(size: Size) -> (Index, Costs) {
    let index = Index::new(Vec::new());
    let costs = Costs::new(Cluster::new(Options::default(), SignedDuration::from_mins(10)));
    fill(&index, &costs, size);
    (index, costs)
}

/// Fills both caches, as the watches of a process do.
pub(crate) fn fill(index: &Index, costs: &Costs, size: Size) {
    let mut both = Pair(IndexSink(index.clone()), CostSink(Some(costs.clone())));
    let alike = Alike::default();
    let nodes = (0..size.nodes()).map(node).map(|node| {
        let mut seen = SeenNode { view: project::node(&node), at: now() };
        let mut facts = project_cost::node(&node, now());
        alike.node(&mut seen.view);
        alike.node(&mut facts.node);
        (Some(seen), Some(facts))
    });
    both.replace(nodes.collect());
    let sets = (0..size.sets()).map(set).map(|set| {
        let (mut view, mut known) = (project::replica_set(&set), project_cost::set(&set));
        alike.replica_set(&mut view);
        alike.set(&mut known.set.uid);
        (Some(view), Some(known))
    });
    both.replace(sets.collect());
    both.replace(views_of(size, alike).collect());
}

/// All pods, as both caches take them.
pub(crate) fn pod_views(size: Size) -> impl Iterator<Item = (Option<PodView>, Option<KnownPod>)> {
    views_of(size, Alike::default())
}

fn views_of(size: Size, alike: Alike) -> impl Iterator<Item = (Option<PodView>, Option<KnownPod>)> {
    (0..size.pods).map(move |number| {
        let pod = pod(size, number);
        let mut view = project::pod(&pod, true);
        let mut known = project_cost::pod(&pod, &LeftOut::default(), now());
        alike.pod(Some(&mut view), Some(&mut known));
        (Some(view), Some(known))
    })
}

/// A pod as the cache knows it.
pub(crate) fn known(size: Size, number: usize) -> KnownPod {
    project_cost::pod(&pod(size, number), &LeftOut::default(), now())
}
