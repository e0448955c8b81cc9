//! The real Belay, installed by its chart: what the tests of its behaviour start from.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::world::{self, Cluster, Namespace, Options};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn belay_is_installed_killed_and_uninstalled() {
    let cluster = Cluster::start(Options::default()).unwrap();
    world::test_on(&cluster, "belay", async |ns: &Namespace| {
        let began = std::time::Instant::now();
        let belay = ns.cluster().install_belay(json!({})).await?;
        println!("belay installed after {:.1} s", began.elapsed().as_secs_f64());
        let webhooks = belay.webhook_pods().await?;
        ensure!(webhooks.len() >= 2 && webhooks.iter().all(|pod| pod.ready), "{webhooks:?}");
        ensure!(!belay.metrics(&webhooks[0]).await?.is_empty(), "no metrics");

        let leader = ns.eventually("a leader", SOON, async || belay.leader().await).await?;
        belay.kill(&leader)?;
        ns.eventually("the killed leader to be restarted", SOON, async || {
            let pods = belay.controller_pods().await?;
            let same = pods.iter().find(|pod| pod.uid == leader.uid);
            let restarts = same.and_then(|pod| pod.pod.status.clone()?.container_statuses?.pop());
            ensure!(restarts.is_some_and(|status| status.restart_count == 1 && status.ready));
            Ok(())
        })
        .await?;
        ns.eventually("a leader again", SOON, async || belay.leader().await).await?;
        ensure!(!belay.logs().is_empty(), "no logs");
        belay.uninstall().await?;
        ensure!(belay.webhook_pods().await?.iter().all(|pod| pod.terminating));
        Ok(())
    });
}
