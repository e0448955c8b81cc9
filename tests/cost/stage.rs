//! The stage of these tests: one cluster, one release of Belay, one test at a time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::audit::Write;
use belay_e2e::clock;
use belay_e2e::world::{Belay, Namespace, test, test_alone};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// For a rollout of Belay, or values of many pods, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// How long Belay takes what is new for still changing, in most of these tests: the least that may be said.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

/// How long Belay leaves alone what another controller writes on, the first time.
pub(crate) const STAND_DOWN: Duration = Duration::from_secs(4);

/// A label that names a node's pool, one of those that Belay reads, and the pool of these tests' nodes.
pub(crate) const POOL: (&str, &str) = ("cloud.google.com/gke-nodepool", "tests");

/// One test at a time.
static STAGE: Mutex<()> = Mutex::new(());

/// Runs a test alone, in a namespace of its own, with a Belay that ranks these tests' nodes.
pub(crate) fn cost(name: &str, body: impl AsyncFnOnce(&Namespace, &Belay) -> anyhow::Result<()>) {
    with_values(name, on(), body);
}

/// As [`cost`], with a Belay of these values.
pub(crate) fn with_values(name: &str, values: Value, body: impl AsyncFnOnce(&Namespace, &Belay) -> anyhow::Result<()>) {
    // A test that failed has poisoned the lock; the next one installs anew what it needs.
    let _alone = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    test(name, async |ns: &Namespace| installed(ns, values, body).await);
}

/// As [`with_values`], on a cluster of its own: for so many pods that they would take long to leave.
pub(crate) fn on_own_cluster(
    name: &str,
    values: Value,
    body: impl AsyncFnOnce(&Namespace, &Belay) -> anyhow::Result<()>,
) {
    let _alone = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    test_alone(name, async |ns: &Namespace| installed(ns, values, body).await);
}

async fn installed(
    ns: &Namespace,
    values: Value,
    body: impl AsyncFnOnce(&Namespace, &Belay) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let belay = ns.cluster().install_belay(values).await?;
    at_work(ns, &belay).await?;
    body(ns, &belay).await
}

/// The chart's values with the deletion cost on for these tests' nodes. The same ones for most tests, so that Belay is
/// not rolled out for each.
pub(crate) fn on() -> Value {
    settling_in(SETTLE)
}

/// As [`on`], with another time for what settles.
pub(crate) fn settling_in(settle: Duration) -> Value {
    json!({
        "writesPerSecond": 200,
        "deletionCost": {
            "enabled": true,
            "nodePools": [POOL.1],
            "settlePeriod": format!("{}s", settle.as_secs()),
            "standDownPeriod": format!("{}s", STAND_DOWN.as_secs()),
            "writesPerSecond": 100,
        },
    })
}

/// The chart's values with everything that writes on pods off, as by default.
pub(crate) fn off() -> Value {
    json!({ "deletionCost": { "enabled": false } })
}

/// Waits until one controller leads, the API server may ask the webhooks, and those of an earlier release are gone: for
/// as long as they end they may still be asked.
pub(crate) async fn at_work(ns: &Namespace, belay: &Belay) -> anyhow::Result<()> {
    ns.eventually("Belay is at work", PATIENCE, async || {
        belay.leader().await?;
        for pod in belay.webhook_pods().await? {
            ensure!(pod.ready && !pod.terminating, "{} is not to be asked", pod.name);
        }
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(ns.client());
        for webhook in webhooks.get("belay").await?.webhooks.into_iter().flatten() {
            let trusted = webhook.client_config.ca_bundle.is_some_and(|bundle| !bundle.0.is_empty());
            ensure!(trusted, "the API server does not trust {} yet", webhook.name);
        }
        Ok(())
    })
    .await
}

/// Adds nodes, for as many pods each, in three zones by turns.
pub(crate) async fn nodes(ns: &Namespace, count: usize, pods: u32) -> anyhow::Result<Vec<String>> {
    let capacity = json!({ "cpu": "16", "memory": "64Gi", "pods": pods.to_string() });
    let more = json!({ "metadata": { "labels": { POOL.0: POOL.1 } }, "status": { "capacity": capacity } });
    ns.nodes_with(count, &more).await
}

/// What Belay's controllers that stay have counted.
pub(crate) async fn counted(belay: &Belay, metric: &str, labels: &str) -> anyhow::Result<u64> {
    let mut pods = belay.controller_pods().await?;
    pods.retain(|pod| !pod.terminating);
    belay.counted(&pods, metric, labels).await
}

/// How often Belay has looked at everything and ranked the nodes.
pub(crate) async fn passes(belay: &Belay) -> anyhow::Result<u64> {
    counted(belay, "belay_deletion_cost_passes_total", "result=\"Ranked\"").await
}

/// Waits until Belay has ranked the nodes this many times more. It looks at everything when a [`SETTLE`] is over and
/// something is heard of the cluster, so it is told of what changes nothing.
pub(crate) async fn after_passes(ns: &Namespace, belay: &Belay, count: u64) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(ns.client());
    let pod = ns.pods("").await?.into_iter().find(|pod| !pod.node.is_empty()).context("this test has no pods")?;
    let before = passes(belay).await?;
    let mut turn = 0;
    ns.eventually(&format!("Belay makes {count} passes"), PATIENCE, async || {
        turn += 1;
        let seen = json!({ "metadata": { "annotations": { "example.com/seen": format!("{before}-{turn}") } } });
        nodes.patch(&pod.node, &PatchParams::default(), &Patch::Merge(seen)).await?;
        let made = passes(belay).await?.saturating_sub(before);
        ensure!(made >= count, "it has made {made}");
        Ok(())
    })
    .await
}

/// Waits until all pods of this test have settled, and Belay has looked at them after that.
pub(crate) async fn rested(ns: &Namespace, belay: &Belay) -> anyhow::Result<()> {
    rested_in(ns, belay, SETTLE).await
}

/// As [`rested`], where Belay goes by another time for what settles.
pub(crate) async fn rested_in(ns: &Namespace, belay: &Belay, settle: Duration) -> anyhow::Result<()> {
    let pods = ns.pods("").await?;
    let youngest = pods.into_iter().filter_map(|pod| pod.pod.metadata.creation_timestamp).max();
    let youngest = youngest.context("this test has no pods")?.0;
    // Pods cease to be young together, once or twice that long after they came. Their times are in whole seconds.
    let settled = 2 * settle.as_secs() as i64 + 1;
    ns.eventually("all pods have settled", PATIENCE, async || {
        let age = clock::now().duration_since(youngest);
        ensure!(age.as_secs() >= settled, "the youngest is {age:#} old");
        Ok(())
    })
    .await?;
    after_passes(ns, belay, 2).await
}

/// What Belay wrote in the whole cluster but for its leases and its reviews of who asks, oldest first. A dry run, as its
/// probe of itself is, writes nothing.
pub(crate) fn all_writes(ns: &Namespace) -> anyhow::Result<Vec<Write>> {
    let mut writes = ns.cluster().writes_by("system:serviceaccount:belay-system:")?;
    let is_apart = |resource: &str| matches!(resource, "leases" | "tokenreviews" | "subjectaccessreviews");
    writes.retain(|write| !write.dry_run && !is_apart(&write.resource));
    Ok(writes)
}
