//! Everything that an explanation is made from, read from the cluster once.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use belay_decide::busy::{BusyPod, GroupKind, Rule, Seen};
use belay_decide::cost::cluster::Cluster;
use belay_decide::hold::HoldView;
use belay_decide::view::Governor;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, DeserializeGuard};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::node::SeenCluster;
use crate::api::{EvictionHold, HandoverPolicy};
use crate::cli::connect::told;
use crate::cli::fill;
use crate::cluster::apply::scaled_object;
use crate::cluster::client::describe;
use crate::cluster::clock::Clock;
use crate::cluster::index::{AutoscalerSink, Index, IndexSink, SeenNode};
use crate::cluster::owners::{Resources, look_up};
use crate::cluster::project_cost::{self, LeftOut, Pool};
use crate::cluster::subset::{AutoscalerSubset, DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use crate::cluster::watch::Sink;
use crate::cluster::{project, project_autoscaler, project_busy};
use crate::config::Config;
use crate::settings::Settings;
use crate::webhook::live::{LiveFacts, LiveReader};

/// By which the chart's objects are found, whatever the release is called.
const OURS: &str = "app.kubernetes.io/part-of=belay";

/// The file's key in the ConfigMap.
const CONFIG_KEY: &str = "config.yaml";

/// Objects in one page: as many as `kubectl` asks for, so that a list of a large cluster is no one burden.
const PAGE: u32 = 500;

/// Belay's configuration: from a file, or as it is in the cluster.
pub(super) async fn config(client: &Client, file: Option<&Path>, namespace: &str) -> anyhow::Result<Config> {
    if let Some(file) = file {
        return Ok(Config::load(file)?);
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = maps.list(&ListParams::default().labels(OURS)).await.map_err(|error| told(&error));
    let found = found.with_context(|| {
        format!("cannot read Belay's configuration in the namespace {namespace}; name a copy with --config")
    })?;
    let texts = found.items.into_iter().filter_map(|map| map.data?.remove(CONFIG_KEY)).collect::<Vec<_>>();
    match texts.as_slice() {
        [text] => Ok(Config::parse(Path::new("in the cluster"), text)?),
        [] => {
            bail!("there is no Belay in the namespace {namespace}; see --belay-namespace, or name a file with --config")
        }
        _ => bail!("there are several Belays in the namespace {namespace}; name a file with --config"),
    }
}

/// A pod and everything around it.
pub(super) struct SeenPod {
    /// The object.
    pub(super) object: DynamicObject,
    /// The configuration's settings.
    pub(super) settings: Settings,
    /// The handover's side of the cluster.
    pub(super) index: Index,
    /// The number of the rule that governs it, with what the rule reads.
    pub(super) governed: Option<(usize, BusyPod, Result<LiveFacts, String>)>,
    /// Its holds.
    pub(super) holds: Vec<HoldView>,
    /// What could not be read, and why.
    pub(super) unread: Vec<String>,
}

impl SeenPod {
    /// The rule that governs the pod, and what its state is read from; without its owner where that could not be read.
    pub(super) fn seen(&self) -> Option<(&Rule, Seen<'_>)> {
        let (number, pod, live) = self.governed.as_ref()?;
        let rule = self.index.rules().get(*number)?;
        let seen = match live {
            Ok(live) => live.seen(rule),
            Err(_) => Seen { pod, owner: belay_decide::busy::Found::Missing, linked: Vec::new() },
        };
        Some((rule, seen))
    }
}

/// A namespace's workloads and everything around them.
pub(super) struct SeenWorkloads {
    /// The configuration's settings.
    pub(super) settings: Settings,
    /// The handover's side of the cluster.
    pub(super) index: Index,
    /// What could not be read, and why.
    pub(super) unread: Vec<String>,
}

/// Reads the workloads of a namespace.
pub(super) async fn workload(
    client: &Client,
    config: &Config,
    belay_namespace: &str,
    namespace: &str,
) -> SeenWorkloads {
    let index = Index::new(Vec::new());
    let mut reading = Reading { client, namespace, unread: Vec::new() };
    reading.fill(&index, true).await;
    SeenWorkloads { settings: Settings::of(config, belay_namespace), index, unread: reading.unread }
}

/// Reads a pod and everything around it.
pub(super) async fn pod(
    client: &Client,
    config: &Config,
    belay_namespace: &str,
    namespace: &str,
    name: &str,
) -> anyhow::Result<SeenPod> {
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Pod>(&()));
    let object = pods
        .get(name)
        .await
        .map_err(|error| told(&error))
        .with_context(|| format!("cannot read the pod {namespace}/{name}"))?;
    let (rules, selects) = config.busy_hints.compile().map_err(|(key, problem)| anyhow!("{key}: {problem}"))?;
    let settings = Settings::of(config, belay_namespace);
    let labels = object.labels();
    let excluded = settings.rules.excludes(namespace);
    let number = selects.iter().position(|selects| !excluded && selects.matches(namespace, labels));
    let index = Index::new(rules);

    let mut reading = Reading { client, namespace, unread: Vec::new() };
    let mut holds = reading.fill(&index, config.eviction_hold.enabled).await;
    let governed = match number.and_then(|number| Some((number, index.rules().get(number)?))) {
        Some((number, rule)) => {
            let pod = project_busy::pod(&object, rule, Clock::wall());
            let live = reading.live(rule, &pod).await;
            if let Err(problem) = &live {
                reading.unread.push(format!("what rule {} asks: {problem}", rule.spec.name));
            }
            Some((number, pod, live))
        }
        None => None,
    };
    let uid = object.uid().unwrap_or_default();
    holds.retain(|hold| hold.spec.victim_uid == uid);
    Ok(SeenPod { object, settings, index, governed, holds, unread: reading.unread })
}

/// Reads what ranks are made from, and has them made.
pub(super) async fn cluster(
    client: &Client,
    config: &Config,
    belay_namespace: &str,
    now: Timestamp,
) -> anyhow::Result<SeenCluster> {
    let (rules, selects) = config.busy_hints.compile().map_err(|(key, problem)| anyhow!("{key}: {problem}"))?;
    let left_out = LeftOut::of(config.rules(belay_namespace), &selects, &rules);
    let costs = &config.deletion_cost;
    let mut cluster = Cluster::new(costs.options(), costs.stand_down());
    // Without these there is nothing to say.
    for node in all::<NodeSubset>(client, "nodes").await? {
        cluster.put_node(project_cost::node(&node, now));
    }
    for set in all::<ReplicaSetSubset>(client, "ReplicaSets").await? {
        cluster.put_set(project_cost::set(&set));
    }
    for pod in all::<PodSubset>(client, "pods").await? {
        cluster.put_pod(project_cost::pod(&pod, &left_out, now), now);
    }
    let mut unread = Vec::new();
    match pages(&Api::<PodDisruptionBudget>::all(client.clone())).await {
        Ok(budgets) => budgets.iter().for_each(|budget| cluster.put_budget(project_cost::budget(budget, now))),
        Err(error) => unread.push(format!("PodDisruptionBudgets: {}", describe(&error))),
    }
    match of_karpenter(client, "NodeClaim").await {
        Ok(claims) => claims.iter().for_each(|claim| cluster.put_claim(project_cost::claim(claim))),
        Err(problem) => unread.push(format!("NodeClaims: {problem}")),
    }
    match of_karpenter(client, "NodePool").await {
        Ok(pools) => {
            for Pool { name, is_still } in pools.iter().map(project_cost::pool) {
                cluster.put_pool(&name, is_still);
            }
        }
        Err(problem) => unread.push(format!("NodePools: {problem}")),
    }
    cluster.look(now);
    Ok(SeenCluster { cluster, options: costs.options(), enabled: costs.enabled, unread })
}

async fn all<K>(client: &Client, what: &str) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let found = pages(&Api::<K>::all(client.clone())).await.map_err(|error| told(&error));
    found.with_context(|| format!("cannot read {what}"))
}

