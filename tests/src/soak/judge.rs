//! Whether a scene went as promised, from what the API server recorded: its audit log, the holds, the records on what
//! Belay changed, and when faults were.
//!
//! Pure, so that it is known to find what it looks for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::audit::Write;
use crate::world::USERS;

/// Times in Kubernetes objects are whole seconds, cut off: a deadline is up to a second later than it is written.
const CUT_OFF: SignedDuration = SignedDuration::from_secs(1);

/// How long after its deadline a hold may be open in its object while a controller leads, beside the faults in between:
/// the leader wakes at the deadline, and this machine does other things too. That no eviction is refused then is judged
/// to the second.
const WRITTEN_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// What must be 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Law {
    LostRequest,
    DoubleRestart,
    PastDeadline,
    BelowFloor,
    JobLost,
    Leftover,
    HoldOpen,
    Unended,
    FailedOpen,
    WriteAtRest,
}

impl Law {
    pub(super) const ALL: [Self; 10] = [
        Self::LostRequest,
        Self::DoubleRestart,
        Self::PastDeadline,
        Self::BelowFloor,
        Self::JobLost,
        Self::Leftover,
        Self::HoldOpen,
        Self::Unended,
        Self::FailedOpen,
        Self::WriteAtRest,
    ];
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LostRequest => "lost requests",
            Self::DoubleRestart => "double restarts",
            Self::PastDeadline => "holds past their deadline",
            Self::BelowFloor => "workloads with fewer pods available than before",
            Self::JobLost => "busy pods evicted before their job's end",
            Self::Leftover => "surges, replicas, costs and records left behind",
            Self::HoldOpen => "holds left open",
            Self::Unended => "drains, workloads or parts of Belay that did not come to their end",
            Self::FailedOpen => "evictions passed unasked",
            Self::WriteAtRest => "API writes at rest",
        })
    }
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) law: Law,
    /// How often.
    pub(super) times: u64,
    /// The pod or Deployment whose history tells more.
    pub(super) about: String,
    pub(super) what: String,
}

impl Finding {
    pub(super) fn of(law: Law, about: &str, what: String) -> Self {
        Self { law, times: 1, about: about.to_owned(), what }
    }
}

/// A time in which something was broken, until all was whole again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// Whether the API server and the controllers beside it were away.
    pub(super) api_server: bool,
}

/// What a hold says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) victim: String,
    /// The earliest that it names.
    pub(super) deadline: Timestamp,
    pub(super) released: Option<Timestamp>,
    pub(super) completed: bool,
}

impl Hold {
    /// Reads an EvictionHold. `None` where it has no deadline, which its schema does not allow.
    pub(super) fn read(object: &Value) -> Option<Self> {
        let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let (spec, status) = (&object["spec"], &object["status"]);
        let deadlines = time(&spec["deadline"]).into_iter().chain(time(&status["deadline"]));
        Some(Self {
            victim: spec["victim"]["name"].as_str()?.to_owned(),
            deadline: deadlines.min()?,
            released: time(&status["releasedAt"]),
            completed: status["phase"] == "Completed",
        })
    }
}

/// How often each Deployment was restarted for each victim, by its UID: the successful changes of a pod template in which
/// the newest record is that victim's.
fn restarts(writes: &[Write]) -> BTreeMap<(&str, String), usize> {
    let mut counts = BTreeMap::new();
    for write in writes.iter().filter(|write| write.resource == "deployments" && succeeded(write)) {
        let slot = &write.body["spec"]["template"]["metadata"]["annotations"]["belay.dev/restart"];
        if !write.user.starts_with(USERS) || slot.is_null() {
            continue;
        }
        // A template that is put back after a failed rollout is no restart.
        if let Some(record) = records(&write.body).pop().filter(|record| record["rolledBack"] != true) {
            *counts.entry((write.name.as_str(), victim_of(&record))).or_insert(0) += 1;
        }
    }
    counts
}

