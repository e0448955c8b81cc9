//! The loop over deletion costs: has the nodes ranked when the cluster changed, and brings the annotation of each pod to
//! what `decide::cost` says.

mod denials;
mod tell;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belay_decide::cost::cluster::{Look, PodName};
use belay_decide::cost::write;
use belay_decide::ownership::Removals;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use denials::Denials;
use tell::groups;

use super::work::{self, Failures, RETRY, Work, Written};
use super::{OwnPod, Shared};
use crate::cluster::apply::ApplyError;
use crate::cluster::clock::Clock;
use crate::cluster::costs::Costs;
use crate::cluster::index::PodKey;
use crate::cluster::watch::{Health, synced};
use crate::rate::TokenBucket;

/// What changes together is decided together: a scale-up binds its pods within moments of each other. No look at the
/// nodes is sooner than this after another, whatever wakes the loop: each write does so twice, when it is answered and
/// when it is seen.
const GATHER: Duration = Duration::from_millis(250);

/// How often a watch that has never been complete is asked what keeps it.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// What the loop works with.
pub struct Loop {
    /// What it has in common with others.
    pub shared: Shared,
    /// The cache.
    pub costs: Costs,
    /// The watches that fill it.
    pub health: Vec<Health>,
    /// The pod that this process runs in, on which is told what concerns no other object.
    pub own_pod: OwnPod,
    /// How fast it may write.
    pub rate: TokenBucket,
    /// What was written and not yet seen again.
    pub written: Written<PodKey>,
    /// What is remembered between looks.
    pub remembered: Remembered,
}

/// What is remembered between looks.
#[derive(Default)]
pub struct Remembered {
    leading: AtomicBool,
    /// The lead was won, and the nodes have not been looked at since.
    taken_over: AtomicBool,
    looks: Mutex<Looks>,
    denials: Denials,
    failures: Failures<PodKey>,
    /// All pods are to be looked at, not only those that changed.
    everything: AtomicBool,
    /// Removals found, by the pod and its UID.
    removals: Mutex<HashMap<PodKey, (Arc<str>, Removals)>>,
    told: Mutex<Told>,
}

/// When the nodes were looked at, and when they are to be looked at again.
#[derive(Default)]
struct Looks {
    last: Option<Instant>,
    /// Something changed; what else changes until then is gathered.
    due: Option<Instant>,
}

impl Looks {
    /// It is too soon for another look.
    fn are_gathering(&self, now: Instant) -> bool {
        match (self.due, self.last) {
            (Some(due), _) => now < due,
            (None, Some(last)) => now < last + GATHER,
            (None, None) => false,
        }
    }
}

/// What people were told last.
#[derive(Default)]
struct Told {
    order: Vec<Box<str>>,
    at: Option<Timestamp>,
    trouble: Option<String>,
}

impl Loop {
    /// A loop over this cache, which these watches fill.
    pub fn new(shared: Shared, costs: Costs, health: Vec<Health>, own_pod: OwnPod, writes_per_second: u32) -> Self {
        let rate = TokenBucket::new(writes_per_second);
        let (written, remembered) = (Written::default(), Remembered::default());
        Self { shared, costs, health, own_pod, rate, written, remembered }
    }

    /// Runs until `stop`, then ends what it is at.
    pub async fn run(self, stop: CancellationToken) {
        let (leadership, health) = (Arc::clone(&self.shared.leadership), self.health.clone());
        loop {
            tokio::select! {
                filled = synced(&health, &stop) => {
                    if !filled {
                        return;
                    }
                    break;
                }
                () = tokio::time::sleep(ASK_AGAIN) => {
                    self.is_blind();
                }
            }
        }
        work::run(self, &leadership, &health, stop).await;
    }

