//! What a cluster is asked.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::pods::KnownPod;
use super::{Assumed, Cluster, PodName, name_of};
use crate::cost::ranking::Ranking;
use crate::cost::removal;
use crate::cost::values::{at_bind, spread_over};
use crate::cost::view::{CostPod, LOWEST_PRIORITY, NodeFacts, SetView, Standing};

impl Cluster {
    /// Every pod on which there is something to write.
    pub fn asking(&self) -> BTreeSet<PodName> {
        self.pods.all().filter(|kept| kept.asks()).map(name_of).collect()
    }

    /// A pod, and the value that it ought to carry; absent where it is not there, or there is nothing to write.
    pub fn asked_of(&self, namespace: &str, name: &str) -> Option<(&KnownPod, Option<i32>)> {
        let kept = self.pods.get(self.pods.id(namespace, name)?)?;
        kept.asks().then_some((&kept.known, kept.desired))
    }

    /// The value that a pod ought to carry once it is bound to a node; absent is none. `pod` is the pod as it is now.
    pub fn value_at_bind(&self, pod: &CostPod, node: &str, now: Timestamp) -> Option<i32> {
        let known = self.sets.get(pod.set.as_ref()?)?;
        // Those that are seen without a node say nothing about a value, so it does no harm that they are here twice.
        let seen = self.pods.of(&known.set.uid).map(|kept| &kept.known.pod);
        let of_set = self.assumed.values().filter(|assumed| assumed.pod.set == pod.set);
        let coming = of_set.filter(|assumed| assumed.is_believed(now) && !self.is_seen_bound(&assumed.pod));
        let pods = seen.chain(coming.map(|assumed| &assumed.pod)).filter(|other| !self.is_still_to_come(other));
        let pods: Vec<&CostPod> = pods.collect();
        at_bind(&known.set, &pods, pod, node, &self.ground(now))
    }

    /// The pod is bound and has no value yet, but is about to get one. At a bind it is left out of account: to place it as
    /// well is the controller's work, which takes far longer than a scheduler should wait.
    fn is_still_to_come(&self, pod: &CostPod) -> bool {
        let Some(node) = pod.node.as_deref() else { return false };
        let is_left_alone = self.nodes.get(node).is_some_and(|node| node.stood_down);
        pod.standing == Standing::Absent && pod.priority >= LOWEST_PRIORITY && !is_left_alone
    }

    /// A value at bind may be worth asking for: the pod's ReplicaSet is known, and either the node has a rank or the
    /// ReplicaSet is to be spread.
    pub fn may_have_value(&self, set: &str, node: &str) -> bool {
        let Some(known) = self.sets.get(set) else { return false };
        let is_spread = !known.set.constraints.is_empty() || self.options.span_zones;
        known.set.replicas > 1 && (is_spread || self.ranking.rank_of(node).is_some())
    }

    /// UID of the ReplicaSet of a pod, if it is of one; absent where the pod is not known.
    pub fn known_set_of(&self, namespace: &str, name: &str) -> Option<Option<&str>> {
        Some(self.pods.get(self.pods.id(namespace, name)?)?.known.pod.set.as_deref())
    }

    /// A bind was answered: believed until the pod is seen bound. The pod itself need not have been seen yet.
    pub fn assume(&mut self, pod: &CostPod, node: &str, value: Option<i32>, now: Timestamp) {
        let standing = value.map_or(pod.standing, Standing::Ours);
        let bound = CostPod { standing, ..pod.bound_to(node, now) };
        self.assumed.insert(pod.uid.clone(), Assumed { pod: bound, at: now });
    }

    fn is_seen_bound(&self, pod: &CostPod) -> bool {
        let seen = self.pods.id(&pod.namespace, &pod.name).and_then(|id| self.pods.get(id));
        seen.is_some_and(|kept| kept.known.pod.uid == pod.uid && kept.known.pod.node.is_some())
    }

    /// The ranks as of the last look.
    pub fn ranking(&self) -> &Ranking {
        &self.ranking
    }

    /// A node with all that is known of it.
    pub fn node(&self, name: &str) -> Option<&NodeFacts> {
        self.nodes.get(name)
    }

    /// A ReplicaSet by UID.
    pub fn set(&self, uid: &str) -> Option<&SetView> {
        self.sets.get(uid).map(|known| &known.set)
    }

    /// Over which topology keys removals keep a ReplicaSet level, and how far apart their domains may be.
    pub fn spread_over(&self, uid: &str, now: Timestamp) -> Vec<(&str, i32)> {
        let Some(known) = self.sets.get(uid) else { return Vec::new() };
        let pods: Vec<&CostPod> = self.pods.of(uid).map(|kept| &kept.known.pod).collect();
        spread_over(&known.set, &pods, &self.ground(now))
    }

    /// On how many nodes and for how many ReplicaSets Belay stands down.
    pub fn stood_down(&self) -> (usize, usize) {
        self.rivals.count()
    }

    /// The ReplicaSets with pods on a node, by UID.
    pub fn sets_on(&self, node: &str) -> BTreeSet<&str> {
        self.pods.on(node).filter_map(|kept| kept.known.pod.set.as_deref()).collect()
    }

    /// The pods of a ReplicaSet, each with the value that it ought to carry.
    pub fn pods_of(&self, set: &str) -> Vec<(&KnownPod, Option<i32>)> {
        self.pods.of(set).map(|kept| (&kept.known, kept.desired)).collect()
    }

    /// The pods of a ReplicaSet in the order in which a scale-down would take them, by what they carry now; in batches,
    /// within each of which Kubernetes leaves the order open.
    pub fn removal(&self, set: &str, now: Timestamp) -> Vec<Vec<&CostPod>> {
        let pods: Vec<&CostPod> = self.pods.of(set).map(|kept| &kept.known.pod).collect();
        let deployment = self.sets.get(set).and_then(|known| known.deployment.as_ref());
        let siblings = deployment.and_then(|deployment| self.sets_of.get(deployment)).into_iter().flatten();
        let others = siblings.filter(|uid| ***uid != *set);
        let related: Vec<&CostPod> = others.flat_map(|uid| self.pods.of(uid)).map(|kept| &kept.known.pod).collect();
        let order = removal::order(&pods, &related, |at| pods[at].standing.effective(), now);
        order.into_iter().map(|batch| batch.into_iter().map(|at| pods[at]).collect()).collect()
    }
}
