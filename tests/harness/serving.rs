//! Pods that serve, and a load that counts what they do not.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::{self, Namespace, PodInfo};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_deployment_becomes_available_and_serves() {
    world::test("serves", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let ready_after = Duration::from_millis(700);
        let web = ns.web("web").replicas(2).ready_after(ready_after).create().await?;
        web.available(SOON).await?;
        let pods = web.pods().await?;
        ensure!(pods.len() == 2 && pods.iter().all(|pod| pod.ready), "{pods:?}");

        let load = ns.load("web", 50).await?;
        load.ok(60, SOON).await?;
        let served = load.stop().await;
        ensure!(served.failed() == 0, "{served}");
        ensure!(served.longest_gap < Duration::from_secs(1), "{served}");
        Ok(())
    });
}

#[test]
fn a_load_awaits_the_first_endpoint_of_its_service() {
    world::test("awaits", async |ns: &Namespace| {
        ns.nodes(1).await?;
        ns.web("web").ready_after(Duration::from_secs(2)).create().await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;
        let served = load.stop().await;
        ensure!(served.failed() == 0, "{served}");
        Ok(())
    });
}

#[test]
fn deleting_the_only_pod_is_counted_as_failures() {
    world::test("outage", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let outage = Duration::from_secs(2);
        let web = ns.web("web").ready_after(outage).create().await?;
        web.available(SOON).await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;

        let victim = web.only_pod().await?;
        ns.api::<Pod>().delete(&victim.name, &DeleteParams::default()).await?;
        ns.eventually("failures", SOON, async || {
            let failed = load.so_far().failed();
            ensure!(failed > 0, "none so far");
            Ok(())
        })
        .await?;
        load.ok(20, SOON).await?;

        let served = load.stop().await;
        ensure!(served.no_endpoint > 0, "while no pod was Ready there was nothing to choose: {served}");
        ensure!(served.longest_gap >= outage, "as long as the new pod took: {served}");
        ensure!(served.longest_gap < outage + Duration::from_secs(3), "and not much longer: {served}");
        let (first, last) = served.first_failure.zip(served.last_failure).context("no time of a failure")?;
        ensure!(last > first, "{served}");
        Ok(())
    });
}

#[test]
fn a_rolling_update_with_a_pre_stop_sleep_loses_no_request() {
    world::test("rolling", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let web = ns.web("web").rolling(1, 0).pre_stop(3).create().await?;
        web.available(SOON).await?;
        let before = web.only_pod().await?;
        let load = ns.load("web", 100).await?;
        load.ok(20, SOON).await?;
        web.release("2").await?;
        web.available(SOON).await?;
        load.ok(50, SOON).await?;
        let after = web.only_pod().await?;
        ensure!(before.uid != after.uid, "the same pod");
        ensure!(web.replica_sets().await?.len() == 2);
        let served = load.stop().await;
        ensure!(served.failed() == 0, "{served}");
        Ok(())
    });
}

#[test]
fn a_pod_serves_through_pre_stop_and_is_gone_before_its_grace_period_ends() {
    world::test("graceful", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = ns.web("web").pre_stop(2).grace(20).create().await?;
        web.available(SOON).await?;
        let victim = web.only_pod().await?;
        let pods = ns.api::<Pod>();
        let asked = std::time::Instant::now();
        pods.delete(&victim.name, &DeleteParams::default()).await?;
        let address = ns.cluster().reach(&victim.address, 8090)?;
        ns.throughout("the pod serves while it sleeps", Duration::from_millis(1500), async || {
            let (status, body) = belay_e2e::plain_http::get(address, "/").await?;
            ensure!(status.is_success() && body.starts_with(victim.name.as_bytes()), "{status} {body:?}");
            Ok(())
        })
        .await?;
        ns.eventually("the pod's object to be gone", SOON, async || {
            let found = pods.get_opt(&victim.name).await?;
            ensure!(found.is_none(), "it is still there");
            Ok(())
        })
        .await?;
        let took = asked.elapsed();
        ensure!(took >= Duration::from_secs(2), "gone after {took:?}, before preStop was over");
        ensure!(took < Duration::from_secs(10), "gone only after {took:?}");
        ensure!(belay_e2e::plain_http::get(address, "/").await.is_err(), "it still serves");
        Ok(())
    });
}

#[test]
fn a_readiness_that_another_controller_took_away_is_put_back() {
    world::test("put-back", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = ns.web("web").create().await?;
        web.available(SOON).await?;
        let pod = web.only_pod().await?;
        // What the node-lifecycle-controller writes when a node's heartbeat is missed.
        let unready = Patch::Strategic(
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "reason": "X" }] } }),
        );
        let pods = ns.api::<Pod>();
        let written = pods.patch_status(&pod.name, &PatchParams::default(), &unready).await?;
        ensure!(!PodInfo::from(written).ready, "the API server did not take it away");
        ns.eventually("the pod to be Ready again", SOON, async || web.only_pod().await).await?;
        Ok(())
    });
}

#[test]
fn a_killed_pod_stops_serving_and_is_restarted_in_place() {
    world::test("crash", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = ns.web("web").create().await?;
        web.available(SOON).await?;
        let pod = web.only_pod().await?;
        ns.cluster().kill_pod(ns.name(), &pod.name)?;
        let restarted = ns
            .eventually("the same pod to be Ready again", SOON, async || {
                let again = web.only_pod().await?;
                let status = again.pod.status.clone().context("no status")?;
                let containers = status.container_statuses.unwrap_or_default();
                let container = containers.first().context("no container")?.clone();
                ensure!(container.restart_count == 1, "{} restarts", container.restart_count);
                Ok((again, container))
            })
            .await?;
        let (again, container) = restarted;
        ensure!(again.uid == pod.uid, "another pod");
        let last = container.last_state.and_then(|last| last.terminated).context("no last state")?;
        ensure!(last.exit_code == 137, "{last:?}");
        Ok(())
    });
}
