//! The answer to the eviction of a pod that a busy rule governs.
//!
//! For drainers that read no hints. A busy pod is held from the cache; an idle one is looked at once more, live, since
//! a job may have been assigned a moment ago. Like every hold it ends by each replica's own reckoning: at its deadline,
//! which is the earliest of what the hold, the pod and this replica's memory know.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::patience::impatience;
use super::reconcile::since;
use super::rule::{OnBusy, OnIdle, Rule, State};
use super::state::{Because, Found, Seen, Verdict, judge, later};
use crate::hold::{
    Allowed, Answer, Held, HoldReason, HoldSpec, HoldTrigger, HoldView, Moment, Phase, Request, Rules,
    UNRECORDED_GRACE, WorkloadRef, deadline, moment,
};
use crate::policy::evictor_matches;
use crate::view::PodPhase;

/// A pod that is seen busy is told as busy within seconds, by the controller's clock.
const TOLD_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// A hold to be retired that no controller has taken up by then holds nobody: none leads, a right is missing, or the
/// owner is not the pod's alone. Far longer than a change of leaders takes (some 15 s).
const NO_TAKER: SignedDuration = SignedDuration::from_secs(60);

/// What is known about the pod.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Its rule.
    pub rule: &'a Rule,
    /// What its state is read from.
    pub seen: Seen<'a>,
    /// Its hold for being busy.
    pub busy: Option<&'a HoldView>,
    /// Its hold to be retired.
    pub retire: Option<&'a HoldView>,
    /// Where `seen` comes from.
    pub read: Read<'a>,
}

/// Where the facts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read<'a> {
    /// The cache.
    Cached,
    /// The API server, just now.
    Live,
    /// The cache, since the API server did not tell, for this reason.
    Failed(&'a str),
}

/// What a replica remembers of a busy pod that it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// When this replica was first asked during this job.
    pub first: Moment,
    /// Since when the pod was known to be busy then: another time is another job.
    pub job: Option<Timestamp>,
    /// Why it was held: each reason has a hold of its own.
    pub reason: HoldReason,
    /// Released by this replica: stays so during this job.
    pub released: bool,
}

/// What comes of the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The rule has nothing against it; whatever else protects the pod is asked next.
    Pass(Passed),
    /// Idle by the cache: to be asked again with live facts.
    ReadLive,
    /// This is the answer.
    Decided(Box<Decision>),
}

impl Step {
    /// The rule has judged a pod that runs, and lets it go: no look at the pod alone knows better.
    pub fn is_judged(&self) -> bool {
        match self {
            Self::Pass(passed) => *passed != Passed::NotBegun,
            Self::Decided(decision) => decision.release().is_some(),
            Self::ReadLive => false,
        }
    }

    fn decided(decision: Decision) -> Self {
        Self::Decided(Box::new(decision))
    }
}

/// Why a rule has nothing against an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The pod is idle, or done.
    Idle,
    /// The pod has not begun.
    NotBegun,
    /// The rule holds no busy pods.
    NotHeld,
}

/// The answer, and what to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub answer: Answer,
    /// What the replica is to remember of this pod from now on; absent where nothing changes.
    pub memory: Option<Memory>,
    /// A hold to be recorded in the API, where none is seen there.
    pub record: Option<HoldSpec>,
}

impl Decision {
    /// How a hold of the pod's came to its end; absent where the answer is another.
    pub fn release(&self) -> Option<&Allowed> {
        match &self.answer {
            Answer::Allow(how @ (Allowed::Released | Allowed::DeadlinePassed | Allowed::NotRecorded)) => Some(how),
            _ => None,
        }
    }
}

