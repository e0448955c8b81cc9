//! The cache of deletion costs: a [`Cluster`] that watches fill, and who is told when it changed.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_decide::cost::NodeFacts;
use belay_decide::cost::cluster::{Budget, Claim, Cluster, KnownPod, KnownSet, Look, Looking, PodName};
use jiff::Timestamp;
use parking_lot::{RwLock, RwLockWriteGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::project_cost::Pool;
use super::watch::{Health, Sink, synced};

/// What changes together is ranked together. Shorter than a scheduler needs to bind what comes next.
const GATHER: Duration = Duration::from_millis(100);

/// So many objects of a list are taken in before others have their turn: less than a millisecond.
const AT_ONCE: usize = 256;

/// The cache. Cheap to clone.
#[derive(Clone)]
pub struct Costs {
    cluster: Arc<RwLock<Cluster>>,
    changed: Arc<Notify>,
}

impl Costs {
    /// A cache that begins as this.
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster: Arc::new(RwLock::new(cluster)), changed: Arc::default() }
    }

    /// Asks it.
    pub fn read<R>(&self, ask: impl FnOnce(&Cluster) -> R) -> R {
        ask(&self.cluster.read())
    }

    /// Has it note something; nobody is told.
    pub fn write<R>(&self, change: impl FnOnce(&mut Cluster) -> R) -> R {
        change(&mut self.cluster.write())
    }

    /// Has it look, as [`Cluster::look`] does, but gives way after each step: a bind is answered from the same cache, and
    /// the scheduler waits for it. Also says how long the look took, without the time in which others had their turn.
    pub fn look(&self, now: Timestamp) -> (Look, Duration) {
        let (mut looking, mut took) = (Looking::default(), Duration::ZERO);
        let mut cluster = self.cluster.write();
        loop {
            let started = Instant::now();
            let look = cluster.look_on(&mut looking, now);
            took += started.elapsed();
            if let Some(look) = look {
                return (look, took);
            }
            RwLockWriteGuard::bump(&mut cluster);
        }
    }

    /// Keeps the ranks up to date for those who only ask for them, until `stop`. `health` are the watches that fill it.
    pub async fn keep_ranked(self, health: Vec<Health>, stop: CancellationToken) {
        if !synced(&health, &stop).await {
            return;
        }
        loop {
            let now = Clock::wall();
            self.look(now);
            let next = self.read(|cluster| cluster.next_look(now));
            let pause = Duration::try_from(next.duration_since(now)).unwrap_or_default();
            tokio::select! {
                () = self.changed() => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Waits until a watch changed it.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// A sink that feeds the cache; one for each kind. Without a cache it swallows what it is given.
#[derive(Clone)]
pub struct CostSink(pub Option<Costs>);

/// What a kind of object does to the cache.
trait Told: Sized {
    /// By what objects of this kind are told apart.
    type Key: Eq + Hash;

    fn key(&self) -> Self::Key;
    fn put(self, cluster: &mut Cluster, now: Timestamp);
    fn take(self, cluster: &mut Cluster);
    fn retain(cluster: &mut Cluster, keys: &HashSet<Self::Key>);
}

impl CostSink {
    fn change(&self, change: impl FnOnce(&mut Cluster)) {
        if let Some(costs) = &self.0 {
            costs.write(change);
            costs.changed.notify_one();
        }
    }
}

impl<V: Told + Send> Sink<V> for CostSink {
    fn replace(&mut self, objects: Vec<V>) {
        let Some(costs) = &self.0 else { return };
        let keys = objects.iter().map(Told::key).collect();
        let now = Clock::wall();
        let mut cluster = costs.cluster.write();
        V::retain(&mut cluster, &keys);
        for (at, object) in objects.into_iter().enumerate() {
            if at % AT_ONCE == 0 {
                RwLockWriteGuard::bump(&mut cluster);
            }
            object.put(&mut cluster, now);
        }
        drop(cluster);
        costs.changed.notify_one();
    }

    fn apply(&mut self, object: V) {
        self.change(|cluster| object.put(cluster, Clock::wall()));
    }

    fn delete(&mut self, object: V) {
        self.change(|cluster| object.take(cluster));
    }
}

impl Told for KnownPod {
    type Key = PodName;

    fn key(&self) -> PodName {
        (self.pod.namespace.clone(), self.pod.name.clone())
    }

    fn put(self, cluster: &mut Cluster, now: Timestamp) {
        cluster.put_pod(self, now);
    }

    fn take(self, cluster: &mut Cluster) {
        cluster.remove_pod(&self.pod.namespace, &self.pod.name);
    }

    fn retain(cluster: &mut Cluster, keys: &HashSet<PodName>) {
        cluster.retain_pods(|pod| keys.contains(&(pod.namespace.clone(), pod.name.clone())));
    }
}

impl Told for KnownSet {
    type Key = Arc<str>;

    fn key(&self) -> Arc<str> {
        self.set.uid.clone()
    }

    fn put(self, cluster: &mut Cluster, _now: Timestamp) {
        cluster.put_set(self);
    }

    fn take(self, cluster: &mut Cluster) {
        cluster.remove_set(&self.set.uid);
    }

    fn retain(cluster: &mut Cluster, keys: &HashSet<Arc<str>>) {
        cluster.retain_sets(keys);
    }
}

impl Told for NodeFacts {
    type Key = Arc<str>;

    fn key(&self) -> Arc<str> {
        self.node.name.clone()
    }

    fn put(self, cluster: &mut Cluster, _now: Timestamp) {
        cluster.put_node(self);
    }

    fn take(self, cluster: &mut Cluster) {
        cluster.remove_node(&self.node.name);
    }

    fn retain(cluster: &mut Cluster, keys: &HashSet<Arc<str>>) {
        cluster.retain_nodes(keys);
    }
}

impl Told for Budget {
    type Key = PodName;

    fn key(&self) -> PodName {
        (self.namespace.clone(), self.name.clone())
    }

    fn put(self, cluster: &mut Cluster, _now: Timestamp) {
        cluster.put_budget(self);
    }

    fn take(self, cluster: &mut Cluster) {
        cluster.remove_budget(&self.namespace, &self.name);
    }

    fn retain(cluster: &mut Cluster, keys: &HashSet<PodName>) {
        cluster.retain_budgets(keys);
    }
}

impl Told for Claim {
    type Key = Arc<str>;

    fn key(&self) -> Arc<str> {
        self.name.clone()
    }

    fn put(self, cluster: &mut Cluster, _now: Timestamp) {
        cluster.put_claim(self);
    }

    fn take(self, cluster: &mut Cluster) {
        cluster.remove_claim(&self.name);
    }

    fn retain(cluster: &mut Cluster, keys: &HashSet<Arc<str>>) {
        cluster.retain_claims(keys);
    }
}

impl Told for Pool {
    type Key = Box<str>;

    fn key(&self) -> Box<str> {
        self.name.clone()
    }

    fn put(self, cluster: &mut Cluster, _now: Timestamp) {
        cluster.put_pool(&self.name, self.is_still);
    }

    fn take(self, cluster: &mut Cluster) {
        cluster.put_pool(&self.name, false);
    }

    fn retain(cluster: &mut Cluster, keys: &HashSet<Box<str>>) {
        cluster.retain_pools(keys);
    }
}

/// Feeds two caches from one watch. Either may have no use for what it brings.
pub struct Pair<A, B>(pub A, pub B);

impl<VA, VB, A: Sink<VA>, B: Sink<VB>> Sink<(Option<VA>, Option<VB>)> for Pair<A, B> {
    fn replace(&mut self, objects: Vec<(Option<VA>, Option<VB>)>) {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (one, other) in objects {
            first.extend(one);
            second.extend(other);
        }
        self.0.replace(first);
        self.1.replace(second);
    }

    fn apply(&mut self, (first, second): (Option<VA>, Option<VB>)) {
        if let Some(first) = first {
            self.0.apply(first);
        }
        if let Some(second) = second {
            self.1.apply(second);
        }
    }

    fn delete(&mut self, (first, second): (Option<VA>, Option<VB>)) {
        if let Some(first) = first {
            self.0.delete(first);
        }
        if let Some(second) = second {
            self.1.delete(second);
        }
    }
}
