//! Ranks for a row of nodes: negative numbers with gaps, so that a node that comes, goes or moves leaves all others'
//! alone.

use super::code::RANKS;

/// How far apart ranks are where there is room. The rest is left at both ends, where most nodes come.
const STEP: i32 = 16;

/// Numbers a row. What stands is given in ascending order and stays, unless a gap is used up: then as few neighbours as
/// make room are numbered anew, or all where an end is used up. How many that are is returned as well.
pub(super) fn number(row: &[Option<i32>]) -> (Vec<i32>, usize) {
    let mut row = row.to_vec();
    let mut anew = 0;
    // Half of the range is for the ends.
    let step = STEP.min(RANKS / 2 / (row.len() as i32 + 1)).max(1);
    while let Some(start) = row.iter().position(Option::is_none) {
        let mut window = start..start + row[start..].iter().take_while(|rank| rank.is_none()).count();
        // What is numbered anew gets half a step at least, or the next node that comes would need it again.
        let mut least = 1;
        loop {
            let low = row[..window.start].last().copied().flatten().unwrap_or(-RANKS);
            let high = row.get(window.end).copied().flatten().unwrap_or(0);
            let whole = window.len() == row.len();
            if whole || high - low > window.len() as i32 * least {
                place(&mut row[window], low, high, step);
                break;
            }
            least = (step / 2).max(2);
            let wider = match (window.start.checked_sub(1), window.end) {
                (Some(start), end) if end < row.len() => start..end + 1,
                _ => 0..row.len(),
            };
            anew += row[wider.start..window.start].iter().chain(&row[window.end..wider.end]).flatten().count();
            window = wider;
        }
    }
    (row.into_iter().flatten().collect(), anew)
}

/// Puts ranks between two: evenly, or in steps where one of them is an end of the range.
fn place(window: &mut [Option<i32>], low: i32, high: i32, step: i32) {
    let count = window.len() as i32;
    let step = step.min((high - low) / (count + 1));
    let first = match (low == -RANKS, high == 0) {
        (true, true) => low + (high - low - step * (count - 1)) / 2,
        (true, false) => high - step * count,
        (false, true) => low + step,
        (false, false) => {
            for (rank, at) in window.iter_mut().zip(1..) {
                *rank = Some(low + (high - low) * at / (count + 1));
            }
            return;
        }
    };
    for (rank, at) in window.iter_mut().zip(0..) {
        *rank = Some(first + step * at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::cost::view::MOST_NODES;
    use crate::testing::runner;

    fn is_row(ranks: &[i32]) -> bool {
        ranks.windows(2).all(|two| two[0] < two[1]) && ranks.iter().all(|rank| (1 - RANKS..0).contains(rank))
    }

    proptest! {
        #![proptest_config(runner(500))]

        #[test]
        fn a_row_ascends_within_its_range_and_keeps_what_stands_unless_it_counts_it(
            standing in btree_set(1 - RANKS..0, 0..500),
            new in vec(0..500_usize, 0..500),
        ) {
            let mut row: Vec<Option<i32>> = standing.into_iter().map(Some).collect();
            for at in new {
                row.insert(at.min(row.len()), None);
            }
            let (ranks, anew) = number(&row);
            prop_assert_eq!(ranks.len(), row.len());
            prop_assert!(is_row(&ranks), "{ranks:?}");
            let changed = row.iter().zip(&ranks).filter(|(old, new)| old.is_some_and(|old| old != **new)).count();
            prop_assert!(changed <= anew);
        }
    }

    #[test]
    fn every_number_of_nodes_that_may_be_ranked_fits() {
        for count in [0, 1, 2, 50, MOST_NODES] {
            let (ranks, anew) = number(&vec![None; count]);
            assert!(is_row(&ranks) && ranks.len() == count && anew == 0, "{count}");
        }
        // The worst that can stand: all crowded at one end.
        let mut crowded: Vec<_> = (1..MOST_NODES as i32).map(|rank| Some(-rank)).rev().collect();
        crowded.push(None);
        assert!(is_row(&number(&crowded).0));
    }

    #[test]
    fn a_node_that_comes_or_goes_leaves_the_others_alone() {
        let (before, _) = number(&[None; 50]);
        for at in 0..=50 {
            let mut row: Vec<_> = before.iter().copied().map(Some).collect();
            row.insert(at, None);
            let (mut after, anew) = number(&row);
            after.remove(at);
            assert_eq!((after, anew), (before.clone(), 0));
        }
    }

    #[test]
    fn a_gap_that_is_used_up_costs_some_neighbours_only() {
        let (mut ranks, _) = number(&[None; 50]);
        for expected in [0, 0, 0, 0, 8] {
            let mut row: Vec<_> = ranks.into_iter().map(Some).collect();
            row.insert(25, None);
            let (numbered, anew) = number(&row);
            assert_eq!(anew, expected);
            ranks = numbered;
        }
    }

    /// Nodes come and go for long: how many others are numbered anew for each that comes, in hundredths.
    fn anew_per_node(count: usize, mut place: impl FnMut(usize, usize) -> usize) -> usize {
        let (mut ranks, _) = number(&vec![None; count]);
        let mut total = 0;
        for round in 0..1000 {
            ranks.remove(round * 7919 % count);
            let mut row: Vec<_> = ranks.into_iter().map(Some).collect();
            row.insert(place(round, count), None);
            let (numbered, anew) = number(&row);
            assert!(is_row(&numbered));
            total += anew;
            ranks = numbered;
        }
        total / 10
    }

    #[test]
    fn nodes_that_come_and_go_for_long_cost_a_few_others() {
        for count in [10, 50, 100] {
            assert!(anew_per_node(count, |_, count| count - 1) <= 200, "at the end");
            assert!(anew_per_node(count, |_, _| 0) <= 200, "at the front");
            assert!(anew_per_node(count, |round, count| round * 104_729 % count) <= 100, "anywhere");
        }
    }
}
