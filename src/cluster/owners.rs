//! Kinds of object that come with another project's CRD, such as those that busy rules ask: found by discovery, watched,
//! and read live.
//!
//! Such a kind may be installed after Belay, change its version, or go. So each is looked up again from time to time, and
//! its watch begun or ended as the API server serves it. A kind that is not served is no fault: it has no objects.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use belay_decide::busy::GroupKind;
use k8s_openapi::NamespaceResourceScope;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use super::watch::{self, Health, Sink, Watches};

/// How soon after its CRD a kind is found. One small request in so long, and none while it is there.
const LOOK_FOR: Duration = Duration::from_secs(30);

/// How often a kind that is there is looked up again: versions go over months. A watch that fails meanwhile shows.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

/// A lookup that takes longer has failed.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// A kind as the API server serves it now.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    resource: ApiResource,
    namespaced: bool,
}

impl Served {
    /// A kind of Kubernetes' own, whose objects live in namespaces.
    pub fn built_in<K>() -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Self { resource: ApiResource::erase::<K>(&()), namespaced: true }
    }

    /// All objects of the cluster.
    pub fn all(&self, client: &Client) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.resource)
    }

    /// Its objects live in namespaces.
    pub fn is_namespaced(&self) -> bool {
        self.namespaced
    }

    /// The objects of a namespace; of the cluster where the kind has none.
    pub fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        if self.namespaced {
            Api::namespaced_with(client.clone(), namespace, &self.resource)
        } else {
            Api::all_with(client.clone(), &self.resource)
        }
    }
}

/// What is served, by kind. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Resources(Arc<RwLock<HashMap<GroupKind, Served>>>);

impl Resources {
    /// The kind, where it is served.
    pub fn of(&self, kind: &GroupKind) -> Option<Served> {
        self.0.read().get(kind).cloned()
    }

    /// Notes that it is, or is not.
    pub fn set(&self, kind: &GroupKind, served: Option<Served>) {
        let mut all = self.0.write();
        match served {
            Some(served) => all.insert(kind.clone(), served),
            None => all.remove(kind),
        };
    }
}

/// Follows a kind: looks for it, watches it while it is served. Ready when it was seen, or seen not to be served.
pub fn follow<V: Send + 'static>(
    watches: &Watches,
    resources: Resources,
    kind: GroupKind,
    project: impl Fn(&DynamicObject) -> V + Clone + Send + Sync + 'static,
    sink: impl Sink<V> + Clone + Sync + 'static,
) -> Health {
    let what: Arc<str> = kind.to_string().into();
    let health = Health::new(Arc::clone(&what), watches.metrics.watch_failing(Arc::clone(&what)));
    let follower = Follower {
        client: watches.client.clone(),
        resources,
        kind,
        project,
        sink,
        health: health.clone(),
        stop: watches.stop.clone(),
    };
    watches.tasks.spawn("followed kind", follower.run());
    health
}

struct Follower<P, S> {
    client: Client,
    resources: Resources,
    kind: GroupKind,
    project: P,
    sink: S,
    health: Health,
    stop: CancellationToken,
}

impl<P, S> Follower<P, S> {
    async fn run<V>(mut self)
    where
        V: Send + 'static,
        P: Fn(&DynamicObject) -> V + Clone + Send + Sync + 'static,
        S: Sink<V> + Clone + 'static,
    {
        let mut served: Option<Served> = None;
        let mut pauses = watch::backoff();
        while !self.stop.is_cancelled() {
            let pause = match self.look_up().await {
                Ok(Some(now)) if served.as_ref() != Some(&now) => {
                    tracing::info!(kind = %self.kind, version = %now.resource.version, "following kind");
                    self.resources.set(&self.kind, Some(now.clone()));
                    served = Some(now);
                    Duration::ZERO
                }
                Ok(Some(_)) => LOOK_AGAIN,
                Ok(None) => {
                    if served.take().is_some() {
                        tracing::warn!(kind = %self.kind, "the API server does not serve this kind any more");
                        self.resources.set(&self.kind, None);
                    }
                    self.sink.replace(Vec::new());
                    self.health.absent();
                    LOOK_FOR
                }
                Err(problem) => {
                    self.health.note(&format!("cannot look up the kind: {problem}"), false);
                    pauses.next().unwrap_or(LOOK_FOR)
                }
            };
            let Some(now) = &served else {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = self.stop.cancelled() => return,
                }
                continue;
            };
            pauses = watch::backoff();
            let stop = self.stop.child_token();
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &now.resource);
            let project = self.project.clone();
            let project = move |object: &DynamicObject| Some(project(object));
            let watching = watch::run(
                api,
                watcher::Config::default(),
                project,
                self.sink.clone(),
                self.health.clone(),
                stop.clone(),
            );
            tokio::select! {
                () = watching => {}
                // Looked up again beside the watch; it is begun anew only where something changed.
                () = self.changed(now) => {}
            }
            stop.cancel();
        }
    }

    /// Waits until the kind is served otherwise than this.
    async fn changed(&self, served: &Served) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            match self.look_up().await {
                Ok(Some(now)) if now == *served => {}
                Ok(Some(_)) => return,
                // Believed only twice: an API server that starts or upgrades may answer so for a moment, and all pods
                // of the kind would count as of unknown state.
                Ok(None) => {
                    tokio::time::sleep(LOOK_FOR).await;
                    if matches!(self.look_up().await, Ok(None)) {
                        return;
                    }
                }
                Err(problem) => tracing::debug!(kind = %self.kind, %problem, "kind not looked up"),
            }
        }
    }

    async fn look_up(&self) -> Result<Option<Served>, String> {
        match tokio::time::timeout(LOOKUP_TIMEOUT, look_up(&self.client, &self.kind)).await {
            Ok(Ok(served)) => Ok(served),
            Ok(Err(error)) => Err(super::client::describe(&error)),
            Err(_) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
        }
    }
}

/// Looks a kind up in its group's versions, the preferred one first.
pub async fn look_up(client: &Client, kind: &GroupKind) -> kube::Result<Option<Served>> {
    let versions: Vec<String> = if kind.group.is_empty() {
        client.list_core_api_versions().await?.versions
    } else {
        let groups = client.list_api_groups().await?.groups;
        let Some(group) = groups.into_iter().find(|group| *group.name == *kind.group) else { return Ok(None) };
        let preferred = group.preferred_version.into_iter();
        preferred.chain(group.versions).map(|version| version.version).collect()
    };
    for version in versions {
        let gvk = GroupVersionKind::gvk(&kind.group, &version, &kind.kind);
        let resources = if kind.group.is_empty() {
            client.list_core_api_resources(&version).await
        } else {
            client.list_api_group_resources(&gvk.api_version()).await
        };
        let resources = match resources {
            Ok(resources) => resources.resources,
            // It went since the group was read.
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => return Err(error),
        };
        let found = resources.into_iter().find(|one| *one.kind == *kind.kind && !one.name.contains('/'));
        if let Some(found) = found {
            let resource = ApiResource::from_gvk_with_plural(&gvk, &found.name);
            return Ok(Some(Served { resource, namespaced: found.namespaced }));
        }
    }
    Ok(None)
}
