//! The responder's loop: looks at the Evictions of a pod whenever one of them or a hold of the pod changes, or when a
//! report is due, and performs what `decide::lifecycle::respond` says.
//!
//! Only on servers that serve them are there any ([`belay_decide::lifecycle`]). Whoever evicts otherwise is answered by
//! the webhook, as ever.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use belay_decide::action::Action;
use belay_decide::busy::eviction::{self as busy_eviction, Step};
use belay_decide::hold::{self, Allowed, Answer, HoldSpec, HoldView, Moment};
use belay_decide::lifecycle::{Asked, EvictionView, Input, Plan, has_begun, respond, withdrawn};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::work::{self, RETRY, Work, Written};
use crate::cluster::apply::ApplyError;
use crate::cluster::clock::Clock;
use crate::cluster::index::{PodKey, Requested};
use crate::cluster::watch::{Health, RuleHealth, settled};
use crate::settings::Settings;
use crate::webhook::eviction::{AskRule, left_to_policies};
use crate::webhook::live::LiveReader;

/// What the loop works with.
pub struct Loop {
    /// What it has in common with others.
    pub shared: Shared,
    /// The watch of Evictions.
    pub evictions: Health,
    /// The watches that busy rules need.
    pub rule_health: RuleHealth,
    /// Reads what an idle pod's state depends on.
    pub live: LiveReader,
    /// What was written and not yet seen again.
    pub written: Written<PodKey>,
}

/// What is known of the Evictions of pods of one name.
struct Known {
    evictions: Vec<EvictionView>,
    holds: Vec<HoldView>,
    /// Names of the holds whose handovers have begun.
    begun: BTreeSet<String>,
}

impl Known {
    fn of(requested: &Requested<'_>) -> Self {
        let begun = requested.holds.iter().filter(|hold| has_begun(hold, requested.workload));
        Self {
            evictions: requested.evictions.iter().map(|&one| one.clone()).collect(),
            begun: begun.map(|hold| hold.name.clone()).collect(),
            holds: requested.holds.iter().map(|&one| one.clone()).collect(),
        }
    }

    fn versions(&self) -> impl Iterator<Item = (String, String)> {
        let holds = self.holds.iter().map(|hold| (hold.uid.clone(), hold.resource_version.clone()));
        let objects = self.evictions.iter().map(|one| &one.object);
        holds.chain(objects.map(|object| (object.uid.clone(), object.resource_version.clone())))
    }
}

impl Loop {
    /// Runs until `stop`, then ends what it is at.
    pub async fn run(self, stop: CancellationToken) {
        let (leadership, health) = (Arc::clone(&self.shared.leadership), self.shared.health.clone());
        // What a rule asks may never be seen; what is only late must not be taken for missing.
        let rules = self.rule_health.pods.iter().chain(self.rule_health.asked.iter().flatten());
        if settled(rules.chain([&self.evictions]), &stop).await {
            work::run(self, &leadership, &health, stop).await;
        }
    }

    async fn look_at(&self, key: &PodKey) -> Option<Timestamp> {
        let now = Clock::wall();
        if !self.evictions.is_synced() {
            // Holds that no Eviction is seen to want are not therefore unwanted. The list that comes touches them.
            return None;
        }
        let known = self.shared.index.requested(key, Known::of);
        if self.written.is_awaited(key, known.versions()) {
            return now.saturating_add(RETRY).ok();
        }
        let holds: Vec<_> = known.holds.iter().collect();
        let evictions: Vec<_> = known.evictions.iter().collect();
        if evictions.is_empty() && holds.is_empty() {
            self.written.forget(key);
            return None;
        }
        let begun = |hold: &HoldView| known.begun.contains(&hold.name);
        let mut plans = vec![Plan { sequences: withdrawn(&evictions, &holds, begun), ..Plan::default() }];
        for eviction in evictions {
            let of_pod = |hold: &&HoldView| hold.spec.victim_uid == eviction.pod_uid;
            let begun = holds.iter().copied().filter(of_pod).any(begun);
            let input = Input { eviction, holds: &holds, begun, asked: None, now };
            let mut plan: Plan = respond(&input);
            if plan.ask {
                let asked = self.ask(eviction, now).await;
                plan = respond(&Input { asked: Some(&asked), ..input });
            }
            plans.push(plan);
        }
        let mut failed = None;
        for plan in &plans {
            for sequence in &plan.sequences {
                let Err(error) = self.perform(key, sequence, &known.evictions).await else { continue };
                let again = work::again(&error, now);
                failed = Some(failed.map_or(again, |earlier: Timestamp| earlier.min(again)));
                let is_hold = sequence.iter().any(|action| matches!(action, Action::CreateHold { .. }));
                if is_hold && !error.is_benign() && !plan.otherwise.is_empty() {
                    // Where this fails as well, both are tried again.
                    let _ = self.perform(key, &plan.otherwise, &known.evictions).await;
                }
            }
        }
        // What failed is tried again after a pause of its own; sooner it would only fail again.
        failed.or_else(|| plans.iter().filter_map(|plan| plan.wake_at).min())
    }

