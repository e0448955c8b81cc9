//! `POST /mutate/busy`: puts a pod's first hints into its own create.
//!
//! Adds only what is absent, to a pod that a rule selects; a request that is odd in any way is let through as it is.

use std::collections::{BTreeMap, BTreeSet};

use belay_decide::busy::{Seen, create};
use belay_decide::ownership::Key;
use kube::api::DynamicObject;
use serde_json::json;

use super::Handlers;
use super::review::{Answer, Request};
use crate::cluster::project_busy;

/// Answers one pod creation.
pub fn answer(handlers: &Handlers, request: &Request<'_>) -> Answer {
    let adds = stamp(handlers, request).unwrap_or_default();
    if adds.is_empty() || !has_room(request) {
        return Answer::default();
    }
    if request.dry_run != Some(true) {
        handlers.metrics.stamped();
    }
    Answer { patch: patch(request, &adds), ..Answer::default() }
}

fn stamp(handlers: &Handlers, request: &Request<'_>) -> Option<BTreeMap<Key, String>> {
    let mut pod: DynamicObject = serde_json::from_str(request.object?.get()).ok()?;
    let namespace = request.namespace.as_deref().or(pod.metadata.namespace.as_deref())?.to_owned();
    if handlers.settings.load().rules.excluded_namespaces.contains(&namespace) {
        return None;
    }
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let number = handlers.selects.iter().position(|selects| selects.matches(&namespace, &labels))?;
    let rule = handlers.index.rules().get(number)?;
    // A pod that the server is to name has no owner's state that speaks of it by name, and no linked pods.
    pod.metadata.namespace = Some(namespace);
    let now = handlers.clock.now().wall;
    let pod = project_busy::pod(&pod, rule, now);
    Some(handlers.index.owner_of_new(rule, &pod, |owner| {
        create::first_hints(rule, &Seen { pod: &pod, owner, linked: Vec::new() }, now)
    }))
}

/// The API server refuses annotations of more than 256 KiB in all (`apimachinery/pkg/api/validation`,
/// `TotalAnnotationSizeLimitB`), and with them the pod. Ours are less than 4 KiB.
const ROOM_FOR_ANNOTATIONS: usize = 252 << 10;

fn has_room(request: &Request<'_>) -> bool {
    // Only a pod that is as large at all is looked at again.
    let Some(object) = request.object.filter(|object| object.get().len() > ROOM_FOR_ANNOTATIONS) else { return true };
    let pod: Option<DynamicObject> = serde_json::from_str(object.get()).ok();
    let annotations = pod.and_then(|pod| pod.metadata.annotations).unwrap_or_default();
    annotations.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() <= ROOM_FOR_ANNOTATIONS
}

/// JSON Patch operations; the maps are made where they are absent or null.
fn patch(request: &Request<'_>, adds: &BTreeMap<Key, String>) -> Option<Vec<u8>> {
    let pod: DynamicObject = serde_json::from_str(request.object?.get()).ok()?;
    let field = |key: &Key| match key {
        Key::Label(_) => "labels",
        Key::Annotation(_) => "annotations",
    };
    let present = [("labels", pod.metadata.labels.is_some()), ("annotations", pod.metadata.annotations.is_some())];
    let used: BTreeSet<_> = adds.keys().map(field).collect();
    let mut operations: Vec<_> = present
        .iter()
        .filter(|(name, present)| !present && used.contains(name))
        .map(|(name, _)| json!({ "op": "add", "path": format!("/metadata/{name}"), "value": {} }))
        .collect();
    operations.extend(adds.iter().map(|(key, value)| {
        let name = key.name().replace('~', "~0").replace('/', "~1");
        json!({ "op": "add", "path": format!("/metadata/{}/{name}", field(key)), "value": value })
    }));
    serde_json::to_vec(&operations).ok()
}
