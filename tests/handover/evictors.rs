//! Real evictors beside Belay: what each asks, and what it makes of a refusal.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::descheduler::Descheduler;
use belay_e2e::evictions::{self, Asked, Table};
use belay_e2e::world::Namespace;

use crate::scene::{Scene, only_node, web};
use crate::stage::handover;
use crate::support::hold_in_phase;
use crate::surge::PATIENCE;

/// A taint that no pod tolerates and that says nothing about its node's end.
const TAINT: &str = "example.com/retired";

/// How often the descheduler looks: often, for a test.
const INTERVAL: Duration = Duration::from_secs(5);

/// How long a stand-in takes: longer than an evictor waits before it asks again.
const SLOW: Duration = Duration::from_secs(8);

/// Every pod of the beginning was handed over, asked about by this user, refused at first, and let go.
async fn ensure_kept(scene: &Scene<'_>, user: &str) -> anyhow::Result<Vec<Asked>> {
    for victim in &scene.pods {
        let hold = hold_in_phase(scene.ns, victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver" && hold["spec"]["evictor"] == user, "{hold}");
    }
    let asked = evictions::asked(scene.ns)?;
    println!("{}", Table(&asked));
    ensure!(asked.iter().all(|asked| asked.user == user && asked.deleted.is_none()), "{asked:#?}");
    for victim in &scene.pods {
        let of_victim = asked.iter().find(|asked| asked.pod == victim.name);
        let of_victim = of_victim.with_context(|| format!("nobody asked about {}", victim.name))?;
        ensure!(of_victim.answers.first().is_some_and(|(_, code)| *code == 429), "{of_victim:?}");
    }
    Ok(asked)
}

#[test]
fn kubectl_drain_asks_again_until_it_passes() {
    handover("kubectl", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 1).ready_after(SLOW), "").await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(1).await?;
        let exit = ns.drain(&node, &["--timeout=120s"]).await?.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        let asked = ensure_kept(&scene, "belay-admin").await?;
        ensure!(asked[0].agent.starts_with("kubectl"), "{asked:?}");
        scene.ensure_served().await
    });
}

#[test]
fn the_descheduler_comes_again_at_its_next_look() {
    handover("descheduler", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 3).ready_after(SLOW), "handover: Scale").await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(2).await?;
        ns.kubectl(["taint", "node", &node, &format!("{TAINT}=:NoSchedule")]).ok().await?;
        let descheduler = Descheduler::start(ns, TAINT, INTERVAL).await?;
        let now = ns
            .eventually("the descheduler has had its way", PATIENCE, async || {
                descheduler.log()?;
                let pods = scene.web.pods().await?;
                ensure!(pods.len() == 3 && pods.iter().all(|pod| pod.ready && pod.node != node), "{pods:?}");
                Ok(pods)
            })
            .await?;
        scene.at_rest().await?;
        scene.ensure_moved(&now, &[&node])?;
        let asked = ensure_kept(&scene, &Descheduler::user()).await?;
        let log = descheduler.log()?;
        ensure!(log.contains("belay: holding"), "its log does not say why it was refused:\n{log}");
        let (least, _) = asked[0].asked_again_after().context("it did not ask again")?;
        ensure!(least.as_secs_f64() >= INTERVAL.as_secs_f64() - 1.0, "it asked again after {least:#}");
        descheduler.stop().await;
        scene.ensure_served().await
    });
}
