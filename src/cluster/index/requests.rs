//! What is known of Evictions (`lifecycle.k8s.io`), for the responder.
//!
//! By the name of the pod that is to go: its Evictions, and the holds that one of them began. A hold outlives its
//! Eviction, and then has to be found without it.

use std::collections::{BTreeSet, HashMap};

use belay_decide::handover::Workload;
use belay_decide::hold::{HoldReason, HoldTrigger, HoldView, hold_name};
use belay_decide::lifecycle::EvictionView;

use super::sinks::{Kind, Touched, victim_of};
use super::{Index, Named, PodKey, State, forget, get, insert, remove};

#[derive(Default)]
pub(super) struct Requests {
    evictions: Named<EvictionView>,
    /// Names of Evictions by their pod.
    of: HashMap<PodKey, BTreeSet<Box<str>>>,
    /// Names of holds that an Eviction began, by their victim.
    holds_of: HashMap<PodKey, BTreeSet<Box<str>>>,
}

impl Requests {
    /// Pods that Evictions or what they began concern.
    pub(super) fn pods(&self) -> impl Iterator<Item = PodKey> + use<'_> {
        self.of.keys().chain(self.holds_of.keys()).cloned()
    }

    pub(super) fn clear_holds(&mut self) {
        self.holds_of.clear();
    }

    /// Takes a hold in.
    pub(super) fn put_hold(&mut self, hold: &HoldView, touched: &mut Touched) {
        let victim = victim_of(hold);
        if hold.spec.trigger == HoldTrigger::EvictionRequest {
            self.holds_of.entry(victim.clone()).or_default().insert(hold.name.as_str().into());
        }
        self.touch(victim, touched);
    }

    /// Takes a hold out.
    pub(super) fn take_hold(&mut self, hold: &HoldView, touched: &mut Touched) {
        let victim = victim_of(hold);
        self.touch(victim.clone(), touched);
        forget(&mut self.holds_of, &victim, hold.name.as_str());
    }

    fn touch(&self, victim: PodKey, touched: &mut Touched) {
        if self.of.contains_key(&victim) || self.holds_of.contains_key(&victim) {
            touched.requests.push(victim);
        }
    }

    fn forget_eviction(&mut self, eviction: &EvictionView, touched: &mut Touched) {
        let object = &eviction.object;
        let Some(gone) = remove(&mut self.evictions, &object.namespace, &object.name) else { return };
        let pod = pod_of(&gone);
        forget(&mut self.of, &pod, gone.object.name.as_str());
        touched.requests.push(pod);
    }
}

fn pod_of(eviction: &EvictionView) -> PodKey {
    PodKey::new(&eviction.object.namespace, &eviction.pod)
}

impl Kind for EvictionView {
    fn clear(state: &mut State) {
        state.requests.evictions.clear();
        state.requests.of.clear();
    }

    fn put(self, state: &mut State, touched: &mut Touched) {
        state.requests.forget_eviction(&self, touched);
        // Most Evictions of a cluster are of pods that are none of ours.
        if self.state.is_none() {
            return;
        }
        let (pod, object) = (pod_of(&self), self.object.clone());
        touched.requests.push(pod.clone());
        state.requests.of.entry(pod).or_default().insert(object.name.as_str().into());
        insert(&mut state.requests.evictions, &object.namespace, &object.name, self);
    }

    fn take(self, state: &mut State, touched: &mut Touched) {
        state.requests.forget_eviction(&self, touched);
    }

    fn known(state: &State, touched: &mut Touched) {
        touched.requests.extend(state.requests.pods());
    }
}

/// What is known of the Evictions of pods of one name.
pub struct Requested<'a> {
    /// Those that Belay is a responder of, in the order of their names.
    pub evictions: Vec<&'a EvictionView>,
    /// The holds of these pods, for any reason, in the order of their names.
    pub holds: Vec<&'a HoldView>,
    /// The workload of the pod of this name, where it is a Deployment's.
    pub workload: Option<&'a Workload<'a>>,
}

impl Index {
    /// Asks about the Evictions of pods of this name.
    pub fn requested<R>(&self, key: &PodKey, ask: impl FnOnce(&Requested<'_>) -> R) -> R {
        let state = self.state.read();
        let requests = &state.requests;
        let names = requests.of.get(key).into_iter().flatten();
        let evictions: Vec<_> = names.filter_map(|name| get(&requests.evictions, &key.namespace, name)).collect();
        let of_handovers =
            evictions.iter().map(|one| hold_name(HoldReason::Handover, &key.name, &one.pod_uid).into_boxed_str());
        let others = [&requests.holds_of, &state.busy.holds_of].into_iter().filter_map(|of| of.get(key)).flatten();
        let names: BTreeSet<Box<str>> = of_handovers.chain(others.cloned()).collect();
        let holds = names.iter().filter_map(|name| get(&state.holds, &key.namespace, name)).collect();
        let pod = get(&state.pods, &key.namespace, &key.name);
        let deployment = pod.and_then(|pod| state.deployment_of(pod));
        let workload = deployment.map(|deployment| state.workload(deployment));
        ask(&Requested { evictions, holds, workload: workload.as_ref() })
    }

    /// Has every pod looked at that Evictions concern.
    pub fn touch_requests(&self) {
        let Some(dirty) = &self.dirty else { return };
        let pods: BTreeSet<_> = self.state.read().requests.pods().collect();
        for key in pods {
            dirty.request(key);
        }
    }
}

#[cfg(test)]
impl Requests {
    /// Nothing is known, nor that something was.
    pub(super) fn is_empty(&self) -> bool {
        // Named one by one, so that none is left out.
        let Self { evictions, of, holds_of } = self;
        evictions.is_empty() && of.is_empty() && holds_of.is_empty()
    }
}
