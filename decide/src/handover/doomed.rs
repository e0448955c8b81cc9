//! What begins by itself: handovers of pods whose node is about to go, before anybody asks for their eviction.
//!
//! Only where the policy says so (`trigger: OnDoom`). A signal has to stand for a while first, since some come and go;
//! then the pod gets a hold as if its eviction had been asked for, and everything else is as ever. A signal that is gone
//! before anything began takes the hold away again: taken away and not released, since a released pod goes unheld for
//! ever, and this one's node may be drained some day.

use std::borrow::Cow;
use std::ops::ControlFlow;

use super::reconcile::{Input, Plan};
use super::{Situation, Workload, situation};
use crate::action::{Action, Event, Reference};
use crate::doom::Doomed;
use crate::hold::{self, HoldReason, HoldSpec, HoldTrigger, HoldView, Outcome, WorkloadRef};
use crate::policy::{self, Mode, Protection, Trigger};
use crate::view::PodView;

/// The holds, none of which lasts longer than its victim's node does.
///
/// A node that goes at a time of its own takes its pods with it: a deadline after that would protect nobody.
pub(super) fn in_time<'a>(input: &Input<'a>) -> Vec<(Cow<'a, HoldView>, Option<&'a PodView>)> {
    let until = |hold: &HoldView| input.workload?.dooms.get(hold.spec.victim_node.as_str())?.until();
    let shortened = |hold: &'a HoldView| match until(hold) {
        Some(until) if until < hold.spec.deadline => {
            let mut hold = hold.clone();
            hold.spec.deadline = until;
            hold.status.deadline = Some(until);
            Cow::Owned(hold)
        }
        _ => Cow::Borrowed(hold),
    };
    input.holds.iter().map(|(hold, victim)| (shortened(hold), *victim)).collect()
}

/// Has deadlines written down that were shortened just now, where nothing else is written to their holds. In every write
/// of a hold's status they stand as well.
pub(super) fn note_deadlines(input: &Input<'_>, before: &Input<'_>, plan: &mut Plan) {
    let is_news = |hold: &HoldView| {
        let known = before.holds.iter().find(|(one, _)| one.uid == hold.uid);
        !hold.status.phase.is_released() && known.is_some_and(|(one, _)| one.status.deadline != hold.status.deadline)
    };
    let written = |plan: &Plan, hold: &HoldView| {
        plan.sequences.iter().flatten().any(|action| match action {
            Action::UpdateHold { hold: one, .. } | Action::DeleteHold { hold: one } => one.uid == hold.uid,
            _ => false,
        })
    };
    for (hold, _) in input.holds.iter().filter(|(hold, _)| is_news(hold)) {
        if !written(plan, hold) {
            plan.add(vec![Action::UpdateHold { hold: hold.object(), status: hold.status.clone() }]);
        }
    }
}

/// Adds what begins by itself, and when to look again. Breaks where holds are to be taken away instead: what is left of
/// the workload is decided when they are gone.
pub(super) fn ahead(input: &Input<'_>, plan: &mut Plan) -> ControlFlow<()> {
    let Some(workload) = input.workload else { return ControlFlow::Continue(()) };
    let withdrawn = input.holds.iter().filter(|(hold, victim)| is_idle(input, workload, hold, *victim));
    let sequences = withdrawn.filter_map(|(hold, _)| Some(withdraw(input, workload, input.protection?, hold)));
    plan.sequences.extend(sequences);
    if !plan.sequences.is_empty() {
        return ControlFlow::Break(());
    }
    if let Some(protection) = acts(input, workload) {
        begin(input, workload, protection, plan);
    }
    ControlFlow::Continue(())
}

/// The protection, where it has handovers begin by themselves and the workload can be handed over.
fn acts<'a>(input: &Input<'a>, workload: &Workload<'_>) -> Option<&'a Protection> {
    let protection = input.protection.filter(|protection| protection.settings.trigger == Trigger::OnDoom)?;
    policy::supported(workload.deployment, protection.settings.mode, workload.autoscaler).ok()?;
    Some(protection)
}

