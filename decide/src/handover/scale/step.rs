//! The controller's step in a Scale handover: at most one change of the number, and what goes with it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::capacity::{Capacity, at_rest};
use super::ending::{event, forgetting, put_back};
use super::holds::{self, Open, Victims};
use super::lever::Lever;
use super::{marks, object_of};
use crate::action::Action;
use crate::handover::doomed;
use crate::handover::reconcile::{Input, Plan, held_event, release};
use crate::handover::surge::SurgeRecord;
use crate::handover::{ClosePod, Workload};
use crate::hold::{HoldView, Outcome};
use crate::policy::{self, Settings};
use crate::view::{Governor, Mark, PodView};

/// What a step is decided on.
struct Step<'a> {
    input: &'a Input<'a>,
    workload: &'a Workload<'a>,
    lever: Lever<'a>,
    victims: Victims<'a>,
    /// By the cache.
    capacity: Capacity<'a>,
    /// `surgeReplicas`.
    most: i32,
    now: Timestamp,
}

/// Decides for a workload that is handed over by Scale.
pub(in crate::handover) fn reconcile<'a>(
    input: &'a Input<'a>,
    workload: &'a Workload<'a>,
    settings: &Settings,
    holds: &[(&'a HoldView, Option<&'a PodView>)],
    plan: &mut Plan,
) {
    let now = input.now;
    let unsupported = policy::supported(workload.deployment, settings.mode, workload.autoscaler).err();
    let victims = holds::sort(input, workload, unsupported, holds, plan);
    let capacity = Capacity::seen(workload, victims.let_go.clone(), now);
    let lever = Lever::of(workload);
    let step = Step { input, workload, lever, victims, capacity, most: settings.surge_replicas.max(1), now };
    let surge = match step.lever.record {
        _ if !Lever::astray(workload).is_empty() => step.gather(),
        None => step.without_surge(plan),
        Some(_) if unsupported.is_some() => step.end("the Deployment cannot be handed over by Scale now"),
        Some(record) if step.lever.was_changed() => step.answer_change(record),
        Some(record) => step.go_on(record, plan),
    };
    let written: BTreeSet<&str> = surge
        .iter()
        .filter_map(|action| match action {
            Action::UpdateHold { hold, .. } => Some(hold.uid.as_str()),
            _ => None,
        })
        .collect();
    let waiting = step.victims.open.iter().filter(|open| !written.contains(open.hold.uid.as_str()));
    for open in waiting {
        holds::wait(input, workload, open, plan);
    }
    if !step.victims.open.is_empty() {
        holds::wake_when_available(workload, plan, now);
    }
    plan.add(surge);
}