/// Answers one eviction request, or says what else must be known. The request is not a dry run's alone: for one, the
/// caller keeps nothing and words the answer (`hold::dry_run`).
pub fn decide(request: &Request<'_>, rules: &Rules, facts: &Facts<'_>, memory: Option<&Memory>, now: Moment) -> Step {
    let (rule, seen) = (facts.rule, &facts.seen);
    let pod = seen.pod;
    let allow = |reason| Step::decided(Decision { answer: Answer::Allow(reason), memory: None, record: None });
    if request.uid.is_some_and(|uid| uid != &*pod.uid) {
        return allow(Allowed::UidMismatch);
    }
    if pod.terminating {
        return allow(Allowed::Terminating);
    }
    if pod.is_finished() {
        return allow(Allowed::Finished);
    }
    if pod.node.is_none() {
        return allow(Allowed::Pending);
    }
    if evictor_matches(&rules.ignore_evictors, request.evictor) {
        return allow(Allowed::IgnoredEvictor);
    }
    let verdict = match facts.read {
        Read::Failed(_) if rule.spec.on_unknown == super::OnUnknown::Busy => {
            Verdict { state: State::Busy, because: Because::OwnerMissing, changes_at: None }
        }
        _ => judge(rule, seen, now.wall),
    };
    let retiring = facts.retire.filter(|hold| hold.is_of(HoldReason::Retire, &pod.uid));
    let is_retired = rule.spec.on_idle == OnIdle::DeleteOwner && is_retired_by_owner(seen);
    let owner_goes = is_retired && matches!(seen.owner, Found::Owner(owner) if owner.terminating);
    let has_no_taker = retiring.is_some_and(|hold| has_no_taker(hold, now.wall));
    let context = Context { request, facts, verdict: &verdict, memory, now };
    match verdict.state {
        State::Done => Step::Pass(Passed::Idle),
        // Its owner was told to go and has the last word on when.
        _ if owner_goes || (is_retired && retiring.is_some() && !has_no_taker) => {
            context.hold(HoldReason::Retire, retiring)
        }
        State::Busy | State::Starting if rule.spec.on_busy == OnBusy::Allow => Step::Pass(Passed::NotHeld),
        // Nothing has begun that could be lost.
        State::Starting if pod.phase == PodPhase::Pending => Step::Pass(Passed::NotBegun),
        State::Busy | State::Starting => {
            context.hold(HoldReason::Busy, facts.busy.filter(|hold| hold.is_of(HoldReason::Busy, &pod.uid)))
        }
        State::Idle if facts.read == Read::Cached => Step::ReadLive,
        State::Idle if is_retired && !has_no_taker => context.hold(HoldReason::Retire, None),
        State::Idle => Step::Pass(Passed::Idle),
    }
}

/// An owner without a namespace is not deleted: who may make pods in one namespace could name any object of the cluster
/// as their owner.
fn is_retired_by_owner(seen: &Seen<'_>) -> bool {
    matches!(seen.owner, Found::Owner(owner) if !owner.namespace.is_empty())
}

fn has_no_taker(hold: &HoldView, now: Timestamp) -> bool {
    hold.status.phase == Phase::Pending && now >= later(hold.spec.requested_at, NO_TAKER)
}

struct Context<'a> {
    request: &'a Request<'a>,
    facts: &'a Facts<'a>,
    verdict: &'a Verdict,
    memory: Option<&'a Memory>,
    now: Moment,
}

