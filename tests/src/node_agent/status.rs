//! What a pod's status says, as a pure function of what its containers do.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::{Value, json};

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    /// The exit code; 128 + n for signal n, as container runtimes report it.
    pub(super) exit_code: i32,
    /// `Completed`, `Error` or another single word.
    pub(super) reason: &'static str,
    /// For people, may be empty.
    pub(super) message: String,
}

impl Ended {
    pub(super) fn with_code(exit_code: i32) -> Self {
        Self { exit_code, reason: if exit_code == 0 { "Completed" } else { "Error" }, message: String::new() }
    }

    pub(super) fn failed(message: String) -> Self {
        Self { message, ..Self::with_code(1) }
    }
}

/// An ended run of a container with its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) started: Time,
    pub(super) finished: Time,
    pub(super) ended: Ended,
}

/// What a container does now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not started, or waiting to be started again.
    Waiting { reason: &'static str, message: String },
    /// Running since then.
    Running { started: Time },
    /// Ended, and not started again.
    Terminated(Run),
}

/// All that a pod's status says about one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerState {
    pub(super) phase: Phase,
    pub(super) ready: bool,
    pub(super) restarts: u32,
    pub(super) last: Option<Run>,
}

impl Default for ContainerState {
    fn default() -> Self {
        Self {
            phase: Phase::Waiting { reason: "ContainerCreating", message: String::new() },
            ready: false,
            restarts: 0,
            last: None,
        }
    }
}

/// Since when each condition of one pod has the value it has.
#[derive(Debug, Default)]
pub(super) struct Transitions(BTreeMap<&'static str, (bool, Time)>);

impl Transitions {
    fn since(&mut self, condition: &'static str, holds: bool, now: &Time) -> Time {
        let entry = self.0.entry(condition).or_insert_with(|| (holds, now.clone()));
        if entry.0 != holds {
            *entry = (holds, now.clone());
        }
        entry.1.clone()
    }
}

/// Where a pod is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) pod: Ipv4Addr,
    pub(super) node: Ipv4Addr,
}

/// The pod's phase. `over` says that no container will be started again.
pub(super) fn phase(states: &[ContainerState], over: bool) -> &'static str {
    let ended: Option<Vec<&Run>> = states
        .iter()
        .map(|state| match &state.phase {
            Phase::Terminated(run) => Some(run),
            _ => None,
        })
        .collect();
    match ended {
        Some(runs) if over && runs.iter().all(|run| run.ended.exit_code == 0) => "Succeeded",
        Some(_) if over => "Failed",
        _ if states.iter().all(never_ran) => "Pending",
        _ => "Running",
    }
}

fn are_ready(states: &[ContainerState]) -> bool {
    !states.is_empty() && states.iter().all(|state| state.ready)
}

/// Whether the pod's object says otherwise than its containers whether it is Ready.
pub(super) fn is_contradicted(pod: &Pod, states: &[ContainerState]) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut said =
        conditions.filter(|condition| condition.type_ == "Ready").map(|condition| condition.status == "True");
    said.any(|ready| ready != are_ready(states))
}

fn never_ran(state: &ContainerState) -> bool {
    matches!(state.phase, Phase::Waiting { .. }) && state.last.is_none()
}

/// The strategic merge patch that writes the whole status of a pod that a kubelet owns. Conditions of others (the
/// scheduler's `PodScheduled`, the eviction's `DisruptionTarget`) stay, because conditions merge by type.
pub(super) fn patch(
    pod: &Pod,
    place: Place,
    states: &[ContainerState],
    over: bool,
    started: &Time,
    transitions: &mut Transitions,
    now: &Time,
) -> Value {
    let phase = phase(states, over);
    let ready = are_ready(states);
    let reason = match phase {
        "Succeeded" => Some("PodCompleted"),
        "Failed" => Some("PodFailed"),
        _ if !ready => Some("ContainersNotReady"),
        _ => None,
    };
    let mut condition = |kind: &'static str, holds: bool, reason: Option<&str>| {
        json!({
            "type": kind,
            "status": if holds { "True" } else { "False" },
            "reason": reason,
            "lastTransitionTime": transitions.since(kind, holds, now),
            "observedGeneration": pod.metadata.generation,
        })
    };
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let container_statuses: Vec<Value> = containers
        .iter()
        .zip(states)
        .map(|(container, state)| {
            let image = container.image.clone().unwrap_or_default();
            container_status(&pod.uid().unwrap_or_default(), &container.name, &image, state)
        })
        .collect();
    json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": {
            "observedGeneration": pod.metadata.generation,
            "phase": phase,
            "startTime": started,
            "hostIP": place.node.to_string(),
            "hostIPs": [{ "ip": place.node.to_string() }],
            "podIP": place.pod.to_string(),
            "podIPs": [{ "ip": place.pod.to_string() }],
            "conditions": [
                condition("PodReadyToStartContainers", true, None),
                condition("Initialized", true, None),
                condition("ContainersReady", ready, reason),
                condition("Ready", ready, reason),
            ],
            "containerStatuses": container_statuses,
        },
    })
}

