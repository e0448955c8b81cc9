//! The values of the pods of one ReplicaSet.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::code::{self, Code};
use super::nodes::Nodes;
use super::ranking::{Ranking, Verdict};
use super::spread::{self, Member, Place};
use super::view::{Constraint, CostPod, LOWEST_PRIORITY, NodeFacts, Options, SetView, Standing};
use super::{BOUND, VICTIM};

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
    /// It has one pod, or none, and is to have no more: there is nothing to choose.
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
    if set.replicas < 2 && active(pods) < 2 {
        return Some(Withheld::SinglePod);
    }
    if set.stood_down {
        return Some(Withheld::StoodDown);
    }
    // A victim of the Scale handover goes before its siblings whatever they carry.
    let is_victim = |pod: &CostPod| pod.standing == Standing::OtherPart(VICTIM);
    let steers = |pod: &CostPod| !pod.standing.is_open() && pod.standing.effective() < 0 && !is_victim(pod);
    let steering = pods.iter().filter(|pod| pod.is_active() && steers(pod));
    steering.map(|pod| &*pod.name).min().map(|pod| Withheld::Steered { pod: pod.into() })
}

fn active(pods: &[&CostPod]) -> usize {
    pods.iter().filter(|pod| pod.is_active()).count()
}

/// Pods of it are about to be deleted, by the values that they carry now.
fn is_shrinking(set: &SetView, pods: &[&CostPod]) -> bool {
    usize::try_from(set.replicas).unwrap_or(0) < active(pods)
}

/// The value that each pod of a ReplicaSet ought to carry, in the order of `pods`, which are all of its pods in any
/// order. Absent is to carry none. A pod that is not active keeps what it has, and what is said of a pod that carries
/// somebody else's value is to be taken as [`crate::ownership::reconcile`] takes it: it stays theirs.
///
/// While the ReplicaSet shrinks no value is taken off: of those that go it would be in vain, and of the others there
/// may be no need any more after that.
pub fn desired(set: &SetView, pods: &[&CostPod], ground: &Ground<'_>) -> Vec<Option<i32>> {
    // Of pods that are about to be one or none no other gets a value either.
    let nothing = set.replicas < 2 || withheld(set, pods).is_some();
    let sites: Vec<Site<'_>> = pods.iter().map(|pod| Site::of(pod, ground)).collect();
    let mut values: Vec<_> = sites
        .iter()
        .map(|site| match site.place {
            _ if !site.pod.is_active() => site.pod.standing.written(),
            Some(Place::Ranked(rank)) if site.may_be_steered && !nothing => Some(rank),
            _ => None,
        })
        .collect();
    let levels = if nothing { Vec::new() } else { levels(set, &sites, ground.options) };
    if !levels.is_empty() {
        spread_out(&sites, &levels, ground, &mut values);
    }
    if is_shrinking(set, pods) {
        for (site, value) in sites.iter().zip(&mut values) {
            *value = value.or_else(|| site.harmless());
        }
    }
    values
}

/// The value that a pod ought to carry once it is bound to a node, for the bind's own write. `pods` are those of its
/// ReplicaSet, with or without it. Absent is to write none: also over somebody else's.
pub fn at_bind(set: &SetView, pods: &[&CostPod], pod: &CostPod, node: &str, ground: &Ground<'_>) -> Option<i32> {
    if !matches!(pod.standing, Standing::Absent) {
        return None;
    }
    let bound = pod.bound_to(node, ground.now);
    let mut pods: Vec<&CostPod> = pods.iter().copied().filter(|other| other.uid != pod.uid).collect();
    pods.push(&bound);
    desired(set, &pods, ground).pop()?
}

/// A pod where it is.
struct Site<'a> {
    pod: &'a CostPod,
    /// Its node; absent also for one that is not known.
    node: Option<&'a NodeFacts>,
    /// When its node ought to empty; absent where it has none.
    place: Option<Place>,
    /// Belay may write a value on it, and Karpenter counts it whatever that value is.
    may_be_steered: bool,
}

impl<'a> Site<'a> {
    fn of(pod: &'a CostPod, ground: &Ground<'a>) -> Self {
        let name = pod.node.as_deref();
        let node = name.and_then(|name| ground.nodes.get(name));
        let place = name.map(|name| match ground.ranking.verdict(name) {
            Some(Verdict::Ranked(ranked)) => Place::Ranked(ranked.rank),
            Some(Verdict::Protected(_) | Verdict::Waiting { .. }) | None => Place::Unranked,
        });
        let stood_down = node.is_some_and(|node| node.stood_down);
        let may_be_steered = pod.standing.is_open() && pod.priority >= LOWEST_PRIORITY && !stood_down;
        Self { pod, node, place, may_be_steered }
    }

