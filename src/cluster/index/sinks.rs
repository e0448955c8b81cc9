//! How watched objects get into the cache, and whom each change concerns.

use std::collections::HashSet;
use std::sync::Arc;

use belay_decide::hold::{HoldReason, HoldView};
use belay_decide::view::{DeploymentView, PodView, ReplicaSetView};

use super::busy::living;
use super::{Index, PodKey, Policy, State, WorkloadKey, forget, get, insert, remove};
use crate::cluster::watch::Sink;

/// A sink that feeds the cache; one for each kind of view.
#[derive(Clone)]
pub struct IndexSink(pub Index);

/// What a kind of view does to the cache.
pub(super) trait Kind: Sized {
    /// Forgets all of this kind.
    fn clear(state: &mut State);
    /// Takes one in.
    fn put(self, state: &mut State, touched: &mut Touched);
    /// Takes one out.
    fn take(self, state: &mut State, touched: &mut Touched);
    /// All of this kind that are known, as whom a complete new set concerns.
    fn known(state: &State, touched: &mut Touched);
    /// Takes in a complete new set.
    fn replace(all: Vec<Self>, state: &mut State, touched: &mut Touched) {
        Self::known(state, touched);
        Self::clear(state);
        for one in all {
            one.put(state, touched);
        }
        Self::known(state, touched);
    }
    /// The same, for the whole cache.
    fn replace_in(index: &Index, all: Vec<Self>) {
        index.change(|state, touched| Self::replace(all, state, touched));
    }
}

/// So many pods of a list are taken in before others have their turn: less than a millisecond.
const AT_ONCE: usize = 256;

/// Whom a change concerns.
#[derive(Default)]
pub(super) struct Touched {
    pub(super) workloads: Vec<WorkloadKey>,
    pub(super) policies: Vec<Box<str>>,
    pub(super) pods: Vec<PodKey>,
    pub(super) requests: Vec<PodKey>,
}

impl Touched {
    pub(super) fn replica_set(&mut self, state: &State, set_uid: &str) {
        if let Some(deployment) = state.set_owner.get(set_uid) {
            self.deployment_uid(state, deployment);
        }
    }

    fn deployment_uid(&mut self, state: &State, uid: &str) {
        self.workloads.extend(state.deployment_names.get(uid).cloned());
    }

    /// Only workloads that are being handed over care about nodes and policies as such.
    pub(super) fn all_with_holds(&mut self, state: &State, namespace: Option<&str>) {
        let concerned =
            state.handed_over().filter(|key| namespace.is_none_or(|namespace| &*key.namespace == namespace));
        self.workloads.extend(concerned.cloned());
    }
}

impl Index {
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State, &mut Touched) -> R) -> R {
        let mut touched = Touched::default();
        let result = change(&mut self.state.write(), &mut touched);
        if let Some(dirty) = &self.dirty {
            for key in touched.workloads {
                dirty.workload(key);
            }
            for namespace in touched.policies {
                dirty.policies(&namespace);
            }
            for key in touched.pods {
                dirty.pod(key);
            }
            for key in touched.requests {
                dirty.request(key);
            }
        }
        result
    }
}

impl<V: Kind + Send> Sink<V> for IndexSink {
    fn replace(&mut self, objects: Vec<V>) {
        V::replace_in(&self.0, objects);
    }

    fn apply(&mut self, object: V) {
        self.0.change(|state, touched| object.put(state, touched));
    }

    fn delete(&mut self, object: V) {
        self.0.change(|state, touched| object.take(state, touched));
    }
}

impl Kind for PodView {
    fn clear(state: &mut State) {
        state.pods.clear();
        state.pods_of.clear();
        state.sets_on.clear();
        state.busy.marked.clear();
    }

    fn put(self, state: &mut State, touched: &mut Touched) {
        let key = PodKey::new(&self.namespace, &self.name);
        state.mark(key.clone(), self.marked, touched);
        if get(&state.pods, &self.namespace, &self.name).and_then(|pod| living(pod)) != living(&self) {
            state.touch_held(&key, touched);
        }
        if let Some(set) = &self.replica_set {
            touched.replica_set(state, set);
            state.settle(set, &self);
        }
        let (namespace, name) = (Arc::clone(&self.namespace), Arc::clone(&self.name));
        let before = state.pods.entry(Arc::clone(&namespace)).or_default().insert(Arc::clone(&name), Box::new(self));
        // A pod may leave its ReplicaSet (its labels were changed) or be another one of the same name.
        if let Some(before) = before {
            let now =
                state.pods.get(&namespace).and_then(|pods| pods.get(&name)).and_then(|pod| pod.replica_set.clone());
            state.leave(&before);
            if before.replica_set != now {
                forget_pod_of(state, &before, touched);
            }
        }
    }

