//! A cluster as it is watched: what changed is taken in piece by piece, and only what that concerns is decided anew.
//!
//! [`pass()`](super::pass()) decides everything at once; this comes to the same, for the price of what changed. A node
//! whose pods changed gets a new [`Occupancy`]; where that or a node differs, the nodes are [ranked](rank); and the
//! ReplicaSets with pods on nodes whose rank changed, or whose own pods changed, get new [values](desired). What
//! depends on the time (nodes and pods that settle, budgets that stay used up, holds that run out) is looked at once in
//! each [`settle`](super::Options), all at the same moment, so that one look is enough.
//!
//! It is plain state: it knows no clock and asks nobody. Each process keeps one and comes to the same numbers.

mod asked;
mod budgets;
mod look;
mod pods;
mod rivals;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

pub use budgets::{Budget, Selects};
pub use look::{Look, Looking, Ranked};
pub use pods::{KnownPod, Labels};
pub use rivals::{Scope, Stance};

use super::nodes::Nodes;
use super::ranking::{Freed, Occupancies, Ranking};
use super::values::Ground;
use super::view::{CostPod, Keep, NodeFacts, Options, SetView};
use pods::{Kept, Pods};
use rivals::Rivals;

/// How long a bind that was answered is believed before the pod is seen bound: the watch brings it within milliseconds,
/// and one that failed is tried again by the scheduler.
const BIND_SEEN_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// A pod by namespace and name.
pub type PodName = (Arc<str>, Arc<str>);

/// What Karpenter says of a node, in its NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// `metadata.name` of the NodeClaim.
    pub name: Arc<str>,
    /// `status.nodeName`.
    pub node: Option<Arc<str>>,
    /// It has a deletion timestamp.
    pub leaving: bool,
    /// Condition `Drifted`.
    pub drifted: bool,
}

/// A ReplicaSet, and what it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownSet {
    /// What is decided on.
    pub set: SetView,
    /// UID of its Deployment.
    pub deployment: Option<Box<str>>,
}

/// A pod that was answered to be bound, and is not seen so yet.
#[derive(Clone, Debug)]
struct Assumed {
    /// As it will be.
    pod: CostPod,
    at: Timestamp,
}

impl Assumed {
    fn is_believed(&self, now: Timestamp) -> bool {
        // Another thread's time may be a moment ahead. One that is far ahead is of a clock that was set back.
        now.duration_since(self.at).abs() < BIND_SEEN_WITHIN
    }
}

/// The cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    options: Options,
    /// How long Belay stands down for another controller, the first time.
    stand_down: SignedDuration,
    pods: Pods,
    sets: HashMap<Arc<str>, KnownSet>,
    /// UIDs of ReplicaSets by that of their Deployment.
    sets_of: HashMap<Box<str>, BTreeSet<Arc<str>>>,
    /// As they are told, without what is known of them from elsewhere.
    told: HashMap<Arc<str>, NodeFacts>,
    /// With all that.
    nodes: Nodes,
    claims: HashMap<Arc<str>, Claim>,
    /// NodeClaims by the name of their node: of one name there may be a node that goes and the next.
    claims_of: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// NodePools that are never consolidated.
    still_pools: BTreeSet<Box<str>>,
    budgets: budgets::Budgets,
    rivals: Rivals,
    stances: Vec<Stance>,
    assumed: HashMap<Arc<str>, Assumed>,
    occupancies: Occupancies,
    ranking: Ranking,
    freed: Freed,
    dirty: Dirty,
    /// In which `settle` the last look was.
    looked_in: Option<i64>,
    /// Only ranks are asked for.
    only_ranks: bool,
}

/// What changed since the last look.
#[derive(Clone, Debug, Default)]
struct Dirty {
    /// Nodes whose pods changed.
    occupied: HashSet<Arc<str>>,
    /// A node came, went or changed.
    nodes: bool,
    sets: HashSet<Arc<str>>,
    /// Pods to be looked at whatever their value, and those without a ReplicaSet.
    pods: BTreeSet<PodName>,
}

impl Cluster {
    /// An empty cluster. `stand_down` is how long another controller is left alone the first time.
    pub fn new(options: Options, stand_down: SignedDuration) -> Self {
        Self {
            options,
            stand_down,
            pods: Pods::default(),
            sets: HashMap::new(),
            sets_of: HashMap::new(),
            told: HashMap::new(),
            nodes: Nodes::new(),
            claims: HashMap::new(),
            claims_of: HashMap::new(),
            still_pools: BTreeSet::new(),
            budgets: budgets::Budgets::default(),
            rivals: Rivals::default(),
            stances: Vec::new(),
            assumed: HashMap::new(),
            occupancies: Occupancies::new(),
            ranking: Ranking::default(),
            freed: Freed::new(),
            dirty: Dirty::default(),
            looked_in: None,
            only_ranks: false,
        }
    }

    /// The same, that decides no values but those at a bind.
    #[must_use]
    pub fn only_ranks(self) -> Self {
        Self { only_ranks: true, ..self }
    }

    /// Puts together what is known of a node.
    fn compose(&mut self, name: &str) {
        let facts = self.told.get(name).map(|told| {
            let names = self.claims_of.get(name).into_iter().flatten();
            let claims: Vec<&Claim> = names.filter_map(|claim| self.claims.get(claim)).collect();
            let is_still = told.pool.as_ref().is_some_and(|pool| self.still_pools.contains(pool));
            NodeFacts {
                leaving: told.leaving || claims.iter().any(|claim| claim.leaving),
                drifted: told.drifted || claims.iter().any(|claim| claim.drifted),
                keep: told.keep.or(is_still.then_some(Keep::ConsolidationOff)),
                stood_down: self.rivals.has(&Scope::Node(name.into())),
                ..told.clone()
            }
        });
        if self.nodes.get(name) == facts.as_ref() {
            return;
        }
        match facts {
            Some(facts) => drop(self.nodes.insert(name.into(), facts)),
            None => drop(self.nodes.remove(name)),
        }
        self.dirty.nodes = true;
        self.dirty.sets.extend(self.pods.on(name).filter_map(|kept| kept.known.pod.set.clone()));
    }

    /// When to look again though nothing changes.
    pub fn next_look(&self, now: Timestamp) -> Timestamp {
        let settle = self.settle_seconds();
        let next = now.as_second() - now.as_second().rem_euclid(settle) + settle;
        let next = Timestamp::from_second(next).unwrap_or(Timestamp::MAX);
        self.rivals.next().map_or(next, |rivals| rivals.min(next))
    }

    fn settle_seconds(&self) -> i64 {
        self.options.settle.as_secs().max(1)
    }

    fn ground(&self, now: Timestamp) -> Ground<'_> {
        Ground { nodes: &self.nodes, ranking: &self.ranking, options: &self.options, now }
    }
}

fn name_of(kept: &Kept) -> PodName {
    let pod = &kept.known.pod;
    (pod.namespace.clone(), pod.name.clone())
}

impl Dirty {
    fn touch(&mut self, pod: &CostPod) {
        self.occupied.extend(pod.node.clone());
        self.sets.extend(pod.set.clone());
    }
}
