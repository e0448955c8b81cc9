//! What a cluster is told: objects that come, change and go.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::budgets::{Budget, Selects};
use super::pods::KnownPod;
use super::rivals::{Scope, Sign, Stance};
use super::{Claim, Cluster, KnownSet, PodName};
use crate::cost::view::{CostPod, NodeFacts, Standing};

impl Cluster {
    /// Takes a pod in, new or changed.
    pub fn put_pod(&mut self, mut known: KnownPod, now: Timestamp) {
        known.pod.blocked_since = self.budgets.block(&known);
        if known.pod.node.is_some() {
            self.assumed.remove(&known.pod.uid);
        }
        let (id, before) = self.pods.insert(known);
        let Some(kept) = self.pods.get(id) else { return };
        let pod = &kept.known.pod;
        if kept.asks() {
            self.dirty.pods.insert((pod.namespace.clone(), pod.name.clone()));
        }
        if before.as_ref().is_some_and(|before| before.pod == *pod && before.hold_until == kept.known.hold_until) {
            return;
        }
        for pod in before.iter().map(|before| &before.pod).chain([pod]) {
            self.dirty.touch(pod);
        }
        if let Some(set) = &pod.set
            && let Some(against_us) = self.sign(before.as_ref().map(|before| &before.pod), pod)
        {
            let sign = Sign { pod: &pod.uid, node: pod.node.as_deref(), set, against_us };
            let stances = self.rivals.note(sign, self.stand_down, now);
            self.take_stances(stances);
        }
    }

