//! What Belay promises of spread, on the order in which Kubernetes itself takes pods.
//!
//! Each case is a ReplicaSet over some zones with a life behind it: it was valued, scaled, bound to nodes that came,
//! and had nodes change. The last question is in which order Kubernetes would now take its pods. For every prefix, the
//! skew of each constraint is at most what it was or `maxSkew`. Pods that do not serve go first, whatever their value,
//! so what it was is what it is once those that have been down for long are gone, and each that is starting may add
//! one. Where a pod carries somebody else's value, the promise ends with ours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use belay_decide::cost::{
    Constraint, CostPod, Ground, Input, Keep, NodeFacts, Nodes, Options, Pass, Readiness, SetView, Standing, at_bind,
    pass, removal,
};
use belay_decide::view::{NodeView, PodPhase};
use belay_e2e::chance::Chance;
use jiff::{SignedDuration, Timestamp};

use crate::ask::{self, Pod, Question};
use crate::chance::chance;

const START: Timestamp = Timestamp::constant(1_796_047_200, 0);

/// How many ReplicaSets are tried.
const CASES: usize = 4_000;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";

struct Case {
    nodes: Nodes,
    pods: Vec<CostPod>,
    set: SetView,
    options: Options,
    now: Timestamp,
}

fn over(key: &str, max_skew: i32, hard: bool) -> Constraint {
    Constraint { key: key.into(), max_skew, hard }
}

impl Case {
    fn new(chance: &mut Chance) -> Self {
        let max_skew = 1 + chance.below(3) as i32;
        let constraints = match chance.below(6) {
            0 => vec![over(HOSTNAME, max_skew, true)],
            1 => vec![over(ZONE, 1, true), over(HOSTNAME, max_skew, true)],
            2 => vec![over(ZONE, max_skew, false), over(HOSTNAME, 1, false)],
            _ => vec![over(ZONE, max_skew, true)],
        };
        let set = SetView {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "web-set".into(),
            replicas: 100,
            constraints,
            stood_down: false,
        };
        let options = Options { max_nodes: 3 + chance.below(9), ..Options::default() };
        let mut case = Self { nodes: Nodes::new(), pods: Vec::new(), set, options, now: START };
        for _ in 0..2 + chance.below(8) {
            case.add_node(chance, SignedDuration::from_hours(24));
        }
        let pods = if chance.one_in(8) { 60 } else { 16 };
        for _ in 0..2 + chance.below(pods) {
            case.run(chance);
        }
        case
    }

    fn add_node(&mut self, chance: &mut Chance, age: SignedDuration) {
        let name = format!("n{:02}", self.nodes.len());
        let zone = format!("z{}", chance.below(3));
        let mut topology = BTreeMap::from([(HOSTNAME.into(), name.clone().into()), (ZONE.into(), zone.into())]);
        if chance.one_in(20) {
            topology.clear();
        }
        let facts = NodeFacts {
            node: NodeView { name: name.clone().into(), ..NodeView::default() },
            created: self.now - age,
            pool: None,
            topology: topology.into(),
            leaving: false,
            drifted: false,
            keep: None,
            stood_down: false,
        };
        self.nodes.insert(name.into(), facts);
    }

    fn node(&self, chance: &mut Chance) -> Arc<str> {
        let at = chance.below(self.nodes.len());
        self.nodes.keys().nth(at).expect("it is one of them").clone()
    }

    /// A pod on any node, without a value.
    fn run(&mut self, chance: &mut Chance) {
        let uid = chance.uid();
        let pod = CostPod {
            namespace: "shop".into(),
            name: format!("web-{uid}").into(),
            uid: uid.into(),
            set: Some("web-set".into()),
            node: Some(self.node(chance)),
            phase: PodPhase::Running,
            terminating: false,
            readiness: Readiness::Ready(Some(self.now)),
            restarts: 0,
            sidecar_restarts: 0,
            created: self.now,
            priority: 0,
            standing: Standing::Absent,
            movable: true,
            hold: None,
            blocked_since: None,
        };
        self.pods.push(pod);
    }

