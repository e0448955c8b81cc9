//! Simulated nodes, drains, and an API server that goes and comes.

use std::time::{Duration, Instant};

use anyhow::ensure;
use belay_e2e::world::{self, Component, Namespace, Workload};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::DeleteParams;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_drain_evicts_the_pods_of_its_node_and_of_no_other() {
    world::test("drain", async |ns: &Namespace| {
        let nodes = ns.nodes(2).await?;
        ns.cordon(&nodes[1]).await?;
        let web = ns.web("web").create().await?;
        web.available(SOON).await?;
        ensure!(web.only_pod().await?.node == nodes[0], "a cordoned node got a pod");
        ns.uncordon(&nodes[1]).await?;

        let drain = ns.drain(&nodes[0], &["--timeout=60s"]).await?;
        drain.line("evicting pod", SOON).await?;
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        web.available(SOON).await?;
        ensure!(web.only_pod().await?.node == nodes[1], "the new pod went to the drained node");
        Ok(())
    });
}

#[test]
fn two_hundred_pods_become_ready() {
    world::test("many", async |ns: &Namespace| {
        ns.nodes(4).await?;
        let began = Instant::now();
        let web = ns.web("web").replicas(200).create().await?;
        web.available(Duration::from_mins(2)).await?;
        println!("200 pods available after {:.1} s", began.elapsed().as_secs_f64());
        let began = Instant::now();
        web.scale(0).await?;
        ns.eventually("no pods", Duration::from_mins(2), async || {
            let left = web.pods().await?.len();
            ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await?;
        println!("200 pods gone after {:.1} s", began.elapsed().as_secs_f64());
        Ok(())
    });
}

#[test]
fn what_runs_on_a_deleted_node_dies_with_it() {
    world::test("lost-node", async |ns: &Namespace| {
        let nodes = ns.nodes(1).await?;
        let web = ns.web("web").create().await?;
        web.available(SOON).await?;
        let pod = web.only_pod().await?;
        let address = ns.cluster().reach(&pod.address, 8090)?;
        Api::<Node>::all(ns.client()).delete(&nodes[0], &DeleteParams::default()).await?;
        ns.eventually("the pod to serve no more", SOON, async || {
            ensure!(belay_e2e::plain_http::get(address, "/").await.is_err(), "it serves");
            Ok(())
        })
        .await?;
        ensure!(ns.api::<Pod>().get_opt(&pod.name).await?.is_some(), "only the garbage collector removes the object");
        Ok(())
    });
}

#[test]
fn pods_go_on_and_nodes_are_followed_through_a_restart_of_the_api_server() {
    let cluster = world::Cluster::start(world::Options::default()).unwrap();
    world::test_on(&cluster, "restart", async |ns: &Namespace| {
        ns.nodes(2).await?;
        // One of the pods is deleted at the end, and endpoints follow only after it has begun to go.
        let web = ns.web("web").pre_stop(3).create().await?;
        web.available(SOON).await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;

        let control_plane = ns.cluster().control_plane();
        control_plane.kill(Component::ApiServer).await?;
        load.ok(20, SOON).await?;
        control_plane.start_component(Component::ApiServer).await?;

        web.scale(3).await?;
        web.available(SOON).await?;
        let other = ns.web("other").create().await?;
        other.available(SOON).await?;
        delete_and_await_successor(ns, &web).await?;
        let served = load.stop().await;
        ensure!(served.failed() == 0, "pods serve without an API server: {served}");
        ensure!(control_plane.problems().all().is_empty(), "{:?}", control_plane.problems().all());
        Ok(())
    });
}

async fn delete_and_await_successor(ns: &Namespace, web: &Workload) -> anyhow::Result<()> {
    let Some(victim) = web.pods().await?.pop() else {
        anyhow::bail!("no pods");
    };
    ns.api::<Pod>().delete(&victim.name, &DeleteParams::default()).await?;
    ns.eventually("the pod to be replaced", SOON, async || {
        let pods = web.pods().await?;
        ensure!(pods.iter().all(|pod| pod.uid != victim.uid), "it is still there");
        Ok(())
    })
    .await?;
    web.available(SOON).await.map(drop)
}
