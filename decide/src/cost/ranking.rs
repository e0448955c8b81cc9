//! The ranks of a cluster's nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use super::group::{Group, Occupancy, Protection, group};
use super::number::number;
use super::order::{self, Candidate};
use super::view::{MOST_NODES, NodeFacts, Options};

/// All nodes, by name.
pub type Nodes = BTreeMap<Box<str>, NodeFacts>;

/// What the pods of each node mean for it, by the node's name; absent for a node without pods.
pub type Occupancies = BTreeMap<Box<str>, Occupancy>;

/// When the last pod that had to stay left a node, by the node's name.
pub type Freed = BTreeMap<Box<str>, Timestamp>;

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
    /// By name.
    verdicts: Vec<(Box<str>, Verdict)>,
    /// The ranked nodes, first to empty first.
    order: Vec<Box<str>>,
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
        let at = self.verdicts.binary_search_by(|(name, _)| (**name).cmp(node)).ok()?;
        Some(&self.verdicts[at].1)
    }

    /// What was decided about all nodes, by name.
    pub fn verdicts(&self) -> impl Iterator<Item = (&str, &Verdict)> {
        self.verdicts.iter().map(|(name, verdict)| (&**name, verdict))
    }

    /// The names of the ranked nodes, first to empty first.
    pub fn order(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(|name| &**name)
    }

    /// The nodes that empty just before and just after a ranked node.
    pub fn neighbours(&self, node: &str) -> (Option<&str>, Option<&str>) {
        let Some(at) = self.order.iter().position(|name| &**name == node) else {
            return (None, None);
        };
        let name = |at: usize| self.order.get(at).map(|name| &**name);
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
        let mut before = before.verdicts.iter().peekable();
        let mut changed = Vec::new();
        for (name, verdict) in &self.verdicts {
            while before.next_if(|(other, _)| other < name).is_some() {}
            let was = before.next_if(|(other, _)| other == name).map(|(_, verdict)| matters(verdict));
            if matters(verdict) != was.unwrap_or_default() {
                changed.push(&**name);
            }
        }
        changed
    }

    /// The ranked nodes empty in the same order as before: nothing to tell people about.
    pub fn same_order(&self, before: &Self) -> bool {
        self.order == before.order
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

impl Remembered<'_> {
    /// The rank that a node got, though no value on its pods says so. A node without pods needs none.
    fn rank_of(self, name: &str, occupancy: &Occupancy) -> Option<i32> {
        self.last.filter(|_| occupancy.pods > 0)?.rank_of(name)
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
    let mut verdicts = Vec::with_capacity(nodes.len());
    let mut eligible = Vec::new();
    let mut at_pods = occupancies.iter().peekable();
    for (name, facts) in nodes {
        // Both are sorted by name.
        while at_pods.next_if(|(other, _)| *other < name).is_some() {}
        let occupancy = at_pods.next_if(|(other, _)| *other == name).map_or(&nothing, |(_, found)| found);
        let standing = occupancy.standing_rank();
        let standing = standing.or_else(|| Some((remembered.rank_of(name, occupancy)?, 0)));
        let freed = remembered.freed.and_then(|freed| freed.get(name)).copied();
        match group(facts, occupancy, standing.is_some(), freed, options, now) {
            Err(protection) => verdicts.push((name.clone(), Verdict::Protected(protection))),
            Ok(group) => {
                let pods = occupancy.pods;
                verdicts.push((name.clone(), Verdict::Waiting { group, pods }));
                let young = now.duration_since(facts.created) < options.settle;
                let (rank, votes) = standing.unzip();
                eligible.push((Candidate { name, group, pods, young, rank }, votes));
            }
        }
    }
    let arranged = arrange(eligible, options);
    let row: Vec<_> = arranged.iter().map(|node| node.rank).collect();
    let (ranks, renumbered) = number(&row);
    let order = arranged.iter().map(|node| node.name.into()).collect();
    for (node, rank) in arranged.iter().zip(ranks) {
        if let Ok(at) = verdicts.binary_search_by(|(name, _)| (**name).cmp(node.name)) {
            verdicts[at].1 = Verdict::Ranked(Ranked { group: node.group, pods: node.pods, rank });
        }
    }
    Ranking { verdicts, order, renumbered }
}

fn arrange<'a>(mut eligible: Vec<(Candidate<'a>, Option<u32>)>, options: &Options) -> Vec<Candidate<'a>> {
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