    /// Something that ranks are made from cannot be seen. The leader tells so when that begins, and when a right to write
    /// is missing.
    fn is_blind(&self) -> bool {
        let unseen = self.health.iter().find_map(|health| Some((&health.what, health.lasting_trouble()?)));
        let is_blind = unseen.is_some();
        if !self.shared.leadership.is_leader() {
            return is_blind;
        }
        let trouble = match unseen {
            Some((what, trouble)) => Some(format!(
                "Nodes are not ranked, and no deletion cost is written: {what} cannot be watched: {trouble}"
            )),
            None => self.remembered.denials.trouble().map(|trouble| format!("No deletion cost is written: {trouble}")),
        };
        let mut told = self.remembered.told.lock();
        if told.trouble != trouble {
            if let Some(trouble) = &trouble {
                tracing::warn!(error = %trouble, "no deletion cost is written");
                self.shared.applier.tell_news(&self.own_pod.event(true, "RankingFailed", "Rank", trouble.clone()));
            } else {
                tracing::info!("deletion costs are written again");
            }
            told.trouble = trouble;
        }
        is_blind
    }

    /// Ranks, if everything can be seen; the pods to look at.
    fn take_now(&self) -> BTreeSet<PodKey> {
        if self.is_blind() { BTreeSet::new() } else { self.rank(Clock::wall()) }
    }

    /// Ranks, where anything changed; the pods to look at.
    fn rank(&self, now: Timestamp) -> BTreeSet<PodKey> {
        let everything = self.remembered.everything.swap(false, Ordering::Relaxed);
        let (look, took) = self.costs.look(now);
        let Look { ranked, mut pods, stances } = look;
        let seconds = took.as_secs_f64();
        let stood_down = self.costs.read(|cluster| {
            if everything {
                pods = cluster.asking();
            }
            // Of a pod that is gone nothing is remembered.
            let mut removals = self.remembered.removals.lock();
            removals.retain(|key, _| cluster.known_set_of(&key.namespace, &key.name).is_some());
            cluster.stood_down()
        });
        if self.remembered.leading.load(Ordering::Relaxed) {
            let metrics = &self.shared.metrics;
            let taken_over = self.remembered.taken_over.swap(false, Ordering::Relaxed);
            match ranked {
                Some(ranked) if taken_over => metrics.cost_ranking(seconds, 0, ranked.renumbered),
                Some(ranked) => metrics.cost_ranking(seconds, ranked.changed_nodes, ranked.renumbered),
                None => metrics.cost_pass_unchanged(),
            }
            // Whatever this replica ranked before, what stands on the pods is what the leader before it left there.
            if taken_over {
                metrics.cost_changed_nodes(self.nodes_of(&pods));
            }
            // A new leader has yet to say how many there are, though it may have ranked them before.
            if ranked.is_some() || everything {
                self.costs.read(|cluster| metrics.cost_nodes(&groups(cluster)));
            }
            metrics.cost_stood_down(stood_down.0, stood_down.1);
            self.tell_order(now);
            for stance in &stances {
                self.tell_stance(stance);
            }
        }
        pods.into_iter().map(|(namespace, name)| PodKey::new(&namespace, &name)).collect()
    }

    /// On how many nodes these pods are.
    fn nodes_of(&self, pods: &BTreeSet<PodName>) -> usize {
        self.costs.read(|cluster| {
            let known = pods.iter().filter_map(|(namespace, name)| cluster.asked_of(namespace, name));
            known.filter_map(|(known, _)| known.pod.node.as_deref()).collect::<BTreeSet<_>>().len()
        })
    }

