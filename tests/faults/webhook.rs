//! Webhook replicas die or are absent.
//!
//! An eviction that the API server sends to a replica between its death and its leaving the Service passes unheld:
//! `failurePolicy: Ignore` is what keeps an outage of Belay from blocking a cluster. So a drain is promised to be held
//! across the death of a replica where no try of it falls into that moment, and what is tested besides is that the
//! moment ends when the endpoint leaves, and does not come again when the replica is back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::endpoints;
use belay_e2e::service_proxy::SERVICE_NAME;
use belay_e2e::watching::{Change, changes};
use belay_e2e::world::{Belay, Namespace, PodInfo};
use futures::StreamExt as _;
use http::Request;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::client::Body;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use crate::stage::{PATIENCE, SYSTEM, Scene, fault, finally, metric_sum, scale};
use crate::support::{SOON, holds, restarts};

/// The API server's count of evictions that it let pass because it got no answer.
const FAILED_OPEN: &str = "apiserver_admission_webhook_fail_open_count{name=\"eviction.hold.belay.dev\"";

#[test]
fn a_drain_is_held_while_the_replica_that_answered_it_is_killed_twice() {
    fault("replicas-killed", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(16), "").await?;
        let unheld = failed_open(ns).await?;
        let mut before = held_by(belay).await?;
        let drain = scene.drain(ns).await?;
        for _ in 0..2 {
            let replica = ns
                .eventually("a replica holds the eviction", SOON, async || {
                    let now = held_by(belay).await?;
                    let risen = now.into_iter().zip(&before).find(|((_, now), (_, before))| now > before);
                    risen.map(|((replica, _), _)| replica).context("none has held it yet")
                })
                .await?;
            // Right after its answer: kubectl asks again five seconds later, when the endpoint has long left.
            kill_and_await(ns, belay, &replica).await?;
            before = held_by(belay).await?;
        }
        let exit = drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        let unheld = failed_open(ns).await? - unheld;
        ensure!(unheld == 0.0, "{unheld} tries met the dead replica before its endpoint had left: {exit}");
        scene.handed_over(ns).await
    });
}

#[test]
fn evictions_pass_unheld_only_until_the_endpoint_of_a_killed_replica_has_left() {
    /// Evictions asked for at once, so that the API server keeps connections to both replicas.
    const AT_ONCE: usize = 4;
    /// So many more once the replica is back, for which the API server has to make new connections.
    const MORE_AT_ONCE: usize = 8;
    /// How far apart each of them asks.
    const EVERY: Duration = Duration::from_millis(20);
    /// The proxy hears of a change of endpoints when this test does, give or take what a busy machine needs.
    const HEARSAY: Duration = Duration::from_secs(1);

    fault("endpoint-leaves", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(1), "").await?;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut askers = JoinSet::new();
        let mut ask = |count: usize| {
            for _ in 0..count {
                let (client, namespace, pod) = (ns.client(), ns.name().to_owned(), scene.victim.name.clone());
                askers.spawn(ask_again_and_again(client, namespace, pod, EVERY, asked.clone()));
            }
        };
        let answers = async |more: usize| {
            let goal = asked.lock().len() + more;
            ns.eventually("evictions are answered", SOON, async || {
                let count = asked.lock().len();
                ensure!(count >= goal, "{count} of {goal}");
                Ok(())
            })
            .await
        };
        ask(AT_ONCE);
        answers(200).await?;
        let pods = belay.webhook_pods().await?;
        let killed = pods.first().context("no webhook replica")?;
        let left = Left::follow(ns, killed);
        let at = Instant::now();
        kill_and_await(ns, belay, killed).await?;
        let left = left.at(ns).await?;
        ask(MORE_AT_ONCE);
        ns.eventually("the replica that is back is asked", SOON, async || {
            let dry_runs = metric_sum(belay, killed, "belay_eviction_reviews_total", "reason=\"DryRun\"").await?;
            ensure!(dry_runs >= 100.0, "{dry_runs} times");
            Ok(())
        })
        .await?;
        drop(askers);

        let asked = std::mem::take(&mut *asked.lock());
        let unheld: Vec<_> = asked.iter().filter(|one| one.answer != Answer::WouldHold).collect();
        let meanwhile = asked.iter().filter(|one| one.begun >= at && one.begun < left).count();
        let window = left.duration_since(at);
        eprintln!("{meanwhile} evictions asked for in the {window:.0?} between death and leaving; unheld: {unheld:?}");
        let wrong: Vec<_> =
            unheld.iter().filter(|one| one.begun < at - HEARSAY || one.begun > left + HEARSAY).collect();
        ensure!(wrong.is_empty(), "unheld with the endpoint gone: {wrong:?}");
        ensure!(restarts(ns, "web").await? == 0, "a dry run restarted the Deployment");
        Ok(())
    });
}

