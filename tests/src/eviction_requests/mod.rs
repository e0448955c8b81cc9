//! Plays Kubernetes' evictionrequest-controller (KEP-4563), which no program of 1.37 contains, in one namespace.
//!
//! As the fields' documentation says (`k8s.io/api/lifecycle/v1alpha1`): it makes one Eviction of all EvictionRequests
//! for a pod, activates the pod's responders one after the other, and says how it ended ([`status`]); and it is the last
//! responder itself, which calls the eviction API with a back-off. The API server checks each of its steps.

mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::select_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::lifecycle::v1alpha1::{Eviction, EvictionRequest};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clock;
use crate::watching::changes;
use crate::world::{Namespace, PodInfo};
use status::Observed;

pub use status::IMPERATIVE;

/// The first pause of the last responder after a refusal. The real one's grows to a quarter of an hour as well.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(15);

/// The controller, until it is dropped.
pub struct Player {
    requests: Api<EvictionRequest>,
    evictions: Api<Eviction>,
    task: JoinHandle<()>,
}

impl Drop for Player {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Player {
    /// Starts it for a namespace.
    pub fn start(ns: &Namespace) -> Self {
        let controller = Controller { requests: ns.api(), evictions: ns.api(), pods: ns.api() };
        let task = ns.cluster().runtime().spawn(controller.run());
        Self { requests: ns.api(), evictions: ns.api(), task }
    }

    /// Asks for the eviction of a pod; the answer is the request's name.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn request(&self, pod: &PodInfo, requester: &str) -> anyhow::Result<String> {
        let request: EvictionRequest = serde_json::from_value(json!({
            "metadata": { "generateName": format!("{}-", pod.name) },
            "spec": {
                "target": { "pod": { "name": pod.name, "uid": pod.uid } },
                "requester": requester,
                "intent": status::EVICTION,
            },
        }))?;
        let made = self.requests.create(&PostParams::default(), &request).await;
        Ok(made.context("EvictionRequest")?.name_any())
    }

    /// Withdraws a request.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn withdraw(&self, request: &str) -> anyhow::Result<()> {
        let intent = Patch::Merge(json!({ "spec": { "intent": status::WITHDRAWN } }));
        self.requests.patch(request, &PatchParams::default(), &intent).await.map(drop).context("EvictionRequest")
    }

    /// Deletes a request, which withdraws it as well.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn delete(&self, request: &str) -> anyhow::Result<()> {
        self.requests.delete(request, &DeleteParams::default()).await.map(drop).context("EvictionRequest")
    }

    /// The newest Eviction of a pod, as it is.
    ///
    /// # Errors
    /// When there is none.
    pub async fn eviction(&self, pod: &PodInfo) -> anyhow::Result<Value> {
        let all = self.evictions.list(&ListParams::default()).await?.items;
        let of_pod = all.into_iter().filter(|one| status::target(one).is_some_and(|(_, uid)| uid == pod.uid));
        // Two may be of the same second; what is over is not written any more.
        let version = |one: &Eviction| one.resource_version().and_then(|version| version.parse::<u64>().ok());
        let newest = of_pod.max_by_key(|one| (one.metadata.creation_timestamp.clone(), version(one)));
        Ok(serde_json::to_value(newest.with_context(|| format!("no Eviction of {}", pod.name))?)?)
    }
}

struct Controller {
    requests: Api<EvictionRequest>,
    evictions: Api<Eviction>,
    pods: Api<Pod>,
}

/// When the last responder tries again, by the Eviction's UID.
type Tries = BTreeMap<String, (Instant, Duration)>;

impl Controller {
    async fn run(self) {
        let config = watcher::Config::default;
        let streams = [
            changes(self.requests.clone(), config()).map(drop).boxed(),
            changes(self.evictions.clone(), config()).map(drop).boxed(),
            changes(self.pods.clone(), config()).map(drop).boxed(),
        ];
        let mut changed = select_all(streams);
        let mut tries = Tries::new();
        loop {
            let next_try = tries.values().map(|(at, _)| *at).min();
            tokio::select! {
                _ = changed.next() => {}
                () = tokio::time::sleep_until(next_try.unwrap_or_else(Instant::now)), if next_try.is_some() => {}
            }
            if let Err(error) = self.pass(&mut tries).await {
                tracing::debug!("not reconciled: {error:#}");
                tries.entry(String::new()).or_insert((Instant::now() + FIRST_PAUSE, FIRST_PAUSE));
            }
        }
    }

    /// Looks at everything once, as it is in the API.
    async fn pass(&self, tries: &mut Tries) -> anyhow::Result<()> {
        tries.remove("");
        let requests = self.requests.list(&ListParams::default()).await?.items;
        let mut evictions = self.evictions.list(&ListParams::default()).await?.items;
        for request in requests.iter().filter(|request| request.spec.intent == status::EVICTION) {
            let Some(pod) = &request.spec.target.pod else { continue };
            // One that failed is followed by another where somebody asks again.
            let is_of_pod =
                |one: &Eviction| status::target(one) == Some((&pod.name, &pod.uid)) && !status::has_failed(one);
            if !evictions.iter().any(is_of_pod) {
                let eviction: Eviction = serde_json::from_value(json!({
                    "metadata": { "generateName": format!("{}-", pod.name) },
                    "spec": { "target": { "pod": { "name": pod.name, "uid": pod.uid } } },
                }))?;
                evictions.push(self.evictions.create(&PostParams::default(), &eviction).await?);
            }
        }
        for mut eviction in evictions {
            let Some((name, uid)) = status::target(&eviction) else { continue };
            let pod = self.pods.get_opt(name).await?.filter(|pod| pod.metadata.uid.as_deref() == Some(uid));
            let observed = Observed { requests: &requests, pod: pod.as_ref(), now: whole_seconds(clock::now()) };
            if let Some(next) = status::next(&eviction, &observed) {
                eviction.status = Some(next);
                let written =
                    self.evictions.replace_status(&eviction.name_any(), &PostParams::default(), &eviction).await?;
                self.label(&written).await?;
                continue;
            }
            let is_leaving = pod.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
            if status::is_imperative(&eviction) && !is_leaving {
                self.evict(&eviction, tries).await?;
            } else {
                tries.remove(&eviction.uid().unwrap_or_default());
            }
        }
        Ok(())
    }

    /// The names of requesters and responders are labels, for whoever looks for their own.
    async fn label(&self, eviction: &Eviction) -> anyhow::Result<()> {
        let labels = status::labels(eviction);
        if eviction.metadata.labels.as_ref() != Some(&labels) {
            let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
            self.evictions.patch(&eviction.name_any(), &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// The last responder's turn: calls the eviction API, and reports a refusal.
    async fn evict(&self, eviction: &Eviction, tries: &mut Tries) -> anyhow::Result<()> {
        let uid = eviction.uid().unwrap_or_default();
        let Some((pod, _)) = status::target(eviction) else { return Ok(()) };
        let pause = match tries.get(&uid) {
            Some((at, _)) if *at > Instant::now() => return Ok(()),
            Some((_, pause)) => (*pause * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        tries.insert(uid, (Instant::now() + pause, pause));
        match self.pods.evict(pod, &EvictParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(refusal)) if matches!(refusal.code, 404 | 429) => {
                let mut reported = eviction.clone();
                reported.status = status::refused(eviction, &refusal.message, whole_seconds(clock::now()));
                if reported.status.is_some() {
                    self.evictions.replace_status(&eviction.name_any(), &PostParams::default(), &reported).await?;
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// As a time stands in the API.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