/// Lists everything, page by page. A list that grows too old on the way is begun anew, once.
async fn pages<K>(api: &Api<K>) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let (mut page, mut items, mut expired) = (ListParams::default().limit(PAGE), Vec::new(), false);
    loop {
        match api.list(&page).await {
            Ok(mut list) => {
                items.append(&mut list.items);
                match list.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => return Ok(items),
                }
            }
            Err(kube::Error::Api(status)) if status.code == 410 && !expired => {
                (page, expired) = (ListParams::default().limit(PAGE), true);
                items.clear();
            }
            Err(error) => return Err(error),
        }
    }
}

/// Objects of a kind of Karpenter's; none where it is not installed.
async fn of_karpenter(client: &Client, kind: &str) -> Result<Vec<DynamicObject>, String> {
    of_kind(client, &GroupKind::new("karpenter.sh", kind), "").await
}

/// Objects of a kind of another project's, in a namespace where it has one; none where it is not served.
async fn of_kind(client: &Client, kind: &GroupKind, namespace: &str) -> Result<Vec<DynamicObject>, String> {
    let served = look_up(client, kind).await.map_err(|error| describe(&error))?;
    let Some(served) = served else { return Ok(Vec::new()) };
    pages(&served.api(client, namespace)).await.map_err(|error| describe(&error))
}

