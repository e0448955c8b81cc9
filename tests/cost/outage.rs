//! What Belay's own outages leave undone is done after them, and nothing more.

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Belay, Namespace};

use crate::busy_support::written;
use crate::stage::{PATIENCE, after_passes, all_writes, at_work, cost, nodes, passes};
use crate::support::SOON;
use crate::values::{order, resize, steady};

#[test]
fn pods_that_are_bound_while_no_webhook_runs_get_their_value_by_one_patch_each() {
    cost("no-webhook", async |ns: &Namespace, belay: &Belay| {
        nodes(ns, 2, 3).await?;
        belay.scale(ns, "webhook", 0, PATIENCE).await?;
        let web = ns.web("web").replicas(6).grace(1).create().await?;
        web.available(SOON).await?;
        let nodes = order(ns, belay, &web).await?;
        let mut patched = written(ns)?;
        patched.sort();
        let pods: Vec<_> = steady(&web).await?.into_iter().map(|pod| pod.name).collect();
        ensure!(patched == pods, "these were written: {patched:?}, and not each of these once: {pods:?}");
        belay.scale(ns, "webhook", 2, PATIENCE).await?;
        at_work(ns, belay).await?;
        // What comes now needs no patch again: the one that goes first makes room.
        resize(ns, &web, 5).await?;
        resize(ns, &web, 6).await?;
        ensure!(order(ns, belay, &web).await? == nodes, "the order is another than {nodes:?}");
        ensure!(written(ns)?.len() == 6, "{:?}", written(ns)?);
        Ok(())
    });
}

#[test]
fn controllers_that_are_killed_and_start_again_write_nothing() {
    cost("killed", async |ns: &Namespace, belay: &Belay| {
        nodes(ns, 3, 3).await?;
        let web = ns.web("web").replicas(9).grace(1).create().await?;
        web.available(SOON).await?;
        let nodes = order(ns, belay, &web).await?;
        let before = all_writes(ns)?.len();
        for pod in belay.controller_pods().await? {
            belay.kill(&pod)?;
        }
        ns.eventually("the controllers are back", PATIENCE, async || {
            for pod in belay.controller_pods().await? {
                let containers = pod.pod.status.as_ref().and_then(|status| status.container_statuses.clone());
                let container = containers.into_iter().flatten().next().context("no container")?;
                ensure!(pod.ready && container.restart_count > 0, "{}: {} restarts", pod.name, container.restart_count);
            }
            ensure!(passes(belay).await? > 0, "none of them has looked at the cluster yet");
            Ok(())
        })
        .await?;
        after_passes(ns, belay, 3).await?;
        let mut since = all_writes(ns)?.split_off(before);
        // The one that leads now tells on itself in which order nodes are to empty.
        let leader = format!("{}.", belay.leader().await?.name);
        since.retain(|write| write.resource != "events" || !write.name.starts_with(&leader));
        ensure!(since.is_empty(), "{since:#?}");
        ensure!(order(ns, belay, &web).await? == nodes, "the order is another than {nodes:?}");
        Ok(())
    });
}
