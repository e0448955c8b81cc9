//! The responder's step: what to write, given an Eviction and the holds of its pod.
//!
//! Nothing is remembered between steps but what is in the objects. While the pod's handover is open, the Eviction says
//! what its hold says; otherwise the pod is looked at as the webhook would look at it, and either a hold is made or
//! there is nothing to wait for. Either way the last word is `completionTime`, and the next responder goes on.

use jiff::{SignedDuration, Timestamp};

use super::{EvictionView, Report};
use crate::action::{Action, Event, Reference};
use crate::hold::{Allowed, Answer, HoldReason, HoldSpec, HoldTrigger, HoldView, Outcome, Phase};

/// The least time between two reports: "responders should avoid heartbeats more frequent than 20 seconds"
/// (`k8s.io/api/lifecycle/v1alpha1`, `ResponderStatus`). Completion is reported at once.
const LEAST_PAUSE: SignedDuration = SignedDuration::from_secs(20);

/// The time between two reports of the same. A tenth of the twenty minutes after which others are turned to, so that a
/// leader that changes or an API server that is away leaves several to come; and shorter than any time after which a
/// surge that nobody asks for may be given up (`abandonAfter`, above three and a half minutes).
const HEARTBEAT: SignedDuration = SignedDuration::from_mins(2);

/// A pod is in the cache before its Eviction is there, but by two watches, of which one may be behind. So long after
/// the turn came, a pod that is not known is not there.
const UNSEEN: SignedDuration = SignedDuration::from_secs(10);

/// What is told of a hold that was made and that the controller has not taken up.
const RECORDED: &str = "the hold is recorded and will be taken up in a moment";

/// The last word where no hold could be made.
const NOT_RECORDED: &str =
    "NotRecorded: the hold could not be recorded; an eviction of the pod is answered by the webhook";

/// How soon a pod is looked for again.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(1);

/// A hold that is made is seen within moments, and nothing is reported before. Where none can be made for so long,
/// whatever the reason, the turn is at an end: nobody would ever be told more than that it goes on, and what comes after
/// Belay asks the webhook, which needs no write to refuse.
const UNRECORDED: SignedDuration = SignedDuration::from_secs(30);

/// Longest message of a report, in characters (`k8s.io/api/lifecycle/v1alpha1`, `ResponderStatus`).
const LONGEST_MESSAGE: usize = 4000;

/// What an eviction of the pod, asked for now, is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The answer.
    pub answer: Answer,
    /// The hold to be made, where none is seen.
    pub record: Option<HoldSpec>,
}

/// Everything that the step reads.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The Eviction.
    pub eviction: &'a EvictionView,
    /// The holds of its pod, for any reason.
    pub holds: &'a [&'a HoldView],
    /// The handover of the pod's workload has begun ([`crate::handover::has_begun`]).
    pub begun: bool,
    /// What the pod's eviction is answered, where the plan before this one asked for that.
    pub asked: Option<&'a Asked>,
    /// The time.
    pub now: Timestamp,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Independent sequences; each is performed in order and abandoned at the first action that fails.
    pub sequences: Vec<Vec<Action>>,
    /// What is to be done instead where a hold cannot be made: the turn has lasted too long without it.
    pub otherwise: Vec<Action>,
    /// When to look again, if nothing changes before and nothing fails.
    pub wake_at: Option<Timestamp>,
    /// The decision needs [`Input::asked`]; without it there is nothing more to be done.
    pub ask: bool,
}