    async fn look_at(&self, key: &PodKey) -> Option<Timestamp> {
        if !self.asks(key) {
            self.written.forget(key);
            self.remembered.failures.forget(key);
            return None;
        }
        if let Some(pause) = self.remembered.denials.pause() {
            return later(pause);
        }
        self.rate.take().await;
        if self.is_blind() {
            // What it would be decided on is old. Once everything can be seen again, everything is looked at.
            self.touch_all();
            return None;
        }
        let now = Clock::wall();
        let mut removals = self.removals_of(key);
        // Decided only now: what had to wait for its turn may have changed.
        let plan = self.costs.read(|cluster| {
            let (known, desired) = cluster.asked_of(&key.namespace, &key.name)?;
            let version = (known.pod.uid.to_string(), known.resource_version.to_string());
            if self.written.is_awaited(key, std::iter::once(version)) {
                return Some(Err(RETRY));
            }
            if removals.0 != known.pod.uid {
                removals = (known.pod.uid.clone(), Removals::default());
            }
            write(known, desired, &mut removals.1, now).map(|write| Ok((write, desired)))
        });
        let (write, value) = match plan? {
            Ok(plan) => plan,
            Err(pause) => return now.saturating_add(pause).ok(),
        };
        let (superseded, result) = self.shared.applier.perform(&write.sequence).await;
        self.written.add(key, superseded);
        let metrics = &self.shared.metrics;
        metrics.cost_write(result.as_ref().err().map_or("Ok", ApplyError::label));
        match result {
            Ok(()) => {
                self.remembered.denials.granted();
                self.remembered.failures.forget(key);
                let mut all = self.remembered.removals.lock();
                if removals.1.is_empty() {
                    all.remove(key);
                } else {
                    all.insert(key.clone(), removals);
                }
                if write.yielded {
                    metrics.cost_conflict();
                    tracing::info!(pod = %key, "deletion cost left to somebody else, who changed it");
                } else {
                    tracing::debug!(pod = %key, ?value, "deletion cost brought up to date");
                }
                None
            }
            Err(error) => match self.remembered.denials.of(&error) {
                Some(pause) => later(pause),
                None => {
                    let before = self.remembered.failures.add(key);
                    Some(work::pod_failed(key, "deletion cost", &error, before, now))
                }
            },
        }
    }

    fn asks(&self, key: &PodKey) -> bool {
        self.costs.read(|cluster| cluster.asked_of(&key.namespace, &key.name).is_some())
    }

    fn removals_of(&self, key: &PodKey) -> (Arc<str>, Removals) {
        self.remembered.removals.lock().get(key).cloned().unwrap_or_default()
    }
}

/// When this has passed.
fn later(pause: Duration) -> Option<Timestamp> {
    Clock::wall().saturating_add(SignedDuration::try_from(pause).ok()?).ok()
}

impl Work for Loop {
    type Key = PodKey;

    async fn changed(&self) {
        let due = self.remembered.looks.lock().due;
        let due = match due {
            Some(due) => due,
            None => {
                let now = Clock::wall();
                let next = self.costs.read(|cluster| cluster.next_look(now));
                let pause = Duration::try_from(next.duration_since(now)).unwrap_or_default();
                tokio::select! {
                    () = self.costs.changed() => {}
                    () = tokio::time::sleep(pause) => {}
                }
                // Kept, since whatever else wakes the loop ends this wait.
                *self.remembered.looks.lock().due.get_or_insert_with(|| Instant::now() + GATHER)
            }
        };
        tokio::time::sleep_until(due).await;
    }

    fn take(&self) -> BTreeSet<PodKey> {
        let now = Instant::now();
        let mut looks = self.remembered.looks.lock();
        if looks.are_gathering(now) && !self.remembered.everything.load(Ordering::Relaxed) {
            return BTreeSet::new();
        }
        *looks = Looks { last: Some(now), due: None };
        drop(looks);
        self.take_now()
    }

    fn touch_all(&self) {
        self.remembered.everything.store(true, Ordering::Relaxed);
    }

    async fn look(&self, key: &PodKey) -> Option<Timestamp> {
        self.look_at(key).await
    }

    /// A value that is too low sends a pod first that ought to stay; one that is too high only misses a chance.
    fn is_urgent(&self, key: &PodKey) -> bool {
        self.costs.read(|cluster| {
            let asked = cluster.asked_of(&key.namespace, &key.name);
            asked.is_some_and(|(known, desired)| desired.is_none_or(|value| value > known.pod.standing.effective()))
        })
    }

    fn observe(&self, leading: bool) {
        let led = self.remembered.leading.swap(leading, Ordering::Relaxed);
        if leading && !led {
            self.remembered.taken_over.store(true, Ordering::Relaxed);
            // The leader before told of this order.
            let order = self.costs.read(|cluster| cluster.ranking().order().map(Into::into).collect());
            self.remembered.told.lock().order = order;
        }
        if !leading {
            self.remembered.denials.clear();
            self.remembered.failures.clear();
            self.remembered.removals.lock().clear();
            *self.remembered.told.lock() = Told::default();
            self.shared.metrics.no_costs();
        }
    }
}
