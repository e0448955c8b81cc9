//! `POST /mutate/busy`: puts a pod's first hints into its own create, and names Belay as its responder, where the API
//! server serves that.
//!
//! Adds only what is absent, to a pod that a rule selects; a request that is odd in any way is let through as it is.

use std::collections::{BTreeMap, BTreeSet};

use belay_decide::busy::{Seen, create};
use belay_decide::lifecycle;
use belay_decide::ownership::Key;
use belay_decide::steer::Add;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use serde_json::json;

use super::Handlers;
use super::pods::encode;
use super::review::{Answer, Request};
use crate::cluster::project_busy::{self, MIRROR_ANNOTATION};

/// Answers one pod creation.
pub fn answer(handlers: &Handlers, request: &Request<'_>) -> Answer {
    let Some(pod) = read(request) else { return Answer::default() };
    let Some(number) = governing(handlers, &pod.metadata) else { return Answer::default() };
    let is_real = request.dry_run != Some(true);
    let marks = stamp(handlers, number, &pod).filter(|marks| !marks.is_empty() && has_room(&pod.metadata));
    let mut adds = marks.map(|marks| patch(&pod.metadata, &marks)).unwrap_or_default();
    if !adds.is_empty() && is_real {
        handlers.metrics.stamped();
    }
    if let Some(entry) = responder(handlers, &pod) {
        adds.push(entry);
        if is_real {
            handlers.metrics.given_responder();
        }
    }
    if adds.is_empty() {
        return Answer::default();
    }
    Answer { patch: encode(&adds), ..Answer::default() }
}

/// The number of the rule that governs a pod.
pub(super) fn governing(handlers: &Handlers, pod: &ObjectMeta) -> Option<usize> {
    let namespace = pod.namespace.as_ref()?;
    if handlers.settings.load().rules.excludes(namespace) {
        return None;
    }
    let none = BTreeMap::new();
    let labels = pod.labels.as_ref().unwrap_or(&none);
    handlers.selects.iter().position(|selects| selects.matches(namespace, labels))
}

/// The entry by which a governed pod names Belay as a responder.
fn responder(handlers: &Handlers, pod: &DynamicObject) -> Option<Add> {
    let is_mirror = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_ANNOTATION));
    if is_mirror || !handlers.is_responding() {
        return None;
    }
    // Without a spec that is a map there is nothing to add to.
    let spec = pod.data.get("spec")?.as_object()?;
    lifecycle::entry(spec.get("evictionResponders"), spec.get("schedulingGroup"))
}

/// The pod, with its namespace. What has no name, nor one to be made up, is none.
fn read(request: &Request<'_>) -> Option<DynamicObject> {
    let mut pod: DynamicObject = serde_json::from_str(request.object?.get()).ok()?;
    let meta = &mut pod.metadata;
    let is_named = meta.name.is_some() || meta.generate_name.is_some();
    if let Some(namespace) = request.namespace.as_deref() {
        meta.namespace = Some(namespace.to_owned());
    }
    is_named.then_some(pod)
}

fn stamp(handlers: &Handlers, number: usize, pod: &DynamicObject) -> Option<BTreeMap<Key, String>> {
    let rule = handlers.index.rules().get(number)?;
    // A pod that the server is to name has no owner's state that speaks of it by name, and no linked pods.
    let now = handlers.clock.now().wall;
    let pod = project_busy::pod(pod, rule, now);
    Some(handlers.index.owner_of_new(rule, &pod, |owner| {
        create::first_hints(rule, &Seen { pod: &pod, owner, linked: Vec::new() }, now)
    }))
}

/// The API server refuses annotations of more than 256 KiB in all (`apimachinery/pkg/api/validation`,
/// `TotalAnnotationSizeLimitB`), and with them the pod. Ours are less than 4 KiB.
const ROOM_FOR_ANNOTATIONS: usize = 252 << 10;

pub(super) fn has_room(meta: &ObjectMeta) -> bool {
    let annotations = meta.annotations.iter().flatten();
    annotations.map(|(key, value)| key.len() + value.len()).sum::<usize>() <= ROOM_FOR_ANNOTATIONS
}

/// What to add; the maps are made where they are absent or null.
fn patch(meta: &ObjectMeta, marks: &BTreeMap<Key, String>) -> Vec<Add> {
    let field = |key: &Key| match key {
        Key::Label(_) => "labels",
        Key::Annotation(_) => "annotations",
    };
    let present = [("labels", meta.labels.is_some()), ("annotations", meta.annotations.is_some())];
    let used: BTreeSet<_> = marks.keys().map(field).collect();
    let missing = present.iter().filter(|(name, present)| !present && used.contains(name));
    let maps = missing.map(|(name, _)| Add { path: format!("/metadata/{name}"), value: json!({}) });
    let values = marks.iter().map(|(key, value)| {
        let name = key.name().replace('~', "~0").replace('/', "~1");
        Add { path: format!("/metadata/{}/{name}", field(key)), value: json!(value) }
    });
    maps.chain(values).collect()
}
