//! A web server's Deployment with its Service, and what became of its pods.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::namespace::Namespace;
use super::waiting;
use crate::node_agent::{READY_AFTER, WEB_IMAGE};

/// Where the played web server listens. Not 8080, which developers' machines often have in use on every address.
const PORT: i32 = 8090;

/// The Service's port.
const SERVICE_PORT: i32 = 80;

/// A last change of a Deployment that is about to be created.
type Edit = Box<dyn FnOnce(&mut Deployment)>;

/// A Deployment of web servers and a Service of the same name, before they are created.
pub struct Web<'a> {
    namespace: &'a Namespace,
    name: String,
    described: Value,
    edits: Vec<Edit>,
}

impl<'a> Web<'a> {
    pub(super) fn new(namespace: &'a Namespace, name: &str) -> Self {
        let labels = json!({ "app": name });
        let described = json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "containers": [{
                            "name": "web",
                            "image": WEB_IMAGE,
                            "ports": [{ "name": "http", "containerPort": PORT }],
                        }],
                    },
                },
            },
        });
        Self { namespace, name: name.to_owned(), described, edits: Vec::new() }
    }

    /// The namespace that it will be in.
    pub fn namespace(&self) -> &'a Namespace {
        self.namespace
    }

    /// Any other change of the Deployment, made after all others.
    #[must_use]
    pub fn edit(mut self, change: impl FnOnce(&mut Deployment) + 'static) -> Self {
        self.edits.push(Box::new(change));
        self
    }

    /// Merges this into the Deployment.
    #[must_use]
    fn with(mut self, patch: &Value) -> Self {
        merge(&mut self.described, patch);
        self
    }

    /// How many pods; 1 unless said.
    #[must_use]
    pub fn replicas(self, count: i32) -> Self {
        self.with(&json!({ "spec": { "replicas": count } }))
    }

    /// Strategy Recreate.
    #[must_use]
    pub fn recreate(self) -> Self {
        self.with(&json!({ "spec": { "strategy": { "type": "Recreate" } } }))
    }

    /// Strategy RollingUpdate with these numbers; without it they are the API server's defaults, 25% each.
    #[must_use]
    pub fn rolling(self, max_surge: i32, max_unavailable: i32) -> Self {
        let numbers = json!({ "maxSurge": max_surge, "maxUnavailable": max_unavailable });
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": numbers });
        self.with(&json!({ "spec": { "strategy": strategy } }))
    }

    /// How long a pod takes to become Ready and serve; at once unless said.
    #[must_use]
    pub fn ready_after(self, duration: Duration) -> Self {
        self.pod_annotation(READY_AFTER, &format!("{}ms", duration.as_millis()))
    }

    /// Pods that start and never become Ready.
    #[must_use]
    pub fn never_ready(self) -> Self {
        self.pod_annotation(READY_AFTER, "never")
    }

    /// How long a pod has to be Ready to count as available.
    #[must_use]
    pub fn min_ready_seconds(self, seconds: i32) -> Self {
        self.with(&json!({ "spec": { "minReadySeconds": seconds } }))
    }

    /// A preStop sleep: pods go on serving that long after they were asked to go, while endpoints catch up.
    #[must_use]
    pub fn pre_stop(mut self, seconds: i64) -> Self {
        let sleep = json!({ "preStop": { "sleep": { "seconds": seconds } } });
        self.described["spec"]["template"]["spec"]["containers"][0]["lifecycle"] = sleep;
        self
    }

    /// The pods' grace period; 30 s unless said.
    #[must_use]
    pub fn grace(self, seconds: i64) -> Self {
        let spec = json!({ "terminationGracePeriodSeconds": seconds });
        self.with(&json!({ "spec": { "template": { "spec": spec } } }))
    }

    /// After how long a rollout without progress counts as failed.
    #[must_use]
    pub fn progress_deadline(self, seconds: i32) -> Self {
        self.with(&json!({ "spec": { "progressDeadlineSeconds": seconds } }))
    }

    /// A Deployment that is paused from the start: it gets pods, but no rollouts.
    #[must_use]
    pub fn paused(self) -> Self {
        self.with(&json!({ "spec": { "paused": true } }))
    }

    /// An annotation of the Deployment.
    #[must_use]
    pub fn annotation(self, key: &str, value: &str) -> Self {
        self.with(&json!({ "metadata": { "annotations": { key: value } } }))
    }

    /// A label of the Deployment.
    #[must_use]
    pub fn label(self, key: &str, value: &str) -> Self {
        self.with(&json!({ "metadata": { "labels": { key: value } } }))
    }

    /// An annotation of the pods.
    #[must_use]
    pub fn pod_annotation(self, key: &str, value: &str) -> Self {
        let metadata = json!({ "annotations": { key: value } });
        self.with(&json!({ "spec": { "template": { "metadata": metadata } } }))
    }

    /// A label of the pods, besides `app`.
    #[must_use]
    pub fn pod_label(self, key: &str, value: &str) -> Self {
        let metadata = json!({ "labels": { key: value } });
        self.with(&json!({ "spec": { "template": { "metadata": metadata } } }))
    }

    /// Creates Deployment and Service.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub async fn create(self) -> anyhow::Result<Workload> {
        let name = self.name;
        let mut deployment: Deployment = serde_json::from_value(self.described)?;
        self.namespace.pin(deployment.spec.template.spec.get_or_insert_default());
        for edit in self.edits {
            edit(&mut deployment);
        }
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "selector": { "app": name },
                "ports": [{ "name": "http", "port": SERVICE_PORT, "targetPort": "http" }],
            },
        }))?;
        let workload = Workload::of(self.namespace, &name);
        let params = PostParams::default();
        workload
            .deployments
            .create(&params, &deployment)
            .await
            .with_context(|| format!("cannot create the Deployment {name}"))?;
        self.namespace
            .api::<Service>()
            .create(&params, &service)
            .await
            .with_context(|| format!("cannot create the Service {name}"))?;
        Ok(workload)
    }
}