    async fn perform(&self, key: &PodKey, sequence: &[Action], evictions: &[EvictionView]) -> Result<(), ApplyError> {
        let (superseded, result) = self.shared.applier.perform(sequence).await;
        self.written.add(key, superseded);
        match &result {
            Ok(()) => self.tell(key, sequence, evictions),
            Err(error) if error.is_benign() => tracing::debug!(pod = %key, %error, "looking again"),
            Err(error) => tracing::warn!(pod = %key, %error, "Eviction not responded to, trying again"),
        }
        result
    }

    /// Asks what the eviction of the pod would be answered now: its busy rule first, then handover policies, as the
    /// webhook does. Nothing is remembered of it; the hold will be seen.
    async fn ask(&self, eviction: &EvictionView, now: Timestamp) -> Asked {
        let settings = self.shared.settings.load_full();
        let moment = Moment { wall: now, uptime: Duration::ZERO };
        let request = hold::Request {
            namespace: &eviction.object.namespace,
            name: &eviction.pod,
            uid: Some(&eviction.pod_uid),
            dry_run: false,
            evictor: &eviction.requesters,
        };
        let by_rule = match self.ask_rule(&request, &settings, moment).await {
            (Ok(by_rule), _) => by_rule,
            (Err(answer), record) => return Asked { answer, record },
        };
        let (answer, record) = self.ask_policy(&request, &settings, moment);
        match answer {
            Answer::Allow(Allowed::NotProtected) => Asked { answer: Answer::Allow(by_rule), record: None },
            answer => Asked { answer, record },
        }
    }

    async fn ask_rule(
        &self,
        request: &hold::Request<'_>,
        settings: &Settings,
        now: Moment,
    ) -> (Result<Allowed, Answer>, Option<HoldSpec>) {
        if settings.rules.excludes(request.namespace) {
            return (Ok(Allowed::NotProtected), None);
        }
        if !self.rule_health.is_governing_known() {
            return (Ok(Allowed::NotSynced), None);
        }
        let (index, health) = (&self.shared.index, &self.rule_health);
        let asking = AskRule { index, health, live: Some(&self.live), now: now.wall };
        let mut record = None;
        let step = asking.of(request, |facts| {
            let step = busy_eviction::decide(request, &settings.rules, facts, None, now);
            if let Step::Decided(decision) = &step {
                record.clone_from(&decision.record);
            }
            step
        });
        let step = step.await;
        (left_to_policies(step), record)
    }

    fn ask_policy(&self, request: &hold::Request<'_>, settings: &Settings, now: Moment) -> (Answer, Option<HoldSpec>) {
        if !settings.hold_enabled {
            return (Answer::Allow(Allowed::NotProtected), None);
        }
        let (namespace, name) = (request.namespace, request.name);
        self.shared.index.victim(namespace, name, &settings.default_policy, true, |facts| {
            let decision = hold::decide(request, &settings.rules, facts, None, now);
            (decision.answer, decision.record)
        })
    }

    /// One log line for each turn that began or ended.
    fn tell(&self, key: &PodKey, sequence: &[Action], evictions: &[EvictionView]) {
        for action in sequence {
            match action {
                Action::Respond { report, .. } if report.completed.is_some() => {
                    self.shared.metrics.responded("Completed");
                    tracing::info!(pod = %key, why = %report.message, "EvictionRequest left to the next responder");
                }
                Action::Respond { eviction, report } => {
                    let before = evictions.iter().find(|known| known.object == *eviction);
                    if let Some(before) = before.filter(|before| before.reported.heartbeat.is_none()) {
                        self.shared.metrics.responded("Held");
                        tracing::info!(
                            pod = %key, requesters = %before.requesters, awaited = %report.message, "EvictionRequest held"
                        );
                    }
                }
                Action::DeleteHold { hold } => {
                    self.shared.metrics.responded("Withdrawn");
                    tracing::info!(pod = %key, hold = %hold.name, "EvictionRequest withdrawn");
                }
                _ => {}
            }
        }
    }
}

impl Work for Loop {
    type Key = PodKey;

    async fn changed(&self) {
        self.shared.dirty.requests_changed().await;
    }

    fn take(&self) -> BTreeSet<PodKey> {
        self.shared.dirty.take_requests()
    }

    fn touch_all(&self) {
        self.shared.index.touch_requests();
    }

    async fn look(&self, key: &PodKey) -> Option<Timestamp> {
        self.look_at(key).await
    }

    fn observe(&self, _leading: bool) {}
}
