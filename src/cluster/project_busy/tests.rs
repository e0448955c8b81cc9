use super::*;
use crate::testing;

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

/// When the tests look.
fn now() -> Timestamp {
    at("2026-11-30T12:00:00Z")
}

fn object(json: Value) -> DynamicObject {
    serde_json::from_value(json).unwrap()
}

/// The rule that the chart's preset has for runners of the Actions Runner Controller.
fn runner_rule() -> Rule {
    testing::rules(include_str!("../../../charts/belay/files/presets/arc.yaml")).0.remove(0)
}

/// A runner as its controllers leave it: each writes fields of its own, at times of its own.
fn runner() -> DynamicObject {
    object(json!({
        "apiVersion": "actions.github.com/v1alpha1",
        "kind": "EphemeralRunner",
        "metadata": {
            "name": "linux-x64-abcde-runner-f7k2p", "generateName": "linux-x64-abcde-runner-", "namespace": "ci",
            "uid": "8a0f7f52-3f0c-4a9e-9f0d-0b9d3c1d2e4f", "resourceVersion": "118230", "generation": 2,
            "creationTimestamp": "2026-11-30T09:58:00Z",
            "finalizers": ["ephemeralrunner.actions.github.com/finalizer"],
            "labels": {"actions.github.com/scale-set-name": "linux-x64"},
            "ownerReferences": [{
                "apiVersion": "actions.github.com/v1alpha1", "kind": "EphemeralRunnerSet", "name": "linux-x64-abcde",
                "uid": "5f9b", "controller": true, "blockOwnerDeletion": true,
            }],
            "managedFields": [
                {"manager": "manager", "operation": "Update", "apiVersion": "actions.github.com/v1alpha1",
                 "time": "2026-11-30T09:58:00Z", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:metadata": {"f:finalizers": {".": {}}}, "f:spec": {"f:runnerScaleSetId": {}}}},
                {"manager": "manager", "operation": "Update", "apiVersion": "actions.github.com/v1alpha1",
                 "subresource": "status", "time": "2026-11-30T10:30:00Z", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:status": {".": {}, "f:phase": {}, "f:ready": {}, "f:runnerId": {}}}},
                {"manager": "ghalistener", "operation": "Update", "apiVersion": "actions.github.com/v1alpha1",
                 "subresource": "status", "time": "2026-11-30T10:20:00Z", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:status": {"f:jobId": {}, "f:jobRequestId": {}, "f:workflowRunId": {}}}},
                {"manager": "kubectl-edit", "operation": "Update", "apiVersion": "actions.github.com/v1alpha1",
                 "subresource": "status", "time": "2026-11-30T10:10:00Z", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:status": {"f:jobId": {}, "f:jobDisplayName": {}}}},
            ],
        },
        "spec": {"githubConfigUrl": "https://github.com/example", "runnerScaleSetId": 1},
        "status": {
            "phase": "Running", "ready": true, "runnerId": 12, "jobId": "77", "jobRequestId": 7, "workflowRunId": 9,
            "jobDisplayName": "build", "failures": {},
        },
    }))
}

#[test]
fn an_owner_keeps_what_is_read_and_when_its_job_was_written() {
    let rule = runner_rule();
    let job_fields = rule.spec.owner.as_ref().unwrap().job_fields.clone();
    let owner = owner(&runner(), &OwnerFields { read: rule.owner_fields.clone(), job_fields });
    let expected = json!({
        "metadata": {},
        "status": {"phase": "Running", "ready": true, "jobId": "77", "jobRequestId": 7, "workflowRunId": 9},
    });
    assert_eq!(owner.object, expected);
    let written = at("2026-11-30T10:20:00Z");
    let expected = ["status.jobId", "status.jobRequestId", "status.workflowRunId"].map(|field| (field.into(), written));
    assert_eq!(owner.written, BTreeMap::from(expected), "by the latest of those who own it");
    assert_eq!((&*owner.namespace, &*owner.name), ("ci", "linux-x64-abcde-runner-f7k2p"));
    assert_eq!(&*owner.uid, "8a0f7f52-3f0c-4a9e-9f0d-0b9d3c1d2e4f");
    assert!(!owner.terminating);
    let above = owner.controller.unwrap();
    assert_eq!(above.kind, GroupKind::new("actions.github.com", "EphemeralRunnerSet"));
    assert_eq!((&*above.name, &*above.uid), ("linux-x64-abcde", "5f9b"));
}

#[test]
fn an_expression_sees_no_managed_fields() {
    let owner = owner(&runner(), &OwnerFields { read: Fields::All, job_fields: vec![] });
    assert_eq!(owner.object["metadata"].get("managedFields"), None);
    assert_eq!(owner.object["metadata"]["creationTimestamp"], "2026-11-30T09:58:00Z");
    assert_eq!(owner.object["metadata"]["labels"]["actions.github.com/scale-set-name"], "linux-x64");
    assert_eq!(owner.object["status"]["jobDisplayName"], "build");
}

#[test]
fn a_field_was_last_written_when_the_latest_of_its_managers_was() {
    let ledger: Vec<ManagedFieldsEntry> = serde_json::from_value(json!([
        {"manager": "a", "time": "2026-11-30T10:00:00Z", "fieldsV1": {"f:status": {"f:job": {"f:id": {}}}}},
        {"manager": "b", "time": "2026-11-30T11:00:00Z", "fieldsV1": {"f:status": {"f:job": {"f:name": {}}, "f:run": {}}}},
        {"manager": "b", "time": "2026-11-30T10:30:00Z", "fieldsV1": {"f:status": {"f:run": {}}}},
        {"manager": "c", "fieldsV1": {"f:status": {"f:untold": {}, "f:run": {}}}},
        {"manager": "d", "time": null, "fieldsV1": null},
        {"manager": "e", "time": "2026-11-30T12:00:00Z"},
        {"manager": "f", "time": "2026-11-30T12:00:00Z", "fieldsV1": {"f:spec": {"f:job": {"f:id": {}}}}},
        {"manager": "g", "time": "2026-11-30T12:00:00Z", "fieldsV1": {"f:status": "of another shape"}},
    ]))
    .unwrap();
    let table = [
        ("one manager's", "status.job.id", Some("2026-11-30T10:00:00Z")),
        ("two managers'", "status.run", Some("2026-11-30T11:00:00Z")),
        ("a whole object's, by what is below", "status.job", Some("2026-11-30T11:00:00Z")),
        ("nobody's", "status.phase", None),
        ("one whose time nobody noted", "status.untold", None),
        ("a path that goes on below a value", "status.run.more", None),
        ("a path of one word", "spec", Some("2026-11-30T12:00:00Z")),
    ];
    for (name, path, expected) in table {
        assert_eq!(last_written(&ledger, path), expected.map(at), "{name}");
    }
    assert_eq!(last_written(&[], "status"), None);
}

/// A runner's pod as a cluster has it, cut where it only gets longer.
fn runner_pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "linux-x64-abcde-runner-f7k2p", "namespace": "ci", "uid": "0d1f", "resourceVersion": "118231",
            "creationTimestamp": "2026-11-30T09:58:02Z",
            "labels": {"actions-ephemeral-runner": "True", "pod-template-hash": "5c8f", "belay.dev/busy": "true"},
            "annotations": {
                "actions.github.com/patch-id": "0", "karpenter.sh/do-not-disrupt": "true",
                "belay.dev/busy-since": "2026-11-30T10:20:01Z",
                "belay.dev/managed": "{\"karpenter.sh/do-not-disrupt\":\"true\"}",
            },
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n"},
                {"apiVersion": "actions.github.com/v1alpha1", "kind": "EphemeralRunner", "controller": true,
                 "blockOwnerDeletion": true, "name": "linux-x64-abcde-runner-f7k2p", "uid": "8a0f"},
            ],
            "managedFields": [{"manager": "manager", "operation": "Update", "time": "2026-11-30T09:58:02Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}}}],
        },
        "spec": {
            "nodeName": "node-1", "serviceAccountName": "runner", "restartPolicy": "Never",
            "containers": [{"name": "runner", "image": "ghcr.io/actions/actions-runner:latest", "env": [
                {"name": "ACTIONS_RUNNER_INPUT_JITCONFIG", "valueFrom": {"secretKeyRef": {"name": "s", "key": "jitToken"}}},
            ]}],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.7", "startTime": "2026-11-30T09:58:03Z",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T09:58:03Z"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T09:58:09Z"},
            ],
            "containerStatuses": [{"name": "runner", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-11-30T09:58:08Z"}}}],
        },
    })
}

#[test]
fn a_pod_keeps_what_its_rule_reads_and_what_belay_writes() {
    let of_spec = testing::rules(
        "- {name: one, podSelector: {matchLabels: {a: b}}, states: [{state: Busy, when: pod.status.phase == 'x'}]}",
    );
    let pod = pod(&object(runner_pod()), &of_spec.0[0], now());
    let expected = BusyPod {
        namespace: "ci".into(),
        name: "linux-x64-abcde-runner-f7k2p".into(),
        uid: "0d1f".into(),
        resource_version: "118231".into(),
        created: at("2026-11-30T09:58:02Z"),
        terminating: false,
        mirror: false,
        node: Some("node-1".into()),
        phase: PodPhase::Running,
        ready_since: Some(at("2026-11-30T09:58:09Z")),
        controller: Some(ControllerRef {
            kind: GroupKind::new("actions.github.com", "EphemeralRunner"),
            name: "linux-x64-abcde-runner-f7k2p".into(),
            uid: "8a0f".into(),
        }),
        marks: BTreeMap::from([
            (Key::annotation("belay.dev/busy-since"), "2026-11-30T10:20:01Z".into()),
            (Key::annotation("karpenter.sh/do-not-disrupt"), "true".into()),
            (Key::label("belay.dev/busy"), "true".into()),
        ]),
        managed: Some("{\"karpenter.sh/do-not-disrupt\":\"true\"}".into()),
        object: json!({"status": {"phase": "Running"}}),
    };
    assert_eq!(pod, expected);
    let of_runner = super::pod(&object(runner_pod()), &runner_rule(), now());
    assert_eq!(of_runner, BusyPod { object: json!({}), ..expected }, "its rule asks others alone");
}

#[test]
fn an_odd_pod_is_read_as_far_as_it_goes() {
    let rule = runner_rule();
    let seen = |json: Value| pod(&object(json), &rule, now());
    let nothing = BusyPod {
        namespace: "".into(),
        name: "".into(),
        uid: "".into(),
        resource_version: "".into(),
        created: now(),
        terminating: false,
        mirror: false,
        node: None,
        phase: PodPhase::Pending,
        ready_since: None,
        controller: None,
        marks: BTreeMap::new(),
        managed: None,
        object: json!({}),
    };
    let ready = |ready: Value| json!({"status": {"conditions": [{"type": "PodScheduled"}, ready]}});
    let since = |at: Timestamp| BusyPod { ready_since: Some(at), ..nothing.clone() };
    let table = [
        ("nothing", json!({}), nothing.clone()),
        ("nulls", json!({"metadata": {}, "spec": null, "status": null}), nothing.clone()),
        (
            "nulls inside",
            json!({"metadata": {"labels": null, "annotations": null, "ownerReferences": null, "managedFields": null,
                "creationTimestamp": null, "deletionTimestamp": null, "uid": null},
                "spec": {"nodeName": null}, "status": {"phase": null, "conditions": null}}),
            nothing.clone(),
        ),
        (
            "values of other shapes",
            json!({"spec": [], "status": {"phase": 7, "conditions": {"Ready": true}}}),
            nothing.clone(),
        ),
        ("a node of no name", json!({"spec": {"nodeName": ""}}), nothing.clone()),
        ("a phase of the future", json!({"status": {"phase": "Dreaming"}}), nothing.clone()),
        ("not ready", ready(json!({"type": "Ready", "status": "False"})), nothing.clone()),
        (
            "ready, and nobody knows since when",
            ready(json!({"type": "Ready", "status": "True"})),
            since(Timestamp::UNIX_EPOCH),
        ),
        (
            "ready since a time that is none",
            ready(json!({"type": "Ready", "status": "True", "lastTransitionTime": "yesterday"})),
            since(Timestamp::UNIX_EPOCH),
        ),
        (
            "an owner that is no controller",
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": false},
                {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": null}]}}),
            nothing.clone(),
        ),
        (
            "a controller of the core group",
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "ReplicationController", "name": "n", "uid": "u", "controller": true}]}}),
            BusyPod {
                controller: Some(ControllerRef {
                    kind: GroupKind::new("", "ReplicationController"),
                    name: "n".into(),
                    uid: "u".into(),
                }),
                ..nothing.clone()
            },
        ),
        (
            "the mirror of a static pod",
            json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
            BusyPod { mirror: true, ..nothing.clone() },
        ),
        (
            "one that goes",
            json!({"metadata": {"deletionTimestamp": "2026-11-30T12:00:00Z"}}),
            BusyPod { terminating: true, ..nothing.clone() },
        ),
    ];
    for (name, json, expected) in table {
        assert_eq!(seen(json), expected, "{name}");
    }
}