/// Merges objects key by key; anything else replaces what was there. Unlike in a merge patch, null is a value.
pub fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

/// A Deployment whose pods have the label `app` with its name.
#[derive(Clone)]
pub struct Workload {
    name: String,
    deployments: Api<Deployment>,
    replica_sets: Api<ReplicaSet>,
    pods: Api<Pod>,
}

/// What a test wants to know of a pod.
#[derive(Debug, Clone)]
pub struct PodInfo {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The node it is bound to, empty before.
    pub node: String,
    /// Its `10.A.x.y` address, empty before it has one.
    pub address: String,
    /// Its Ready condition.
    pub ready: bool,
    /// Whether it was asked to go.
    pub terminating: bool,
    /// Its `pod-template-hash`, which says of which ReplicaSet it is.
    pub hash: String,
    /// The whole object.
    pub pod: Pod,
}

impl PodInfo {
    /// How often its containers were started again.
    pub fn restarts(&self) -> i32 {
        let statuses = self.pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        statuses.map(|status| status.restart_count).sum()
    }
}

impl From<Pod> for PodInfo {
    fn from(pod: Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            address: status.pod_ip.unwrap_or_default(),
            ready,
            terminating: pod.metadata.deletion_timestamp.is_some(),
            hash: pod.labels().get("pod-template-hash").cloned().unwrap_or_default(),
            pod,
        }
    }
}

