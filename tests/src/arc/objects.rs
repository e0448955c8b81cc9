//! The objects that the Actions Runner Controller makes, with the labels, owners and finalizers that it gives them.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use super::Job;
use crate::world::merge;

/// Held until GitHub has let the runner go.
pub(super) const REGISTRATION: &str = "ephemeralrunner.actions.github.com/runner-registration-finalizer";

/// Held until the runner's pod was asked to go.
pub(super) const RESOURCES: &str = "ephemeralrunner.actions.github.com/finalizer";

/// The label of runner pods.
pub const RUNNER_LABEL: &str = "actions-ephemeral-runner";

/// The label of the pods in which the container hooks run a job's containers; its value is the runner pod's name.
pub const LINKED_LABEL: &str = "runner-pod";

const GROUP: &str = "actions.github.com";
const VERSION: &str = "v1alpha1";

/// The kind of a runner.
pub fn ephemeral_runners() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, "EphemeralRunner"))
}

/// The kind of a set of runners.
pub fn ephemeral_runner_sets() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, "EphemeralRunnerSet"))
}

/// Which generation of the listener reports jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// Up to 0.12: without `jobId`.
    Old,
    /// From 0.13 on.
    New,
}

impl Listener {
    /// What it merges into a runner when its job has started.
    pub(super) fn report(self, job: &Job) -> Value {
        let mut status = json!({
            "jobDisplayName": "build",
            "jobRepositoryName": "example/app",
            "jobRequestId": job.request_id,
            "jobWorkflowRef": "example/app/.github/workflows/ci.yaml@refs/heads/main",
            "workflowRunId": job.run_id,
        });
        if self == Self::New {
            status["jobId"] = json!(job.id);
        }
        json!({ "status": status })
    }
}

/// A set of runners that share a pod template.
#[derive(Debug, Clone)]
pub struct RunnerSet {
    pub(super) name: String,
    pub(super) uid: String,
    namespace: String,
    template: Value,
}

impl RunnerSet {
    /// `template` is merged into the pods' own: `{ "metadata": …, "spec": … }`.
    pub(super) fn described(namespace: &str, name: &str, pod_spec: &Value, template: &Value) -> Self {
        let mut whole = json!({ "metadata": {}, "spec": pod_spec });
        merge(&mut whole, template);
        Self { name: name.to_owned(), uid: String::new(), namespace: namespace.to_owned(), template: whole }
    }

    fn labels(&self, component: &str) -> Value {
        json!({
            "actions.github.com/organization": "example",
            "actions.github.com/scale-set-name": self.name,
            "actions.github.com/scale-set-namespace": self.namespace,
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/part-of": "gha-runner-scale-set",
            "app.kubernetes.io/version": "0.14.2",
        })
    }

    fn runner_spec(&self) -> Value {
        json!({
            "githubConfigUrl": "https://github.com/example",
            "githubConfigSecret": "github",
            "runnerScaleSetId": 1,
            "metadata": self.template["metadata"],
            "spec": self.template["spec"],
        })
    }

    pub(super) fn object(&self) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "EphemeralRunnerSet",
            "metadata": { "name": self.name, "labels": self.labels("runner-set") },
            "spec": { "patchID": 1, "replicas": 0, "ephemeralRunnerSpec": self.runner_spec() },
        })
    }

    pub(super) fn runner(&self) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "EphemeralRunner",
            "metadata": {
                "generateName": format!("{}-runner-", self.name),
                "labels": self.labels("runner"),
                "annotations": {
                    "actions.github.com/patch-id": "1",
                    "actions.github.com/runner-group-name": "Default",
                    "actions.github.com/runner-scale-set-name": self.name,
                },
                "finalizers": [RESOURCES, REGISTRATION],
                "ownerReferences": [owner_reference("EphemeralRunnerSet", &self.name, &self.uid)],
            },
            "spec": self.runner_spec(),
        })
    }
}

/// The pod of a runner: named as it, with its labels and annotations and the template's over them.
pub(super) fn pod_of(runner: &DynamicObject) -> anyhow::Result<Pod> {
    let template = &runner.data["spec"];
    let mut metadata = json!({
        "name": runner.name_any(),
        "labels": runner.labels(),
        "annotations": runner.annotations(),
        "ownerReferences":
            [owner_reference("EphemeralRunner", &runner.name_any(), &runner.uid().unwrap_or_default())],
    });
    merge(&mut metadata, &template["metadata"]);
    merge(&mut metadata, &json!({ "labels": { RUNNER_LABEL: "True", "pod-template-hash": "7f4c9d8b6" } }));
    Ok(serde_json::from_value(json!({ "metadata": metadata, "spec": template["spec"] }))?)
}

fn owner_reference(kind: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}
