//! Keeping the tiers that stand, and fitting in those that are missing.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use super::{Place, Problem};

/// How many tiers are tried for a pod. Where none of the nearest fits, its ReplicaSet has to be numbered anew.
const TRIES: usize = 16;

/// Keeps what stands, but for pods whose tier is missing or puts them in the wrong place within their domain. Of two ways
/// the one that changes fewer: to fit those pods in where they ought to be, or to give the tiers of a domain to its pods
/// in another order. Absent where neither can be done.
pub(super) fn keep(problem: &Problem, standing: &[Option<u32>], highest: u32) -> Option<Vec<u32>> {
    let changes = |tiers: &[u32]| tiers.iter().zip(standing).filter(|(now, before)| Some(**now) != **before).count();
    let fitted = fit(problem, standing, highest);
    if fitted.as_ref().is_some_and(|tiers| changes(tiers) == 0) {
        return fitted;
    }
    let reordered = fit(problem, &reordered(problem, standing), highest);
    // The first of as few.
    fitted.into_iter().chain(reordered).min_by_key(|tiers| changes(tiers))
}

/// The tiers that stand in each cell, given to its pods in the order in which these ought to go: to those on ranked nodes
/// the highest, by rank. The others may go in any order, so each keeps its own where it can. What was level stays so,
/// since each domain has the tiers that it had.
fn reordered(problem: &Problem, standing: &[Option<u32>]) -> Vec<Option<u32>> {
    let mut cells: Vec<Vec<usize>> = vec![Vec::new(); problem.cell_count];
    for (at, cell) in problem.cells.iter().enumerate() {
        if !problem.young[at] && standing[at].is_some() {
            cells[*cell].push(at);
        }
    }
    let mut tiers = standing.to_vec();
    for cell in cells {
        let mut slots: Vec<Option<u32>> = cell.iter().map(|&at| standing[at]).collect();
        slots.sort_unstable_by_key(|tier| Reverse(*tier));
        let (mut ranked, others): (Vec<usize>, Vec<usize>) =
            cell.into_iter().partition(|&at| matches!(problem.places[at], Place::Ranked(_)));
        ranked.sort_by_key(|&at| problem.places[at]);
        let mut rest = slots.split_off(ranked.len());
        for (at, tier) in ranked.into_iter().zip(slots) {
            tiers[at] = tier;
        }
        let mut displaced = Vec::new();
        for at in others {
            match rest.iter().position(|tier| *tier == standing[at]) {
                Some(own) => drop(rest.remove(own)),
                None => displaced.push(at),
            }
        }
        for (at, tier) in displaced.into_iter().zip(rest) {
            tiers[at] = tier;
        }
    }
    tiers
}

/// Fits in the pods whose tier is missing or puts them in the wrong place within their domain, or puts them on top of it
/// while they are young. Absent where that cannot be done, or is more than half of the work of numbering all anew.
fn fit(problem: &Problem, standing: &[Option<u32>], highest: u32) -> Option<Vec<u32>> {
    let mut tiers = in_place(problem, standing);
    let mut missing: Vec<usize> = (0..tiers.len()).filter(|&at| tiers[at].is_none()).collect();
    if missing.len() * 2 > tiers.len() + 1 {
        return None;
    }
    let turn = |at: usize, tier: u32| Some(problem.turn(at, Some(tier)));
    let mut turns: Vec<_> = tiers.iter().enumerate().map(|(at, tier)| turn(at, (*tier)?)).collect();
    if !problem.is_sound(&turns) {
        return None;
    }
    missing.sort_by_key(|&at| problem.places[at]);
    for at in missing {
        let mut fits = |candidates: Vec<u32>| {
            candidates.into_iter().find(|tier| {
                turns[at] = turn(at, *tier);
                problem.is_sound(&turns)
            })
        };
        let fitting = fits(candidates(problem, &tiers, at, highest));
        let fits = fitting.or_else(|| fits(on_top(problem, &tiers, at, highest)));
        tiers[at] = Some(fits?);
    }
    tiers.into_iter().collect()
}

