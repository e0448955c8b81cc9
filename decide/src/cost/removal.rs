//! In which order Kubernetes itself removes the pods of a ReplicaSet: a restatement of its sort.
//!
//! Source: Kubernetes 1.37, `pkg/controller/controller_utils.go` (`ActivePodsWithRanks`) and
//! `pkg/controller/replicaset/replica_set.go` (`getPodsRankedByRelatedPodsOnSameNode`). `tests/oracles` asks that code
//! and holds this against it.
//!
//! The sort is not an order: of pods whose ages are of one magnitude, those that became ready at the very same time are
//! compared by restarts and age, and all others by UID, so three pods may each go before the next in a circle. What
//! Kubernetes does then depends on where the pods happened to stand before. The prediction says so: such pods come as
//! one [batch](order), in no particular order.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use jiff::Timestamp;

use super::view::{CostPod, Readiness};
use crate::view::PodPhase;

/// The pods in the order in which a scale-down takes them, as places in `pods`, in batches: each pod of a batch goes
/// before every pod of a later one, and within a batch the order is not determined. Pods that are not active, which a
/// scale-down does not count, are left out.
///
/// `pods` are those of one ReplicaSet, `related` those of the other ReplicaSets of its Deployment, and `cost` says the
/// value of a pod of `pods`.
pub fn order(pods: &[&CostPod], related: &[&CostPod], cost: impl Fn(usize) -> i32, now: Timestamp) -> Vec<Vec<usize>> {
    let mut on_node: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for pod in pods.iter().chain(related).filter(|pod| pod.is_active()) {
        *on_node.entry(pod.node.as_deref()).or_default() += 1;
    }
    let active = pods.iter().enumerate().filter(|(_, pod)| pod.is_active());
    let mut ages: Vec<Age<'_>> = active
        .map(|(at, pod)| {
            let neighbours = on_node.get(&pod.node.as_deref()).copied().unwrap_or_default();
            let doubled = Reverse(neighbours);
            let class = (pod.node.is_some(), phase(pod.phase), pod.is_ready(), cost(at), doubled);
            Age::of(at, class, pod, now)
        })
        .collect();
    ages.sort_by(|one, other| one.magnitudes().cmp(&other.magnitudes()).then_with(|| one.pod.uid.cmp(&other.pod.uid)));
    let mut batches = Vec::new();
    for alike in ages.chunk_by(|one, other| one.magnitudes() == other.magnitudes()) {
        batches.extend(batch(alike));
    }
    batches
}

/// All that is compared before times are: assigned to a node, phase, ready, cost, pods of the workload on its node.
type Class = (bool, u8, bool, i32, Reverse<usize>);

fn phase(phase: PodPhase) -> u8 {
    match phase {
        PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed => 0,
        PodPhase::Unknown => 1,
        PodPhase::Running => 2,
    }
}

/// A pod with what the sort makes of its times.
struct Age<'a> {
    at: usize,
    class: Class,
    pod: &'a CostPod,
    /// Since when it is ready, and the magnitude of that; absent while it is not.
    ready: Option<(Option<Timestamp>, Magnitude)>,
    created: Magnitude,
}

/// The magnitude of an age: no time at all first, then the younger.
type Magnitude = Option<i64>;

/// See [`Age::magnitudes`].
type Magnitudes = (Class, Option<Magnitude>, Option<(Reverse<i32>, Reverse<i32>, Magnitude)>);

impl<'a> Age<'a> {
    fn of(at: usize, class: Class, pod: &'a CostPod, now: Timestamp) -> Self {
        let ready = match pod.readiness {
            Readiness::Ready(since) => Some((since, since.map(|since| magnitude(since, now)))),
            Readiness::NotReady(_) => None,
        };
        Self { at, class, pod, ready, created: Some(magnitude(pod.created, now)) }
    }

    /// What orders pods for certain: no circle goes beyond those that are equal here.
    fn magnitudes(&self) -> Magnitudes {
        match self.ready {
            Some((_, ready)) => (self.class, Some(ready), None),
            None => {
                let (restarts, sidecar_restarts) = self.restarts();
                (self.class, None, Some((restarts, sidecar_restarts, self.created)))
            }
        }
    }

    fn restarts(&self) -> (Reverse<i32>, Reverse<i32>) {
        (Reverse(self.pod.restarts), Reverse(self.pod.sidecar_restarts))
    }

    /// The time that decides first: where it differs, the UID decides.
    fn time(&self) -> Option<Timestamp> {
        self.ready.map_or(Some(self.pod.created), |(since, _)| since)
    }

    /// How two pods of equal magnitudes compare; equal where neither goes before the other.
    fn compare(&self, other: &Self) -> Ordering {
        if self.time() != other.time() {
            return self.pod.uid.cmp(&other.pod.uid);
        }
        self.restarts().cmp(&other.restarts()).then_with(|| {
            if self.pod.created == other.pod.created {
                return Ordering::Equal;
            }
            self.created.cmp(&other.created).then_with(|| self.pod.uid.cmp(&other.pod.uid))
        })
    }
}

/// The power of two below an age in nanoseconds; -1 for the future.
///
/// Kubernetes takes a floating-point logarithm, which within some nanoseconds below a power of two already comes to it.
fn magnitude(since: Timestamp, now: Timestamp) -> i64 {
    let age = now.duration_since(since).as_nanos();
    u128::try_from(age).ok().and_then(u128::checked_ilog2).map_or(-1, i64::from)
}

