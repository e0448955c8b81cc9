//! The controller's step: what to write, given a workload and its holds.
//!
//! Each open hold is looked at afresh on every change; nothing is remembered between calls but what is in the
//! objects, so a new leader goes on where the old one stopped, in any state. Each hold yields at most one
//! sequence of actions, performed in order and abandoned at the first that fails; the next call sees what came
//! of it.

use jiff::{SignedDuration, Timestamp};

use super::close::ClosePod;
use super::doomed;
use super::record::{self, HandoverRecord};
use super::scale::{self, object_of};
use super::situation::Replacement;
use super::{Situation, Workload, situation};
use crate::action::{Action, Event, Reference};
use crate::hold::{HoldStatus, HoldTrigger, HoldView, Outcome, Phase};
use crate::policy::{self, Mode, OnFailure, Protection};
use crate::view::{DeploymentView, PodView, Strategy};

/// A released hold whose workload does not become whole again is closed after this time all the same: its
/// victim is gone, and what is left to do is the Deployment's own business.
const RELEASED_WITHOUT_SUCCESSOR: SignedDuration = SignedDuration::from_mins(10);

/// Everything that the step reads.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// The workload; absent where the Deployment is gone.
    pub workload: Option<&'a Workload<'a>>,
    /// Its protection; absent where it was switched off.
    pub protection: Option<&'a Protection>,
    /// Its holds, each with its victim where a pod of that UID still exists.
    pub holds: Vec<(&'a HoldView, Option<&'a PodView>)>,
    /// Its pods as a close look at the API shows them, where the plan before this one asked for that.
    pub close: Option<&'a [ClosePod]>,
    /// Why the API server refused the last try to raise the number of replicas; absent where it did not.
    pub refused: Option<&'a str>,
    /// What the platform configured.
    pub rules: &'a HandoverRules,
    /// The time.
    pub now: Timestamp,
}

/// What the platform configured about handovers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverRules {
    /// How long a completed hold is kept.
    pub history_ttl: SignedDuration,
    /// A surge whose victims' evictions nobody asked for again within this time ends (Scale).
    pub abandon_after: SignedDuration,
    /// A node has to be about to go for this long without a break for a handover to begin by itself (`OnDoom`).
    pub signal_stability: SignedDuration,
    /// Soft signals begin a Scale handover (`OnDoom`).
    pub soft_signals: bool,
}

