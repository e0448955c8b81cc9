//! One test's own part of the cluster: a namespace, nodes that only its pods go to, and what is done there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, Node, Pod, PodSpec, Service, Toleration};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::waiting;
use super::workload::{Web, merge};
use crate::load::Load;
use crate::node_agent::SIMULATED;
use crate::service_proxy::SERVICE_NAME;
use crate::tools::{Running, Tool};

/// Label and taint of the nodes of one test: its pods select them, and no others are let in.
pub(super) const OWNER: &str = "test.belay.dev/namespace";

/// New nodes are Ready within a second; a busy machine may take longer.
const NODES_WITHIN: Duration = Duration::from_secs(30);

/// How long the namespace of a finished test may take to go before its nodes are removed all the same.
const CLEAN_UP_WITHIN: Duration = Duration::from_mins(1);

/// How often a namespace that is going is looked at; nobody waits for it.
const CLEAN_UP_POLL: Duration = Duration::from_millis(500);

/// A namespace of a test, with simulated nodes of its own.
pub struct Namespace {
    cluster: Cluster,
    name: String,
    nodes: AtomicUsize,
}

impl Namespace {
    pub(super) fn new(cluster: Cluster, name: String) -> Self {
        Self { cluster, name, nodes: AtomicUsize::new(0) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster it is in.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A cluster administrator's client.
    pub fn client(&self) -> kube::Client {
        self.cluster.client()
    }

    /// Typed access to objects in it.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(), &self.name)
    }

    /// Adds simulated nodes for this test's pods alone; returns their names once they are Ready.
    ///
    /// # Errors
    /// When they do not become Ready.
    pub async fn nodes(&self, count: usize) -> anyhow::Result<Vec<String>> {
        self.nodes_with(count, &json!({})).await
    }

    /// As [`Namespace::nodes`], with this merged into each Node: labels, or a capacity of its own.
    ///
    /// # Errors
    /// When they do not become Ready.
    pub async fn nodes_with(&self, count: usize, more: &Value) -> anyhow::Result<Vec<String>> {
        let first = self.nodes.fetch_add(count, Ordering::Relaxed);
        let names: Vec<String> =
            (first + 1..=first + count).map(|number| format!("{}-node-{number}", self.name)).collect();
        let mut node = json!({
            "metadata": { "labels": { OWNER: self.name } },
            "spec": { "taints": [{ "key": OWNER, "value": self.name, "effect": "NoSchedule" }] },
        });
        merge(&mut node, more);
        add_nodes(&self.cluster, &names, &node).await?;
        Ok(names)
    }

    /// Makes pods of your own go to this test's nodes.
    pub fn pin(&self, pod: &mut PodSpec) {
        let selector = pod.node_selector.get_or_insert_default();
        selector.insert(OWNER.into(), self.name.clone());
        pod.tolerations.get_or_insert_default().push(Toleration {
            key: Some(OWNER.into()),
            operator: Some("Equal".into()),
            value: Some(self.name.clone()),
            effect: Some("NoSchedule".into()),
            ..Toleration::default()
        });
    }

    /// A web server's Deployment and Service, to be described further and created.
    pub fn web(&self, name: &str) -> Web<'_> {
        Web::new(self, name)
    }

