//! `belay controller`: hands workloads over and keeps statuses and certificates, as long as it leads.

use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;

use super::ServerArgs;
use super::process::Process;
use crate::cluster::apply::Applier;
use crate::cluster::lease::{self, Leadership};
use crate::cluster::trust::Trust;
use crate::controllers::{certificates, handover, policies};
use crate::metrics::Metrics;
use crate::rate::TokenBucket;
use crate::webhook::admin::{self, Admin, Condition};

pub(super) async fn run(args: ServerArgs) -> anyhow::Result<()> {
    let process = Process::start(&args).await?;
    let admin_listener = TcpListener::bind(args.admin_listen)
        .await
        .with_context(|| format!("cannot listen on BELAY_ADMIN_LISTEN {}", args.admin_listen))?;
    let metrics = Arc::new(Metrics::default());
    let leadership = Arc::new(Leadership::default());
    let identity = args.pod_name.clone().unwrap_or_else(|| format!("belay-{}", std::process::id()));
    let Process { client, config, settings, index, health, terminate, stop } = process;

    let election = tokio::spawn(lease::run(
        client.clone(),
        args.namespace.clone(),
        config.leader_election.lease_name.clone(),
        identity,
        config.timing(),
        Arc::clone(&leadership),
        terminate.clone(),
    ));
    let trust = Trust::watch(&client, &args.namespace, &config, &stop);
    let rate = Arc::new(TokenBucket::new(config.writes_per_second));
    let applier = Applier::new(
        client.clone(),
        Arc::clone(&leadership),
        Arc::clone(&rate),
        args.pod_name.clone(),
        Arc::clone(&metrics),
    );
    let handover = handover::Loop {
        index: index.clone(),
        applier: Arc::new(applier),
        settings: Arc::clone(&settings),
        leadership: Arc::clone(&leadership),
        metrics: Arc::clone(&metrics),
        health: health.clone(),
        written: handover::Written::default(),
    };
    let policies = policies::Loop {
        client: client.clone(),
        index,
        settings,
        leadership: Arc::clone(&leadership),
        metrics: Arc::clone(&metrics),
        rate,
        health: health.clone(),
    };
    let certificates = certificates::Loop {
        client,
        trust,
        namespace: args.namespace.clone(),
        pod_name: args.pod_name.clone(),
        secret_name: config.certs.secret_name.clone(),
        configurations: config.webhook_configurations.clone(),
        leadership,
        metrics: Arc::clone(&metrics),
    };
    let loops = [
        tokio::spawn(handover.run(terminate.clone())),
        tokio::spawn(policies.run(terminate.clone())),
        tokio::spawn(certificates.run(terminate.clone())),
    ];
    let terminating = terminate.clone();
    let mut conditions: Vec<Condition> = vec![(
        "serving",
        Arc::new(move || if terminating.is_cancelled() { Err("shutting down".to_owned()) } else { Ok(()) }),
    )];
    conditions.extend(health.into_iter().map(|health| -> Condition { ("cache", Arc::new(move || health.ready())) }));
    let admin = Admin { conditions: Arc::new(conditions), metrics };
    let serving = tokio::spawn(admin::serve(admin_listener, admin, stop.clone()));

    terminate.cancelled().await;
    tracing::info!("shutting down");
    // The loops finish the write they are at; then the lead is given up, so that two never write at once.
    for task in loops {
        task.await.context("a controller loop failed")?;
    }
    election.await.context("leader election failed")?;
    stop.cancel();
    serving.await.context("the admin server failed")?.context("the admin server failed")
}
