//! The API server is away for a while: the machine dies that it runs on.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::tools::Running;
use belay_e2e::world::{Belay, Namespace};

use crate::stage::{PATIENCE, Scene, fault, metric};
use crate::support::{SOON, hold_in_phase, restarts};
use crate::webhook::failed_open;

#[test]
fn a_handover_survives_an_api_server_that_is_killed_and_comes_back_at_once() {
    fault("api-restart", async |ns: &Namespace, _: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(8), "").await?;
        let drain = scene.drain(ns).await?;
        scene.restarted(ns).await?;
        die(ns).await?;
        rise(ns).await?;
        drained(ns, &scene, drain).await?;
        held_since_the_start(ns).await?;

        let first = scene.victim.clone();
        let hold = hold_in_phase(ns, &first, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        let second = scene.web.only_pod().await?;
        ensure!(second.node != first.node, "the replacement is on the drained node");

        // The caches see again: the way back is a handover like any other.
        ns.uncordon(&first.node).await?;
        let back = ns.drain(&second.node, &["--timeout=240s"]).await?;
        let exit = back.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        let hold = hold_in_phase(ns, &second, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        let (count, sets) = (restarts(ns, "web").await?, scene.web.replica_sets().await?.len());
        ensure!(count == 2, "{count} restarts for two victims");
        ensure!((2..=3).contains(&sets), "{sets} ReplicaSets");
        let served = scene.load.stop().await;
        ensure!(served.failed() == 0 && served.ok > 0, "{served}");
        Ok(())
    });
}

#[test]
fn a_handover_goes_on_after_an_outage_in_which_nobody_could_lead() {
    fault("api-outage", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(10), "").await?;
        let drain = scene.drain(ns).await?;
        scene.restarted(ns).await?;
        let controllers = belay.controller_pods().await?;
        die(ns).await?;
        let nobody_leads = ns
            .eventually("nobody leads", PATIENCE, async || {
                for pod in &controllers {
                    let leading = metric(belay, pod, "belay_leader").await?;
                    ensure!(leading == 0.0, "{} says that it leads", pod.name);
                }
                Ok(())
            })
            .await;
        rise(ns).await?;
        nobody_leads?;
        drained(ns, &scene, drain).await?;
        held_since_the_start(ns).await?;
        scene.handed_over(ns).await
    });
}

pub(crate) async fn die(ns: &Namespace) -> anyhow::Result<()> {
    ns.cluster().control_plane().lose_machine().await
}

pub(crate) async fn rise(ns: &Namespace) -> anyhow::Result<()> {
    ns.cluster().control_plane().raise_machine().await
}

/// Waits for the end of a drain, and starts it again where it gave up because of the outage, as a person would.
async fn drained(ns: &Namespace, scene: &Scene, mut drain: Running) -> anyhow::Result<()> {
    loop {
        let exit = drain.exit(PATIENCE).await?;
        if exit.success() {
            return Ok(());
        }
        let text = exit.text();
        let outage = ["refused", "EOF", "reset by peer", "not yet ready", "ServiceUnavailable", "unable to connect"];
        ensure!(outage.iter().any(|words| text.contains(words)), "the drain did not fail by the outage: {exit}");
        // Answered again: the control plane was started before.
        ns.eventually("the API server answers", SOON, async || restarts(ns, "web").await.map(drop)).await?;
        drain = scene.drain(ns).await?;
    }
}

/// The API server that is new has asked Belay about every eviction: what follows is Belay's doing.
async fn held_since_the_start(ns: &Namespace) -> anyhow::Result<()> {
    let unheld = failed_open(ns).await?;
    ensure!(unheld == 0.0, "{unheld} evictions passed because the API server reached no webhook replica");
    Ok(())
}
