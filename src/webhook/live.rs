//! Reads what a busy pod's state depends on from the API server itself, just now.
//!
//! A cache is a moment behind, and in that moment a job may have been assigned. So before an idle pod is let go, its
//! owner (or the pod, where no owner is asked) and its linked pods are read once more. Evictions are rare; two small
//! reads for each cost nothing.

use std::time::Duration;

use belay_decide::busy::{BusyPod, ControllerRef, Found, GroupKind, Owner, Rule, Seen};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use crate::cluster::client::describe;
use crate::cluster::owners::Resources;
use crate::cluster::project_busy::{self, OwnerFields};
use crate::cluster::subset::PodSubset;

/// What the answer to one request may wait for in all: longer than any healthy API server needs for two small reads, and
/// shorter than the time after which the server itself would let the request through unlooked at
/// ([`request_timeout`](super::server::Options::request_timeout)).
pub(crate) const PATIENCE: Duration = Duration::from_millis(800);

const TOO_LATE: &str = "the API server did not answer in time";

/// Most linked pods that are read: one is enough to make a pod busy, and an answer must be quick.
const MOST_LINKED: u32 = 50;

/// Those that have ended count for nothing, and any number of them may be left.
const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Reads live.
#[derive(Clone)]
pub struct LiveReader {
    client: Client,
    resources: Resources,
    timeout: Duration,
}

/// What was read.
#[derive(Clone, Debug)]
pub struct LiveFacts {
    pod: BusyPod,
    owner: Option<Owner>,
    linked: Vec<Value>,
}

impl LiveFacts {
    /// What the pod's state is read from.
    pub fn seen(&self, rule: &Rule) -> Seen<'_> {
        let owner = match (&rule.spec.owner, &self.owner) {
            (None, _) => Found::NotAsked,
            (Some(_), None) => Found::Missing,
            (Some(_), Some(owner)) => Found::Owner(owner),
        };
        Seen { pod: &self.pod, owner, linked: self.linked.iter().collect() }
    }
}

impl LiveReader {
    /// A reader with this client.
    pub fn new(client: Client, resources: Resources) -> Self {
        Self { client, resources, timeout: PATIENCE }
    }

    /// The reader for a request that has waited for so long already.
    pub(crate) fn after(&self, waited: Duration) -> Self {
        Self { timeout: self.timeout.saturating_sub(waited), ..self.clone() }
    }

    /// A reader that waits for longer than any test lasts: how fast an answer comes is not what they are about.
    #[cfg(test)]
    pub(crate) fn patient(self) -> Self {
        Self { timeout: Duration::from_hours(1), ..self }
    }

    /// Reads what the state of this pod depends on; else what is in the way.
    pub async fn read(&self, rule: &Rule, pod: &BusyPod, now: Timestamp) -> Result<LiveFacts, String> {
        let read = async { tokio::try_join!(self.pod(rule, pod, now), self.owner(rule, pod), self.linked(rule, pod)) };
        match tokio::time::timeout(self.timeout, read).await {
            Ok(Ok((pod, owner, linked))) => Ok(LiveFacts { pod, owner, linked }),
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(TOO_LATE.to_owned()),
        }
    }

    /// A pod as it is; absent where it is gone. Else what is in the way.
    pub async fn pod_itself(&self, namespace: &str, name: &str) -> Result<Option<PodSubset>, String> {
        let pods: Api<PodSubset> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(self.timeout, pods.get_opt(name)).await {
            Ok(result) => result.map_err(|error| describe(&error)),
            Err(_) => Err(TOO_LATE.to_owned()),
        }
    }

    /// The pod, where an expression reads it. One that is gone by now, or is another one, is as it was: the API server
    /// will say so itself.
    async fn pod(&self, rule: &Rule, pod: &BusyPod, now: Timestamp) -> kube::Result<BusyPod> {
        if !rule.reads("pod") {
            return Ok(pod.clone());
        }
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &pod.namespace, &ApiResource::erase::<Pod>(&()));
        let live = pods.get_opt(&pod.name).await?.map(|live| project_busy::pod(&live, rule, now));
        Ok(live.filter(|live| live.uid == pod.uid).unwrap_or_else(|| pod.clone()))
    }

    async fn owner(&self, rule: &Rule, pod: &BusyPod) -> kube::Result<Option<Owner>> {
        let Some(asked) = &rule.spec.owner else { return Ok(None) };
        let fields = OwnerFields { read: rule.owner_fields.clone(), job_fields: asked.job_fields.clone() };
        let mut controller = pod.controller.clone();
        if let Some(through) = &asked.through {
            let step = self.get(through, pod, controller.as_ref(), &OwnerFields::default()).await?;
            controller = step.and_then(|step| step.controller);
        }
        self.get(&asked.kind, pod, controller.as_ref(), &fields).await
    }

    async fn get(
        &self,
        kind: &GroupKind,
        pod: &BusyPod,
        controller: Option<&ControllerRef>,
        fields: &OwnerFields,
    ) -> kube::Result<Option<Owner>> {
        let Some(controller) = controller.filter(|controller| controller.kind == *kind) else { return Ok(None) };
        let Some(served) = self.resources.of(kind) else { return Ok(None) };
        let found = served.api(&self.client, &pod.namespace).get_opt(&controller.name).await?;
        let owner = found.map(|found| project_busy::owner(&found, fields));
        Ok(owner.filter(|owner| owner.uid == controller.uid))
    }

    async fn linked(&self, rule: &Rule, pod: &BusyPod) -> kube::Result<Vec<Value>> {
        let Some(label) = &rule.spec.linked_label else { return Ok(Vec::new()) };
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &pod.namespace, &ApiResource::erase::<Pod>(&()));
        // A label value has at most 63 characters; a pod of a longer name is linked to nobody, and asking would fail.
        if pod.name.len() > 63 {
            return Ok(Vec::new());
        }
        let wanted =
            ListParams::default().labels(&format!("{label}={}", pod.name)).fields(UNFINISHED).limit(MOST_LINKED);
        let found = pods.list(&wanted).await?.items;
        let linked = found.iter().filter_map(|one| project_busy::linked(one, label, &rule.linked_fields));
        Ok(linked.filter(|linked| linked.counts_for(pod)).map(|linked| linked.object).collect())
    }
}
