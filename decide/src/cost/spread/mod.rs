//! Tiers: the part of a value that keeps a workload spread while it shrinks.
//!
//! The pods of a ReplicaSet lie in domains (zones, say), and a pod's *height* is how many pods its domain has when its
//! turn comes. Where the tier of each pod is its height, a scale-down always takes from the fullest domain, so that the
//! skew never exceeds what it was or `maxSkew`; the pods that share a tier are of different domains, and their nodes'
//! ranks decide among them. Within a domain heights follow the ranks, so that the domain's first node empties first. A
//! node without a rank comes after all that have one.
//!
//! **What stands stays if it is sound.** Numbering heights anew for every change would rewrite whole ReplicaSets, so
//! the tiers that stand on pods are tested instead ([`Problem::is_sound`]), and only pods without a tier, or whose
//! place in their domain is wrong, get one that fits, or change theirs with others. A pod that is about to be bound is
//! such a pod.
//!
//! **Where a change cannot be kept to one node's pods.** A pod that is to go *after* others of its domain makes these
//! higher by one. With `maxSkew: 1` the domains have to take turns, so unless it can share a tier with one of them,
//! those that go before it must be raised: pods of that ReplicaSet in that domain on nodes that ought to empty sooner.
//! Likewise when a node moves past another of its zone; where one only comes to have a rank or loses it, two pods that
//! change their tiers are enough. So that not each new pod raises others, one that does not fit
//! in goes on top of its domain, which is sound as well and what Kubernetes would take first too; all that came within
//! the same five to ten minutes ([`Options::settle`](super::Options)) then take their places together. If raising is
//! not enough, as with constraints over two kinds of domain at once, all of the ReplicaSet is numbered anew.
//!
//! **Where no value helps.** Pods that carry somebody else's value of 0 or above, or may have none, go after all of
//! ours. Ours end where taking more would leave those behind with a skew beyond `maxSkew`: from there on Kubernetes
//! chooses as if Belay were not there. And a pod that is not ready goes before all others whatever its value. One that
//! has been down for long is left out of account, since it is gone before the first value counts; one that is
//! starting counts as if it served, so a scale-down within those moments may exceed the skew by the pods that start.

mod fit;
mod plan;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A pod of a ReplicaSet that is to be spread.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    /// Where it lies: the value of each constraint's label on its node, in the order of the constraints.
    pub(super) domains: Vec<Option<&'a str>>,
    /// When its node ought to empty.
    pub(super) place: Place,
    /// What decides between values of one tier: as much of the node's rank as fits, or 0.
    pub(super) low: i32,
    /// It has just come, so it need not have its place among those of its domain yet.
    pub(super) young: bool,
    /// Its tier as it stands.
    pub(super) tier: Option<u32>,
    /// It carries no value of ours and must not, so it goes after all that do.
    pub(super) last: bool,
}

/// When a node ought to empty, compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// It has this rank.
    Ranked(i32),
    /// It has none: others are to empty sooner, or it is not to be emptied. Nodes without a rank are alike, so that one that
    /// comes to be protected costs the pods of others nothing.
    Unranked,
}

impl Place {
    /// The rank, or 0.
    pub(super) fn rank(self) -> i32 {
        match self {
            Self::Ranked(rank) => rank,
            Self::Unranked => 0,
        }
    }
}

/// The pods of a ReplicaSet in numbers.
struct Problem {
    /// `maxSkew` of each constraint, with how many domains it has.
    constraints: Vec<(usize, usize)>,
    /// For each pod its domain in each constraint: by number, those without the label in one domain of their own that
    /// no constraint speaks of.
    domains: Vec<Vec<usize>>,
    /// For each pod its cell: pods of one cell are in the same domain for each constraint.
    cells: Vec<usize>,
    /// How many cells there are.
    cell_count: usize,
    places: Vec<Place>,
    lows: Vec<i32>,
    young: Vec<bool>,
    last: Vec<bool>,
}

/// When a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// By its tier, the higher first, and then by what the value has of its node's rank.
    Tier(Reverse<u32>, i32),
    /// After all that have a tier.
    Last,
}