#[test]
fn an_odd_owner_is_read_as_far_as_it_goes() {
    let fields = OwnerFields { read: Fields::All, job_fields: vec!["status.jobId".into()] };
    let table = [
        ("nothing", json!({}), json!({"metadata": {}})),
        (
            "nulls",
            json!({"metadata": {"managedFields": null}, "status": null}),
            json!({"metadata": {}, "status": null}),
        ),
        (
            "one of the cluster",
            json!({"metadata": {"name": "p", "managedFields": [{"manager": "m"}]}, "status": {"jobId": 1}}),
            json!({"metadata": {"name": "p"}, "status": {"jobId": 1}}),
        ),
    ];
    for (name, json, expected) in table {
        let owner = owner(&object(json), &fields);
        assert_eq!((owner.object, owner.written), (expected, BTreeMap::new()), "{name}");
    }
    let going = owner(&object(json!({"metadata": {"deletionTimestamp": "2026-11-30T12:00:00Z"}})), &fields);
    assert!(going.terminating);
    assert_eq!(going.object["metadata"]["deletionTimestamp"], "2026-11-30T12:00:00Z");
}

#[test]
fn a_linked_pod_names_the_other_by_its_label() {
    let fields = Fields::default();
    let pod = |labels: Value, phase: Value| {
        object(json!({
            "metadata": {"name": "w-workflow", "namespace": "ci", "labels": labels,
                "creationTimestamp": "2026-11-30T10:20:05Z"},
            "status": {"phase": phase},
        }))
    };
    let of = |labels, phase| linked(&pod(labels, phase), "runner-pod", &fields);
    let expected = Linked {
        namespace: "ci".into(),
        name: "w-workflow".into(),
        to: "w".into(),
        created: at("2026-11-30T10:20:05Z"),
        finished: false,
        object: json!({}),
    };
    let to_w = || json!({"runner-pod": "w", "more": ""});
    assert_eq!(of(to_w(), json!("Running")), Some(expected.clone()));
    assert_eq!(of(to_w(), json!(null)), Some(expected.clone()), "one that has not begun works already");
    assert_eq!(of(to_w(), json!("Unknown")), Some(expected.clone()), "one whose node is silent may still work");
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(of(to_w(), json!(phase)), Some(Linked { finished: true, ..expected.clone() }), "{phase}");
    }
    for labels in [json!(null), json!({}), json!({"other": "w"})] {
        assert_eq!(of(labels.clone(), json!("Running")), None, "{labels}");
    }
    let bare =
        linked(&object(json!({"metadata": {"labels": {"runner-pod": "w"}}})), "runner-pod", &Fields::All).unwrap();
    assert_eq!(bare.created, Timestamp::UNIX_EPOCH, "of an unknown age, so of no pod's");
    assert_eq!(bare.object, json!({"metadata": {"labels": {"runner-pod": "w"}}}));
}

