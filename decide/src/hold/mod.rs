//! The answer to one eviction request.
//!
//! [`decide`] is what every webhook replica computes, from its cache and its own short memory, without asking
//! anybody: so a hold ends in time with the leader dead, the API server away or the record lost. The order of
//! the questions is the order of `docs/eviction-hold.md`; each answer names its reason, which is the metric
//! label, and what an operator reads at the drainer.

mod answer;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
pub mod unseen;
mod view;

use std::time::Duration;

use jiff::Timestamp;

pub use answer::{Allowed, Answer, Held, moment};
pub use view::{
    HoldReason, HoldSpec, HoldStatus, HoldTrigger, HoldView, Outcome, Phase, WorkloadRef, deadline, hold_name,
};

use crate::evictors;
use crate::handover::{Situation, Workload, scale, situation};
use crate::policy::{self, Mode, Protection};
use crate::view::{PodPhase, PodView};

/// How long a replica holds a victim whose record it cannot see in the API.
///
/// The record is what bounds a hold across restarts of replicas. Where it cannot be written (rights missing,
/// API server refusing), a hold has only this replica's memory, so it must be short: long enough for a write
/// that is retried through an API server restart (under 10 s measured), far shorter than any drainer's patience.
pub const UNRECORDED_GRACE: Duration = Duration::from_secs(30);

/// A moment by two clocks. Wall time compares with what other replicas wrote; uptime cannot jump, so a wall
/// clock set back cannot prolong a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Wall clock.
    pub wall: Timestamp,
    /// Monotonic time since the process started.
    pub uptime: Duration,
}

/// An eviction request, as far as the decision cares.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Name of the pod.
    pub name: &'a str,
    /// `deleteOptions.preconditions.uid`, where the client sent one.
    pub uid: Option<&'a str>,
    /// By URL or in the body's `deleteOptions`.
    pub dry_run: bool,
    /// `userInfo.username`; empty where absent.
    pub evictor: &'a str,
}

/// What the platform configured.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Namespaces whose pods are never held: Belay's own, `kube-system`, and those of the configuration.
    pub excluded_namespaces: Vec<String>,
    /// User names whose evictions always pass; a trailing `*` matches a prefix.
    pub ignore_evictors: Vec<String>,
    /// Evictions by programs that restart or resize pods pass, but for busy pods.
    pub ignore_restarters: bool,
}

impl Rules {
    /// A program that restarts or resizes pods asks, and such are let through: they want a new pod and not an empty node,
    /// have their own rules about how many may be missing, and would be answered with a rollout each time.
    fn ignores_restarter(&self, user: &str) -> bool {
        self.ignore_restarters && evictors::recognise(user).is_some_and(|evictor| evictor.restarts)
    }

    /// Pods of this namespace are never held, nor told anything of.
    pub fn excludes(&self, namespace: &str) -> bool {
        self.excluded_namespaces.iter().any(|excluded| excluded == namespace)
    }
}

/// What the replica's cache knows about the victim.
#[derive(Clone, Debug, Default)]
pub struct Facts<'a> {
    /// The caches hold the cluster's state; false right after a start.
    pub synced: bool,
    /// The pod of that name.
    pub victim: Option<&'a PodView>,
    /// Its Deployment with what belongs to it.
    pub workload: Option<&'a Workload<'a>>,
    /// The Deployment's protection.
    pub protection: Option<&'a Protection>,
    /// The victim's recorded hold.
    pub hold: Option<&'a HoldView>,
}

/// What a replica remembers of a victim that it held. Lost with the process; everything that must outlive it is
/// in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// When this replica was first asked.
    pub first: Moment,
    /// The longest hold that the policy allowed then.
    pub limit: Duration,
    /// Released by this replica: stays released, even where a PodDisruptionBudget refused after us.
    pub released: bool,
}

/// The decision: what to answer, and what to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub answer: Answer,
    /// What the replica is to remember of this victim from now on; absent where nothing changes.
    pub memory: Option<Memory>,
    /// A hold to be recorded in the API, where none is seen there.
    pub record: Option<HoldSpec>,
}

impl Decision {
    fn allow(reason: Allowed) -> Self {
        Self { answer: Answer::Allow(reason), memory: None, record: None }
    }
}

/// Answers one eviction request.
pub fn decide(
    request: &Request<'_>,
    rules: &Rules,
    facts: &Facts<'_>,
    memory: Option<&Memory>,
    now: Moment,
) -> Decision {
    if rules.excludes(request.namespace) {
        return Decision::allow(Allowed::ExcludedNamespace);
    }
    if !facts.synced {
        return Decision::allow(Allowed::NotSynced);
    }
    let decision = decide_wet(request, rules, facts, memory, now);
    if request.dry_run { Decision { answer: dry_run(&decision.answer), memory: None, record: None } } else { decision }
}

/// What a dry run is told of the answer that the request itself would get.
pub fn dry_run(answer: &Answer) -> Answer {
    let unsupported = match answer {
        Answer::Allow(Allowed::Unsupported(unsupported)) => Some(*unsupported),
        _ => None,
    };
    let would_hold = answer.held().cloned().map(Box::new);
    Answer::Allow(Allowed::DryRun { would_hold, unsupported })
}

