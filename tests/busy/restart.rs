//! Controllers that start again know nothing but what stands in the cluster.

use anyhow::{Context as _, bail, ensure};
use belay_e2e::arc::{Listener, Player};
use belay_e2e::world::{Belay, Namespace};
use serde_json::json;

use crate::busy_support::{IDLE, KARPENTER, WORKING, told, values, written};
use crate::stage::{PATIENCE, all_told, ensure_written, leads, lifecycle};

#[test]
fn controllers_that_start_again_write_nothing_but_what_changed_while_they_were_away() {
    let values = values().unwrap();
    lifecycle("restart", &values, async |ns: &Namespace, belay: &Belay| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let runners = arc.runners(&set, 10, PATIENCE).await?;
        let [first, stripped, begun, marker, rest @ ..] = runners.as_slice() else { bail!("{runners:?}") };
        for runner in [first, stripped] {
            arc.assign(runner, Listener::New).await?;
            told(ns, runner, WORKING, &[]).await?;
        }
        let before = written(ns)?.len();
        ensure!(before == 2, "{before} writes");

        for controller in belay.controller_pods().await? {
            belay.kill(&controller)?;
        }
        restarted(ns, belay).await?;
        arc.assign(marker, Listener::Old).await?;
        told(ns, marker, WORKING, &[]).await?;
        ensure_written(ns, before, std::slice::from_ref(marker))?;

        scale(ns, belay, 0).await?;
        arc.assign(begun, Listener::New).await?;
        ns.kubectl(["annotate", "pod", stripped, &format!("{KARPENTER}-")]).ok().await?;
        scale(ns, belay, 2).await?;
        let busy = [first, stripped, begun, marker].into_iter().map(|name| (name, WORKING));
        all_told(ns, busy.chain(rest.iter().map(|name| (name, IDLE)))).await?;
        ensure_written(ns, before + 1, &[stripped.clone(), begun.clone()])
    });
}

/// Waits until the killed controllers are back and one leads.
async fn restarted(ns: &Namespace, belay: &Belay) -> anyhow::Result<()> {
    ns.eventually("the controllers are back", PATIENCE, async || {
        for pod in belay.controller_pods().await? {
            let containers = pod.pod.status.as_ref().and_then(|status| status.container_statuses.clone());
            let container = containers.into_iter().flatten().next().context("no container")?;
            ensure!(pod.ready && container.restart_count > 0, "{}: {} restarts", pod.name, container.restart_count);
        }
        Ok(())
    })
    .await?;
    leads(ns, belay).await
}

async fn scale(ns: &Namespace, belay: &Belay, replicas: usize) -> anyhow::Result<()> {
    let count = format!("--replicas={replicas}");
    let args = ["--namespace", "belay-system", "scale", "deployment", "belay-controller", &count];
    ns.cluster().kubectl(args).ok().await?;
    ns.eventually("the controllers are as many", PATIENCE, async || {
        let pods = belay.controller_pods().await?;
        ensure!(pods.len() == replicas && pods.iter().all(|pod| pod.ready), "there are {}", pods.len());
        Ok(())
    })
    .await
}