/// The tiers that stand, without those that put a pod before or after one of its cell that it ought to follow or
/// precede: as many as possible stay.
fn in_place(problem: &Problem, standing: &[Option<u32>]) -> Vec<Option<u32>> {
    let mut cells: Vec<Vec<usize>> = vec![Vec::new(); problem.cell_count];
    let mut tiers = vec![None; standing.len()];
    for (at, cell) in problem.cells.iter().enumerate() {
        if problem.young[at] {
            tiers[at] = standing[at];
        } else if standing[at].is_some() {
            cells[*cell].push(at);
        }
    }
    for mut cell in cells {
        // Pods of one turn but of different places have to be told apart by their tiers: the later place comes first,
        // so that not both stay.
        cell.sort_by_key(|&at| (problem.turn(at, standing[at]), Reverse(problem.places[at])));
        for at in longest(&cell, |&at| problem.places[at]) {
            tiers[at] = standing[at];
        }
    }
    tiers
}

/// A longest choice from a row whose keys never fall.
fn longest<K: Ord>(row: &[usize], key: impl Fn(&usize) -> K) -> Vec<usize> {
    // `ends[n]` is where the choice of `n + 1` ends whose last key is the least.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = vec![None; row.len()];
    for (at, item) in row.iter().enumerate() {
        let length = ends.partition_point(|&end| key(&row[end]) <= key(item));
        before[at] = length.checked_sub(1).map(|shorter| ends[shorter]);
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut chosen = Vec::new();
    let mut next = ends.last().copied();
    while let Some(at) = next {
        chosen.push(row[at]);
        next = before[at];
    }
    chosen
}

/// Tiers that put a pod between those of its cell that go before it and those that go after it; the nearest to its
/// height first, as if it went before all others of its own place.
fn candidates(problem: &Problem, tiers: &[Option<u32>], at: usize, highest: u32) -> Vec<u32> {
    let (place, own) = (problem.places[at], problem.lows[at]);
    let (mut low, mut high) = (1, highest);
    let (mut height, mut top) = (1, 0);
    for (other, tier) in tiers.iter().enumerate() {
        let Some(tier) = *tier else { continue };
        top = top.max(tier);
        let others = problem.places[other];
        height += u32::from(problem.domains[other][0] == problem.domains[at][0] && others >= place);
        if problem.cells[other] != problem.cells[at] || problem.young[other] {
            continue;
        }
        // Of one tier may only be those that the rest of their values tells apart.
        if others < place {
            high = high.min(if problem.lows[other] < own { tier } else { tier.saturating_sub(1) });
        } else if others > place {
            low = low.max(if own < problem.lows[other] { tier } else { tier + 1 });
        }
    }
    nearest(low..=high.min(top + 1), height)
}

/// Tiers that put a young pod on top of its domain; none for one that is not young.
fn on_top(problem: &Problem, tiers: &[Option<u32>], at: usize, highest: u32) -> Vec<u32> {
    if !problem.young[at] {
        return Vec::new();
    }
    let own = problem.domains[at][0];
    let domain = tiers.iter().zip(&problem.domains).filter(|(_, domains)| domains[0] == own);
    let tiers: Vec<u32> = domain.filter_map(|(tier, _)| *tier).collect();
    nearest(tiers.iter().copied().max().unwrap_or(1)..=highest, tiers.len() as u32 + 1)
}

/// The tiers of a range that are nearest to a height, the nearest first.
pub(super) fn nearest(range: RangeInclusive<u32>, height: u32) -> Vec<u32> {
    let (low, high) = range.into_inner();
    if low > high {
        return Vec::new();
    }
    let (middle, reach) = (height.clamp(low, high), TRIES as u32);
    let mut tiers: Vec<u32> = (low.max(middle.saturating_sub(reach))..=high.min(middle + reach)).collect();
    tiers.sort_by_key(|tier| (tier.abs_diff(height), *tier));
    tiers.truncate(TRIES);
    tiers
}
