//! The holds of a surge's victims: which are still open, and what becomes of those that are not.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::capacity::{Awaited, Capacity, awaited};
use super::lever::Lever;
use crate::action::Action;
use crate::handover::reconcile::{Input, Plan, complete, completed, held_event, release};
use crate::handover::surge::SurgeRecord;
use crate::handover::{ClosePod, Workload};
use crate::hold::{Held, HoldStatus, HoldTrigger, HoldView, Outcome, Phase};
use crate::policy::{Trigger, Unsupported};
use crate::view::PodView;

/// An open hold, and its victim, which stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open<'a> {
    pub(super) hold: &'a HoldView,
    pub(super) victim: &'a PodView,
}

/// The victims of a workload.
#[derive(Debug, Default)]
pub(super) struct Victims<'a> {
    /// Those that need a stand-in, the first asked for first.
    pub(super) open: Vec<Open<'a>>,
    /// UIDs of those that were let go in this surge, by their hold or by the record, and still stand. One that was let go
    /// before it and stays, since its drainer gave up, serves like any other pod.
    pub(super) let_go: BTreeSet<&'a str>,
    /// Those that were let go by the record and are to go with a replica that has yet to go; their holds are open.
    pub(super) due: Vec<Open<'a>>,
    /// UIDs of those that the surge was raised for and whose holds are not seen: they are not seen yet, or were deleted.
    pub(super) unseen: BTreeSet<&'a str>,
    /// Only a close look tells whether one of the latter still stands.
    pub(super) doubtful: bool,
    /// When the eviction of any of them was last asked for; absent where there is none, or one that nobody need ask for.
    last_asked: Option<Timestamp>,
    /// One of them is to go whether anybody asks or not: its node is about to.
    urgent: bool,
}

impl Victims<'_> {
    /// When all of them count as abandoned; absent where none can be, or where there is none.
    pub(super) fn abandoned_at(&self, input: &Input<'_>) -> Option<Timestamp> {
        let last = self.last_asked.filter(|_| !self.urgent)?;
        Some(last.saturating_add(input.rules.abandon_after).unwrap_or(Timestamp::MAX))
    }
}

/// When the eviction of a victim was last asked for, or might have been: who is let go is given as much time as who asks.
fn asked_at(hold: &HoldView) -> Timestamp {
    let status = &hold.status;
    [status.last_requested_at, status.released_at].into_iter().flatten().fold(hold.spec.requested_at, Timestamp::max)
}

