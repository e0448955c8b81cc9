//! The controller's step for the holds of one busy pod: taking them up, retiring owners, ending them.
//!
//! A `Busy` hold says that the pod works; it lasts as long as the job, at most until its deadline. It is never
//! "released" by the job's end: the webhook asks the cluster each time. A `Retire` hold is made for a pod that was seen
//! idle at the moment of its eviction; its owner is deleted at once, and the owner's finalizer has the last word.

use jiff::{SignedDuration, Timestamp};

use super::{Input, Memory, Plan, event};
use crate::action::{Action, ObjectRef};
use crate::busy::patience::impatience;
use crate::busy::rule::{GroupKind, OnBusy, OnIdle, Rule, State};
use crate::busy::state::{Found, Seen, Verdict, later};
use crate::hold::{HoldReason, HoldStatus, HoldView, Outcome, Phase};

/// A pod that has been idle for this long and is still there is not being evicted any more: any drainer would have
/// asked again meanwhile (kubectl after 5 s, Cluster Autoscaler after 10 s, the slowest known ones after 30 s), and met
/// it idle. Its next job gets a hold, and a deadline, of its own.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// A pod that is there and that no rule governs may only be known to one watch before the other. One that stays so was
/// taken from its rule: its labels were changed, or the rules were.
const UNGOVERNED_FOR: SignedDuration = SignedDuration::from_mins(5);

/// What the controller sees of the pod and remembers.
type Look<'a> = (&'a Rule, &'a Seen<'a>, &'a Verdict, &'a Memory);

pub(super) fn look(input: &Input<'_>, look: Option<Look<'_>>, plan: &mut Plan) {
    let mut holds = input.holds.clone();
    holds.sort_by(|a, b| (a.spec.requested_at, &a.name).cmp(&(b.spec.requested_at, &b.name)));
    for hold in holds {
        let look = look.filter(|(_, seen, ..)| *seen.pod.uid == *hold.spec.victim_uid);
        let sequence = match (hold.status.phase, look) {
            (Phase::Completed, None) => completed(input, hold, plan),
            (_, None) => went(input, hold, plan),
            // Completed, it is of a pod that no rule governed for a while.
            (Phase::Released | Phase::Completed, Some(look)) => forgotten(input, hold, look, plan),
            (Phase::Pending | Phase::Active, Some(look)) => open(input, hold, look, plan),
        };
        if !sequence.is_empty() {
            plan.sequences.push(sequence);
        }
    }
}

/// The victim is gone, or no rule governs it any more.
fn went(input: &Input<'_>, hold: &HoldView, plan: &mut Plan) -> Vec<Action> {
    let is_there = input.living == Some(hold.spec.victim_uid.as_str());
    let until = later(hold.spec.requested_at, UNGOVERNED_FOR);
    if is_there && input.now < until {
        plan.wake(Some(until));
        return Vec::new();
    }
    let (outcome, message) = match (hold.status.outcome, hold.spec.reason) {
        (Some(known), _) if !is_there => (known, "is gone"),
        (Some(known), _) => (known, "is governed by no busy rule any more"),
        (None, _) if is_there => (Outcome::NotNeeded, "is governed by no busy rule any more"),
        (None, HoldReason::Retire) => (Outcome::Retired, "is gone"),
        (None, _) if is_over(&hold.status.reason) => (Outcome::JobEnded, "is gone"),
        (None, _) => (Outcome::VictimGone, "is gone"),
    };
    let status = HoldStatus {
        phase: Phase::Completed,
        reason: outcome.as_str().to_owned(),
        message: format!("{} {message}", hold.spec.victim_name),
        outcome: Some(outcome),
        released_at: hold.status.released_at.or(Some(input.now)),
        completed_at: Some(input.now),
        ..hold.status.clone()
    };
    vec![Action::UpdateHold { hold: hold.object(), status }]
}

fn is_over(reason: &str) -> bool {
    [State::Idle, State::Done].iter().any(|state| state.as_str() == reason)
}

fn completed(input: &Input<'_>, hold: &HoldView, plan: &mut Plan) -> Vec<Action> {
    let until = later(hold.status.completed_at.unwrap_or(hold.spec.deadline), input.history_ttl);
    if input.now < until {
        plan.wake(Some(until));
        return Vec::new();
    }
    vec![Action::DeleteHold { hold: hold.object() }]
}

/// An idle pod whose eviction nobody asks for any more needs no hold.
fn forgotten(input: &Input<'_>, hold: &HoldView, look: Look<'_>, plan: &mut Plan) -> Vec<Action> {
    let (_, seen, verdict, memory) = look;
    let Some(since) = memory.idle_since.filter(|_| verdict.state == State::Idle && !seen.pod.terminating) else {
        return Vec::new();
    };
    let until = later(since, FORGOTTEN_AFTER);
    if input.now < until {
        plan.wake(Some(until));
        return Vec::new();
    }
    vec![Action::DeleteHold { hold: hold.object() }]
}

