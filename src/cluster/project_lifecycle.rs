//! From the Evictions of `lifecycle.k8s.io` to the view that the responder's decisions read.

use belay_decide::lifecycle::{EvictionView, RESPONDER, Reported, State};
use k8s_openapi::api::lifecycle::v1alpha1::{EvictionSpec, EvictionStatus};
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;

use super::apply::object_ref;

/// What a requester wants that has not withdrawn its request.
const INTENT: &str = "Eviction";

/// Projects an Eviction. One that cannot be read is none that Belay is a responder of.
pub fn eviction(object: &DynamicObject) -> EvictionView {
    let spec: Option<EvictionSpec> = part(object, "spec");
    let status: EvictionStatus = part(object, "status").unwrap_or_default();
    let pod = spec.and_then(|spec| spec.target.pod).unwrap_or_default();
    let mut requesters: Vec<_> = status.requesters.into_iter().flatten().collect();
    requesters.retain(|requester| requester.intent == INTENT);
    let mut names: Vec<_> = requesters.into_iter().map(|requester| requester.name).collect();
    names.sort_unstable();
    let targets = status.target_responders.into_iter().flatten();
    let state = targets.filter(|target| target.name == RESPONDER).map(|target| State::parse(&target.state)).next();
    let ours = status.responders.into_iter().flatten().find(|responder| responder.name == RESPONDER);
    let reported = ours.map_or_else(Reported::default, |ours| Reported {
        started: ours.start_time.map(|time| time.0),
        heartbeat: ours.heartbeat_time.map(|time| time.0),
        expected: ours.expected_completion_time.map(|time| time.0),
        completed: ours.completion_time.map(|time| time.0),
        message: ours.message.unwrap_or_default(),
    });
    let conditions = status.conditions.unwrap_or_default();
    let is_true = |kind: &str| conditions.iter().any(|one| one.type_ == kind && one.status == "True");
    EvictionView {
        object: object_ref(&object.metadata),
        pod: pod.name,
        pod_uid: pod.uid,
        requesters: names.join(","),
        state,
        reported,
        failed: is_true("Failed"),
        evicted: is_true("TargetEvicted"),
    }
}

fn part<T: DeserializeOwned>(object: &DynamicObject, name: &str) -> Option<T> {
    serde_json::from_value(object.data.get(name)?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use belay_decide::action::ObjectRef;
    use serde_json::{Value, json};

    use super::*;

    fn project(object: &Value) -> EvictionView {
        eviction(&serde_json::from_value(object.clone()).expect("an object"))
    }

    /// As the API server keeps it.
    fn whole() -> Value {
        json!({
            "apiVersion": "lifecycle.k8s.io/v1alpha1", "kind": "Eviction",
            "metadata": {"namespace": "shop", "name": "e", "uid": "u", "resourceVersion": "7"},
            "spec": {"target": {"pod": {"name": "web-1", "uid": "p"}}},
            "status": {
                "requesters": [{"name": "b.io/x", "intent": "Eviction"}, {"name": "c.io/x", "intent": "Withdrawn"},
                    {"name": "a.io/x", "intent": "Eviction"}],
                "targetResponders": [
                    {"name": "imperative-eviction.k8s.io/evictor", "priority": 100, "state": "Inactive"},
                    {"name": RESPONDER, "priority": 11000, "state": "Active"}],
                "responders": [
                    {"name": "imperative-eviction.k8s.io/evictor"},
                    {"name": RESPONDER, "startTime": "2026-11-30T14:00:00Z", "heartbeatTime": "2026-11-30T14:00:20Z",
                        "expectedCompletionTime": "2026-11-30T14:10:00Z", "message": "starting"}],
                "conditions": [{"type": "Failed", "status": "False", "reason": "AwaitingEviction", "message": "",
                        "lastTransitionTime": "2026-11-30T14:00:00Z"},
                    {"type": "TargetEvicted", "status": "True", "reason": "PodDeleted", "message": "",
                        "lastTransitionTime": "2026-11-30T14:00:00Z"}],
            },
        })
    }

    #[test]
    fn an_eviction_is_read_as_it_concerns_its_responder() {
        let at = |text: &str| Some(text.parse().expect("a time"));
        let expected = EvictionView {
            object: ObjectRef {
                namespace: "shop".into(),
                name: "e".into(),
                uid: "u".into(),
                resource_version: "7".into(),
            },
            pod: "web-1".into(),
            pod_uid: "p".into(),
            requesters: "a.io/x,b.io/x".into(),
            state: Some(State::Active),
            reported: Reported {
                started: at("2026-11-30T14:00:00Z"),
                heartbeat: at("2026-11-30T14:00:20Z"),
                expected: at("2026-11-30T14:10:00Z"),
                completed: None,
                message: "starting".into(),
            },
            failed: false,
            evicted: true,
        };
        assert_eq!(project(&whole()), expected);
    }

    #[test]
    fn what_cannot_be_read_is_none_of_ours() {
        let without = |pointer: &str, value: Value| {
            let mut object = whole();
            *object.pointer_mut(pointer).expect("it is there") = value;
            project(&object)
        };
        assert_eq!(without("/status", Value::Null).state, None);
        assert_eq!(without("/status/targetResponders", json!("x")).state, None);
        assert_eq!(without("/status/targetResponders", json!([])).state, None);
        assert_eq!(without("/spec/target", json!({})).pod, "");
        assert_eq!(without("/status/responders", json!([])).reported, Reported::default());
        assert_eq!(without("/status/targetResponders/1/state", json!("Paused")).state, Some(State::Inactive));
    }
}
