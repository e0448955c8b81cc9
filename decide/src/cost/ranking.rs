//! The ranks of a cluster's nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::iter::Peekable;
use std::sync::Arc;

use jiff::Timestamp;

use super::group::{Group, Occupancy, Protection, group};
use super::nodes::Nodes;
use super::number::number;
use super::order::{self, Candidate};
use super::view::{MOST_NODES, Options};

/// What the pods of each node mean for it, by the node's name; absent for a node without pods.
pub type Occupancies = BTreeMap<Arc<str>, Occupancy>;

/// When the last pod that had to stay left a node, by the node's name.
pub type Freed = BTreeMap<Arc<str>, Timestamp>;

/// The names of all nodes. While no node comes or goes, rankings share them, so that one is compared with the next by
/// places and not by names.
#[derive(Default)]
struct Names {
    sorted: Vec<Arc<str>>,
    places: HashMap<Arc<str>, u32>,
}

impl Names {
    fn of(nodes: &Nodes) -> Self {
        let sorted: Vec<_> = nodes.keys().cloned().collect();
        let places = sorted.iter().cloned().zip(0..).collect();
        Self { sorted, places }
    }

    /// They are the very names of these nodes.
    fn are_of(&self, nodes: &Nodes) -> bool {
        let mut pairs = self.sorted.iter().zip(nodes.keys());
        self.sorted.len() == nodes.len() && pairs.all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.sorted == other.sorted
    }
}

impl Eq for Names {}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sorted.fmt(f)
    }
}

/// What was decided about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has a rank.
    Ranked(Ranked),
    /// It might have one, but others are to empty sooner.
    Waiting {
        /// Its group.
        group: Group,
        /// How many of its pods would have to run elsewhere.
        pods: u32,
    },
    /// It is not to be emptied.
    Protected(Protection),
}

/// A node's place in the order in which nodes ought to empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Its group.
    pub group: Group,
    /// How many of its pods would have to run elsewhere.
    pub pods: u32,
    /// Its rank, below 0 and above -2048: the lowest empties first.
    pub rank: i32,
}

/// What was decided about every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    names: Arc<Names>,
    /// In the order of the names.
    verdicts: Vec<Verdict>,
    /// The places of the ranked nodes' names, first to empty first.
    order: Vec<u32>,
    /// How many nodes got another rank only because a gap between ranks was used up.
    pub renumbered: usize,
}

impl Ranking {
    /// The rank of a node, if it has one.
    pub fn rank_of(&self, node: &str) -> Option<i32> {
        match self.verdict(node) {
            Some(Verdict::Ranked(ranked)) => Some(ranked.rank),
            _ => None,
        }
    }

    /// What was decided about a node; absent for one that was not there.
    pub fn verdict(&self, node: &str) -> Option<&Verdict> {
        self.verdicts.get(*self.names.places.get(node)? as usize)
    }

    /// What was decided about all nodes, by name.
    pub fn verdicts(&self) -> impl Iterator<Item = (&str, &Verdict)> {
        self.names.sorted.iter().map(|name| &**name).zip(&self.verdicts)
    }

    fn name(&self, place: u32) -> Option<&str> {
        self.names.sorted.get(place as usize).map(|name| &**name)
    }

    /// The names of the ranked nodes, first to empty first.
    pub fn order(&self) -> impl Iterator<Item = &str> {
        self.order.iter().filter_map(|place| self.name(*place))
    }

    /// The nodes that empty just before and just after a ranked node.
    pub fn neighbours(&self, node: &str) -> (Option<&str>, Option<&str>) {
        let place = self.names.places.get(node);
        let Some(at) = self.order.iter().position(|other| Some(other) == place) else {
            return (None, None);
        };
        let name = |at: usize| self.name(*self.order.get(at)?);
        (at.checked_sub(1).and_then(name), name(at + 1))
    }

    /// The nodes whose pods may be worth another value than they were before: their rank came, went or changed, or Belay
    /// stands down there or is back. Nodes that are gone are not among them. In ascending order.
    pub fn changed_since<'a>(&'a self, before: &Self) -> Vec<&'a str> {
        let matters = |verdict: &Verdict| match verdict {
            Verdict::Ranked(ranked) => (Some(ranked.rank), false),
            Verdict::Protected(protection) => (None, *protection == Protection::StoodDown),
            Verdict::Waiting { .. } => (None, false),
        };
        let same_nodes = Arc::ptr_eq(&self.names, &before.names);
        let changed = self.verdicts().enumerate().filter(|(place, (name, verdict))| {
            let was = if same_nodes { before.verdicts.get(*place) } else { before.verdict(name) };
            matters(verdict) != was.map(matters).unwrap_or_default()
        });
        changed.map(|(_, (name, _))| name).collect()
    }

    /// The ranked nodes empty in the same order as before: nothing to tell people about.
    pub fn same_order(&self, before: &Self) -> bool {
        self.order().eq(before.order())
    }
}

