//! `belay controller`: hands workloads over and keeps statuses and certificates, as long as it leads.

use std::sync::Arc;

use anyhow::{Context, bail};
use belay_decide::probe::Memory;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::ServerArgs;
use super::fill::fill_requests;
use super::process::{Filled, Prepared, Process, conditions, identity};
use crate::cluster::apply::Applier;
use crate::cluster::index::Index;
use crate::cluster::lease::{self, Leadership};
use crate::cluster::owners::Resources;
use crate::cluster::probe::Prober;
use crate::cluster::project_cost::LeftOut;
use crate::cluster::trust::Trust;
use crate::cluster::watch::{Health, RuleHealth, Watches, settled, synced};
use crate::config::{CertsMode, Config};
use crate::controllers::work::Written;
use crate::controllers::{OwnPod, Shared, busy, certificates, costs, handover, policies, probe, requests};
use crate::metrics::Metrics;
use crate::rate::TokenBucket;
use crate::tasks::Tasks;
use crate::webhook::admin::{self, Admin};
use crate::webhook::live::LiveReader;

pub(super) async fn run(args: ServerArgs) -> anyhow::Result<()> {
    let mut prepared = Prepared::load(&args)?;
    let (index, dirty) = Index::following(std::mem::take(&mut prepared.rules));
    let cluster = prepared.cluster();
    let process = Process::start(&args, prepared, index, cluster).await?;
    let admin_listener = TcpListener::bind(args.admin_listen)
        .await
        .with_context(|| format!("cannot listen on BELAY_ADMIN_LISTEN {}", args.admin_listen))?;
    let Process {
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
        ..
    } = process;
    let leadership = Arc::new(Leadership::default());

    // The lead is given up when the loops have ended, so that two never write at once.
    let resign = CancellationToken::new();
    let election = tasks.spawn("leader election", {
        let (client, namespace) = (client.clone(), args.namespace.clone());
        let identity = identity(args.pod_name.as_deref());
        let seen = (health.clone(), costs.iter().flat_map(|filled| filled.health.clone()).collect());
        elect(client, namespace, identity, config.clone(), Arc::clone(&leadership), resign.clone(), seen)
    });
    let applier = Applier::start(
        client.clone(),
        Arc::clone(&leadership),
        Arc::new(TokenBucket::new(config.writes_per_second)),
        resources.clone(),
        args.pod_name.clone(),
        Arc::clone(&metrics),
        &tasks,
    );
    let shared = Shared {
        client: client.clone(),
        index,
        dirty,
        applier: Arc::clone(&applier),
        settings,
        leadership: Arc::clone(&leadership),
        metrics: Arc::clone(&metrics),
        health: health.clone(),
    };
    let left_out = LeftOut::of(config.rules(&args.namespace), &selects, shared.index.rules());
    let handover = handover::Loop::new(shared.clone(), left_out);
    let (written, remembered) = (Written::default(), busy::Remembered::default());
    let busy = busy::Loop { shared: shared.clone(), selects, rule_health: rule_health.clone(), written, remembered };
    let cost_writes = config.deletion_cost.writes_per_second;
    let ranking = costs.clone().map(|Filled { costs, health, .. }| {
        costs::Loop::new(shared.clone(), costs, health, own_pod(&args), cost_writes)
    });
    let responding = config.holds().then(|| responding(&watches, &shared, &rule_health, &resources));
    let requests = responding.as_ref().map(|responding| responding.evictions.clone());
    let probe = config.probes().then(|| probing(&args, &config, &shared));
    let policies = policies::Loop { shared };
    let certificates = certificates(&args, &config, &watches, (leadership, applier, Arc::clone(&metrics)));
    let certificates = certificates.map(|keep| tasks.spawn("certificates", keep.run(terminate.clone())));
    let ranking = ranking.map(|costs| tasks.spawn("deletion costs", costs.run(terminate.clone())));
    let responding = responding.map(|requests| tasks.spawn("eviction requests", requests.run(terminate.clone())));
    let probing = probe.map(|probe| tasks.spawn("probe", probe.run(terminate.clone())));
    let loops = [
        tasks.spawn("handovers", handover.run(terminate.clone())),
        tasks.spawn("busy pods", busy.run(terminate.clone())),
        tasks.spawn("policies", policies.run(terminate.clone())),
    ];
    let conditions = conditions(&terminate, health, &rule_health, costs.as_ref(), requests.as_ref());
    let admin = Admin { conditions: Arc::new(conditions), metrics };
    let serving = tokio::spawn(admin::serve(admin_listener, admin, stop.clone()));

    let failed = ended(&tasks, &terminate).await;
    for task in loops.into_iter().chain(certificates).chain(ranking).chain(responding).chain(probing) {
        task.await.context("a controller loop failed")?;
    }
    resign.cancel();
    election.await.context("leader election failed")?;
    stop.cancel();
    serving.await.context("the admin server failed")?.context("the admin server failed")?;
    match failed {
        Some(task) => bail!("the task {task:?} ended by itself, which is a defect; see the log above"),
        None => Ok(()),
    }
}

