//! The values of the pods of one ReplicaSet.

use jiff::Timestamp;

use super::code::{self, Code};
use super::ranking::{Nodes, Ranking, Verdict};
use super::spread::{self, Member, Place};
use super::view::{Constraint, CostPod, LOWEST_PRIORITY, NodeFacts, Options, SetView, Standing};

/// The node label that says the zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The node label whose domains are single nodes.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// What values are decided on.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// All nodes.
    pub nodes: &'a Nodes,
    /// Their ranks.
    pub ranking: &'a Ranking,
    /// The settings.
    pub options: &'a Options,
    /// The time.
    pub now: Timestamp,
}

/// Why no pod of a ReplicaSet gets a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// It has one pod, or none: there is nothing to choose.
    SinglePod,
    /// Another controller writes deletion costs there.
    StoodDown,
    /// A pod of it carries somebody else's value below 0, to go before all those that say nothing. Ours on its siblings
    /// would turn that round.
    Steered {
        /// The pod, the first by name.
        pod: Box<str>,
    },
}

/// Why no pod of a ReplicaSet gets a value; absent where they may. `pods` are its pods, in any order.
pub fn withheld(set: &SetView, pods: &[&CostPod]) -> Option<Withheld> {
    if set.replicas < 2 {
        return Some(Withheld::SinglePod);
    }
    if set.stood_down {
        return Some(Withheld::StoodDown);
    }
    let steers = |pod: &CostPod| matches!(pod.standing, Standing::Theirs { value, .. } if value < 0);
    let steering = pods.iter().filter(|pod| pod.is_active() && steers(pod));
    steering.map(|pod| pod.name.clone()).min().map(|pod| Withheld::Steered { pod })
}

/// The value that each pod of a ReplicaSet ought to carry, in the order of `pods`, which are all of its pods in any
/// order. Absent is to carry none. A pod that is not active keeps what it has, and what is said of a pod that carries
/// somebody else's value is to be taken as [`crate::ownership::reconcile`] takes it: it stays theirs.
pub fn desired(set: &SetView, pods: &[&CostPod], ground: &Ground<'_>) -> Vec<Option<i32>> {
    let nothing = withheld(set, pods).is_some();
    let levels = if nothing { Vec::new() } else { levels(set, pods, ground) };
    let mut values: Vec<_> = pods
        .iter()
        .map(|pod| match (pod.is_active(), is_ours_to_steer(pod, ground)) {
            (false, _) => pod.standing.written(),
            (true, true) if !nothing => pod.node.as_deref().and_then(|node| ground.ranking.rank_of(node)),
            (true, _) => None,
        })
        .collect();
    if !levels.is_empty() {
        spread_out(pods, &levels, ground, &mut values);
    }
    values
}

/// The value that a pod ought to carry once it is bound to a node, for the bind's own write. `pods` are those of its
/// ReplicaSet, with or without it. Absent is to write none: also over somebody else's.
pub fn at_bind(set: &SetView, pods: &[&CostPod], pod: &CostPod, node: &str, ground: &Ground<'_>) -> Option<i32> {
    if !matches!(pod.standing, Standing::Absent) {
        return None;
    }
    let bound = CostPod { node: Some(node.into()), ..pod.clone() };
    let mut pods: Vec<&CostPod> = pods.iter().copied().filter(|other| other.uid != pod.uid).collect();
    pods.push(&bound);
    desired(set, &pods, ground).pop()?
}

/// Belay may write a value on the pod, and Karpenter counts it whatever that value is.
fn is_ours_to_steer(pod: &CostPod, ground: &Ground<'_>) -> bool {
    let stood_down = |node: &str| ground.nodes.get(node).is_some_and(|node| node.stood_down);
    pod.standing.is_open() && pod.priority >= LOWEST_PRIORITY && !pod.node.as_deref().is_some_and(stood_down)
}