impl Plan {
    fn wake(&mut self, after: SignedDuration, since: Timestamp) {
        let at = since.saturating_add(after).unwrap_or(Timestamp::MAX);
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Decides what to write for one Eviction.
pub fn respond(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    let eviction = input.eviction;
    let of_pod = || input.holds.iter().copied().filter(|hold| hold.spec.victim_uid == eviction.pod_uid);
    keep_asked_for(input, of_pod(), &mut plan);
    if !eviction.is_active() {
        return plan;
    }
    // A handover's hold is released when its victim may go. That of a busy pod waits to be asked.
    let open = |hold: &&HoldView| hold.spec.reason == HoldReason::Handover && !hold.status.phase.is_released();
    if let Some(hold) = of_pod().find(open) {
        let told = match hold.status.message.as_str() {
            // Nobody has taken it up yet; what was told stands.
            "" if !eviction.reported.message.is_empty() => &eviction.reported.message,
            "" => RECORDED,
            told => told,
        };
        report(eviction, told, hold.spec.deadline, input.now, &mut plan);
        return plan;
    }
    let Some(asked) = input.asked else {
        plan.ask = true;
        return plan;
    };
    match &asked.answer {
        Answer::Hold(held) => match &asked.record {
            Some(spec) => {
                let namespace = eviction.object.namespace.clone();
                let spec = HoldSpec { trigger: HoldTrigger::EvictionRequest, ..spec.clone() };
                plan.sequences.push(vec![Action::CreateHold { namespace, spec }]);
                if input.now >= unrecorded_at(eviction, of_pod()) {
                    plan.otherwise = vec![completion(eviction, NOT_RECORDED, input.now)];
                }
                // It is told of when it is seen. A watch that is late brings it as well as a look would.
                plan.wake(UNRECORDED, input.now);
            }
            None => report(eviction, &held.awaited, held.deadline, input.now, &mut plan),
        },
        Answer::Allow(Allowed::UnknownPod | Allowed::NotSynced) if may_come(eviction, input.now) => {
            plan.wake(LOOK_AGAIN, input.now);
        }
        Answer::Allow(reason) => {
            let released = of_pod().max_by_key(|hold| (hold.status.released_at, &hold.name));
            complete(eviction, &last_word(released, reason), input.now, &mut plan);
        }
    }
    plan
}

fn may_come(eviction: &EvictionView, now: Timestamp) -> bool {
    eviction.reported.started.is_some_and(|since| now.duration_since(since) < UNSEEN)
}

/// Reports progress, where there is news or it is time.
fn report(eviction: &EvictionView, message: &str, deadline: Timestamp, now: Timestamp, plan: &mut Plan) {
    let reported = &eviction.reported;
    let message = shortened(message);
    // What has passed is refused as an expectation.
    let expected = Some(whole_seconds(deadline)).filter(|at| *at > now).or(reported.expected);
    let is_news = message != reported.message || expected != reported.expected;
    let due = reported.heartbeat.map_or(now, |last| {
        last.saturating_add(if is_news { LEAST_PAUSE } else { HEARTBEAT }).unwrap_or(Timestamp::MAX)
    });
    if due > now {
        plan.wake(SignedDuration::ZERO, due);
        return;
    }
    let heartbeat = Some(not_before(now, [reported.started, reported.heartbeat]));
    let report = Report { heartbeat, expected, completed: None, message };
    plan.sequences.push(vec![Action::Respond { eviction: eviction.object.clone(), report }]);
    plan.wake(HEARTBEAT, now);
}

fn complete(eviction: &EvictionView, message: &str, now: Timestamp, plan: &mut Plan) {
    plan.sequences.push(vec![completion(eviction, message, now)]);
}

fn completion(eviction: &EvictionView, message: &str, now: Timestamp) -> Action {
    let completed = Some(not_before(now, [eviction.reported.started, eviction.reported.heartbeat]));
    let report = Report { completed, message: shortened(message), ..Report::default() };
    Action::Respond { eviction: eviction.object.clone(), report }
}

/// From when on a hold that is still to be made is taken for one that cannot be: by what was last told, or, where
/// another hold came before it, by that one's end.
fn unrecorded_at<'a>(eviction: &EvictionView, holds: impl Iterator<Item = &'a HoldView>) -> Timestamp {
    let reported = &eviction.reported;
    let released = holds.filter_map(|hold| hold.status.released_at);
    let last = [reported.started, reported.heartbeat].into_iter().flatten().chain(released).max();
    // A turn without its beginning is none that the API server serves.
    last.map_or(Timestamp::MAX, |last| last.saturating_add(UNRECORDED).unwrap_or(Timestamp::MAX))
}

/// How the last hold ended, or why there is none.
fn last_word(released: Option<&HoldView>, reason: &Allowed) -> String {
    if let (Allowed::Released | Allowed::Terminating, Some(hold)) = (reason, released) {
        let outcome = hold.status.outcome.map_or(Phase::Released.as_str(), Outcome::as_str);
        return format!("{outcome}: {}", hold.status.message);
    }
    let why = reason.warning().unwrap_or_else(|| "nothing holds the pod".to_owned());
    format!("{}: {}", reason.reason(), why.strip_prefix("belay: ").unwrap_or(&why))
}

/// An Eviction asks all the while that it stands, where drainers ask again and again: what is given up because nobody
/// asks any more has to see that.
fn keep_asked_for<'a>(input: &Input<'_>, holds: impl Iterator<Item = &'a HoldView>, plan: &mut Plan) {
    if !input.begun || !input.eviction.stands() || input.eviction.evicted || input.eviction.state.is_none() {
        return;
    }
    let standing = |hold: &&HoldView| hold.spec.reason == HoldReason::Handover && hold.status.phase < Phase::Completed;
    for hold in holds.filter(standing) {
        let last = hold.status.last_requested_at.unwrap_or(hold.spec.requested_at);
        let since = input.now.duration_since(last);
        if since < HEARTBEAT {
            plan.wake(HEARTBEAT, last);
        } else {
            plan.sequences.push(vec![Action::NoteRequest { hold: hold.object(), at: whole_seconds(input.now) }]);
            plan.wake(HEARTBEAT, input.now);
        }
    }
}

