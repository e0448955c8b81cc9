//! An Eviction's status, step by step: who wants it, whose turn it is, how it ended.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::lifecycle::v1alpha1::{
    Eviction, EvictionRequest, EvictionStatus, Requester, ResponderStatus, TargetResponder,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The last responder of every pod.
pub const IMPERATIVE: &str = "imperative-eviction.k8s.io/evictor";
const IMPERATIVE_PRIORITY: i32 = 100;

pub(super) const EVICTION: &str = "Eviction";
pub(super) const WITHDRAWN: &str = "Withdrawn";

const INACTIVE: &str = "Inactive";
const ACTIVE: &str = "Active";
const INTERRUPTED: &str = "Interrupted";
const CANCELED: &str = "Canceled";
const COMPLETED: &str = "Completed";

/// After so long without a report the next one is turned to.
const HEARTBEAT_DEADLINE: SignedDuration = SignedDuration::from_mins(20);

/// Heartbeats are not to come more often.
const LEAST_PAUSE: SignedDuration = SignedDuration::from_secs(20);

/// What the controller sees besides the Eviction.
pub(super) struct Observed<'a> {
    /// All requests of the namespace.
    pub(super) requests: &'a [EvictionRequest],
    /// The target, while it exists.
    pub(super) pod: Option<&'a Pod>,
    pub(super) now: Timestamp,
}

/// Name and UID of the pod that is to go.
pub(super) fn target(eviction: &Eviction) -> Option<(&str, &str)> {
    eviction.spec.target.pod.as_ref().map(|pod| (pod.name.as_str(), pod.uid.as_str()))
}

/// It has ended, well or not.
fn is_over(eviction: &Eviction) -> bool {
    is_true(eviction, "Failed") || is_true(eviction, "TargetEvicted")
}

/// It was cancelled, or nobody could evict the pod.
pub(super) fn has_failed(eviction: &Eviction) -> bool {
    is_true(eviction, "Failed")
}

fn is_true(eviction: &Eviction, kind: &str) -> bool {
    let mut conditions = eviction.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == kind && condition.status == "True")
}

/// It is the last responder's turn.
pub(super) fn is_imperative(eviction: &Eviction) -> bool {
    let targets = eviction.status.iter().flat_map(|status| status.target_responders.iter().flatten());
    targets.into_iter().any(|one| one.name == IMPERATIVE && one.state == ACTIVE)
}

/// `acme.io/foo: requester`, `responder` or `requester-responder`.
pub(super) fn labels(eviction: &Eviction) -> BTreeMap<String, String> {
    let status = eviction.status.clone().unwrap_or_default();
    let mut labels: BTreeMap<String, String> =
        status.requesters.into_iter().flatten().map(|requester| (requester.name, "requester".to_owned())).collect();
    for responder in status.target_responders.into_iter().flatten() {
        let role = labels.entry(responder.name).or_default();
        *role = if role.is_empty() { "responder".to_owned() } else { "requester-responder".to_owned() };
    }
    labels
}

/// The status that it should have; absent where it has that.
pub(super) fn next(eviction: &Eviction, observed: &Observed<'_>) -> Option<EvictionStatus> {
    if is_over(eviction) {
        return None;
    }
    let before = eviction.status.clone().unwrap_or_default();
    let mut status = before.clone();
    status.requesters = Some(requesters(eviction, observed.requests));
    let withdrawn = status.requesters.iter().flatten().all(|requester| requester.intent == WITHDRAWN);
    if status.target_responders.as_ref().is_none_or(Vec::is_empty) {
        name_responders(&mut status, observed.pod);
    }
    let phase = observed.pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref());
    let end = match (observed.pod, phase) {
        (None, _) => Some("PodDeleted"),
        (_, Some("Succeeded" | "Failed")) => Some("PodTerminal"),
        _ => None,
    };
    if let Some(reason) = end {
        evicted(&mut status, reason, observed.now);
    } else if withdrawn {
        finish_active(&mut status, CANCELED);
        conclude(&mut status, ("True", "CanceledDueToNoRequesters"), ("False", "EvictionFailed"), observed.now);
    } else {
        advance(&mut status, observed.now);
    }
    (status != before).then_some(status)
}

/// Those that asked; who does not any more is kept as such.
fn requesters(eviction: &Eviction, requests: &[EvictionRequest]) -> Vec<Requester> {
    let known = eviction.status.iter().flat_map(|status| status.requesters.iter().flatten());
    let mut all: BTreeMap<&str, &str> = known.map(|requester| (requester.name.as_str(), WITHDRAWN)).collect();
    let of_pod = |request: &&EvictionRequest| {
        let pod = request.spec.target.pod.as_ref();
        pod.map(|pod| (pod.name.as_str(), pod.uid.as_str())) == target(eviction)
    };
    for request in requests.iter().filter(of_pod) {
        let intent = all.entry(&request.spec.requester).or_insert(WITHDRAWN);
        // One of several requests of theirs is enough.
        if request.spec.intent == EVICTION {
            *intent = EVICTION;
        }
    }
    all.into_iter().map(|(name, intent)| Requester { name: name.to_owned(), intent: intent.to_owned() }).collect()
}

