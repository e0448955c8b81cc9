//! What is known for busy rules: the pods they govern, their owners, the pods linked to them.

mod sinks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use belay_decide::busy::{BusyPod, ControllerRef, Found, GroupKind, OnIdle, Owner, Rule, Seen};
use belay_decide::hold::{HoldReason, HoldView, hold_name};
use belay_decide::view::PodView;
use jiff::Timestamp;

use super::sinks::Touched;
use super::{Index, Named, PodKey, State, forget, get, insert, remove};
pub use sinks::{BusyPodSink, LinkedSink, OwnerSink};

/// A pod that is linked to another by a label.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// By UIDs, since those alone say which object is meant: an owner may be of the cluster, and a successor may bear its
/// name.
type ByUid<V> = HashMap<Box<str>, BTreeSet<V>>;

#[derive(Default)]
pub(super) struct Busy {
    /// By the number of the rule that selects it; the first one governs.
    pods: Named<BTreeMap<usize, BusyPod>>,
    /// Governed pods by their controller.
    pods_of: ByUid<PodKey>,
    /// Owners, and what leads to them.
    owners: HashMap<GroupKind, Named<Owner>>,
    /// Those that have a controller, by that one.
    owned: ByUid<Box<str>>,
    linked: HashMap<Box<str>, Named<Linked>>,
    /// Names of linked pods by label and the pod that they are linked to.
    linked_to: HashMap<(Box<str>, PodKey), BTreeSet<Box<str>>>,
    /// Names of holds for another reason than a handover, by their victim.
    pub(super) holds_of: HashMap<PodKey, BTreeSet<Box<str>>>,
    /// Pods that carry hints of ours, governed or not.
    pub(super) marked: BTreeSet<PodKey>,
}

impl Busy {
    fn put_pod(&mut self, rule: usize, pod: BusyPod, touched: &mut Touched) {
        self.take_pod(rule, &pod, touched);
        if let Some(controller) = &pod.controller {
            let pods = self.pods_of.entry(controller.uid.clone()).or_default();
            pods.insert(PodKey::new(&pod.namespace, &pod.name));
        }
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        match self.pods.get_mut(&namespace).and_then(|pods| pods.get_mut(&name)) {
            Some(views) => drop(views.insert(rule, pod)),
            None => drop(insert(&mut self.pods, &namespace, &name, BTreeMap::from([(rule, pod)]))),
        }
    }

    fn take_pod(&mut self, rule: usize, pod: &BusyPod, touched: &mut Touched) {
        let key = PodKey::new(&pod.namespace, &pod.name);
        self.forget_pod(rule, &key);
        touched.pods.push(key);
    }

    fn forget_pod(&mut self, rule: usize, key: &PodKey) {
        let Some(views) = self.pods.get_mut(&key.namespace).and_then(|pods| pods.get_mut(&key.name)) else { return };
        let gone = views.remove(&rule).and_then(|gone| gone.controller);
        // Several rules may select it, and one of their watches may be ahead of the others.
        let is_left = |uid: &str| {
            views.values().any(|pod| pod.controller.as_ref().is_some_and(|controller| *controller.uid == *uid))
        };
        let gone = gone.filter(|gone| !is_left(&gone.uid));
        if views.is_empty() {
            remove(&mut self.pods, &key.namespace, &key.name);
        }
        if let Some(controller) = gone {
            forget(&mut self.pods_of, &controller.uid, key);
        }
    }

    /// Pods that ask this object, directly or through another.
    fn touch_owner(&self, uid: &str, touched: &mut Touched) {
        let through = self.owned.get(uid).into_iter().flatten();
        for uid in through.map(|uid| &**uid).chain([uid]) {
            touched.pods.extend(self.pods_of.get(uid).into_iter().flatten().cloned());
        }
    }

    fn put_owner(&mut self, kind: &GroupKind, owner: Owner, touched: &mut Touched) {
        let owners = self.owners.entry(kind.clone()).or_default();
        // Most writes to an owner change nothing that a rule reads.
        if get(owners, &owner.namespace, &owner.name) == Some(&owner) {
            return;
        }
        self.take_owner(kind, &owner, touched);
        if let Some(controller) = &owner.controller {
            self.owned.entry(controller.uid.clone()).or_default().insert(owner.uid.clone());
        }
        self.touch_owner(&owner.uid, touched);
        let (namespace, name) = (owner.namespace.clone(), owner.name.clone());
        insert(self.owners.entry(kind.clone()).or_default(), &namespace, &name, owner);
    }

    /// What is known under its name goes, whatever the object says at its end.
    fn take_owner(&mut self, kind: &GroupKind, owner: &Owner, touched: &mut Touched) {
        let Some(owners) = self.owners.get_mut(kind) else { return };
        let Some(gone) = remove(owners, &owner.namespace, &owner.name) else { return };
        self.touch_owner(&gone.uid, touched);
        if let Some(controller) = gone.controller {
            forget(&mut self.owned, &controller.uid, &gone.uid);
        }
    }

