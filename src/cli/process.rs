//! What both servers need: a runtime, logs, signals, the watches that fill the cache.

use std::future::Future;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use belay_decide::hold::HoldView;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::{LogFormat, ServerArgs};
use crate::api::{EvictionHold, HandoverPolicy, HandoverPolicySpec};
use crate::cluster::index::{Index, IndexSink, Policy, Target};
use crate::cluster::subset::{DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use crate::cluster::watch::{Health, Watches};
use crate::cluster::{client, project};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::settings::{self, Settings};
use crate::tasks::Tasks;

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
    pub(super) settings: Arc<ArcSwap<Settings>>,
    pub(super) index: Index,
    pub(super) health: Vec<Health>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: Tasks,
    pub(super) watches: Watches,
    /// Cancelled at SIGTERM or SIGINT: readiness goes off.
    pub(super) terminate: CancellationToken,
    /// Cancelled when serving is over: everything in the background ends.
    pub(super) stop: CancellationToken,
}

impl Process {
    /// Begins to fill `index`, and everything around it.
    pub(super) async fn start(args: &ServerArgs, index: Index) -> anyhow::Result<Self> {
        start_logging(args)?;
        let config = Config::load(&args.config).context("--config (BELAY_CONFIG; the chart renders the file)")?;
        let client = client::connect().await?;
        let settings = Arc::new(ArcSwap::from_pointee(Settings::of(&config, &args.namespace)));
        let stop = CancellationToken::new();
        let terminate = on_signal().context("cannot listen for signals")?;
        let metrics = Arc::new(Metrics::default());
        let tasks = Tasks::new(terminate.clone());
        let watches =
            Watches { client: client.clone(), tasks: tasks.clone(), metrics: metrics.clone(), stop: stop.clone() };
        let health = fill(&watches, &index);
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
                },
                stop.clone(),
            ),
        );
        Ok(Self { client, config, settings, index, health, metrics, tasks, watches, terminate, stop })
    }
}

/// What is not logged unless asked for by name: kube tells of every failed request and every broken watch before the
/// caller does, which is ten lines a second while the API server is away. Each caller says it once, with what it was
/// about.
const QUIET: &str = "kube_client::client=off,kube_runtime::watcher=off";

fn start_logging(args: &ServerArgs) -> anyhow::Result<()> {
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

/// Watches everything that decisions read.
fn fill(watches: &Watches, index: &Index) -> Vec<Health> {
    let client = || watches.client.clone();
    let sink = || IndexSink(index.clone());
    let config = watcher::Config::default;
    vec![
        watches.start("pods", Api::all(client()), config(), |pod: &PodSubset| Some(project::pod(pod)), sink()),
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
        watches.start("EvictionHolds", Api::all(client()), config(), hold, sink()),
    ]
}

/// A policy that a newer version wrote may hold words that this one does not know: it selects nothing and says why,
/// and the others are read all the same.
fn policy(policy: &DeserializeGuard<HandoverPolicy>) -> Policy {
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

fn hold(hold: &DeserializeGuard<EvictionHold>) -> Option<HoldView> {
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
