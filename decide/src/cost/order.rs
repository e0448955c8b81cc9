//! Which nodes are ranked, and in which order, so that both stay as they are unless there is a reason.
//!
//! The order is: group, number of pods, name. Two kinds of hysteresis keep it calm, since a scale-down changes the very
//! numbers that it follows:
//!
//! - **A ranked node stays ranked** until it is empty or may not be ranked any more. A place that becomes free is given
//!   away at once only to a node that is clearly emptier than the fullest of those ranked, or that is going anyway; the
//!   others wait until a fifth of the places is free. So one node's change is not two nodes' writes. Only a node that
//!   is clearly fuller than one without a place loses its own. Where there are places for all nobody waits.
//! - **A ranked node keeps its place** as long as it is not clearly fuller than one behind it. Of those that are out of
//!   place as few as possible move, and of as many the ones with fewer pods.
//!
//! *Clearly* means that the numbers of pods differ by more than both tolerances together ([`tolerance`]).
//!
//! A node that has just come is filling, so its number of pods says nothing yet: it goes to the end of its group, and
//! when it has settled to where it belongs. That costs the writes of a node with few pods, or none.

use super::group::Group;

/// Of how many places one must be free before just any node gets one.
const RESERVE: usize = 5;

/// A node that may be ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The place of its name among those of all nodes: it stands for the name, of which thousands would be compared.
    pub(super) name: u32,
    pub(super) group: Group,
    /// How many pods would have to run elsewhere.
    pub(super) pods: u32,
    /// It has just come.
    pub(super) young: bool,
    /// The rank that it has.
    pub(super) rank: Option<i32>,
}

/// By how many pods a number may be off without consequence: one, and one in eight.
fn tolerance(pods: u32) -> u32 {
    1 + pods / 8
}

/// A place in the order, exactly.
type Key = (Group, bool, u32, u32);

impl Candidate {
    fn key(&self) -> Key {
        (self.group, self.young, if self.young { 0 } else { self.pods }, self.name)
    }

    /// The least that counts as its number of pods. It grows with that number, as does [`Self::most`].
    fn least(&self) -> (Group, u32) {
        (self.group, if self.young { 0 } else { self.pods.saturating_sub(tolerance(self.pods)) })
    }

    fn most(&self) -> (Group, u32) {
        (self.group, if self.young { u32::MAX } else { self.pods.saturating_add(tolerance(self.pods)) })
    }

    /// It ought to empty clearly sooner than the other.
    fn is_clearly_before(&self, other: &Self) -> bool {
        self.most() < other.least()
    }
}

/// Those that get one of `places`, the ranked ones first and in the order of their ranks.
pub(super) fn choose(candidates: &[Candidate], places: usize) -> Vec<Candidate> {
    let (loaded, empty): (Vec<_>, Vec<_>) = candidates.iter().copied().partition(|node| node.pods > 0);
    let room_for_all = loaded.len() <= places;
    let (mut chosen, mut others): (Vec<_>, Vec<_>) = loaded.into_iter().partition(|node| node.rank.is_some());
    chosen.sort_unstable_by_key(Candidate::key);
    chosen.truncate(places);
    // No more than that can get one.
    if places < others.len() {
        others.select_nth_unstable_by_key(places, Candidate::key);
        others.truncate(places);
    }
    others.sort_unstable_by_key(Candidate::key);
    let anyone = room_for_all || places - chosen.len() > places / RESERVE;
    for node in others {
        let fullest = chosen.last();
        let clearly = fullest.is_some_and(|fullest| node.is_clearly_before(fullest));
        if chosen.len() < places {
            if !(anyone || node.group < Group::Normal || clearly) {
                continue;
            }
        } else if clearly {
            chosen.pop();
        } else {
            continue;
        }
        let at = chosen.partition_point(|other| other.key() < node.key());
        chosen.insert(at, node);
    }
    // An empty node costs no write, and what lands there gets its value as it does.
    let mut empty = empty;
    empty.sort_unstable_by_key(|node| (node.rank.is_none(), node.key()));
    empty.truncate(places - chosen.len());
    chosen.extend(empty);
    chosen.sort_unstable_by_key(|node| (node.rank.is_none(), node.rank, node.key()));
    chosen
}

