//! The victims' lowest deletion cost, and what a scale-down would take.
//!
//! With it the ReplicaSet takes a victim before any other pod that serves: when the number comes down by our own hand, and
//! as well when somebody else's brings it down in mid-surge.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::action::{Action, ObjectRef};
use crate::cost::{COST_ANNOTATION, CostPod, Standing, VICTIM, removal};
use crate::handover::{ClosePod, Plan, Workload};
use crate::ownership::{self, Key, MANAGED_ANNOTATION, Removals};
use crate::view::Mark;

/// Which pods are to be marked.
#[derive(Debug, Default)]
pub(super) struct Wanted<'a> {
    /// UIDs of those that are.
    pub(super) marked: BTreeSet<&'a str>,
    /// UIDs of those that stay so.
    pub(super) kept: BTreeSet<&'a str>,
    /// What is written before a pod is marked: it fails where the surge is not as it is seen.
    pub(super) guard: Option<Action>,
}

/// Brings the marks to what is wanted. Says whether all that can be marked are.
pub(super) fn keep(
    workload: &Workload<'_>,
    close: Option<&[ClosePod]>,
    wanted: &Wanted<'_>,
    plan: &mut Plan,
    now: Timestamp,
) -> bool {
    let Some(close) = close else {
        let differs = workload.pods.iter().filter(|pod| !pod.terminating && !pod.is_finished()).any(|pod| {
            // What a busy rule writes is its own.
            let is_missing = wanted.marked.contains(&*pod.uid) && pod.mark == Mark::Free && !pod.marked;
            is_missing || (is_ours(pod.mark) && !wanted.kept.contains(&*pod.uid))
        });
        plan.look_closer |= differs;
        return !differs;
    };
    let mut pods: Vec<&ClosePod> = close.iter().filter(|close| close.pod.is_active()).collect();
    pods.sort_by_key(|close| &close.pod.uid);
    let mut all = true;
    for close in pods {
        let mark = Mark::read(close.value.as_deref(), &close.record);
        let is_open = mark == Mark::Free && !matches!(close.pod.standing, Standing::OtherPart(_));
        if is_open && wanted.marked.contains(&*close.pod.uid) {
            plan.add(wanted.guard.iter().cloned().chain(write(close, Some(VICTIM), now)).collect());
            all = false;
        } else if is_ours(mark) && !wanted.kept.contains(&*close.pod.uid) {
            plan.add(write(close, None, now).into_iter().collect());
        }
    }
    all
}

fn is_ours(mark: Mark) -> bool {
    matches!(mark, Mark::Lowest | Mark::Stripped)
}

fn write(close: &ClosePod, value: Option<i32>, now: Timestamp) -> Option<Action> {
    let key = Key::annotation(COST_ANNOTATION);
    let present = close.value.iter().map(|value| (key.clone(), value.to_string())).collect();
    let desired = BTreeMap::from([(key, value.map(|value| value.to_string()))]);
    let outcome = ownership::reconcile(&close.record, &present, &desired, &mut Removals::default(), now);
    let mut changes = outcome.changes;
    if outcome.record != close.record {
        changes.insert(Key::annotation(MANAGED_ANNOTATION), outcome.record.render());
    }
    let pod = ObjectRef {
        namespace: close.pod.namespace.to_string(),
        name: close.pod.name.to_string(),
        uid: close.pod.uid.to_string(),
        resource_version: close.resource_version.to_string(),
    };
    (!changes.is_empty()).then_some(Action::PatchPod { pod, changes })
}

/// By how much the Deployment's replicas may come down, at most `most`, so that nothing goes but these pods. Nothing where
/// that cannot be told: in a rollout, and where the ReplicaSet has not as many pods as it should.
pub(super) fn removable(
    workload: &Workload<'_>,
    close: &[ClosePod],
    let_go: &BTreeSet<&str>,
    most: i32,
    now: Timestamp,
) -> i32 {
    let Some(newest) = workload.newest() else { return 0 };
    let mut pods: Vec<&CostPod> = close.iter().map(|close| &close.pod).filter(|pod| pod.is_active()).collect();
    pods.sort_by_key(|pod| &pod.uid);
    let in_order = pods.iter().all(|pod| pod.set.as_deref() == Some(&*newest.uid));
    if !in_order || i32::try_from(pods.len()) != Ok(workload.deployment.replicas) {
        return 0;
    }
    let batches = removal::order(&pods, &[], |at| pods.get(at).map_or(0, |pod| pod.standing.effective()), now);
    let is_let_go = |at: &usize| pods.get(*at).is_some_and(|pod| let_go.contains(&*pod.uid));
    let first: usize = batches.iter().take_while(|batch| batch.iter().all(is_let_go)).map(Vec::len).sum();
    i32::try_from(first).unwrap_or(i32::MAX).min(most).max(0)
}