fn name_responders(status: &mut EvictionStatus, pod: Option<&Pod>) {
    let of_pod = pod.and_then(|pod| pod.spec.as_ref()?.eviction_responders.clone()).unwrap_or_default();
    let named =
        of_pod.into_iter().map(|one| (one.name, one.priority)).chain([(IMPERATIVE.into(), IMPERATIVE_PRIORITY)]);
    let mut targets: Vec<_> =
        named.map(|(name, priority)| TargetResponder { name, priority, state: INACTIVE.into() }).collect();
    targets.sort_by_key(|one| (-one.priority, order(&one.name)));
    let responders = targets.iter().map(|one| ResponderStatus { name: one.name.clone(), ..ResponderStatus::default() });
    status.responders = Some(responders.collect());
    status.target_responders = Some(targets);
}

/// Among the same priority: domains by their labels, the top one first, and then the key.
fn order(name: &str) -> (Vec<String>, String) {
    let (domain, key) = name.split_once('/').unwrap_or((name, ""));
    (domain.split('.').rev().map(str::to_owned).collect(), key.to_owned())
}

fn report_of<'a>(status: &'a mut EvictionStatus, name: &str) -> Option<&'a mut ResponderStatus> {
    status.responders.as_mut()?.iter_mut().find(|one| one.name == name)
}

/// Gives the turn to the next one, where the one whose turn it is has completed or not reported in time.
fn advance(status: &mut EvictionStatus, now: Timestamp) {
    await_end(status, now);
    let targets = status.target_responders.clone().unwrap_or_default();
    let current = targets.iter().position(|one| one.state == ACTIVE);
    let Some(at) = current else {
        activate(status, 0, now);
        return;
    };
    let report = report_of(status, &targets[at].name).cloned().unwrap_or_default();
    let last = report.heartbeat_time.or(report.start_time).map_or(now, |time| time.0);
    let end = if report.completion_time.is_some() {
        COMPLETED
    } else if now.duration_since(last) >= HEARTBEAT_DEADLINE {
        INTERRUPTED
    } else {
        return;
    };
    finish_active(status, end);
    if at + 1 < targets.len() {
        activate(status, at + 1, now);
    } else {
        conclude(status, ("True", "NoFurtherResponder"), ("False", "EvictionFailed"), now);
    }
}

fn activate(status: &mut EvictionStatus, at: usize, now: Timestamp) {
    let Some(target) = status.target_responders.as_mut().and_then(|targets| targets.get_mut(at)) else { return };
    ACTIVE.clone_into(&mut target.state);
    let name = target.name.clone();
    if let Some(report) = report_of(status, &name) {
        report.start_time = Some(Time(now));
    }
}

fn finish_active(status: &mut EvictionStatus, state: &str) {
    for target in status.target_responders.iter_mut().flatten().filter(|one| one.state == ACTIVE) {
        state.clone_into(&mut target.state);
    }
}

/// The pod is gone. Whose turn it was has completed if it said so, which the last responder does now; for any other it
/// was over before its last report, which the fields' documentation has only one word for.
fn evicted(status: &mut EvictionStatus, reason: &str, now: Timestamp) {
    let active = status.target_responders.iter().flatten().find(|one| one.state == ACTIVE).map(|one| one.name.clone());
    if let Some(name) = active {
        let report = report_of(status, &name).cloned().unwrap_or_default();
        if name == IMPERATIVE && report.completion_time.is_none() {
            // In a write of its own: only an active responder's report may be changed.
            if let Some(report) = report_of(status, &name) {
                report.completion_time = Some(Time(now));
            }
            return;
        }
        finish_active(status, if report.completion_time.is_some() { COMPLETED } else { INTERRUPTED });
    }
    conclude(status, ("False", "Succeeded"), ("True", reason), now);
}

fn await_end(status: &mut EvictionStatus, now: Timestamp) {
    conclude(status, ("False", "AwaitingEviction"), ("False", "AwaitingEviction"), now);
}

fn conclude(status: &mut EvictionStatus, failed: (&str, &str), evicted: (&str, &str), now: Timestamp) {
    let before = status.conditions.take().unwrap_or_default();
    let condition = |kind: &str, (value, reason): (&str, &str)| {
        let same = before.iter().find(|one| one.type_ == kind && one.status == value);
        Condition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            last_transition_time: same.map_or(Time(now), |one| one.last_transition_time.clone()),
            observed_generation: None,
        }
    };
    status.conditions = Some(vec![condition("Failed", failed), condition("TargetEvicted", evicted)]);
}

