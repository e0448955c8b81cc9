//! `belay explain node`, run against the cluster as a person would, and held to what scale-downs then take.

use anyhow::{Context as _, bail, ensure};
use belay_e2e::world::{Belay, Namespace, PodInfo, Workload};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use crate::stage::{PATIENCE, POOL, cost, nodes, rested};
use crate::support::SOON;
use crate::values::{order, ours, sheet, shrink, steady};
use crate::zones::over_zones;

#[test]
fn whatever_a_scale_down_takes_is_what_an_explanation_said_would_go_next() {
    cost("explained", async |ns: &Namespace, belay: &Belay| {
        let own = nodes(ns, 3, 6).await?;
        alone(ns, &own).await?;
        let web = ns.web("web").replicas(9).grace(1).create().await?;
        let spread = over_zones(ns.web("spread").replicas(9).grace(1)).create().await?;
        for workload in [&web, &spread] {
            workload.available(SOON).await?;
        }
        let order = order(ns, belay, &web).await?;
        for (workload, replicas) in [(&web, 6), (&spread, 8), (&spread, 5), (&web, 4), (&spread, 4), (&web, 1)] {
            rested(ns, belay).await?;
            let node = order.last().context("no nodes")?;
            let foretold = Foretold::of(&explained(belay, node).await?, workload).await?;
            let before = sheet(&steady(workload).await?);
            let gone = shrink(ns, workload, replicas).await?;
            foretold.came_true(&gone).with_context(|| format!("{replicas} are left of {before:#?}"))?;
        }
        Ok(())
    });
}

#[test]
fn a_node_is_explained_by_its_group_its_rank_and_its_neighbours_or_by_what_keeps_it() {
    cost("neighbours", async |ns: &Namespace, belay: &Belay| {
        let own = nodes(ns, 3, 3).await?;
        alone(ns, &own).await?;
        let web = ns.web("web").replicas(9).grace(1).create().await?;
        web.available(SOON).await?;
        let order = order(ns, belay, &web).await?;
        let [first, second, third] = &order[..] else { bail!("{order:?}") };
        let report = explained(belay, second).await?;
        let rank = &report["rank"];
        ensure!(report["group"] == "Normal" && report["enabled"] == true && report["pods"] == 3, "{report:#}");
        ensure!(rank["place"] == 2 && rank["of"] == 3, "{report:#}");
        ensure!(rank["before"]["name"] == **first && rank["after"]["name"] == **third, "{report:#}");
        let value = steady(&web).await?.iter().find(|pod| pod.node == *second).map(ours).context("no pod")??;
        ensure!(rank["rank"].as_i64() == value.map(i64::from), "{value:?} is not in {report:#}");

        ns.kubectl(["annotate", "node", second, "karpenter.sh/do-not-disrupt=true"]).ok().await?;
        let report = explained(belay, second).await?;
        ensure!(report["group"] == "Protected" && report["rank"].is_null(), "{report:#}");
        ensure!(report["because"].as_str().is_some_and(|why| why.contains("do-not-disrupt")), "{report:#}");
        ns.cordon(third).await?;
        ns.eventually("a cordoned node is first", SOON, async || {
            let report = explained(belay, third).await?;
            ensure!(report["group"] == "Draining" && report["rank"]["place"] == 1, "{report:#}");
            Ok(())
        })
        .await?;
        let text = belay.run(["explain", "node", third]).await?.ok().await?;
        for words in ["Draining", "being removed", "web", first] {
            ensure!(text.contains(words), "no {words:?} in\n{text}");
        }
        let exit = belay.run(["explain", "node", "nobody"]).await?.output().await?;
        ensure!(exit.code == Some(1) && exit.text().contains("nobody"), "{exit}");
        Ok(())
    });
}

/// Waits until the nodes of earlier tests are gone.
async fn alone(ns: &Namespace, own: &[String]) -> anyhow::Result<()> {
    ns.eventually("no other test has nodes", PATIENCE, async || {
        let nodes: Api<Node> = Api::all(ns.client());
        let of_pool = ListParams::default().labels(&format!("{}={}", POOL.0, POOL.1));
        let names = nodes.list(&of_pool).await?.items.into_iter().filter_map(|node| node.metadata.name);
        let others: Vec<_> = names.filter(|name| !own.contains(name)).collect();
        ensure!(others.is_empty(), "{others:?} are there");
        Ok(())
    })
    .await
}

/// `belay explain node NODE -o json`.
async fn explained(belay: &Belay, node: &str) -> anyhow::Result<Value> {
    let text = belay.run(["explain", "node", node, "-o", "json"]).await?.ok().await?;
    serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
}

/// What would go next of a workload: batches, within each of which Kubernetes leaves the order open. The last may be cut
/// short.
struct Foretold(Vec<Vec<String>>);

impl Foretold {
    async fn of(report: &Value, workload: &Workload) -> anyhow::Result<Self> {
        let set = workload.replica_sets().await?.into_iter().next().and_then(|set| set.metadata.name);
        let set = set.context("no ReplicaSet")?;
        let workloads = report["workloads"].as_array().context("no workloads")?;
        let found = workloads.iter().find(|found| found["replicaSet"] == set);
        let next = found.and_then(|found| found["next"].as_array());
        let next = next.with_context(|| format!("nothing is said of {set}: {report:#}"))?;
        let mut batches = vec![Vec::new()];
        for removal in next {
            let pod = removal["pod"].as_str().context("no pod")?.to_owned();
            batches.last_mut().context("no batch")?.push(pod);
            if removal["interchangeable"] != true {
                batches.push(Vec::new());
            }
        }
        batches.retain(|batch| !batch.is_empty());
        ensure!(!batches.is_empty(), "nothing would go: {report:#}");
        Ok(Self(batches))
    }

    /// Every batch went as a whole before the next one began.
    fn came_true(&self, gone: &[PodInfo]) -> anyhow::Result<()> {
        let mut gone: Vec<&str> = gone.iter().map(|pod| &*pod.name).collect();
        for batch in &self.0 {
            let count = gone.len();
            gone.retain(|pod| !batch.iter().any(|foretold| foretold == pod));
            let went = count - gone.len();
            ensure!(gone.is_empty() || went == batch.len(), "{gone:?} went before {batch:?}, of {:?}", self.0);
            if gone.is_empty() {
                return Ok(());
            }
        }
        bail!("{gone:?} went besides {:?}", self.0)
    }
}
