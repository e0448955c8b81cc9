//! The leading controller dies in each phase of a surge: the next one goes on from what stands in the cluster, no pod is
//! missing at any moment, and the number of replicas is put back once.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::tools::Running;
use belay_e2e::world::{Belay, Namespace, PodInfo};

use crate::handover_scene::{Scene, spread, web};
use crate::stage::{CONTROLLER, PATIENCE, Right, fault, finally};
use crate::support::{hold_in_phase, hold_of};
use crate::surge::{up_and_back, written_by_belay};

/// How long a stand-in takes: long enough for a death in the meantime.
const SLOW: Duration = Duration::from_secs(6);

/// The right without which no number is raised, nor put back.
const NUMBERS: (&str, &str) = ("patch", "deployments.apps");

/// The right without which nothing is said of a hold, and so nothing is released.
const HOLDS: (&str, &str) = ("patch", "evictionholds.belay.dev/status");

/// One of three pods is about to go.
struct Surge<'a> {
    ns: &'a Namespace,
    scene: Scene<'a>,
    victim: PodInfo,
}

impl<'a> Surge<'a> {
    async fn set(ns: &'a Namespace) -> anyhow::Result<Self> {
        ns.nodes(3).await?;
        let scene = Scene::set(spread(web(ns, 3).ready_after(SLOW)), "handover: Scale").await?;
        ns.nodes(1).await?;
        let victim = scene.pods.first().context("no pod")?.clone();
        Ok(Self { ns, scene, victim })
    }

    async fn drain(&self) -> anyhow::Result<Running> {
        self.ns.drain(&self.victim.node, &["--timeout=240s"]).await
    }

    /// Waits until the stand-in is there; whether it is ready is said.
    async fn stand_in(&self, ready: bool) -> anyhow::Result<PodInfo> {
        self.ns
            .eventually(&format!("a stand-in that is ready: {ready}"), PATIENCE, async || {
                let pods = self.scene.web.pods().await?;
                let new = pods.into_iter().find(|pod| self.scene.pods.iter().all(|known| known.uid != pod.uid));
                let new = new.context("there is none")?;
                ensure!(new.ready == ready, "{} is ready: {}", new.name, new.ready);
                Ok(new)
            })
            .await
    }

    /// How often a controller was refused to write the Deployment.
    fn refused(&self) -> anyhow::Result<usize> {
        let writes = self.ns.cluster().writes_by(CONTROLLER)?;
        let refused = writes.iter().filter(|write| write.namespace == self.ns.name() && write.code == 403);
        Ok(refused.filter(|write| write.resource == "deployments").count())
    }

    /// Waits until a controller is refused once more to write the Deployment.
    async fn refused_again(&self) -> anyhow::Result<()> {
        let before = self.refused()?;
        self.ns
            .eventually("a write of the number is refused", PATIENCE, async || {
                ensure!(self.refused()? > before, "nobody tries");
                Ok(())
            })
            .await
    }

    /// The drain ends, the victim went and nobody else, and nothing was missing.
    async fn ends_well(self, drain: Running) -> anyhow::Result<()> {
        let exit = drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        let hold = hold_in_phase(self.ns, &self.victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        let now = self.scene.at_rest().await?;
        let left = now.iter().find(|pod| pod.node == self.victim.node);
        ensure!(left.is_none(), "{left:?} is on the drained node");
        let written = written_by_belay(self.ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(3), "{written:?}");
        self.scene.ensure_served().await
    }
}

#[test]
fn a_leader_killed_before_it_could_raise_the_number_raises_it_once_when_it_is_back() {
    fault("surge-recorded", async |ns: &Namespace, belay: &Belay| {
        let surge = Surge::set(ns).await?;
        let right = Right::take(ns, "controller", NUMBERS.0, NUMBERS.1).await?;
        let body = async {
            let drain = surge.drain().await?;
            surge.refused_again().await?;
            hold_of(ns, &surge.victim).await?;
            belay.kill(&belay.leader().await?)?;
            Ok(drain)
        };
        let drain = finally(body, right.give_back()).await?;
        surge.ends_well(drain).await
    });
}

#[test]
fn the_standby_goes_on_with_a_surge_whose_stand_in_is_starting() {
    fault("surge-starting", async |ns: &Namespace, belay: &Belay| {
        let surge = Surge::set(ns).await?;
        let drain = surge.drain().await?;
        surge.scene.surged().await?;
        surge.stand_in(false).await?;
        let lost = belay.leader().await?;
        belay.lose(&lost).await?;
        surge.ends_well(drain).await?;
        ensure!(belay.leader().await?.name != lost.name, "the lost pod still leads");
        Ok(())
    });
}

#[test]
fn a_leader_killed_when_the_stand_in_is_available_lets_the_victim_go_when_it_is_back() {
    fault("surge-available", async |ns: &Namespace, belay: &Belay| {
        let surge = Surge::set(ns).await?;
        let drain = surge.drain().await?;
        surge.scene.surged().await?;
        // The leader sees that the victim may go and gets no further: the only way to stop it at this very point from
        // outside.
        let right = Right::take(ns, "controller", NUMBERS.0, NUMBERS.1).await?;
        let body = async {
            surge.stand_in(true).await?;
            surge.refused_again().await?;
            belay.kill(&belay.leader().await?)?;
            Ok(())
        };
        finally(body, right.give_back()).await?;
        surge.ends_well(drain).await
    });
}

#[test]
fn a_leader_killed_with_the_scale_back_written_and_the_hold_still_open_ends_both_when_it_is_back() {
    fault("surge-released", async |ns: &Namespace, belay: &Belay| {
        let surge = Surge::set(ns).await?;
        let drain = surge.drain().await?;
        surge.scene.surged().await?;
        let right = Right::take(ns, "controller", HOLDS.0, HOLDS.1).await?;
        let body = async {
            ns.eventually("the number is lower again, and the victim let go with it", PATIENCE, async || {
                let written = written_by_belay(ns, "deployments", "replicas")?;
                ensure!(written == up_and_back(3), "{written:?}");
                Ok(())
            })
            .await?;
            belay.kill(&belay.leader().await?)?;
            let hold = hold_of(ns, &surge.victim).await?;
            ensure!(hold["status"]["releasedAt"].is_null(), "{hold}");
            Ok(())
        };
        finally(body, right.give_back()).await?;
        surge.ends_well(drain).await
    });
}
