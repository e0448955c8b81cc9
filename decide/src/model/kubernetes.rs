//! Kubernetes' own controllers, as far as a handover meets them.
//!
//! Modelled after `pkg/controller/deployment` (`sync.go`, `rolling.go`, `recreate.go`, `progress.go`) and
//! `pkg/controller/replicaset` of Kubernetes 1.37. What matters here is the order of writes: a ReplicaSet's
//! annotations are written before the Deployment's revision, and that before the status; each of these writes makes
//! the rest of the same pass meet a conflict, so it ends there and another pass goes on.

use std::collections::BTreeSet;

use super::World;
use super::cluster::{Api, NODES, Pod, Progress, Set};
use crate::policy::Mode;
use crate::steer::{self, Replacing};
use crate::testing::after;
use crate::view::{Mark, PodPhase, PodView, ReplicaSetView, Strategy};

/// `maxSurge`; `maxUnavailable` is 0.
const SURGE: i32 = 1;

impl World {
    /// One pass of the Deployment controller.
    pub(super) fn roll_out(&mut self) {
        let before = self.api.deployment.clone();
        pass(&mut self.api, self.time, self.config.progress_deadline);
        if self.api.deployment != before {
            self.api.deployment_written();
        }
        self.see();
    }

    /// One pass of the ReplicaSet controller over every ReplicaSet.
    pub(super) fn replicate(&mut self) {
        let now = after(self.time);
        for index in 0..self.api.sets.len() {
            let set = self.api.sets[index].clone();
            let mut active: Vec<usize> = (0..self.api.pods.len())
                .filter(|pod| {
                    let view = &self.api.pods[*pod].view;
                    view.replica_set.as_deref() == Some(&*set.view.uid) && !view.terminating && !view.is_finished()
                })
                .collect();
            let available =
                |pod: &&usize| self.api.pods[**pod].view.is_available(self.api.deployment.min_ready_seconds, now);
            self.api.sets[index].available = active.iter().filter(available).count() as i32;
            self.api.sets[index].pods = active.len() as i32;
            for _ in active.len() as i32..set.desired {
                self.create_pod(&set);
            }
            // Who goes first: not bound, not ready, ready for less time.
            active.sort_by_key(|pod| {
                let view = &self.api.pods[*pod].view;
                (view.node.is_some(), view.ready_since.is_some(), view.ready_since.map(std::cmp::Reverse))
            });
            let surplus = active.len().saturating_sub(set.desired as usize);
            for pod in active.into_iter().take(surplus) {
                self.terminate(pod);
            }
        }
        self.see();
    }

    fn create_pod(&mut self, set: &Set) {
        let number = self.api.next();
        let hash = set.view.template_hash.as_deref().unwrap_or_default();
        let holds: Vec<_> = self.api.holds.iter().collect();
        let workload = Replacing {
            mode: Mode::Restart,
            strategy: self.api.deployment.strategy,
            selector: &self.api.deployment.selector,
            holds: &holds,
            going: &self.api.cordoned,
        };
        let avoid = steer::avoid(&workload, hash);
        let view = PodView {
            marked: false,
            mark: Mark::Free,
            namespace: "shop".into(),
            name: format!("{}-{number}", set.view.name).into(),
            uid: format!("pod{number}-{hash}").into(),
            node: None,
            replica_set: Some(set.view.uid.clone()),
            template_hash: set.view.template_hash.clone(),
            phase: PodPhase::Pending,
            ready_since: None,
            terminating: false,
            unschedulable: false,
        };
        self.api.pods.push(Pod { view, avoid, bound_at: 0, startup: self.startup, gone_at: None });
    }

    /// A deletion is accepted: by the ReplicaSet controller, or by an eviction.
    pub(super) fn terminate(&mut self, pod: usize) {
        let (time, grace) = (self.time, self.config.grace);
        let pod = &mut self.api.pods[pod];
        pod.view.terminating = true;
        let grace = if pod.view.node.is_some() { grace } else { 0 };
        pod.gone_at.get_or_insert(time + grace);
    }

    /// Scheduler and kubelets: pods are bound, start, get ready, and go.
    pub(super) fn run_pods(&mut self) {
        let time = self.time;
        self.api.pods.retain(|pod| pod.gone_at.is_none_or(|at| at > time));
        for index in 0..self.api.pods.len() {
            let pod = &self.api.pods[index];
            if pod.view.node.is_none() && !pod.view.terminating {
                let node = self.fitting_node(pod);
                let pod = &mut self.api.pods[index];
                pod.view.unschedulable = node.is_none();
                pod.view.node = node.map(Into::into);
                pod.bound_at = time;
                continue;
            }
            let pod = &mut self.api.pods[index];
            if pod.view.node.is_some() {
                pod.view.phase = PodPhase::Running;
                let ready = pod.startup.is_some_and(|startup| pod.bound_at + startup <= time);
                if ready && pod.view.ready_since.is_none() && !pod.view.terminating {
                    pod.view.ready_since = Some(after(time));
                }
            }
        }
        self.see();
    }

