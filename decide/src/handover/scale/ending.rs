//! How a surge ends: the number goes back once, and the record with it.

use super::lever::Lever;
use super::marks;
use crate::action::{Action, Event, Reference};
use crate::handover::Workload;
use crate::handover::reconcile::{Input, Plan};
use crate::hold::{HoldStatus, HoldView};
use crate::policy::Mode;
use crate::view::{Governor, PodView};

/// The writes that put back what was raised.
pub(super) fn put_back(workload: &Workload<'_>, lever: &Lever<'_>, why: &str) -> Vec<Action> {
    let Some(record) = lever.record else { return Vec::new() };
    let mut steps = vec![lever.put_back()];
    let was_changed = lever.was_changed();
    if was_changed || record.surge > 0 {
        let number = if was_changed { lever.number } else { record.original };
        let number = number.map_or_else(|| "its default".to_owned(), |number| number.to_string());
        let left = if was_changed { "stays, since somebody else set it," } else { "is back" };
        let note = format!("{} of {} {left} at {number}: {why}", lever.field(), lever.name());
        steps.push(event(workload, false, "SurgeEnded", "ScaleBack", note));
    }
    // An autoscaler takes minutes to come down by itself.
    let deployment = workload.deployment;
    let is_ours = lever.governor != Governor::Deployment && !was_changed && record.workload == deployment.uid;
    if is_ours && record.surge > 0 && deployment.replicas == record.raised() {
        steps.push(Action::Scale {
            deployment: super::object_of(deployment),
            replicas: record.base,
            field_manager: None,
        });
    }
    steps
}

/// An Event on the Deployment.
pub(super) fn event(
    workload: &Workload<'_>,
    warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
) -> Action {
    let deployment = workload.deployment;
    Action::Event(Event {
        namespace: deployment.namespace.clone(),
        regarding: Reference::deployment(&deployment.name, &deployment.uid),
        related: None,
        warning,
        reason,
        action,
        note,
    })
}

/// The write by which an open hold forgets the surge that it knows of, where it goes on without that.
pub(super) fn forgetting(workload: &Workload<'_>, hold: &HoldView) -> Option<Action> {
    let restarted = workload.deployment.record_of(&hold.spec.victim_uid).is_some();
    let knows = !hold.status.phase.is_released() && hold.status.restarted_at.is_some() && !restarted;
    let status = HoldStatus { restarted_at: None, ..hold.status.clone() };
    knows.then(|| Action::UpdateHold { hold: hold.object(), status })
}

/// Puts back what is left of a surge where none is to be: the protection was taken away, or is by restart now. Says
/// whether that comes before anything else.
pub(in crate::handover) fn withdraw(
    input: &Input<'_>,
    holds: &[(&HoldView, Option<&PodView>)],
    plan: &mut Plan,
) -> bool {
    let Some(workload) = input.workload else { return false };
    let levers = Lever::with_records(workload);
    if levers.is_empty() {
        marks::keep(workload, input.close, &marks::Wanted::default(), plan, input.now);
        return false;
    }
    // The surge is no restart: a hold that went on knowing of one would wait for it in vain.
    let by_restart = input.protection.is_some_and(|protection| protection.settings.mode == Mode::Restart);
    let holds = holds.iter().map(|(hold, _)| *hold).filter(|_| by_restart);
    let mut steps: Vec<Action> = holds.filter_map(|hold| forgetting(workload, hold)).collect();
    let first = !steps.is_empty();
    for lever in &levers {
        steps.extend(put_back(workload, lever, "the workload is no longer handed over by Scale"));
    }
    plan.add(steps);
    first
}