/// Splits pods of equal magnitudes, given by UID, into batches: wherever all on one side go before all on the other.
fn batch(alike: &[Age<'_>]) -> Vec<Vec<usize>> {
    let mut times: Vec<_> = alike.iter().map(Age::time).collect();
    times.sort_unstable();
    if times.windows(2).all(|two| two[0] != two[1]) {
        // Then the UID decides alone.
        return alike.iter().map(|age| vec![age.at]).collect();
    }
    let goes_before = |one: usize, other: usize| alike[one].compare(&alike[other]) == Ordering::Less;
    let everyone = || 0..alike.len();
    // Who goes before everybody in a later batch wins against more than anybody there does.
    let wins: Vec<_> = everyone().map(|one| everyone().filter(|&other| goes_before(one, other)).count()).collect();
    let mut row: Vec<_> = everyone().collect();
    row.sort_by_key(|&one| Reverse(wins[one]));
    let mut batches = Vec::new();
    let mut current = Vec::new();
    // How many pairs there are of one so far and one to come that goes after it.
    let mut decided = 0;
    for (count, &one) in row.iter().enumerate() {
        let (before, after) = (&row[..count], &row[count + 1..]);
        decided -= before.iter().filter(|&&other| goes_before(other, one)).count();
        decided += after.iter().filter(|&&other| goes_before(one, other)).count();
        current.push(alike[one].at);
        if decided == (count + 1) * after.len() {
            batches.push(std::mem::take(&mut current));
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::cost::testing::pod;
    use crate::testing::{START, after};

    type Bend = fn(&mut CostPod);

    fn serving_since(seconds: i64) -> Readiness {
        Readiness::Ready(Some(after(-seconds)))
    }

    /// `tests/oracles` tries them all; these are the rules one by one.
    #[test]
    fn each_rule_decides_where_all_before_it_are_silent() {
        let table: [(&str, Bend); 9] = [
            ("not bound", |pod| pod.node = None),
            ("pending", |pod| pod.phase = PodPhase::Pending),
            ("unknown", |pod| pod.phase = PodPhase::Unknown),
            ("not ready", |pod| pod.readiness = Readiness::NotReady(None)),
            ("on a fuller node", |pod| pod.node = Some("full".into())),
            ("ready for a shorter time", |pod| pod.readiness = serving_since(60)),
            ("restarted", |pod| pod.restarts = 1),
            ("with a sidecar that restarted", |pod| pod.sidecar_restarts = 1),
            ("younger", |pod| pod.created = START - SignedDuration::from_mins(1)),
        ];
        for (name, bend) in table {
            let (mut first, second) = (pod("z", "web", "n1"), pod("a", "web", "n2"));
            let related = [pod("r", "other", "full"), pod("s", "other", "full")];
            bend(&mut first);
            let related: Vec<&CostPod> = related.iter().collect();
            let order = |cost: [i32; 2]| order(&[&second, &first], &related, |at| cost[at], START);
            assert_eq!(order([0, 0]), [[1], [0]], "{name}");
            let goes_before_cost = matches!(name, "not bound" | "pending" | "unknown" | "not ready");
            assert_eq!(order([-1, 0]) == [[1], [0]], goes_before_cost, "{name}: the value decides after it");
        }
    }

    #[test]
    fn ages_of_one_magnitude_are_told_apart_by_uid() {
        let mut pods = [pod("a", "web", "n"), pod("b", "web", "n"), pod("c", "web", "n")];
        // 2^41 nanoseconds are 37 minutes, and 2^42 are 73.
        pods[0].readiness = serving_since(70 * 60);
        pods[1].readiness = serving_since(40 * 60);
        pods[2].readiness = serving_since(30 * 60);
        let pods: Vec<&CostPod> = pods.iter().collect();
        assert_eq!(order(&pods, &[], |_| 0, START), [[2], [0], [1]]);
    }

    #[test]
    fn pods_that_go_before_each_other_in_a_circle_are_one_batch() {
        let mut pods = [pod("a", "web", "n"), pod("b", "web", "n"), pod("c", "web", "n"), pod("d", "web", "n")];
        // a and c became ready at once and c restarted, so c goes before a; but a before b and b before c, by UID.
        pods[1].readiness = serving_since(3599);
        pods[2].restarts = 1;
        pods[3].node = None;
        let pods: Vec<&CostPod> = pods.iter().collect();
        let mut batches = order(&pods, &[], |_| 0, START);
        batches[1].sort_unstable();
        assert_eq!(batches, [vec![3], vec![0, 1, 2]]);
    }

    #[test]
    fn pods_that_a_scale_down_does_not_count_are_left_out() {
        let mut pods = [pod("a", "web", "n"), pod("b", "web", "n"), pod("c", "web", "n"), pod("d", "web", "n")];
        pods[0].terminating = true;
        pods[1].phase = PodPhase::Succeeded;
        pods[2].phase = PodPhase::Failed;
        let pods: Vec<&CostPod> = pods.iter().collect();
        assert_eq!(order(&pods, &[], |_| 0, START), [[3]]);
    }
}
