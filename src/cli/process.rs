//! What both servers need: a runtime, logs, signals, the watches that fill the cache.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use belay_decide::busy::Rule;
use belay_decide::hold::HoldView;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use kube::core::{ApiResource, DeserializeGuard};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::{LogArgs, LogFormat, ServerArgs};
use crate::api::{EvictionHold, HandoverPolicy, HandoverPolicySpec};
use crate::cluster::clock::Clock;
use crate::cluster::index::{BusyPodSink, Index, IndexSink, LinkedSink, OwnerSink, Policy, Target};
use crate::cluster::owners::{self, Resources};
use crate::cluster::subset::{DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use crate::cluster::watch::{Health, Watches};
use crate::cluster::{client, project, project_busy};
use crate::config::{Config, Selects};
use crate::metrics::Metrics;
use crate::settings::{self, Settings};
use crate::tasks::Tasks;
use crate::webhook::admin::Condition;

/// Runs a server to its end.
pub(super) fn block_on(server: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?
        .block_on(server)
}

/// What every server starts with.
pub(super) struct Process {
    pub(super) client: Client,
    pub(super) config: Config,
    /// What each busy rule selects.
    pub(super) selects: Arc<Vec<Selects>>,
    /// The kinds that busy rules ask, as they are served.
    pub(super) resources: Resources,
    pub(super) settings: Arc<ArcSwap<Settings>>,
    pub(super) index: Index,
    pub(super) health: Vec<Health>,
    /// The watches that only busy rules need.
    pub(super) busy_health: Vec<Health>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: Tasks,
    pub(super) watches: Watches,
    /// Cancelled at SIGTERM or SIGINT: readiness goes off.
    pub(super) terminate: CancellationToken,
    /// Cancelled when serving is over: everything in the background ends.
    pub(super) stop: CancellationToken,
}

/// The configuration that a server starts with, and its busy rules.
pub(super) struct Prepared {
    config: Config,
    selects: Arc<Vec<Selects>>,
    /// The rules, for the cache.
    pub(super) rules: Vec<Rule>,
}

impl Prepared {
    /// Starts logging and reads the file.
    pub(super) fn load(args: &ServerArgs) -> anyhow::Result<Self> {
        start_logging(&args.log)?;
        let config = Config::load(&args.config).context("--config (BELAY_CONFIG; the chart renders the file)")?;
        let (rules, selects) = config.busy_hints.compile().map_err(|(key, problem)| anyhow!("{key}: {problem}"))?;
        Ok(Self { config, selects: Arc::new(selects), rules })
    }
}

impl Process {
    /// Begins to fill `index`, and everything around it.
    pub(super) async fn start(args: &ServerArgs, prepared: Prepared, index: Index) -> anyhow::Result<Self> {
        let Prepared { config, selects, .. } = prepared;
        let client = client::connect().await?;
        let settings = Arc::new(ArcSwap::from_pointee(Settings::of(&config, &args.namespace)));
        let stop = CancellationToken::new();
        let terminate = on_signal().context("cannot listen for signals")?;
        let metrics = Arc::new(Metrics::default());
        let tasks = Tasks::new(terminate.clone());
        let watches =
            Watches { client: client.clone(), tasks: tasks.clone(), metrics: metrics.clone(), stop: stop.clone() };
        let resources = Resources::default();
        let health = fill(&watches, &index, config.eviction_hold.enabled || !config.busy_hints.enabled);
        let excluded = config.rules(&args.namespace).excluded_namespaces;
        let busy_health = fill_busy(&watches, &index, &resources, &selects, &excluded);
        let touched = index.clone();
        tasks.spawn(
            "configuration",
            settings::follow(
                args.config.clone(),
                config.clone(),
                args.namespace.clone(),
                Arc::clone(&settings),
                move || {
                    touched.touch_workloads_with_holds();
                    touched.touch_policies();
                    touched.touch_busy_pods();
                },
                stop.clone(),
            ),
        );
        Ok(Self {
            client,
            config,
            selects,
            resources,
            settings,
            index,
            health,
            busy_health,
            metrics,
            tasks,
            watches,
            terminate,
            stop,
        })
    }
}

/// What must be so for a server to be ready: it is not ending, and its caches are filled. Those for busy rules are
/// waited for only until it is known that they cannot be filled, such as for want of a right: one wrong rule must not
/// take down the rest.
pub(super) fn conditions(
    terminate: &CancellationToken,
    health: Vec<Health>,
    busy_health: Vec<Health>,
) -> Vec<Condition> {
    let terminating = terminate.clone();
    let serving = move || if terminating.is_cancelled() { Err("shutting down".to_owned()) } else { Ok(()) };
    let caches = health.into_iter().map(|health| -> Condition { ("cache", Arc::new(move || health.ready())) });
    let busy = busy_health.into_iter().map(|health| -> Condition { ("cache", Arc::new(move || health.settled())) });
    std::iter::once::<Condition>(("serving", Arc::new(serving))).chain(caches).chain(busy).collect()
}

/// What is not logged unless asked for by name: kube tells of every failed request and every broken watch before the
/// caller does, which is ten lines a second while the API server is away. Each caller says it once, with what it was
/// about.
const QUIET: &str = "kube_client::client=off,kube_runtime::watcher=off";

/// Starts logging to standard error.
pub(super) fn start_logging(args: &LogArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", args.log)).with_context(|| {
        format!("BELAY_LOG: {:?} is not a log filter; write one like info or info,belay=debug", args.log)
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// A token that SIGTERM or SIGINT cancels.
fn on_signal() -> std::io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        cancelled.cancel();
    });
    Ok(token)
}