    /// A pod is gone.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        if let Some(kept) = self.pods.remove(namespace, name) {
            self.assumed.remove(&kept.known.pod.uid);
            self.dirty.touch(&kept.known.pod);
        }
    }

    /// Whether what became of a pod is a sign of another controller that writes values, and then whether one against us.
    fn sign(&self, before: Option<&CostPod>, pod: &CostPod) -> Option<bool> {
        let before = before.filter(|before| before.uid == pod.uid).map(|before| before.standing);
        match (before, pod.standing) {
            // Already theirs: another value says that they are still at it.
            (Some(Standing::Theirs { value: old, .. }), Standing::Theirs { value, .. }) if old != value => Some(false),
            (Some(Standing::Theirs { .. }), _) => None,
            // What a process finds when it begins may be a day old.
            (None, _) if self.looked_in.is_none() => None,
            (Some(Standing::Ours(_)), Standing::Stripped(_)) | (_, Standing::Theirs { replaced: true, .. }) => {
                Some(true)
            }
            (Some(Standing::Absent | Standing::GivenUp | Standing::OtherPart(_)), Standing::Theirs { .. }) => {
                Some(false)
            }
            _ => None,
        }
    }

    pub(super) fn take_stances(&mut self, stances: Vec<Stance>) {
        for stance in &stances {
            match &stance.scope {
                Scope::Node(node) => self.compose(&node.clone()),
                Scope::Set(uid) => {
                    if let Some(known) = self.sets.get_mut(uid) {
                        known.set.stood_down = stance.until.is_some();
                        self.dirty.sets.insert(Arc::clone(&known.set.uid));
                    }
                }
            }
        }
        self.stances.extend(stances);
    }

    /// Takes a ReplicaSet in, new or changed.
    pub fn put_set(&mut self, mut known: KnownSet) {
        let uid = known.set.uid.clone();
        known.set.stood_down = self.rivals.has(&Scope::Set(uid.clone()));
        if self.sets.get(&uid) == Some(&known) {
            return;
        }
        self.dirty.sets.insert(uid.clone());
        // It may have been of another Deployment.
        self.remove_set(&uid);
        if let Some(deployment) = &known.deployment {
            self.sets_of.entry(deployment.clone()).or_default().insert(uid.clone());
        }
        self.sets.insert(uid, known);
    }

    /// A ReplicaSet is gone. Its pods, which go with it or belong to nobody from now on, say so themselves.
    pub fn remove_set(&mut self, uid: &str) {
        let Some(known) = self.sets.remove(uid) else { return };
        let Some(deployment) = known.deployment else { return };
        if let Some(sets) = self.sets_of.get_mut(&deployment) {
            sets.remove(uid);
            if sets.is_empty() {
                self.sets_of.remove(&deployment);
            }
        }
    }

    /// Takes a node in, new or changed.
    pub fn put_node(&mut self, facts: NodeFacts) {
        let name = facts.node.name.clone();
        if self.told.get(&name) != Some(&facts) {
            self.told.insert(name.clone(), facts);
            self.compose(&name);
        }
    }

    /// A node is gone.
    pub fn remove_node(&mut self, name: &str) {
        self.told.remove(name);
        self.compose(name);
    }

    /// Takes a NodeClaim in, new or changed.
    pub fn put_claim(&mut self, claim: Claim) {
        if self.claims.get(&claim.name) == Some(&claim) {
            return;
        }
        self.remove_claim(&claim.name.clone());
        if let Some(node) = claim.node.clone() {
            self.claims_of.entry(node.clone()).or_default().insert(claim.name.clone());
            self.claims.insert(claim.name.clone(), claim);
            self.compose(&node);
        }
    }

    /// A NodeClaim is gone.
    pub fn remove_claim(&mut self, name: &str) {
        let Some(node) = self.claims.remove(name).and_then(|claim| claim.node) else { return };
        if let Some(claims) = self.claims_of.get_mut(&node) {
            claims.remove(name);
            if claims.is_empty() {
                self.claims_of.remove(&node);
            }
        }
        self.compose(&node);
    }

    /// Takes a NodePool in: whether it is never consolidated (`consolidateAfter: Never`).
    pub fn put_pool(&mut self, name: &str, is_still: bool) {
        let changed = if is_still { self.still_pools.insert(name.into()) } else { self.still_pools.remove(name) };
        if changed {
            let of_pool = |facts: &&NodeFacts| facts.pool.as_deref() == Some(name);
            let nodes: Vec<_> = self.told.values().filter(of_pool).map(|facts| facts.node.name.clone()).collect();
            for node in nodes {
                self.compose(&node);
            }
        }
    }

    /// Takes a PodDisruptionBudget in, new or changed.
    pub fn put_budget(&mut self, budget: Budget) {
        let namespace = budget.namespace.clone();
        let concerned = self.budgets.insert(budget);
        self.block_anew(&namespace, &concerned);
    }

    /// A PodDisruptionBudget is gone.
    pub fn remove_budget(&mut self, namespace: &str, name: &str) {
        let concerned = self.budgets.remove(namespace, name);
        self.block_anew(namespace, &concerned);
    }

    /// A namespace may have hundreds of budgets, so only pods that the changed one concerns are looked at with all.
    fn block_anew(&mut self, namespace: &str, concerned: &[Selects]) {
        if concerned.is_empty() {
            return;
        }
        for id in self.pods.in_namespace(namespace) {
            let Some(kept) = self.pods.get_mut(id) else { continue };
            if !concerned.iter().any(|selects| selects(&kept.known.labels)) {
                continue;
            }
            let blocked = self.budgets.block(&kept.known);
            if kept.known.pod.blocked_since != blocked {
                kept.known.pod.blocked_since = blocked;
                self.dirty.touch(&kept.known.pod);
            }
        }
    }

    /// Forgets what is not among these: a watch has listed anew.
    pub fn retain_pods(&mut self, is_there: impl Fn(&CostPod) -> bool) {
        let gone: Vec<PodName> = {
            let gone = self.pods.all().map(|kept| &kept.known.pod).filter(|pod| !is_there(pod));
            gone.map(|pod| (pod.namespace.clone(), pod.name.clone())).collect()
        };
        for (namespace, name) in gone {
            self.remove_pod(&namespace, &name);
        }
    }

    /// The same for ReplicaSets, by UID.
    pub fn retain_sets(&mut self, uids: &HashSet<Arc<str>>) {
        let gone: Vec<_> = self.sets.keys().filter(|uid| !uids.contains(*uid)).cloned().collect();
        for uid in gone {
            self.remove_set(&uid);
        }
    }

    /// The same for nodes, by name.
    pub fn retain_nodes(&mut self, names: &HashSet<Arc<str>>) {
        let gone: Vec<_> = self.told.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            self.remove_node(&name);
        }
    }

    /// The same for NodeClaims, by name.
    pub fn retain_claims(&mut self, names: &HashSet<Arc<str>>) {
        let gone: Vec<_> = self.claims.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            self.remove_claim(&name);
        }
    }

    /// The same for NodePools, by name.
    pub fn retain_pools(&mut self, names: &HashSet<Box<str>>) {
        let gone: Vec<_> = self.still_pools.iter().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            self.put_pool(&name, false);
        }
    }

    /// The same for PodDisruptionBudgets.
    pub fn retain_budgets(&mut self, names: &HashSet<PodName>) {
        for (namespace, name) in self.budgets.names().into_iter().filter(|name| !names.contains(name)) {
            self.remove_budget(&namespace, &name);
        }
    }
}
