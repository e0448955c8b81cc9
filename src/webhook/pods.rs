//! `POST /mutate/pods`: keeps a replacement off its victim's node while a handover runs.
//!
//! Nearly every pod takes the short way: it does not belong to a workload with a hold and is let through
//! untouched. A patch is made only of operations that cannot be refused; a request that is odd in any way is
//! let through as it is, since a refused patch would block the pod's creation.

use std::borrow::Cow;
use std::collections::BTreeMap;

use belay_decide::steer::{self, Add, TEMPLATE_HASH_LABEL};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::Handlers;
use super::review::{Answer, Request};
use crate::cluster::project_busy::MIRROR_ANNOTATION;
use crate::settings::Settings;

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow, default)]
    metadata: Meta<'a>,
    #[serde(borrow, default)]
    spec: Spec<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow, default)]
    labels: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    annotations: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    owner_references: Option<Vec<Owner<'a>>>,
}

#[derive(Deserialize)]
struct Owner<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    controller: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow, default)]
    affinity: Option<&'a RawValue>,
    #[serde(borrow, default)]
    node_name: Option<Cow<'a, str>>,
}

/// Answers one pod creation.
pub fn answer(handlers: &Handlers, request: &Request<'_>) -> Answer {
    let settings = handlers.settings.load();
    if !settings.hold_enabled || !handlers.is_synced() {
        return Answer::default();
    }
    let adds = request
        .object
        .and_then(|object| serde_json::from_str::<Pod<'_>>(object.get()).ok())
        .and_then(|pod| steer(handlers, &settings, request, &pod))
        .unwrap_or_default();
    if adds.is_empty() {
        return Answer::default();
    }
    handlers.metrics.steered();
    Answer { patch: encode(&adds), ..Answer::default() }
}

fn steer(handlers: &Handlers, settings: &Settings, request: &Request<'_>, pod: &Pod<'_>) -> Option<Vec<Add>> {
    let is_mirror = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_ANNOTATION));
    if is_mirror || pod.spec.node_name.is_some() {
        return None;
    }
    let owners = pod.metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == "ReplicaSet")?;
    let hash = pod.metadata.labels.as_ref()?.get(TEMPLATE_HASH_LABEL)?;
    let namespace = request.namespace.as_deref()?;
    let default = &settings.default_policy;
    let avoid =
        handlers.index.new_pod(namespace, &owner.name, hash, default, |workload| steer::avoid(workload, hash))?;
    let affinity = match pod.spec.affinity {
        Some(raw) => Some(serde_json::from_str(raw.get()).ok()?),
        None => None,
    };
    Some(steer::patch(&avoid, affinity.as_ref()))
}

/// The JSON Patch.
pub(super) fn encode(adds: &[Add]) -> Option<Vec<u8>> {
    let operations: Vec<_> =
        adds.iter().map(|add| json!({ "op": "add", "path": add.path, "value": add.value })).collect();
    serde_json::to_vec(&operations).ok()
}
