//! `POST /mutate/bindings`: puts a pod's deletion cost into its own binding.
//!
//! A review of `pods/binding` names the node, which no pod's creation does, and annotations on a Binding land on the pod
//! in the write that binds it: a value that costs no write of its own. They would also replace what stands there, and the
//! review does not show the pod, so where a value is to be set the pod is read live first, and its version goes into the
//! Binding: what somebody writes between that read and the bind makes the bind fail with a conflict (`BindingREST` in
//! `pkg/registry/core/pod/storage/storage.go` takes it as a precondition), which the scheduler tries again, and not be
//! overwritten. Where anything is odd, late or unknown, the pod is bound as it is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use belay_decide::cost::bind_annotations;
use belay_decide::cost::cluster::KnownPod;
use belay_decide::steer::Add;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Handlers;
use super::busy::has_room;
use super::live::LiveReader;
use super::pods::encode;
use super::review::{Answer, Request};
use crate::cluster::costs::Costs;
use crate::cluster::project_cost::{self, LeftOut};
use crate::cluster::subset::PodSubset;
use crate::cluster::watch::Health;

/// So many pods are read at once. A scheduler binds some hundred a second, and a read takes milliseconds.
const MOST_READS: usize = 64;

/// So long pods are bound as they are after a read failed: an API server in trouble needs no more to do, and no bind
/// should wait for it again and again.
const REST: Duration = Duration::from_secs(5);

/// What the endpoint works with.
pub struct BindTime {
    /// The cache.
    pub costs: Costs,
    /// The watches that fill it.
    pub health: Vec<Health>,
    /// Pods that get no value.
    pub left_out: LeftOut,
    reads: Semaphore,
    resting_until: Mutex<Option<Instant>>,
}

impl BindTime {
    /// The endpoint over this cache, which these watches fill.
    pub fn new(costs: Costs, health: Vec<Health>, left_out: LeftOut) -> Self {
        Self { costs, health, left_out, reads: Semaphore::new(MOST_READS), resting_until: Mutex::default() }
    }

    /// What the cache says is so now, as far as anybody knows.
    fn is_trusted(&self) -> bool {
        self.health.iter().all(|health| health.is_synced() && health.lasting_trouble().is_none())
    }

    /// Reads a pod live; absent where it is gone, or cannot be read soon enough.
    async fn read(&self, live: &LiveReader, namespace: &str, name: &str) -> Option<PodSubset> {
        if self.resting_until.lock().is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let _permit = self.reads.try_acquire().ok()?;
        match live.pod_itself(namespace, name).await {
            Ok(pod) => pod,
            Err(problem) => {
                *self.resting_until.lock() = Some(Instant::now() + REST);
                tracing::warn!(%namespace, pod = %name, %problem, "pods are bound without a deletion cost for some seconds");
                None
            }
        }
    }
}

#[derive(Deserialize)]
struct Binding<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    target: Target<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow, default)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resource_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    annotations: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
}

#[derive(Deserialize)]
struct Target<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// Answers one bind.
pub async fn answer(handlers: &Handlers, request: &Request<'_>) -> Answer {
    let patch = stamp(handlers, request).await.and_then(|adds| encode(&adds));
    Answer { patch, ..Answer::default() }
}

async fn stamp(handlers: &Handlers, request: &Request<'_>) -> Option<Vec<Add>> {
    let bind_time = handlers.bind_time.as_ref()?;
    if !bind_time.is_trusted() {
        return None;
    }
    let binding: Binding<'_> = serde_json::from_str(request.object?.get()).ok()?;
    let (namespace, name, node) = (request.namespace.as_deref()?, request.name.as_deref()?, &*binding.target.name);
    if binding.target.kind.as_deref().is_some_and(|kind| !matches!(kind, "" | "Node")) {
        return None;
    }
    // A pod that is not known yet may be of any ReplicaSet.
    let is_worth_asking = bind_time.costs.read(|cluster| {
        let known = cluster.known_set_of(namespace, name);
        known.is_none_or(|set| set.is_some_and(|set| cluster.may_have_value(set, node)))
    });
    if !is_worth_asking || bind_time.left_out.rules.excludes(namespace) {
        return None;
    }
    let pod = bind_time.read(handlers.live.as_ref()?, namespace, name).await?;
    let now = handlers.clock.now().wall;
    let known = project_cost::pod(&pod, &bind_time.left_out, now);
    let is_other = |asked: Option<&str>, own: &str| asked.is_some_and(|asked| !asked.is_empty() && asked != own);
    let Meta { uid, resource_version, .. } = &binding.metadata;
    if is_other(uid.as_deref(), &known.pod.uid) || is_other(resource_version.as_deref(), &known.resource_version) {
        return None;
    }
    let is_dry_run = request.dry_run == Some(true);
    // Decided and noted in one step: of binds at the same moment each reckons with the others.
    let adds = bind_time.costs.write(|cluster| {
        let value = cluster.value_at_bind(&known.pod, node, now).filter(|_| has_room(&pod.metadata));
        let adds = value.and_then(|value| patch(&known, &binding.metadata, value));
        if !is_dry_run {
            cluster.assume(&known.pod, node, value.filter(|_| adds.is_some()), now);
        }
        adds
    });
    if adds.is_some() && !is_dry_run {
        handlers.metrics.cost_stamp();
    }
    adds
}

/// What to add to the Binding; nothing where the pod carries a value, or the Binding such annotations already.
fn patch(known: &KnownPod, binding: &Meta<'_>, value: i32) -> Option<Vec<Add>> {
    let annotations = bind_annotations(value, known.managed.as_deref());
    let taken = |key: &str| binding.annotations.as_ref().is_some_and(|present| present.contains_key(key));
    if known.present.is_some() || annotations.keys().any(|key| taken(key)) {
        return None;
    }
    let version = Add { path: "/metadata/resourceVersion".to_owned(), value: json!(known.resource_version) };
    let map = Add { path: "/metadata/annotations".to_owned(), value: json!({}) };
    let map = binding.annotations.is_none().then_some(map);
    let values = annotations.into_iter().map(|(key, value)| {
        let key = key.replace('~', "~0").replace('/', "~1");
        Add { path: format!("/metadata/annotations/{key}"), value: json!(value) }
    });
    Some([version].into_iter().chain(map).chain(values).collect())
}
