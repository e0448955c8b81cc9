//! The lean cache: what Belay knows of the cluster, and the questions that are asked of it.
//!
//! Plain maps of views under one lock. Watches write; the webhook and the controllers read through closures that
//! run under the read lock and borrow, so a question costs look-ups and no copies. Writes also say which
//! workloads they concern ([`Dirty`]), so that the controller looks at those alone.

mod autoscalers;
mod busy;
mod dirty;
mod nodes;
mod requests;
mod sinks;
#[cfg(test)]
mod tests;
mod workloads;

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use belay_decide::busy::Rule;
use belay_decide::doom::Doomed;
use belay_decide::hold::HoldView;
use belay_decide::policy::{DefaultPolicy, PolicyView, Protection, protection};
use belay_decide::view::{DeploymentView, PodView, ReplicaSetView};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use parking_lot::RwLock;

pub use autoscalers::AutoscalerSink;
pub use busy::{BusyFacts, BusyPodSink, Governed, Linked, LinkedSink, OwnerSink, hold_of};
pub use dirty::{Dirty, PodKey, WorkloadKey};
pub use nodes::SeenNode;
pub use requests::Requested;
pub use sinks::IndexSink;
pub use workloads::{PolicyState, Selected, Target};

use crate::api;

/// Objects by namespace and name; looked up by borrowed strings.
type Named<V, K = Box<str>> = HashMap<K, HashMap<K, V>>;

/// Pods, of which there are the most by far: the maps have their names from them, and half of a map's places are empty.
type Pods = Named<Box<PodView>, Arc<str>>;

/// A HandoverPolicy with what selects its Deployments.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What decisions read.
    pub view: PolicyView,
    /// What it selects.
    pub target: Target,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `status`, as last seen.
    pub status: Option<api::HandoverPolicyStatus>,
}

#[derive(Default)]
struct State {
    pods: Pods,
    /// Names of pods by the UID of their ReplicaSet (pods live in its namespace).
    pods_of: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// UIDs of the ReplicaSets of the pods on each node, one a pod.
    sets_on: HashMap<Arc<str>, Vec<Arc<str>>>,
    replica_sets: Named<ReplicaSetView>,
    /// Names of ReplicaSets by the UID of their Deployment.
    sets_of: HashMap<Box<str>, BTreeSet<Box<str>>>,
    /// UID of the Deployment (and its namespace) by the UID of the ReplicaSet.
    set_owner: HashMap<Arc<str>, Box<str>>,
    deployments: Named<DeploymentView>,
    /// Name of a Deployment by its UID.
    deployment_names: HashMap<Box<str>, WorkloadKey>,
    /// What scales Deployments.
    autoscalers: autoscalers::Autoscalers,
    /// Workloads with replicas that a surge of ours added: they are looked after until it is put back.
    surged: HashSet<WorkloadKey>,
    /// Nodes that say something by cordon, taints or conditions.
    nodes: nodes::Nodes,
    /// Those that are about to go, or may be.
    doomed: HashMap<Arc<str>, Doomed>,
    policies: Named<Policy>,
    holds: Named<HoldView>,
    /// Names of holds for a handover by the name of their workload.
    holds_of: HashMap<WorkloadKey, BTreeSet<Box<str>>>,
    /// What busy rules read.
    busy: busy::Busy,
    /// What is asked by EvictionRequests.
    requests: requests::Requests,
}

/// The cache. Cheap to clone.
#[derive(Clone, Default)]
pub struct Index {
    state: Arc<RwLock<State>>,
    dirty: Option<Dirty>,
    rules: Arc<Vec<Rule>>,
}

impl Index {
    /// An empty cache that only answers, for these busy rules.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self { rules: Arc::new(rules), ..Self::default() }
    }

    /// An empty cache that also notes what changes, for who takes that in; it would pile up otherwise.
    pub fn following(rules: Vec<Rule>) -> (Self, Dirty) {
        let dirty = Dirty::default();
        (Self { dirty: Some(dirty.clone()), ..Self::new(rules) }, dirty)
    }
}

#[cfg(test)]
impl Index {
    /// Nothing is known, nor that something was.
    pub(crate) fn is_empty(&self) -> bool {
        // Named one by one, so that none is left out.
        let State {
            pods,
            pods_of,
            sets_on,
            replica_sets,
            sets_of,
            set_owner,
            deployments,
            deployment_names,
            autoscalers,
            surged,
            nodes,
            doomed,
            policies,
            holds,
            holds_of,
            busy,
            requests,
        } = &*self.state.read();
        pods.is_empty()
            && pods_of.is_empty()
            && sets_on.is_empty()
            && replica_sets.is_empty()
            && sets_of.is_empty()
            && set_owner.is_empty()
            && deployments.is_empty()
            && deployment_names.is_empty()
            && autoscalers.is_empty()
            && surged.is_empty()
            && nodes.is_empty()
            && doomed.is_empty()
            && policies.is_empty()
            && holds.is_empty()
            && holds_of.is_empty()
            && busy.is_empty()
            && requests.is_empty()
    }
}

fn get<'a, V, K: Borrow<str> + Eq + Hash>(named: &'a Named<V, K>, namespace: &str, name: &str) -> Option<&'a V> {
    named.get(namespace)?.get(name)
}

fn insert<V>(named: &mut Named<V>, namespace: &str, name: &str, value: V) -> Option<V> {
    if let Some(inside) = named.get_mut(namespace) {
        return inside.insert(name.into(), value);
    }
    named.entry(namespace.into()).or_default().insert(name.into(), value)
}

/// Takes a value out of the set of a key; no empty set is kept.
fn forget<K, L, V, Q>(sets: &mut HashMap<K, BTreeSet<V>>, key: &L, value: &Q)
where
    K: Borrow<L> + Eq + Hash,
    L: Eq + Hash + ?Sized,
    V: Borrow<Q> + Ord,
    Q: Ord + ?Sized,
{
    if let Some(set) = sets.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

fn remove<V, K: Borrow<str> + Eq + Hash>(named: &mut Named<V, K>, namespace: &str, name: &str) -> Option<V> {
    let inside = named.get_mut(namespace)?;
    let removed = inside.remove(name);
    if inside.is_empty() {
        named.remove(namespace);
    }
    removed
}