/// Puts the chosen nodes in order. One that moves, or is new, has no rank in the answer.
pub(super) fn arrange(chosen: &[Candidate]) -> Vec<Candidate> {
    let ranked = chosen.partition_point(|node| node.rank.is_some());
    let stays = staying(&chosen[..ranked]);
    let mut kept = Vec::with_capacity(chosen.len());
    let mut moving = Vec::new();
    for (at, node) in chosen.iter().enumerate() {
        if stays.get(at) == Some(&true) {
            kept.push(*node);
        } else {
            moving.push(Candidate { rank: None, ..*node });
        }
    }
    moving.sort_unstable_by_key(Candidate::key);
    // Behind as many as are smaller: among nodes that are only roughly in order this is a place that is not clearly
    // wrong, so the next look leaves it there. Young ones say nothing about where that is.
    let mut settled: Vec<Key> = kept.iter().filter(|node| !node.young).map(Candidate::key).collect();
    settled.sort_unstable();
    let mut arranged = Vec::with_capacity(chosen.len());
    let mut kept = kept.into_iter().peekable();
    let mut passed = 0;
    for node in moving {
        let smaller = settled.partition_point(|key| *key < node.key());
        let is_behind = |next: &Candidate, passed: usize| {
            next.group < node.group || next.group == node.group && (node.young || passed < smaller)
        };
        while let Some(next) = kept.next_if(|next| is_behind(next, passed)) {
            passed += usize::from(!next.young);
            arranged.push(next);
        }
        arranged.push(node);
    }
    arranged.extend(kept);
    arranged
}

/// Which of the nodes, given in their present order, keep their places: the heaviest choice in which none is clearly
/// fuller than one behind it, where a node weighs one and then its pods.
///
/// A choice is sound where each node's `most` reaches the highest `least` before it. So the best weight is kept for
/// each such highest `least`, and every node either is left out, or adds to those that it reaches.
fn staying(ranked: &[Candidate]) -> Vec<bool> {
    let mut levels: Vec<_> = ranked.iter().map(Candidate::least).collect();
    levels.sort_unstable();
    levels.dedup();
    // `best[level + 1]`, and `best[0]` where nothing was chosen; absent where nothing has come to that level.
    let mut best: Vec<Option<u64>> = vec![None; levels.len() + 1];
    best[0] = Some(0);
    let mut raised_from = Vec::with_capacity(ranked.len());
    let bounds = |node: &Candidate| {
        let own = levels.partition_point(|level| *level < node.least()) + 1;
        let reached = levels.partition_point(|level| *level <= node.most());
        (own, reached)
    };
    for node in ranked {
        let weight = (1 << 32) + u64::from(node.pods);
        let (own, reached) = bounds(node);
        let (from, heaviest) = heaviest(&best[..=own]);
        best[own] = Some(heaviest + weight);
        raised_from.push(from);
        for level in best[own + 1..=reached].iter_mut().flatten() {
            *level += weight;
        }
    }
    let (mut level, _) = heaviest(&best);
    let mut stays = vec![false; ranked.len()];
    for (at, node) in ranked.iter().enumerate().rev() {
        let (own, reached) = bounds(node);
        stays[at] = (own..=reached).contains(&level);
        if level == own {
            level = raised_from[at];
        }
    }
    stays
}

/// The first of the heaviest.
fn heaviest(best: &[Option<u64>]) -> (usize, u64) {
    let mut found = (0, 0);
    for (at, weight) in best.iter().enumerate() {
        if let Some(weight) = weight
            && *weight > found.1
        {
            found = (at, *weight);
        }
    }
    found
}