    fn take(self, state: &mut State, touched: &mut Touched) {
        take_pod(state, &self.namespace, &self.name, touched);
    }

    /// Piece by piece, as if each came by itself: no answer should wait for a hundred thousand pods.
    fn replace_in(index: &Index, all: Vec<Self>) {
        index.change(|state, touched| Self::known(state, touched));
        let names: HashSet<_> = all.iter().map(|pod| (&pod.namespace, &pod.name)).collect();
        let gone: Vec<(Arc<str>, Arc<str>)> = {
            let state = index.state.read();
            let known = state.pods.iter().flat_map(|(namespace, pods)| pods.keys().map(move |name| (namespace, name)));
            let gone = known.filter(|name| !names.contains(name));
            gone.map(|(namespace, name)| (Arc::clone(namespace), Arc::clone(name))).collect()
        };
        for part in gone.chunks(AT_ONCE) {
            index.change(|state, touched| {
                for (namespace, name) in part {
                    take_pod(state, namespace, name, touched);
                }
            });
        }
        let mut all = all.into_iter();
        while all.len() > 0 {
            index.change(|state, touched| all.by_ref().take(AT_ONCE).for_each(|pod| pod.put(state, touched)));
        }
        index.change(|state, touched| Self::known(state, touched));
    }

    fn known(state: &State, touched: &mut Touched) {
        touched.all_with_holds(state, None);
        touched.pods.extend(state.busy.marked.iter().chain(state.busy.holds_of.keys()).cloned());
    }
}

fn take_pod(state: &mut State, namespace: &str, name: &str, touched: &mut Touched) {
    let key = PodKey::new(namespace, name);
    state.touch_held(&key, touched);
    state.mark(key, false, touched);
    if let Some(pod) = remove(&mut state.pods, namespace, name) {
        state.leave(&pod);
        forget_pod_of(state, &pod, touched);
    }
    // The hold of a pod outlives its ReplicaSet's knowledge of it.
    touched.all_with_holds(state, Some(namespace));
}

fn forget_pod_of(state: &mut State, pod: &PodView, touched: &mut Touched) {
    let Some(set) = &pod.replica_set else { return };
    touched.replica_set(state, set);
    forget(&mut state.pods_of, &**set, &pod.name);
}

impl Kind for ReplicaSetView {
    fn clear(state: &mut State) {
        state.replica_sets.clear();
        state.sets_of.clear();
        state.set_owner.clear();
    }

    fn put(self, state: &mut State, touched: &mut Touched) {
        if let Some(deployment) = &self.deployment {
            touched.deployment_uid(state, deployment);
            state.set_owner.insert(self.uid.clone(), deployment.clone());
            state.sets_of.entry(deployment.clone()).or_default().insert(self.name.clone());
        }
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        let uid = self.uid.clone();
        let deployment = self.deployment.clone();
        // A ReplicaSet may leave its Deployment (its labels were changed) or be another one of the same name.
        if let Some(before) = insert(&mut state.replica_sets, &namespace, &name, self)
            && (before.uid != uid || before.deployment != deployment)
        {
            if before.uid != uid || deployment.is_none() {
                state.set_owner.remove(&before.uid);
            }
            if before.deployment != deployment {
                forget_set_of(state, &before, touched);
            }
        }
    }

    fn take(self, state: &mut State, touched: &mut Touched) {
        let Some(set) = remove(&mut state.replica_sets, &self.namespace, &self.name) else { return };
        state.set_owner.remove(&set.uid);
        forget_set_of(state, &set, touched);
    }

    fn known(state: &State, touched: &mut Touched) {
        touched.all_with_holds(state, None);
    }
}

fn forget_set_of(state: &mut State, set: &ReplicaSetView, touched: &mut Touched) {
    let Some(deployment) = &set.deployment else { return };
    touched.deployment_uid(state, deployment);
    forget(&mut state.sets_of, deployment, &set.name);
}

impl Kind for DeploymentView {
    fn clear(state: &mut State) {
        state.deployments.clear();
        state.deployment_names.clear();
        let surged: Vec<_> = state.surged.drain().collect();
        for key in surged {
            state.note_surge(&key);
        }
    }