/// The status after the last responder was refused; absent where it has reported a moment ago.
pub(super) fn refused(eviction: &Eviction, message: &str, now: Timestamp) -> Option<EvictionStatus> {
    let mut status = eviction.status.clone()?;
    let report = report_of(&mut status, IMPERATIVE)?;
    if report.heartbeat_time.as_ref().is_some_and(|last| now.duration_since(last.0) < LEAST_PAUSE) {
        return None;
    }
    report.heartbeat_time = Some(Time(now));
    report.message = Some(message.chars().take(4000).collect());
    Some(status)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_796_047_200 + seconds).unwrap()
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "p"},
            "spec": {"containers": [], "evictionResponders": [
                {"name": "b.io/x", "priority": 2000}, {"name": "a.io/y", "priority": 11000},
                {"name": "a.io/x", "priority": 11000}, {"name": "z.com/x", "priority": 11000}]},
        }))
        .unwrap()
    }

    fn request(requester: &str, intent: &str) -> EvictionRequest {
        let target = json!({"pod": {"name": "web", "uid": "p"}});
        serde_json::from_value(json!({"spec": {"target": target, "requester": requester, "intent": intent}})).unwrap()
    }

    /// Steps until nothing changes; between steps `act` does what others do.
    fn run(requests: &[EvictionRequest], pod: Option<&Pod>, status: &Value, now: Timestamp) -> Value {
        let mut eviction: Eviction =
            serde_json::from_value(json!({"spec": {"target": {"pod": {"name": "web", "uid": "p"}}}, "status": status}))
                .unwrap();
        while let Some(status) = next(&eviction, &Observed { requests, pod, now }) {
            eviction.status = Some(status);
        }
        serde_json::to_value(eviction.status.unwrap()).unwrap()
    }

    fn states(status: &Value) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let targets = status["targetResponders"].as_array().unwrap();
        targets.iter().map(|one| (text(&one["name"]), text(&one["state"]))).collect()
    }

    fn reasons(status: &Value) -> (String, String) {
        let of = |index: usize| {
            format!("{} {}", status["conditions"][index]["status"], status["conditions"][index]["reason"])
        };
        (of(0), of(1))
    }

    #[test]
    fn responders_have_their_turns_by_priority_and_then_by_name_from_the_top() {
        let status = run(&[request("acme.io/r", EVICTION)], Some(&pod()), &json!({}), at(0));
        let names: Vec<_> = states(&status).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["z.com/x", "a.io/x", "a.io/y", "b.io/x", IMPERATIVE]);
        assert_eq!(states(&status)[0].1, ACTIVE);
        assert_eq!(status["responders"][0]["startTime"], "2026-11-30T14:00:00Z");
        assert!(status["responders"][1]["startTime"].is_null());
    }

    #[test]
    fn the_next_one_is_turned_to_at_completion_or_after_twenty_silent_minutes() {
        let requests = [request("acme.io/r", EVICTION)];
        let mut status = run(&requests, Some(&pod()), &json!({}), at(0));
        status["responders"][0]["completionTime"] = json!("2026-11-30T14:00:30Z");
        let mut status = run(&requests, Some(&pod()), &status, at(30));
        assert_eq!((states(&status)[0].1.as_str(), states(&status)[1].1.as_str()), (COMPLETED, ACTIVE));
        status["responders"][1]["heartbeatTime"] = json!("2026-11-30T14:01:00Z");
        let status = run(&requests, Some(&pod()), &status, at(60 + 1199));
        assert_eq!(states(&status)[1].1, ACTIVE);
        let status = run(&requests, Some(&pod()), &status, at(60 + 1200));
        assert_eq!((states(&status)[1].1.as_str(), states(&status)[2].1.as_str()), (INTERRUPTED, ACTIVE));
    }

    #[test]
    fn an_eviction_ends_with_its_pod_with_the_last_request_or_with_the_last_responder() {
        let requests = [request("acme.io/r", EVICTION), request("acme.io/s", WITHDRAWN)];
        let status = run(&requests, Some(&pod()), &json!({}), at(0));
        let gone = run(&requests, None, &status, at(1));
        assert_eq!(reasons(&gone), (r#""False" "Succeeded""#.into(), r#""True" "PodDeleted""#.into()));
        assert_eq!(states(&gone)[0].1, INTERRUPTED);
        for rest in [&requests[1..], &[]] {
            let withdrawn = run(rest, Some(&pod()), &status, at(1));
            assert_eq!(reasons(&withdrawn).0, r#""True" "CanceledDueToNoRequesters""#);
            assert_eq!(states(&withdrawn)[0].1, CANCELED);
            let kept: Vec<_> = withdrawn["requesters"].as_array().unwrap().iter().map(|one| &one["intent"]).collect();
            assert_eq!(kept, [WITHDRAWN, WITHDRAWN]);
        }
        let plain: Pod = serde_json::from_value(json!({"metadata": {"name": "web", "uid": "p"}})).unwrap();
        let mut last = run(&requests, Some(&plain), &json!({}), at(0));
        assert_eq!(states(&last), [(IMPERATIVE.to_owned(), ACTIVE.to_owned())]);
        let gone = run(&requests, None, &last, at(1));
        assert_eq!((states(&gone)[0].1.as_str(), reasons(&gone).1.as_str()), (COMPLETED, r#""True" "PodDeleted""#));
        last["responders"][0]["completionTime"] = json!("2026-11-30T14:00:30Z");
        assert_eq!(reasons(&run(&requests, Some(&plain), &last, at(30))).0, r#""True" "NoFurtherResponder""#);
    }
}