/// Ends the holds that are to end whatever comes of the surge, and says which victims are left.
pub(super) fn sort<'a>(
    input: &Input<'a>,
    workload: &'a Workload<'a>,
    unsupported: Option<Unsupported>,
    holds: &[(&'a HoldView, Option<&'a PodView>)],
    plan: &mut Plan,
) -> Victims<'a> {
    let now = input.now;
    let deployment = workload.deployment;
    let lever = Lever::of(workload);
    let record = lever.record;
    let mut victims = Victims::default();
    let recorded = record.iter().flat_map(|record| &record.released);
    victims.let_go.extend(recorded.map(String::as_str).filter(|uid| stands(workload, uid)));
    let is_seen = |uid: &&str| holds.iter().any(|(hold, _)| hold.spec.victim_uid == **uid);
    let awaited = record.iter().flat_map(|record| &record.awaited);
    let unseen: Vec<&str> = awaited.map(String::as_str).filter(|uid| !is_seen(uid)).collect();
    // Pods that are not in the cache may not be there yet.
    victims.doubtful = input.close.is_none() && unseen.iter().any(|uid| !stands(workload, uid));
    let is_gone = |uid: &&str| {
        let is_read = |close: &ClosePod| close.pod.is_active() && &*close.pod.uid == *uid;
        !stands(workload, uid) && input.close.is_some_and(|close| !close.iter().any(is_read))
    };
    victims.unseen.extend(unseen.into_iter().filter(|uid| !is_gone(uid)));
    victims.urgent = victims.unseen.iter().any(|uid| begins_anew(input, workload, uid));
    // Where the hold of one was deleted, nothing else tells when it was asked for.
    let is_kept = !victims.let_go.is_empty() || !victims.unseen.is_empty();
    victims.last_asked = record.filter(|_| is_kept).map(|record| record.since);
    for (hold, victim) in holds.iter().copied() {
        let standing = victim.filter(|victim| !victim.terminating);
        let of_this = deployment.uid == hold.spec.workload.uid;
        let is_let_go = victims.let_go.contains(hold.spec.victim_uid.as_str());
        let sequence = match (hold.status.phase, standing) {
            (Phase::Completed, _) => completed(input, hold, victim, plan),
            (Phase::Released, _) => released(workload, hold, victim, plan, now),
            _ if !of_this => release(hold, Outcome::VictimGone, "its Deployment is gone".to_owned(), now),
            (_, None) => went(workload, hold, record, now),
            (_, Some(victim)) if is_let_go && lever.lag(deployment) > 0 && now < hold.spec.deadline => {
                victims.due.push(Open { hold, victim });
                plan.wake(hold.spec.deadline);
                Vec::new()
            }
            (_, Some(_)) if is_let_go => handed_over(hold, now),
            (_, Some(_)) if unsupported.is_some() => {
                let why = unsupported.map(Unsupported::advice).unwrap_or_default();
                release(hold, Outcome::NotNeeded, why, now)
            }
            (_, Some(_)) if now >= hold.spec.deadline => {
                let why = format!("no stand-in was available by {}", hold.spec.deadline.strftime("%H:%M:%SZ"));
                release(hold, Outcome::Expired, why, now)
            }
            (_, Some(victim)) => {
                victims.open.push(Open { hold, victim });
                Vec::new()
            }
        };
        let is_open = sequence.is_empty() && !hold.status.phase.is_released();
        if let Some(victim) = standing.filter(|_| of_this) {
            let ended_at = hold.status.released_at.unwrap_or(now);
            if !is_open && record.is_some_and(|record| ended_at > record.since) {
                victims.let_go.insert(&victim.uid);
            }
            if is_open || victims.let_go.contains(&*victim.uid) {
                // What is released in this very step was just asked for, as it were.
                let asked = if is_open || hold.status.phase.is_released() { asked_at(hold) } else { now };
                victims.last_asked = victims.last_asked.max(Some(asked));
                victims.urgent |= is_open && is_urgent(workload, hold);
            }
        }
        plan.add(sequence);
    }
    victims
}

/// The pod is there, and not going.
fn stands(workload: &Workload<'_>, uid: &str) -> bool {
    workload.pods.iter().any(|pod| &*pod.uid == uid && !pod.terminating && !pod.is_finished())
}

/// Nobody need ask for it: its node is about to go. (Who responds to an EvictionRequest asks for as long as that stands.)
fn is_urgent(workload: &Workload<'_>, hold: &HoldView) -> bool {
    hold.spec.trigger == HoldTrigger::Doom && workload.dooms.contains_key(hold.spec.victim_node.as_str())
}

/// Its hold is made again by itself, since its node is still about to go: the surge goes on meanwhile.
fn begins_anew(input: &Input<'_>, workload: &Workload<'_>, uid: &str) -> bool {
    let acts = input.protection.is_some_and(|protection| protection.settings.trigger == Trigger::OnDoom);
    let node = workload.pods.iter().find(|pod| &*pod.uid == uid).and_then(|pod| pod.node.as_deref());
    acts && node.is_some_and(|node| workload.dooms.contains_key(node))
}

/// The victim is let go, since enough others serve.
pub(super) fn handed_over(hold: &HoldView, now: Timestamp) -> Vec<Action> {
    release(hold, Outcome::HandedOver, "enough others are available without it".to_owned(), now)
}

