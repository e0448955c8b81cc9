//! A surge is for an eviction: a cordon that ends, or an evictor that pauses, does not end it.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::world::Namespace;

use crate::scene::{Scene, handed_over, only_node, web};
use crate::stage::handover;
use crate::support::{SOON, hold_of};
use crate::surge::{PATIENCE, up_and_back, written_by_belay};

#[test]
fn an_uncordon_in_mid_surge_does_not_end_it() {
    handover("uncordoned", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 3).ready_after(Duration::from_secs(10)), "handover: Scale").await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(1).await?;
        let drain = ns.drain(&node, &[]).await?;
        let record = scene.surged().await?;
        let since = record["since"].clone();
        // Whoever drained gives up, as Cluster Autoscaler does after two minutes.
        drain.kill();
        drain.exit(SOON).await?;
        ns.uncordon(&node).await?;
        // Longer than the stand-in takes, so that everything is ready to go on and nobody asks.
        ns.throughout("the surge stands", Duration::from_secs(15), async || {
            let record = scene.surged().await?;
            ensure!(record["since"] == since, "it began anew: {record}");
            let replicas = scene.web.deployment().await?.spec.replicas;
            ensure!(replicas == Some(4), "{replicas:?} replicas");
            Ok(())
        })
        .await?;
        for victim in &scene.pods {
            let hold = hold_of(ns, victim).await?;
            ensure!(hold["spec"]["deadline"].is_string(), "{hold}");
        }
        // And comes again.
        let exit = ns.drain(&node, &["--timeout=120s"]).await?.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        for victim in &scene.pods {
            handed_over(ns, victim).await?;
        }
        let now = scene.at_rest().await?;
        scene.ensure_moved(&now, &[&node])?;
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(3), "{written:?}");
        scene.ensure_served().await
    });
}
