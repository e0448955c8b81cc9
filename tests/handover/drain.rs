//! A drain of a workload with three replicas: a stand-in comes first, whoever has to go, goes, and the number of replicas
//! is what it was.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::Namespace;

use crate::scene::{Scene, handed_over, only_node, spread, web};
use crate::stage::handover;
use crate::support::{SOON, asked_to_go, events, holds, ready_since};
use crate::surge::{PATIENCE, up_and_back, written_by_belay};

const SCALE: &str = "handover: Scale";

#[test]
fn one_of_three_pods_is_replaced_before_it_goes_and_the_scale_back_takes_it() {
    handover("one-of-three", async |ns: &Namespace| {
        ns.nodes(3).await?;
        let scene = Scene::set(spread(web(ns, 3).ready_after(Duration::from_secs(3))), SCALE).await?;
        ns.nodes(1).await?;
        let node = scene.pods.first().context("no pod")?.node.clone();
        let [victim] = scene.on(&[&node])[..] else { anyhow::bail!("not one pod on {node}") };
        let victim = victim.clone();
        let drain = ns.drain(&node, &["--timeout=120s"]).await?;
        let refusal = drain.line("admission webhook", SOON).await?;
        ensure!(refusal.text.contains(&format!("belay: holding {}", victim.name)), "{}", refusal.text);
        let exit = drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");

        handed_over(ns, &victim).await?;
        let now = scene.at_rest().await?;
        scene.ensure_moved(&now, &[&node])?;
        let most = scene.availability.most_staying();
        ensure!(most == 4, "there were up to {most} pods");
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(3), "{written:?}");
        for reason in ["EvictionHeld", "EvictionReleased"] {
            let told = events(ns, "web").await?;
            let count = told.iter().filter(|event| event.starts_with(reason)).count();
            ensure!(count == 1, "{reason} was told {count} times: {told:#?}");
        }
        scene.ensure_served().await
    });
}

#[test]
fn three_pods_of_one_node_go_one_after_the_other_and_need_one_more_pod() {
    handover("three-of-three", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 3).ready_after(Duration::from_secs(2)), SCALE).await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(2).await?;
        scene.drained(&node, "--timeout=180s").await?;
        for victim in &scene.pods {
            handed_over(ns, victim).await?;
        }
        let most = scene.availability.most_staying();
        ensure!(most == 4, "there were up to {most} pods");
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(3), "{written:?}");
        scene.ensure_served().await
    });
}

#[test]
fn two_nodes_that_are_drained_at_once_are_emptied_without_a_gap() {
    handover("two-drains", async |ns: &Namespace| {
        ns.nodes(3).await?;
        let scene = Scene::set(spread(web(ns, 3).ready_after(Duration::from_secs(2))), SCALE).await?;
        ns.nodes(2).await?;
        let nodes = [scene.pods[0].node.clone(), scene.pods[1].node.clone()];
        let (one, other) = tokio::try_join!(ns.drain(&nodes[0], &[]), ns.drain(&nodes[1], &[]))?;
        for drain in [one, other] {
            let exit = drain.exit(PATIENCE).await?;
            ensure!(exit.success(), "{exit}");
        }
        let now = scene.at_rest().await?;
        scene.ensure_moved(&now, &[&nodes[0], &nodes[1]])?;
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(3), "{written:?}");
        ensure!(holds(ns).await?.len() == 2);
        scene.ensure_served().await
    });
}

#[test]
fn surge_replicas_let_as_many_pods_go_at_a_time() {
    handover("surge-of-two", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let spec = "handover: Scale\nsurgeReplicas: 2";
        let scene = Scene::set(web(ns, 3).ready_after(Duration::from_secs(2)), spec).await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(2).await?;
        scene.drained(&node, "--timeout=180s").await?;
        let most = scene.availability.most_staying();
        ensure!(most == 5, "there were up to {most} pods");
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(
            written.iter().all(|number| number.as_i64().is_some_and(|number| (3..=5).contains(&number))),
            "{written:?}"
        );
        let ends = written.iter().filter(|number| **number == 3).count();
        ensure!(ends == 1 && written.last().is_some_and(|last| *last == 3), "restored {ends} times: {written:?}");
        scene.ensure_served().await
    });
}

#[test]
fn a_single_pod_is_handed_over_by_a_second_one() {
    handover("one-of-one", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 1).ready_after(Duration::from_secs(3)), SCALE).await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(1).await?;
        let now = scene.drained(&node, "--timeout=120s").await?;
        ensure!(now[0].hash == scene.pods[0].hash, "the template has changed");
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(1), "{written:?}");
        scene.ensure_served().await
    });
}

#[test]
fn a_budget_that_allows_no_eviction_allows_one_where_a_stand_in_serves() {
    handover("budget", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 3).ready_after(Duration::from_secs(2)), SCALE).await?;
        ns.apply(
            "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {minAvailable: 3, selector: \
             {matchLabels: {app: web}}}",
        )
        .await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(2).await?;
        scene.drained(&node, "--timeout=180s").await?;
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(3), "{written:?}");
        scene.ensure_served().await
    });
}

#[test]
fn a_stand_in_counts_only_after_min_ready_seconds() {
    handover("min-ready", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let scene = Scene::set(web(ns, 1).min_ready_seconds(9), SCALE).await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(1).await?;
        let victim = &scene.pods[0];
        let drain = ns.drain(&node, &["--timeout=120s"]).await?;
        let mut leaving = None;
        while drain.is_running() {
            let pods = scene.web.pods().await?;
            leaving = pods.into_iter().find(|pod| pod.uid == victim.uid && pod.terminating).or(leaving);
        }
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        let now = scene.at_rest().await?;
        let asked = leaving.as_ref().and_then(|victim| asked_to_go(&victim.pod)).context("the victim never left")?;
        let ready = ready_since(&now[0].pod).context("the stand-in is not ready")?;
        let served = asked.duration_since(ready);
        // Both are in whole seconds.
        ensure!(served.as_secs() >= 8, "the victim went {served:#} after its stand-in was ready: {asked}, {ready}");
        scene.ensure_served().await
    });
}