    /// The emptiest node that is not cordoned and not forbidden by anti-affinity, which binds both ways; one that
    /// the pod would rather avoid comes last.
    fn fitting_node(&self, pod: &Pod) -> Option<&'static str> {
        let hash = |pod: &Pod| pod.view.template_hash.as_deref().unwrap_or_default().to_owned();
        let forbids = |one: &Pod, other: &Pod| one.avoid.revisions.contains(&hash(other));
        let fits = |node: &&str| !self.on(node).any(|other| forbids(pod, other) || forbids(other, pod));
        NODES
            .into_iter()
            .filter(|node| !self.api.cordoned.contains(node))
            .filter(fits)
            .min_by_key(|node| (pod.avoid.nodes.contains(*node), self.on(node).count()))
    }

    fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Pod> {
        self.api.pods.iter().filter(move |pod| pod.view.node.as_deref() == Some(node))
    }
}

/// `syncDeployment`.
fn pass(api: &mut Api, time: i64, progress_deadline: Option<i64>) {
    let (newest, written) = adopt(api);
    if api.deployment.paused {
        if api.progress != Progress::TimedOut {
            api.progress = Progress::Since(time);
        }
        scale(api, newest);
        return status(api, newest);
    }
    if written {
        return;
    }
    let replicas = api.deployment.replicas;
    if api.sets.iter().any(|set| set.desired > 0 && set.asked != replicas) {
        scale(api, newest);
        return status(api, newest);
    }
    let newest = match api.deployment.strategy {
        Strategy::Recreate => match recreate(api, newest) {
            Ok(newest) => newest,
            Err(Created) => return api.progress = Progress::Since(time),
        },
        Strategy::RollingUpdate { .. } => {
            let Some(newest) = newest else {
                create_set(api);
                return api.progress = Progress::Since(time);
            };
            if !scale_up(api, newest) {
                scale_down(api, newest);
            }
            Some(newest)
        }
    };
    let before = api.deployment.status;
    status(api, newest);
    let Some(limit) = progress_deadline else { return };
    let now = api.deployment.status;
    let old = |status: crate::view::DeploymentStatus| status.replicas - status.updated;
    if now.replicas == now.updated && api.progress == Progress::Complete {
        return;
    }
    if now.updated == replicas && now.replicas == replicas && now.available == replicas {
        api.progress = Progress::Complete;
    } else if now.updated > before.updated || old(now) < old(before) || now.available > before.available {
        api.progress = Progress::Since(time);
    } else if let Progress::Since(since) = api.progress
        && since + limit < time
    {
        api.progress = Progress::TimedOut;
    }
    api.deployment.status.progress_deadline_exceeded = api.progress == Progress::TimedOut;
}

/// `getNewReplicaSet` for one that exists: says whether something was written.
fn adopt(api: &mut Api) -> (Option<usize>, bool) {
    let Some(newest) = api.newest() else { return (None, false) };
    let revision = next_revision(api, Some(newest));
    let records = api.deployment.records.clone();
    let set = &mut api.sets[newest];
    let copied = !records.is_empty() && set.records != records;
    if copied {
        set.records = records;
    }
    let bumped = set.view.revision < Some(revision);
    if bumped {
        set.view.revision = Some(revision);
    }
    if copied || bumped {
        return (Some(newest), true);
    }
    let known = api.deployment.revision == set.view.revision;
    api.deployment.revision = set.view.revision;
    (Some(newest), !known)
}

fn next_revision(api: &Api, newest: Option<usize>) -> u64 {
    let old = api.sets.iter().enumerate().filter(|(index, _)| Some(*index) != newest);
    old.filter_map(|(_, set)| set.view.revision).max().unwrap_or(0) + 1
}

/// `getNewReplicaSet` for one that does not exist.
fn create_set(api: &mut Api) {
    let revision = next_revision(api, None);
    let total: i32 = api.sets.iter().map(|set| set.desired).sum();
    let replicas = api.deployment.replicas;
    let desired = match api.deployment.strategy {
        Strategy::Recreate => replicas,
        Strategy::RollingUpdate { .. } => (replicas + SURGE - total).clamp(0, replicas),
    };
    let slot = api.deployment.slot.clone();
    let hash = format!("r{}{}", api.release, slot.as_deref().unwrap_or("0"));
    api.sets.push(Set {
        view: ReplicaSetView {
            namespace: "shop".into(),
            name: format!("web-{hash}").into(),
            uid: format!("rs-{hash}").into(),
            deployment: Some(api.deployment.uid.as_str().into()),
            revision: Some(revision),
            template_hash: Some(hash.into()),
            slot: slot.map(Into::into),
        },
        release: api.release,
        desired,
        asked: replicas,
        records: api.deployment.records.clone(),
        pods: 0,
        available: 0,
    });
    api.deployment.revision = Some(revision);
}