    fn put_linked(&mut self, label: &str, pod: Linked, touched: &mut Touched) {
        if self.linked.get(label).and_then(|named| get(named, &pod.namespace, &pod.name)) == Some(&pod) {
            return;
        }
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

    /// Asked only where an owner may be deleted: elsewhere thousands of pods may share one.
    fn siblings(&self, rule: &Rule, pod: &BusyPod) -> usize {
        let Some(controller) = pod.controller.as_ref().filter(|_| rule.spec.on_idle == OnIdle::DeleteOwner) else {
            return 0;
        };
        let keys = self.pods_of.get(&controller.uid).into_iter().flatten();
        let pods = keys.filter_map(|key| self.governed(&key.namespace, &key.name)).map(|(_, pod)| pod);
        let others = pods.filter(|other| other.uid != pod.uid && !other.is_finished());
        others.filter(|other| other.controller.as_ref().is_some_and(|its| its.uid == controller.uid)).count()
    }

    fn governed(&self, namespace: &str, name: &str) -> Option<(usize, &BusyPod)> {
        get(&self.pods, namespace, name)?.first_key_value().map(|(rule, pod)| (*rule, pod))
    }
}

/// What is known of a pod for busy rules.
pub struct BusyFacts<'a> {
    /// The rule that governs it; absent where none does, or the pod is not there.
    pub governed: Option<Governed<'a>>,
    /// UID of the pod of this name, governed or not; absent where it has ended or is about to go, since the watch that
    /// tells so may be behind that of governed pods.
    pub living: Option<&'a str>,
    /// Holds of a pod of this name for another reason than a handover.
    pub holds: Vec<&'a HoldView>,
}

/// A pod's rule.
pub struct Governed<'a> {
    /// Its number.
    pub number: usize,
    /// The rule.
    pub rule: &'a Rule,
    /// What the pod's state is read from.
    pub seen: Seen<'a>,
    /// How many other governed pods that have not ended have the same controller, where the rule may have that one
    /// deleted.
    pub siblings: usize,
}

impl Index {
    /// The busy rules.
    pub fn rules(&self) -> &Arc<Vec<Rule>> {
        &self.rules
    }

    /// Asks about a pod.
    pub fn busy<R>(&self, key: &PodKey, ask: impl FnOnce(BusyFacts<'_>) -> R) -> R {
        let state = self.state.read();
        let governed = state.busy.governed(&key.namespace, &key.name).and_then(|(number, pod)| {
            let rule = self.rules.get(number)?;
            let seen = Seen { pod, owner: state.busy.found(rule, pod), linked: state.busy.linked(rule, pod) };
            Some(Governed { number, rule, seen, siblings: state.busy.siblings(rule, pod) })
        });
        let names = state.busy.holds_of.get(key).into_iter().flatten();
        let holds = names.filter_map(|name| get(&state.holds, &key.namespace, name)).collect();
        let living = get(&state.pods, &key.namespace, &key.name).and_then(|pod| living(pod));
        ask(BusyFacts { governed, living, holds })
    }

    /// Asks about the owner of a pod that is being made, as far as it is known already.
    pub fn owner_of_new<R>(&self, rule: &Rule, pod: &BusyPod, ask: impl FnOnce(Found<'_>) -> R) -> R {
        ask(self.state.read().busy.found(rule, pod))
    }

    /// The pod has holds for another reason than a handover.
    pub fn has_busy_holds(&self, key: &PodKey) -> bool {
        self.state.read().busy.holds_of.contains_key(key)
    }

    /// The pod carries hints of ours, governed or not.
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

/// The UID of a pod that is not about to go.
pub(super) fn living(pod: &PodView) -> Option<&str> {
    (!pod.terminating && !pod.is_finished()).then_some(&*pod.uid)
}

/// The hold of a victim for this reason, among its holds.
pub fn hold_of<'a>(holds: &[&'a HoldView], reason: HoldReason, pod: &BusyPod) -> Option<&'a HoldView> {
    let name = hold_name(reason, &pod.name, &pod.uid);
    holds.iter().copied().find(|hold| hold.name == name && hold.is_of(reason, &pod.uid))
}

impl State {
    /// Whether a pod lives matters to its holds.
    pub(super) fn touch_held(&self, key: &PodKey, touched: &mut Touched) {
        if self.busy.holds_of.contains_key(key) {
            touched.pods.push(key.clone());
        }
    }

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

#[cfg(test)]
impl Busy {
    /// Nothing is known, nor that something was.
    pub(super) fn is_empty(&self) -> bool {
        // Named one by one, so that none is left out.
        let Self { pods, pods_of, owners, owned, linked, linked_to, holds_of, marked } = self;
        pods.is_empty()
            && pods_of.is_empty()
            && owners.values().all(HashMap::is_empty)
            && owned.is_empty()
            && linked.values().all(HashMap::is_empty)
            && linked_to.is_empty()
            && holds_of.is_empty()
            && marked.is_empty()
    }
}
