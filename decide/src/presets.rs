//! The presets that the chart ships, on objects as their systems have them.
//!
//! A preset is as good as its expressions: one that fails on an object of another version, or takes an idle runner for
//! a busy one, costs nodes or jobs on every cluster that uses it. So each is compiled as the program compiles it, and
//! judged on the shapes that its system's API has: old and new fields, none yet, and what is left of a former job.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value as Json, json};

use crate::busy::testing::{PRESETS, preset_rule, preset_rules};
use crate::busy::{BusyPod, Found, OnIdle, OnUnknown, Owner, Rule, RuleSpec, Seen, State, judge};
use crate::view::PodPhase;

/// The compiled rule, without its grace: that is the business of other tests.
fn rule(name: &str) -> Rule {
    // An expression that fails must not pass for a busy pod.
    let spec = RuleSpec { on_unknown: OnUnknown::Idle, startup_grace: SignedDuration::ZERO, ..preset_rule(name) };
    Rule::compile(spec).unwrap()
}

const CREATED: &str = "2026-09-20T09:00:00Z";

/// What the rule takes the pod for, from just what the rule keeps of the objects in memory.
#[track_caller]
fn state(rule: &Rule, pod: &Json, owner: Option<&Json>, linked: &[Json], written: &[(&str, &str)]) -> State {
    let at = |text: &str| -> Timestamp { text.parse().unwrap() };
    let pod = BusyPod {
        namespace: "ci".into(),
        name: "a".into(),
        uid: "1".into(),
        resource_version: "1".into(),
        created: at(CREATED),
        terminating: false,
        mirror: false,
        node: Some("n".into()),
        phase: PodPhase::Running,
        ready_since: Some(at(CREATED)),
        controller: None,
        marks: BTreeMap::new(),
        managed: None,
        object: rule.pod_fields.of(pod),
    };
    let owner = owner.map(|owner| Owner {
        namespace: "ci".into(),
        name: "a".into(),
        uid: "2".into(),
        terminating: false,
        controller: None,
        object: rule.owner_fields.of(owner),
        written: written.iter().map(|(field, time)| ((*field).into(), at(time))).collect(),
    });
    let linked: Vec<Json> = linked.iter().map(|pod| rule.linked_fields.of(pod)).collect();
    let seen = Seen {
        pod: &pod,
        owner: owner.as_ref().map_or(Found::NotAsked, Found::Owner),
        linked: linked.iter().collect(),
    };
    let verdict = judge(rule, &seen, at("2026-09-20T10:00:00Z"));
    assert!(!verdict.because.is_unknown(), "{:?}", verdict.because);
    verdict.state
}

fn running() -> Json {
    json!({"metadata": {"name": "a", "labels": {}}, "status": {"phase": "Running"}})
}

#[test]
fn every_rule_of_every_preset_compiles_and_has_a_name_of_its_own() {
    let names: Vec<_> = preset_rules().iter().map(|written| rule(&written.name).spec.name).collect();
    assert!(names.len() >= PRESETS.len(), "{names:?}");
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
}

#[test]
fn a_runner_is_busy_by_the_job_fields_of_any_version_and_by_its_jobs_own_pods() {
    let rule = rule("arc-runner");
    let ready = |fields: Json| {
        let mut status = json!({"phase": "Running", "ready": true, "runnerId": 7, "runnerName": "a"});
        status.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"metadata": {"name": "a"}, "spec": {}, "status": status})
    };
    let plain = |status: Json| json!({"metadata": {"name": "a"}, "spec": {}, "status": status});
    let deleted =
        |at: &str| json!({"metadata": {"deletionTimestamp": at}, "status": {"phase": "Running", "ready": true}});
    let job = [json!({"metadata": {"name": "a-workflow", "labels": {"runner-pod": "a"}}})];
    for (owner, linked, expected) in [
        (json!({"metadata": {"name": "a"}}), &[][..], State::Starting),
        (plain(json!({})), &[], State::Starting),
        (plain(json!({"phase": "Pending", "ready": false})), &[], State::Starting),
        (ready(json!({})), &[], State::Idle),
        (ready(json!({"jobId": "", "jobRequestId": 0, "workflowRunId": 0})), &[], State::Idle),
        // From 0.13 on, before it, and with the last of the fields alone.
        (ready(json!({"jobId": "0f9c", "jobRequestId": 12, "workflowRunId": 17_012_345_678_i64})), &[], State::Busy),
        (ready(json!({"jobRequestId": 12, "jobRepositoryName": "o/r"})), &[], State::Busy),
        (ready(json!({"workflowRunId": 17_012_345_678_i64})), &[], State::Busy),
        (plain(json!({"phase": "Running", "ready": false, "jobId": "1"})), &[], State::Busy),
        // The start was never told, but the job has a pod.
        (ready(json!({})), &job, State::Busy),
        (json!({"metadata": {"name": "a"}}), &job, State::Busy),
        (plain(json!({"phase": "Failed", "ready": false, "jobId": "1"})), &job, State::Done),
        (plain(json!({"phase": "Succeeded"})), &[], State::Done),
        (plain(json!({"phase": "Outdated"})), &[], State::Done),
        // On its way out, and refused by GitHub.
        (deleted("2026-09-20T09:59:30Z"), &[], State::Idle),
        (deleted("2026-09-20T09:58:00Z"), &[], State::Busy),
    ] {
        assert_eq!(state(&rule, &running(), Some(&owner), linked, &[]), expected, "{owner}");
    }
}