    /// A pod that is bound while the webhook answers.
    fn bind(&mut self, chance: &mut Chance) {
        let looked = self.look();
        self.run(chance);
        let coming = self.pods.pop().expect("it was just made");
        let ground = Ground { nodes: &self.nodes, ranking: &looked.ranking, options: &self.options, now: self.now };
        let siblings: Vec<&CostPod> = self.pods.iter().collect();
        let node = coming.node.clone().expect("it was put on a node");
        let unbound = CostPod { node: None, ..coming.clone() };
        let value = at_bind(&self.set, &siblings, &unbound, &node, &ground);
        self.pods.push(CostPod { standing: value.map_or(Standing::Absent, Standing::Ours), ..coming });
    }

    fn look(&self) -> Pass {
        let sets = std::slice::from_ref(&self.set);
        pass(&Input { nodes: &self.nodes, pods: &self.pods, sets, options: &self.options, now: self.now })
    }

    /// One pass, and its writes performed.
    fn pass(&mut self) {
        let looked = self.look();
        for at in looked.writes {
            let pod = &mut self.pods[at];
            if pod.standing.is_open() {
                pod.standing = looked.desired[at].map_or(Standing::Absent, Standing::Ours);
            }
        }
    }

    fn scale_down(&mut self, count: usize) {
        let pods: Vec<&CostPod> = self.pods.iter().collect();
        let order = removal::order(&pods, &[], |at| pods[at].standing.effective(), self.now).concat();
        let gone: BTreeSet<usize> = order.into_iter().take(count).collect();
        let mut places = 0..;
        self.pods.retain(|_| places.next().is_some_and(|at| !gone.contains(&at)));
    }

    /// Something happens, and the controller looks.
    fn live(&mut self, chance: &mut Chance) {
        self.now += SignedDuration::from_secs(chance.below(400) as i64);
        match chance.below(9) {
            0 => {
                let name = self.node(chance);
                let node = self.nodes.get_mut(&name).expect("it is one of them");
                match chance.below(3) {
                    0 => node.node.unschedulable = !node.node.unschedulable,
                    1 => node.keep = if node.keep.is_some() { None } else { Some(Keep::DoNotDisrupt) },
                    _ => node.drifted = !node.drifted,
                }
            }
            1 => self.add_node(chance, SignedDuration::ZERO),
            2 | 3 => self.scale_down(1 + chance.below(3).min(self.pods.len().saturating_sub(3))),
            4 if !self.pods.is_empty() => {
                let at = chance.below(self.pods.len());
                self.pods.remove(at);
            }
            _ => {
                for _ in 0..=chance.below(4) {
                    self.bind(chance);
                }
            }
        }
        self.pass();
    }

    /// The last moment: some pods do not serve, some carry a user's value, some are not bound.
    fn bend(&mut self, chance: &mut Chance) {
        let kind = chance.below(6);
        for pod in &mut self.pods {
            match kind {
                0 if chance.one_in(4) => {
                    pod.readiness = Readiness::NotReady(Some(self.now - SignedDuration::from_hours(1)));
                }
                1 if chance.one_in(5) => pod.readiness = Readiness::NotReady(Some(self.now)),
                2 if chance.one_in(4) => {
                    pod.standing = Standing::Theirs { value: chance.below(9) as i32, replaced: false };
                }
                3 if chance.one_in(6) => {
                    pod.node = None;
                    pod.standing = Standing::Absent;
                    pod.phase = PodPhase::Pending;
                }
                _ => {}
            }
        }
        self.pass();
    }

    fn question(&self) -> Question {
        let cost = |pod: &CostPod| match pod.standing {
            Standing::Ours(value) | Standing::Theirs { value, .. } => Some(value.to_string()),
            _ => None,
        };
        Question::new(self.now, self.pods.iter().map(|pod| Pod::of(pod, cost(pod))).collect(), Vec::new())
    }

