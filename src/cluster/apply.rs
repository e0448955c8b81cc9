//! The one applier of writes.
//!
//! Decisions return actions; this performs them, only while leading, at a bounded rate, each with the
//! preconditions that it carries (UID and resourceVersion), and counts what came of it. A sequence is abandoned
//! at its first write that fails: the next look at the cluster decides anew, from what is there then.

pub mod holds;
mod surges;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belay_decide::action::{Action, Event, ObjectRef, Reference};
use belay_decide::busy::GroupKind;
use belay_decide::handover::record;
use belay_decide::hold::hold_name;
use belay_decide::lifecycle::{self, Report};
use belay_decide::ownership::Key;
use belay_decide::view::Governor;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::lifecycle::v1alpha1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::runtime::events::{Event as KubeEvent, EventType, Recorder, Reporter};
use kube::{Api, Client};
use serde_json::json;
use thiserror::Error;
use tokio::sync::mpsc;

use super::lease::Leadership;
use super::owners::{Resources, Served};
use crate::metrics::Metrics;
use crate::rate::TokenBucket;
use crate::tasks::Tasks;
pub use surges::{governor_kind, governor_name, number_field, scaled_object, write_surge};
use surges::{record_patch, surge_patch};

/// Field manager of everything that Belay writes, where a policy names no other.
pub const FIELD_MANAGER: &str = "belay";

/// A write that takes longer than this has failed for our purposes: the API server allows a request 34 s with
/// slow webhooks, but a decision that old is better made anew.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Events that may wait to be written. A drain of the largest node makes three for each of its 110 pods.
const EVENT_QUEUE: usize = 512;

/// Events a second in the long run: beside the writes that a drain waits for, they must not crowd the API server.
const EVENTS_PER_SECOND: u32 = 10;

/// Why a write did not happen. The variant's name is the metric label.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// Another replica leads now.
    #[error("not leading any more: {object} is left to the new leader")]
    NotLeading {
        /// What was to be written.
        object: String,
    },
    /// Somebody wrote in between; the next look decides anew.
    #[error("{object} changed in the meantime, looking again")]
    Conflict {
        /// What was to be written.
        object: String,
    },
    /// The object is gone.
    #[error("{object} is gone")]
    Gone {
        /// What was to be written.
        object: String,
    },
    /// A right is missing.
    #[error("missing right to write {object}: {message}; grant it in the chart's RBAC")]
    Forbidden {
        /// What was to be written.
        object: String,
        /// The API server's words.
        message: String,
    },
    /// The API server refuses the object.
    #[error("the API server refuses the write of {object}: {message}")]
    Refused {
        /// What was to be written.
        object: String,
        /// The API server's words.
        message: String,
    },
    /// The API server is not reached, or asks for patience.
    #[error("cannot write {object} now: {message}")]
    Unreachable {
        /// What was to be written.
        object: String,
        /// What the client says.
        message: String,
    },
}

impl ApplyError {
    /// The metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotLeading { .. } => "NotLeading",
            Self::Conflict { .. } => "Conflict",
            Self::Gone { .. } => "Gone",
            Self::Forbidden { .. } => "Forbidden",
            Self::Refused { .. } => "Refused",
            Self::Unreachable { .. } => "Unreachable",
        }
    }

    /// Nothing is wrong; a fresher view decides anew.
    pub fn is_benign(&self) -> bool {
        matches!(self, Self::NotLeading { .. } | Self::Conflict { .. } | Self::Gone { .. })
    }

    /// Reads the client's error about an object.
    pub fn of(error: kube::Error, object: String) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                // 410: of a list that goes on from a version that the API server does not have any more.
                409 | 410 => Self::Conflict { object },
                404 => Self::Gone { object },
                401 | 403 => Self::Forbidden { object, message: status.message.clone() },
                // A merge patch whose `metadata.uid` is another object's is answered 422.
                422 if status.message.contains("metadata.uid") => Self::Gone { object },
                429 | 500.. => Self::Unreachable { object, message: status.message.clone() },
                _ => Self::Refused { object, message: status.message.clone() },
            },
            other => Self::Unreachable { object, message: super::client::describe(&other) },
        }
    }
}

/// A version of an object that a write of ours has superseded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superseded {
    /// UID of the object.
    pub uid: String,
    /// The version before the write.
    pub version: String,
}

impl Superseded {
    /// Absent where the write changed nothing, which leaves the version as it is.
    fn by(before: &ObjectRef, after: &ObjectMeta) -> Option<Self> {
        let changed = after.resource_version.as_ref() != Some(&before.resource_version);
        changed.then(|| Self { uid: before.uid.clone(), version: before.resource_version.clone() })
    }
}

