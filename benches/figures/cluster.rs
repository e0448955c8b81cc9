//! A large cluster, as the API server would tell it: objects as JSON, read and projected as the program does.

use belay::cluster::costs::{CostSink, Costs, Pair};
use belay::cluster::index::{Index, IndexSink, SeenNode};
use belay::cluster::pool::Pool;
use belay::cluster::project_cost::LeftOut;
use belay::cluster::subset::{NodeSubset, PodSubset, ReplicaSetSubset};
use belay::cluster::watch::Sink as _;
use belay::cluster::{project, project_cost};
use belay_decide::cost::Options;
use belay_decide::cost::cluster::{Cluster, KnownPod};
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

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_else(|error| unreachable!("an object of the API server's: {error}"))
}

/// Sixteen hexadecimal digits in the shape of a UID.
fn uid(kind: u32, number: usize) -> String {
    format!("{kind:08x}-5c1f-4e0b-9d7a-{number:012x}")
}

pub(crate) fn node_name(number: usize) -> String {
    format!("ip-10-{}-{}-{}.eu-central-1.compute.internal", number >> 16, number >> 8 & 255, number & 255)
}

pub(crate) fn node(number: usize) -> NodeSubset {
    let zone = ["eu-central-1a", "eu-central-1b", "eu-central-1c"][number % 3];
    read(json!({
        "metadata": {"name": node_name(number), "uid": uid(1, number), "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": {
                "kubernetes.io/hostname": node_name(number), "topology.kubernetes.io/zone": zone,
                "topology.kubernetes.io/region": "eu-central-1", "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m7i.2xlarge",
                "karpenter.sh/nodepool": "default", "karpenter.sh/capacity-type": "on-demand"}},
        "spec": {},
    }))
}

fn set(number: usize) -> ReplicaSetSubset {
    let labels = json!({"app.kubernetes.io/name": format!("service-{number}"), "pod-template-hash": "6d4cf56db6"});
    let spread = json!([{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": labels}}]);
    read(json!({
        "metadata": {"namespace": format!("team-{}", number % 40), "name": format!("service-{number}-6d4cf56db6"),
            "uid": uid(2, number), "labels": labels, "ownerReferences": [{"apiVersion": "apps/v1",
                "kind": "Deployment", "name": format!("service-{number}"), "uid": uid(3, number), "controller": true}]},
        "spec": {"replicas": EACH, "template": {"metadata": {"labels": labels},
            "spec": {"topologySpreadConstraints": if number.is_multiple_of(3) { spread } else { json!([]) }}}},
    }))
}

pub(crate) fn pod(size: Size, number: usize) -> PodSubset {
    let set = number / EACH;
    read(json!({
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
    }))
}

/// Both caches, filled.
pub(crate) fn filled(size: Size) -> (Index, Costs) {
    let index = Index::new(Vec::new());
    let costs = Costs::new(Cluster::new(Options::default(), SignedDuration::from_mins(10)));
    let mut both = Pair(IndexSink(index.clone()), CostSink(Some(costs.clone())));
    let nodes = (0..size.nodes()).map(node);
    let seen = |node: &NodeSubset| SeenNode { view: project::node(node), at: now() };
    both.replace(nodes.map(|node| (Some(seen(&node)), Some(project_cost::node(&node, now())))).collect());
    let sets = (0..size.sets()).map(set);
    both.replace(sets.map(|set| (Some(project::replica_set(&set)), Some(project_cost::set(&set)))).collect());
    let (left_out, labels) = (LeftOut::default(), Pool::default());
    let views = |pod: &PodSubset| {
        let known = project_cost::pod(pod, &left_out, now());
        let known = KnownPod { labels: labels.share(known.labels), ..known };
        (Some(project::pod(pod, true)), Some(known))
    };
    both.replace((0..size.pods).map(|number| views(&pod(size, number))).collect());
    (index, costs)
}

/// A pod as the cache knows it.
pub(crate) fn known(size: Size, number: usize) -> KnownPod {
    project_cost::pod(&pod(size, number), &LeftOut::default(), now())
}
