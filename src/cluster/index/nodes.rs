//! Nodes that are about to go: what is known of them, and whom a change concerns.
//!
//! Few nodes say anything at all, so only those are kept. Since when each of them says so is this process' own
//! knowledge: it outlives a list of all nodes that is read anew, and not the process.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use belay_decide::doom::{Doomed, Signals, judge};
use belay_decide::view::{NodeView, PodView};
use jiff::Timestamp;

use super::sinks::{Kind, Touched};
use super::{Index, State};

/// A node, and when it was seen so.
#[derive(Clone, Debug)]
pub struct SeenNode {
    /// The node.
    pub view: NodeView,
    /// By wall clock.
    pub at: Timestamp,
}

/// What nodes say.
#[derive(Default)]
pub(super) struct Nodes {
    /// Signals of the platform's own.
    signals: Signals,
    /// Nodes that say anything, by name.
    telling: HashMap<Arc<str>, NodeView>,
}

impl Nodes {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.telling.is_empty()
    }
}

impl State {
    /// The pod is on its node.
    pub(super) fn settle(&mut self, set: &Arc<str>, pod: &PodView) {
        if let Some(node) = &pod.node {
            self.sets_on.entry(Arc::clone(node)).or_default().push(Arc::clone(set));
        }
        self.pods_of.entry(Arc::clone(set)).or_default().insert(Arc::clone(&pod.name));
    }

    /// The pod is not there any more, or not as it was known.
    pub(super) fn leave(&mut self, pod: &PodView) {
        let (Some(node), Some(set)) = (&pod.node, &pod.replica_set) else { return };
        let Some(sets) = self.sets_on.get_mut(node) else { return };
        if let Some(at) = sets.iter().position(|uid| **uid == **set) {
            sets.swap_remove(at);
        }
        if sets.is_empty() {
            self.sets_on.remove(node);
        }
    }

    /// What is known of these nodes, where they are about to go or may be.
    pub(super) fn dooms<'a>(&'a self, pods: &[&'a PodView]) -> BTreeMap<&'a str, &'a Doomed> {
        let nodes = pods.iter().filter_map(|pod| pod.node.as_deref());
        nodes.filter_map(|node| Some((node, self.doomed.get(node)?))).collect()
    }

    /// Names of the nodes that are about to go, in their order.
    pub(super) fn going(&self) -> BTreeSet<&str> {
        self.doomed.iter().filter(|(_, doomed)| !doomed.soft).map(|(name, _)| &**name).collect()
    }

    /// Every workload with a pod on a node that is about to go, or may be.
    pub(super) fn touch_doomed(&self, touched: &mut Touched) {
        for node in self.doomed.keys() {
            self.touch_on(node, touched);
        }
    }

    fn touch_on(&self, node: &str, touched: &mut Touched) {
        let sets: HashSet<_> = self.sets_on.get(node).into_iter().flatten().collect();
        for set in sets {
            touched.replica_set(self, set);
        }
    }

    fn judge(&mut self, node: &str, at: Timestamp, touched: &mut Touched) {
        let judged = self.nodes.telling.get(node).and_then(|view| judge(view, &self.nodes.signals));
        let before = self.doomed.get(node);
        let now = judged.map(|judged| Doomed::seen(before, judged, at));
        if before == now.as_ref() {
            return;
        }
        let is_going = |doomed: Option<&Doomed>| doomed.is_some_and(|doomed| !doomed.soft);
        if is_going(before) != is_going(now.as_ref()) {
            // A replacement there counts for nothing, whose ever it is.
            touched.all_with_holds(self, None);
        }
        match now {
            Some(doomed) => drop(self.doomed.insert(node.into(), doomed)),
            None => drop(self.doomed.remove(node)),
        }
        self.touch_on(node, touched);
    }
}

impl Index {
    /// Has nodes judged by these signals besides those that are known to everybody.
    pub fn judge_by(&self, signals: &Signals, now: Timestamp) {
        self.change(|state, touched| {
            if state.nodes.signals == *signals {
                return;
            }
            state.nodes.signals = signals.clone();
            let names: Vec<_> = state.nodes.telling.keys().cloned().collect();
            for name in names {
                state.judge(&name, now, touched);
            }
        });
    }
}

impl Kind for SeenNode {
    fn clear(state: &mut State) {
        state.nodes.telling.clear();
        state.doomed.clear();
    }

    fn put(self, state: &mut State, touched: &mut Touched) {
        let Self { view, at } = self;
        let name = view.name.clone();
        let tells = view.unschedulable || !view.taints.is_empty() || !view.conditions.is_empty();
        if tells {
            state.nodes.telling.insert(name.clone(), view);
        } else {
            state.nodes.telling.remove(&name);
        }
        state.judge(&name, at, touched);
    }

    fn take(self, state: &mut State, touched: &mut Touched) {
        state.nodes.telling.remove(&self.view.name);
        state.judge(&self.view.name, self.at, touched);
    }

    fn known(state: &State, touched: &mut Touched) {
        touched.all_with_holds(state, None);
    }

    /// One by one, so that it stays known since when a node is about to go.
    fn replace(all: Vec<Self>, state: &mut State, touched: &mut Touched) {
        Self::known(state, touched);
        let names: HashSet<_> = all.iter().map(|one| one.view.name.clone()).collect();
        let gone: Vec<_> = state.nodes.telling.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            state.nodes.telling.remove(&name);
            state.doomed.remove(&name);
        }
        for one in all {
            one.put(state, touched);
        }
    }
}