/// An Event that waits to be written.
struct Told {
    event: Event,
    /// Another of its kind raises no count: what it says is news.
    is_news: bool,
}

/// Performs actions.
pub struct Applier {
    client: Client,
    events: mpsc::Sender<Told>,
    leadership: Arc<Leadership>,
    rate: Arc<TokenBucket>,
    resources: Resources,
    metrics: Arc<Metrics>,
}

impl Applier {
    /// An applier that writes as fast as `rate` lets it, and Events in a task of their own until `stop`.
    pub fn start(
        client: Client,
        leadership: Arc<Leadership>,
        rate: Arc<TokenBucket>,
        resources: Resources,
        pod_name: Option<String>,
        metrics: Arc<Metrics>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let reporter = Reporter { controller: "belay".to_owned(), instance: pod_name };
        let (events, queue) = mpsc::channel(EVENT_QUEUE);
        tasks.spawn("Events", publish_all(client.clone(), reporter, queue, Arc::clone(&metrics)));
        Arc::new(Self { client, events, leadership, rate, resources, metrics })
    }

    /// Performs one write of any kind: while leading, at the rate, within its time, counted.
    pub async fn write<T>(
        &self,
        kind: &'static str,
        object: String,
        write: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApplyError> {
        self.rate.take().await;
        let result = if self.leadership.is_leader() {
            bounded(object, write).await
        } else {
            Err(ApplyError::NotLeading { object })
        };
        self.metrics.write(kind, result.as_ref().err().map_or("Ok", ApplyError::label));
        result
    }

    /// Performs a sequence, up to the first write that fails. Events are queued and hold nothing up.
    ///
    /// Tells which versions of objects the writes have superseded, those before the failing one included.
    pub async fn perform(&self, sequence: &[Action]) -> (Vec<Superseded>, Result<(), ApplyError>) {
        let mut superseded = Vec::new();
        for action in sequence {
            match self.one(action).await {
                Ok(old) => superseded.extend(old),
                Err(error) => return (superseded, Err(error)),
            }
        }
        (superseded, Ok(()))
    }

    async fn one(&self, action: &Action) -> Result<Option<Superseded>, ApplyError> {
        match action {
            Action::UpdateHold { hold, status } => {
                let write = holds::update(&self.client, hold, status);
                let written = self.write("EvictionHoldStatus", of_hold(hold), write).await?;
                Ok(Superseded::by(hold, &written))
            }
            Action::NoteRequest { hold, at } => {
                let write = holds::note_request(&self.client, &hold.namespace, &hold.name, &hold.uid, *at);
                self.write("EvictionHoldStatus", of_hold(hold), write).await.map(|()| None)
            }
            Action::DeleteHold { hold } => {
                self.write("EvictionHold", of_hold(hold), holds::delete(&self.client, hold)).await.map(|()| None)
            }
            Action::PatchTemplate { deployment, slot, records, field_manager } => {
                let object = format!("Deployment {}/{}", deployment.namespace, deployment.name);
                let manager = field_manager.as_deref().unwrap_or(FIELD_MANAGER);
                let patch = template_patch(deployment, slot.as_deref(), records);
                self.write("Deployment", object, self.patch_template(deployment, manager, patch)).await
            }
            Action::CreateHold { namespace, spec } => {
                let object = holds::name_of(namespace, &hold_name(spec.reason, &spec.victim_name, &spec.victim_uid));
                let write = holds::create(&self.client, namespace, spec);
                self.write("EvictionHold", object, write).await.map(|_| None)
            }
            Action::Surge { governor, object, number, record, field_manager } => {
                let patch = surge_patch(*governor, object, *number, record.as_ref());
                self.surge(*governor, object, &patch, field_manager.as_deref()).await
            }
            Action::NoteSurge { governor, object, record } => {
                self.surge(*governor, object, &record_patch(object, record.as_ref()), None).await
            }
            Action::Scale { deployment, replicas, field_manager } => {
                let patch = surge_patch(Governor::Deployment, deployment, Some(*replicas), None);
                self.surge(Governor::Deployment, deployment, &patch, field_manager.as_deref()).await
            }
            Action::PatchPod { pod, changes } => {
                let object = format!("Pod {}/{}", pod.namespace, pod.name);
                self.write("Pod", object, self.patch_pod(pod, changes)).await
            }
            Action::DeleteOwner { kind, owner } => self.delete_owner(kind, owner).await.map(|()| None),
            Action::Respond { eviction, report } => {
                let object = format!("Eviction {}/{}", eviction.namespace, eviction.name);
                self.write("EvictionStatus", object, self.respond(eviction, report)).await
            }
            Action::Event(event) => {
                self.tell(event);
                Ok(None)
            }
        }
    }

    /// Queues an Event. They tell people; where too many wait, this one is counted and lost.
    ///
    /// One that differs from another within minutes only in its note raises that one's count, and its note is lost.
    pub fn tell(&self, event: &Event) {
        self.queue(Told { event: event.clone(), is_news: false });
    }

    /// Queues an Event whose note is what it tells, so that it never is the repetition of another.
    pub fn tell_news(&self, event: &Event) {
        self.queue(Told { event: event.clone(), is_news: true });
    }

    fn queue(&self, told: Told) {
        if self.events.try_send(told).is_err() {
            self.metrics.write("Event", "QueueFull");
        }
    }

    async fn patch_template(
        &self,
        deployment: &ObjectRef,
        manager: &str,
        patch: serde_json::Value,
    ) -> kube::Result<Option<Superseded>> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &deployment.namespace);
        let params = written_as(manager);
        let written = api.patch_metadata(&deployment.name, &params, &Patch::Merge(patch)).await?;
        Ok(Superseded::by(deployment, &written.metadata))
    }

    async fn patch_pod(
        &self,
        pod: &ObjectRef,
        changes: &BTreeMap<Key, Option<String>>,
    ) -> kube::Result<Option<Superseded>> {
        Ok(Superseded::by(pod, &patch_pod(&self.client, pod, changes).await?))
    }

    /// An owner that is gone, or is another one by now, needs no deleting.
    async fn delete_owner(&self, kind: &GroupKind, owner: &ObjectRef) -> Result<(), ApplyError> {
        let object = format!("{kind} {}/{}", owner.namespace, owner.name);
        let Some(resource) = self.resources.of(kind).filter(Served::is_namespaced) else {
            let message = "the API server does not serve this kind in namespaces".to_owned();
            return Err(ApplyError::Refused { object, message });
        };
        let api: Api<DynamicObject> = resource.api(&self.client, &owner.namespace);
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(owner.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        let write = async { api.delete(&owner.name, &params).await.map(drop) };
        match self.write("Owner", object, write).await {
            Err(ApplyError::Gone { .. } | ApplyError::Conflict { .. }) => Ok(()),
            result => result,
        }
    }

    async fn surge(
        &self,
        governor: Governor,
        object: &ObjectRef,
        patch: &serde_json::Value,
        manager: Option<&str>,
    ) -> Result<Option<Superseded>, ApplyError> {
        let what = governor_name(governor, object);
        let Some(kind) = governor_kind(governor, &self.resources).filter(Served::is_namespaced) else {
            let message = "the API server does not serve this kind any more".to_owned();
            return Err(ApplyError::Refused { object: what, message });
        };
        let api = kind.api(&self.client, &object.namespace);
        let written = self.write(governor.kind(), what, surges::patch(&api, object, patch, manager)).await?;
        Ok(Superseded::by(object, &written))
    }

    async fn respond(&self, eviction: &ObjectRef, report: &Report) -> kube::Result<Option<Superseded>> {
        let api: Api<Eviction> = Api::namespaced(self.client.clone(), &eviction.namespace);
        let params = as_belay();
        let patch = Patch::Strategic(response(eviction, report));
        let written = api.patch_status(&eviction.name, &params, &patch).await?;
        Ok(Superseded::by(eviction, &written.metadata))
    }
}