fn decide_wet(
    request: &Request<'_>,
    rules: &Rules,
    facts: &Facts<'_>,
    memory: Option<&Memory>,
    now: Moment,
) -> Decision {
    let Some(victim) = facts.victim else {
        return Decision::allow(Allowed::UnknownPod);
    };
    if let Some(reason) = needs_no_protection(request, victim) {
        return Decision::allow(reason);
    }
    let (Some(workload), Some(protection)) = (facts.workload, facts.protection) else {
        return Decision::allow(Allowed::NotProtected);
    };
    let ignored = |patterns: &[String]| policy::evictor_matches(patterns, request.evictor);
    if ignored(&rules.ignore_evictors)
        || ignored(&protection.settings.ignore_evictors)
        || rules.ignores_restarter(request.evictor)
    {
        return Decision::allow(Allowed::IgnoredEvictor);
    }
    if let Err(unsupported) = policy::supported(workload.deployment, protection.settings.mode, workload.autoscaler) {
        return Decision::allow(Allowed::Unsupported(unsupported));
    }

    let limit = Duration::from_secs(u64::from(protection.settings.readiness_deadline_seconds));
    let memory = memory.copied().unwrap_or(Memory { first: now, limit, released: false });
    let hold = facts.hold.filter(|hold| hold.is_of(HoldReason::Handover, &victim.uid));
    let release = |reason: Allowed| Decision {
        answer: Answer::Allow(reason),
        memory: Some(Memory { released: true, ..memory }),
        record: None,
    };
    let record = workload.deployment.record_of(&victim.uid);
    // A rollback is written before the release that goes with it, and the release may be lost.
    let given_up = record.is_some_and(|record| record.rolled_back);
    let scales = protection.settings.mode == Mode::Scale;
    let let_go = scales && scale::is_let_go(workload, &victim.uid);
    if memory.released || given_up || let_go || hold.is_some_and(|hold| hold.status.phase.is_released()) {
        return release(Allowed::Released);
    }
    let doomed = victim.node.as_deref().and_then(|node| workload.dooms.get(node));
    let until = doomed.and_then(|doomed| doomed.until());
    let bounds = Bounds::of(&memory, hold, record.map(|record| (record.requested_at, record.deadline)), until);
    let situation = situation(workload, victim, now.wall);
    // A stand-in serves one victim of several, and only who writes that down may say which.
    if let Situation::Served { by } = situation
        && !scales
    {
        return release(Allowed::ReplacementAvailable { replacement: by.name.to_string() });
    }
    if bounds.passed(&memory, now) {
        return release(Allowed::DeadlinePassed);
    }
    let durable = hold.is_some() || record.is_some();
    if !durable && now.uptime.saturating_sub(memory.first.uptime) >= UNRECORDED_GRACE {
        return release(Allowed::NotRecorded);
    }
    if record.is_some() && !scales && matches!(situation, Situation::Steady | Situation::Settling) {
        return release(Allowed::Reverted);
    }
    let told = if scales {
        let awaited = scale::awaited(workload, victim, now.wall);
        Held::beside(workload, victim, &awaited, bounds.deadline, now.wall)
    } else {
        Held::new(workload.deployment, victim, &situation, bounds.deadline, now.wall)
    };
    let answer = Answer::Hold(told);
    let spec = hold.is_none().then(|| HoldSpec {
        victim_name: victim.name.to_string(),
        victim_uid: victim.uid.to_string(),
        victim_node: victim.node.as_deref().unwrap_or_default().to_owned(),
        victim_hash: victim.template_hash.as_deref().unwrap_or_default().to_owned(),
        reason: HoldReason::Handover,
        workload: WorkloadRef::deployment(&workload.deployment.name, &workload.deployment.uid),
        evictor: request.evictor.to_owned(),
        trigger: HoldTrigger::Eviction,
        requested_at: bounds.requested_at,
        deadline: bounds.deadline,
    });
    Decision { answer, memory: Some(memory), record: spec }
}

/// Victims that serve nobody, or are not the pod that was meant.
fn needs_no_protection(request: &Request<'_>, victim: &PodView) -> Option<Allowed> {
    if request.uid.is_some_and(|uid| uid != &*victim.uid) {
        return Some(Allowed::UidMismatch);
    }
    if victim.terminating {
        return Some(Allowed::Terminating);
    }
    if victim.is_finished() {
        return Some(Allowed::Finished);
    }
    if victim.phase == PodPhase::Pending || victim.node.is_none() {
        return Some(Allowed::Pending);
    }
    if victim.ready_since.is_none() {
        return Some(Allowed::NotReady);
    }
    None
}

/// From when and until when a victim is held, by everything that is known of it. The earliest word counts, so
/// no replica, restart or second record can push the deadline out.
struct Bounds {
    requested_at: Timestamp,
    deadline: Timestamp,
}

impl Bounds {
    /// `until`: when the victim's node goes by itself.
    fn of(
        memory: &Memory,
        hold: Option<&HoldView>,
        record: Option<(Timestamp, Timestamp)>,
        until: Option<Timestamp>,
    ) -> Self {
        let seconds = u32::try_from(memory.limit.as_secs()).unwrap_or(u32::MAX);
        let own = (memory.first.wall, deadline(memory.first.wall, seconds));
        let recorded = hold.map(|hold| (hold.spec.requested_at, hold.spec.deadline));
        let all = [Some(own), recorded, record];
        let known = || all.iter().flatten();
        Self {
            requested_at: known().map(|(at, _)| *at).min().unwrap_or(own.0),
            deadline: known().map(|(_, until)| *until).chain(until).min().unwrap_or(own.1),
        }
    }

    fn passed(&self, memory: &Memory, now: Moment) -> bool {
        now.wall >= self.deadline || now.uptime.saturating_sub(memory.first.uptime) >= memory.limit
    }
}
