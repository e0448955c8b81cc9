//! `POST /mutate/bindings`: puts a pod's deletion cost into its own binding.
//!
//! A review of `pods/binding` names the node, which no pod's creation does, and annotations on a Binding land on the pod
//! in the write that binds it: a value that costs no write of its own. They would also replace what stands there, and the
//! review does not show the pod, so where a value is to be set the pod is read live first. A pod with a record of Belay's
//! is left to the controller, whose writes have preconditions. The bind is never held up for it: where anything is odd,
//! late or unknown, the pod is bound as it is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use belay_decide::cost::bind_annotations;
use belay_decide::cost::cluster::KnownPod;
use belay_decide::steer::Add;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Handlers;
use super::busy::has_room;
use super::pods::encode;
use super::review::{Answer, Request};
use crate::cluster::clock::Clock;
use crate::cluster::costs::Costs;
use crate::cluster::project_cost::{self, LeftOut};
use crate::cluster::watch::{Health, synced};

/// What changes together is ranked together.
const GATHER: Duration = Duration::from_millis(100);

/// What the endpoint works with.
pub struct BindTime {
    /// The cache.
    pub costs: Costs,
    /// The watches that fill it.
    pub health: Vec<Health>,
    /// Pods that get no value.
    pub left_out: LeftOut,
}

#[derive(Deserialize)]
struct Binding<'a> {
    #[serde(borrow, default)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    target: Target<'a>,
}

#[derive(Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default)]
    uid: Option<Cow<'a, str>>,
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
    if !bind_time.health.iter().all(Health::is_synced) {
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
    let live = handlers.live.as_ref()?.pod_itself(namespace, name).await;
    let pod = match live {
        Ok(pod) => pod?,
        Err(problem) => {
            tracing::debug!(%namespace, pod = %name, %problem, "bound without a deletion cost");
            return None;
        }
    };
    let now = handlers.clock.now().wall;
    let known = project_cost::pod(&pod, &bind_time.left_out, now);
    if binding.metadata.uid.as_deref().is_some_and(|uid| !uid.is_empty() && *uid != *known.pod.uid) {
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

/// What to add to the Binding; nothing where the pod or the Binding carries such annotations already.
fn patch(known: &KnownPod, binding: &Meta<'_>, value: i32) -> Option<Vec<Add>> {
    let annotations = bind_annotations(value);
    let taken = |key: &str| binding.annotations.as_ref().is_some_and(|present| present.contains_key(key));
    if known.managed.is_some() || known.present.is_some() || annotations.keys().any(|key| taken(key)) {
        return None;
    }
    let map = Add { path: "/metadata/annotations".to_owned(), value: json!({}) };
    let map = binding.annotations.is_none().then_some(map);
    let values = annotations.into_iter().map(|(key, value)| {
        let key = key.replace('~', "~0").replace('/', "~1");
        Add { path: format!("/metadata/annotations/{key}"), value: json!(value) }
    });
    Some(map.into_iter().chain(values).collect())
}

/// Keeps the ranks up to date by which binds are answered, until `stop`.
pub async fn keep_ranks(costs: Costs, health: Vec<Health>, stop: CancellationToken) {
    if !synced(&health, &stop).await {
        return;
    }
    loop {
        let now = Clock::wall();
        let next = costs.write(|cluster| {
            cluster.look(now);
            cluster.next_look(now)
        });
        let pause = Duration::try_from(next.duration_since(now)).unwrap_or_default();
        tokio::select! {
            () = costs.changed() => tokio::time::sleep(GATHER).await,
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
    }
}
