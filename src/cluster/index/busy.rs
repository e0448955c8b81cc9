//! What is known for busy rules: the pods they govern, their owners, the pods linked to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use belay_decide::busy::{BusyPod, ControllerRef, Fields, Found, GroupKind, Owner, Rule, Seen};
use belay_decide::hold::{HoldReason, HoldView, hold_name};
use jiff::Timestamp;

use super::sinks::Touched;
use super::{Index, Named, PodKey, State, get, insert, remove};
use crate::cluster::project_busy::OwnerFields;
use crate::cluster::watch::Sink;

/// A pod that is linked to another by a label.
#[derive(Clone, Debug)]
pub struct Linked {
    /// `metadata.namespace`, of both.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// The label's value: the name of the other pod.
    pub to: Box<str>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// The pod has ended.
    pub finished: bool,
    /// What rules read of it.
    pub object: serde_json::Value,
}

impl Linked {
    /// It counts for this pod. One that is older than the pod belongs to a former pod of that name.
    pub fn counts_for(&self, pod: &BusyPod) -> bool {
        !self.finished && self.created >= pod.created && self.name != pod.name
    }
}

/// An object by namespace and name, of one kind.
type OwnerKey = (GroupKind, Box<str>, Box<str>);

#[derive(Default)]
pub(super) struct Busy {
    /// By the number of the rule that selects it; the first one governs.
    pods: Named<BTreeMap<usize, BusyPod>>,
    /// Names of governed pods by their controller.
    pods_of: HashMap<OwnerKey, BTreeSet<Box<str>>>,
    owners: HashMap<GroupKind, Named<Owner>>,
    /// Objects on the way to an owner, by that owner: its kind and name.
    owned: HashMap<OwnerKey, BTreeSet<(GroupKind, Box<str>)>>,
    linked: HashMap<Box<str>, Named<Linked>>,
    /// Names of linked pods by label and the pod that they are linked to.
    linked_to: HashMap<(Box<str>, PodKey), BTreeSet<Box<str>>>,
    /// Names of holds for another reason than a handover, by their victim.
    pub(super) holds_of: HashMap<PodKey, BTreeSet<Box<str>>>,
    /// Pods that carry hints of ours, governed or not.
    pub(super) marked: BTreeSet<PodKey>,
}

fn note(sets: &mut HashMap<OwnerKey, BTreeSet<Box<str>>>, key: OwnerKey, name: &str) {
    sets.entry(key).or_default().insert(name.into());
}

