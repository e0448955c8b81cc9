//! Leader election by a Lease.
//!
//! The rule is client-go's (`tools/leaderelection`): a Lease counts as expired when *this* process has seen it
//! unchanged for its duration. Comparing another node's `renewTime` with the own wall clock, as the available
//! crate does, lets a clock that is ahead take the lead from a living leader. [`decide`] is pure; [`run`] is the
//! loop around it. Who has not renewed for `renew_deadline` stops acting by itself, before another may start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client;
use super::clock::Clock;

/// How the election is timed.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A Lease that nobody renewed for this long is free.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long stops acting. Less than `lease_duration`.
    pub renew_deadline: Duration,
    /// How often the Lease is looked at and renewed.
    pub retry_period: Duration,
}

/// Whether this process may write. Read before each write.
#[derive(Debug)]
pub struct Leadership {
    started: Instant,
    /// Milliseconds of uptime until which this process may act; 0 while it does not lead.
    until: AtomicU64,
    changes: watch::Sender<bool>,
}

impl Default for Leadership {
    fn default() -> Self {
        Self { started: Instant::now(), until: AtomicU64::new(0), changes: watch::Sender::new(false) }
    }
}

impl Leadership {
    /// This process leads, and has renewed recently enough to be sure of it.
    pub fn is_leader(&self) -> bool {
        self.uptime_millis() < self.until.load(Ordering::Acquire)
    }

    /// Tells of changes of leadership.
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.changes.subscribe()
    }

    fn uptime_millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Leads until `span` after `since`: the moment *before* the renewal was sent, not when its answer came.
    fn lead(&self, since: Instant, span: Duration) {
        // A lead that ran out before it was renewed is told as a new one: who watches has let go of things since.
        let ran_out = !self.is_leader();
        let until = since.duration_since(self.started) + span;
        self.until.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
        self.changes.send_if_modified(|leading| !std::mem::replace(leading, true) || ran_out);
    }

    /// Leads no more; true where that is news to those who watch.
    fn follow(&self) -> bool {
        self.until.store(0, Ordering::Release);
        self.changes.send_if_modified(|leading| std::mem::replace(leading, false))
    }
}

#[cfg(test)]
impl Leadership {
    /// Leads for longer than any test lasts.
    pub(crate) fn win(&self) {
        self.lead(Instant::now(), Duration::from_hours(1));
    }

    /// Leads until now.
    pub(crate) fn run_out(&self) {
        self.lead(Instant::now(), Duration::ZERO);
    }

    /// Leads no more.
    pub(crate) fn lose(&self) {
        self.follow();
    }
}

/// What is known of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `spec.holderIdentity`; empty where nobody holds it.
    pub holder: String,
    /// `spec.leaseDurationSeconds` as a duration.
    pub duration: Duration,
    /// How long this process has seen it unchanged.
    pub unchanged_for: Duration,
}

/// What to do about a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Take it: it is free, or its holder is gone.
    Acquire,
    /// Renew it: it is ours.
    Renew,
    /// Leave it to its holder.
    Yield,
}

/// Decides about a Lease that exists.
pub fn decide(lease: &Seen, me: &str) -> Move {
    if lease.holder == me {
        Move::Renew
    } else if lease.holder.is_empty() || lease.unchanged_for >= lease.duration {
        Move::Acquire
    } else {
        Move::Yield
    }
}

/// Takes part in the election until `stop`, then gives the Lease up, so that the next leader need not wait.
pub async fn run(
    client: Client,
    namespace: String,
    name: String,
    me: String,
    timing: Timing,
    leadership: Arc<Leadership>,
    stop: CancellationToken,
) {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let mut elector = Elector { api, namespace, name, me, timing, leadership, observed: None, trouble: None };
    while !stop.is_cancelled() {
        elector.tick().await;
        tokio::select! {
            () = tokio::time::sleep(timing.retry_period) => {}
            () = stop.cancelled() => {}
        }
    }
    // An API server that does not answer must not hold up the end; the Lease expires by itself.
    let _ = tokio::time::timeout(timing.retry_period, elector.give_up()).await;
}

struct Elector {
    api: Api<Lease>,
    namespace: String,
    name: String,
    me: String,
    timing: Timing,
    leadership: Arc<Leadership>,
    /// The Lease's resourceVersion as last seen, and when that one was first seen.
    observed: Option<(String, Instant)>,
    trouble: Option<String>,
}

impl Elector {
    async fn tick(&mut self) {
        let was_leading = self.leadership.is_leader();
        let sent = Instant::now();
        let outcome = tokio::time::timeout(self.timing.renew_deadline, self.attempt()).await;
        match outcome {
            Ok(Ok(true)) => {
                self.leadership.lead(sent, self.timing.renew_deadline);
                if !was_leading {
                    tracing::info!(lease = %self.name, identity = %self.me, "leading");
                }
                self.trouble = None;
            }
            Ok(Ok(false)) => {
                if self.leadership.follow() {
                    tracing::warn!(lease = %self.name, identity = %self.me, "another replica leads now");
                }
                self.trouble = None;
            }
            Ok(Err(error)) => self.troubled(describe(&error, &self.namespace, &self.name)),
            Err(_) => self.troubled("the API server does not answer".to_owned()),
        }
        // A leader that fails to renew goes on until its deadline, which `is_leader` watches by itself. It passes
        // between two ticks as a rule, so what counts is not whether this tick began as the leader's.
        if !self.leadership.is_leader() && self.leadership.follow() {
            tracing::warn!(lease = %self.name, identity = %self.me, "not leading any more: the Lease was not renewed");
        }
    }