impl Problem {
    fn of(members: &[Member<'_>], max_skews: &[i32]) -> Self {
        let mut constraints = Vec::new();
        let mut domains = vec![Vec::with_capacity(max_skews.len()); members.len()];
        for (at, max_skew) in max_skews.iter().enumerate() {
            let names = members.iter().filter_map(|member| member.domains[at]);
            let numbers: BTreeMap<&str, usize> = names.map(|name| (name, 0)).collect();
            let numbers: BTreeMap<&str, usize> = numbers.into_keys().zip(0..).collect();
            for (domains, member) in domains.iter_mut().zip(members) {
                domains.push(member.domains[at].map_or(numbers.len(), |name| numbers[name]));
            }
            constraints.push(((*max_skew).max(1) as usize, numbers.len()));
        }
        let mut cells: BTreeMap<&[usize], usize> = BTreeMap::new();
        for domains in &domains {
            let next = cells.len();
            cells.entry(domains).or_insert(next);
        }
        let cell_count = cells.len();
        let cells = domains.iter().map(|domains| cells[&domains[..]]).collect();
        let places = members.iter().map(|member| member.place).collect();
        let lows = members.iter().map(|member| member.low).collect();
        let young = members.iter().map(|member| member.young).collect();
        let last = members.iter().map(|member| member.last).collect();
        Self { constraints, domains, cells, cell_count, places, lows, young, last }
    }

    fn turn(&self, at: usize, tier: Option<u32>) -> Turn {
        tier.map_or(Turn::Last, |tier| Turn::Tier(Reverse(tier), self.lows[at]))
    }

    /// Whether taking the pods in their turns keeps every constraint, whatever decides between pods of one turn: when
    /// a pod leaves its domain with some number of pods, no other domain may have more than that and `maxSkew`. That is
    /// a little more than the skew needs when it is too great already, and means that it then shrinks at once.
    ///
    /// Pods without a turn are left out of account; for those that go last nothing is asked.
    fn is_sound(&self, turns: &[Option<Turn>]) -> bool {
        self.constraints.iter().enumerate().all(|(at, (max_skew, count))| {
            // Each domain's turns by height: the pod that goes last first.
            let mut columns: Vec<Vec<Turn>> = vec![Vec::new(); *count];
            for (domains, turn) in self.domains.iter().zip(turns) {
                if let (Some(column), Some(turn)) = (columns.get_mut(domains[at]), turn) {
                    column.push(*turn);
                }
            }
            for column in &mut columns {
                column.sort_unstable_by(|one, other| other.cmp(one));
            }
            columns.sort_by_key(|column| Reverse(column.len()));
            is_level(&columns, *max_skew)
        })
    }
}

/// [`Problem::is_sound`] for one constraint; the columns are sorted by height, the highest first.
fn is_level(columns: &[Vec<Turn>], max_skew: usize) -> bool {
    let highest = columns.first().map_or(0, Vec::len);
    (0..highest).all(|height| {
        // The pods of other columns that must have gone before one at this height goes: the latest of them, and the
        // latest of any other column, for the column that it is of.
        let mut latest: Option<(usize, Turn)> = None;
        let mut second: Option<Turn> = None;
        for (at, column) in columns.iter().enumerate() {
            let Some(turn) = column.get(height + max_skew).copied() else { break };
            match latest {
                Some((_, found)) if turn <= found => second = second.max(Some(turn)),
                _ => second = latest.replace((at, turn)).map(|found| found.1),
            }
        }
        columns.iter().enumerate().take_while(|(_, column)| column.len() > height).all(|(at, column)| {
            let own = column[height];
            let others =
                if latest.is_some_and(|(found, _)| found == at) { second } else { latest.map(|found| found.1) };
            own == Turn::Last || others.is_none_or(|turn| turn < own)
        })
    })
}

/// The tier of each pod; absent for one that goes last. `highest` is the highest tier that may be used while what
/// stands is kept.
///
/// Where nothing else decides, the first of `members` go first: callers put the youngest there, as Kubernetes does,
/// which also lets a pod that comes go on top of its domain without moving others. The first of the constraints is the
/// one whose domains are kept level first.
pub(super) fn tiers(members: &[Member<'_>], max_skews: &[i32], highest: u32) -> Vec<Option<u32>> {
    let problem = Problem::of(members, max_skews);
    let standing: Vec<Option<u32>> = members.iter().map(|member| member.tier).collect();
    // What may have no value decides how far the values of the others reach, which is only ever found out anew.
    let kept = if problem.last.contains(&true) { None } else { fit::keep(&problem, &standing, highest) };
    kept.map_or_else(|| plan::anew(&problem), |tiers| tiers.into_iter().map(Some).collect())
}
