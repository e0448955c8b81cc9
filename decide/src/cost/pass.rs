//! All values of a cluster at once.
//!
//! A caller that is told what changed need not do this: when pods of a node change, its [`Occupancy`] is made anew, and
//! when that or the node itself differs, [`rank`] runs; then the ReplicaSets with pods on
//! [changed nodes](Ranking::changed_since), and those whose own pods changed, are asked for their [`desired`] values.
//! Time alone changes a decision only where something younger than `settle` has settled, so one look after that is
//! enough.

use std::collections::HashMap;

use jiff::Timestamp;

use super::group::Occupancy;
use super::nodes::Nodes;
use super::ranking::{Occupancies, Ranking, Remembered, rank};
use super::values::{Ground, desired};
use super::view::{CostPod, Options, SetView};

/// A cluster.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// All nodes.
    pub nodes: &'a Nodes,
    /// All pods, in any order.
    pub pods: &'a [CostPod],
    /// All ReplicaSets, in any order.
    pub sets: &'a [SetView],
    /// The settings.
    pub options: &'a Options,
    /// The time.
    pub now: Timestamp,
}

/// What ought to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The ranks.
    pub ranking: Ranking,
    /// For each pod, in the order of the input, the value that it ought to carry. Absent is to carry none.
    pub desired: Vec<Option<i32>>,
    /// The pods on which there is something to write, as places in the input.
    pub writes: Vec<usize>,
}

/// Decides all ranks and values of a cluster of which nothing is remembered.
pub fn pass(input: &Input<'_>) -> Pass {
    pass_remembering(input, Remembered::default())
}

/// Decides all ranks and values of a cluster.
pub fn pass_remembering(input: &Input<'_>, remembered: Remembered<'_>) -> Pass {
    let mut on_node: HashMap<&str, Vec<&CostPod>> = HashMap::with_capacity(input.nodes.len());
    let mut of_set: HashMap<&str, Vec<usize>> = HashMap::with_capacity(input.sets.len());
    for (at, pod) in input.pods.iter().enumerate() {
        if let Some(node) = pod.node.as_deref() {
            on_node.entry(node).or_default().push(pod);
        }
        if let Some(set) = pod.set.as_deref() {
            of_set.entry(set).or_default().push(at);
        }
    }
    let occupancies: Occupancies = on_node.into_iter().map(|(node, pods)| (node.into(), Occupancy::of(pods))).collect();
    let ranking = rank(input.nodes, &occupancies, remembered, input.options, input.now);
    let ground = Ground { nodes: input.nodes, ranking: &ranking, options: input.options, now: input.now };
    let mut wanted = vec![None; input.pods.len()];
    for set in input.sets {
        let Some(places) = of_set.get(&*set.uid) else { continue };
        let pods: Vec<&CostPod> = places.iter().map(|&at| &input.pods[at]).collect();
        for (&at, value) in places.iter().zip(desired(set, &pods, &ground)) {
            wanted[at] = value;
        }
    }
    let asks = |at: &usize| {
        let pod = &input.pods[*at];
        pod.is_active() && pod.standing.asks_for_a_write(wanted[*at])
    };
    let writes = (0..input.pods.len()).filter(asks).collect();
    Pass { ranking, desired: wanted, writes }
}