fn container_status(uid: &str, name: &str, image: &str, state: &ContainerState) -> Value {
    let id = format!("belay://{uid}/{name}/{}", state.restarts);
    let running = matches!(state.phase, Phase::Running { .. });
    let shown = match &state.phase {
        Phase::Waiting { reason, message } => json!({ "waiting": { "reason": reason, "message": message } }),
        Phase::Running { started } => json!({ "running": { "startedAt": started } }),
        Phase::Terminated(run) => json!({ "terminated": terminated(run, &id) }),
    };
    let last = match &state.last {
        Some(run) => json!({ "terminated": terminated(run, &id) }),
        None => json!({}),
    };
    json!({
        "name": name,
        "image": image,
        "imageID": format!("belay://{image}"),
        "containerID": id,
        "ready": state.ready,
        "started": running,
        "restartCount": state.restarts,
        "state": shown,
        "lastState": last,
    })
}

fn terminated(run: &Run, id: &str) -> Value {
    json!({
        "exitCode": run.ended.exit_code,
        "reason": run.ended.reason,
        "message": run.ended.message,
        "startedAt": run.started,
        "finishedAt": run.finished,
        "containerID": id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn ended(exit_code: i32) -> ContainerState {
        ContainerState {
            phase: Phase::Terminated(Run { started: time(1), finished: time(2), ended: Ended::with_code(exit_code) }),
            ..ContainerState::default()
        }
    }

    fn running(ready: bool) -> ContainerState {
        ContainerState { phase: Phase::Running { started: time(1) }, ready, ..ContainerState::default() }
    }

    #[test]
    fn the_phase_follows_the_containers() {
        let waiting = ContainerState::default();
        let crashed = ContainerState {
            last: Some(Run { started: time(1), finished: time(2), ended: Ended::with_code(137) }),
            ..waiting.clone()
        };
        for (why, states, over, expected) in [
            ("nothing has started", vec![waiting.clone(), waiting.clone()], false, "Pending"),
            ("one has started", vec![waiting, running(false)], false, "Running"),
            ("waiting for its restart", vec![crashed], false, "Running"),
            ("ended, to be started again", vec![ended(1)], false, "Running"),
            ("all ended well", vec![ended(0), ended(0)], true, "Succeeded"),
            ("one failed", vec![ended(0), ended(3)], true, "Failed"),
        ] {
            assert_eq!(phase(&states, over), expected, "{why}");
        }
    }

    #[test]
    fn only_a_ready_condition_that_says_otherwise_contradicts() {
        for (why, conditions, ready, expected) in [
            ("nothing said", json!([]), true, false),
            ("the same", json!([{ "type": "Ready", "status": "True" }]), true, false),
            ("set to False by another", json!([{ "type": "Ready", "status": "False" }]), true, true),
            ("set to True by another", json!([{ "type": "Ready", "status": "True" }]), false, true),
            ("another condition", json!([{ "type": "PodScheduled", "status": "False" }]), true, false),
        ] {
            let pod: Pod = serde_json::from_value(json!({ "status": { "conditions": conditions } })).unwrap();
            assert_eq!(is_contradicted(&pod, &[running(ready)]), expected, "{why}");
        }
    }

    #[test]
    fn a_transition_time_changes_only_with_the_value() {
        let pod = Pod::default();
        let place = Place { pod: Ipv4Addr::new(10, 1, 1, 1), node: Ipv4Addr::new(10, 1, 1, 2) };
        let mut transitions = Transitions::default();
        let mut ready_since = |ready: bool, now: i64| {
            let states = [running(ready)];
            let patch = patch(&pod, place, &states, false, &time(0), &mut transitions, &time(now));
            let conditions = patch["status"]["conditions"].as_array().unwrap().clone();
            let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap();
            (ready["status"].clone(), ready["lastTransitionTime"].clone())
        };
        let at = |second: i64| json!(time(second));
        assert_eq!(ready_since(false, 10), (json!("False"), at(10)));
        assert_eq!(ready_since(false, 11), (json!("False"), at(10)));
        assert_eq!(ready_since(true, 12), (json!("True"), at(12)));
        assert_eq!(ready_since(true, 13), (json!("True"), at(12)));
    }
}
