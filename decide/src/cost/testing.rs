//! A small cluster for tests: nodes in zones, ReplicaSets whose pods are bound, written and removed as Kubernetes and
//! Belay would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::removal;
use super::*;
use crate::testing::START;
use crate::view::{NodeView, PodPhase};

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";

/// A node that has been there for a day.
pub(super) fn node(name: &str, zone: &str) -> NodeFacts {
    let label = |key: &str, value: &str| (Box::from(key), Box::from(value));
    NodeFacts {
        node: NodeView { name: name.into(), ..NodeView::default() },
        created: START - SignedDuration::from_hours(24),
        pool: None,
        topology: Arc::new(BTreeMap::from([label(ZONE, zone), label(HOSTNAME, name)])),
        leaving: false,
        drifted: false,
        keep: None,
        stood_down: false,
    }
}

/// A ReplicaSet that says nothing about spread.
pub(super) fn set(name: &str, replicas: i32) -> SetView {
    SetView {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("{name}-set").into(),
        replicas,
        constraints: Vec::new(),
        stood_down: false,
    }
}

pub(super) fn over(key: &str, max_skew: i32) -> Constraint {
    Constraint { key: key.into(), max_skew, hard: true }
}

/// A pod that has been serving for an hour.
pub(super) fn pod(name: &str, set: &str, node: &str) -> CostPod {
    CostPod {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("{name}-uid").into(),
        set: Some(format!("{set}-set").into()),
        node: Some(node.into()),
        phase: PodPhase::Running,
        terminating: false,
        readiness: Readiness::Ready(Some(START - SignedDuration::from_hours(1))),
        restarts: 0,
        sidecar_restarts: 0,
        created: START - SignedDuration::from_hours(1),
        priority: 0,
        standing: Standing::Absent,
        movable: true,
        hold: None,
        blocked_since: None,
    }
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) nodes: Nodes,
    pub(super) pods: Vec<CostPod>,
    pub(super) sets: Vec<SetView>,
    pub(super) options: Options,
    pub(super) now: Timestamp,
    /// What the last pass said. Nothing is decided by it.
    pub(super) last: Option<Ranking>,
    serial: u32,
}

impl World {
    /// Nodes `a1`, `a2`… in zone `a` and so on.
    pub(super) fn of(zones: &[(&str, usize)]) -> Self {
        let names = zones.iter().flat_map(|(zone, count)| (1..=*count).map(move |at| (format!("{zone}{at}"), *zone)));
        Self {
            nodes: names.map(|(name, zone)| (name.clone().into(), node(&name, zone))).collect(),
            pods: Vec::new(),
            sets: Vec::new(),
            options: Options::default(),
            now: START,
            last: None,
            serial: 0,
        }
    }

    pub(super) fn node(&mut self, name: &str) -> &mut NodeFacts {
        self.nodes.get_mut(name).expect("the test names a node that is there")
    }

    /// A pod of the ReplicaSet on the node, without a value.
    pub(super) fn run(&mut self, set: &str, node: &str) -> usize {
        self.serial += 1;
        self.pods.push(pod(&format!("{set}-{:03}", self.serial), set, node));
        self.pods.len() - 1
    }

    /// A ReplicaSet with so many pods on these nodes.
    pub(super) fn with(mut self, set: SetView, pods: &[(&str, usize)]) -> Self {
        for (node, count) in pods {
            for _ in 0..*count {
                self.run(&set.name, node);
            }
        }
        self.sets.push(set);
        self
    }

    pub(super) fn look(&self) -> Pass {
        let Self { nodes, pods, sets, options, now, .. } = self;
        pass(&Input { nodes, pods, sets, options, now: *now })
    }

    /// One pass, and its writes performed. Returns the names of the pods written.
    pub(super) fn pass(&mut self) -> BTreeSet<String> {
        let looked = self.look();
        let mut written = BTreeSet::new();
        for at in looked.writes {
            let pod = &mut self.pods[at];
            written.insert(pod.name.to_string());
            pod.standing = match (pod.standing, looked.desired[at]) {
                (Standing::Theirs { value, .. }, _) => Standing::Theirs { value, replaced: false },
                (_, Some(value)) => Standing::Ours(value),
                (_, None) => Standing::Absent,
            };
        }
        self.last = Some(looked.ranking);
        written
    }

    pub(super) fn settled(mut self) -> Self {
        self.pass();
        self
    }