fn forget<K: std::hash::Hash + Eq, V: Ord>(sets: &mut HashMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

fn owner_key(namespace: &str, controller: &ControllerRef) -> OwnerKey {
    (controller.kind.clone(), namespace.into(), controller.name.clone())
}

impl Busy {
    fn put_pod(&mut self, rule: usize, pod: BusyPod, touched: &mut Touched) {
        touched.pods.push(PodKey::new(&pod.namespace, &pod.name));
        self.forget_pod(rule, &pod.namespace, &pod.name);
        if let Some(controller) = &pod.controller {
            note(&mut self.pods_of, owner_key(&pod.namespace, controller), &pod.name);
        }
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        match self.pods.get_mut(&namespace).and_then(|pods| pods.get_mut(&name)) {
            Some(views) => drop(views.insert(rule, pod)),
            None => drop(insert(&mut self.pods, &namespace, &name, BTreeMap::from([(rule, pod)]))),
        }
    }

    fn take_pod(&mut self, rule: usize, pod: &BusyPod, touched: &mut Touched) {
        touched.pods.push(PodKey::new(&pod.namespace, &pod.name));
        self.forget_pod(rule, &pod.namespace, &pod.name);
    }

    fn forget_pod(&mut self, rule: usize, namespace: &str, name: &str) {
        let Some(views) = self.pods.get_mut(namespace).and_then(|pods| pods.get_mut(name)) else { return };
        let gone = views.remove(&rule);
        let is_last = views.is_empty();
        if is_last {
            remove(&mut self.pods, namespace, name);
        }
        if let Some(controller) = gone.and_then(|gone| gone.controller).filter(|_| is_last) {
            forget(&mut self.pods_of, &owner_key(namespace, &controller), &name.into());
        }
    }

    /// Pods that ask this object, directly or through another.
    fn touch_owner(&self, kind: &GroupKind, owner: &Owner, touched: &mut Touched) {
        let key = (kind.clone(), owner.namespace.clone(), owner.name.clone());
        let through = self.owned.get(&key).into_iter().flatten();
        let keys =
            through.map(|(kind, name)| (kind.clone(), owner.namespace.clone(), name.clone())).chain([key.clone()]);
        for key in keys {
            let pods = self.pods_of.get(&key).into_iter().flatten();
            touched.pods.extend(pods.map(|pod| PodKey::new(&key.1, pod)));
        }
    }

    fn put_owner(&mut self, kind: &GroupKind, owner: Owner, touched: &mut Touched) {
        self.take_owner(kind, &owner, touched);
        if let Some(controller) = &owner.controller {
            let step = (kind.clone(), owner.name.clone());
            self.owned.entry(owner_key(&owner.namespace, controller)).or_default().insert(step);
        }
        let (namespace, name) = (owner.namespace.clone(), owner.name.clone());
        insert(self.owners.entry(kind.clone()).or_default(), &namespace, &name, owner);
    }

    fn take_owner(&mut self, kind: &GroupKind, owner: &Owner, touched: &mut Touched) {
        self.touch_owner(kind, owner, touched);
        let Some(owners) = self.owners.get_mut(kind) else { return };
        let gone = remove(owners, &owner.namespace, &owner.name);
        if let Some(controller) = gone.and_then(|gone| gone.controller) {
            let step = (kind.clone(), owner.name.clone());
            forget(&mut self.owned, &owner_key(&owner.namespace, &controller), &step);
        }
    }

    fn put_linked(&mut self, label: &str, pod: Linked, touched: &mut Touched) {
        self.take_linked(label, &pod, touched);
        let to = PodKey::new(&pod.namespace, &pod.to);
        self.linked_to.entry((label.into(), to.clone())).or_default().insert(pod.name.clone());
        touched.pods.push(to);
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        insert(self.linked.entry(label.into()).or_default(), &namespace, &name, pod);
    }

    fn take_linked(&mut self, label: &str, pod: &Linked, touched: &mut Touched) {
        let Some(named) = self.linked.get_mut(label) else { return };
        // The label may have been changed: the one that was known counts.
        if let Some(gone) = remove(named, &pod.namespace, &pod.name) {
            let to = PodKey::new(&gone.namespace, &gone.to);
            forget(&mut self.linked_to, &(label.into(), to.clone()), &gone.name);
            touched.pods.push(to);
        }
    }

    fn owner_of(&self, kind: &GroupKind, namespace: &str, controller: Option<&ControllerRef>) -> Option<&Owner> {
        let controller = controller.filter(|controller| controller.kind == *kind)?;
        let owners = self.owners.get(kind)?;
        // An object of the cluster has no namespace.
        let owner = get(owners, namespace, &controller.name).or_else(|| get(owners, "", &controller.name))?;
        (owner.uid == controller.uid).then_some(owner)
    }

    fn found<'a>(&'a self, rule: &Rule, pod: &BusyPod) -> Found<'a> {
        let Some(asked) = &rule.spec.owner else { return Found::NotAsked };
        let controller = match &asked.through {
            None => pod.controller.as_ref(),
            Some(through) => self
                .owner_of(through, &pod.namespace, pod.controller.as_ref())
                .and_then(|through| through.controller.as_ref()),
        };
        self.owner_of(&asked.kind, &pod.namespace, controller).map_or(Found::Missing, Found::Owner)
    }

    fn linked<'a>(&'a self, rule: &Rule, pod: &BusyPod) -> Vec<&'a serde_json::Value> {
        let Some(label) = rule.spec.linked_label.as_deref() else { return Vec::new() };
        let key = (label.into(), PodKey::new(&pod.namespace, &pod.name));
        let Some(named) = self.linked.get(label) else { return Vec::new() };
        let pods_to = self.linked_to.get(&key).into_iter().flatten();
        let pods = pods_to.filter_map(|name| get(named, &pod.namespace, name));
        pods.filter(|linked| linked.counts_for(pod)).map(|linked| &linked.object).collect()
    }

    fn governed(&self, namespace: &str, name: &str) -> Option<(usize, &BusyPod)> {
        get(&self.pods, namespace, name)?.first_key_value().map(|(rule, pod)| (*rule, pod))
    }
}

