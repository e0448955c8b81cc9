//! The pods of a cluster, found by name, by node and by ReplicaSet.
//!
//! A hundred and fifty thousand of them stand in memory, so each stands there once and the ways to it are numbers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use slab::Slab;

use crate::cost::view::CostPod;

/// Labels as the API has them, for selectors.
pub type Labels = BTreeMap<String, String>;

/// A pod, with what a write to it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    /// What is decided on. [`CostPod::blocked_since`] is filled in by the [`Cluster`](super::Cluster).
    pub pod: CostPod,
    /// `metadata.resourceVersion`.
    pub resource_version: Box<str>,
    /// The annotation with Belay's value as it stands, whoever wrote it.
    pub present: Option<Box<str>>,
    /// Annotation `belay.dev/managed`.
    pub managed: Option<Box<str>>,
    /// `metadata.labels`. Those of a ReplicaSet's pods are alike, so whoever reads pods had better share them.
    pub labels: Arc<Labels>,
    /// Until when [`CostPod::hold`] is in force; absent where that does not end by itself.
    pub hold_until: Option<Timestamp>,
}

/// A pod, and what it ought to carry.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) known: KnownPod,
    pub(super) desired: Option<i32>,
}

impl Kept {
    /// There is something to write. A pod that is about to end is left alone.
    pub(super) fn asks(&self) -> bool {
        let pod = &self.known.pod;
        pod.is_active() && pod.standing.asks_for_a_write(self.desired)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    all: Slab<Kept>,
    named: HashMap<Arc<str>, HashMap<Arc<str>, usize>>,
    on_node: HashMap<Arc<str>, Vec<usize>>,
    of_set: HashMap<Arc<str>, Vec<usize>>,
    /// Those that are held until some time.
    timed: BTreeSet<usize>,
}

impl Pods {
    pub(super) fn id(&self, namespace: &str, name: &str) -> Option<usize> {
        self.named.get(namespace)?.get(name).copied()
    }

    pub(super) fn get(&self, id: usize) -> Option<&Kept> {
        self.all.get(id)
    }

    pub(super) fn get_mut(&mut self, id: usize) -> Option<&mut Kept> {
        self.all.get_mut(id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Kept> {
        self.all.iter().map(|(_, kept)| kept)
    }

    /// All nodes that they are on.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.on_node.keys()
    }

    /// UIDs of all ReplicaSets that they are of.
    pub(super) fn sets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.of_set.keys()
    }

    /// What holds pods until now, or until an earlier time, holds them no longer.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let all = &mut self.all;
        self.timed.retain(|id| {
            let Some(known) = all.get_mut(*id).map(|kept| &mut kept.known) else { return false };
            let is_over = known.hold_until.is_some_and(|until| until <= now);
            if is_over {
                known.hold_until = None;
                known.pod.hold = None;
            }
            !is_over
        });
    }

    pub(super) fn in_namespace(&self, namespace: &str) -> Vec<usize> {
        self.named.get(namespace).into_iter().flat_map(|named| named.values().copied()).collect()
    }

    pub(super) fn ids_on(&self, node: &str) -> &[usize] {
        self.on_node.get(node).map_or(&[], Vec::as_slice)
    }

    pub(super) fn ids_of(&self, set: &str) -> &[usize] {
        self.of_set.get(set).map_or(&[], Vec::as_slice)
    }

    pub(super) fn on(&self, node: &str) -> impl Iterator<Item = &Kept> {
        self.ids_on(node).iter().filter_map(|id| self.all.get(*id))
    }

    pub(super) fn of(&self, set: &str) -> impl Iterator<Item = &Kept> {
        self.ids_of(set).iter().filter_map(|id| self.all.get(*id))
    }

    /// Takes a pod in, which ought to carry what it ought to have carried before, or what it carries. Returns its number,
    /// and the pod of that name that it replaces.
    pub(super) fn insert(&mut self, known: KnownPod) -> (usize, Option<KnownPod>) {
        let before = self.remove(&known.pod.namespace, &known.pod.name);
        let desired = before.as_ref().filter(|before| before.known.pod.uid == known.pod.uid);
        let desired = desired.map_or_else(|| known.pod.standing.written(), |before| before.desired);
        // What belongs to no ReplicaSet carries nothing.
        let desired = desired.filter(|_| known.pod.set.is_some());
        let pod = &known.pod;
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        let (node, set) = (pod.node.clone(), pod.set.clone());
        let is_timed = known.hold_until.is_some();
        let id = self.all.insert(Kept { known, desired });
        if is_timed {
            self.timed.insert(id);
        }
        self.named.entry(namespace).or_default().insert(name, id);
        for (ids, key) in [(&mut self.on_node, node), (&mut self.of_set, set)] {
            if let Some(key) = key {
                ids.entry(key).or_default().push(id);
            }
        }
        (id, before.map(|before| before.known))
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<Kept> {
        let named = self.named.get_mut(namespace)?;
        let id = named.remove(name)?;
        if named.is_empty() {
            self.named.remove(namespace);
        }
        self.timed.remove(&id);
        let kept = self.all.try_remove(id)?;
        let pod = &kept.known.pod;
        for (ids, key) in [(&mut self.on_node, &pod.node), (&mut self.of_set, &pod.set)] {
            let Some(key) = key else { continue };
            let Some(at_key) = ids.get_mut(key) else { continue };
            if let Some(at) = at_key.iter().position(|other| *other == id) {
                at_key.swap_remove(at);
            }
            if at_key.is_empty() {
                ids.remove(key);
            }
        }
        Some(kept)
    }

    /// Nothing is known, nor that something was.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let Self { all, named, on_node, of_set, timed } = self;
        all.is_empty() && named.is_empty() && on_node.is_empty() && of_set.is_empty() && timed.is_empty()
    }
}