/// The signals of this node, where a handover may begin by them. A restart cannot be taken back, so it never begins by a
/// signal that may mean nothing.
fn counts<'a>(input: &Input<'_>, workload: &Workload<'a>, mode: Mode, node: &str) -> Option<&'a Doomed> {
    let doomed = workload.dooms.get(node)?;
    (!doomed.soft || mode == Mode::Scale && input.rules.soft_signals).then_some(doomed)
}

fn begin(input: &Input<'_>, workload: &Workload<'_>, protection: &Protection, plan: &mut Plan) {
    if input.holds.iter().any(|(hold, _)| failed(hold)) {
        return;
    }
    let mode = protection.settings.mode;
    let mut pods: Vec<_> = workload.pods.iter().filter(|pod| is_left(input, workload, pod, mode)).collect();
    pods.sort_by_key(|pod| &pod.name);
    for pod in pods {
        let Some(node) = pod.node.as_deref() else { continue };
        let Some(doomed) = counts(input, workload, mode, node) else { continue };
        // Where time is short none of it is spent on waiting whether the signal stays.
        let wait = if doomed.notice.is_some() { None } else { Some(input.rules.signal_stability) };
        let at = wait.map_or(Ok(doomed.since), |wait| doomed.since.saturating_add(wait)).unwrap_or(doomed.since);
        if input.now < at {
            plan.wake(at);
            continue;
        }
        let deadline = hold::deadline(input.now, protection.settings.readiness_deadline_seconds);
        let deadline = doomed.until().map_or(deadline, |until| until.min(deadline));
        if input.now < deadline {
            plan.sequences.push(announce(input, workload, pod, node, doomed, deadline));
        }
    }
}

/// A handover that began by itself came to nothing. The next one would most likely as well (no node takes the
/// replacement, or only one that is about to go too), and each would be a restart, over and over: nothing more begins by
/// itself while this one is remembered. Evictions are held as ever.
fn failed(hold: &HoldView) -> bool {
    let outcome = hold.status.outcome;
    hold.spec.trigger == HoldTrigger::Doom
        && outcome.is_some_and(|outcome| outcome.is_failure() || outcome == Outcome::Abandoned)
}

/// The pod serves, and nothing is done for it yet.
fn is_left(input: &Input<'_>, workload: &Workload<'_>, pod: &PodView, mode: Mode) -> bool {
    // A pod that works goes when its rule lets it go.
    let serves = pod.ready_since.is_some() && !pod.terminating && !pod.is_finished() && !pod.marked;
    let is_known = input.holds.iter().any(|(hold, _)| hold.spec.victim_uid == *pod.uid);
    serves
        && !is_known
        && !(mode == Mode::Restart && matches!(situation(workload, pod, input.now), Situation::Served { .. }))
}

fn announce(
    input: &Input<'_>,
    workload: &Workload<'_>,
    pod: &PodView,
    node: &str,
    doomed: &Doomed,
    deadline: jiff::Timestamp,
) -> Vec<Action> {
    let deployment = workload.deployment;
    let spec = HoldSpec {
        victim_name: pod.name.to_string(),
        victim_uid: pod.uid.to_string(),
        victim_node: node.to_owned(),
        victim_hash: pod.template_hash.as_deref().unwrap_or_default().to_owned(),
        reason: HoldReason::Handover,
        workload: WorkloadRef::deployment(&deployment.name, &deployment.uid),
        evictor: String::new(),
        trigger: HoldTrigger::Doom,
        requested_at: input.now,
        deadline,
    };
    let words = format!(
        "Node {node} is about to go ({}): {} is handed over before its eviction is asked for, until {} at the latest",
        doomed.by,
        pod.name,
        hold::moment(deadline, input.now)
    );
    let told = event(workload, &spec, "NodeAboutToGo", "Hold", words);
    vec![Action::CreateHold { namespace: deployment.namespace.clone(), spec }, told]
}

