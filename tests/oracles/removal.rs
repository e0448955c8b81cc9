//! The order in which a scale-down takes pods, whatever they look like.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use belay_decide::cost::{CostPod, Readiness, Standing, removal};
use belay_decide::ownership::Record;
use belay_decide::view::PodPhase;
use belay_e2e::chance::Chance;
use jiff::{SignedDuration, Timestamp};

use crate::ask::{self, Answer, Pod, Question};
use crate::chance::chance;

const NOW: Timestamp = Timestamp::constant(1_796_047_200, 123_456_789);

/// How many ReplicaSets are tried.
const CASES: usize = 12_000;

/// Annotations: ours, a user's, and what Kubernetes takes for none.
const COSTS: [&str; 18] = [
    "0",
    "-0",
    "-1",
    "-2",
    "-1048576",
    "-30",
    "-29",
    "5",
    "100",
    "2147483647",
    "-2147483648",
    "+10",
    "008",
    "-08",
    "1.5",
    "",
    "2147483648",
    "high",
];

struct Case {
    pods: Vec<CostPod>,
    costs: Vec<Option<String>>,
    related: Vec<CostPod>,
}

/// A time that others are likely to share, to be near to, or to be of one magnitude with.
fn time(chance: &mut Chance) -> Timestamp {
    let age = match chance.below(8) {
        0 => SignedDuration::from_secs(3600),
        1 => SignedDuration::from_secs(3600 + chance.below(3) as i64),
        2 => SignedDuration::from_secs(chance.below(20) as i64),
        3 => SignedDuration::from_secs(chance.below(100_000) as i64),
        // On both sides of where the magnitude changes: 18 minutes, and 13 days.
        4 => SignedDuration::from_nanos((1 << 40) + chance.below(3) as i64 - 1),
        5 => SignedDuration::from_nanos((1 << 50) + 1_000 * (chance.below(3) as i64 - 1)),
        6 => SignedDuration::from_secs(-60),
        _ => SignedDuration::ZERO,
    };
    NOW - age
}

fn pod(chance: &mut Chance, nodes: usize) -> CostPod {
    let uid = chance.uid();
    let since = if chance.one_in(12) { None } else { Some(time(chance)) };
    let bound = !chance.one_in(10);
    let phase = match chance.below(12) {
        0 => PodPhase::Pending,
        1 => PodPhase::Unknown,
        2 => chance.of(&[PodPhase::Succeeded, PodPhase::Failed]),
        _ => PodPhase::Running,
    };
    CostPod {
        namespace: "shop".into(),
        name: format!("web-{uid}").into(),
        uid: uid.into(),
        set: Some("web".into()),
        node: bound.then(|| format!("n{}", chance.below(nodes)).into()),
        phase,
        terminating: chance.one_in(15),
        readiness: if chance.one_in(4) { Readiness::NotReady(since) } else { Readiness::Ready(since) },
        restarts: if chance.one_in(3) { chance.below(3) as i32 } else { 0 },
        sidecar_restarts: if chance.one_in(4) { chance.below(3) as i32 } else { 0 },
        created: time(chance),
        priority: 0,
        standing: Standing::Absent,
        movable: true,
        hold: None,
        blocked_since: None,
    }
}

fn case(chance: &mut Chance) -> Case {
    let nodes = 1 + chance.below(5);
    let count = if chance.one_in(10) { 20 + chance.below(30) } else { 2 + chance.below(12) };
    // Equal in everything but times is where the sort goes in circles.
    let alike = chance.one_in(3);
    let costs_at_all = !chance.one_in(3);
    let mut pods: Vec<CostPod> = (0..count).map(|_| pod(chance, nodes)).collect();
    let related = (0..chance.below(5)).map(|_| pod(chance, nodes)).collect();
    if alike {
        let at = if chance.one_in(2) { time(chance) } else { NOW - SignedDuration::from_secs(3600) };
        for pod in &mut pods {
            pod.node = Some("n0".into());
            pod.phase = PodPhase::Running;
            if chance.one_in(2) {
                pod.readiness = Readiness::Ready(Some(at));
            }
        }
    }
    let costs = (0..count).map(|_| (costs_at_all && !chance.one_in(3)).then(|| chance.of(&COSTS).to_owned())).collect();
    Case { pods, costs, related }
}

/// The finest batches that Kubernetes' own comparison allows: wherever all on one side go before all on the other.
fn finest(answer: &Answer, active: &[usize]) -> Vec<Vec<usize>> {
    let before = |one: usize, other: usize| answer.goes_before(active, one, other);
    let wins = |one: usize| active.iter().filter(|&&other| before(one, other)).count();
    let mut row = active.to_vec();
    row.sort_by_key(|&one| Reverse(wins(one)));
    let mut batches = vec![Vec::new()];
    for (count, &one) in row.iter().enumerate() {
        let (so_far, to_come) = row.split_at(count);
        if count > 0 && so_far.iter().all(|&early| to_come.iter().all(|&late| before(early, late))) {
            batches.push(Vec::new());
        }
        batches.last_mut().expect("there is always one").push(one);
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

fn sorted(mut batches: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    for batch in &mut batches {
        batch.sort_unstable();
    }
    batches
}

#[test]
fn a_removal_order_is_predicted_as_exactly_as_kubernetes_determines_it() {
    let mut chance = chance();
    let cases: Vec<Case> = (0..CASES).map(|_| case(&mut chance)).collect();
    let questions: Vec<Question> = cases
        .iter()
        .map(|case| {
            let pods = case.pods.iter().zip(&case.costs).map(|(pod, cost)| Pod::of(pod, cost.clone())).collect();
            Question::new(NOW, pods, case.related.iter().map(|pod| Pod::of(pod, None)).collect())
        })
        .collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, (case, answer)) in cases.iter().zip(ask::kubernetes(&questions)).enumerate() {
        let pods: Vec<&CostPod> = case.pods.iter().collect();
        let related: Vec<&CostPod> = case.related.iter().collect();
        let cost = |at: usize| Standing::read(case.costs[at].as_deref(), &Record::default()).effective();
        let predicted = removal::order(&pods, &related, cost, NOW);
        let active: Vec<usize> = (0..pods.len()).filter(|&at| pods[at].is_active()).collect();
        assert_eq!(sorted(predicted.clone()), sorted(finest(&answer, &active)), "case {number}");
        let mut order = answer.order.into_iter();
        for batch in &predicted {
            let mut taken: Vec<usize> = order.by_ref().take(batch.len()).collect();
            let mut batch = batch.clone();
            taken.sort_unstable();
            batch.sort_unstable();
            assert_eq!(taken, batch, "case {number}");
        }
        assert_eq!(order.next(), None, "case {number}");
        let mut see = |what: &'static str, is_so: bool| *seen.entry(what).or_default() += usize::from(is_so);
        see("in circles", predicted.iter().any(|batch| batch.len() > 1));
        see("determined", predicted.len() > 1 && predicted.iter().all(|batch| batch.len() == 1));
        see("not bound", active.iter().any(|&at| pods[at].node.is_none()));
        see("not ready", active.iter().any(|&at| !pods[at].is_ready()));
        see("restarted", active.iter().any(|&at| pods[at].restarts > 0));
        see("doubled up by related pods", case.related.iter().any(CostPod::is_active));
        see("costs", case.costs.iter().any(Option::is_some));
    }
    println!("{seen:?}");
    assert!(seen.values().all(|count| *count >= CASES / 10), "too few cases of a kind: {seen:?}");
}
