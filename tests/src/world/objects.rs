//! Objects that no workload of a test's own kind makes: bare pods, custom resources, and who wrote to them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};

use super::belay;
use super::cluster::Cluster;
use super::namespace::Namespace;
use super::workload::{PodInfo, merge};
use crate::audit::Write;
use crate::node_agent::IDLE_IMAGE;

/// A definition is served within a second or two.
const ESTABLISHED_WITHIN: &str = "--timeout=60s";

impl Cluster {
    /// Installs CustomResourceDefinitions, and waits until they are served. Again and at once from several tests does
    /// no harm.
    ///
    /// # Errors
    /// When the API server refuses them.
    pub async fn crds(&self, yaml: &str) -> anyhow::Result<()> {
        // Held all the while: two at once would both find nothing and both create.
        let mut installed = self.definitions().lock().await;
        if installed.contains(yaml) {
            return Ok(());
        }
        self.kubectl(["apply", "-f", "-"]).stdin(yaml).ok().await?;
        let wait = ["wait", "--for=condition=Established", ESTABLISHED_WITHIN, "-f", "-"];
        self.kubectl(wait).stdin(yaml).ok().await?;
        installed.insert(yaml.to_owned());
        Ok(())
    }
}

impl Namespace {
    /// Access to the objects of a custom resource.
    pub fn custom(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client(), self.name(), resource)
    }

    /// Creates a pod of this test's nodes, from a whole or partial object: without containers it has one that only
    /// runs.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn pod(&self, object: Value) -> anyhow::Result<PodInfo> {
        let mut whole = json!({
            "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "main", "image": IDLE_IMAGE }] },
        });
        merge(&mut whole, &object);
        let mut pod: Pod = serde_json::from_value(whole).context("no pod")?;
        self.pin(pod.spec.get_or_insert_default());
        Ok(self.api().create(&PostParams::default(), &pod).await?.into())
    }

    /// A pod as it is.
    ///
    /// # Errors
    /// When it is gone.
    pub async fn pod_info(&self, name: &str) -> anyhow::Result<PodInfo> {
        let pod = self.api::<Pod>().get(name).await.with_context(|| format!("pod {name}"))?;
        Ok(pod.into())
    }

    /// The pods that a label selector selects (all where it is empty), by name.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn pods(&self, selector: &str) -> anyhow::Result<Vec<PodInfo>> {
        let list = self.api::<Pod>().list(&ListParams::default().labels(selector)).await?;
        let mut pods: Vec<PodInfo> = list.items.into_iter().map(PodInfo::from).collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(pods)
    }

    /// Waits until a pod is Ready, and answers it.
    ///
    /// # Errors
    /// When it is not `within` that time.
    pub async fn ready(&self, pod: &str, within: Duration) -> anyhow::Result<PodInfo> {
        self.eventually(&format!("the pod {pod} to be Ready"), within, async || {
            let info = self.pod_info(pod).await?;
            ensure!(info.ready, "it is {:?}", info.pod.status.and_then(|status| status.phase));
            Ok(info)
        })
        .await
    }

    /// What Belay's programs wrote to the pods of this namespace, dry runs and refusals included, oldest first.
    ///
    /// # Errors
    /// When the audit log cannot be read.
    pub fn pod_writes(&self) -> anyhow::Result<Vec<Write>> {
        let mut writes = self.cluster().writes_by(belay::USERS)?;
        writes.retain(|write| write.namespace == self.name() && write.resource.split('/').next() == Some("pods"));
        Ok(writes)
    }
}