/// Nobody has asked for the eviction, and either the signal is gone that the hold began by, before anything was written
/// for it, or nothing came of it in time.
fn is_idle(input: &Input<'_>, workload: &Workload<'_>, hold: &HoldView, victim: Option<&PodView>) -> bool {
    let spec = &hold.spec;
    let is_ours = spec.workload.uid == workload.deployment.uid;
    // A protection that is gone is another matter, and a reason to release.
    let stays = |protection: &Protection| {
        protection.settings.trigger != Trigger::OnDoom
            || counts(input, workload, protection.settings.mode, &spec.victim_node).is_none()
    };
    let serves = victim.is_some_and(|victim| !victim.terminating);
    let is_idle = |protection: &Protection| {
        is_late(input, protection, hold) || !has_begun(hold, Some(workload)) && stays(protection)
    };
    is_ours && serves && nobody_asked(hold) && !hold.status.phase.is_released() && input.protection.is_some_and(is_idle)
}

/// The deadline of a hold that nobody asked for: nobody waits for its release, which would only use up the protection of
/// the pod's real eviction. By Scale it is begun anew for as long as the node is about to go; another restart would cost
/// the workload too much.
fn is_late(input: &Input<'_>, protection: &Protection, hold: &HoldView) -> bool {
    protection.settings.mode == Mode::Scale && input.now >= hold.spec.deadline
}

/// The hold began by itself, and nobody has asked for the eviction.
pub(super) fn nobody_asked(hold: &HoldView) -> bool {
    hold.spec.trigger == HoldTrigger::Doom && hold.status.last_requested_at.is_none()
}

/// Something was done for this victim's handover that is not undone by forgetting its hold.
pub fn has_begun(hold: &HoldView, workload: Option<&Workload<'_>>) -> bool {
    let uid = &hold.spec.victim_uid;
    let of_hold = hold.status.from_revision.is_some() || hold.status.restarted_at.is_some();
    let of_workload = workload.is_some_and(|workload| {
        let surges = [workload.deployment.surge.as_ref(), workload.autoscaler.and_then(|scaler| scaler.surge.as_ref())];
        let mut victims = surges.iter().flatten().flat_map(|surge| surge.awaited.iter().chain(&surge.released));
        workload.deployment.record_of(uid).is_some() || victims.any(|victim| victim == uid)
    });
    of_hold || of_workload
}

fn withdraw(input: &Input<'_>, workload: &Workload<'_>, protection: &Protection, hold: &HoldView) -> Vec<Action> {
    if !is_late(input, protection, hold) {
        return stays(workload, hold);
    }
    let note = format!(
        "No stand-in of {} was available by {}; it stays held, and its handover begins anew while its node is about to go",
        hold.spec.victim_name,
        hold::moment(hold.spec.deadline, input.now)
    );
    let told = event(workload, &hold.spec, "HandoverPutOff", "Withdraw", note);
    vec![Action::DeleteHold { hold: hold.object() }, told]
}

/// Takes away the hold of a victim whose node is not about to go any more.
pub(super) fn stays(workload: &Workload<'_>, hold: &HoldView) -> Vec<Action> {
    let note = format!("Node {} stays after all: {} is not handed over", hold.spec.victim_node, hold.spec.victim_name);
    let told = event(workload, &hold.spec, "NodeStays", "Withdraw", note);
    vec![Action::DeleteHold { hold: hold.object() }, told]
}

fn event(workload: &Workload<'_>, spec: &HoldSpec, reason: &'static str, action: &'static str, note: String) -> Action {
    Action::Event(Event {
        namespace: workload.deployment.namespace.clone(),
        regarding: Reference::deployment(&workload.deployment.name, &workload.deployment.uid),
        related: Some(Reference::pod(&spec.victim_name, &spec.victim_uid)),
        warning: false,
        reason,
        action,
        note,
    })
}