#[test]
fn without_any_webhook_replica_a_drain_goes_through_and_hears_nothing_of_belay() {
    fault("absent", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(1), "").await?;
        let body = async {
            scale(ns, belay, "webhook", 0).await?;
            let exit = scene.drain(ns).await?.exit(PATIENCE).await?;
            ensure!(exit.success(), "{exit}");
            ensure!(!exit.text().to_lowercase().contains("belay"), "{exit}");
            ensure!(exit.text().contains(&format!("pod/{} evicted", scene.victim.name)), "{exit}");
            scene.web.available(SOON).await?;
            ensure!(holds(ns).await?.is_empty() && restarts(ns, "web").await? == 0, "somebody held or restarted it");
            Ok(())
        };
        finally(body, scale(ns, belay, "webhook", 2)).await
    });
}

/// Kills a replica's program, and waits until the next one serves in its place.
pub(crate) async fn kill_and_await(ns: &Namespace, belay: &Belay, replica: &PodInfo) -> anyhow::Result<()> {
    let starts = async || {
        let pods = belay.webhook_pods().await?;
        let pod = pods.into_iter().find(|pod| pod.uid == replica.uid).context("the replica is gone")?;
        anyhow::Ok((pod.restarts(), pod.ready))
    };
    let (before, _) = starts().await?;
    belay.kill(replica)?;
    ns.eventually(&format!("{} is back", replica.name), SOON, async || {
        let (count, ready) = starts().await?;
        ensure!(count > before && ready, "{count} restarts, ready: {ready}");
        Ok(())
    })
    .await
}

/// How many evictions each replica has held since its program started, in the order of their names.
async fn held_by(belay: &Belay) -> anyhow::Result<Vec<(PodInfo, f64)>> {
    let mut all = Vec::new();
    for pod in belay.webhook_pods().await? {
        let count = metric_sum(belay, &pod, "belay_eviction_reviews_total", "decision=\"Hold\"").await?;
        all.push((pod, count));
    }
    Ok(all)
}

/// How many evictions the API server let pass because it got no answer, since it started.
pub(crate) async fn failed_open(ns: &Namespace) -> anyhow::Result<f64> {
    let text = ns.client().request_text(Request::get("/metrics").body(Vec::new())?).await?;
    let line = text.lines().find(|line| line.starts_with(FAILED_OPEN));
    let Some(line) = line else { return Ok(0.0) };
    line.rsplit(' ').next().unwrap_or_default().parse().with_context(|| format!("no metric: {line}"))
}

/// When the endpoint of a pod left its Service.
struct Left {
    at: Arc<Mutex<Option<Instant>>>,
    _task: AbortOnDropHandle<()>,
}

impl Left {
    fn follow(ns: &Namespace, pod: &PodInfo) -> Self {
        let at = Arc::new(Mutex::new(None));
        let slices: Api<EndpointSlice> = Api::namespaced(ns.client(), SYSTEM);
        let of_webhook = watcher::Config::default().labels(&format!("{SERVICE_NAME}=belay-webhook"));
        let (found, name) = (at.clone(), pod.name.clone());
        let task = tokio::spawn(async move {
            let mut stream = std::pin::pin!(changes(slices, of_webhook));
            while let Some(change) = stream.next().await {
                let Change::Applied(slice) = change else { continue };
                let port = slice.ports.iter().flatten().find_map(|port| port.name.clone()).unwrap_or_default();
                let all = endpoints::of_slices(std::iter::once(&slice), &port);
                if !all.iter().any(|endpoint| endpoint.pod == name && endpoint.ready) {
                    tracing::debug!(slice = slice.name_any(), "the endpoint has left");
                    found.lock().get_or_insert_with(Instant::now);
                }
            }
        });
        Self { at, _task: AbortOnDropHandle::new(task) }
    }

    async fn at(&self, ns: &Namespace) -> anyhow::Result<Instant> {
        ns.eventually("the endpoint leaves", SOON, async || self.at.lock().context("it has not left")).await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Belay says that a real eviction would be held.
    WouldHold,
    /// Belay says that it does not know yet.
    NotSynced,
    /// Nobody says anything.
    Passed,
    /// The API server refuses the request itself.
    Refused,
}

#[derive(Debug)]
struct Asked {
    begun: Instant,
    answer: Answer,
}

/// Evictions as dry runs, for which Belay decides as for real ones and says in a warning what it decided.
async fn ask_again_and_again(
    client: Client,
    namespace: String,
    pod: String,
    every: Duration,
    asked: Arc<Mutex<Vec<Asked>>>,
) {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction?dryRun=All");
    let metadata = json!({ "name": pod, "namespace": namespace });
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata }).to_string();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let request = Request::post(&path).header("content-type", "application/json");
        let Ok(request) = request.body(Body::from(eviction.clone().into_bytes())) else { return };
        let begun = Instant::now();
        let answer = match client.send(request).await {
            Ok(response) if response.status().is_success() => {
                let warnings: Vec<_> =
                    response.headers().get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect();
                match warnings.concat() {
                    text if text.contains("would be held") => Answer::WouldHold,
                    text if text.contains("not ready yet") => Answer::NotSynced,
                    _ => Answer::Passed,
                }
            }
            _ => Answer::Refused,
        };
        asked.lock().push(Asked { begun, answer });
    }
}
