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