/// `scale`: replicas changed, or the Deployment is paused.
fn scale(api: &mut Api, newest: Option<usize>) {
    let replicas = api.deployment.replicas;
    let active: Vec<usize> = (0..api.sets.len()).filter(|index| api.sets[*index].desired > 0).collect();
    let resize = |set: &mut Set, desired: i32| (set.desired, set.asked) = (desired, replicas);
    if let [only] = active[..] {
        return resize(&mut api.sets[only], replicas);
    }
    if active.is_empty() {
        if let Some(latest) = newest.or(api.sets.len().checked_sub(1)) {
            resize(&mut api.sets[latest], replicas);
        }
        return;
    }
    let saturated = newest.is_some_and(|newest| {
        let set = &api.sets[newest];
        set.desired == replicas && set.asked == replicas && set.available == replicas
    });
    if saturated {
        for index in active.into_iter().filter(|index| Some(*index) != newest) {
            resize(&mut api.sets[index], 0);
        }
        return;
    }
    // In proportion; of so few pods the newest takes what there is to give, and the oldest gives first.
    let allowed = if replicas > 0 { replicas + SURGE } else { 0 };
    let mut surplus = active.iter().map(|index| api.sets[*index].desired).sum::<i32>() - allowed;
    for index in active.iter().copied() {
        let desired = api.sets[index].desired;
        let less = desired.min(surplus).max(0);
        surplus -= less;
        resize(&mut api.sets[index], desired - less);
    }
    if let Some(last) = active.last().filter(|_| surplus < 0) {
        let desired = api.sets[*last].desired;
        resize(&mut api.sets[*last], desired - surplus);
    }
}

/// `calculateStatus`.
fn status(api: &mut Api, newest: Option<usize>) {
    let status = &mut api.deployment.status;
    status.observed_generation = api.deployment.generation;
    status.replicas = api.sets.iter().map(|set| set.pods).sum();
    status.updated = newest.map_or(0, |newest| api.sets[newest].pods);
    status.available = api.sets.iter().map(|set| set.available).sum();
}

/// `reconcileNewReplicaSet`: says whether it scaled.
fn scale_up(api: &mut Api, newest: usize) -> bool {
    let replicas = api.deployment.replicas;
    let total: i32 = api.sets.iter().map(|set| set.desired).sum();
    let set = &mut api.sets[newest];
    let desired = if set.desired >= replicas {
        replicas
    } else {
        set.desired + (replicas + SURGE - total).clamp(0, replicas - set.desired)
    };
    let scaled = desired != set.desired;
    if scaled {
        (set.desired, set.asked) = (desired, replicas);
    }
    scaled
}

/// `reconcileOldReplicaSets`: first what is unhealthy, then as many as are available beyond what must be.
fn scale_down(api: &mut Api, newest: usize) {
    let replicas = api.deployment.replicas;
    let total: i32 = api.sets.iter().map(|set| set.desired).sum();
    let unavailable = api.sets[newest].desired - api.sets[newest].available;
    let most = total - replicas - unavailable;
    if most <= 0 {
        return;
    }
    let available: i32 = api.sets.iter().map(|set| set.available).sum();
    let mut unhealthy = most;
    let mut beyond = (available - replicas).max(0);
    let old = api.sets.iter_mut().enumerate().filter(|(index, _)| *index != newest);
    for (_, set) in old {
        let cleaned = (set.desired - set.available).clamp(0, unhealthy);
        unhealthy -= cleaned;
        set.desired -= cleaned;
        let less = set.desired.min(beyond);
        beyond -= less;
        set.desired -= less;
        if cleaned + less > 0 {
            set.asked = replicas;
        }
    }
}

/// A new ReplicaSet was created: the pass ends here.
struct Created;

/// `rolloutRecreate`: nothing new before all that is old is gone.
fn recreate(api: &mut Api, newest: Option<usize>) -> Result<Option<usize>, Created> {
    let replicas = api.deployment.replicas;
    let old: BTreeSet<usize> = (0..api.sets.len()).filter(|index| Some(*index) != newest).collect();
    let mut scaled = false;
    for index in &old {
        let set = &mut api.sets[*index];
        scaled |= set.desired > 0;
        if set.desired > 0 {
            (set.desired, set.asked) = (0, replicas);
        }
    }
    let uids: BTreeSet<_> = old.iter().map(|index| api.sets[*index].view.uid.clone()).collect();
    let of_old = |pod: &Pod| pod.view.replica_set.as_ref().is_some_and(|uid| uids.contains(uid));
    let counted = old.iter().any(|index| api.sets[*index].pods > 0);
    if scaled || counted || api.pods.iter().any(|pod| of_old(pod) && !pod.view.is_finished()) {
        return Ok(newest);
    }
    let Some(newest) = newest else {
        create_set(api);
        return Err(Created);
    };
    let set = &mut api.sets[newest];
    if set.desired != replicas {
        (set.desired, set.asked) = (replicas, replicas);
    }
    Ok(Some(newest))
}
