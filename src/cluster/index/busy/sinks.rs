//! How watched objects get in.

use belay_decide::busy::{BusyPod, Fields, GroupKind, Owner, Rule};

use super::Linked;
use crate::cluster::index::{Index, PodKey};
use crate::cluster::project_busy::OwnerFields;
use crate::cluster::watch::Sink;

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
                state.busy.forget_pod(rule, key);
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
