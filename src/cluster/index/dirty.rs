//! Which workloads, pods, Evictions and policies (of which namespaces) changed since the controller last looked.
//!
//! A set, not a queue: a workload that changes a hundred times while the controller is busy is looked at once,
//! and memory is bounded by the number of workloads.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A Deployment by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

impl WorkloadKey {
    /// The Deployment of that name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for WorkloadKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

impl PodKey {
    /// The pod of that name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The changed ones.
#[derive(Clone, Debug, Default)]
pub struct Dirty {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    workloads: Mutex<BTreeSet<WorkloadKey>>,
    policies: Mutex<BTreeSet<Box<str>>>,
    pods: Mutex<BTreeSet<PodKey>>,
    requests: Mutex<BTreeSet<PodKey>>,
    workloads_changed: Notify,
    policies_changed: Notify,
    pods_changed: Notify,
    requests_changed: Notify,
}

impl Dirty {
    /// This workload is to be looked at.
    pub fn workload(&self, key: WorkloadKey) {
        self.inner.workloads.lock().insert(key);
        self.inner.workloads_changed.notify_one();
    }

    /// This pod is to be looked at.
    pub fn pod(&self, key: PodKey) {
        self.inner.pods.lock().insert(key);
        self.inner.pods_changed.notify_one();
    }

    /// The Evictions of the pod of this name are to be looked at.
    pub fn request(&self, key: PodKey) {
        self.inner.requests.lock().insert(key);
        self.inner.requests_changed.notify_one();
    }

    /// Takes the pods of all changed Evictions.
    pub fn take_requests(&self) -> BTreeSet<PodKey> {
        std::mem::take(&mut *self.inner.requests.lock())
    }

    /// Waits until an Eviction changed.
    pub async fn requests_changed(&self) {
        self.inner.requests_changed.notified().await;
    }

    /// The policies of this namespace are to be looked at.
    pub fn policies(&self, namespace: &str) {
        let mut policies = self.inner.policies.lock();
        if !policies.contains(namespace) {
            policies.insert(namespace.into());
        }
        self.inner.policies_changed.notify_one();
    }

    /// Takes all changed workloads.
    pub fn take_workloads(&self) -> BTreeSet<WorkloadKey> {
        std::mem::take(&mut *self.inner.workloads.lock())
    }

    /// Takes all changed pods.
    pub fn take_pods(&self) -> BTreeSet<PodKey> {
        std::mem::take(&mut *self.inner.pods.lock())
    }

    /// Waits until a pod changed.
    pub async fn pods_changed(&self) {
        self.inner.pods_changed.notified().await;
    }

    /// Takes all namespaces whose policies are to be looked at.
    pub fn take_policies(&self) -> BTreeSet<Box<str>> {
        std::mem::take(&mut *self.inner.policies.lock())
    }

    /// Waits until a workload changed.
    pub async fn workloads_changed(&self) {
        self.inner.workloads_changed.notified().await;
    }

    /// Waits until policies are to be looked at.
    pub async fn policies_changed(&self) {
        self.inner.policies_changed.notified().await;
    }
}
