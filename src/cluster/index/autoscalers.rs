//! Autoscalers, by the Deployment that each scales; and which workloads have replicas of ours for a while.
//!
//! Both kinds are watched apart and meet here. Which of several for one Deployment governs it is the same for every
//! replica of Belay: one that a surge stands on, until it is put back; else KEDA's before Kubernetes' own, which follows
//! it; else the first by name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use belay_decide::action::ObjectRef;
use belay_decide::view::{AutoscalerView, Governor};

use super::sinks::Touched;
use super::{Index, State, WorkloadKey, get};
use crate::cluster::project_autoscaler::Autoscaler;
use crate::cluster::watch::Sink;

/// The autoscalers of Deployments.
#[derive(Default)]
pub(super) struct Autoscalers {
    /// By what they scale; rarely more than one.
    of: HashMap<WorkloadKey, Vec<AutoscalerView>>,
    /// What each scales, by kind, namespace and name.
    targets: BTreeMap<(Governor, Box<str>, Box<str>), Box<str>>,
}

impl Autoscalers {
    /// The one that governs this Deployment.
    pub(super) fn governing(&self, key: &WorkloadKey) -> Option<&AutoscalerView> {
        let all = self.of.get(key)?.iter();
        all.min_by_key(|one| (one.surge.is_none(), Reverse(one.governor), one.object.name.as_str()))
    }

    /// Takes in what an autoscaler is now; what it was before.
    fn put(&mut self, autoscaler: Autoscaler) -> Option<AutoscalerView> {
        let before = self.take(autoscaler.governor, &autoscaler.namespace, &autoscaler.name);
        if let Some(view) = autoscaler.view {
            let target: Box<str> = view.target.as_str().into();
            let key = WorkloadKey { namespace: autoscaler.namespace.clone(), name: target.clone() };
            self.of.entry(key).or_default().push(view);
            self.targets.insert((autoscaler.governor, autoscaler.namespace, autoscaler.name), target);
        }
        before
    }

    /// Takes out what is known under this name.
    fn take(&mut self, governor: Governor, namespace: &str, name: &str) -> Option<AutoscalerView> {
        let target = self.targets.remove(&(governor, namespace.into(), name.into()))?;
        let key = WorkloadKey { namespace: namespace.into(), name: target };
        let all = self.of.get_mut(&key)?;
        let at = all.iter().position(|one| one.governor == governor && one.object.name == name)?;
        let view = all.swap_remove(at);
        if all.is_empty() {
            self.of.remove(&key);
        }
        Some(view)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty() && self.targets.is_empty()
    }
}

impl Index {
    /// The autoscaler of a Deployment that is gone, where a surge still stands on it.
    pub fn leftover(&self, key: &WorkloadKey) -> Option<AutoscalerView> {
        let state = self.state.read();
        let is_gone = get(&state.deployments, &key.namespace, &key.name).is_none();
        state.autoscalers.governing(key).filter(|autoscaler| is_gone && autoscaler.surge.is_some()).cloned()
    }
}

impl State {
    /// Notes whether the workload has a surge, after its Deployment or an autoscaler of it changed.
    pub(super) fn note_surge(&mut self, key: &WorkloadKey) {
        let deployment = get(&self.deployments, &key.namespace, &key.name);
        let is_surged = deployment.is_some_and(|deployment| deployment.surge.is_some())
            || self.autoscalers.governing(key).is_some_and(|autoscaler| autoscaler.surge.is_some());
        if is_surged {
            self.surged.insert(key.clone());
        } else {
            self.surged.remove(key);
        }
    }

    fn put_autoscaler(&mut self, autoscaler: Autoscaler, touched: &mut Touched) {
        let now = autoscaler.view.clone();
        let before = self.autoscalers.put(autoscaler);
        // An autoscaler reports to its status all the time, which gives it a new version and concerns nobody but those
        // who are about to write to it.
        let is_news = before.as_ref().map(unversioned) != now.as_ref().map(unversioned);
        self.autoscaler_changed(before.iter().chain(&now), is_news, touched);
    }

    fn take_autoscaler(&mut self, autoscaler: &Autoscaler, touched: &mut Touched) {
        let before = self.autoscalers.take(autoscaler.governor, &autoscaler.namespace, &autoscaler.name);
        self.autoscaler_changed(before.iter(), true, touched);
    }

    fn autoscaler_changed<'a>(
        &mut self,
        views: impl Iterator<Item = &'a AutoscalerView>,
        is_news: bool,
        touched: &mut Touched,
    ) {
        for view in views {
            let key = WorkloadKey::new(&view.object.namespace, &view.target);
            self.note_surge(&key);
            if is_news {
                touched.policies.push(key.namespace.clone());
            }
            if is_news || self.surged.contains(&key) || self.holds_of.contains_key(&key) {
                touched.workloads.push(key);
            }
        }
    }
}

/// What an autoscaler is, whatever its version.
fn unversioned(view: &AutoscalerView) -> AutoscalerView {
    AutoscalerView { object: ObjectRef { resource_version: String::new(), ..view.object.clone() }, ..view.clone() }
}

/// Takes in the autoscalers of one kind.
#[derive(Clone)]
pub struct AutoscalerSink {
    /// The cache.
    pub index: Index,
    /// The kind.
    pub governor: Governor,
}

impl Sink<Autoscaler> for AutoscalerSink {
    fn replace(&mut self, objects: Vec<Autoscaler>) {
        self.index.change(|state, touched| {
            let listed: HashSet<_> = objects.iter().map(|object| (&object.namespace, &object.name)).collect();
            let known = state.autoscalers.targets.keys().filter(|(governor, ..)| *governor == self.governor);
            let gone: Vec<_> =
                known.filter(|(_, namespace, name)| !listed.contains(&(namespace, name))).cloned().collect();
            for (governor, namespace, name) in gone {
                state.take_autoscaler(&Autoscaler { governor, namespace, name, view: None }, touched);
            }
            for object in objects {
                state.put_autoscaler(object, touched);
            }
        });
    }

    fn apply(&mut self, object: Autoscaler) {
        self.index.change(|state, touched| state.put_autoscaler(object, touched));
    }

    fn delete(&mut self, object: Autoscaler) {
        self.index.change(|state, touched| state.take_autoscaler(&object, touched));
    }
}
