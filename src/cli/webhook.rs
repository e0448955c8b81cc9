//! `belay webhook`: serves the admission webhooks.

use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use webhook_certs::{CertResolver, Jitter, LeafRequest};

use super::WebhookArgs;
use super::process::Process;
use crate::cluster::clock::Clock;
use crate::cluster::trust::Trust;
use crate::metrics::Metrics;
use crate::webhook::admin::{self, Admin, Condition};
use crate::webhook::leaf::ServingLeaf;
use crate::webhook::memory::Victims;
use crate::webhook::recorder::Recorder;
use crate::webhook::server::{Server, Telemetry};
use crate::webhook::{Handlers, router, unserved};

pub(super) async fn run(args: WebhookArgs) -> anyhow::Result<()> {
    let server_args = &args.server;
    let process = Process::start(server_args).await?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on BELAY_LISTEN {}", args.listen))?;
    let admin_listener = TcpListener::bind(server_args.admin_listen)
        .await
        .with_context(|| format!("cannot listen on BELAY_ADMIN_LISTEN {}", server_args.admin_listen))?;
    let metrics = Arc::new(Metrics::default());
    let Process { client, config, settings, index, health, terminate, stop } = process;

    let trust = Trust::watch(&client, &server_args.namespace, &config, &stop);
    let resolver = CertResolver::new();
    let request = LeafRequest {
        dns_names: config.certs.dns_names.clone(),
        ips: Vec::new(),
        jitter: server_args.pod_name.as_deref().map_or(Jitter::NONE, Jitter::of),
    };
    let leaf = ServingLeaf::keep(trust, request, Arc::clone(&resolver), stop.clone());
    let tls = resolver.server_config().context("cannot set up TLS")?;

    let recorder = Recorder::start(&client, config.writes_per_second, Arc::clone(&metrics), &stop);
    let handlers = Arc::new(Handlers {
        index,
        health: health.clone(),
        settings,
        victims: Victims::default(),
        recorder,
        metrics: Arc::clone(&metrics),
        clock: Clock::start(),
    });
    let terminating = terminate.clone();
    let mut conditions: Vec<Condition> = vec![
        (
            "serving",
            Arc::new(move || if terminating.is_cancelled() { Err("shutting down".to_owned()) } else { Ok(()) }),
        ),
        ("certificate", Arc::new(move || leaf.ready())),
    ];
    conditions.extend(health.into_iter().map(|health| -> Condition { ("cache", Arc::new(move || health.ready())) }));
    let telemetry = metrics.register(Telemetry::register);
    let admin = Admin { conditions: Arc::new(conditions), metrics };
    let serving = tokio::spawn(admin::serve(admin_listener, admin, stop.clone()));

    tracing::info!(listen = %args.listen, admin = %server_args.admin_listen, "serving");
    let drained =
        Server::https(tls, router(handlers)).fallback(unserved).telemetry(telemetry).serve(listener, terminate).await;
    tracing::info!(cut_connections = drained.cut_connections, cut_requests = drained.cut_requests, "stopped serving");
    stop.cancel();
    serving.await.context("the admin server failed")?.context("the admin server failed")
}
