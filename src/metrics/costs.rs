//! What is counted of deletion costs.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{Metrics, ResultLabel};

/// What is counted of deletion costs.
#[derive(Debug)]
pub(super) struct Costs {
    nodes: Family<Group, Gauge>,
    writes: Family<ResultLabel, Counter>,
    changed_nodes: Counter,
    passes: Family<ResultLabel, Counter>,
    ranking_seconds: Histogram,
    renumberings: Counter,
    conflicts: Counter,
    stamps: Counter,
    stood_down: Family<Where, Gauge>,
}

/// Nodes that are ranked, by why; and those that are not.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Group {
    group: &'static str,
}

/// A kind of object that is left to another controller.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Where {
    kind: &'static str,
}

/// From a tenth of a millisecond, a handful of nodes, to three seconds, more than any cluster needs.
fn ranking_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 16))
}

impl Costs {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let costs = Self {
            nodes: Family::default(),
            writes: Family::default(),
            changed_nodes: Counter::default(),
            passes: Family::default(),
            ranking_seconds: ranking_histogram(),
            renumberings: Counter::default(),
            conflicts: Counter::default(),
            stamps: Counter::default(),
            stood_down: Family::default(),
        };
        let nodes = "Nodes by what their pods' deletion costs say: ranked in a group, waiting for a rank, protected";
        registry.register("deletion_cost_nodes", nodes, costs.nodes.clone());
        registry.register("deletion_cost_writes", "Writes of deletion costs to pods", costs.writes.clone());
        registry.register(
            "deletion_cost_changed_nodes",
            "Nodes whose rank came, went or changed; writes divided by these are the write amplification",
            costs.changed_nodes.clone(),
        );
        registry.register(
            "deletion_cost_passes",
            "Looks at the cluster's deletion costs, by whether anything had changed that could matter",
            costs.passes.clone(),
        );
        registry.register(
            "deletion_cost_ranking_duration_seconds",
            "Time to rank the nodes and decide the values that follow",
            costs.ranking_seconds.clone(),
        );
        registry.register(
            "deletion_cost_renumberings",
            "Nodes that got another rank only because a gap between ranks was used up",
            costs.renumberings.clone(),
        );
        registry.register(
            "deletion_cost_conflicts",
            "Deletion costs that were left to somebody else, who changed or kept removing them",
            costs.conflicts.clone(),
        );
        registry.register(
            "deletion_cost_stamps",
            "Pods that got their deletion cost in their own binding",
            costs.stamps.clone(),
        );
        registry.register(
            "deletion_cost_stood_down",
            "Nodes and ReplicaSets whose deletion costs are left to another controller for now",
            costs.stood_down.clone(),
        );
        costs
    }
}

impl Metrics {
    /// How many nodes are in each group.
    pub fn cost_nodes(&self, groups: &[(&'static str, i64)]) {
        for (group, count) in groups {
            self.costs.nodes.get_or_create(&Group { group }).set(*count);
        }
    }

    /// A deletion cost was written, or not.
    pub fn cost_write(&self, result: &'static str) {
        self.costs.writes.get_or_create(&ResultLabel { result }).inc();
    }

    /// The nodes were ranked, in so many seconds: so many have another rank, of which so many only for want of room.
    pub fn cost_ranking(&self, seconds: f64, changed_nodes: usize, renumbered: usize) {
        self.costs.passes.get_or_create(&ResultLabel { result: "Ranked" }).inc();
        self.costs.ranking_seconds.observe(seconds);
        self.cost_changed_nodes(changed_nodes);
        self.costs.renumberings.inc_by(renumbered as u64);
    }

    /// So many nodes have another rank than their pods' values say.
    pub fn cost_changed_nodes(&self, changed_nodes: usize) {
        self.costs.changed_nodes.inc_by(changed_nodes as u64);
    }

    /// The cluster was looked at, and nothing had changed that could matter.
    pub fn cost_pass_unchanged(&self) {
        self.costs.passes.get_or_create(&ResultLabel { result: "Unchanged" }).inc();
    }

    /// A deletion cost was left to somebody else.
    pub fn cost_conflict(&self) {
        self.costs.conflicts.inc();
    }

    /// A pod got its deletion cost in its own binding.
    pub fn cost_stamp(&self) {
        self.costs.stamps.inc();
    }

    /// So many nodes and ReplicaSets are left to another controller for now.
    pub fn cost_stood_down(&self, nodes: usize, sets: usize) {
        for (kind, count) in [("Node", nodes), ("ReplicaSet", sets)] {
            self.costs.stood_down.get_or_create(&Where { kind }).set(count as i64);
        }
    }

    /// This replica does not lead, so it says nothing of the cluster.
    pub fn no_costs(&self) {
        self.costs.nodes.clear();
        self.costs.stood_down.clear();
    }
}
