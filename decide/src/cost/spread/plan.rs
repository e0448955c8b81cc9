//! Numbering all pods of a ReplicaSet anew.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::Problem;

/// Takes one pod after the other from the fullest domain, as long as that keeps every constraint; from the same domain
/// those go first whose nodes empty first. The tiers are the heights from which pods were taken, which change as little
/// as possible from one time to the next, or else, if those do not keep all constraints, the order itself.
pub(super) fn anew(problem: &Problem) -> Vec<Option<u32>> {
    let taken = take_all(problem);
    let mut tiers = vec![None; problem.places.len()];
    for (at, height) in &taken {
        tiers[*at] = Some(*height);
    }
    let turns: Vec<_> = tiers.iter().enumerate().map(|(at, tier)| Some(problem.turn(at, *tier))).collect();
    if !problem.is_sound(&turns) {
        for ((at, _), tier) in taken.iter().rev().zip(1..) {
            tiers[*at] = Some(tier);
        }
    }
    tiers
}

/// The pods that get a value, in the order in which they are taken, with the heights of their first domain.
fn take_all(problem: &Problem) -> Vec<(usize, u32)> {
    let mut piles: Vec<Piles> = problem.constraints.iter().map(|(_, count)| Piles::new(*count)).collect();
    let mut cells: Vec<VecDeque<usize>> = vec![VecDeque::new(); problem.cell_count];
    for (at, domains) in problem.domains.iter().enumerate() {
        for (piles, domain) in piles.iter_mut().zip(domains) {
            piles.counts[*domain] += 1;
        }
        if !problem.last[at] {
            cells[problem.cells[at]].push_back(at);
        }
    }
    for cell in &mut cells {
        cell.make_contiguous().sort_by_key(|&at| problem.places[at]);
    }
    let mut taken = Vec::with_capacity(problem.places.len());
    loop {
        let fullest: Vec<_> = piles.iter().map(Piles::fullest).collect();
        let first = cells.iter().filter_map(|cell| cell.front().copied()).filter(|&at| {
            let domains = problem.domains[at].iter().zip(&piles).zip(&fullest);
            domains.zip(&problem.constraints).all(|(((domain, piles), fullest), (max_skew, count))| {
                domain == count || piles.counts[*domain] + max_skew > fullest.other_than(*domain)
            })
        });
        let heights = |at: usize| -> Vec<_> {
            problem.domains[at].iter().zip(&piles).map(|(domain, piles)| Reverse(piles.counts[*domain])).collect()
        };
        let Some(at) = first.min_by_key(|&at| (heights(at), problem.places[at], at)) else { break };
        taken.push((at, piles.first().map_or(1, |piles| piles.counts[problem.domains[at][0]] as u32)));
        for (piles, domain) in piles.iter_mut().zip(&problem.domains[at]) {
            piles.counts[*domain] -= 1;
        }
        cells[problem.cells[at]].pop_front();
    }
    taken
}

/// How many pods each domain of a constraint has; the last number is for pods without the label.
struct Piles {
    counts: Vec<usize>,
}

/// The highest pile and the second highest.
struct Fullest {
    domain: usize,
    count: usize,
    second: usize,
}

impl Piles {
    fn new(domains: usize) -> Self {
        Self { counts: vec![0; domains + 1] }
    }

    fn fullest(&self) -> Fullest {
        let mut found = Fullest { domain: 0, count: 0, second: 0 };
        let labelled = self.counts.len() - 1;
        for (domain, count) in self.counts[..labelled].iter().copied().enumerate() {
            if count > found.count {
                found = Fullest { domain, count, second: found.count };
            } else {
                found.second = found.second.max(count);
            }
        }
        found
    }
}

impl Fullest {
    fn other_than(&self, domain: usize) -> usize {
        if domain == self.domain { self.second } else { self.count }
    }
}