struct Reading<'a> {
    client: &'a Client,
    namespace: &'a str,
    unread: Vec<String>,
}

impl Reading<'_> {
    /// Fills the cache with what decisions about handovers read in this namespace. Gives the holds there back.
    async fn fill(&mut self, index: &Index, handovers: bool) -> Vec<HoldView> {
        let mut sink = IndexSink(index.clone());
        let pods: Vec<PodSubset> = self.list("pods").await;
        sink.replace(pods.iter().map(|pod| project::pod(pod, false)).collect());
        let holds = self.list::<DeserializeGuard<EvictionHold>>("EvictionHolds").await;
        let holds: Vec<HoldView> = holds.iter().filter_map(fill::hold).collect();
        sink.replace(holds.clone());
        if !handovers {
            return holds;
        }
        let sets: Vec<ReplicaSetSubset> = self.list("ReplicaSets").await;
        sink.replace(sets.iter().map(project::replica_set).collect());
        let deployments: Vec<DeploymentSubset> = self.list("Deployments").await;
        sink.replace(deployments.iter().map(project::deployment).collect());
        let policies = self.list::<DeserializeGuard<HandoverPolicy>>("HandoverPolicies").await;
        sink.replace(policies.iter().map(fill::policy).collect());
        self.fill_autoscalers(index).await;
        match Api::<NodeSubset>::all(self.client.clone()).list(&ListParams::default()).await {
            Ok(nodes) => {
                let seen = |node: &NodeSubset| SeenNode { view: project::node(node), at: Clock::wall() };
                sink.replace(nodes.items.iter().map(seen).collect());
            }
            Err(error) => self.unread.push(format!("nodes: {}", describe(&error))),
        }
        holds
    }

    async fn fill_autoscalers(&mut self, index: &Index) {
        let mut sink = AutoscalerSink { index: index.clone(), governor: Governor::HorizontalPodAutoscaler };
        let horizontal: Vec<AutoscalerSubset> = self.list("HorizontalPodAutoscalers").await;
        sink.replace(horizontal.iter().map(project_autoscaler::horizontal).collect());
        let mut sink = AutoscalerSink { index: index.clone(), governor: Governor::ScaledObject };
        match of_kind(self.client, &scaled_object(), self.namespace).await {
            Ok(scaled) => sink.replace(scaled.iter().map(project_autoscaler::scaled_object).collect()),
            Err(problem) => self.unread.push(format!("ScaledObjects: {problem}")),
        }
    }

    async fn list<K>(&mut self, what: &str) -> Vec<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        match Api::<K>::namespaced(self.client.clone(), self.namespace).list(&ListParams::default()).await {
            Ok(list) => list.items,
            // Without the CRDs there are none.
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => {
                self.unread.push(format!("{what}: {}", describe(&error)));
                Vec::new()
            }
        }
    }

    async fn live(&self, rule: &Rule, pod: &BusyPod) -> Result<LiveFacts, String> {
        let resources = Resources::default();
        for kind in rule.asked_kinds() {
            let served = look_up(self.client, kind).await.map_err(|error| describe(&error))?;
            resources.set(kind, served);
        }
        LiveReader::new(self.client.clone(), resources).read(rule, pod, Clock::wall()).await
    }
}
