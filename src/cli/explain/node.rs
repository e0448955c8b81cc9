//! The explanation of a node: how soon it ought to empty and why, and what scale-downs would take from it.

use std::collections::BTreeMap;

use belay_decide::cost::cluster::Cluster;
use belay_decide::cost::{
    CostPod, Group, Keep, Options, PodHold, Protection, SetView, Standing, Verdict, Withheld, withheld,
};
use belay_decide::doom;
use jiff::Timestamp;
use serde::Serialize;

use super::pod::write_unread;
use crate::cli::page::{ForPeople, Page, Row};

/// How many of the next removals of a workload are told.
const NEXT: usize = 5;

/// A cluster as it was read.
pub(super) struct SeenCluster {
    /// Everything that ranks are made from, looked at once.
    pub(super) cluster: Cluster,
    /// The settings.
    pub(super) options: Options,
    /// `deletionCost.enabled`.
    pub(super) enabled: bool,
    /// What could not be read, and why.
    pub(super) unread: Vec<String>,
}

/// What there is to say about a node.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    name: String,
    /// Deletion costs are written; else this is what they would be.
    enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    /// `Draining`, `Drifted`, `Normal` or `Protected`.
    group: &'static str,
    because: String,
    /// Its place in the order in which nodes ought to empty; absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<RankReport>,
    /// How many of its pods would have to run elsewhere; absent where it is protected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<u32>,
    workloads: Vec<WorkloadReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct RankReport {
    rank: i32,
    /// From 1.
    place: usize,
    of: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Neighbour>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Neighbour>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct Neighbour {
    name: String,
    rank: i32,
    pods: u32,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct WorkloadReport {
    namespace: String,
    replica_set: String,
    replicas: i32,
    pods_here: usize,
    /// What removals keep level: of its topology spread constraints those that can be kept, or what
    /// `deletionCost.spreadZones` stands for.
    spread_over: Vec<String>,
    /// Why its pods get no values; absent where they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    withheld: Option<String>,
    /// The pods that the next scale-down takes, in that order, by the values that they carry now.
    next: Vec<Removal>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct Removal {
    pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// What Kubernetes reads; 0 where there is none.
    cost: i32,
    /// `Belay`, `Other` or `Nobody`.
    owner: &'static str,
    /// What the controller is about to write; absent where nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    about_to_be: Option<String>,
    /// Kubernetes may take the one below first: it leaves their order open.
    interchangeable: bool,
}

/// Explains; absent where there is no such node.
pub(super) fn explain(seen: &SeenCluster, name: &str, now: Timestamp) -> Option<Report> {
    let cluster = &seen.cluster;
    let facts = cluster.node(name)?;
    let ranking = cluster.ranking();
    let (group, because, pods) = match ranking.verdict(name)? {
        Verdict::Ranked(ranked) => (ranked.group.as_str(), why(seen, name, ranked.group), Some(ranked.pods)),
        Verdict::Waiting { group: waiting, pods } => {
            let because = format!(
                "{}; it has no rank, since others are to empty sooner ({} nodes are ranked, deletionCost.maxNodes)",
                why(seen, name, *waiting),
                seen.options.max_nodes
            );
            (waiting.as_str(), because, Some(*pods))
        }
        Verdict::Protected(protection) => ("Protected", protected(protection), None),
    };
    let sets = cluster.sets_on(name).into_iter();
    let mut workloads: Vec<_> = sets.filter_map(|set| workload(cluster, set, name, now)).collect();
    workloads.sort_by(|one, other| (&one.namespace, &one.replica_set).cmp(&(&other.namespace, &other.replica_set)));
    Some(Report {
        name: name.to_owned(),
        enabled: seen.enabled,
        pool: facts.pool.as_deref().map(str::to_owned),
        group,
        because,
        rank: rank(cluster, name),
        pods,
        workloads,
        unread: seen.unread.clone(),
    })
}

fn why(seen: &SeenCluster, name: &str, group: Group) -> String {
    let facts = seen.cluster.node(name);
    match group {
        Group::Draining => match facts.and_then(|facts| doom::reason(&facts.node)) {
            Some(reason) => format!("it is being removed: {reason}"),
            None => "it is being removed: the Node or its NodeClaim is being deleted".to_owned(),
        },
        Group::Drifted => "its NodeClaim has the condition Drifted".to_owned(),
        Group::Normal => "it is not being removed, has not drifted, and nothing keeps it".to_owned(),
    }
}

fn protected(protection: &Protection) -> String {
    match protection {
        Protection::Node(keep) => match keep {
            Keep::DoNotDisrupt => "the node's annotation karpenter.sh/do-not-disrupt keeps it".to_owned(),
            Keep::ScaleDownDisabled => {
                "the node's annotation cluster-autoscaler.kubernetes.io/scale-down-disabled keeps it".to_owned()
            }
            Keep::ControlPlane => "it carries the control plane".to_owned(),
            Keep::ConsolidationOff => {
                "its NodePool is never consolidated (consolidateAfter: Never, or a static pool)".to_owned()
            }
        },
        Protection::OtherPool => "its pool is none of deletionCost.nodePools".to_owned(),
        Protection::StoodDown => "another controller writes deletion costs there".to_owned(),
        Protection::Pod { pod, hold } => {
            let why = match hold {
                PodHold::DoNotDisrupt => "annotation karpenter.sh/do-not-disrupt",
                PodHold::NotSafeToEvict => "annotation cluster-autoscaler.kubernetes.io/safe-to-evict: \"false\"",
                PodHold::Unmanaged => "no controller would make it anew",
            };
            format!("pod {pod} must stay: {why}")
        }
        Protection::JustFreed => "a pod that had to stay has just left, and the next may come".to_owned(),
        Protection::Budget { pod } => format!("the PodDisruptionBudgets of pod {pod} let it not be evicted"),
    }
}

fn rank(cluster: &Cluster, name: &str) -> Option<RankReport> {
    let ranking = cluster.ranking();
    let neighbour = |name: &str| match ranking.verdict(name) {
        Some(Verdict::Ranked(ranked)) => {
            Some(Neighbour { name: name.to_owned(), rank: ranked.rank, pods: ranked.pods })
        }
        _ => None,
    };
    let (before, after) = ranking.neighbours(name);
    Some(RankReport {
        rank: ranking.rank_of(name)?,
        place: ranking.order().position(|other| other == name)? + 1,
        of: ranking.order().count(),
        before: before.and_then(neighbour),
        after: after.and_then(neighbour),
    })
}

fn workload(cluster: &Cluster, uid: &str, node: &str, now: Timestamp) -> Option<WorkloadReport> {
    let set = cluster.set(uid)?;
    let known = cluster.pods_of(uid);
    let pods: Vec<&CostPod> = known.iter().map(|(known, _)| &known.pod).collect();
    let desired: BTreeMap<&str, Option<i32>> =
        known.iter().map(|(known, desired)| (&*known.pod.name, *desired)).collect();
    Some(WorkloadReport {
        namespace: set.namespace.to_string(),
        replica_set: set.name.to_string(),
        replicas: set.replicas,
        pods_here: pods.iter().filter(|pod| pod.is_active() && pod.node.as_deref() == Some(node)).count(),
        spread_over: cluster.spread_over(uid, now).into_iter().map(|level| spread_over(set, level)).collect(),
        withheld: withheld(set, &pods).map(|why| match why {
            Withheld::SinglePod => "it has one pod, or none: there is nothing to choose".to_owned(),
            Withheld::StoodDown => "another controller writes deletion costs there".to_owned(),
            Withheld::Steered { pod } => {
                format!("pod {pod} carries somebody else's value below 0, which values of Belay's would turn round")
            }
        }),
        next: next(&cluster.removal(uid, now), &desired),
    })
}

fn spread_over(set: &SetView, (key, max_skew): (&str, i32)) -> String {
    let is_own = set.constraints.iter().any(|constraint| *constraint.key == *key);
    format!("{key} (maxSkew {max_skew}{})", if is_own { "" } else { ", by deletionCost.spreadZones" })
}

fn next(batches: &[Vec<&CostPod>], desired: &BTreeMap<&str, Option<i32>>) -> Vec<Removal> {
    let of_batch = |batch: &Vec<&CostPod>| {
        let last = batch.len().saturating_sub(1);
        let removal = |(at, pod): (usize, &&CostPod)| removal(pod, desired, at < last);
        batch.iter().enumerate().map(removal).collect::<Vec<_>>()
    };
    batches.iter().flat_map(of_batch).take(NEXT).collect()
}

fn removal(pod: &CostPod, desired: &BTreeMap<&str, Option<i32>>, interchangeable: bool) -> Removal {
    let desired = desired.get(&*pod.name).copied().flatten();
    let changes = pod.standing.is_open() && pod.standing.asks_for_a_write(desired);
    Removal {
        pod: pod.name.to_string(),
        node: pod.node.as_deref().map(str::to_owned),
        cost: pod.standing.effective(),
        owner: match pod.standing {
            Standing::Ours(_) | Standing::Stripped(_) => "Belay",
            Standing::Theirs { .. } | Standing::GivenUp | Standing::OtherPart(_) => "Other",
            Standing::Absent => "Nobody",
        },
        about_to_be: changes.then(|| desired.map_or_else(|| "(removed)".to_owned(), |value| value.to_string())),
        interchangeable,
    }
}

impl ForPeople for Report {
    fn write(&self, page: &mut Page) {
        let pool = self.pool.as_ref().map(|pool| format!(" of pool {pool}")).unwrap_or_default();
        page.heading(&format!("Node {}", self.name), &pool);
        page.gap();
        if !self.enabled {
            page.line(0, "Deletion costs are off (deletionCost.enabled); this is what they would be.");
            page.gap();
        }
        page.heading("Group:", &format!(" {}", self.group));
        page.line(2, &self.because);
        if let Some(pods) = self.pods {
            page.line(2, &format!("{pods} of its pods would have to run elsewhere"));
        }
        page.gap();
        match &self.rank {
            None => page.heading("Rank:", " none"),
            Some(rank) => rank.write(page),
        }
        page.gap();
        page.heading("Workloads here:", if self.workloads.is_empty() { " none of a ReplicaSet" } else { "" });
        for workload in &self.workloads {
            workload.write(page, &self.name);
        }
        write_unread(page, &self.unread);
    }
}

impl RankReport {
    fn write(&self, page: &mut Page) {
        page.heading("Rank:", &format!(" {}, number {} of {} to empty", self.rank, self.place, self.of));
        for (word, neighbour) in [("before it", &self.before), ("after it", &self.after)] {
            if let Some(Neighbour { name, rank, pods }) = neighbour {
                page.line(2, &format!("{word}: {name} (rank {rank}, {pods} pods)"));
            }
        }
    }
}

impl WorkloadReport {
    fn write(&self, page: &mut Page, here: &str) {
        let Self { namespace, replica_set, replicas, pods_here, .. } = self;
        page.gap();
        page.line(2, &format!("ReplicaSet {namespace}/{replica_set}: {pods_here} of {replicas} pods here"));
        if !self.spread_over.is_empty() {
            page.line(2, &format!("kept level over {}", self.spread_over.join(", ")));
        }
        if let Some(why) = &self.withheld {
            page.line(2, &format!("no values: {why}"));
        }
        page.line(2, "the next scale-down takes, in this order:");
        let rows = self.next.iter().map(|removal| {
            let node = removal.node.as_deref().unwrap_or("(none)");
            let mark = if node == here { ", here" } else { "" };
            let coming = removal.about_to_be.as_ref().map(|value| format!("about to be {value}"));
            let open = removal.interchangeable.then(|| "or the one below".to_owned());
            let notes: Vec<_> = coming.into_iter().chain(open).collect();
            let cost = format!("{} ({})", removal.cost, removal.owner);
            Row::of([removal.pod.clone(), format!("{node}{mark}"), cost]).note(notes.join("; "))
        });
        page.table(&["POD", "NODE", "COST"], "", &rows.collect::<Vec<_>>());
    }
}
