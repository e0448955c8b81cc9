//! Pods get their value as they are bound, in the bind's own write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::watching::{Change, changes};
use belay_e2e::world::{Belay, Namespace, PodInfo, Web, Workload, merge};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::busy_support::{COST, mark, written};
use crate::stage::{PATIENCE, nodes, rested_in, settling_in, with_values};
use crate::support::SOON;
use crate::values::{cost, only_on, ours, ranked_in_order, resize, steady};
use crate::zones::over_zones;

/// How long Belay takes what is new for still changing, in these tests: as long as a busy machine may need to bind a pod
/// and make it Ready. One that takes longer is down.
const PATIENT: Duration = Duration::from_secs(8);

/// The API server's count of binds that it let pass because it got no answer.
const FAILED_OPEN: &str = "apiserver_admission_webhook_fail_open_count{name=\"binding.cost.belay.dev\"";

#[test]
fn pods_created_while_the_webhook_is_up_need_no_patch_after_their_bind_be_they_spread_over_zones_or_not() {
    patient("bind", async |ns: &Namespace, belay: &Belay| {
        let order = ranked_nodes(ns, belay).await?;
        let web = need_no_patch(ns, belay, ns.web("web")).await?;
        ranked_in_order(ns, &web, &order.iter().collect::<Vec<_>>()).await?;
        need_no_patch(ns, belay, over_zones(ns.web("spread"))).await.map(drop)
    });
}

#[test]
fn a_value_of_the_users_own_template_is_there_after_the_bind_as_before_it() {
    patient("template", async |ns: &Namespace, belay: &Belay| {
        ranked_nodes(ns, belay).await?;
        let before = written(ns)?.len();
        let web = ns.web("web").replicas(3).grace(1).pod_annotation(COST, "42").create().await?;
        web.available(SOON).await?;
        rested_in(ns, belay, PATIENT).await?;
        for pod in steady(&web).await? {
            ensure!(cost(&pod) == 42, "{} carries {}", pod.name, cost(&pod));
            ensure!(crate::busy_support::record(&pod)?.is_empty(), "{} has a record", pod.name);
        }
        let patched = written(ns)?.split_off(before);
        ensure!(patched.is_empty(), "{patched:?}");
        Ok(())
    });
}

#[test]
fn pods_that_waited_long_for_a_node_need_no_patch_after_their_bind_either() {
    patient("bind-late", async |ns: &Namespace, belay: &Belay| {
        ranked_nodes(ns, belay).await?;
        let binds = Binds::follow(ns, belay).await?;
        gated(ns.web("web")).create().await?;
        gated(over_zones(ns.web("spread"))).create().await?;
        let waiting = ns
            .eventually("all pods wait for a node", SOON, async || {
                let mut pods = ns.pods("app in (web, spread)").await?;
                pods.retain(|pod| pod.node.is_empty());
                ensure!(pods.len() == 12, "{} do", pods.len());
                Ok(pods)
            })
            .await?;
        // All that is there has settled, and these are no newcomers any more.
        rested_in(ns, belay, PATIENT).await?;
        for pod in waiting {
            let patch = Patch::Json::<()>(serde_json::from_value(
                json!([{ "op": "remove", "path": "/spec/schedulingGates" }]),
            )?);
            ns.api::<Pod>().patch(&pod.name, &PatchParams::default(), &patch).await?;
        }
        for name in ["web", "spread"] {
            bound(ns, &Workload::of(ns, name)).await?;
        }
        binds.were_all(ns, belay, 12).await
    });
}

/// With one webhook replica: an API server asks several by turns when it is busy, and of binds at the same moment none
/// knows of those that another answers.
fn patient(name: &str, body: impl AsyncFnOnce(&Namespace, &Belay) -> anyhow::Result<()>) {
    let mut values = settling_in(PATIENT);
    merge(&mut values, &json!({ "webhook": { "replicas": 1 } }));
    with_values(name, values, body);
}

/// Lets a workload grow, by many pods at once and by one, and holds Belay to writing on none after its bind.
async fn need_no_patch(ns: &Namespace, belay: &Belay, web: Web<'_>) -> anyhow::Result<Workload> {
    let binds = Binds::follow(ns, belay).await?;
    let workload = web.replicas(9).grace(1).create().await?;
    bound(ns, &workload).await?;
    for replicas in [10, 18] {
        resize(ns, &workload, replicas).await?;
        bound(ns, &workload).await?;
    }
    binds.were_all(ns, belay, 18).await?;
    Ok(workload)
}

