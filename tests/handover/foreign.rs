//! Somebody else sets the number of replicas while a surge is on: answered once, and not fought over.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::tools::Running;
use belay_e2e::world::{Namespace, PodInfo};
use serde_json::{Value, json};

use crate::scene::{Scene, handed_over, spread, web};
use crate::stage::handover;
use crate::support::{SOON, events, hold_of};
use crate::surge::{self, PATIENCE, written_by_belay};

/// How long a stand-in takes: long enough for somebody to come in between.
const SLOW: Duration = Duration::from_secs(12);

/// A workload in mid-surge: one of its three pods is being drained, and its stand-in is not there yet.
struct Surging<'a> {
    scene: Scene<'a>,
    victim: PodInfo,
    drain: Running,
    record: Value,
    /// What the user keeps in a file, with three replicas.
    file: String,
}

impl<'a> Surging<'a> {
    async fn begin(ns: &'a Namespace) -> anyhow::Result<Self> {
        ns.nodes(3).await?;
        let scene = Scene::set(spread(web(ns, 3).ready_after(SLOW)), "handover: Scale").await?;
        let spec = scene.web.deployment().await?.spec;
        let file =
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": spec });
        let file = file.to_string();
        ns.apply(&file).await?;
        ns.nodes(1).await?;
        let victim = scene.pods[0].clone();
        let drain = ns.drain(&victim.node, &["--timeout=180s"]).await?;
        let record = scene.surged().await?;
        ensure!(record["renewed"].is_null() && record["base"] == 3, "{record}");
        Ok(Self { scene, victim, drain, record, file })
    }

    /// Waits until the number was raised once more, to this.
    async fn renewed(&self, replicas: i32) -> anyhow::Result<()> {
        let ns = self.scene.ns;
        ns.eventually("the surge is renewed", PATIENCE, async || {
            let record = self.scene.surged().await?;
            let deployment = ns.get("deployment", "web").await?;
            ensure!(deployment["spec"]["replicas"] == replicas && record["renewed"] == true, "{record}");
            ensure!(record["since"] == self.record["since"], "{record}, and before {}", self.record);
            Ok(())
        })
        .await
    }
}

#[test]
fn an_apply_that_resets_the_replicas_is_answered_once() {
    handover("reset-once", async |ns: &Namespace| {
        let surging = Surging::begin(ns).await?;
        ns.apply(&surging.file).await?;
        surging.renewed(4).await?;
        let exit = surging.drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        handed_over(ns, &surging.victim).await?;
        let now = surging.scene.at_rest().await?;
        surging.scene.ensure_moved(&now, &[&surging.victim.node])?;
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == [4, 4, 3], "{written:?}");
        surging.scene.ensure_served().await
    });
}

#[test]
fn who_resets_the_replicas_twice_has_the_last_word() {
    handover("reset-twice", async |ns: &Namespace| {
        let surging = Surging::begin(ns).await?;
        ns.apply(&surging.file).await?;
        surging.renewed(4).await?;
        ns.apply(&surging.file).await?;
        ns.eventually("the hold says who won, and the record is gone", SOON, async || {
            let hold = hold_of(ns, &surging.victim).await?;
            ensure!(hold["status"]["outcome"] == "Reverted", "{}", hold["status"]);
            surge::none(ns, "deployment", "web").await
        })
        .await?;
        let exit = surging.drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        let now = surging.scene.at_rest().await?;
        ensure!(now.len() == 3 && now.iter().all(|pod| pod.node != surging.victim.node), "{now:?}");
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == [4, 4], "{written:?}");
        let told = events(ns, "web").await?;
        ensure!(told.iter().any(|event| event.starts_with("HandoverFailed")), "{told:#?}");
        let served = surging.scene.load.stop().await;
        ensure!(served.failed() == 0, "{served}");
        Ok(())
    });
}

#[test]
fn a_surge_goes_on_from_the_number_that_a_user_sets_meanwhile() {
    handover("scaled-meanwhile", async |ns: &Namespace| {
        let surging = Surging::begin(ns).await?;
        ns.nodes(2).await?;
        ns.kubectl(["scale", "deployment", "web", "--replicas=5"]).ok().await?;
        surging.renewed(6).await?;
        let exit = surging.drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        handed_over(ns, &surging.victim).await?;
        ns.eventually("the user's five replicas are there", PATIENCE, async || {
            surge::none(ns, "deployment", "web").await?;
            let deployment = surging.scene.web.complete().await?;
            ensure!(deployment.spec.replicas == Some(5), "{:?}", deployment.spec.replicas);
            let pods = surging.scene.web.pods().await?;
            ensure!(pods.len() == 5 && pods.iter().all(|pod| pod.node != surging.victim.node), "{pods:?}");
            Ok(())
        })
        .await?;
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == [4, 6, 5], "{written:?}");
        surging.scene.ensure_served().await
    });
}
