//! PodDisruptionBudgets, as far as they keep a node from being emptied.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::PodName;
use super::pods::{KnownPod, Labels};
use crate::view::PodPhase;

/// Whether a budget's selector matches a pod's labels.
pub type Selects = Arc<dyn Fn(&Labels) -> bool + Send + Sync>;

/// A PodDisruptionBudget.
#[derive(Clone)]
pub struct Budget {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `spec.selector`, written out: by it a change is seen.
    pub selector: Box<str>,
    /// The same, to ask.
    pub selects: Selects,
    /// Since when it lets no pod go (`status.disruptionsAllowed` is 0); absent while it does.
    pub exhausted_since: Option<Timestamp>,
    /// What is not ready may go whatever else is said: `spec.unhealthyPodEvictionPolicy: AlwaysAllow`, or as many as are
    /// wanted are healthy.
    pub lets_unready_go: bool,
}

impl Budget {
    /// Nothing that matters here differs.
    fn is_like(&self, other: &Self) -> bool {
        let key = |budget: &Self| (budget.created, budget.exhausted_since, budget.lets_unready_go);
        self.selector == other.selector && key(self) == key(other)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("name", &format_args!("{}/{}", self.namespace, self.name))
            .field("selector", &self.selector)
            .field("exhausted_since", &self.exhausted_since)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Budgets(HashMap<Arc<str>, BTreeMap<Arc<str>, Budget>>);

impl Budgets {
    /// Takes one in. Which pods that may concern: those that it selects, or did; none where nothing that matters changed.
    pub(super) fn insert(&mut self, budget: Budget) -> Vec<Selects> {
        let named = self.0.entry(budget.namespace.clone()).or_default();
        if named.get(&budget.name).is_some_and(|before| before.is_like(&budget)) {
            return Vec::new();
        }
        let now = Arc::clone(&budget.selects);
        let before = named.insert(budget.name.clone(), budget);
        before.map(|before| before.selects).into_iter().chain([now]).collect()
    }

    /// Takes one out; which pods that may concern.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Vec<Selects> {
        let Some(named) = self.0.get_mut(namespace) else { return Vec::new() };
        let gone = named.remove(name).map(|gone| gone.selects);
        if named.is_empty() {
            self.0.remove(namespace);
        }
        gone.into_iter().collect()
    }

    pub(super) fn names(&self) -> Vec<PodName> {
        let all = self.0.iter();
        all.flat_map(|(namespace, named)| named.keys().map(|name| (namespace.clone(), name.clone()))).collect()
    }

    /// Since when the budgets let a pod not be evicted; absent while they do.
    ///
    /// The rules are those of Kubernetes' eviction (`pkg/registry/core/pod/storage/eviction.go`): a pod with two budgets
    /// can never be evicted; one that does not run yet, or not any more, always can.
    pub(super) fn block(&self, known: &KnownPod) -> Option<Timestamp> {
        let pod = &known.pod;
        if !pod.is_active() || pod.phase == PodPhase::Pending {
            return None;
        }
        let named = self.0.get(&pod.namespace)?;
        let covering: Vec<&Budget> = named.values().filter(|budget| (budget.selects)(&known.labels)).collect();
        let since = match covering[..] {
            [] => return None,
            [only] if only.lets_unready_go && !pod.is_ready() => return None,
            [only] => only.exhausted_since?,
            // Since there were two.
            ref several => {
                let mut created: Vec<Timestamp> = several.iter().map(|budget| budget.created).collect();
                created.sort_unstable();
                created[1]
            }
        };
        Some(since.max(pod.created))
    }
}
