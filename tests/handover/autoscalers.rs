//! Workloads whose replicas an autoscaler governs: its minimum is raised and put back, never the number under its feet.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::keda::Keda;
use belay_e2e::world::{Namespace, Workload};

use crate::scene::{Scene, handed_over, only_node, web};
use crate::stage::handover;
use crate::support::{SOON, condition, evict, evict_until_it_passes, holds, policy, protected};
use crate::surge::{self, PATIENCE, written_by_belay};

/// A HorizontalPodAutoscaler of the Deployment `web`. Nobody serves metrics here, so it keeps the bounds and nothing
/// else.
async fn autoscaler(ns: &Namespace, minimum: i32, maximum: i32) -> anyhow::Result<()> {
    ns.apply(&format!(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: web}}\nspec:\n  minReplicas: \
         {minimum}\n  maxReplicas: {maximum}\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}\n  \
         metrics: [{{type: Resource, resource: {{name: cpu, target: {{type: Utilization, averageUtilization: 60}}}}}}]"
    ))
    .await
}

/// Waits until the autoscaler's controller has looked at it.
async fn at_work(ns: &Namespace, name: &str) -> anyhow::Result<()> {
    ns.eventually(&format!("the autoscaler {name} is at work"), SOON, async || {
        let autoscaler = ns.get("horizontalpodautoscaler", name).await?;
        let able = autoscaler["status"]["conditions"].as_array().into_iter().flatten();
        ensure!(able.clone().any(|condition| condition["type"] == "AbleToScale"), "{}", autoscaler["status"]);
        Ok(())
    })
    .await
}

/// The Deployment is drained off its only node: what was done to the object that governs it, and how it ended.
async fn is_handed_over(scene: Scene<'_>, governor: &str, field: &str, minimum: i64) -> anyhow::Result<()> {
    let ns = scene.ns;
    let node = only_node(&scene.pods)?;
    ns.nodes(2).await?;
    let drain = ns.drain(&node, &["--timeout=180s"]).await?;
    let record = surge::begun(ns, governor, "web").await?;
    ensure!(record["original"] == minimum && record["base"] == 3, "{record}");
    surge::none(ns, "deployment", "web").await?;
    let exit = drain.exit(PATIENCE).await?;
    ensure!(exit.success(), "{exit}");
    ns.eventually("the minimum is what it was", SOON, async || surge::none(ns, governor, "web").await).await?;
    let now = scene.at_rest().await?;
    scene.ensure_moved(&now, &[&node])?;
    for victim in &scene.pods {
        handed_over(ns, victim).await?;
    }
    let written = written_by_belay(ns, governor, field)?;
    ensure!(written == [4, minimum], "{field}: {written:?}");
    // The autoscaler raises the number; taking it back is left to Belay, as an autoscaler waits for minutes.
    let replicas = written_by_belay(ns, "deployments", "replicas")?;
    ensure!(replicas == [3], "replicas: {replicas:?}");
    let object = ns.get(governor, "web").await?;
    ensure!(object["spec"][field] == minimum, "{}", object["spec"]);
    let most = scene.availability.most_staying();
    ensure!(most == 4, "there were up to {most} pods");
    scene.ensure_served().await
}

#[test]
fn an_autoscalers_minimum_is_raised_and_put_back() {
    handover("autoscaled", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = web(ns, 3).ready_after(Duration::from_secs(2)).create().await?;
        web.available(SOON).await?;
        // It has scaled the workload up, to more than its minimum.
        autoscaler(ns, 1, 8).await?;
        at_work(ns, "web").await?;
        let scene = governed(ns, web).await?;
        is_handed_over(scene, "horizontalpodautoscalers", "minReplicas", 1).await
    });
}

