//! What both servers need: a runtime, logs, signals, the watches that fill the cache.

use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use belay_decide::busy::Rule;
use belay_decide::cost::cluster::Cluster;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::fill::{Purpose, fill, fill_busy, fill_costs};
use super::{LogArgs, LogFormat, ServerArgs};
use crate::cluster::client;
use crate::cluster::clock::Clock;
use crate::cluster::costs::Costs;
use crate::cluster::index::Index;
use crate::cluster::owners::Resources;
use crate::cluster::project_cost::LeftOut;
use crate::cluster::watch::{Health, RuleHealth, Watches};
use crate::config::{Config, Selects};
use crate::metrics::Metrics;
use crate::settings::{self, Settings};
use crate::tasks::Tasks;
use crate::webhook::admin::Condition;

/// Runs a command to its end.
pub(super) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?
        .block_on(command)
}

/// What every server starts with.
pub(super) struct Process {
    pub(super) client: Client,
    pub(super) config: Config,
    /// What each busy rule selects.
    pub(super) selects: Arc<Vec<Selects>>,
    /// The kinds of other projects, as they are served.
    pub(super) resources: Resources,
    pub(super) settings: Arc<ArcSwap<Settings>>,
    pub(super) index: Index,
    pub(super) health: Vec<Health>,
    /// The watches that only busy rules need.
    pub(super) rule_health: RuleHealth,
    /// What deletion costs are made of; absent while they are off.
    pub(super) costs: Option<Filled>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: Tasks,
    pub(super) watches: Watches,
    /// Cancelled at SIGTERM or SIGINT: readiness goes off.
    pub(super) terminate: CancellationToken,
    /// Cancelled when serving is over: everything in the background ends.
    pub(super) stop: CancellationToken,
}

/// A cache of deletion costs, and what fills it.
#[derive(Clone)]
pub(super) struct Filled {
    pub(super) costs: Costs,
    pub(super) health: Vec<Health>,
    pub(super) left_out: LeftOut,
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

    /// An empty cluster for deletion costs; absent while they are off.
    pub(super) fn cluster(&self) -> Option<Cluster> {
        let costs = &self.config.deletion_cost;
        costs.enabled.then(|| Cluster::new(costs.options(), costs.stand_down()))
    }
}

