//! What both servers need: a runtime, logs, signals, the watches that fill the cache.

use std::future::Future;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::{LogFormat, ServerArgs};
use crate::api::{EvictionHold, HandoverPolicy};
use crate::cluster::index::{Index, IndexSink, Policy, Target};
use crate::cluster::subset::{DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use crate::cluster::watch::{Health, run};
use crate::cluster::{client, project};
use crate::config::Config;
use crate::settings::{self, Settings};

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
    /// Cancelled at SIGTERM or SIGINT: readiness goes off.
    pub(super) terminate: CancellationToken,
    /// Cancelled when serving is over: everything in the background ends.
    pub(super) stop: CancellationToken,
}

impl Process {
    pub(super) async fn start(args: &ServerArgs) -> anyhow::Result<Self> {
        start_logging(args)?;
        let config = Config::load(&args.config)?;
        let client = client::connect().await?;
        let settings = Arc::new(ArcSwap::from_pointee(Settings::of(&config, &args.namespace)));
        let stop = CancellationToken::new();
        let terminate = on_signal().context("cannot listen for signals")?;
        let index = Index::new();
        let health = fill(&client, &index, &stop);
        let touched = index.clone();
        tokio::spawn(settings::follow(
            args.config.clone(),
            config.clone(),
            args.namespace.clone(),
            Arc::clone(&settings),
            move || {
                touched.touch_workloads_with_holds();
                touched.touch_policies();
            },
            stop.clone(),
        ));
        Ok(Self { client, config, settings, index, health, terminate, stop })
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
fn fill(client: &Client, index: &Index, stop: &CancellationToken) -> Vec<Health> {
    let sink = || IndexSink(index.clone());
    let config = watcher::Config::default;
    let mut all = Vec::new();
    let mut health = |what| {
        let health = Health::new(what);
        all.push(health.clone());
        health
    };
    let api = client.clone();
    tokio::spawn(run(Api::<PodSubset>::all(api.clone()), config(), project::pod, sink(), health("pods"), stop.clone()));
    tokio::spawn(run(
        Api::<NodeSubset>::all(api.clone()),
        config(),
        project::node,
        sink(),
        health("nodes"),
        stop.clone(),
    ));
    tokio::spawn(run(
        Api::<ReplicaSetSubset>::all(api.clone()),
        config(),
        project::replica_set,
        sink(),
        health("ReplicaSets"),
        stop.clone(),
    ));
    tokio::spawn(run(
        Api::<DeploymentSubset>::all(api.clone()),
        config(),
        project::deployment,
        sink(),
        health("Deployments"),
        stop.clone(),
    ));
    tokio::spawn(run(
        Api::<HandoverPolicy>::all(api.clone()),
        config(),
        policy,
        sink(),
        health("HandoverPolicies"),
        stop.clone(),
    ));
    tokio::spawn(run(
        Api::<EvictionHold>::all(api),
        config(),
        project::hold,
        sink(),
        health("EvictionHolds"),
        stop.clone(),
    ));
    all
}

fn policy(policy: &HandoverPolicy) -> Policy {
    let spec = &policy.spec;
    Policy {
        view: project::policy(policy),
        target: Target::of(spec.target_ref.as_ref().map(|target| target.name.as_str()), spec.selector.as_ref()),
        generation: policy.metadata.generation.unwrap_or_default(),
        status: policy.status.clone(),
    }
}
