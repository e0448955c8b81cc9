//! One simulated Node: its status, its lease and its kubelet's API.
//!
//! The node-lifecycle-controller of the real controller-manager believes a Node while its Lease is renewed and removes
//! the `not-ready` taint that every new Node carries once the Ready condition is true.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{Host, kubelet};
use crate::clock;

/// A kubelet's own figures: it renews its lease every 10 s, and the lease lasts 40 s.
const RENEW_EVERY: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;

/// After a failed write; the API server is usually being restarted by a test then.
const RETRY: Duration = Duration::from_millis(500);

/// Where kubelets keep their leases.
const LEASES: &str = "kube-node-lease";

/// Plays one Node; dropping it is the machine's sudden end.
pub(super) struct Worker {
    uid: String,
    address: Ipv4Addr,
    host: Arc<Host>,
    latest: watch::Sender<Node>,
    _tasks: [AbortOnDropHandle<()>; 3],
}

impl Worker {
    pub(super) fn start(host: Arc<Host>, node: Node) -> anyhow::Result<Self> {
        let address = host.network.allocate()?;
        let kubelet = kubelet::serve(host.clone(), address)?;
        let uid = node.uid().unwrap_or_default();
        let lease = renew_lease(host.client.clone(), node.name_any(), uid.clone());
        let (latest, updates) = watch::channel(node);
        let status = keep_status(host.client.clone(), updates, address);
        Ok(Self {
            uid,
            address,
            host,
            latest,
            _tasks: [
                AbortOnDropHandle::new(tokio::spawn(lease)),
                AbortOnDropHandle::new(tokio::spawn(status)),
                kubelet,
            ],
        })
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    pub(super) fn is_for(&self, node: &Node) -> bool {
        node.metadata.uid.as_deref() == Some(self.uid.as_str())
    }

    /// The node's InternalIP.
    pub(super) fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub(super) fn update(&self, node: Node) {
        self.latest.send_replace(node);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.host.network.release(self.address);
    }
}

/// Writes the status whenever it is not what it should be: at first, and after the node-lifecycle-controller has set
/// the Ready condition to Unknown during an outage.
async fn keep_status(client: kube::Client, mut updates: watch::Receiver<Node>, address: Ipv4Addr) {
    let nodes: Api<Node> = Api::all(client);
    loop {
        let patch = {
            let node = updates.borrow_and_update();
            missing_status(&node, address).map(|patch| (node.name_any(), patch))
        };
        if let Some((name, patch)) = patch
            && let Err(error) = nodes.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch)).await
        {
            tracing::debug!(node = name, %error, "cannot write a node's status");
            tokio::time::sleep(RETRY).await;
            continue;
        }
        if updates.changed().await.is_err() {
            return;
        }
    }
}

/// The patch that makes a Node's status whole; `None` when it is. A capacity that the Node's creator set is kept.
fn missing_status(node: &Node, address: Ipv4Addr) -> Option<Value> {
    let status = node.status.clone().unwrap_or_default();
    let ready =
        status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let own_address = status.addresses.iter().flatten().any(|known| known.address == address.to_string());
    if ready && own_address && status.capacity.is_some() {
        return None;
    }
    let capacity = match status.capacity {
        Some(capacity) => json!(capacity),
        None => json!({ "cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi" }),
    };
    let allocatable = status.allocatable.map_or_else(|| capacity.clone(), |given| json!(given));
    let now = clock::time();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    Some(json!({
        "metadata": { "uid": node.metadata.uid },
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "addresses": [
                { "type": "InternalIP", "address": address.to_string() },
                { "type": "Hostname", "address": node.name_any() },
            ],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": kubelet::PORT } },
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux",
                "kubeletVersion": "v1.37.2", "kubeProxyVersion": "", "containerRuntimeVersion": "belay://simulated",
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "simulated",
            },
        },
    }))
}

async fn renew_lease(client: kube::Client, node: String, uid: String) {
    let leases: Api<Lease> = Api::namespaced(client, LEASES);
    loop {
        let pause = match renew_once(&leases, &node, &uid).await {
            Ok(()) => RENEW_EVERY,
            Err(error) => {
                tracing::debug!(node, %error, "cannot renew a node's lease");
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn renew_once(leases: &Api<Lease>, node: &str, uid: &str) -> kube::Result<()> {
    let spec = json!({
        "holderIdentity": node,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": clock::micro_time(),
    });
    let patch = Patch::Merge(json!({ "spec": spec }));
    match leases.patch(node, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => return other.map(drop),
    }
    // Owned by the Node, so that the garbage collector removes it with the Node.
    let lease = json!({
        "metadata": {
            "name": node,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid }],
        },
        "spec": spec,
    });
    let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
    leases.create(&PostParams::default(), &lease).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(status: &Value) -> Node {
        serde_json::from_value(json!({ "metadata": { "name": "n", "uid": "u" }, "status": status })).unwrap()
    }

    #[test]
    fn a_whole_status_is_left_alone_and_any_other_made_whole() {
        let address = Ipv4Addr::new(10, 1, 1, 1);
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        let unknown = json!([{ "type": "Ready", "status": "Unknown" }]);
        let ours = json!([{ "type": "InternalIP", "address": "10.1.1.1" }]);
        let capacity = json!({ "cpu": "2" });
        for (why, status, whole) in [
            ("new", json!({}), false),
            ("not ready", json!({ "conditions": unknown, "addresses": ours, "capacity": capacity }), false),
            ("no capacity", json!({ "conditions": ready, "addresses": ours }), false),
            ("stale address", json!({ "conditions": ready, "capacity": capacity }), false),
            ("whole", json!({ "conditions": ready, "addresses": ours, "capacity": capacity }), true),
        ] {
            assert_eq!(missing_status(&node(&status), address).is_none(), whole, "{why}");
        }
    }

    #[test]
    fn a_given_capacity_is_kept() {
        let patch = missing_status(&node(&json!({ "capacity": { "cpu": "2" } })), Ipv4Addr::new(10, 1, 1, 1)).unwrap();
        assert_eq!(patch["status"]["capacity"], json!({ "cpu": "2" }));
        assert_eq!(patch["status"]["allocatable"], json!({ "cpu": "2" }));
    }
}
