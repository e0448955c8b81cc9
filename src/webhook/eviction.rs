//! `POST /validate/eviction`: may this pod be evicted now?
//!
//! A busy rule is asked first, from the cache and, for an idle pod, once more from the API server; then handover
//! policies.

use belay_decide::busy::{Rule, Seen, eviction as busy_eviction};
use belay_decide::hold::{self, Allowed, Answer as Decided, HoldReason, HoldView, Phase};
use busy_eviction::{Facts, Passed, Read, Step};
use jiff::Timestamp;
use tokio::time::Instant;

use super::Handlers;
use super::live::{LiveReader, PATIENCE};
use super::review::{Answer, Eviction, Refusal, Request};
use super::unseen;
use crate::cluster::index::{BusyFacts, Governed, Index, PodKey, hold_of};
use crate::cluster::watch::{self, RuleHealth};
use crate::settings::Settings;

/// Answers one eviction review.
pub async fn answer(handlers: &Handlers, request: &Request<'_>) -> Answer {
    let eviction: Eviction<'_> =
        request.object.and_then(|object| serde_json::from_str(object.get()).ok()).unwrap_or_default();
    let meta = eviction.metadata.as_ref();
    let name = request.name.as_deref().or(meta.and_then(|meta| meta.name.as_deref())).unwrap_or_default();
    let namespace =
        request.namespace.as_deref().or(meta.and_then(|meta| meta.namespace.as_deref())).unwrap_or_default();
    let asked = hold::Request {
        namespace,
        name,
        uid: eviction.uid(),
        dry_run: request.dry_run == Some(true) || eviction.is_dry_run(),
        evictor: request.user(),
    };
    let started = Instant::now();
    // A replica that has just begun may still be asked: endpoints lag behind it. What it lets through it cannot take back.
    if !handlers.is_synced() {
        watch::synced_within(&handlers.health, PATIENCE).await;
    }
    let settings = handlers.settings.load_full();
    let live = || handlers.live.as_ref().map(|live| live.after(started.elapsed()));
    let step = ask_rule(handlers, &settings, &asked, live().as_ref()).await;
    let is_judged = step.as_ref().is_some_and(Step::is_judged);
    let by_rule = match left_to_policies(step) {
        // A rule may govern it, and nobody knows: fail open, and say so.
        Ok(Allowed::NotProtected) if !handlers.is_governing_known() => Allowed::NotSynced,
        Ok(by_rule) => by_rule,
        Err(answer) => {
            let unseen = unseen::held(handlers, &settings, &asked, is_judged, &answer, live().as_ref()).await;
            return reply(handlers, &asked, unseen.map_or(answer, Decided::Hold));
        }
    };
    let by_policy = ask_policy(handlers, &settings, &asked);
    let is_counted = by_policy.is_some() || by_rule != Allowed::NotProtected;
    let answer = match by_policy {
        None | Some(Decided::Allow(Allowed::NotProtected)) => Decided::Allow(by_rule),
        Some(answer) => answer,
    };
    match unseen::held(handlers, &settings, &asked, is_judged, &answer, live().as_ref()).await {
        Some(held) => reply(handlers, &asked, Decided::Hold(held)),
        None if is_counted => reply(handlers, &asked, answer),
        None => Answer::default(),
    }
}

/// What a rule leaves to handover policies: why the pod goes where none protects it. Else the answer that the rule has.
pub(crate) fn left_to_policies(step: Option<Step>) -> Result<Allowed, Decided> {
    match step {
        // Released by its rule, it may still be its Deployment's only one.
        Some(Step::Decided(decision)) => decision.release().cloned().ok_or(decision.answer),
        Some(Step::Pass(Passed::Idle | Passed::NotBegun)) => Ok(Allowed::Idle),
        Some(Step::Pass(Passed::NotHeld) | Step::ReadLive) | None => Ok(Allowed::NotProtected),
    }
}

/// Asks the busy rule that governs the pod; absent where none does.
async fn ask_rule(
    handlers: &Handlers,
    settings: &Settings,
    asked: &hold::Request<'_>,
    live: Option<&LiveReader>,
) -> Option<Step> {
    let (index, health) = (&handlers.index, &handlers.rule_health);
    let asking = AskRule { index, health, live, now: handlers.clock.now().wall };
    if settings.rules.excludes(asked.namespace) || !handlers.is_governing_known() {
        return None;
    }
    asking.of(asked, |facts| decide(handlers, settings, asked, facts)).await
}

/// What the busy rule of a pod is asked with.
pub(crate) struct AskRule<'a> {
    /// The cache.
    pub(crate) index: &'a Index,
    /// The watches that busy rules need.
    pub(crate) health: &'a RuleHealth,
    /// Reads what an idle pod's state depends on; absent where there is no API server.
    pub(crate) live: Option<&'a LiveReader>,
    /// The time.
    pub(crate) now: Timestamp,
}