impl Process {
    /// Begins to fill `index`, and everything around it.
    pub(super) async fn start(
        args: &ServerArgs,
        prepared: Prepared,
        index: Index,
        cluster: Option<Cluster>,
    ) -> anyhow::Result<Self> {
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
        let rules = config.rules(&args.namespace);
        let costs = cluster.map(Costs::new);
        let purpose = Purpose::of(&config, costs.clone(), LeftOut::of(rules.clone(), &selects, index.rules()));
        index.judge_by(&settings.load().signals, Clock::wall());
        let reading = fill(&watches, &index, &resources, &purpose);
        let health = reading.holds;
        let costs = costs.map(|costs| {
            let besides = fill_costs(&watches, &resources, &costs);
            let health = reading.costs.into_iter().chain(besides).collect();
            Filled { costs, health, left_out: purpose.left_out }
        });
        let rule_health = fill_busy(&watches, &index, &resources, &selects, &rules);
        let (touched, in_force) = (index.clone(), Arc::clone(&settings));
        tasks.spawn(
            "configuration",
            settings::follow(
                args.config.clone(),
                config.clone(),
                args.namespace.clone(),
                Arc::clone(&settings),
                move || {
                    touched.judge_by(&in_force.load().signals, Clock::wall());
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
            rule_health,
            costs,
            metrics,
            tasks,
            watches,
            terminate,
            stop,
        })
    }
}

/// What must be so for a server to be ready: it is not ending, and its caches are filled. Those of what busy rules and
/// EvictionRequests ask and deletion costs read are waited for only until it is known that they cannot be filled, such
/// as for want of a right: one wrong rule must not take down the rest.
pub(super) fn conditions(
    terminate: &CancellationToken,
    health: Vec<Health>,
    rule_health: &RuleHealth,
    costs: Option<&Filled>,
    requests: Option<&Health>,
) -> Vec<Condition> {
    let terminating = terminate.clone();
    let serving = move || if terminating.is_cancelled() { Err("shutting down".to_owned()) } else { Ok(()) };
    let caches = health.into_iter().map(|health| -> Condition { ("cache", Arc::new(move || health.ready())) });
    let governing = rule_health.pods.iter().cloned();
    let governing = governing.map(|health| -> Condition { ("cache", Arc::new(move || health.ready())) });
    let asked = rule_health.asked.iter().flatten().chain(costs.iter().flat_map(|filled| &filled.health));
    let asked = asked.chain(requests).cloned();
    let asked = asked.map(|health| -> Condition { ("cache", Arc::new(move || health.settled())) });
    std::iter::once::<Condition>(("serving", Arc::new(serving))).chain(caches).chain(governing).chain(asked).collect()
}

/// What is not logged unless asked for by name: kube tells of every failed request and every broken watch before the
/// caller does, which is ten lines a second while the API server is away. Each caller says it once, with what it was
/// about.
const QUIET: &str = "kube_client::client=off,kube_runtime::watcher=off";

/// Starts logging to standard error.
pub(super) fn start_logging(args: &LogArgs) -> anyhow::Result<()> {
    let filter = filter(args.log.as_deref(), std::env::var("RUST_LOG").ok().as_deref())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

fn filter(ours: Option<&str>, of_all: Option<&str>) -> anyhow::Result<EnvFilter> {
    let (name, text) = chosen(ours, of_all);
    EnvFilter::try_new(format!("{QUIET},{text}"))
        .with_context(|| format!("{name}: {text:?} is not a log filter; write one like info or info,belay=debug"))
}

/// The filter that was asked for, and where: ours, else that of every program in Rust, else one line a decision that
/// changed something.
fn chosen<'a>(ours: Option<&'a str>, of_all: Option<&'a str>) -> (&'static str, &'a str) {
    let filled = |text: &&str| !text.is_empty();
    match (ours.filter(filled), of_all.filter(filled)) {
        (Some(ours), _) => ("BELAY_LOG", ours),
        (None, Some(of_all)) => ("RUST_LOG", of_all),
        (None, None) => ("BELAY_LOG", "info"),
    }
}

/// Who this replica is, in the election and to those who probe. Outside a cluster two processes must still differ.
pub(super) fn identity(pod_name: Option<&str>) -> String {
    pod_name.map_or_else(|| format!("belay-{:016x}", RandomState::new().build_hasher().finish()), str::to_owned)
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

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn what_is_logged_is_asked_for_by_our_variable_or_else_by_that_of_every_program() {
        let table = [
            (None, None, ("BELAY_LOG", "info")),
            (None, Some("warn"), ("RUST_LOG", "warn")),
            (Some("debug"), Some("warn"), ("BELAY_LOG", "debug")),
            (Some(""), Some("warn,belay::cluster=trace"), ("RUST_LOG", "warn,belay::cluster=trace")),
            (Some("info,belay[{object}]=debug"), Some(""), ("BELAY_LOG", "info,belay[{object}]=debug")),
        ];
        for (ours, of_all, expected) in table {
            assert_eq!(chosen(ours, of_all), expected);
            assert!(filter(ours, of_all).is_ok(), "{expected:?}");
        }
        for (ours, of_all, name) in [(Some("belay=loud"), None, "BELAY_LOG"), (None, Some("belay=loud"), "RUST_LOG")] {
            let error = filter(ours, of_all).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: \"belay=loud\" is not a log filter")), "{error}");
        }
    }

    #[test]
    fn a_server_is_ready_without_what_cannot_be_seen_but_not_without_what_is_only_late() {
        let health = || Health::new("objects", Gauge::default());
        let (cache, governing, late, denied) = (health(), health(), health(), health());
        let asked = vec![vec![late.clone()], vec![denied.clone()]];
        let rule_health = RuleHealth { pods: vec![governing.clone()], asked };
        let terminate = CancellationToken::new();
        let conditions = conditions(&terminate, vec![cache.clone()], &rule_health, None, None);
        let missing = || conditions.iter().filter(|(_, condition)| condition().is_err()).count();
        assert_eq!(missing(), 4);
        for health in [&cache, &governing, &late, &denied] {
            health.note("connection refused", false);
        }
        assert_eq!(missing(), 4, "trouble that may pass by itself");
        for health in [&cache, &governing, &denied] {
            health.note("missing right", true);
        }
        assert_eq!(missing(), 3, "one rule's is known to last, the others' would blind every rule");
        for health in [&cache, &governing, &late] {
            health.absent();
        }
        assert_eq!(missing(), 0);
        terminate.cancel();
        assert_eq!(missing(), 1, "shutting down");
    }
}