#[test]
fn a_scaled_objects_minimum_is_raised_and_put_back_and_its_autoscaler_left_alone() {
    handover("keda", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = web(ns, 3).ready_after(Duration::from_secs(2)).create().await?;
        web.available(SOON).await?;
        let keda = Keda::play(ns).await?;
        keda.scaled_object("web", 3, 8).await?;
        at_work(ns, "keda-hpa-web").await?;
        let scene = governed(ns, web).await?;
        is_handed_over(scene, "scaledobjects", "minReplicaCount", 3).await?;
        let written = written_by_belay(ns, "horizontalpodautoscalers", "minReplicas")?;
        ensure!(written.is_empty(), "{written:?}");
        ns.eventually("the operator has put the autoscaler's minimum back", SOON, async || {
            let autoscaler = ns.get("horizontalpodautoscaler", "keda-hpa-web").await?;
            ensure!(autoscaler["spec"]["minReplicas"] == 3, "{}", autoscaler["spec"]);
            Ok(())
        })
        .await
    });
}

/// Protects a workload, and begins to count.
async fn governed(ns: &Namespace, web: Workload) -> anyhow::Result<Scene<'_>> {
    ns.apply(&policy("web", "handover: Scale")).await?;
    protected(ns, "web").await?;
    Scene::of(ns, web).await
}

#[test]
fn a_workload_at_its_autoscalers_maximum_is_let_go_with_a_word() {
    handover("at-maximum", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = web(ns, 3).create().await?;
        web.available(SOON).await?;
        autoscaler(ns, 3, 3).await?;
        at_work(ns, "web").await?;
        ns.apply(&policy("web", "handover: Scale")).await?;
        condition(ns, "web", "Protected", "False", "AutoscalerAtMaximum").await?;
        let pods = web.pods().await?;
        let node = only_node(&pods)?;
        ns.nodes(1).await?;
        let exit = ns.drain(&node, &["--timeout=120s"]).await?.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("belay: not protected (AutoscalerAtMaximum)"), "{exit}");
        ensure!(!exit.text().contains("will retry"), "{exit}");
        ensure!(holds(ns).await?.is_empty());
        ensure!(written_by_belay(ns, "horizontalpodautoscalers", "minReplicas")?.is_empty());
        Ok(())
    });
}

#[test]
fn a_surge_goes_no_further_than_the_autoscalers_maximum() {
    handover("below-maximum", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = web(ns, 3).ready_after(Duration::from_secs(1)).create().await?;
        web.available(SOON).await?;
        autoscaler(ns, 3, 4).await?;
        at_work(ns, "web").await?;
        ns.apply(&policy("web", "handover: Scale\nsurgeReplicas: 3")).await?;
        protected(ns, "web").await?;
        let scene = Scene::of(ns, web).await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(1).await?;
        ns.cordon(&node).await?;
        for pod in &scene.pods {
            ensure!(evict(ns, &pod.name).await?.is_some(), "{} was not held", pod.name);
        }
        scene.drained(&node, "--timeout=120s").await?;
        let written = written_by_belay(ns, "horizontalpodautoscalers", "minReplicas")?;
        ensure!(written == [4, 3], "{written:?}");
        scene.ensure_served().await
    });
}

#[test]
fn an_evictor_that_asks_all_the_time_leaves_no_replica_too_many() {
    handover("eager", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = web(ns, 3).ready_after(Duration::from_secs(2)).create().await?;
        web.available(SOON).await?;
        autoscaler(ns, 3, 8).await?;
        at_work(ns, "web").await?;
        let scene = governed(ns, web).await?;
        let node = only_node(&scene.pods)?;
        ns.nodes(1).await?;
        ns.cordon(&node).await?;
        for victim in &scene.pods {
            evict_until_it_passes(ns, victim).await?;
        }
        let now = scene.at_rest().await?;
        scene.ensure_moved(&now, &[&node])?;
        let autoscaler = ns.get("horizontalpodautoscaler", "web").await?;
        ensure!(autoscaler["spec"]["minReplicas"] == 3, "{}", autoscaler["spec"]);
        scene.ensure_served().await
    });
}