/// The constraints that removals have to keep, one for each kind of domain that the nodes of the pods know; the one over
/// single nodes last, as the others are to be level first.
///
/// One that is only wished for (`ScheduleAnyway`) is kept like a hard one, unless its domains are nodes: to keep nodes
/// level is never to empty one, and the workload allows that.
fn levels<'a>(set: &'a SetView, pods: &[&CostPod], ground: &Ground<'_>) -> Vec<(&'a str, i32)> {
    let usable = |constraint: &&Constraint| constraint.hard || *constraint.key != *HOSTNAME;
    let constraints = set.constraints.iter().filter(usable);
    let mut levels: Vec<(&str, i32)> = constraints.map(|constraint| (&*constraint.key, constraint.max_skew)).collect();
    if levels.is_empty() && ground.options.span_zones {
        levels.push((ZONE, 1));
    }
    levels.sort_by_key(|(key, max_skew)| (*key == HOSTNAME, *key, *max_skew));
    levels.dedup_by_key(|(key, _)| *key);
    let node = |pod: &CostPod| ground.nodes.get(pod.node.as_deref()?);
    levels.retain(|(key, _)| pods.iter().any(|pod| node(pod).is_some_and(|node| node.topology.contains_key(*key))));
    levels
}

/// Puts tiers into values.
fn spread_out(pods: &[&CostPod], levels: &[(&str, i32)], ground: &Ground<'_>, values: &mut [Option<i32>]) {
    // Pods without a node go first whatever their value.
    let bound = |at: &usize| pods[*at].is_active() && pods[*at].node.is_some();
    let (down, mut planned): (Vec<usize>, Vec<usize>) =
        (0..pods.len()).filter(bound).partition(|&at| pods[at].is_down(ground.options, ground.now));
    // Kubernetes' own preference decides between equals, the youngest first, and then what is the same every time.
    planned.sort_by(|&one, &other| {
        let key = |at: usize| (std::cmp::Reverse(pods[at].created), &pods[at].uid);
        key(one).cmp(&key(other))
    });
    let node = |at: usize| -> Option<&NodeFacts> { ground.nodes.get(pods[at].node.as_deref()?) };
    let domains = |at: usize| -> Vec<Option<&str>> {
        levels.iter().map(|(key, _)| node(at)?.topology.get(*key).map(|value| &**value)).collect()
    };
    let standing = |at: usize| pods[at].standing.written();
    let tall = planned.iter().filter(|&&at| standing(at).is_some_and(code::is_tall)).count();
    let code = Code::of(highest_pile(planned.iter().map(|&at| domains(at))), tall * 2 > planned.len());
    let steered: Vec<_> = pods.iter().map(|pod| is_ours_to_steer(pod, ground)).collect();
    let members: Vec<Member<'_>> = planned
        .iter()
        .map(|&at| {
            let place = pods[at].node.as_deref().map_or(Place::Waiting, |node| place(ground.ranking, node));
            let rank = rank_of(place);
            let tier = standing(at).and_then(|value| code.tier(value));
            let young = pods[at].is_young(ground.options, ground.now);
            Member { domains: domains(at), place, low: code.low(rank), young, tier, last: !steered[at] }
        })
        .collect();
    let max_skews: Vec<_> = levels.iter().map(|(_, max_skew)| *max_skew).collect();
    let tiers = spread::tiers(&members, &max_skews, code.highest());
    // Where only the order itself keeps all constraints there are more tiers than heights.
    let top = tiers.iter().flatten().copied().max().unwrap_or(0);
    let code = if top > code.highest() { Code::Tall } else { code };
    for ((&at, member), tier) in planned.iter().zip(&members).zip(tiers) {
        values[at] = tier.filter(|_| steered[at]).map(|tier| code.encode(tier, rank_of(member.place)));
    }
    // It keeps its tier for when it serves again, and its value says where its node stands.
    for at in down {
        let tier = standing(at).and_then(|value| code.tier(value));
        let place = pods[at].node.as_deref().map_or(Place::Waiting, |node| place(ground.ranking, node));
        values[at] = tier.filter(|_| steered[at]).map(|tier| code.encode(tier, rank_of(place)));
    }
}

fn place(ranking: &Ranking, node: &str) -> Place {
    match ranking.verdict(node) {
        Some(Verdict::Ranked(ranked)) => Place::Ranked(ranked.rank),
        Some(Verdict::Protected(_)) => Place::Protected,
        Some(Verdict::Waiting { .. }) | None => Place::Waiting,
    }
}

fn rank_of(place: Place) -> i32 {
    match place {
        Place::Ranked(rank) => rank,
        Place::Waiting | Place::Protected => 0,
    }
}

/// How many pods lie in the fullest domain of the first constraint.
fn highest_pile<'a>(domains: impl Iterator<Item = Vec<Option<&'a str>>>) -> u32 {
    let mut first: Vec<Option<&str>> = domains.map(|domains| domains.first().copied().flatten()).collect();
    first.sort_unstable();
    first.chunk_by(PartialEq::eq).map(|pile| pile.len() as u32).max().unwrap_or(0)
}
