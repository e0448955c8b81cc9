//! The stage of these tests: one cluster, one release of Belay, one test at a time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Belay, Cluster, Namespace, PodInfo, test_on};
use serde_json::{Value, json};

use crate::busy_support::{SYSTEMS, ensure_told};

/// For a pass over a hundred pods, or a rollout of Belay, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// One test at a time.
static STAGE: Mutex<()> = Mutex::new(());

/// With the busy hints off, as by default.
pub(crate) fn off() -> Value {
    json!({ "busyHints": { "enabled": false } })
}

/// Runs a test alone, in a namespace of its own, with a Belay of these values.
pub(crate) fn lifecycle(name: &str, values: &Value, body: impl AsyncFnOnce(&Namespace, &Belay) -> anyhow::Result<()>) {
    // A test that failed has poisoned the lock; the next one installs anew what it needs.
    let _alone = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::shared();
    test_on(&cluster, name, async |ns: &Namespace| {
        for definitions in SYSTEMS {
            cluster.crds(definitions).await?;
        }
        let belay = cluster.install_belay(values.clone()).await?;
        leads(ns, &belay).await?;
        body(ns, &belay).await
    });
}

/// Waits until one controller leads.
pub(crate) async fn leads(ns: &Namespace, belay: &Belay) -> anyhow::Result<()> {
    ns.eventually("a controller leads", PATIENCE, async || belay.leader().await.map(drop)).await
}

/// Waits until every one of these runners is told as this.
pub(crate) async fn all_told<'a>(
    ns: &Namespace,
    runners: impl IntoIterator<Item = (&'a String, &'a [(&'a str, &'a str)])> + Clone,
) -> anyhow::Result<()> {
    ns.eventually("every runner is told as what it is", PATIENCE, async || {
        let pods = ns.pods("actions-ephemeral-runner=True").await?;
        for (name, marks) in runners.clone() {
            let pod: &PodInfo = pods.iter().find(|pod| pod.name == *name).context("a runner is gone")?;
            ensure_told(pod, marks, &[])?;
        }
        Ok(())
    })
    .await
}

/// These and no others were written to since the first `before` writes, each once.
pub(crate) fn ensure_written(ns: &Namespace, before: usize, runners: &[String]) -> anyhow::Result<()> {
    let mut since = crate::busy_support::written(ns)?.split_off(before);
    let mut expected = runners.to_vec();
    since.sort();
    expected.sort();
    ensure!(since == expected, "{} writes, not {}: {since:?}", since.len(), expected.len());
    Ok(())
}