impl Index {
    /// The busy rules.
    pub fn rules(&self) -> &Arc<Vec<Rule>> {
        &self.rules
    }

    /// Asks about a pod: the rule that governs it with what its state is read from, and its holds for another reason
    /// than a handover.
    pub fn busy<R>(&self, key: &PodKey, ask: impl FnOnce(Option<(&Rule, Seen<'_>)>, Vec<&HoldView>) -> R) -> R {
        let state = self.state.read();
        let governed = state.busy.governed(&key.namespace, &key.name).and_then(|(number, pod)| {
            let rule = self.rules.get(number)?;
            let seen = Seen { pod, owner: state.busy.found(rule, pod), linked: state.busy.linked(rule, pod) };
            Some((rule, seen))
        });
        let names = state.busy.holds_of.get(key).into_iter().flatten();
        let holds = names.filter_map(|name| get(&state.holds, &key.namespace, name)).collect();
        ask(governed, holds)
    }

    /// Asks about the owner of a pod that is being made, as far as it is known already.
    pub fn owner_of_new<R>(&self, rule: &Rule, pod: &BusyPod, ask: impl FnOnce(Found<'_>) -> R) -> R {
        ask(self.state.read().busy.found(rule, pod))
    }

    /// A rule governs the pod, or it carries hints of ours, or it has holds: it is to be looked at.
    pub fn is_marked(&self, key: &PodKey) -> bool {
        self.state.read().busy.marked.contains(key)
    }

    /// Has every pod looked at that busy rules, hints of ours or holds concern.
    pub fn touch_busy_pods(&self) {
        let Some(dirty) = &self.dirty else { return };
        for key in self.busy_pods() {
            dirty.pod(key);
        }
    }

    fn busy_pods(&self) -> BTreeSet<PodKey> {
        let state = self.state.read();
        let governed =
            state.busy.pods.iter().flat_map(|(namespace, pods)| pods.keys().map(|name| PodKey::new(namespace, name)));
        governed.chain(state.busy.holds_of.keys().cloned()).chain(state.busy.marked.iter().cloned()).collect()
    }
}

/// The hold of a victim for this reason, among its holds.
pub fn hold_of<'a>(holds: &[&'a HoldView], reason: HoldReason, pod: &BusyPod) -> Option<&'a HoldView> {
    let name = hold_name(reason, &pod.name, &pod.uid);
    holds.iter().copied().find(|hold| hold.name == name && hold.is_of(reason, &pod.uid))
}

/// Takes in the pods that a rule selects.
#[derive(Clone)]
pub struct BusyPodSink {
    /// The cache.
    pub index: Index,
    /// The rule's number.
    pub rule: usize,
}

impl Sink<BusyPod> for BusyPodSink {
    fn replace(&mut self, objects: Vec<BusyPod>) {
        let rule = self.rule;
        self.index.change(|state, touched| {
            let mut known = Vec::new();
            for (namespace, pods) in &state.busy.pods {
                let of_rule = pods.iter().filter(|(_, views)| views.contains_key(&rule));
                known.extend(of_rule.map(|(name, _)| PodKey::new(namespace, name)));
            }
            for key in &known {
                state.busy.forget_pod(rule, &key.namespace, &key.name);
            }
            touched.pods.extend(known);
            for pod in objects {
                state.busy.put_pod(rule, pod, touched);
            }
        });
    }