/// How a patch is written under this field manager.
fn written_as(manager: &str) -> PatchParams {
    PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() }
}

/// How a patch is written under Belay's own name.
pub fn as_belay() -> PatchParams {
    written_as(FIELD_MANAGER)
}

/// Awaits a call, for as long as a write may take.
pub async fn bounded<T>(object: String, call: impl Future<Output = kube::Result<T>>) -> Result<T, ApplyError> {
    within(WRITE_TIMEOUT, object, call).await
}

/// Awaits a call, for this long.
pub async fn within<T>(
    limit: Duration,
    object: String,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApplyError> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result.map_err(|error| ApplyError::of(error, object)),
        Err(_) => {
            let message = format!("no answer within {} s", limit.as_secs());
            Err(ApplyError::Unreachable { object, message })
        }
    }
}

/// Writes Events one after the other. They tell people; nothing waits for them.
async fn publish_all(client: Client, reporter: Reporter, mut queue: mpsc::Receiver<Told>, metrics: Arc<Metrics>) {
    let rate = TokenBucket::new(EVENTS_PER_SECOND);
    let common = Recorder::new(client.clone(), reporter.clone());
    while let Some(Told { event, is_news }) = queue.recv().await {
        // A recorder takes for the same what differs in its note alone, among what it has written itself.
        let recorder = if is_news { &Recorder::new(client.clone(), reporter.clone()) } else { &common };
        rate.take().await;
        let about = &event.regarding;
        let object = format!("Event {} on {} {}/{}", event.reason, about.kind, event.namespace, about.name);
        let result = bounded(object, publish(recorder, &event)).await;
        metrics.write("Event", result.as_ref().err().map_or("Ok", ApplyError::label));
        if let Err(error) = result {
            tracing::warn!(%error, "Event not written");
        }
    }
}