    fn domain(&self, at: usize, key: &str) -> Option<&str> {
        let node = self.nodes.get(self.pods[at].node.as_deref()?)?;
        node.topology.get(key).map(|value| &**value)
    }

    /// Holds the promise of one constraint against Kubernetes' order. Returns how many of our values it was tried on.
    fn check(&self, constraint: &Constraint, order: &[usize]) -> Result<usize, String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for at in order {
            if let Some(domain) = self.domain(*at, &constraint.key) {
                *counts.entry(domain).or_default() += 1;
            }
        }
        let skew =
            |counts: &BTreeMap<&str, usize>| counts.values().max().unwrap_or(&0) - counts.values().min().unwrap_or(&0);
        let remove = |counts: &mut BTreeMap<&str, usize>, at: usize| {
            if let Some(count) = self.domain(at, &constraint.key).and_then(|domain| counts.get_mut(domain)) {
                *count -= 1;
            }
        };
        let is_out = |at: &usize| self.pods[*at].node.is_none() || self.pods[*at].is_down(&self.options, self.now);
        let (out, counted): (Vec<usize>, Vec<usize>) = order.iter().partition(|at| is_out(at));
        for at in out {
            remove(&mut counts, at);
        }
        let starting = counted.iter().filter(|&&at| !self.pods[at].serves()).count();
        let limit = skew(&counts).max(constraint.max_skew as usize) + starting;
        let mut tried = 0;
        for at in counted {
            if self.pods[at].serves() && !matches!(self.pods[at].standing, Standing::Ours(_)) {
                break;
            }
            remove(&mut counts, at);
            tried += 1;
            let now = skew(&counts);
            if now > limit {
                return Err(format!("{now} beyond {limit} after {tried} removals in {order:?}, {constraint:?}"));
            }
        }
        Ok(tried)
    }
}

#[test]
fn every_prefix_of_kubernetes_own_order_keeps_the_skew() {
    let mut chance = chance();
    let mut cases = Vec::new();
    for _ in 0..CASES {
        let mut case = Case::new(&mut chance);
        case.pass();
        for _ in 0..chance.below(12) {
            case.live(&mut chance);
        }
        case.bend(&mut chance);
        cases.push(case);
    }
    let questions: Vec<Question> = cases.iter().map(Case::question).collect();
    let (mut tried, mut whole) = (0, 0);
    for (number, (case, answer)) in cases.iter().zip(ask::kubernetes(&questions)).enumerate() {
        let kept = |constraint: &&Constraint| constraint.hard || *constraint.key != *HOSTNAME;
        for constraint in case.set.constraints.iter().filter(kept) {
            let valued =
                case.check(constraint, &answer.order).unwrap_or_else(|broken| panic!("case {number}: {broken}"));
            tried += valued;
            whole += usize::from(valued == answer.order.len() && valued > 1);
        }
    }
    println!("{tried} removals by our values, {whole} constraints kept down to the last pod");
    assert!(whole >= CASES / 2 && tried >= CASES * 5, "too little was tried: {tried} removals, {whole} whole orders");
}

#[test]
fn without_values_kubernetes_does_not_keep_the_skew() {
    let mut chance = chance();
    let mut cases: Vec<Case> = (0..200).map(|_| Case::new(&mut chance)).collect();
    for pod in cases.iter_mut().flat_map(|case| &mut case.pods) {
        // To be checked like one of ours, and sorted like none.
        pod.standing = Standing::Ours(0);
    }
    let questions: Vec<Question> = cases.iter().map(Case::question).collect();
    let answers = ask::kubernetes(&questions);
    let check = |(case, answer): (&Case, &ask::Answer)| case.check(&over(ZONE, 1, true), &answer.order);
    let broken = cases.iter().zip(&answers).map(check).filter(Result::is_err).count();
    assert!(broken > 50, "{broken} of 200: then the promise is worth nothing");
}