    fn apply(&mut self, object: BusyPod) {
        self.index.change(|state, touched| state.busy.put_pod(self.rule, object, touched));
    }

    fn delete(&mut self, object: BusyPod) {
        self.index.change(|state, touched| state.busy.take_pod(self.rule, &object, touched));
    }
}

/// Takes in owners of one kind, and what leads to them.
#[derive(Clone)]
pub struct OwnerSink {
    /// The cache.
    pub index: Index,
    /// The kind.
    pub kind: GroupKind,
}

impl OwnerSink {
    /// What is kept of an owner of this kind: what any rule reads.
    pub fn fields(&self) -> OwnerFields {
        let asks = |rule: &&Rule| rule.spec.owner.as_ref().is_some_and(|owner| owner.kind == self.kind);
        let rules: Vec<_> = self.index.rules.iter().filter(asks).collect();
        let job_fields = rules.iter().filter_map(|rule| rule.spec.owner.as_ref()).flat_map(|owner| &owner.job_fields);
        OwnerFields {
            job_fields: job_fields.cloned().collect(),
            read: Fields::union(rules.iter().map(|rule| &rule.owner_fields)),
        }
    }
}

impl Sink<Owner> for OwnerSink {
    fn replace(&mut self, objects: Vec<Owner>) {
        self.index.change(|state, touched| {
            let known: Vec<Owner> = state
                .busy
                .owners
                .get(&self.kind)
                .into_iter()
                .flatten()
                .flat_map(|(_, owners)| owners.values())
                .cloned()
                .collect();
            for owner in &known {
                state.busy.take_owner(&self.kind, owner, touched);
            }
            for owner in objects {
                state.busy.put_owner(&self.kind, owner, touched);
            }
        });
    }

    fn apply(&mut self, object: Owner) {
        self.index.change(|state, touched| state.busy.put_owner(&self.kind, object, touched));
    }

    fn delete(&mut self, object: Owner) {
        self.index.change(|state, touched| state.busy.take_owner(&self.kind, &object, touched));
    }
}

/// Takes in pods that are linked to others by one label.
#[derive(Clone)]
pub struct LinkedSink {
    /// The cache.
    pub index: Index,
    /// The label.
    pub label: Box<str>,
}

impl LinkedSink {
    /// What is kept of a linked pod: what any rule reads.
    pub fn fields(&self) -> Fields {
        let rules = self.index.rules.iter().filter(|rule| rule.spec.linked_label.as_deref() == Some(&*self.label));
        Fields::union(rules.map(|rule| &rule.linked_fields))
    }
}

impl Sink<Linked> for LinkedSink {
    fn replace(&mut self, objects: Vec<Linked>) {
        self.index.change(|state, touched| {
            let known: Vec<Linked> = state
                .busy
                .linked
                .get(&self.label)
                .into_iter()
                .flatten()
                .flat_map(|(_, pods)| pods.values())
                .cloned()
                .collect();
            for pod in &known {
                state.busy.take_linked(&self.label, pod, touched);
            }
            for pod in objects {
                state.busy.put_linked(&self.label, pod, touched);
            }
        });
    }

    fn apply(&mut self, object: Linked) {
        self.index.change(|state, touched| state.busy.put_linked(&self.label, object, touched));
    }

    fn delete(&mut self, object: Linked) {
        self.index.change(|state, touched| state.busy.take_linked(&self.label, &object, touched));
    }
}

impl State {
    /// Notes whether a pod carries hints of ours.
    pub(super) fn mark(&mut self, key: PodKey, marked: bool, touched: &mut Touched) {
        if marked {
            touched.pods.push(key.clone());
            self.busy.marked.insert(key);
        } else if self.busy.marked.remove(&key) {
            touched.pods.push(key);
        }
    }
}
