//! What users wrote survives everything that Belay does, and what Belay wrote does not survive Belay.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use belay_e2e::world::{Belay, Namespace, PodInfo, Workload};

use crate::busy_support::{COST, RECORD, mark, record, written};
use crate::stage::{PATIENCE, after_passes, at_work, counted, nodes, off, on, with_values};
use crate::support::SOON;
use crate::values::{by_node, ours, resize, steady, told};
use crate::zones::over_zones;

/// What the Event about a value that was given up is called.
const CONFLICT: &str = "DeletionCostConflict";

/// A value that stands on every pod of a workload, from its template.
const GIVEN: &str = "100";

/// Labels and annotations, those of labels with `label:` before.
type Metadata = BTreeMap<String, String>;

#[test]
fn values_of_users_survive_ranking_switching_off_and_uninstalling_and_nothing_of_belays_does() {
    with_values("owners", off(), async |ns: &Namespace, belay: &Belay| {
        let mut scene = Scene::set(ns).await?;
        belay.upgrade(on()).await?;
        at_work(ns, belay).await?;
        scene.valued(ns).await?;
        scene.users_change_values(ns, belay).await?;
        scene.ranks_change(ns).await?;

        let left = scene.left(ns).await?;
        belay.upgrade(off()).await?;
        is_left_with(ns, &left).await?;
        let quiet = written(ns)?.len();
        let grown = resize(ns, &scene.plain, 7).await?;
        for pod in steady(&scene.plain).await?.iter().filter(|pod| grown.contains(&pod.uid)) {
            ensure!(record(pod)?.is_empty(), "{} has a record while Belay is off", pod.name);
        }
        ensure!(written(ns)?.len() == quiet, "written while it is off: {:?}", written(ns)?.split_off(quiet));

        belay.upgrade(on()).await?;
        at_work(ns, belay).await?;
        scene.valued(ns).await?;
        // What was given up was forgotten with the rest, so it is one of Belay's again; what was changed is not.
        scene.conflicts(ns).await?;
        after_passes(ns, belay, 2).await?;
        let left = scene.left(ns).await?;
        belay.uninstall().await?;
        is_left_with(ns, &left).await?;
        Ok(())
    });
}

/// Workloads whose pods users have set values on, in every way that there is.
struct Scene {
    nodes: Vec<String>,
    /// Six pods; on one of them a user set a value before Belay came.
    plain: Workload,
    /// Three pods, spread over zones.
    spread: Workload,
    /// Two pods, of which one will be stripped of its value again and again.
    stripped: Workload,
    /// The pods with values of users', and which.
    theirs: BTreeMap<String, String>,
    /// The pods that users took over from Belay.
    conflicts: Vec<String>,
}

impl Scene {
    async fn set(ns: &Namespace) -> anyhow::Result<Self> {
        let nodes = nodes(ns, 3, 20).await?;
        let plain = ns.web("plain").replicas(6).grace(1).create().await?;
        let spread = over_zones(ns.web("spread").replicas(3).grace(1)).create().await?;
        let stripped = ns.web("stripped").replicas(2).grace(1).create().await?;
        let given = ns.web("given").replicas(3).grace(1).pod_annotation(COST, GIVEN).create().await?;
        // A value below 0 says that this pod goes first; any on its sibling could turn that round.
        let steered = ns.web("steered").replicas(2).grace(1).create().await?;
        for workload in [&plain, &spread, &stripped, &given, &steered] {
            workload.available(SOON).await?;
        }
        let mut theirs = BTreeMap::new();
        for pod in steady(&given).await? {
            theirs.insert(pod.name, GIVEN.to_owned());
        }
        for (workload, value) in [(&plain, "7"), (&steered, "-5")] {
            let pod = steady(workload).await?.swap_remove(0).name;
            annotate(ns, &pod, Some(value)).await?;
            theirs.insert(pod, value.to_owned());
        }
        Ok(Self { nodes, plain, spread, stripped, theirs, conflicts: Vec::new() })
    }

    /// Waits until all pods that Belay may write on carry a value, and no others.
    async fn valued(&self, ns: &Namespace) -> anyhow::Result<()> {
        ns.eventually("all pods carry what they should", PATIENCE, async || {
            for pod in ns.pods("").await? {
                if self.theirs.contains_key(&pod.name) {
                    self.stands(&pod)?;
                } else if pod.name.starts_with("steered-") {
                    ensure!(ours(&pod)?.is_none(), "{} carries a value of Belay's", pod.name);
                } else {
                    ensure!(ours(&pod)?.is_some(), "{} carries none", pod.name);
                }
            }
            Ok(())
        })
        .await
    }

    /// A user's value stands, and Belay claims nothing there.
    fn stands(&self, pod: &PodInfo) -> anyhow::Result<()> {
        let Some(expected) = self.theirs.get(&pod.name) else { return Ok(()) };
        let (value, record) = (mark(pod, COST), record(pod)?);
        ensure!(value.as_ref() == Some(expected), "{} carries {value:?}, not {expected}", pod.name);
        ensure!(record.is_empty(), "{} has the record {record:?}", pod.name);
        Ok(())
    }

    async fn all_stand(&self, ns: &Namespace) -> anyhow::Result<()> {
        ns.pods("").await?.iter().try_for_each(|pod| self.stands(pod))
    }

