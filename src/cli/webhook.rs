//! `belay webhook`: serves the admission webhooks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use belay_decide::cost::cluster::Cluster;
use futures::FutureExt as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use webhook_certs::{CertResolver, Jitter, LeafRequest};

use super::fill::look_out_for_requests;
use super::process::{Prepared, Process, conditions, identity};
use super::{ServerArgs, WebhookArgs};
use crate::cluster::index::Index;
use crate::cluster::trust::Trust;
use crate::cluster::watch::{self, Health};
use crate::config::{Certs, CertsMode};
use crate::webhook::admin::{self, Admin};
use crate::webhook::bindings::BindTime;
use crate::webhook::leaf::{ServingLeaf, Source};
use crate::webhook::live::LiveReader;
use crate::webhook::recorder::Recorder;
use crate::webhook::server::{Server, Telemetry};
use crate::webhook::{Handlers, router, unserved};

/// Many times as long as the lists of a large cluster take, and short beside the outage of an API server, after which
/// everybody connects at once.
const FILLING: Duration = Duration::from_secs(10);

pub(super) async fn run(args: WebhookArgs) -> anyhow::Result<()> {
    let server_args = &args.server;
    let mut prepared = Prepared::load(server_args)?;
    let index = Index::new(std::mem::take(&mut prepared.rules));
    let cluster = prepared.cluster().map(Cluster::only_ranks);
    let process = Process::start(server_args, prepared, index, cluster).await?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on BELAY_LISTEN {}", args.listen))?;
    let admin_listener = TcpListener::bind(server_args.admin_listen)
        .await
        .with_context(|| format!("cannot listen on BELAY_ADMIN_LISTEN {}", server_args.admin_listen))?;
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
    } = process;

    let requests = config.holds().then(|| look_out_for_requests(&watches, &resources));
    let trust = Trust::watch(&watches, &server_args.namespace, &config);
    let resolver = CertResolver::new();
    let source = source(&config.certs, server_args);
    let leaf = ServingLeaf::keep(trust, source, Arc::clone(&resolver), Arc::clone(&metrics), &tasks, stop.clone());
    let tls = resolver.server_config().context("cannot set up TLS")?;

    let recorder = Recorder::start(&client, config.writes_per_second, Arc::clone(&metrics), &tasks, &stop);
    let handlers = Arc::new(Handlers {
        health: health.clone(),
        rule_health: rule_health.clone(),
        selects,
        bind_time: costs.clone().map(|filled| BindTime::new(filled.costs, filled.health, filled.left_out)),
        live: Some(LiveReader::new(client, resources.clone())),
        resources,
        replica: identity(server_args.pod_name.as_deref()),
        ..Handlers::new(index, settings, recorder, Arc::clone(&metrics))
    });
    if let Some(filled) = costs.clone() {
        tasks.spawn("ranks", filled.costs.keep_ranked(filled.health, stop.clone()));
    }
    let settling: Vec<Health> = health.iter().chain(&rule_health.pods).cloned().collect();
    let mut conditions = conditions(&terminate, health, &rule_health, costs.as_ref(), requests.as_ref());
    conditions.push(("certificate", Arc::new(move || leaf.ready())));
    let telemetry = metrics.register(Telemetry::register);
    let admin = Admin { conditions: Arc::new(conditions), metrics };
    let serving = tokio::spawn(admin::serve(admin_listener, admin, stop.clone()));

    tracing::info!(listen = %args.listen, admin = %server_args.admin_listen, "serving");
    // A defect of ours ends the process as SIGTERM does: the API server is served until it has turned to the others.
    let failing = tokio::spawn({
        let (tasks, terminate) = (tasks.clone(), terminate.clone());
        async move {
            let task = tasks.failed().await;
            terminate.cancel();
            task
        }
    });
    let server = Server::https(tls, router(handlers)).fallback(unserved).telemetry(telemetry);
    filled(&settling, &terminate).await;
    let drained = server.serve(listener, terminate).await;
    tracing::info!(cut_connections = drained.cut_connections, cut_requests = drained.cut_requests, "stopped serving");
    stop.cancel();
    serving.await.context("the admin server failed")?.context("the admin server failed")?;
    match failing.now_or_never() {
        Some(Ok(task)) => bail!("the task {task:?} ended by itself, which is a defect; see the log above"),
        _ => Ok(()),
    }
}

/// Waits for the caches; at most for so long that who connects meanwhile gets its answer.
///
/// A container that was started anew is an endpoint of its Service until the control plane has seen that it is not ready.
/// Connections that come by then wait in the listener's backlog for as long as the API server is willing to, which is
/// longer than lists take. A replica that cannot fill its caches begins without them: it lets evictions through and says
/// so, where an API server that gets no answer would make each of them wait.
async fn filled(settling: &[Health], terminate: &CancellationToken) {
    if tokio::time::timeout(FILLING, watch::settled(settling.iter(), terminate)).await.is_err() {
        tracing::warn!(after = ?FILLING, "serving without filled caches: evictions are let through until they are filled");
    }
}

/// Where the serving certificate comes from.
fn source(certs: &Certs, args: &ServerArgs) -> Source {
    match certs.mode {
        CertsMode::Auto => Source::Own(LeafRequest {
            dns_names: certs.dns_names.clone(),
            ips: Vec::new(),
            jitter: args.pod_name.as_deref().map_or(Jitter::NONE, Jitter::of),
        }),
        CertsMode::CertManager | CertsMode::ExistingSecret => {
            Source::Files(args.certs.clone(), certs.dns_names.clone())
        }
    }
}