impl AskRule<'_> {
    /// Asks the rule that governs the pod; absent where none does. `decide` is asked once more where it says that the
    /// facts have to be read live.
    pub(crate) async fn of(
        &self,
        asked: &hold::Request<'_>,
        mut decide: impl FnMut(&Facts<'_>) -> Step,
    ) -> Option<Step> {
        if self.index.rules().is_empty() {
            return None;
        }
        let key = PodKey::new(asked.namespace, asked.name);
        let (step, pod, number) = self.index.busy(&key, |BusyFacts { governed, holds, .. }| {
            let Governed { number, rule, seen, .. } = governed?;
            let pod = seen.pod.clone();
            let asked_known = self.health.asked(number);
            let read = asked_known.as_ref().err().map_or(Read::Cached, |problem| Read::Failed(problem));
            let facts = facts(rule, seen, &holds, read);
            Some((decide(&facts), pod, number))
        })?;
        let Step::ReadLive = step else { return Some(step) };
        let rule = self.index.rules().get(number)?;
        let read = match self.live {
            Some(live) => live.read(rule, &pod, self.now).await,
            None => Err("there is no API server to ask".to_owned()),
        };
        self.index.busy(&key, |BusyFacts { governed, holds, .. }| {
            let (seen, read) = match (&read, governed) {
                (Ok(live), _) => (live.seen(rule), Read::Live),
                (Err(problem), Some(cached)) => (cached.seen, Read::Failed(problem)),
                (Err(_), None) => return None,
            };
            Some(decide(&facts(rule, seen, &holds, read)))
        })
    }
}

/// What is known about a pod, its holds among those of its name.
pub(crate) fn facts<'a>(rule: &'a Rule, seen: Seen<'a>, holds: &[&'a HoldView], read: Read<'a>) -> Facts<'a> {
    let of = |reason| hold_of(holds, reason, seen.pod);
    Facts { rule, busy: of(HoldReason::Busy), retire: of(HoldReason::Retire), seen, read }
}

fn decide(handlers: &Handlers, settings: &Settings, asked: &hold::Request<'_>, facts: &Facts<'_>) -> Step {
    let now = handlers.clock.now();
    let mut memory = handlers.busy_victims.lock();
    let uid = &facts.seen.pod.uid;
    let step = busy_eviction::decide(asked, &settings.rules, facts, memory.get(uid).as_ref(), now);
    if let Step::Decided(decision) = &step
        && !asked.dry_run
    {
        if let Some(new) = decision.memory {
            memory.put(uid, new);
        }
        if let Some(spec) = &decision.record {
            handlers.recorder.record(asked.namespace, spec.clone());
        }
    }
    step
}

/// Asks the policy that protects the pod's Deployment; absent where handovers are switched off.
fn ask_policy(handlers: &Handlers, settings: &Settings, asked: &hold::Request<'_>) -> Option<Decided> {
    if !settings.hold_enabled {
        return None;
    }
    let (namespace, name) = (asked.namespace, asked.name);
    let now = handlers.clock.now();
    // The words of a dry run are put on at the end, the same for rules and policies.
    let wet = hold::Request { dry_run: false, ..*asked };
    let decision = handlers.index.victim(namespace, name, &settings.default_policy, handlers.is_synced(), |facts| {
        let mut memory = handlers.victims.lock();
        let remembered = facts.victim.and_then(|victim| memory.get(&victim.uid));
        let decision = hold::decide(&wet, &settings.rules, facts, remembered.as_ref(), now);
        if let (Some(victim), Some(new), false) = (facts.victim, decision.memory, asked.dry_run) {
            memory.put(&victim.uid, new);
        }
        if let Some(hold) = asked_for(asked, facts).filter(|_| !asked.dry_run) {
            handlers.recorder.asked_again(hold, now);
        }
        decision
    });
    if let Some(spec) = decision.record.filter(|_| !asked.dry_run) {
        handlers.recorder.record(namespace, spec);
    }
    Some(decision.answer)
}

/// The recorded hold that this request shows to be waited for still: after its release as well, since a victim that is
/// asked for again and again stands in somebody's way.
fn asked_for<'a>(asked: &hold::Request<'_>, facts: &hold::Facts<'a>) -> Option<&'a HoldView> {
    let (victim, hold) = (facts.victim?, facts.hold?);
    let is_meant = asked.uid.is_none_or(|uid| uid == &*victim.uid) && !victim.terminating;
    (is_meant && hold.is_of(HoldReason::Handover, &victim.uid) && hold.status.phase != Phase::Completed).then_some(hold)
}

fn reply(handlers: &Handlers, asked: &hold::Request<'_>, answer: Decided) -> Answer {
    let (namespace, name) = (asked.namespace, asked.name);
    let is_open = !matches!(answer, Decided::Allow(Allowed::ExcludedNamespace | Allowed::NotSynced));
    let answer = if asked.dry_run && is_open { hold::dry_run(&answer) } else { answer };
    match answer {
        Decided::Allow(allowed) => {
            handlers.metrics.eviction("Allow", allowed.reason());
            tracing::debug!(%namespace, pod = %name, reason = allowed.reason(), "eviction let through");
            Answer { warnings: allowed.warning().into_iter().collect(), ..Answer::default() }
        }
        Decided::Hold(held) => {
            handlers.metrics.eviction("Hold", held.reason);
            tracing::debug!(%namespace, pod = %name, reason = held.reason, "eviction held");
            Answer {
                refusal: Some(Refusal {
                    message: held.message,
                    cause: held.reason,
                    awaited: held.awaited,
                    retry_after_seconds: held.retry_after_seconds,
                }),
                ..Answer::default()
            }
        }
    }
}