    /// Users change a value of Belay's on one pod of each kind, and take away another's again and again.
    async fn users_change_values(&mut self, ns: &Namespace, belay: &Belay) -> anyhow::Result<()> {
        // Each on a node of its own: changes to pods of several workloads on one node are taken for another controller's.
        let stripped = steady(&self.stripped).await?.swap_remove(0);
        let mut edited = BTreeSet::from([stripped.node]);
        for (workload, value) in [(&self.spread, "50"), (&self.plain, "9")] {
            let pods = steady(workload).await?.into_iter();
            let mut open = pods.filter(|pod| !self.theirs.contains_key(&pod.name) && !edited.contains(&pod.node));
            let pod = open.next().context("no pod is left")?;
            edited.insert(pod.node);
            annotate(ns, &pod.name, Some(value)).await?;
            self.theirs.insert(pod.name.clone(), value.to_owned());
            self.conflicts.push(pod.name);
        }
        self.valued(ns).await?;

        let pod = stripped.name;
        for time in 1..=2 {
            annotate(ns, &pod, None).await?;
            ns.eventually("a value that somebody took away is put back", SOON, async || {
                ensure!(ours(&ns.pod_info(&pod).await?)?.is_some(), "not yet, the {time}. time");
                Ok(())
            })
            .await?;
        }
        annotate(ns, &pod, None).await?;
        ns.eventually("a value that is taken away for the third time is given up", SOON, async || {
            let record = record(&ns.pod_info(&pod).await?)?;
            ensure!(record.get(COST) == Some(&None), "the record is {record:?}");
            Ok(())
        })
        .await?;
        self.conflicts.push(pod);
        self.conflicts(ns).await?;
        let counted = counted(belay, "belay_deletion_cost_conflicts_total", "").await?;
        ensure!(counted == 3, "{counted} conflicts are counted");
        Ok(())
    }

    /// One Event about each pod that was taken over, and none about another.
    async fn conflicts(&self, ns: &Namespace) -> anyhow::Result<()> {
        ns.eventually("each conflict is told once", SOON, async || {
            for pod in ns.pods("").await? {
                let events = told(ns, CONFLICT, &pod.name).await?;
                let expected = usize::from(self.conflicts.contains(&pod.name));
                ensure!(events.len() == expected, "about {} is told {events:#?}", pod.name);
                let repeated = events.iter().any(|event| !event["series"].is_null());
                ensure!(!repeated, "about {} is told again and again: {events:#?}", pod.name);
            }
            Ok(())
        })
        .await
    }

    /// Nodes are cordoned and protected, and come back.
    async fn ranks_change(&self, ns: &Namespace) -> anyhow::Result<()> {
        let values = self.ranks().await?;
        let last = self.nodes.iter().max_by_key(|node| values.get(*node)).context("no nodes")?;
        ns.cordon(last).await?;
        ns.eventually("a cordoned node goes first", SOON, async || {
            let values = self.ranks().await?;
            ensure!(values.values().min() == values.get(last), "{last} does not, by {values:?}");
            Ok(())
        })
        .await?;
        self.all_stand(ns).await?;
        ns.uncordon(last).await?;
        let key = "karpenter.sh/do-not-disrupt";
        ns.kubectl(["annotate", "node", last, &format!("{key}=true")]).ok().await?;
        ns.eventually("a protected node has no rank", SOON, async || {
            for pod in steady(&self.plain).await?.iter().filter(|pod| pod.node == *last) {
                ensure!(self.theirs.contains_key(&pod.name) || ours(pod)?.is_none(), "{} has one", pod.name);
            }
            Ok(())
        })
        .await?;
        self.all_stand(ns).await?;
        ns.kubectl(["annotate", "node", last, &format!("{key}-")]).ok().await?;
        ns.eventually("it has a rank again", SOON, async || {
            let values = self.ranks().await?;
            ensure!(values.contains_key(last), "{values:?}");
            Ok(())
        })
        .await?;
        self.all_stand(ns).await
    }

    /// The nodes' ranks, as those pods of the workload without spread say that Belay may write on.
    async fn ranks(&self) -> anyhow::Result<BTreeMap<String, i32>> {
        let mut pods = steady(&self.plain).await?;
        pods.retain(|pod| !self.theirs.contains_key(&pod.name));
        by_node(&pods)
    }

    /// What every pod is to be left with: all that is on it but what Belay says that it wrote.
    async fn left(&self, ns: &Namespace) -> anyhow::Result<BTreeMap<String, Metadata>> {
        let mut left = BTreeMap::new();
        let mut removed = 0;
        for pod in ns.pods("").await? {
            let mut all = metadata(&pod);
            for (key, value) in record(&pod)? {
                ensure!(value.is_none() || all.get(&key) == value.as_ref(), "{}: {key}", pod.name);
                removed += usize::from(all.remove(&key).is_some());
            }
            all.remove(RECORD);
            left.insert(pod.name, all);
        }
        ensure!(removed >= 6, "only {removed} values of Belay's: nothing to see here");
        self.all_stand(ns).await?;
        Ok(left)
    }
}

async fn is_left_with(ns: &Namespace, expected: &BTreeMap<String, Metadata>) -> anyhow::Result<()> {
    for pod in ns.pods("").await? {
        let all = metadata(&pod);
        let Some(expected) = expected.get(&pod.name) else { bail!("{} is new", pod.name) };
        ensure!(all == *expected, "{} is left with {all:#?}, not {expected:#?}", pod.name);
    }
    Ok(())
}

fn metadata(pod: &PodInfo) -> Metadata {
    let annotations = pod.pod.metadata.annotations.clone().unwrap_or_default();
    let labels = pod.pod.metadata.labels.clone().unwrap_or_default();
    annotations.into_iter().chain(labels.into_iter().map(|(key, value)| (format!("label:{key}"), value))).collect()
}

/// What a user says at the keyboard.
async fn annotate(ns: &Namespace, pod: &str, value: Option<&str>) -> anyhow::Result<()> {
    let change = value.map_or_else(|| format!("{COST}-"), |value| format!("{COST}={value}"));
    ns.kubectl(["annotate", "--overwrite", "pod", pod, &change]).ok().await.map(drop)
}