/// The records of restarts on a Deployment, or in a patch of one, oldest first.
fn records(deployment: &Value) -> Vec<Value> {
    let text = deployment["metadata"]["annotations"]["belay.dev/handovers"].as_str();
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn victim_of(record: &Value) -> String {
    record["victim"].as_str().unwrap_or_default().to_owned()
}

/// Victims for whom there was more than one restart, by what the API server wrote down and by the Deployments, as they are
/// in the end: a write that was under way when the API server was killed is done, and not in its log.
pub(super) fn double_restarts(writes: &[Write], deployments: &[Value]) -> Vec<Finding> {
    let counts = restarts(writes);
    let twice = counts.iter().filter(|(_, count)| **count > 1);
    let mut findings: Vec<Finding> = twice
        .map(|((deployment, victim), count)| {
            let what = format!("Deployment {deployment} was restarted {count} times for one victim");
            Finding::of(Law::DoubleRestart, victim, what)
        })
        .collect();
    for deployment in deployments {
        let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
        let kept = records(deployment);
        let in_log = counts.keys().filter(|(of, _)| *of == name).map(|(_, victim)| victim.clone());
        let victims: BTreeSet<String> = kept.iter().map(victim_of).chain(in_log).collect();
        let put_back = kept.iter().filter(|record| record["rolledBack"] == true).count();
        // Each change of a template to another one is a revision, and nobody else changes it in a soak.
        let revision = deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str();
        let changes = revision.and_then(|text| text.parse::<usize>().ok()).unwrap_or(1).saturating_sub(1);
        if changes > victims.len() + put_back && findings.is_empty() {
            let what = format!("the template changed {changes} times, for {} victims: {victims:?}", victims.len());
            findings.push(Finding::of(Law::DoubleRestart, name, what));
        }
    }
    findings
}

/// Evictions that were refused after their deadline, and holds that were open after it.
pub(super) fn past_deadline(writes: &[Write], holds: &[Hold], faults: &[Window], now: Timestamp) -> Vec<Finding> {
    let mut findings = Vec::new();
    for hold in holds {
        let refused = writes.iter().filter(|write| {
            is_eviction(write) && write.name == hold.victim && write.code == 429 && write.message.contains("belay: ")
        });
        let late: Vec<_> = refused.filter(|write| write.at > hold.deadline + CUT_OFF).map(|write| write.at).collect();
        if let Some(first) = late.first() {
            let what = format!("refused {} times after {}, first at {first}", late.len(), hold.deadline);
            findings.push(Finding::of(Law::PastDeadline, &hold.victim, what));
        }
        let released = hold.released.unwrap_or(now);
        let broken = overlap(faults, hold.deadline, released);
        if released > hold.deadline + CUT_OFF + WRITTEN_WITHIN + broken {
            let how = if hold.released.is_some() { "released" } else { "not released" };
            let what = format!("due {}, {how} at {released}, with {broken:#} of faults in between", hold.deadline);
            findings.push(Finding::of(Law::PastDeadline, &hold.victim, what));
        }
    }
    findings
}

/// How much of a time something was broken.
fn overlap(faults: &[Window], from: Timestamp, to: Timestamp) -> SignedDuration {
    let parts = faults.iter().map(|fault| fault.to.min(to).duration_since(fault.from.max(from)));
    parts.filter(SignedDuration::is_positive).fold(SignedDuration::ZERO, |sum, part| sum + part)
}

/// Busy pods that were let go before somebody said that they have done their work. `jobs` are their names.
pub(super) fn lost_jobs(writes: &[Write], jobs: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in jobs {
        let evicted = writes.iter().find(|write| is_eviction(write) && write.name == *job && succeeded(write));
        let mut changes = writes.iter().filter(|write| {
            write.resource == "pods" && write.name == *job && write.verb == "patch" && !write.user.starts_with(USERS)
        });
        let Some(evicted) = evicted else { continue };
        if !changes.any(|change| succeeded(change) && change.at <= evicted.at) {
            let what = format!("evicted at {} by {}, at work", evicted.at, evicted.user);
            findings.push(Finding::of(Law::JobLost, job, what));
        }
    }
    findings
}

/// Whether a request that failed at a pod is Kubernetes' loss and not Belay's: the pod had been asked to go, since then
/// nobody has written the endpoints of its Service, and the control plane that writes them died in the meantime. The
/// pod's replacement serves, which is judged apart, and the client was not told of it.
pub(super) fn is_of_endpoints(
    writes: &[Write],
    faults: &[Window],
    service: &str,
    pod: &str,
    failed: Timestamp,
) -> bool {
    let asked_to_go = writes.iter().find(|write| {
        let goes = is_eviction(write) || (write.resource == "pods" && write.verb == "delete");
        goes && write.name == pod && succeeded(write)
    });
    let Some(asked) = asked_to_go.map(|write| write.at).filter(|asked| *asked < failed) else { return false };
    let told = writes.iter().any(|write| {
        let of_service = write.resource == "endpointslices" && write.name.starts_with(&format!("{service}-"));
        of_service && succeeded(write) && write.at > asked && write.at < failed
    });
    let died = faults.iter().any(|fault| fault.api_server && fault.from > asked && fault.from < failed);
    died && !told
}

/// Evictions: how many were asked for, and how many of them were refused, by Belay and because no replica answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Evictions {
    pub(super) asked: u64,
    pub(super) held: u64,
    pub(super) unanswered: u64,
    pub(super) passed: u64,
}

/// Counts them.
pub(super) fn evictions(writes: &[Write]) -> Evictions {
    let mut count = Evictions::default();
    for write in writes.iter().filter(|write| is_eviction(write)) {
        count.asked += 1;
        count.held += u64::from(write.code == 429 && write.message.contains("belay: holding"));
        count.unanswered += u64::from(write.message.contains("failed calling webhook"));
        count.passed += u64::from(succeeded(write));
    }
    count
}

/// Evictions that the API server let pass although it got no answer. Under `Fail`, which a soak sets, there can be none: one
/// would say that the setting was not in force, and the other counts not worth what they seem.
pub(super) fn failed_open(writes: &[Write]) -> Vec<Finding> {
    let open = writes.iter().filter(|write| is_eviction(write) && write.failed_open);
    open.map(|write| Finding::of(Law::FailedOpen, &write.name, format!("at {}, by {}", write.at, write.user))).collect()
}

/// Whether it was asked for the eviction of a pod, in earnest.
fn is_eviction(write: &Write) -> bool {
    write.resource == "pods/eviction" && write.verb == "create" && !write.dry_run
}

fn succeeded(write: &Write) -> bool {
    (200..300).contains(&write.code) && !write.dry_run
}

#[cfg(test)]
mod tests;