/// Pods that wait until somebody takes a gate away.
fn gated(web: Web<'_>) -> Web<'_> {
    web.replicas(6).grace(1).edit(|deployment| {
        let gate = PodSchedulingGate { name: "test.belay.dev/later".into() };
        deployment.spec.template.spec.get_or_insert_default().scheduling_gates = Some(vec![gate]);
    })
}

/// Three nodes in three zones with pods enough, and different numbers of them, that a few more change no order. The
/// answer is that order.
async fn ranked_nodes(ns: &Namespace, belay: &Belay) -> anyhow::Result<Vec<String>> {
    let nodes = nodes(ns, 3, 110).await?;
    for (index, node) in nodes.iter().enumerate() {
        let name = format!("base-{}", index + 1);
        let base = only_on(ns.web(&name).replicas(4 + 12 * index as i32).grace(1), node).create().await?;
        base.available(SOON).await?;
    }
    rested_in(ns, belay, PATIENT).await?;
    let bases = ["base-1", "base-2", "base-3"].map(|name| Workload::of(ns, name));
    ns.eventually("the nodes are ranked by their numbers of pods", PATIENCE, async || {
        let mut ranks = Vec::new();
        for base in &bases {
            let pods = steady(base).await?;
            ranks.push(ours(pods.first().context("no pod")?)?);
        }
        ensure!(ranks.is_sorted_by(|one, next| one < next), "{ranks:?}");
        Ok(())
    })
    .await?;
    Ok(nodes)
}

/// Waits until all pods of a workload are bound and Ready.
async fn bound(ns: &Namespace, workload: &Workload) -> anyhow::Result<()> {
    ns.eventually(&format!("all pods of {} are bound", workload.name()), SOON, async || {
        steady(workload).await.map(drop)
    })
    .await
}

/// What has happened to the pods of a namespace since their binds.
struct Binds {
    /// Every value that they carried, in the order of time.
    values: Arc<Mutex<BTreeMap<String, Vec<Option<String>>>>>,
    written: usize,
    unasked: u64,
    stamped: u64,
    _task: AbortOnDropHandle<()>,
}

impl Binds {
    /// From now on.
    async fn follow(ns: &Namespace, belay: &Belay) -> anyhow::Result<Self> {
        let values: Arc<Mutex<BTreeMap<String, Vec<Option<String>>>>> = Arc::default();
        let (noted, pods) = (values.clone(), ns.api::<Pod>());
        let task = ns.cluster().runtime().spawn(async move {
            let mut changes = std::pin::pin!(changes::<Pod>(pods, watcher::Config::default()));
            while let Some(change) = changes.next().await {
                let Change::Applied(pod) = change else { continue };
                let pod = PodInfo::from(pod);
                if pod.node.is_empty() {
                    continue;
                }
                let value = mark(&pod, COST);
                let mut noted = noted.lock();
                let history = noted.entry(pod.name).or_default();
                if history.last() != Some(&value) {
                    history.push(value);
                }
            }
        });
        Ok(Self {
            values,
            written: written(ns)?.len(),
            unasked: failed_open(ns).await?,
            stamped: stamped(belay).await?,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// So many pods were bound, each with the value that it carries when all is at rest.
    async fn were_all(&self, ns: &Namespace, belay: &Belay, count: u64) -> anyhow::Result<()> {
        rested_in(ns, belay, PATIENT).await?;
        let patched = written(ns)?.split_off(self.written);
        let values = self.values.lock().clone();
        let changed: Vec<_> = patched.iter().map(|pod| (pod, values.get(pod))).collect();
        let unasked = failed_open(ns).await? - self.unasked;
        ensure!(unasked == 0, "{unasked} pods were bound without an answer of Belay's, and patched: {changed:?}");
        ensure!(patched.is_empty(), "{} of {count} pods were patched after their bind: {changed:?}", patched.len());
        let stamped = stamped(belay).await? - self.stamped;
        ensure!(stamped == count, "{stamped} of {count} pods got their value as they were bound");
        for (pod, history) in values {
            ensure!(matches!(&history[..], [Some(_)]), "{pod} has carried {history:?} since its bind");
        }
        Ok(())
    }
}

/// How many binds the API server let pass because it got no answer.
async fn failed_open(ns: &Namespace) -> anyhow::Result<u64> {
    let metrics = ns.cluster().kubectl(["get", "--raw", "/metrics"]).ok().await?;
    let mut sum = 0;
    for line in metrics.lines().filter(|line| line.starts_with(FAILED_OPEN)) {
        sum +=
            line.rsplit(' ').next().unwrap_or_default().parse::<u64>().with_context(|| format!("no metric: {line}"))?;
    }
    Ok(sum)
}

/// How many pods the webhook gave a value as they were bound.
async fn stamped(belay: &Belay) -> anyhow::Result<u64> {
    belay.counted(&belay.webhook_pods().await?, "belay_deletion_cost_stamps_total", "").await
}