/// Watches everything that decisions about evictions read: for handovers, or for busy pods alone.
fn fill(watches: &Watches, index: &Index, handovers: bool) -> Vec<Health> {
    let client = || watches.client.clone();
    let sink = || IndexSink(index.clone());
    let config = watcher::Config::default;
    let mut health = vec![
        watches.start("pods", Api::all(client()), config(), |pod: &PodSubset| Some(project::pod(pod)), sink()),
        watches.start("EvictionHolds", Api::all(client()), config(), hold, sink()),
    ];
    if !handovers {
        return health;
    }
    health.extend([
        watches.start("nodes", Api::all(client()), config(), |node: &NodeSubset| Some(project::node(node)), sink()),
        watches.start(
            "ReplicaSets",
            Api::all(client()),
            config(),
            |set: &ReplicaSetSubset| Some(project::replica_set(set)),
            sink(),
        ),
        watches.start(
            "Deployments",
            Api::all(client()),
            config(),
            |deployment: &DeploymentSubset| Some(project::deployment(deployment)),
            sink(),
        ),
        watches.start("HandoverPolicies", Api::all(client()), config(), |object| Some(policy(object)), sink()),
    ]);
    health
}

/// Watches what busy rules read: the pods that each selects, whole; the kinds of their owners; linked pods.
fn fill_busy(
    watches: &Watches,
    index: &Index,
    resources: &Resources,
    selects: &Arc<Vec<Selects>>,
    excluded: &[String],
) -> Vec<Health> {
    let pods: Api<DynamicObject> = Api::all_with(watches.client.clone(), &ApiResource::erase::<Pod>(&()));
    let mut health = Vec::new();
    for (number, select) in selects.iter().enumerate() {
        let (rules, select_pod, excluded) = (Arc::clone(index.rules()), select.clone(), excluded.to_vec());
        let Some(name) = rules.get(number).map(|rule| rule.spec.name.clone()) else { continue };
        let project = move |pod: &DynamicObject| {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let governed = select_pod.covers(namespace) && !excluded.iter().any(|excluded| excluded == namespace);
            if !governed {
                return None;
            }
            Some(project_busy::pod(pod, rules.get(number)?, Clock::wall()))
        };
        let config = watcher::Config::default().labels_from(&select.selector);
        let sink = BusyPodSink { index: index.clone(), rule: number };
        health.push(watches.start_named(
            "busy pods",
            format!("pods of rule {name}").into(),
            pods.clone(),
            config,
            project,
            sink,
        ));
    }
    let asked = index.rules().iter().filter_map(|rule| rule.spec.owner.as_ref());
    let kinds: BTreeSet<_> = asked.flat_map(|owner| owner.through.iter().chain([&owner.kind])).cloned().collect();
    for kind in kinds {
        let sink = OwnerSink { index: index.clone(), kind: kind.clone() };
        health.push(owners::follow(watches, resources.clone(), kind, sink));
    }
    let labels: BTreeSet<_> = index.rules().iter().filter_map(|rule| rule.spec.linked_label.clone()).collect();
    for label in labels {
        let sink = LinkedSink { index: index.clone(), label: label.as_str().into() };
        let (fields, key) = (sink.fields(), label.clone());
        let project = move |pod: &DynamicObject| project_busy::linked(pod, &key, &fields);
        let config = watcher::Config::default().labels(&label);
        let what = format!("pods linked by {label}").into();
        health.push(watches.start_named("linked pods", what, pods.clone(), config, project, sink));
    }
    health
}

/// A policy that a newer version wrote may hold words that this one does not know: it selects nothing and says why,
/// and the others are read all the same.
pub(super) fn policy(policy: &DeserializeGuard<HandoverPolicy>) -> Policy {
    let (readable, problem) = match &policy.0 {
        Ok(policy) => (policy.clone(), None),
        Err(invalid) => {
            let mut blank = HandoverPolicy::new("", HandoverPolicySpec::default());
            blank.metadata = invalid.metadata.clone();
            (blank, Some(format!("this version of Belay cannot read the policy: {}", invalid.error)))
        }
    };
    let spec = &readable.spec;
    let target = Target::of(spec.target_ref.as_ref().map(|target| target.name.as_str()), spec.selector.as_ref());
    Policy {
        view: project::policy(&readable),
        target: problem.map_or(target, Target::Invalid),
        generation: readable.metadata.generation.unwrap_or_default(),
        resource_version: readable.metadata.resource_version.clone().unwrap_or_default(),
        uid: readable.metadata.uid.clone().unwrap_or_default(),
        status: readable.status.clone(),
    }
}

/// A hold that a newer version wrote, and that this one cannot read, is passed over.
pub(super) fn hold(hold: &DeserializeGuard<EvictionHold>) -> Option<HoldView> {
    match &hold.0 {
        Ok(hold) => Some(project::hold(hold)),
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            let namespace = invalid.metadata.namespace.as_deref().unwrap_or_default();
            tracing::warn!(%namespace, hold = %name, error = %invalid.error, "EvictionHold passed over");
            None
        }
    }
}
