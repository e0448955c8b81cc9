//! The nodes of a cluster: found by name in one step, and walked in the order of their names.
//!
//! Each value that is decided asks for the nodes of all pods of its ReplicaSet, and the names of five thousand nodes
//! differ only in their middle: a tree alone would compare a dozen of them each time.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use slab::Slab;

use super::view::NodeFacts;

/// All nodes, by name.
#[derive(Clone, Default)]
pub struct Nodes {
    all: Slab<NodeFacts>,
    found: HashMap<Arc<str>, usize>,
    sorted: BTreeMap<Arc<str>, usize>,
}

impl Nodes {
    /// No nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The node of this name.
    pub fn get(&self, name: &str) -> Option<&NodeFacts> {
        self.all.get(*self.found.get(name)?)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut NodeFacts> {
        self.all.get_mut(*self.found.get(name)?)
    }

    /// A node's name as it is kept here: whoever keeps it as well had better share it.
    pub fn name(&self, name: &str) -> Option<&Arc<str>> {
        self.found.get_key_value(name).map(|(name, _)| name)
    }

    /// Takes a node in, new or changed; what was known of it before.
    pub fn insert(&mut self, name: Arc<str>, facts: NodeFacts) -> Option<NodeFacts> {
        if let Some(known) = self.get_mut(&name) {
            return Some(std::mem::replace(known, facts));
        }
        let id = self.all.insert(facts);
        self.found.insert(Arc::clone(&name), id);
        self.sorted.insert(name, id);
        None
    }

    /// Takes a node out.
    pub fn remove(&mut self, name: &str) -> Option<NodeFacts> {
        let id = self.found.remove(name)?;
        self.sorted.remove(name);
        self.all.try_remove(id)
    }

    /// All nodes, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &NodeFacts)> {
        self.sorted.iter().filter_map(|(name, id)| Some((name, self.all.get(*id)?)))
    }

    /// Their names, in ascending order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.sorted.keys()
    }

    /// All nodes, in no order, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut NodeFacts> {
        self.all.iter_mut().map(|(_, facts)| facts)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl FromIterator<(Arc<str>, NodeFacts)> for Nodes {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, NodeFacts)>>(all: I) -> Self {
        let mut nodes = Self::new();
        for (name, facts) in all {
            nodes.insert(name, facts);
        }
        nodes
    }
}

impl PartialEq for Nodes {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::testing::node;

    #[test]
    fn nodes_are_walked_by_name_whatever_came_and_went() {
        let mut nodes: Nodes = ["c", "a", "b"].into_iter().map(|name| (name.into(), node(name, "z"))).collect();
        assert!(nodes.remove("a").is_some() && nodes.remove("a").is_none());
        assert!(nodes.insert("0".into(), node("0", "z")).is_none());
        let drifted = NodeFacts { drifted: true, ..node("b", "z") };
        assert_eq!(nodes.insert("b".into(), drifted.clone()), Some(node("b", "z")), "what was known");
        assert_eq!(nodes.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["0", "b", "c"]);
        assert_eq!((nodes.get("b"), nodes.get("a"), nodes.len()), (Some(&drifted), None, 3));
    }
}