/// The loop that keeps what is trusted; none where cert-manager's cainjector does, and nothing of it may be read.
fn certificates(
    args: &ServerArgs,
    config: &Config,
    watches: &Watches,
    (leadership, applier, metrics): (Arc<Leadership>, Arc<Applier>, Arc<Metrics>),
) -> Option<certificates::Loop> {
    let source = match config.certs.mode {
        CertsMode::CertManager if config.certs.ca_injector => return None,
        CertsMode::Auto => certificates::Source::Own(config.certs.secret_name.clone()),
        CertsMode::CertManager | CertsMode::ExistingSecret => certificates::Source::files(args.certs.clone()),
    };
    Some(certificates::Loop {
        client: watches.client.clone(),
        trust: Trust::watch(watches, &args.namespace, config),
        namespace: args.namespace.clone(),
        pod_name: args.pod_name.clone(),
        source,
        configurations: config.webhook_configurations.clone(),
        leadership,
        applier,
        metrics,
    })
}

/// Begins to watch what EvictionRequests ask, for the loop that responds to them.
fn responding(watches: &Watches, shared: &Shared, rule_health: &RuleHealth, resources: &Resources) -> requests::Loop {
    requests::Loop {
        shared: shared.clone(),
        evictions: fill_requests(watches, &shared.index, resources),
        rule_health: rule_health.clone(),
        live: LiveReader::new(shared.client.clone(), resources.clone()),
        written: Written::default(),
    }
}

/// What asks whether evictions come to the webhook.
fn probing(args: &ServerArgs, config: &Config, shared: &Shared) -> probe::Loop {
    let (client, configuration) = (shared.client.clone(), config.webhook_configurations.validating.clone());
    probe::Loop {
        prober: Prober::new(client, args.namespace.clone(), configuration),
        interval: config.probe.interval,
        own_pod: own_pod(args),
        leadership: Arc::clone(&shared.leadership),
        applier: Arc::clone(&shared.applier),
        metrics: Arc::clone(&shared.metrics),
        memory: Memory::default(),
        unread: None,
    }
}

/// Takes part in the election, as soon as there is something to be seen: a replica that sees nothing must not keep one
/// that does from leading. What only deletion costs read is waited for until it is known whether it can be seen.
async fn elect(
    client: Client,
    namespace: String,
    identity: String,
    config: Config,
    leadership: Arc<Leadership>,
    resign: CancellationToken,
    (health, costs): (Vec<Health>, Vec<Health>),
) {
    if synced(&health, &resign).await && settled(costs.iter(), &resign).await {
        let timing = config.timing();
        lease::run(client, namespace, config.leader_election.lease_name, identity, timing, leadership, resign).await;
    }
}

fn own_pod(args: &ServerArgs) -> OwnPod {
    OwnPod {
        namespace: args.namespace.clone(),
        name: args.pod_name.clone().unwrap_or_default(),
        uid: args.pod_uid.clone().unwrap_or_default(),
    }
}

/// Waits until this process is to end, or has to: the task that ended by itself.
async fn ended(tasks: &Tasks, terminate: &CancellationToken) -> Option<&'static str> {
    let failed = tokio::select! {
        () = terminate.cancelled() => None,
        task = tasks.failed() => Some(task),
    };
    tracing::info!("shutting down");
    terminate.cancel();
    failed
}