    fn troubled(&mut self, trouble: String) {
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::warn!(lease = %self.name, error = %trouble, "leader election failed, trying again");
        }
        self.trouble = Some(trouble);
    }

    /// One look at the Lease; true where this process holds it afterwards.
    async fn attempt(&mut self) -> kube::Result<bool> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let mut lease = Lease::default();
            lease.metadata.name = Some(self.name.clone());
            self.stamp(&mut lease, true);
            return match self.api.create(&PostParams::default(), &lease).await {
                Ok(_) => Ok(true),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                Err(error) => Err(error),
            };
        };
        let seen = self.observe(&lease);
        let step = decide(&seen, &self.me);
        if step == Move::Yield {
            return Ok(false);
        }
        self.stamp(&mut lease, step == Move::Acquire);
        match self.api.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(true),
            // Somebody was faster: whoever it is leads.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn observe(&mut self, lease: &Lease) -> Seen {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.observed {
            Some((known, since)) if *known == version => *since,
            _ => Instant::now(),
        };
        self.observed = Some((version, since));
        let spec = lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        Seen {
            holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
            duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
            unchanged_for: since.elapsed(),
        }
    }

    fn stamp(&self, lease: &mut Lease, acquired: bool) {
        let now = MicroTime(Clock::wall());
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if acquired {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
        }
        spec.holder_identity = Some(self.me.clone());
        spec.lease_duration_seconds = i32::try_from(self.timing.lease_duration.as_secs()).ok();
        spec.renew_time = Some(now);
    }

    async fn give_up(&mut self) {
        let led = self.leadership.is_leader();
        self.leadership.follow();
        if !led {
            return;
        }
        let Ok(Some(mut lease)) = self.api.get_opt(&self.name).await else { return };
        let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_ref() == Some(&self.me)) else {
            return;
        };
        spec.holder_identity = None;
        spec.renew_time = Some(MicroTime(Clock::wall()));
        match self.api.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(_) => tracing::info!(lease = %self.name, "gave up the lead"),
            Err(error) => tracing::warn!(lease = %self.name, %error, "the lead was not given up; it expires by itself"),
        }
    }
}

fn describe(error: &kube::Error, namespace: &str, name: &str) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            format!("missing right on Lease {namespace}/{name}: {}; grant it in the chart's Role", status.message)
        }
        other => client::describe(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_only_when_it_is_free_or_was_seen_unchanged_for_its_duration() {
        let seconds = Duration::from_secs;
        let table = [
            ("ours", "me", 15, 0, Move::Renew),
            ("ours, long unchanged", "me", 15, 60, Move::Renew),
            ("free", "", 15, 0, Move::Acquire),
            ("another's, fresh", "other", 15, 14, Move::Yield),
            ("another's, seen unchanged for its duration", "other", 15, 15, Move::Acquire),
        ];
        for (name, holder, duration, unchanged, expected) in table {
            let seen = Seen { holder: holder.into(), duration: seconds(duration), unchanged_for: seconds(unchanged) };
            assert_eq!(decide(&seen, "me"), expected, "{name}");
        }
    }

    #[test]
    fn a_leader_that_cannot_renew_stops_by_itself() {
        let leadership = Leadership::default();
        assert!(!leadership.is_leader());
        let now = Instant::now();
        leadership.lead(now, Duration::from_mins(1));
        assert!(leadership.is_leader());
        leadership.lead(now, Duration::ZERO);
        assert!(!leadership.is_leader(), "its time is over, without anybody saying so");
        leadership.lead(now, Duration::from_mins(1));
        leadership.follow();
        assert!(!leadership.is_leader());
    }

    #[test]
    fn a_lead_that_ran_out_is_told_when_it_is_lost_and_when_it_is_taken_again() {
        let leadership = Leadership::default();
        let mut changes = leadership.changes();
        let now = Instant::now();
        leadership.lead(now, Duration::ZERO);
        assert!(changes.has_changed().unwrap() && *changes.borrow_and_update(), "taken");
        leadership.lead(now, Duration::from_mins(1));
        assert!(changes.has_changed().unwrap() && *changes.borrow_and_update(), "ran out, and taken again");
        leadership.lead(now, Duration::ZERO);
        assert!(!changes.has_changed().unwrap(), "renewed in time");
        assert!(leadership.follow() && !*changes.borrow_and_update(), "ran out");
        assert!(!leadership.follow() && !changes.has_changed().unwrap(), "no news");
    }
}