fn open(input: &Input<'_>, hold: &HoldView, look: Look<'_>, plan: &mut Plan) -> Vec<Action> {
    let (rule, seen, verdict, _) = look;
    let now = input.now;
    if hold.spec.reason == HoldReason::Busy && rule.spec.on_busy == OnBusy::Allow {
        let message = format!("rule {} does not hold busy pods any more", rule.spec.name);
        return release(hold, seen, Outcome::NotNeeded, message, now);
    }
    if hold.spec.reason == HoldReason::Retire && rule.spec.on_idle != OnIdle::DeleteOwner {
        let message = format!("rule {} does not delete the owners of idle pods any more", rule.spec.name);
        return release(hold, seen, Outcome::NotNeeded, message, now);
    }
    if now >= hold.spec.deadline {
        let message = match hold.spec.reason {
            HoldReason::Retire => "its owner has not let it go in time".to_owned(),
            _ => "its job has not ended in time".to_owned(),
        };
        return release(hold, seen, Outcome::Expired, message, now);
    }
    plan.wake(Some(hold.spec.deadline));
    match hold.spec.reason {
        HoldReason::Retire => retire(input, rule, hold, seen),
        _ => {
            let forgotten = forgotten(input, hold, look, plan);
            if forgotten.is_empty() { wait(rule, hold, seen, verdict) } else { forgotten }
        }
    }
}

/// The owner is deleted once; a hold that is taken up has seen it done.
///
/// It is the pod's own owner as the rule finds it, in a namespace, and of no other pod: a hold is no leave to delete
/// whatever it names. A hold that stays pending keeps nobody (`busy::eviction`, `NO_TAKER`).
fn retire(input: &Input<'_>, rule: &Rule, hold: &HoldView, seen: &Seen<'_>) -> Vec<Action> {
    let named = &hold.spec.workload;
    let kind = GroupKind::new(&named.group, &named.kind);
    let is_owner = rule.spec.owner.as_ref().is_some_and(|owner| owner.kind == kind)
        && matches!(seen.owner, Found::Owner(owner) if *owner.uid == *named.uid && !owner.namespace.is_empty());
    if hold.status.phase == Phase::Active || !is_owner || input.siblings > 0 {
        return Vec::new();
    }
    let owner = &hold.spec.workload;
    let what = format!("{} {}", owner.kind, owner.name);
    let status = HoldStatus {
        phase: Phase::Active,
        reason: "OwnerRetiring".to_owned(),
        message: format!("{what} was deleted and retires it"),
        ..hold.status.clone()
    };
    if matches!(seen.owner, Found::Owner(owner) if owner.terminating) {
        // Somebody else deleted it.
        return vec![Action::UpdateHold { hold: hold.object(), status }];
    }
    let note = format!(
        "Eviction asked for by {} of an idle pod: {what} is deleted instead, so that no job is lost",
        somebody(&hold.spec.evictor)
    );
    vec![
        Action::DeleteOwner {
            kind,
            owner: ObjectRef {
                namespace: hold.namespace.clone(),
                name: owner.name.clone(),
                uid: owner.uid.clone(),
                resource_version: String::new(),
            },
        },
        Action::UpdateHold { hold: hold.object(), status },
        event(seen, false, "OwnerRetired", "DeleteOwner", note, None),
    ]
}

fn wait(rule: &Rule, hold: &HoldView, seen: &Seen<'_>, verdict: &Verdict) -> Vec<Action> {
    // What a pod does while it is being killed says nothing of its job.
    if seen.pod.terminating && !seen.pod.is_finished() && hold.status.phase == Phase::Active {
        return Vec::new();
    }
    let reason = if verdict.because.is_unknown() { "Unknown" } else { verdict.state.as_str() };
    if hold.status.phase == Phase::Active && hold.status.reason == reason {
        return Vec::new();
    }
    let message = match verdict.state {
        State::Idle | State::Done => "it may go; the drainer has to ask again".to_owned(),
        _ => crate::busy::eviction::awaited(rule, verdict),
    };
    let status = HoldStatus { phase: Phase::Active, reason: reason.to_owned(), message, ..hold.status.clone() };
    let mut sequence = vec![Action::UpdateHold { hold: hold.object(), status }];
    if hold.status.phase == Phase::Pending {
        let evictor = somebody(&hold.spec.evictor);
        let until = crate::hold::moment(hold.spec.deadline, hold.spec.requested_at);
        let note =
            format!("Eviction asked for by {evictor} is held while the pod is {reason}, until {until} at the latest");
        sequence.push(event(seen, false, "EvictionHeld", "Hold", note, None));
        if let Some(impatient) =
            impatience(&hold.spec.evictor, hold.spec.deadline.duration_since(hold.spec.requested_at))
        {
            let note = format!("The job may need longer than this drain allows: {impatient}");
            sequence.push(event(seen, true, "DrainMayNotWait", "Hold", note, None));
        }
    }
    sequence
}

fn somebody(evictor: &str) -> &str {
    if evictor.is_empty() { "somebody" } else { evictor }
}

fn release(hold: &HoldView, seen: &Seen<'_>, outcome: Outcome, message: String, now: Timestamp) -> Vec<Action> {
    let note = format!("Eviction is released: {message}");
    let status = hold.status.released(outcome, message, now);
    let (reason, warning) = if outcome.is_failure() { ("HoldExpired", true) } else { ("EvictionReleased", false) };
    let told = event(seen, warning, reason, "Release", note, None);
    vec![Action::UpdateHold { hold: hold.object(), status }, told]
}
