//! The presets, each with the pods and objects of the system it is for: busy, and not.
//!
//! That of the Actions Runner Controller has tests of its own in `busy_arc` and `busy_drain`.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::node_agent::IDLE_IMAGE;
use belay_e2e::world::{Namespace, PodInfo};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PodSpec;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::busy_support::{
    BUSY, DESCHEDULER, IDLE, KARPENTER, NOTHING, SAFE, SINCE, SOMETIME, WORKING, ensure_told, held_as, marks,
    patch_metadata, refusal, told, written,
};
use crate::support::{SOON, test_with_belay};

/// Not the owner that a rule names: its pods tell their state themselves.
const ARGO: &str = include_str!("../crds/argoproj.io.yaml");

/// What a busy pod is told as where its system has already told Cluster Autoscaler.
const ALL_BUT_SAFE: &[(&str, &str)] = &[(KARPENTER, "true"), (DESCHEDULER, "true"), (BUSY, "true"), (SINCE, SOMETIME)];

/// Objects of a custom resource.
struct Custom {
    api: Api<DynamicObject>,
    resource: ApiResource,
}

impl Custom {
    fn of(ns: &Namespace, group: &str, version: &str, kind: &str) -> Self {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Self { api: ns.custom(&resource), resource }
    }

    /// Creates an object, and answers a reference to it as its pod's controller.
    async fn create(&self, name: &str, content: Value) -> anyhow::Result<Value> {
        let mut object = DynamicObject::new(name, &self.resource);
        object.data = content;
        let made = self.api.create(&PostParams::default(), &object).await?;
        Ok(json!({
            "apiVersion": self.resource.api_version, "kind": self.resource.kind, "name": name, "uid": made.uid(),
            "controller": true, "blockOwnerDeletion": true,
        }))
    }

    async fn patch(&self, name: &str, patch: Value) -> anyhow::Result<()> {
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn patch_status(&self, name: &str, status: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

async fn passes(ns: &Namespace, pod: &str) -> anyhow::Result<()> {
    let refused = refusal(ns, pod).await?;
    ensure!(refused.is_none(), "{refused:?}");
    Ok(())
}

/// A pod whose job is over: nobody writes to it any more, and its eviction passes.
async fn ended_passes(ns: &Namespace, pod: &PodInfo, phase: &str) -> anyhow::Result<()> {
    let before = (marks(pod), written(ns)?);
    ns.eventually("the pod has ended", SOON, async || {
        let now = ns.pod_info(&pod.name).await?.pod.status.and_then(|status| status.phase);
        ensure!(now.as_deref() == Some(phase), "it is {now:?}");
        Ok(())
    })
    .await?;
    ensure!((marks(&ns.pod_info(&pod.name).await?), written(ns)?) == before, "a pod that has ended was written to");
    passes(ns, &pod.name).await
}

#[test]
fn a_game_server_is_busy_while_it_is_allocated_or_reserved() {
    test_with_belay("agones", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let servers = Custom::of(ns, "agones.dev", "v1", "GameServer");
        let container = json!({ "name": "game", "image": IDLE_IMAGE });
        let spec = json!({
            "container": "game", "eviction": { "safe": "OnUpgrade" }, "scheduling": "Packed",
            "template": { "spec": { "containers": [container] } },
        });
        let status = json!({ "state": "Starting", "eviction": { "safe": "OnUpgrade" }, "nodeName": "" });
        let owner = servers.create("arena", json!({ "spec": spec, "status": status })).await?;
        // What Agones itself tells Cluster Autoscaler, once.
        let theirs = [(SAFE, "false")];
        let pod = ns
            .pod(json!({
                "metadata": {
                    "name": "arena",
                    "labels": {
                        "agones.dev/gameserver": "arena", "agones.dev/role": "gameserver",
                        "agones.dev/safe-to-evict": "true",
                    },
                    "annotations": { SAFE: "false", "agones.dev/container": "game" },
                    "ownerReferences": [owner],
                },
                "spec": { "restartPolicy": "Never", "containers": [container] },
            }))
            .await?;
        ensure_told(&pod, NOTHING, &theirs)?;
        ns.ready("arena", SOON).await?;
        for (state, expected) in [
            ("Ready", NOTHING),
            ("Allocated", ALL_BUT_SAFE),
            ("Shutdown", NOTHING),
            ("Reserved", ALL_BUT_SAFE),
            // Not at once: a server that is allocated again within seconds is told nothing meanwhile.
            ("Ready", NOTHING),
        ] {
            servers.patch("arena", json!({ "status": { "state": state } })).await?;
            told(ns, "arena", expected, &theirs).await.with_context(|| state.to_owned())?;
            if expected == ALL_BUT_SAFE {
                held_as(ns, "arena", "PodBusy").await?;
            }
        }
        ensure!(written(ns)?.len() == 4, "{:?}", written(ns)?);
        passes(ns, "arena").await
    });
}

#[test]
fn a_task_run_is_busy_until_it_has_succeeded_or_failed() {
    test_with_belay("tekton", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let runs = Custom::of(ns, "tekton.dev", "v1", "TaskRun");
        for (name, outcome) in [("good", "True"), ("bad", "False")] {
            let owner = runs.create(name, json!({ "spec": { "taskRef": { "name": "build" } } })).await?;
            let pod = format!("{name}-pod");
            let made = ns
                .pod(json!({
                    "metadata": {
                        "name": pod,
                        "labels": {
                            "app.kubernetes.io/managed-by": "tekton-pipelines", "tekton.dev/task": "build",
                            "tekton.dev/taskRun": name, "tekton.dev/taskRunUID": owner["uid"],
                        },
                        "ownerReferences": [owner],
                    },
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [
                            { "name": "step-build", "image": IDLE_IMAGE }, { "name": "sidecar-log", "image": IDLE_IMAGE },
                        ],
                    },
                }))
                .await?;
            ns.ready(&pod, SOON).await?;
            let running = json!({ "type": "Succeeded", "status": "Unknown", "reason": "Running" });
            runs.patch_status(name, json!({ "podName": pod, "conditions": [running] })).await?;
            told(ns, &pod, WORKING, &[]).await?;
            held_as(ns, &pod, "PodBusy").await?;
            // The step has ended; the sidecar runs on until Tekton stops it.
            ns.cluster().node_agent().finish(ns.name(), &pod, Some("step-build"), 0)?;
            let over = json!({ "type": "Succeeded", "status": outcome, "reason": "Over" });
            runs.patch_status(name, json!({ "podName": pod, "conditions": [over] })).await?;
            told(ns, &pod, IDLE, &[]).await?;
            ensure!(!ns.pod_info(&pod).await?.terminating && !made.terminating);
            passes(ns, &pod).await?;
        }
        Ok(())
    });
}

