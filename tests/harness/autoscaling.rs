//! Autoscalers: the real controller keeps bounds, and the played operator of KEDA makes it keep those of a ScaledObject.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::keda::{Keda, scaled_objects};
use belay_e2e::world::{self, Namespace};
use kube::api::{Patch, PatchParams};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_workload_gets_the_replicas_that_its_scaled_object_asks_for_at_least() {
    world::test("scaled", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = ns.web("web").create().await?;
        let keda = Keda::play(ns).await?;
        keda.scaled_object("web", 2, 5).await?;
        let has = async |replicas: i32| {
            ns.eventually(&format!("{replicas} replicas"), SOON, async || {
                let found = web.deployment().await?.spec.replicas;
                ensure!(found == Some(replicas), "{found:?}");
                Ok(())
            })
            .await
        };
        has(2).await?;
        for (minimum, expected) in [(4, 4), (1, 4)] {
            let patch = Patch::Merge(json!({ "spec": { "minReplicaCount": minimum } }));
            ns.custom(&scaled_objects()).patch("web", &PatchParams::default(), &patch).await?;
            ns.eventually("the autoscaler follows", SOON, async || {
                let autoscaler = ns.get("horizontalpodautoscaler", "keda-hpa-web").await?;
                ensure!(autoscaler["spec"]["minReplicas"] == minimum, "{}", autoscaler["spec"]);
                Ok(())
            })
            .await?;
            // Without metrics it knows no reason to take one away.
            has(expected).await?;
        }
        Ok(())
    });
}
