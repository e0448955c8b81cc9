//! Workloads that cannot be handed over by more replicas: said beforehand, and said when it comes to it.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::world::Namespace;

use crate::scene::{Scene, only_node, web};
use crate::stage::handover;
use crate::support::{SOON, condition, holds, policy};
use crate::surge::{self, written_by_belay};

#[test]
fn a_workload_of_which_two_copies_must_never_run_is_refused() {
    handover("recreate", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = web(ns, 1).recreate().create().await?;
        web.available(SOON).await?;
        ns.apply(&policy("web", "handover: Scale")).await?;
        condition(ns, "web", "TargetSupported", "False", "Recreate").await?;
        condition(ns, "web", "Protected", "False", "Recreate").await?;
        let described = ns.kubectl(["describe", "handoverpolicy", "web"]).ok().await?;
        ensure!(described.contains("Recreate"), "{described}");

        let node = only_node(&web.pods().await?)?;
        ns.nodes(1).await?;
        let exit = ns.drain(&node, &["--timeout=120s"]).await?.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("belay: not protected (Recreate)"), "{exit}");
        ensure!(!exit.text().contains("will retry"), "{exit}");
        ensure!(holds(ns).await?.is_empty());
        ensure!(written_by_belay(ns, "deployments", "replicas")?.is_empty(), "it was scaled");
        surge::none(ns, "deployment", "web").await
    });
}

#[test]
fn a_dry_run_of_a_drain_adds_no_replica_and_says_what_would_happen() {
    handover("dry-run", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 3), "handover: Scale").await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(1).await?;
        let generation = scene.web.deployment().await?.metadata.generation;
        let exit = ns.drain(&node, &["--dry-run=server"]).await?.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("would be held"), "{exit}");
        ns.throughout("nothing came of it", Duration::from_secs(3), async || {
            ensure!(holds(ns).await?.is_empty(), "a hold was recorded");
            ensure!(scene.web.deployment().await?.metadata.generation == generation, "the Deployment changed");
            Ok(())
        })
        .await?;
        scene.ensure_served().await
    });
}