/// What a process that watches a cluster remembers of it, beyond what the cluster shows. All of it may be forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remembered<'a> {
    /// What it decided last. A node that got a rank keeps it while the values that name it have yet to be written: else
    /// the first nodes that carry theirs would be the only ones that are ranked, and the others change places.
    pub last: Option<&'a Ranking>,
    /// Which nodes lost their last pod that had to stay, and when.
    pub freed: Option<&'a Freed>,
}

/// What the pods on each node mean for it, asked for in the order of their names.
struct AtPods<'a, I: Iterator<Item = (&'a Arc<str>, &'a Occupancy)>>(Peekable<I>);

impl<'a, I: Iterator<Item = (&'a Arc<str>, &'a Occupancy)>> AtPods<'a, I> {
    /// That of the node of this name. Most names are the very same, and need not be compared.
    fn of(&mut self, name: &Arc<str>) -> Option<&'a Occupancy> {
        while let Some((other, found)) = self.0.next_if(|(other, _)| Arc::ptr_eq(other, name) || *other <= name) {
            if Arc::ptr_eq(other, name) || other == name {
                return Some(found);
            }
        }
        None
    }
}

/// Ranks the nodes of a cluster. The ranks that they have are read from the values on their pods, and only where none
/// is there from what is remembered: see the module's words on that.
pub fn rank(
    nodes: &Nodes,
    occupancies: &Occupancies,
    remembered: Remembered<'_>,
    options: &Options,
    now: Timestamp,
) -> Ranking {
    let nothing = Occupancy::default();
    let names = remembered.last.map(|last| &last.names).filter(|names| names.are_of(nodes));
    let (same_nodes, names) = (names.is_some(), names.map_or_else(|| Arc::new(Names::of(nodes)), Arc::clone));
    let last_rank = |place: usize, name: &str| {
        let last = remembered.last?;
        match if same_nodes { last.verdicts.get(place) } else { last.verdict(name) } {
            Some(Verdict::Ranked(ranked)) => Some(ranked.rank),
            _ => None,
        }
    };
    let mut verdicts = Vec::with_capacity(nodes.len());
    let mut eligible = Vec::new();
    let mut at_pods = AtPods(occupancies.iter().peekable());
    for (place, (name, facts)) in nodes.iter().enumerate() {
        let occupancy = at_pods.of(name).unwrap_or(&nothing);
        let standing = occupancy.standing_rank();
        // A node without pods needs no rank that no value says.
        let kept = || Some((last_rank(place, name).filter(|_| occupancy.pods > 0)?, 0));
        let standing = standing.or_else(kept);
        let freed = remembered.freed.filter(|freed| !freed.is_empty()).and_then(|freed| freed.get(name)).copied();
        match group(facts, occupancy, standing.is_some(), freed, options, now) {
            Err(protection) => verdicts.push(Verdict::Protected(protection)),
            Ok(group) => {
                let pods = occupancy.pods;
                verdicts.push(Verdict::Waiting { group, pods });
                let young = now.duration_since(facts.created) < options.settle;
                let (rank, votes) = standing.unzip();
                eligible.push((Candidate { name: place as u32, group, pods, young, rank }, votes));
            }
        }
    }
    let arranged = arrange(eligible, options);
    let row: Vec<_> = arranged.iter().map(|node| node.rank).collect();
    let (ranks, renumbered) = number(&row);
    for (node, rank) in arranged.iter().zip(ranks) {
        if let Some(verdict) = verdicts.get_mut(node.name as usize) {
            *verdict = Verdict::Ranked(Ranked { group: node.group, pods: node.pods, rank });
        }
    }
    let order = arranged.iter().map(|node| node.name).collect();
    Ranking { names, verdicts, order, renumbered }
}

fn arrange(mut eligible: Vec<(Candidate, Option<u32>)>, options: &Options) -> Vec<Candidate> {
    // Two nodes of one rank: it stays with the one that more values name.
    let mut ranked: Vec<_> = eligible.iter_mut().filter(|(node, _)| node.rank.is_some()).collect();
    ranked.sort_unstable_by_key(|(node, votes)| (node.rank, Reverse(*votes), node.name));
    let mut taken = None;
    for (node, _) in &mut ranked {
        if node.rank == taken {
            node.rank = None;
        } else {
            taken = node.rank;
        }
    }
    let nothing = ranked.is_empty();
    let mut candidates: Vec<_> = eligible.into_iter().map(|(node, _)| node).collect();
    // Where nothing is ranked yet there is no order for a node to join, so what is there now counts.
    if nothing {
        for node in &mut candidates {
            node.young = false;
        }
    }
    order::arrange(&order::choose(&candidates, options.max_nodes.min(MOST_NODES)))
}
