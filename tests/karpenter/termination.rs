//! How a node of Karpenter's ends: its pods are evicted, refused, and asked about again until their stand-ins serve on
//! another node, which Karpenter makes for them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::evictions::{self, Table};
use belay_e2e::karpenter::{Consolidation, Karpenter, Pool, USER};
use belay_e2e::world::{Namespace, test_on};
use serde_json::json;

use crate::handover_scene::{Scene, only_node, web};
use crate::scene::{NEVER, PATIENCE, cluster};
use crate::support::hold_in_phase;
use crate::surge::{up_and_back, written_by_belay};

/// Three of them fill a node of Karpenter's one type, so a fourth needs another.
const CPU: &str = "1200m";

#[test]
fn a_node_that_karpenter_takes_is_emptied_without_a_gap() {
    let cluster = cluster();
    test_on(&cluster, "termination", async |ns: &Namespace| {
        let _karpenter = Karpenter::start(&cluster, &[]).await?;
        cluster.install_belay(json!({})).await?;
        let pool = Pool::create(ns, Consolidation::WhenEmptyOrUnderutilized, NEVER).await?;
        let web = web(ns, 3).ready_after(Duration::from_secs(3)).edit(|deployment| {
            let spec = deployment.spec.template.spec.get_or_insert_default();
            spec.containers[0].resources = serde_json::from_value(json!({ "requests": { "cpu": CPU } })).ok();
        });
        let scene = Scene::set(web, "handover: Scale").await?;
        let node = only_node(&scene.pods)?;
        let claims = ns.list("nodeclaims.karpenter.sh").await?;
        let claim = claims.iter().find(|claim| claim["status"]["nodeName"] == *node);
        let claim = claim.and_then(|claim| claim["metadata"]["name"].as_str()).context("the node has no claim")?;
        ns.kubectl(["delete", "nodeclaim", claim, "--wait=false"]).ok().await?;
        ns.eventually("Karpenter's node is gone", PATIENCE, async || {
            let nodes = pool.nodes().await?;
            ensure!(nodes.iter().all(|left| left.metadata.name.as_deref() != Some(&*node)), "it is there");
            Ok(())
        })
        .await?;

        let now = scene.at_rest().await?;
        scene.ensure_moved(&now, &[&node])?;
        let asked = evictions::asked(ns)?;
        println!("{}", Table(&asked));
        for victim in &scene.pods {
            let hold = hold_in_phase(ns, victim, "Completed").await?;
            ensure!(hold["status"]["outcome"] == "HandedOver" && hold["spec"]["evictor"] == USER, "{hold}");
            let asked = asked.iter().find(|asked| asked.user == USER && asked.pod == victim.name);
            let asked = asked.with_context(|| format!("Karpenter has not asked about {}", victim.name))?;
            ensure!(asked.refused() > 0 && asked.deleted.is_none(), "{asked:?}");
        }
        let written = written_by_belay(ns, "deployments", "replicas")?;
        ensure!(written == up_and_back(3), "{written:?}");
        scene.ensure_served().await
    });
}