    fn put(self, state: &mut State, touched: &mut Touched) {
        let key = WorkloadKey::new(&self.namespace, &self.name);
        let uid: Box<str> = self.uid.as_str().into();
        touched.policies.push(key.namespace.clone());
        touched.workloads.push(key.clone());
        let before = insert(&mut state.deployments, &key.namespace, &key.name, self);
        if let Some(before) = before.filter(|before| *before.uid != *uid) {
            state.deployment_names.remove(before.uid.as_str());
        }
        state.note_surge(&key);
        state.deployment_names.insert(uid, key);
    }

    fn take(self, state: &mut State, touched: &mut Touched) {
        if let Some(gone) = remove(&mut state.deployments, &self.namespace, &self.name) {
            state.deployment_names.remove(gone.uid.as_str());
        }
        let key = WorkloadKey::new(&self.namespace, &self.name);
        state.note_surge(&key);
        touched.policies.push(key.namespace.clone());
        touched.workloads.push(key);
    }

    fn known(state: &State, touched: &mut Touched) {
        touched.all_with_holds(state, None);
        touched.policies.extend(state.policies.keys().cloned());
    }
}

impl Kind for Policy {
    fn clear(state: &mut State) {
        state.policies.clear();
    }

    fn put(self, state: &mut State, touched: &mut Touched) {
        let namespace = self.view.namespace.clone();
        touched.policies.push(namespace.as_str().into());
        touched.all_with_holds(state, Some(&namespace));
        // It may have handovers begin by themselves, or not any more.
        state.touch_doomed(touched);
        let name = self.view.name.clone();
        insert(&mut state.policies, &namespace, &name, self);
    }

    fn take(self, state: &mut State, touched: &mut Touched) {
        remove(&mut state.policies, &self.view.namespace, &self.view.name);
        touched.policies.push(self.view.namespace.as_str().into());
        touched.all_with_holds(state, Some(&self.view.namespace));
    }

    fn known(state: &State, touched: &mut Touched) {
        touched.policies.extend(state.policies.keys().cloned());
        touched.all_with_holds(state, None);
        state.touch_doomed(touched);
    }
}

impl Kind for HoldView {
    fn clear(state: &mut State) {
        state.holds.clear();
        state.holds_of.clear();
        state.busy.holds_of.clear();
        state.requests.clear_holds();
    }

    fn put(self, state: &mut State, touched: &mut Touched) {
        forget_hold(state, &self, touched);
        touch_hold(&self, touched);
        state.requests.put_hold(&self, touched);
        let name: Box<str> = self.name.as_str().into();
        match self.spec.reason {
            HoldReason::Handover => state.holds_of.entry(workload_of(&self)).or_default().insert(name),
            _ => state.busy.holds_of.entry(victim_of(&self)).or_default().insert(name),
        };
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        insert(&mut state.holds, &namespace, &name, self);
    }

    fn take(self, state: &mut State, touched: &mut Touched) {
        forget_hold(state, &self, touched);
    }

    fn known(state: &State, touched: &mut Touched) {
        touched.all_with_holds(state, None);
        touched.policies.extend(state.policies.keys().cloned());
        touched.pods.extend(state.busy.holds_of.keys().cloned());
        touched.requests.extend(state.requests.pods());
    }
}

fn workload_of(hold: &HoldView) -> WorkloadKey {
    WorkloadKey::new(&hold.namespace, &hold.spec.workload.name)
}

pub(super) fn victim_of(hold: &HoldView) -> PodKey {
    PodKey::new(&hold.namespace, &hold.spec.victim_name)
}

/// What is known under its name goes, whatever the object says: another one may have taken the name.
fn forget_hold(state: &mut State, hold: &HoldView, touched: &mut Touched) {
    let Some(gone) = remove(&mut state.holds, &hold.namespace, &hold.name) else { return };
    touch_hold(&gone, touched);
    state.requests.take_hold(&gone, touched);
    match gone.spec.reason {
        HoldReason::Handover => forget(&mut state.holds_of, &workload_of(&gone), gone.name.as_str()),
        _ => forget(&mut state.busy.holds_of, &victim_of(&gone), gone.name.as_str()),
    }
}

fn touch_hold(hold: &HoldView, touched: &mut Touched) {
    match hold.spec.reason {
        HoldReason::Handover => {
            touched.policies.push(hold.namespace.as_str().into());
            touched.workloads.push(workload_of(hold));
        }
        _ => touched.pods.push(victim_of(hold)),
    }
}