#[test]
fn a_runners_former_job_is_not_that_of_the_pod_that_was_made_again() {
    let rule = rule("arc-runner");
    let owner = json!({"metadata": {"name": "a"}, "status": {
        "phase": "Running", "ready": true, "jobId": "0f9c", "jobRequestId": 12, "workflowRunId": 3}});
    let written =
        |at: &'static str| ["status.jobId", "status.jobRequestId", "status.workflowRunId"].map(|field| (field, at));
    assert_eq!(state(&rule, &running(), Some(&owner), &[], &written("2026-09-20T08:00:00Z")), State::Idle);
    assert_eq!(state(&rule, &running(), Some(&owner), &[], &written("2026-09-20T09:30:00Z")), State::Busy);
}

#[test]
fn only_arc_retires_idle_owners() {
    for written in preset_rules() {
        let retires = written.on_idle == OnIdle::DeleteOwner;
        assert_eq!(retires, written.name == "arc-runner", "{}: the owner's finalizer must save jobs", written.name);
    }
}

#[test]
fn a_game_server_is_busy_from_its_allocation_to_its_end() {
    let rule = rule("agones-gameserver");
    for (name, expected) in [
        ("", State::Idle),
        ("PortAllocation", State::Idle),
        ("Creating", State::Idle),
        ("Starting", State::Idle),
        ("Scheduled", State::Idle),
        ("RequestReady", State::Idle),
        ("Ready", State::Idle),
        ("Reserved", State::Busy),
        ("Allocated", State::Busy),
        ("AStateOfALaterVersion", State::Busy),
        ("Shutdown", State::Done),
        ("Error", State::Done),
        ("Unhealthy", State::Done),
    ] {
        let owner = json!({"metadata": {"name": "a"}, "spec": {"container": "game"}, "status": {
            "state": name, "ports": null, "address": "", "nodeName": "n", "reservedUntil": null, "players": null}});
        assert_eq!(state(&rule, &running(), Some(&owner), &[], &[]), expected, "{name}");
    }
    for owner in [json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "a"}, "status": {}})] {
        assert_eq!(state(&rule, &running(), Some(&owner), &[], &[]), State::Idle);
    }
}

#[test]
fn a_task_run_is_busy_until_its_condition_says_how_it_ended() {
    let rule = rule("tekton-taskrun");
    let with =
        |conditions: Json| json!({"metadata": {"name": "a"}, "status": {"podName": "a-pod", "conditions": conditions}});
    let succeeded = |status: &str| with(json!([{"type": "Succeeded", "status": status, "reason": "R"}]));
    for (owner, expected) in [
        (json!({"metadata": {"name": "a"}}), State::Busy),
        (json!({"metadata": {"name": "a"}, "status": {}}), State::Busy),
        (with(json!([])), State::Busy),
        (succeeded("Unknown"), State::Busy),
        (succeeded("True"), State::Done),
        (succeeded("False"), State::Done),
        (with(json!([{"type": "Other", "status": "True"}, {"type": "Succeeded", "status": "Unknown"}])), State::Busy),
        (with(json!([{"status": "True"}, {"type": "Succeeded"}])), State::Busy),
    ] {
        assert_eq!(state(&rule, &running(), Some(&owner), &[], &[]), expected, "{owner}");
    }
}

#[test]
fn a_pod_that_was_made_for_one_job_is_busy_from_its_creation_to_its_end() {
    for name in ["arc-job", "gitlab-runner-job", "buildkite-job", "argo-workflows-pod"] {
        let rule = rule(name);
        for (pod, expected) in [
            // As it is in its own create.
            (json!({"metadata": {}}), State::Busy),
            (json!({"metadata": {}, "status": {}}), State::Busy),
            (json!({"metadata": {}, "status": {"phase": "Pending"}}), State::Busy),
            (running(), State::Busy),
            (json!({"metadata": {}, "status": {"phase": "Succeeded"}}), State::Done),
            (json!({"metadata": {}, "status": {"phase": "Failed"}}), State::Done),
        ] {
            assert_eq!(state(&rule, &pod, None, &[], &[]), expected, "{name}: {pod}");
        }
    }
}

#[test]
fn a_workflow_pod_is_done_when_argo_says_so_though_a_container_still_runs() {
    let rule = rule("argo-workflows-pod");
    for (completed, expected) in [("false", State::Busy), ("true", State::Done)] {
        let labels = json!({"workflows.argoproj.io/workflow": "w", "workflows.argoproj.io/completed": completed});
        let pod = json!({"metadata": {"labels": labels}, "status": {"phase": "Running"}});
        assert_eq!(state(&rule, &pod, None, &[], &[]), expected);
    }
}
