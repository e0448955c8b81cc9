//! Scale-downs of workloads that are spread over zones leave them spread.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Belay, Namespace, PodInfo, Web, Workload};
use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use crate::stage::{PATIENCE, cost, nodes, rested};
use crate::support::SOON;
use crate::values::{ours, rank, resize, sheet, shrink, steady};

/// The label that says a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Asks that the pods of a workload are spread over zones, as evenly as can be.
pub(crate) fn over_zones(web: Web<'_>) -> Web<'_> {
    web.edit(|deployment| {
        let spec = &mut deployment.spec;
        let selector = spec.selector.clone();
        let constraint = TopologySpreadConstraint {
            label_selector: Some(selector),
            max_skew: 1,
            topology_key: ZONE.into(),
            when_unsatisfiable: "DoNotSchedule".into(),
            ..TopologySpreadConstraint::default()
        };
        spec.template.spec.get_or_insert_default().topology_spread_constraints = Some(vec![constraint]);
    })
}

#[test]
fn two_workloads_over_three_zones_keep_their_skew_at_every_step_down_to_one_pod() {
    cost("zones", async |ns: &Namespace, belay: &Belay| {
        let nodes = nodes(ns, 6, 20).await?;
        let zones = Zones::of(&nodes);
        let web = over_zones(ns.web("web").replicas(9).grace(1)).create().await?;
        let api = over_zones(ns.web("api").replicas(8).grace(1)).create().await?;
        for workload in [&web, &api] {
            workload.available(SOON).await?;
        }
        rested(ns, belay).await?;
        for workload in [&web, &api] {
            zones.followed(ns, workload).await?;
            zones.ensure_level(&steady(workload).await?)?;
        }
        for replicas in (1..9).rev() {
            for workload in [&web, &api] {
                if replicas == 8 && workload.name() == "api" {
                    continue;
                }
                let before = sheet(&steady(workload).await?);
                shrink(ns, workload, replicas).await?;
                let pods = steady(workload).await?;
                zones.ensure_level(&pods).with_context(|| format!("{replicas} are left of {before:#?}"))?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_workload_over_three_zones_keeps_its_skew_when_it_shrinks_by_many_pods_at_once_and_grows_again() {
    cost("leaps", async |ns: &Namespace, belay: &Belay| {
        let nodes = nodes(ns, 6, 20).await?;
        let zones = Zones::of(&nodes);
        let web = over_zones(ns.web("web").replicas(12).grace(1)).create().await?;
        web.available(SOON).await?;
        for (down, up) in [(7, 11), (4, 9), (2, 12), (1, 5)] {
            rested(ns, belay).await?;
            zones.followed(ns, &web).await?;
            let before = sheet(&steady(&web).await?);
            shrink(ns, &web, down).await?;
            zones.ensure_level(&steady(&web).await?).with_context(|| format!("{down} are left of {before:#?}"))?;
            resize(ns, &web, up).await?;
        }
        Ok(())
    });
}

/// Which zone each node is in, as the harness makes them: by turns.
struct Zones(BTreeMap<String, usize>);

impl Zones {
    fn of(nodes: &[String]) -> Self {
        Self(nodes.iter().enumerate().map(|(index, node)| (node.clone(), index % 3)).collect())
    }

    fn zone(&self, pod: &PodInfo) -> anyhow::Result<usize> {
        self.0.get(&pod.node).copied().with_context(|| format!("{} is on {:?}", pod.name, pod.node))
    }

    /// No zone has more than one pod more than another.
    fn ensure_level(&self, pods: &[PodInfo]) -> anyhow::Result<()> {
        let mut heights = [0; 3];
        for pod in pods {
            heights[self.zone(pod)?] += 1;
        }
        let skew = heights.iter().max().unwrap_or(&0) - heights.iter().min().unwrap_or(&0);
        ensure!(skew <= 1, "the zones have {heights:?} pods");
        Ok(())
    }

    /// Waits until every pod carries a value, and within each zone these follow the ranks of the nodes.
    async fn followed(&self, ns: &Namespace, workload: &Workload) -> anyhow::Result<()> {
        ns.eventually(&format!("the zones of {} empty node by node", workload.name()), PATIENCE, async || {
            let pods = steady(workload).await?;
            let mut of_zone: BTreeMap<usize, Vec<(i32, i32)>> = BTreeMap::new();
            for pod in &pods {
                let value = ours(pod)?.with_context(|| format!("{} carries none", pod.name))?;
                of_zone.entry(self.zone(pod)?).or_default().push((value, rank(value)));
            }
            for (zone, values) in &mut of_zone {
                values.sort_unstable();
                ensure!(values.is_sorted_by_key(|(_, rank)| *rank), "zone {zone} goes in the order {values:?}");
            }
            Ok(())
        })
        .await
    }
}
