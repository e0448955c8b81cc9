//! `POST /mutate/pods`: keeps a replacement off its victim's node while a handover runs, and names Belay as a responder
//! of pods that are protected, where the API server serves that.
//!
//! Nearly every pod takes the short way: it does not belong to a workload with a hold, nor to a protected one, and is
//! let through untouched. A patch is made only of operations that cannot be refused; a request that is odd in any way is
//! let through as it is, since a refused patch would block the pod's creation.

use std::borrow::Cow;
use std::collections::BTreeMap;

use belay_decide::lifecycle;
use belay_decide::steer::{self, Add, TEMPLATE_HASH_LABEL};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Handlers;
use super::review::{Answer, Request};
use crate::cluster::project_busy::MIRROR_ANNOTATION;
use crate::settings::Settings;

/// What is read of a pod that is to be created.
#[derive(Debug, Deserialize)]
pub struct Pod<'a> {
    #[serde(borrow, default)]
    metadata: Meta<'a>,
    #[serde(borrow, default)]
    spec: Spec<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow, default)]
    labels: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    annotations: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    owner_references: Option<Vec<Owner<'a>>>,
}

#[derive(Debug, Deserialize)]
struct Owner<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    controller: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow, default)]
    affinity: Option<&'a RawValue>,
    #[serde(borrow, default)]
    node_name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    eviction_responders: Option<&'a RawValue>,
    #[serde(borrow, default)]
    scheduling_group: Option<&'a RawValue>,
}

/// Answers one pod creation.
pub fn answer(handlers: &Handlers, request: &Request<'_, Pod<'_>>) -> Answer {
    let settings = handlers.settings.load();
    if !settings.hold_enabled || !handlers.is_synced() {
        return Answer::default();
    }
    let Some(pod) = &request.object else { return Answer::default() };
    let mut adds = steer(handlers, &settings, request, pod).unwrap_or_default();
    if !adds.is_empty() {
        handlers.metrics.steered();
    }
    if let Some(entry) = responder(handlers, &settings, request, pod) {
        adds.push(entry);
        if request.dry_run != Some(true) {
            handlers.metrics.given_responder();
        }
    }
    if adds.is_empty() {
        return Answer::default();
    }
    Answer { patch: encode(&adds), ..Answer::default() }
}

impl Pod<'_> {
    fn is_mirror(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_ANNOTATION))
    }

    /// The names of its ReplicaSet and of that one's template.
    fn replica_set(&self) -> Option<(&str, &str)> {
        let owners = self.metadata.owner_references.as_ref()?;
        let owner = owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == "ReplicaSet")?;
        Some((&owner.name, self.metadata.labels.as_ref()?.get(TEMPLATE_HASH_LABEL)?))
    }
}

fn steer(handlers: &Handlers, settings: &Settings, request: &Request<'_, Pod<'_>>, pod: &Pod<'_>) -> Option<Vec<Add>> {
    if pod.is_mirror() || pod.spec.node_name.is_some() {
        return None;
    }
    let (set, hash) = pod.replica_set()?;
    let namespace = request.namespace.as_deref()?;
    let default = &settings.default_policy;
    let avoid = handlers.index.new_pod(namespace, set, hash, default, |workload| steer::avoid(workload, hash))?;
    let affinity = match pod.spec.affinity {
        Some(raw) => Some(serde_json::from_str(raw.get()).ok()?),
        None => None,
    };
    Some(steer::patch(&avoid, affinity.as_ref()))
}

/// The entry by which a protected pod names Belay as a responder.
fn responder(handlers: &Handlers, settings: &Settings, request: &Request<'_, Pod<'_>>, pod: &Pod<'_>) -> Option<Add> {
    if !handlers.is_responding() || pod.is_mirror() {
        return None;
    }
    let (set, hash) = pod.replica_set()?;
    let namespace = request.namespace.as_deref().filter(|namespace| !settings.rules.excludes(namespace))?;
    if !handlers.index.protects_new_pod(namespace, set, hash, &settings.default_policy) {
        return None;
    }
    let read = |raw: Option<&RawValue>| raw.map(|raw| serde_json::from_str::<Value>(raw.get())).transpose().ok();
    let (responders, group) = (read(pod.spec.eviction_responders)?, read(pod.spec.scheduling_group)?);
    lifecycle::entry(responders.as_ref(), group.as_ref())
}

/// The JSON Patch.
pub(super) fn encode(adds: &[Add]) -> Option<Vec<u8>> {
    let operations: Vec<_> =
        adds.iter().map(|add| json!({ "op": "add", "path": add.path, "value": add.value })).collect();
    serde_json::to_vec(&operations).ok()
}