#[test]
fn a_pod_of_a_workflow_is_busy_until_it_is_marked_as_completed() {
    test_with_belay("argo", async |ns: &Namespace| {
        ns.nodes(1).await?;
        ns.cluster().crds(ARGO).await?;
        let workflows = Custom::of(ns, "argoproj.io", "v1alpha1", "Workflow");
        let owner = workflows.create("release", json!({ "spec": { "entrypoint": "main" } })).await?;
        let pod = ns
            .pod(json!({
                "metadata": {
                    "name": "release-main-1234",
                    "labels": {
                        "workflows.argoproj.io/completed": "false", "workflows.argoproj.io/workflow": "release",
                    },
                    "annotations": {
                        "workflows.argoproj.io/node-id": "release-1234", "workflows.argoproj.io/node-name": "release.main",
                    },
                    "ownerReferences": [owner],
                },
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{ "name": "main", "image": IDLE_IMAGE }, { "name": "wait", "image": IDLE_IMAGE }],
                },
            }))
            .await?;
        ensure_told(&pod, WORKING, &[])?;
        ns.ready(&pod.name, SOON).await?;
        held_as(ns, &pod.name, "PodBusy").await?;
        patch_metadata(ns, &pod.name, json!({ "labels": { "workflows.argoproj.io/completed": "true" } })).await?;
        told(ns, &pod.name, IDLE, &[]).await?;
        ensure!(written(ns)?.len() == 1, "{:?}", written(ns)?);
        passes(ns, &pod.name).await
    });
}

#[test]
fn a_job_pod_of_gitlab_runner_is_busy_until_it_ends() {
    test_with_belay("gitlab", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let pod = ns
            .pod(json!({
                "metadata": {
                    "name": "runner-t1-project-7-concurrent-0-abcd",
                    "labels": {
                        "job.runner.gitlab.com/pod": "runner-t1-project-7-concurrent-0",
                        "manager.runner.gitlab.com/id-short": "t1",
                        "manager.runner.gitlab.com/name": "linux",
                        "pod": "runner-t1-project-7-concurrent-0",
                        "project.runner.gitlab.com/id": "7",
                        "project.runner.gitlab.com/name": "app",
                        "project.runner.gitlab.com/namespace": "example",
                    },
                },
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{ "name": "build", "image": IDLE_IMAGE }, { "name": "helper", "image": IDLE_IMAGE }],
                },
            }))
            .await?;
        ensure_told(&pod, WORKING, &[])?;
        let pod = ns.ready(&pod.name, SOON).await?;
        held_as(ns, &pod.name, "PodBusy").await?;
        ns.cluster().finish_pod(ns.name(), &pod.name, 0)?;
        ended_passes(ns, &pod, "Succeeded").await
    });
}

#[test]
fn a_job_pod_of_buildkite_is_busy_until_it_ends() {
    test_with_belay("buildkite", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let mut spec: PodSpec = serde_json::from_value(json!({
            "restartPolicy": "Never",
            "containers": [{ "name": "agent", "image": IDLE_IMAGE }, { "name": "container-0", "image": IDLE_IMAGE }],
        }))?;
        ns.pin(&mut spec);
        let metadata = json!({
            "labels": { "buildkite.com/job-uuid": "01900000-0000-7000-8000-000000000001", "tag.buildkite.com/queue": "k8s" },
            "annotations": { SAFE: "false", "buildkite.com/pipeline-slug": "app" },
        });
        let mut whole = metadata.clone();
        whole["name"] = json!("buildkite-01900000");
        let job: Job = serde_json::from_value(json!({
            "metadata": whole,
            "spec": { "backoffLimit": 0, "template": { "metadata": metadata, "spec": spec } },
        }))?;
        ns.api().create(&PostParams::default(), &job).await?;
        let pod = ns
            .eventually("the Job has its pod", SOON, async || {
                ns.pods("buildkite.com/job-uuid").await?.into_iter().find(|pod| pod.ready).context("not yet")
            })
            .await?;
        // What Buildkite itself tells Cluster Autoscaler.
        ensure_told(&pod, ALL_BUT_SAFE, &[(SAFE, "false")])?;
        held_as(ns, &pod.name, "PodBusy").await?;
        ns.throughout("it is held", Duration::from_secs(1), async || held_as(ns, &pod.name, "PodBusy").await.map(drop))
            .await?;
        ns.cluster().finish_pod(ns.name(), &pod.name, 0)?;
        ended_passes(ns, &pod, "Succeeded").await
    });
}