    /// `kubectl apply -f -` in this namespace.
    ///
    /// # Errors
    /// When kubectl refuses it, with what it said.
    pub async fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        self.kubectl(["apply", "-f", "-"]).stdin(yaml).ok().await.map(drop)
    }

    /// `kubectl get RESOURCE NAME -o json`.
    ///
    /// # Errors
    /// When there is no such object.
    pub async fn get(&self, resource: &str, name: &str) -> anyhow::Result<Value> {
        let text = self.kubectl(["get", resource, name, "-o", "json"]).ok().await?;
        serde_json::from_str(&text).context("kubectl wrote no JSON")
    }

    /// `kubectl get RESOURCE -o json`, its items.
    ///
    /// # Errors
    /// When there is no such resource.
    pub async fn list(&self, resource: &str) -> anyhow::Result<Vec<Value>> {
        let text = self.kubectl(["get", resource, "-o", "json"]).ok().await?;
        let mut list: Value = serde_json::from_str(&text).context("kubectl wrote no JSON")?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            other => bail!("kubectl listed no items but {other}"),
        }
    }

    /// kubectl in this namespace.
    pub fn kubectl<S: AsRef<str>>(&self, args: impl IntoIterator<Item = S>) -> Tool {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        let here = ["--namespace".to_owned(), self.name.clone()];
        self.cluster.kubectl(here.into_iter().chain(args))
    }

    /// `kubectl cordon`.
    ///
    /// # Errors
    /// When kubectl fails.
    pub async fn cordon(&self, node: &str) -> anyhow::Result<()> {
        self.kubectl(["cordon", node]).ok().await.map(drop)
    }

    /// `kubectl uncordon`.
    ///
    /// # Errors
    /// When kubectl fails.
    pub async fn uncordon(&self, node: &str) -> anyhow::Result<()> {
        self.kubectl(["uncordon", node]).ok().await.map(drop)
    }

    /// Starts a real `kubectl drain` with `--ignore-daemonsets --delete-emptydir-data` and these arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn drain(&self, node: &str, args: &[&str]) -> anyhow::Result<Running> {
        let fixed = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data"];
        self.cluster.kubectl(fixed.iter().chain(args)).start().await
    }

    /// Starts requests to a Service of this namespace.
    ///
    /// # Errors
    /// As [`Load::start`].
    pub async fn load(&self, service: &str, per_second: u32) -> anyhow::Result<Load> {
        let network = self.cluster.network().clone();
        Load::start(self.client(), network, &self.name, service, per_second).await
    }

    /// Waits until `condition` is Ok; an error means "not yet, because".
    ///
    /// # Errors
    /// When it was not Ok `within` that time.
    pub async fn eventually<T>(
        &self,
        what: &str,
        within: Duration,
        condition: impl AsyncFnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        waiting::eventually(what, within, condition).await
    }

    /// Watches that `condition` stays Ok for that long.
    ///
    /// # Errors
    /// As soon as it is not.
    pub async fn throughout(
        &self,
        what: &str,
        during: Duration,
        condition: impl AsyncFnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        waiting::throughout(what, during, condition).await
    }

    /// Makes a Service with this port whose one endpoint is the answered listener: for a server that a test runs itself
    /// and the API server reaches by the Service's name.
    ///
    /// # Errors
    /// When the API server refuses it, or the system the listener.
    pub async fn endpoint(&self, service: &str, port: u16) -> anyhow::Result<TcpListener> {
        // Never given back: it is the test's for the life of the cluster.
        let address = self.cluster.network().allocate()?;
        let listener = TcpListener::bind((self.cluster.network().local(address), 0)).await?;
        let object: Service = serde_json::from_value(json!({
            "metadata": { "name": service },
            "spec": { "ports": [{ "port": port }] },
        }))?;
        self.api().create(&PostParams::default(), &object).await?;
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": { "name": service, "labels": { SERVICE_NAME: service } },
            "addressType": "IPv4",
            "ports": [{ "name": "", "port": listener.local_addr()?.port() }],
            "endpoints": [{ "addresses": [address.to_string()], "conditions": { "ready": true } }],
        }))?;
        self.api().create(&PostParams::default(), &slice).await?;
        Ok(listener)
    }

    /// Lets the namespace and its nodes go, in the background: the next test need not wait.
    pub async fn clean_up(&self) {
        let namespaces: Api<NamespaceObject> = Api::all(self.client());
        let _ = namespaces.delete(&self.name, &DeleteParams::default()).await;
        // The namespace takes no new pods from now on; those that are left need no grace.
        let pods: Api<Pod> = self.api();
        let _ = pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await;
        let nodes = Api::all(self.client());
        self.cluster.runtime().spawn(remove_nodes_after(namespaces, nodes, self.name.clone()));
    }
}

/// Removes a test's nodes once its namespace is gone, or has taken too long: pods end only while their node is there.
async fn remove_nodes_after(namespaces: Api<NamespaceObject>, nodes: Api<Node>, name: String) {
    let began = Instant::now();
    while began.elapsed() < CLEAN_UP_WITHIN && !matches!(namespaces.get_opt(&name).await, Ok(None)) {
        tokio::time::sleep(CLEAN_UP_POLL).await;
    }
    let owned = ListParams::default().labels(&format!("{OWNER}={name}"));
    let _ = nodes.delete_collection(&DeleteParams::default(), &owned).await;
}

/// Adds simulated nodes, with this merged into each, and waits until pods can be scheduled to them.
pub(super) async fn add_nodes(cluster: &Cluster, names: &[String], more: &Value) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client());
    for (index, name) in names.iter().enumerate() {
        let zone = ["zone-a", "zone-b", "zone-c"][index % 3];
        let mut node = json!({
            "metadata": {
                "name": name,
                "labels": {
                    SIMULATED: "true",
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "topology.kubernetes.io/zone": zone,
                },
            },
        });
        merge(&mut node, more);
        nodes
            .create(&PostParams::default(), &serde_json::from_value(node)?)
            .await
            .with_context(|| format!("cannot create the node {name}"))?;
    }
    waiting::eventually("new nodes to be Ready", NODES_WITHIN, async || {
        for name in names {
            ensure_schedulable(&nodes.get(name).await?)?;
        }
        Ok(())
    })
    .await
}

fn ensure_schedulable(node: &Node) -> anyhow::Result<()> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let ready =
        conditions.unwrap_or_default().iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ensure!(ready, "the node {} is not Ready", node.name_any());
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let tainted = taints.unwrap_or_default().iter().find(|taint| taint.key.starts_with("node.kubernetes.io/"));
    ensure!(tainted.is_none(), "the node {} has the taint {tainted:?}", node.name_any());
    Ok(())
}