impl Step<'_> {
    /// What raised another number than the one that counts is taken back before anything else is done. The holds forget
    /// it first: they go on with a surge of what governs the replicas now.
    fn gather(&self) -> Vec<Action> {
        let forgetting = self.victims.open.iter().filter_map(|open| forgetting(self.workload, open.hold));
        let astray = Lever::astray(self.workload);
        let why = "it does not govern the replicas any more";
        forgetting.chain(astray.iter().flat_map(|lever| put_back(self.workload, lever, why))).collect()
    }

    /// Nothing is raised.
    fn without_surge(&self, plan: &mut Plan) -> Vec<Action> {
        marks::keep(self.workload, self.input.close, &marks::Wanted::default(), plan, self.now);
        let restarted = |hold: &HoldView| self.workload.deployment.record_of(&hold.spec.victim_uid).is_some();
        let interrupted = |open: &&Open<'_>| open.hold.status.restarted_at.is_some() && !restarted(open.hold);
        let interrupted: Vec<&Open<'_>> = self.victims.open.iter().filter(interrupted).collect();
        if interrupted.is_empty() {
            return self.begin();
        }
        // The write changes nothing, and fails where this is only an old view of the object.
        let why = "somebody took the record of the surge away; not fighting over it";
        self.give_up(self.lever.write(self.lever.number, None), interrupted, Outcome::Reverted, why)
    }

    /// Raises the number, where a victim waits for it and everything is at rest.
    fn begin(&self) -> Vec<Action> {
        let rested = self.victims.open.iter().filter(|open| at_rest(self.workload, open.victim, self.now).is_ok());
        let rested: Vec<&Open<'_>> = rested.collect();
        let base = self.lever.base(self.workload.deployment.replicas);
        let surge = self.wanted(rested.len(), base);
        let (Some(first), true) = (rested.first(), surge > 0) else { return Vec::new() };
        let record = SurgeRecord {
            workload: self.workload.deployment.uid.clone(),
            original: self.lever.number,
            base,
            floor: self.capacity.floor(base),
            surge,
            awaited: self.awaited(None),
            released: Vec::new(),
            since: self.now,
            renewed: false,
        };
        // Written even where it says so already: the precondition on the hold's version keeps a controller that sees an
        // old hold from a surge for a victim that is gone.
        let mut steps = vec![self.told(first)];
        steps.extend(held_event(self.workload.deployment, first.hold));
        let note = format!(
            "Raising {} of {} to {} for a stand-in of {} on node {} before it is evicted",
            self.lever.field(),
            self.lever.name(),
            record.raised(),
            first.victim.name,
            first.hold.spec.victim_node
        );
        steps.push(self.lever.write(Some(record.raised()), Some(record)));
        steps.push(event(self.workload, false, "HandoverStarted", "Surge", note));
        steps
    }

    /// The hold as it is to be told, which is written first to see whether it is still so.
    fn told(&self, open: &Open<'_>) -> Action {
        Action::UpdateHold { hold: open.hold.object(), status: holds::waiting(self.input, self.workload, open) }
    }

    /// How many replicas are to be added for so many victims.
    fn wanted(&self, victims: usize, base: i32) -> i32 {
        let victims = i32::try_from(victims).unwrap_or(i32::MAX);
        victims.min(self.most).min(self.lever.maximum.saturating_sub(base))
    }

    /// The surge stands as it was written.
    fn go_on(&self, record: &SurgeRecord, plan: &mut Plan) -> Vec<Action> {
        let open = &self.victims.open;
        if let Some(at) = self.victims.abandoned_at(self.input) {
            if self.now >= at {
                let why = "nobody asked for its eviction any more before its stand-in was available";
                let mut steps = self.end("nobody asks for its victims' evictions any more");
                steps.extend(open.iter().flat_map(|open| match open.hold {
                    hold if doomed::nobody_asked(hold) => doomed::stays(self.workload, hold),
                    hold => release(hold, Outcome::Abandoned, why.to_owned(), self.now),
                }));
                return steps;
            }
            plan.wake(at);
        }
        let is_listed = |open: &Open<'_>| record.awaited.contains(&open.hold.spec.victim_uid);
        let is_over = self.victims.let_go.is_empty() && self.victims.unseen.is_empty();
        if is_over && (open.is_empty() || record.surge == 0) {
            let next = if open.is_empty() { Vec::new() } else { self.begin() };
            if !next.is_empty() {
                return next;
            }
            // One that knows of this surge would take its end for an interruption: the next one begins when it can.
            let goes_on = open.iter().any(|open| is_listed(open) && open.hold.status.restarted_at.is_some());
            return if goes_on { Vec::new() } else { self.end("its victims are gone") };
        }
        let marked = marks::keep(self.workload, self.input.close, &self.marks(record), plan, self.now);
        let wanted = self.wanted(open.len(), record.base);
        if record.surge > 0 && wanted > record.surge && !self.is_coming_down() {
            return self.grow(record, wanted);
        }
        if record.surge > 0 && !open.iter().all(is_listed) {
            return self.grow(record, record.surge);
        }
        let is_ready = |capacity: &Capacity<'_>, open: &Open<'_>| {
            record.surge > 0 && capacity.suffices_without(&open.victim.uid, record)
        };
        let candidate = open.iter().any(|open| is_ready(&self.capacity, open));
        let lingering =
            open.is_empty() && self.victims.unseen.is_empty() && !self.victims.let_go.is_empty() && record.surge > 0;
        let lagging = self.lags();
        let Some(close) = self.input.close else {
            plan.look_closer |= candidate || lingering || lagging || self.victims.doubtful;
            return Vec::new();
        };
        if !marked {
            return Vec::new();
        }
        // Decided on the pods as they are now: each may have been counted on by another controller, for another victim.
        let capacity = self.capacity.read(close);
        let mut ready = open.iter().filter(|open| is_ready(&capacity, open));
        if let Some((next, less)) = ready.find_map(|open| Some((open, self.less_with(record, open, close)?))) {
            return self.let_go(record, next, less);
        }
        let removable = |most| marks::removable(self.workload, close, &self.victims.let_go, most, self.now);
        if lingering {
            let less = if self.follows(record) { removable(record.surge) } else { 0 };
            return if less > 0 { vec![self.lowered(record, less, None)] } else { Vec::new() };
        }
        if lagging {
            let deployment = self.workload.deployment;
            let less = removable(self.lever.lag(deployment));
            let replicas = deployment.replicas - less;
            let scale = Action::Scale { deployment: object_of(deployment), replicas, field_manager: None };
            // Where nothing tells that they would go with a replica, their evictors take them.
            let mut steps = if less > 0 { vec![scale] } else { Vec::new() };
            steps.extend(self.victims.due.iter().flat_map(|due| holds::handed_over(due.hold, self.now)));
            return steps;
        }
        Vec::new()
    }

    /// Victims go first, let go or not. But while one stands that was let go, another must not be marked: a scale-down
    /// that is under way would take either.
    fn marks(&self, record: &SurgeRecord) -> marks::Wanted<'_> {
        // Of those that nobody evicts one goes at a time: a scale-down would take any of several.
        let unasked = |open: &&Open<'_>| doomed::nobody_asked(open.hold);
        let next = self.victims.open.iter().filter(unasked).find(|open| open.victim.mark != Mark::Taken);
        let next = next.map(|open| &*open.victim.uid);
        let open = self.victims.open.iter().filter(|open| !unasked(open) || next == Some(&*open.victim.uid));
        let open: BTreeSet<&str> = open.map(|open| &*open.victim.uid).collect();
        let kept = open.iter().chain(&self.victims.let_go).chain(&self.victims.unseen).copied().collect();
        let marked = if self.victims.let_go.is_empty() { open } else { BTreeSet::new() };
        let guard = self.lever.write(self.lever.number, Some(record.clone()));
        marks::Wanted { marked, kept, guard: Some(guard) }
    }

    /// The autoscaler's minimum came down, and a victim stands that was to go with it: an autoscaler takes minutes.
    fn lags(&self) -> bool {
        !self.victims.let_go.is_empty() && self.lever.lag(self.workload.deployment) > 0
    }

    /// The replicas are what was raised: with an autoscaler the load may ask for more, and they do not come down then.
    fn follows(&self, record: &SurgeRecord) -> bool {
        self.lever.governor == Governor::Deployment || self.workload.deployment.replicas == record.raised()
    }

    /// A scale-down is under way: who raised the number now would take it back.
    fn is_coming_down(&self) -> bool {
        let pods = self.workload.pods.iter().filter(|pod| !pod.terminating && !pod.is_finished()).count();
        let replicas = self.workload.deployment.replicas;
        let is_removing = i32::try_from(pods).is_ok_and(|pods| pods > replicas);
        !self.victims.let_go.is_empty() && (is_removing || self.lags())
    }

    /// UIDs of the victims that the surge is for, but for one that is let go.
    fn awaited(&self, let_go: Option<&str>) -> Vec<String> {
        let open = self.victims.open.iter().map(|open| &*open.victim.uid).filter(|uid| Some(*uid) != let_go);
        let all: BTreeSet<&str> = open.chain(self.victims.unseen.iter().copied()).collect();
        all.into_iter().map(str::to_owned).collect()
    }

    /// More victims wait than there are stand-ins, or than the record names.
    fn grow(&self, record: &SurgeRecord, surge: i32) -> Vec<Action> {
        let grown = SurgeRecord { surge, awaited: self.awaited(None), ..record.clone() };
        vec![self.lever.write(Some(grown.raised()), Some(grown))]
    }

    /// How many replicas less there are to be when this victim is let go: its own where its stand-in is of no more use
    /// then, else none, and its evictor takes it. Where there is no evictor it goes by a replica less or not at all, and
    /// the next victim's stand-in is added when it is gone; absent where it cannot go now.
    fn less_with(&self, record: &SurgeRecord, next: &Open<'_>, close: &[ClosePod]) -> Option<i32> {
        let waiting = self.victims.open.len() + self.victims.unseen.len();
        let others = i32::try_from(waiting).unwrap_or(i32::MAX) - 1;
        let spare = record.surge - others;
        let mut going = self.victims.let_go.clone();
        going.insert(&next.victim.uid);
        let removable = |most| {
            if self.follows(record) { marks::removable(self.workload, close, &going, most, self.now) } else { 0 }
        };
        if doomed::nobody_asked(next.hold) {
            return Some(removable(1)).filter(|less| *less > 0 && self.victims.let_go.is_empty());
        }
        Some(removable(spare))
    }

    /// Lets a victim go, with so many replicas less.
    fn let_go(&self, record: &SurgeRecord, next: &Open<'_>, less: i32) -> Vec<Action> {
        let mut steps = vec![self.lowered(record, less, Some(&next.victim.uid))];
        // With an autoscaler the replicas have yet to follow, and the hold stays open until they do.
        if less == 0 || self.lever.governor == Governor::Deployment {
            steps.extend(holds::handed_over(next.hold, self.now));
        }
        steps
    }

    /// The number lowered by so many, and one more victim let go.
    fn lowered(&self, record: &SurgeRecord, less: i32, next: Option<&str>) -> Action {
        // A pod that is gone is gone for every controller that reads pods after it reads this.
        let released: BTreeSet<&str> = self.victims.let_go.iter().copied().chain(next).collect();
        let released = released.into_iter().map(str::to_owned).collect();
        let surge = record.surge.saturating_sub(less);
        let lowered = SurgeRecord { surge, awaited: self.awaited(next), released, ..record.clone() };
        self.lever.write(lowered.number(), Some(lowered))
    }

    /// Somebody else set the number: it is raised once more from there, if anybody needs it.
    fn answer_change(&self, record: &SurgeRecord) -> Vec<Action> {
        let open = &self.victims.open;
        if open.is_empty() || record.surge == 0 {
            let next = if self.victims.let_go.is_empty() { self.begin() } else { Vec::new() };
            return if next.is_empty() { self.end("somebody else set it") } else { next };
        }
        let replicas = self.workload.deployment.replicas;
        // The replicas of an autoscaler that was set back still have the stand-ins among them.
        let is_raised = self.lever.governor != Governor::Deployment && replicas == record.raised();
        let base = self.lever.base(if is_raised { record.base } else { replicas });
        let surge = self.wanted(open.len(), base);
        if record.renewed || surge <= 0 {
            let why = "somebody else set the number of replicas again and again; not fighting over it";
            return self.give_up(
                self.lever.write(self.lever.number, None),
                open.iter().collect(),
                Outcome::Reverted,
                why,
            );
        }
        let floor = self.capacity.floor(base).max(record.floor.min(base));
        let awaited = self.awaited(None);
        let renewed =
            SurgeRecord { awaited, original: self.lever.number, base, floor, surge, renewed: true, ..record.clone() };
        let note = format!(
            "Somebody set {} of {} while a stand-in was coming; raising it from there to {}, once",
            self.lever.field(),
            self.lever.name(),
            renewed.raised()
        );
        vec![
            self.lever.write(Some(renewed.raised()), Some(renewed)),
            event(self.workload, true, "SurgeRenewed", "Surge", note),
        ]
    }

    /// Ends the surge.
    fn end(&self, why: &str) -> Vec<Action> {
        put_back(self.workload, &self.lever, why)
    }

    /// Leaves the number to somebody else, and releases what waited for it.
    fn give_up(&self, write: Action, open: Vec<&Open<'_>>, outcome: Outcome, why: &str) -> Vec<Action> {
        let releases = open.into_iter().flat_map(|open| release(open.hold, outcome, why.to_owned(), self.now));
        std::iter::once(write).chain(releases).collect()
    }
}