impl Workload {
    /// The Deployment of that name, which may have been made by other means.
    pub fn of(namespace: &Namespace, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            deployments: namespace.api(),
            replica_sets: namespace.api(),
            pods: namespace.api(),
        }
    }

    /// The Deployment's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Deployment as it is.
    ///
    /// # Errors
    /// When it is gone.
    pub async fn deployment(&self) -> anyhow::Result<Deployment> {
        let found = self.deployments.get(&self.name).await;
        found.with_context(|| format!("Deployment {}", self.name))
    }

    /// Waits until the rollout is complete by the rule of `kubectl rollout status`, every replica available.
    ///
    /// # Errors
    /// When it is not `within` that time, with what is missing.
    pub async fn available(&self, within: Duration) -> anyhow::Result<Deployment> {
        let what = format!("Deployment {} to be available", self.name);
        waiting::eventually(&what, within, async || self.complete().await).await
    }

    /// The Deployment as it is.
    ///
    /// # Errors
    /// When it is gone, or its rollout is not complete by the rule of `kubectl rollout status`, with what is missing.
    pub async fn complete(&self) -> anyhow::Result<Deployment> {
        let deployment = self.deployment().await?;
        ensure_complete(&deployment)?;
        Ok(deployment)
    }

    /// Its pods: those that stay before those that go, each group by age and name.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn pods(&self) -> anyhow::Result<Vec<PodInfo>> {
        let list = self.pods.list(&self.mine()).await?;
        let mut pods: Vec<PodInfo> = list.items.into_iter().map(PodInfo::from).collect();
        pods.sort_by_key(|info| {
            let created = info.pod.metadata.creation_timestamp.clone();
            (info.terminating, created, info.name.clone())
        });
        Ok(pods)
    }

    /// Its one Ready pod.
    ///
    /// # Errors
    /// When there are none or several that were not asked to go, or the one is not Ready.
    pub async fn only_pod(&self) -> anyhow::Result<PodInfo> {
        let mut staying = self.pods().await?;
        staying.retain(|pod| !pod.terminating);
        let names: Vec<&str> = staying.iter().map(|pod| pod.name.as_str()).collect();
        match staying.as_slice() {
            [pod] if pod.ready => Ok(pod.clone()),
            [pod] => bail!("the pod {} is not Ready", pod.name),
            _ => bail!("not one pod of {} but {}: {names:?}", self.name, names.len()),
        }
    }

    /// Its ReplicaSets, oldest first.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn replica_sets(&self) -> anyhow::Result<Vec<ReplicaSet>> {
        let mut sets = self.replica_sets.list(&self.mine()).await?.items;
        sets.sort_by_key(|set| (set.metadata.creation_timestamp.clone(), set.name_any()));
        Ok(sets)
    }

    /// Merges this into the Deployment.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn patch(&self, patch: Value) -> anyhow::Result<Deployment> {
        let patched = self.deployments.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.with_context(|| format!("cannot patch the Deployment {}", self.name))
    }

    /// A release of the user's own: a change of the pods' template.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn release(&self, version: &str) -> anyhow::Result<Deployment> {
        let annotations = json!({ "example.com/version": version });
        self.patch(json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } })).await
    }

    /// Sets the number of replicas.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn scale(&self, replicas: i32) -> anyhow::Result<Deployment> {
        self.patch(json!({ "spec": { "replicas": replicas } })).await
    }

    fn mine(&self) -> ListParams {
        ListParams::default().labels(&format!("app={}", self.name))
    }
}

/// The rule of `kubectl rollout status` (kubectl, `pkg/polymorphichelpers/rollout_status.go`).
fn ensure_complete(deployment: &Deployment) -> anyhow::Result<()> {
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    let updated = status.updated_replicas.unwrap_or(0);
    ensure!(status.observed_generation >= deployment.metadata.generation, "its last change was not yet seen");
    ensure!(updated >= wanted, "{updated} of {wanted} replicas are of the newest template");
    let total = status.replicas.unwrap_or(0);
    ensure!(total <= updated, "{} old replicas are still there", total - updated);
    let available = status.available_replicas.unwrap_or(0);
    ensure!(available >= updated, "{available} of {updated} replicas are available");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_complete_when_every_replica_is_new_and_available() {
        let complete = json!({ "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2 });
        for (why, change, expected) in [
            ("complete", json!({}), true),
            ("stale status", json!({ "observedGeneration": 1 }), false),
            ("old ones left", json!({ "replicas": 3 }), false),
            ("too few new ones", json!({ "updatedReplicas": 1 }), false),
            ("not available yet", json!({ "availableReplicas": 1 }), false),
        ] {
            let mut status = complete.clone();
            merge(&mut status, &change);
            let deployment: Deployment = serde_json::from_value(json!({
                "metadata": { "generation": 2 },
                "spec": { "replicas": 2, "selector": {}, "template": {} },
                "status": status,
            }))
            .unwrap();
            assert_eq!(ensure_complete(&deployment).is_ok(), expected, "{why}");
        }
    }
}