    /// The value of ours that the pod carries, if it may stay for the time being.
    fn harmless(&self) -> Option<i32> {
        let is_sound = |value: &i32| self.pod.priority >= LOWEST_PRIORITY && (-BOUND..0).contains(value);
        match self.pod.standing {
            Standing::Ours(value) if self.pod.is_active() && self.place.is_some() => Some(value).filter(is_sound),
            _ => None,
        }
    }

    fn domain(&self, key: &str) -> Option<&'a str> {
        self.node?.topology.get(key).map(|value| &**value)
    }
}

/// The constraints that removals have to keep, of those whose domains the nodes of the pods know; those over single
/// nodes last, as the others are to be level first.
///
/// One that is only wished for (`ScheduleAnyway`) is kept like a hard one, unless its domains are nodes: to keep nodes
/// level is never to empty one, and the workload allows that.
fn levels<'a>(set: &'a SetView, sites: &[Site<'_>], options: &Options) -> Vec<(&'a str, i32)> {
    let usable = |constraint: &&Constraint| constraint.hard || *constraint.key != *HOSTNAME;
    let constraints = set.constraints.iter().filter(usable);
    let mut levels: Vec<(&str, i32)> = constraints.map(|constraint| (&*constraint.key, constraint.max_skew)).collect();
    if levels.is_empty() && options.span_zones {
        levels.push((ZONE, 1));
    }
    levels.sort_by_key(|(key, max_skew)| (*key == HOSTNAME, *key, *max_skew));
    levels.retain(|(key, _)| sites.iter().any(|site| site.domain(key).is_some()));
    levels
}

/// Over which topology keys removals keep a ReplicaSet level, the first before the others, and how far apart their
/// domains may be. `pods` are its pods, in any order.
pub fn spread_over<'a>(set: &'a SetView, pods: &[&CostPod], ground: &Ground<'_>) -> Vec<(&'a str, i32)> {
    let sites: Vec<Site<'_>> = pods.iter().map(|pod| Site::of(pod, ground)).collect();
    levels(set, &sites, ground.options)
}

/// Puts tiers into values.
fn spread_out(sites: &[Site<'_>], levels: &[(&str, i32)], ground: &Ground<'_>, values: &mut [Option<i32>]) {
    let (options, now) = (ground.options, ground.now);
    let active = sites.iter().enumerate().filter(|(_, site)| site.pod.is_active());
    // Pods without a node go first whatever their value.
    let bound = active.filter_map(|(at, site)| site.place.map(|place| (at, site, place)));
    let (down, mut planned): (Vec<_>, Vec<_>) = bound.partition(|(_, site, _)| site.pod.is_down(options, now));
    // Kubernetes' own preference decides between equals, the youngest first, and then what is the same every time.
    planned.sort_by_key(|(_, site, _)| (Reverse(site.pod.created), &site.pod.uid));
    let domains: Vec<Vec<Option<&str>>> =
        planned.iter().map(|(_, site, _)| levels.iter().map(|(key, _)| site.domain(key)).collect()).collect();

    let standing = |site: &Site<'_>| site.pod.standing.written();
    let tall = planned.iter().filter(|(_, site, _)| standing(site).is_some_and(code::is_tall)).count();
    let code = Code::of(highest_pile(&domains), tall * 2 > planned.len());
    let tier = |site: &Site<'_>| standing(site).and_then(|value| code.tier(value));
    let members: Vec<Member<'_>> = planned
        .iter()
        .zip(domains)
        .map(|((_, site, place), domains)| Member {
            domains,
            place: *place,
            low: code.low(place.rank()),
            young: site.pod.is_young(options, now),
            tier: tier(site),
            last: !site.may_be_steered,
        })
        .collect();
    let max_skews: Vec<_> = levels.iter().map(|(_, max_skew)| *max_skew).collect();
    let tiers = spread::tiers(&members, &max_skews, code.highest());

    // A pod that is down keeps its tier for when it serves again, and its value says where its node stands.
    let down_tiers: Vec<_> = down.iter().map(|(_, site, _)| tier(site)).collect();
    // Where only the order itself keeps all constraints there are more tiers than heights.
    let top = tiers.iter().flatten().copied().max().unwrap_or(0);
    let code = if top > code.highest() { Code::Tall } else { code };
    for ((at, site, place), tier) in planned.into_iter().zip(tiers).chain(down.into_iter().zip(down_tiers)) {
        values[at] = tier.filter(|_| site.may_be_steered).map(|tier| code.encode(tier, place.rank()));
    }
}

/// How many pods lie in the fullest domain of the first constraint.
fn highest_pile(domains: &[Vec<Option<&str>>]) -> u32 {
    let mut first: Vec<Option<&str>> = domains.iter().map(|domains| domains.first().copied().flatten()).collect();
    first.sort_unstable();
    first.chunk_by(PartialEq::eq).map(|pile| pile.len() as u32).max().unwrap_or(0)
}