/// The holds of handovers that an Eviction began and that nobody wants any more, before anything was done.
///
/// They go without a trace instead of being released: released is for ever, and the pod's next eviction, which nothing
/// speaks against yet, would meet no protection. A handover that has begun goes on to its end, as after a drain that
/// was broken off. `evictions` are those of pods of the victims' name; `begun` is [`crate::handover::has_begun`].
pub fn withdrawn(
    evictions: &[&EvictionView],
    holds: &[&HoldView],
    begun: impl Fn(&HoldView) -> bool,
) -> Vec<Vec<Action>> {
    let is_wanted = |hold: &HoldView| {
        let uid = &hold.spec.victim_uid;
        evictions.iter().any(|eviction| eviction.pod_uid == *uid && eviction.stands())
    };
    let of_ours = holds.iter().filter(|hold| {
        hold.spec.trigger == HoldTrigger::EvictionRequest
            && hold.spec.reason == HoldReason::Handover
            && !hold.status.phase.is_released()
    });
    // What stands there before a handover has begun, a webhook has written: somebody else asks as well.
    let unasked = of_ours.filter(|hold| hold.status.last_requested_at.is_none());
    let over = unasked.filter(|hold| !is_wanted(hold) && !begun(hold));
    over.map(|hold| vec![Action::DeleteHold { hold: hold.object() }, told(hold)]).collect()
}

fn told(hold: &HoldView) -> Action {
    let (victim, by) = (&hold.spec.victim_name, &hold.spec.evictor);
    let note = format!("The EvictionRequest of {by} for {victim} was withdrawn before its handover began");
    Action::Event(Event {
        namespace: hold.namespace.clone(),
        regarding: Reference::deployment(&hold.spec.workload.name, &hold.spec.workload.uid),
        related: Some(Reference::pod(victim, &hold.spec.victim_uid)),
        warning: false,
        reason: "EvictionWithdrawn",
        action: "Release",
        note,
    })
}

/// The API server refuses a time before what was reported earlier. The clocks of two machines differ, and it allows for
/// that (by 30 s), but not for time that runs backwards.
fn not_before<const N: usize>(now: Timestamp, earlier: [Option<Timestamp>; N]) -> Timestamp {
    earlier.into_iter().flatten().chain([whole_seconds(now)]).max().unwrap_or(now)
}

/// As a time stands in the API.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn shortened(message: &str) -> String {
    message.chars().take(LONGEST_MESSAGE).collect()
}