    /// The cluster as it is once nothing is left to write: values that stood where none ought to told ranks until they
    /// were taken away, so that may take some passes.
    pub(super) fn at_rest(mut self) -> Self {
        let writes: Vec<_> = (0..8).map(|_| self.pass()).take_while(|written| !written.is_empty()).collect();
        assert!(writes.len() < 8, "it never comes to rest: {writes:?}");
        self
    }

    /// The webhook's part: the value of a pod that is bound.
    pub(super) fn bind(&mut self, set: &str, node: &str) -> usize {
        let ranking = self.look().ranking;
        let at = self.run(set, node);
        let set = self.sets.iter().find(|known| &*known.name == set).expect("the ReplicaSet is there");
        let ground = Ground { nodes: &self.nodes, ranking: &ranking, options: &self.options, now: self.now };
        let coming = CostPod {
            node: None,
            phase: PodPhase::Pending,
            readiness: Readiness::NotReady(None),
            created: self.now,
            ..self.pods[at].clone()
        };
        let siblings: Vec<&CostPod> = self.pods[..at].iter().filter(|pod| pod.set == coming.set).collect();
        let value = at_bind(set, &siblings, &coming, node, &ground);
        let bound = CostPod { node: Some(node.into()), ..coming };
        self.pods[at] = CostPod { standing: value.map_or(Standing::Absent, Standing::Ours), ..bound };
        at
    }

    /// All pods serve from now on.
    pub(super) fn ready(&mut self) {
        for pod in self.pods.iter_mut().filter(|pod| !pod.serves()) {
            pod.phase = PodPhase::Running;
            pod.readiness = Readiness::Ready(Some(self.now));
        }
    }

    pub(super) fn members(&self, set: &str) -> Vec<usize> {
        let uid = format!("{set}-set");
        (0..self.pods.len()).filter(|&at| self.pods[at].set.as_deref() == Some(&*uid)).collect()
    }

    /// In which order a scale-down would take the ReplicaSet's pods, as places.
    pub(super) fn removal(&self, set: &str) -> Vec<usize> {
        let places = self.members(set);
        let pods: Vec<&CostPod> = places.iter().map(|&at| &self.pods[at]).collect();
        let batches = removal::order(&pods, &[], |at| pods[at].standing.effective(), self.now);
        batches.concat().into_iter().map(|at| places[at]).collect()
    }

    /// Scales the ReplicaSet down.
    pub(super) fn remove(&mut self, set: &str, count: usize) {
        let gone: BTreeSet<usize> = self.removal(set).into_iter().take(count).collect();
        let mut at = 0;
        self.pods.retain(|_| {
            at += 1;
            !gone.contains(&(at - 1))
        });
    }

    /// How many pods of the ReplicaSet each node runs.
    pub(super) fn placement(&self, set: &str) -> BTreeMap<&str, usize> {
        let mut placement = BTreeMap::new();
        for at in self.members(set) {
            *placement.entry(self.pods[at].node.as_deref().unwrap_or("")).or_default() += 1;
        }
        placement
    }

    /// The values of the ReplicaSet's pods on a node, in ascending order.
    pub(super) fn values(&self, set: &str, node: &str) -> Vec<i32> {
        let places = self.members(set);
        let on_node = places.iter().map(|&at| &self.pods[at]).filter(|pod| pod.node.as_deref() == Some(node));
        let mut values: Vec<i32> = on_node.filter_map(|pod| pod.standing.written()).collect();
        values.sort_unstable();
        values
    }

    pub(super) fn order(&self) -> Vec<&str> {
        self.last.as_ref().map(|last| last.order().collect()).unwrap_or_default()
    }

    /// How uneven the ReplicaSet's pods lie over the domains that it had pods in to begin with, after each removal.
    pub(super) fn skews(&self, set: &str, key: &str, order: &[usize]) -> Vec<usize> {
        let domain = |at: usize| {
            let node = self.nodes.get(self.pods[at].node.as_deref()?)?;
            node.topology.get(key).map(|value| &**value)
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for at in self.members(set) {
            if let Some(domain) = domain(at) {
                *counts.entry(domain).or_default() += 1;
            }
        }
        let skew =
            |counts: &BTreeMap<&str, usize>| counts.values().max().unwrap_or(&0) - counts.values().min().unwrap_or(&0);
        let mut skews = vec![skew(&counts)];
        for at in order {
            if let Some(count) = domain(*at).and_then(|domain| counts.get_mut(domain)) {
                *count -= 1;
            }
            skews.push(skew(&counts));
        }
        skews
    }
}
