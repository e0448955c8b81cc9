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

#[cfg(test)]
impl Served {
    /// A kind of namespaced objects that is served so.
    pub(crate) fn of(kind: &GroupKind, version: &str, plural: &str) -> Self {
        let gvk = GroupVersionKind::gvk(&kind.group, version, &kind.kind);
        Self { resource: ApiResource::from_gvk_with_plural(&gvk, plural), namespaced: true }
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

/// A kind that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    kind: GroupKind,
    version: Option<&'static str>,
}

impl Followed {
    /// In this version alone: what another one means is not known. A kind that is served in others only is as if it
    /// were not served.
    pub fn only_in(kind: GroupKind, version: &'static str) -> Self {
        Self { kind, version: Some(version) }
    }
}

impl From<GroupKind> for Followed {
    /// In the version that the API server prefers.
    fn from(kind: GroupKind) -> Self {
        Self { kind, version: None }
    }
}

/// Follows a kind: looks for it, watches it while it is served. Ready when it was seen, or seen not to be served.
pub fn follow<V: Send + 'static>(
    watches: &Watches,
    resources: Resources,
    kind: impl Into<Followed>,
    project: impl Fn(&DynamicObject) -> V + Clone + Send + Sync + 'static,
    sink: impl Sink<V> + Clone + Sync + 'static,
) -> Health {
    let lookout = Lookout::new(watches, resources, kind.into());
    let health = lookout.health.clone();
    watches.tasks.spawn("followed kind", lookout.follow(project, sink));
    health
}

/// Keeps known whether a kind is served, without a look at its objects. Ready when that is known.
pub fn look_out(watches: &Watches, resources: Resources, kind: impl Into<Followed>) -> Health {
    let lookout = Lookout::new(watches, resources, kind.into());
    let health = lookout.health.clone();
    watches.tasks.spawn("looked-up kind", lookout.look_out());
    health
}

/// Looks a kind up, again and again.
struct Lookout {
    client: Client,
    resources: Resources,
    kind: GroupKind,
    version: Option<&'static str>,
    health: Health,
    stop: CancellationToken,
}

impl Lookout {
    fn new(watches: &Watches, resources: Resources, followed: Followed) -> Self {
        let what: Arc<str> = followed.kind.to_string().into();
        Self {
            client: watches.client.clone(),
            resources,
            kind: followed.kind,
            version: followed.version,
            health: Health::new(Arc::clone(&what), watches.metrics.watch_failing(what)),
            stop: watches.stop.clone(),
        }
    }

    async fn look_out(self) {
        let mut pauses = watch::backoff();
        while !self.stop.is_cancelled() {
            let pause = match self.look_up().await {
                Ok(served) => {
                    pauses = watch::backoff();
                    let pause = if served.is_some() { LOOK_AGAIN } else { LOOK_FOR };
                    self.resources.set(&self.kind, served);
                    self.health.absent();
                    pause
                }
                Err(problem) => {
                    self.health.note(&format!("cannot look up the kind: {problem}"), false);
                    pauses.next().unwrap_or(LOOK_FOR)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    async fn follow<V, P, S>(self, project: P, mut sink: S)
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
                    sink.replace(Vec::new());
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
            let project = project.clone();
            let project = move |object: &DynamicObject| Some(project(object));
            let config = watcher::Config::default();
            let watching = watch::run(api, config, project, sink.clone(), self.health.clone(), stop.clone());
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
        let mut waited = Duration::ZERO;
        loop {
            tokio::time::sleep(LOOK_FOR).await;
            waited += LOOK_FOR;
            // A watch that fails may have lost its kind.
            if waited < LOOK_AGAIN && !self.health.is_in_trouble() {
                continue;
            }
            waited = Duration::ZERO;
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
        match tokio::time::timeout(LOOKUP_TIMEOUT, look_up_in(&self.client, &self.kind, self.version)).await {
            Ok(Ok(served)) => Ok(served),
            Ok(Err(error)) => Err(super::client::describe(&error)),
            Err(_) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
        }
    }
}

/// Looks a kind up in its group's versions, the preferred one first.
pub async fn look_up(client: &Client, kind: &GroupKind) -> kube::Result<Option<Served>> {
    look_up_in(client, kind, None).await
}

/// Looks a kind up, in one version alone where one is named.
async fn look_up_in(client: &Client, kind: &GroupKind, only: Option<&str>) -> kube::Result<Option<Served>> {
    let versions: Vec<String> = if kind.group.is_empty() {
        client.list_core_api_versions().await?.versions
    } else {
        let groups = client.list_api_groups().await?.groups;
        let Some(group) = groups.into_iter().find(|group| *group.name == *kind.group) else { return Ok(None) };
        let preferred = group.preferred_version.into_iter();
        preferred.chain(group.versions).map(|version| version.version).collect()
    };
    for version in versions.into_iter().filter(|version| only.is_none_or(|only| only == version)) {
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