impl Context<'_> {
    fn hold(&self, reason: HoldReason, recorded: Option<&HoldView>) -> Step {
        let now = self.now;
        let limit = Duration::try_from(self.facts.rule.spec.max_busy).unwrap_or(Duration::MAX);
        let job = since(&self.facts.seen).filter(|_| reason == HoldReason::Busy);
        let memory = self.remembered(reason, job).unwrap_or(Memory { first: now, job, reason, released: false });
        let release = |reason| {
            Step::decided(Decision {
                answer: Answer::Allow(reason),
                memory: Some(Memory { released: true, ..memory }),
                record: None,
            })
        };
        if memory.released || recorded.is_some_and(|hold| hold.status.phase.is_released()) {
            return release(Allowed::Released);
        }
        let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX);
        let own = (memory.first.wall, deadline(memory.first.wall, seconds));
        let requested_at = recorded.map_or(own.0, |hold| hold.spec.requested_at.min(own.0));
        let of_job = job.map(|since| later(since, self.facts.rule.spec.max_busy));
        let recorded_until = recorded.map(|hold| hold.spec.deadline);
        let until = [Some(own.1), recorded_until, of_job].into_iter().flatten().min().unwrap_or(own.1);
        let held_for = now.uptime.saturating_sub(memory.first.uptime);
        if now.wall >= until || held_for >= limit {
            return release(Allowed::DeadlinePassed);
        }
        // Busy-since stands on the pod: it bounds the hold as durably as a record would.
        if recorded.is_none() && of_job.is_none() && held_for >= UNRECORDED_GRACE {
            return release(Allowed::NotRecorded);
        }
        let record = recorded.is_none().then(|| self.spec(reason, requested_at, until));
        Step::decided(Decision { answer: Answer::Hold(self.held(reason, until)), memory: Some(memory), record })
    }

    /// What is remembered of this job, or of this wait for the owner.
    fn remembered(&self, reason: HoldReason, job: Option<Timestamp>) -> Option<Memory> {
        let memory = self.memory.filter(|memory| memory.reason == reason)?;
        match (memory.job, job) {
            // The controller has told since when, of the job that we were asked about first. One that began later is
            // another: that drain was given up, or its pod was starting for long.
            (None, Some(since)) if since <= later(memory.first.wall, TOLD_WITHIN) => Some(Memory { job, ..*memory }),
            (then, now) if then == now => Some(*memory),
            _ => None,
        }
    }

    fn spec(&self, reason: HoldReason, requested_at: Timestamp, until: Timestamp) -> HoldSpec {
        let pod = self.facts.seen.pod;
        let named = |kind: &super::GroupKind, name: &str, uid: &str| WorkloadRef {
            group: kind.group.to_string(),
            kind: kind.kind.to_string(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        let workload = match (self.facts.seen.owner, &self.facts.rule.spec.owner) {
            (Found::Owner(owner), Some(rule)) => named(&rule.kind, &owner.name, &owner.uid),
            _ => pod
                .controller
                .as_ref()
                .map_or_else(WorkloadRef::default, |owner| named(&owner.kind, &owner.name, &owner.uid)),
        };
        HoldSpec {
            victim_name: pod.name.to_string(),
            victim_uid: pod.uid.to_string(),
            victim_node: pod.node.as_deref().unwrap_or_default().to_owned(),
            victim_hash: String::new(),
            reason,
            workload,
            evictor: self.request.evictor.to_owned(),
            trigger: HoldTrigger::Eviction,
            requested_at,
            deadline: until,
        }
    }

    fn held(&self, waits: HoldReason, until: Timestamp) -> Held {
        let (rule, verdict, now) = (self.facts.rule, self.verdict, self.now.wall);
        let (reason, awaited) = match (waits, self.facts.read) {
            (HoldReason::Retire, _) => {
                let owner = match self.facts.seen.owner {
                    Found::Owner(owner) => format!("its owner {}", owner.name),
                    Found::Missing | Found::NotAsked => "its owner".to_owned(),
                };
                ("OwnerRetiring", format!("{owner} is to retire it"))
            }
            (_, Read::Failed(why)) => {
                ("PodStateUnknown", format!("whether it is busy cannot be read ({why}), so it counts as busy"))
            }
            _ if verdict.because.is_unknown() => ("PodStateUnknown", awaited(rule, verdict)),
            _ if verdict.state == State::Starting => ("PodStarting", awaited(rule, verdict)),
            _ => ("PodBusy", awaited(rule, verdict)),
        };
        let impatient = impatience(self.request.evictor, until.duration_since(now));
        let impatient = impatient.map(|limit| format!("; note: {limit}")).unwrap_or_default();
        let name = &self.facts.seen.pod.name;
        let message =
            format!("belay: holding {name}: {awaited}; released by {} at the latest{impatient}", moment(until, now));
        Held { victim: name.to_string(), reason, awaited, message, deadline: until, retry_after_seconds: None }
    }
}

/// What a hold waits for, in words.
pub(super) fn awaited(rule: &Rule, verdict: &Verdict) -> String {
    let name = &rule.spec.name;
    match (&verdict.because, verdict.state) {
        (Because::PodFinished, _) => "it has ended".to_owned(),
        (Because::OwnerMissing, _) => format!("its owner is missing, so it counts as busy (rule {name}, onUnknown)"),
        (Because::Failed(index, error), _) => {
            format!("whether it is busy is unknown, so it counts as busy (rule {name}, states[{index}]: {error})")
        }
        (Because::OwnerNotSeenYet, _) => format!("it is new and its owner is not seen yet (rule {name})"),
        (Because::StartupGrace, _) => format!("it is starting (rule {name}, startupGrace)"),
        (Because::Expression(index), State::Starting) => format!("it is starting (rule {name}, states[{index}])"),
        (Because::Expression(index), _) => format!("it is busy (rule {name}, states[{index}])"),
        (Because::NoneTrue, _) => format!("it is idle (rule {name})"),
    }
}