#[test]
fn of_labels_and_annotations_those_are_kept_that_belay_may_write() {
    let meta = |json: Value| serde_json::from_value::<ObjectMeta>(json).unwrap();
    // Each word is a key of one of the two alone.
    let both = meta(json!({
        "labels": {"belay.dev/busy": "l", "karpenter.sh/do-not-disrupt": "l", "app": "x"},
        "annotations": {"belay.dev/busy": "a", "karpenter.sh/do-not-disrupt": "a", "note": "x"},
    }));
    let expected = BTreeMap::from([
        (Key::annotation("karpenter.sh/do-not-disrupt"), "a".to_owned()),
        (Key::label("belay.dev/busy"), "l".to_owned()),
    ]);
    assert_eq!(marks(&both), expected);
    assert_eq!((marks(&meta(json!({}))), managed(&meta(json!({})))), (BTreeMap::new(), None));
}

#[test]
fn a_pod_that_is_killed_while_it_runs_has_not_ended() {
    let of = |deleted: Value, finished: &[&str]| {
        let containers: Vec<_> =
            finished.iter().map(|at| json!({"state": {"terminated": {"finishedAt": at}}})).collect();
        let mut meta = deleted;
        meta["name"] = json!("w");
        let meta: ObjectMeta = serde_json::from_value(meta).unwrap();
        phase(&meta, &json!({"phase": "Succeeded", "containerStatuses": containers}))
    };
    let deleted = || json!({"deletionTimestamp": "2026-11-30T12:00:30Z", "deletionGracePeriodSeconds": 30});
    let table = [
        ("not deleted", json!({}), &["2026-11-30T12:00:05Z"][..], PodPhase::Succeeded),
        ("ended before", deleted(), &["2026-11-30T11:59:59Z"], PodPhase::Succeeded),
        ("ended in the same second", deleted(), &["2026-11-30T12:00:00Z"], PodPhase::Succeeded),
        ("ended by the deletion", deleted(), &["2026-11-30T12:00:01Z"], PodPhase::Running),
        ("one of two ended before", deleted(), &["2026-11-30T11:00:00Z", "2026-11-30T12:00:01Z"], PodPhase::Running),
        ("nobody tells when", deleted(), &[], PodPhase::Succeeded),
    ];
    for (name, meta, finished, expected) in table {
        assert_eq!(of(meta, finished), expected, "{name}");
    }
}