/// The victim is going or gone before its hold was released.
fn went(workload: &Workload<'_>, hold: &HoldView, record: Option<&SurgeRecord>, now: Timestamp) -> Vec<Action> {
    let uid = hold.spec.victim_uid.as_str();
    let newest = workload.newest().and_then(|newest| newest.template_hash.as_deref());
    let rolled = !hold.spec.victim_hash.is_empty() && newest.is_some_and(|newest| newest != hold.spec.victim_hash);
    let enough = match record {
        Some(record) => {
            let let_go = record.released.iter().map(String::as_str).collect();
            record.released.iter().any(|released| released == uid)
                || Capacity::seen(workload, let_go, now).suffices_without(uid, record)
        }
        None => hold.status.restarted_at.is_some() && is_whole(workload, now),
    };
    let (outcome, message) = if enough {
        (Outcome::HandedOver, "enough others are available without it")
    } else if now >= hold.spec.deadline {
        (Outcome::Expired, "it went at its deadline, before a stand-in was available")
    } else if rolled {
        (Outcome::HandedOver, "the rollout of its Deployment replaces it")
    } else {
        (Outcome::VictimGone, "the victim was removed by somebody else")
    };
    release(hold, outcome, message.to_owned(), now)
}

/// As many pods are available as the Deployment asks for.
fn is_whole(workload: &Workload<'_>, now: Timestamp) -> bool {
    let available = Capacity::seen(workload, BTreeSet::new(), now).available();
    i32::try_from(available).unwrap_or(i32::MAX) >= workload.deployment.replicas
}

/// A released hold is completed when its victim is gone and the workload is whole again.
fn released(
    workload: &Workload<'_>,
    hold: &HoldView,
    victim: Option<&PodView>,
    plan: &mut Plan,
    now: Timestamp,
) -> Vec<Action> {
    if victim.is_some() {
        return Vec::new();
    }
    let steps = complete(hold, is_whole(workload, now), plan, now);
    if steps.is_empty() {
        wake_when_available(workload, plan, now);
    }
    steps
}

/// Pods become available by time alone.
pub(super) fn wake_when_available(workload: &Workload<'_>, plan: &mut Plan, now: Timestamp) {
    let pods = workload.pods.iter().filter(|pod| !pod.terminating && !pod.is_finished());
    let coming = pods.filter_map(|pod| pod.available_at(workload.deployment.min_ready_seconds)).filter(|at| *at > now);
    if let Some(at) = coming.min() {
        plan.wake(at);
    }
}

/// What an open hold says while it waits.
pub(super) fn waiting(input: &Input<'_>, workload: &Workload<'_>, open: &Open<'_>) -> HoldStatus {
    let Open { hold, victim } = open;
    let awaited = awaited(workload, victim, input.now);
    let told = Held::beside(workload, victim, &awaited, hold.spec.deadline, input.now);
    let message = match (awaited, input.refused) {
        (Awaited::Surge, Some(why)) => {
            format!("no replica can be added to stand in for it, tried again and again: {why}")
        }
        _ => told.awaited,
    };
    HoldStatus { phase: Phase::Active, reason: told.reason.to_owned(), message, ..hold.status.clone() }
}

/// Nothing to do but to wait; what is awaited is written down when it changes.
pub(super) fn wait(input: &Input<'_>, workload: &Workload<'_>, open: &Open<'_>, plan: &mut Plan) {
    plan.wake(open.hold.spec.deadline);
    let Open { hold, .. } = open;
    // A hold that knows of a surge which is not there any more counts as interrupted. So it is told only of one that
    // knows of it: that one does not end before it by mistake.
    let surge = Lever::of(workload).record.filter(|record| record.awaited.contains(&hold.spec.victim_uid));
    let restarted_at = hold.status.restarted_at.or(surge.map(|record| record.since));
    let status = HoldStatus { restarted_at, ..waiting(input, workload, open) };
    if status == hold.status {
        return;
    }
    let mut steps = vec![Action::UpdateHold { hold: hold.object(), status }];
    steps.extend(held_event(workload.deployment, hold));
    plan.add(steps);
}
