//! Which nodes ought to empty, and how soon.

use jiff::Timestamp;

use super::code;
use super::view::{CostPod, Keep, NodeFacts, Options, PodHold};
use crate::doom;

/// How soon a node ought to empty: the first group first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// It is being removed: cordoned, tainted for removal or deleted.
    Draining,
    /// It is of an old shape and will be replaced.
    Drifted,
    /// Any other node.
    Normal,
}

impl Group {
    /// The word for metrics and people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draining => "Draining",
            Self::Drifted => "Drifted",
            Self::Normal => "Normal",
        }
    }
}

/// Why a node gets no rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protection {
    /// The node says so.
    Node(Keep),
    /// It belongs to none of the pools that are ranked.
    OtherPool,
    /// Another controller writes deletion costs there.
    StoodDown,
    /// A pod on it must stay.
    Pod {
        /// `namespace/name`.
        pod: Box<str>,
        /// Why.
        hold: PodHold,
    },
    /// The last pod on it that had to stay has just gone. Where such pods come and go, as jobs do, values would as well.
    JustFreed,
    /// The PodDisruptionBudgets of a pod on it let it not be evicted.
    Budget {
        /// `namespace/name`.
        pod: Box<str>,
    },
}

/// What the pods of one node mean for it. To be made anew when one of them changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// How many would have to run elsewhere.
    pub(super) pods: u32,
    /// The first pod by name that must stay.
    hold: Option<(Box<str>, PodHold)>,
    /// The pod that has been blocked by its budgets for the longest time.
    blocked: Option<(Timestamp, Box<str>)>,
    /// The ranks that values of ours on its pods name, and how many name each, in ascending order.
    votes: Vec<(i32, u32)>,
}

impl Occupancy {
    /// Sums up the pods of one node, in any order.
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a CostPod>) -> Self {
        let mut occupancy = Self::default();
        for pod in pods.into_iter().filter(|pod| pod.is_active()) {
            occupancy.pods += u32::from(pod.movable);
            let name = || format!("{}/{}", pod.namespace, pod.name).into_boxed_str();
            if let Some(hold) = pod.hold {
                occupancy.hold = occupancy.hold.take().into_iter().chain([(name(), hold)]).min();
            }
            if let Some(since) = pod.blocked_since {
                occupancy.blocked = occupancy.blocked.take().into_iter().chain([(since, name())]).min();
            }
            if let Some(rank) = pod.standing.written().and_then(code::rank_of) {
                match occupancy.votes.binary_search_by_key(&rank, |vote| vote.0) {
                    Ok(at) => occupancy.votes[at].1 += 1,
                    Err(at) => occupancy.votes.insert(at, (rank, 1)),
                }
            }
        }
        occupancy
    }

    /// A pod must stay.
    pub(super) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// The rank that the node has, and how many values of ours on its pods say so. While its values are being written
    /// some still say the old one: then it has that of the most, of as many the highest.
    pub(super) fn standing_rank(&self) -> Option<(i32, u32)> {
        self.votes.iter().copied().max_by_key(|(_, count)| *count)
    }
}

/// It was not long ago that the last pod that had to stay left a node. A time that is far ahead is of a clock that was set
/// back.
pub(super) fn is_lately_freed(freed: Timestamp, options: &Options, now: Timestamp) -> bool {
    options.is_recent(freed, now) && freed.duration_since(now) < options.settle
}

/// The group of a node, or why it has none. Protection is decided first: a node that is to stay must not get the lowest
/// rank of all for being cordoned as well.
///
/// A budget that is used up protects a node at once from getting a rank, but takes a rank away only after a while: each
/// rolling update uses budgets up for some moments, and values must not come and go with it. A pod that must stay takes
/// the rank away at once, since the node cannot empty; after it went (`freed`) the node waits for a while.
pub(super) fn group(
    facts: &NodeFacts,
    occupancy: &Occupancy,
    is_ranked: bool,
    freed: Option<Timestamp>,
    options: &Options,
    now: Timestamp,
) -> Result<Group, Protection> {
    if facts.stood_down {
        return Err(Protection::StoodDown);
    }
    if let Some(pools) = &options.pools
        && !facts.pool.as_ref().is_some_and(|pool| pools.contains(pool))
    {
        return Err(Protection::OtherPool);
    }
    let group = if facts.leaving || doom::reason(&facts.node).is_some() {
        Group::Draining
    } else if facts.drifted {
        Group::Drifted
    } else {
        Group::Normal
    };
    match facts.keep {
        None => {}
        // Consolidation alone is switched off.
        Some(Keep::ConsolidationOff) if group != Group::Normal => {}
        Some(keep) => return Err(Protection::Node(keep)),
    }
    if let Some((pod, hold)) = &occupancy.hold {
        return Err(Protection::Pod { pod: pod.clone(), hold: *hold });
    }
    if freed.is_some_and(|freed| is_lately_freed(freed, options, now)) {
        return Err(Protection::JustFreed);
    }
    if let Some((since, pod)) = &occupancy.blocked
        && (!is_ranked || now.duration_since(*since) >= options.settle)
    {
        return Err(Protection::Budget { pod: pod.clone() });
    }
    Ok(group)
}