async fn publish(recorder: &Recorder, event: &Event) -> kube::Result<()> {
    let regarding = reference(&event.namespace, &event.regarding);
    let secondary = event.related.as_ref().map(|related| reference(&event.namespace, related));
    let event = KubeEvent {
        type_: if event.warning { EventType::Warning } else { EventType::Normal },
        reason: event.reason.to_owned(),
        note: Some(event.note.clone()),
        action: event.action.to_owned(),
        secondary,
    };
    recorder.publish(&event, &regarding).await
}

fn reference(namespace: &str, object: &Reference) -> ObjectReference {
    ObjectReference {
        api_version: Some(object.api_version.to_owned()),
        kind: Some(object.kind.to_owned()),
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        name: Some(object.name.clone()),
        uid: Some(object.uid.clone()),
        field_path: object.field.clone(),
        ..ObjectReference::default()
    }
}

fn of_hold(hold: &ObjectRef) -> String {
    holds::name_of(&hold.namespace, &hold.name)
}

/// One merge patch: the template's slot and the records on the Deployment, with both preconditions.
fn template_patch(deployment: &ObjectRef, slot: Option<&str>, records: &[record::HandoverRecord]) -> serde_json::Value {
    json!({
        "metadata": {
            "uid": deployment.uid,
            "resourceVersion": deployment.resource_version,
            "annotations": { record::RECORDS_ANNOTATION: record::render(records) },
        },
        "spec": { "template": { "metadata": { "annotations": { record::SLOT_ANNOTATION: slot } } } },
    })
}

/// One strategic merge patch, which changes Belay's own entry of the list of responders and leaves the others alone.
fn response(eviction: &ObjectRef, report: &Report) -> serde_json::Value {
    let mut ours = json!({ "name": lifecycle::RESPONDER, "message": report.message });
    let times = [
        ("heartbeatTime", report.heartbeat),
        ("expectedCompletionTime", report.expected),
        ("completionTime", report.completed),
    ];
    for (field, at) in times {
        if let Some(at) = at {
            ours[field] = json!(Time(at));
        }
    }
    json!({
        "metadata": { "uid": eviction.uid, "resourceVersion": eviction.resource_version },
        "status": { "responders": [ours] },
    })
}

/// An object as its metadata tells it.
pub fn object_ref(meta: &ObjectMeta) -> ObjectRef {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    ObjectRef {
        namespace: text(&meta.namespace),
        name: text(&meta.name),
        uid: text(&meta.uid),
        resource_version: text(&meta.resource_version),
    }
}

/// Changes labels and annotations of a pod, as far as it is as it was; its metadata from then on.
pub async fn patch_pod(
    client: &Client,
    pod: &ObjectRef,
    changes: &BTreeMap<Key, Option<String>>,
) -> kube::Result<ObjectMeta> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let params = as_belay();
    let written = api.patch_metadata(&pod.name, &params, &Patch::Merge(pod_patch(pod, changes))).await?;
    Ok(written.metadata)
}

/// One merge patch of labels and annotations, with both preconditions.
fn pod_patch(pod: &ObjectRef, changes: &BTreeMap<Key, Option<String>>) -> serde_json::Value {
    let mut labels = serde_json::Map::new();
    let mut annotations = serde_json::Map::new();
    for (key, value) in changes {
        match key {
            Key::Label(name) => labels.insert(name.to_string(), json!(value)),
            Key::Annotation(name) => annotations.insert(name.to_string(), json!(value)),
        };
    }
    let mut metadata = json!({ "uid": pod.uid, "resourceVersion": pod.resource_version });
    for (field, values) in [("labels", labels), ("annotations", annotations)] {
        if !values.is_empty() {
            metadata[field] = values.into();
        }
    }
    json!({ "metadata": metadata })
}