impl Default for HandoverRules {
    fn default() -> Self {
        Self {
            history_ttl: SignedDuration::from_hours(1),
            // Cluster Autoscaler asks for two minutes and then leaves the node alone for three: a surge that ended in
            // between would be made anew each time.
            abandon_after: SignedDuration::from_mins(6),
            // Cluster Autoscaler sets and clears its soft taint in each of its loops, every ten seconds.
            signal_stability: SignedDuration::from_secs(30),
            soft_signals: false,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Independent sequences; each is performed in order and abandoned at the first action that fails.
    pub sequences: Vec<Vec<Action>>,
    /// When to look again, if nothing changes before.
    pub wake_at: Option<Timestamp>,
    /// The decision needs [`Input::close`]; without it there is nothing more to be done.
    pub look_closer: bool,
}

impl Plan {
    pub(super) fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// One more sequence, where there is anything to do.
    pub(super) fn add(&mut self, sequence: Vec<Action>) {
        if !sequence.is_empty() {
            self.sequences.push(sequence);
        }
    }
}

/// Decides what to write for one workload.
pub fn reconcile(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    let in_time = doomed::in_time(input);
    let holds = in_time.iter().map(|(hold, victim)| (&**hold, *victim)).collect();
    let before = input;
    let input = &Input { holds, ..input.clone() };
    if doomed::ahead(input, &mut plan).is_break() {
        return plan;
    }
    let mut holds = input.holds.clone();
    holds.sort_by(|(a, _), (b, _)| (a.spec.requested_at, &a.name).cmp(&(b.spec.requested_at, &b.name)));
    match (input.workload, input.protection) {
        (Some(workload), Some(protection)) if protection.settings.mode == Mode::Scale => {
            scale::reconcile(input, workload, &protection.settings, &holds, &mut plan);
        }
        // What is left of a surge goes first: the holds then know nothing of it.
        _ if scale::withdraw(input, &holds, &mut plan) => {}
        _ => restart_for(input, holds, &mut plan),
    }
    doomed::note_deadlines(input, before, &mut plan);
    if let Some(manager) = input.protection.and_then(|protection| protection.settings.field_manager.as_ref()) {
        plan.sequences.iter_mut().flatten().for_each(|action| number_as(action, manager));
    }
    plan
}

/// A number that Belay writes belongs to whom the policy names, as a template's slot does.
fn number_as(action: &mut Action, manager: &str) {
    if let Action::Surge { field_manager, .. } | Action::Scale { field_manager, .. } = action {
        *field_manager = Some(manager.to_owned());
    }
}

/// Steps of the handovers by restart.
fn restart_for(input: &Input<'_>, holds: Vec<(&HoldView, Option<&PodView>)>, plan: &mut Plan) {
    // Two victims of one revision need one restart: the first hold asks for it, the others wait for its rollout.
    let mut template_changed = false;
    for (hold, victim) in holds {
        let sequence = match hold.status.phase {
            Phase::Pending | Phase::Active => {
                let step = open(input, hold, victim, template_changed, plan);
                template_changed |= step.iter().any(|action| matches!(action, Action::PatchTemplate { .. }));
                step
            }
            Phase::Released => released(input, hold, victim, plan),
            Phase::Completed => completed(input, hold, victim, plan),
        };
        plan.add(sequence);
    }
}

fn open(
    input: &Input<'_>,
    hold: &HoldView,
    victim: Option<&PodView>,
    template_changed: bool,
    plan: &mut Plan,
) -> Vec<Action> {
    let now = input.now;
    let record = input.workload.and_then(|workload| workload.deployment.record_of(&hold.spec.victim_uid));
    let restarted = record.is_some() || hold.status.restarted_at.is_some();
    // A Deployment of the same name but another UID is another workload.
    let Some(workload) = input.workload.filter(|workload| workload.deployment.uid == hold.spec.workload.uid) else {
        return release(hold, Outcome::VictimGone, "its Deployment is gone".to_owned(), now);
    };
    let deployment = workload.deployment;
    let Some(victim) = victim.filter(|victim| !victim.terminating) else {
        return went(input, workload, hold, restarted);
    };
    let Some(protection) = input.protection else {
        return release(hold, Outcome::NotNeeded, "the Deployment is no longer protected".to_owned(), now);
    };
    if let Err(unsupported) = policy::supported(deployment, protection.settings.mode, workload.autoscaler) {
        return release(hold, Outcome::NotNeeded, unsupported.advice(), now);
    }
    let situation = situation(workload, victim, now);
    match &situation {
        Situation::Served { by } => {
            return release(hold, Outcome::HandedOver, format!("replacement {} is available", by.name), now);
        }
        Situation::Rolling(Replacement::AvailableAt(_, at)) => plan.wake(*at),
        _ => {}
    }
    if record.is_some_and(|record| record.rolled_back) {
        // What the workload goes back to now is our own doing, not somebody's.
        let outcome = if now >= hold.spec.deadline { Outcome::Expired } else { Outcome::Failed };
        return release(hold, outcome, "the handover failed; the pod template was put back".to_owned(), now);
    }
    if now >= hold.spec.deadline {
        let why = format!("no replacement was available by {}", hold.spec.deadline.strftime("%H:%M:%SZ"));
        return failed(workload, protection, hold, Outcome::Expired, &why, now);
    }
    plan.wake(hold.spec.deadline);
    let at_rest = matches!(situation, Situation::Steady | Situation::Settling);
    if at_rest && was_reverted(deployment, hold, record) {
        let why = "somebody put the pod template back, which took the replacement away; not fighting over it";
        return release(hold, Outcome::Reverted, why.to_owned(), now);
    }
    let ours = record.is_some_and(|record| deployment.slot.as_deref() == Some(record.to.as_str()));
    if ours && deployment.is_observed() && deployment.status.progress_deadline_exceeded {
        let why = "the rollout of the replacement exceeded the Deployment's progress deadline";
        return failed(workload, protection, hold, Outcome::Failed, why, now);
    }
    if situation == Situation::Steady && !restarted && !template_changed {
        return restart(deployment, protection, hold, victim, now);
    }
    wait(deployment, hold, victim, record, &situation, now)
}

/// The victim's revision is the newest again after our restart (or after we were about to restart): by the record,
/// which is on the same object, or by the revision, which only grows. That the hold knows of a restart is not enough:
/// this controller may see an older Deployment than the one who wrote the hold.
fn was_reverted(deployment: &DeploymentView, hold: &HoldView, record: Option<&HandoverRecord>) -> bool {
    record.is_some() || hold.status.from_revision.is_some_and(|from| deployment.revision > Some(from))
}

/// The victim is going or gone.
fn went(input: &Input<'_>, workload: &Workload<'_>, hold: &HoldView, restarted: bool) -> Vec<Action> {
    let now = input.now;
    let newest = workload.newest().and_then(|newest| newest.template_hash.as_deref());
    let old = &hold.spec.victim_hash;
    // With Recreate the victim may be seen to go before the restart is: the hold tells that it was about to be written.
    let asked_for = restarted || hold.status.from_revision.is_some();
    // Where the newest revision is not known, a rollout is under way.
    let replaced = asked_for || (!old.is_empty() && newest != Some(old));
    // A victim that nobody replaced, and that is seen to be gone only after its deadline, went at the deadline: the
    // webhook lets go of it without any controller. A successor that came since was not there then.
    let late = now >= hold.spec.deadline;
    let (outcome, message) = if late && (!replaced || available_successor(workload, now).is_none()) {
        (Outcome::Expired, "it went at its deadline, before a replacement was available")
    } else if replaced {
        (Outcome::HandedOver, "the rollout of its Deployment replaces it")
    } else {
        (Outcome::VictimGone, "the victim was removed by somebody else")
    };
    match input.protection.filter(|_| outcome == Outcome::Expired) {
        Some(protection) => failed(workload, protection, hold, outcome, message, now),
        None => release(hold, outcome, message.to_owned(), now),
    }
}

fn restart(
    deployment: &DeploymentView,
    protection: &Protection,
    hold: &HoldView,
    victim: &PodView,
    now: Timestamp,
) -> Vec<Action> {
    let to = record::next_slot(deployment.slot.as_deref()).to_owned();
    let status = HoldStatus {
        phase: Phase::Active,
        reason: "Restarting".to_owned(),
        message: format!("restarting Deployment {} to replace {}", deployment.name, victim.name),
        from_revision: deployment.revision,
        ..hold.status.clone()
    };
    // Written even where it says so already: the precondition on the hold's version keeps a controller that sees an
    // old hold, and a newer Deployment, from a second restart.
    let mut steps = vec![Action::UpdateHold { hold: hold.object(), status }];
    steps.extend(held_event(deployment, hold));
    steps.push(Action::PatchTemplate {
        deployment: object_of(deployment),
        slot: Some(to.clone()),
        records: record::with(
            &deployment.records,
            HandoverRecord {
                victim: hold.spec.victim_uid.clone(),
                requested_at: hold.spec.requested_at,
                deadline: hold.spec.deadline,
                restarted_at: now,
                from: deployment.slot.clone(),
                to,
                rolled_back: false,
            },
        ),
        field_manager: protection.settings.field_manager.clone(),
    });
    let note = format!("Restarting to replace {} on node {} before it is evicted", victim.name, hold.spec.victim_node);
    steps.push(event(hold, deployment, false, "HandoverStarted", "Restart", note));
    steps
}

/// Nothing to do but to wait; what is awaited is written down when it changes.
fn wait(
    deployment: &DeploymentView,
    hold: &HoldView,
    victim: &PodView,
    record: Option<&HandoverRecord>,
    situation: &Situation<'_>,
    now: Timestamp,
) -> Vec<Action> {
    let told = crate::hold::Held::new(deployment, victim, situation, hold.spec.deadline, now);
    let status = HoldStatus {
        phase: Phase::Active,
        reason: told.reason.to_owned(),
        message: told.awaited,
        restarted_at: hold.status.restarted_at.or(record.map(|record| record.restarted_at)),
        ..hold.status.clone()
    };
    if status == hold.status {
        return Vec::new();
    }
    let mut steps = vec![Action::UpdateHold { hold: hold.object(), status }];
    steps.extend(held_event(deployment, hold));
    steps
}

/// The Event that an eviction is held: once, with the step that takes the hold up. Of a hold that began without one
/// people were told already.
pub(super) fn held_event(deployment: &DeploymentView, hold: &HoldView) -> Vec<Action> {
    if hold.status.phase != Phase::Pending || hold.spec.trigger == HoldTrigger::Doom {
        return Vec::new();
    }
    let evictor = if hold.spec.evictor.is_empty() { "somebody" } else { &hold.spec.evictor };
    let note = format!(
        "Eviction of {} from node {}, asked for by {evictor}, is held while its Deployment replaces it, until {} at \
         the latest",
        hold.spec.victim_name,
        hold.spec.victim_node,
        hold.spec.deadline.strftime("%H:%M:%SZ")
    );
    vec![event(hold, deployment, false, "EvictionHeld", "Hold", note)]
}

/// The handover did not work. The victim is released; where the policy says so, the template is put back first,
/// while the victim still serves.
fn failed(
    workload: &Workload<'_>,
    protection: &Protection,
    hold: &HoldView,
    outcome: Outcome,
    why: &str,
    now: Timestamp,
) -> Vec<Action> {
    let undo = (protection.settings.on_failure == OnFailure::RollBack).then(|| {
        // The hold is written first, for its version's sake: one that is over by now must not take the template back.
        // The release comes with the next look, which sees the record.
        let status = HoldStatus {
            phase: Phase::Active,
            reason: "RollingBack".to_owned(),
            message: format!("{why}; putting the pod template back"),
            ..hold.status.clone()
        };
        put_back(workload, Some(protection), hold, status, why)
    });
    undo.flatten().unwrap_or_else(|| release(hold, outcome, why.to_owned(), now))
}

/// Takes our own restart back, once, where nobody has released over it: the hold's new status, the template, and a
/// word about it.
fn put_back(
    workload: &Workload<'_>,
    protection: Option<&Protection>,
    hold: &HoldView,
    status: HoldStatus,
    why: &str,
) -> Option<Vec<Action>> {
    let deployment = workload.deployment;
    let record = deployment.record_of(&hold.spec.victim_uid).filter(|record| !record.rolled_back)?;
    // A revision beyond the one that our restart made is a user's release over it: nothing of theirs is put back.
    let made = hold.status.from_revision.map(|from| from + 1);
    let newest_is_ours = deployment.is_observed() && deployment.revision.is_some_and(|revision| Some(revision) <= made);
    if !newest_is_ours || deployment.slot.as_deref() != Some(record.to.as_str()) {
        return None;
    }
    let records = deployment
        .records
        .iter()
        .map(|one| HandoverRecord { rolled_back: one.rolled_back || one.victim == record.victim, ..one.clone() })
        .collect();
    let note = format!("Putting the pod template back: {why}");
    Some(vec![
        Action::UpdateHold { hold: hold.object(), status },
        Action::PatchTemplate {
            deployment: object_of(deployment),
            slot: record.from.clone(),
            records,
            field_manager: protection.and_then(|protection| protection.settings.field_manager.clone()),
        },
        event(hold, deployment, true, "HandoverRolledBack", "RollBack", note),
    ])
}

/// A handover that is over and whose replacement no node takes is undone, whatever the policy says.
///
/// The replacement is kept off the pods of its victim's revision ([`crate::steer`]). Its old ReplicaSet goes on making
/// those while the rollout is stuck, so on a single node (or the only one that fits) neither would ever give way, and
/// a restart of ours that nobody waits for any more would block the Deployment's rollouts.
fn withdrawn(input: &Input<'_>, hold: &HoldView) -> Option<Vec<Action>> {
    let workload = input.workload.filter(|workload| workload.deployment.uid == hold.spec.workload.uid)?;
    if workload.deployment.strategy == Strategy::Recreate {
        return None;
    }
    let newest = workload.newest()?;
    let mut pods = workload.pods.iter().filter(|pod| pod.replica_set.as_deref() == Some(&*newest.uid)).peekable();
    pods.peek()?;
    if !pods.all(|pod| pod.node.is_none() && pod.unschedulable) {
        return None;
    }
    let why = "no node takes the replacement";
    let told = format!("; {why}, the restart is withdrawn");
    let mut status = hold.status.clone();
    // Tried again, it says so once: a message that grew with each failure would wake this loop by itself.
    if !status.message.ends_with(&told) {
        status.message.push_str(&told);
    }
    put_back(workload, input.protection, hold, status, why)
}

/// Releases the victim, for ever.
pub(super) fn release(hold: &HoldView, outcome: Outcome, message: String, now: Timestamp) -> Vec<Action> {
    let note = format!("Eviction of {} is released: {message}", hold.spec.victim_name);
    let status = hold.status.released(outcome, message, now);
    let (reason, warning) = if outcome.is_failure() { ("HandoverFailed", true) } else { ("EvictionReleased", false) };
    let released = Event {
        namespace: hold.namespace.clone(),
        regarding: Reference::deployment(&hold.spec.workload.name, &hold.spec.workload.uid),
        related: Some(Reference::pod(&hold.spec.victim_name, &hold.spec.victim_uid)),
        warning,
        reason,
        action: "Release",
        note,
    };
    vec![Action::UpdateHold { hold: hold.object(), status }, Action::Event(released)]
}

/// A released hold is completed when its victim is gone and the workload is whole again.
fn released(input: &Input<'_>, hold: &HoldView, victim: Option<&PodView>, plan: &mut Plan) -> Vec<Action> {
    if let Some(undo) = withdrawn(input, hold) {
        return undo;
    }
    if victim.is_some() {
        return Vec::new();
    }
    let whole = input.workload.is_none_or(|workload| is_whole(workload, input.now, plan));
    complete(hold, whole, plan, input.now)
}

/// Completes a hold whose victim is gone, where the workload is whole again or that has been waited for long enough.
pub(super) fn complete(hold: &HoldView, whole: bool, plan: &mut Plan, now: Timestamp) -> Vec<Action> {
    let since = hold.status.released_at;
    let give_up = since.map_or(now, |at| at.saturating_add(RELEASED_WITHOUT_SUCCESSOR).unwrap_or(Timestamp::MAX));
    if !whole && now < give_up {
        plan.wake(give_up);
        return Vec::new();
    }
    let status = HoldStatus { phase: Phase::Completed, completed_at: Some(now), ..hold.status.clone() };
    vec![Action::UpdateHold { hold: hold.object(), status }]
}

fn is_whole(workload: &Workload<'_>, now: Timestamp, plan: &mut Plan) -> bool {
    let deployment = workload.deployment;
    if policy::supported(deployment, Mode::Restart, None).is_err() {
        return true;
    }
    if available_successor(workload, now).is_some() {
        return true;
    }
    if let Some(at) = successors(workload).filter_map(|pod| pod.available_at(deployment.min_ready_seconds)).min() {
        plan.wake(at);
    }
    false
}

/// Pods of the newest revision that are not going.
fn successors<'a>(workload: &'a Workload<'_>) -> impl Iterator<Item = &'a PodView> {
    let newest = workload.newest().map(|newest| &*newest.uid);
    let of_newest = move |pod: &&PodView| newest.is_some() && pod.replica_set.as_deref() == newest;
    workload.pods.iter().copied().filter(of_newest).filter(|pod| !pod.terminating)
}

fn available_successor<'a>(workload: &'a Workload<'_>, now: Timestamp) -> Option<&'a PodView> {
    let min_ready = workload.deployment.min_ready_seconds;
    successors(workload).find(|pod| pod.is_available(min_ready, now))
}

/// A completed hold is history; it goes after its time, but never while its victim still exists, since it is
/// what keeps a released victim released.
pub(super) fn completed(input: &Input<'_>, hold: &HoldView, victim: Option<&PodView>, plan: &mut Plan) -> Vec<Action> {
    let since = hold.status.completed_at.unwrap_or(hold.spec.deadline);
    let until = since.saturating_add(input.rules.history_ttl).unwrap_or(Timestamp::MAX);
    if victim.is_some() {
        return Vec::new();
    }
    if input.now < until {
        plan.wake(until);
        return Vec::new();
    }
    vec![Action::DeleteHold { hold: hold.object() }]
}

pub(super) fn event(
    hold: &HoldView,
    deployment: &DeploymentView,
    warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
) -> Action {
    Action::Event(Event {
        namespace: deployment.namespace.clone(),
        regarding: Reference::deployment(&deployment.name, &deployment.uid),
        related: Some(Reference::pod(&hold.spec.victim_name, &hold.spec.victim_uid)),
        warning,
        reason,
        action,
        note,
    })
}
