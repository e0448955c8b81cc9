//! The loop over deletion costs: has the nodes ranked when the cluster changed, and brings the annotation of each pod to
//! what `decide::cost` says.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belay_decide::action::{Event, Reference};
use belay_decide::cost::cluster::{Cluster, Look, Scope, Stance};
use belay_decide::cost::{Group, Verdict, write};
use belay_decide::ownership::Removals;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::work::{self, RETRY, Work, Written};
use crate::cluster::apply::ApplyError;
use crate::cluster::clock::Clock;
use crate::cluster::costs::Costs;
use crate::cluster::index::PodKey;
use crate::cluster::watch::{Health, synced};
use crate::rate::TokenBucket;

/// What changes together is decided together: a scale-up binds its pods within moments of each other.
const GATHER: Duration = Duration::from_millis(250);

/// How soon a pod is looked at again whose patch the API server refuses, such as for annotations that are full.
const REFUSED: SignedDuration = SignedDuration::from_mins(5);

/// A new order is told at most so often: in a cluster that scales all day, every minute is often enough to read.
const TOLD_EVERY: SignedDuration = SignedDuration::from_mins(1);

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

/// The pod that this process runs in.
#[derive(Clone, Debug, Default)]
pub struct OwnPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What is remembered between looks.
#[derive(Default)]
pub struct Remembered {
    leading: AtomicBool,
    /// All pods are to be looked at, not only those that changed.
    everything: AtomicBool,
    /// Removals found, by the pod and its UID.
    removals: Mutex<HashMap<PodKey, (Box<str>, Removals)>>,
    told: Mutex<Told>,
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

    /// Something that ranks are made from cannot be seen. The leader tells so when that begins.
    fn is_blind(&self) -> bool {
        let trouble = self.health.iter().find_map(|health| Some((health.what.clone(), health.lasting_trouble()?)));
        let trouble = trouble.map(|(what, trouble)| format!("{what} cannot be watched: {trouble}"));
        if !self.shared.leadership.is_leader() {
            return trouble.is_some();
        }
        let mut told = self.remembered.told.lock();
        if told.trouble != trouble {
            if let Some(trouble) = &trouble {
                tracing::warn!(error = %trouble, "nodes are not ranked, and no deletion cost is written");
                let note = format!("Nodes are not ranked, and no deletion cost is written: {trouble}");
                self.shared.applier.tell(&self.about_own_pod(true, "RankingFailed", "Rank", note));
            } else {
                tracing::info!("nodes are ranked again");
            }
            told.trouble.clone_from(&trouble);
        }
        trouble.is_some()
    }

    fn about_own_pod(&self, warning: bool, reason: &'static str, action: &'static str, note: String) -> Event {
        let OwnPod { namespace, name, uid } = &self.own_pod;
        let regarding = Reference::pod(name, uid);
        Event { namespace: namespace.clone(), regarding, related: None, warning, reason, action, note }
    }

    /// Ranks, where anything changed; the pods to look at.
    fn rank(&self, now: Timestamp) -> BTreeSet<PodKey> {
        let started = Instant::now();
        let everything = self.remembered.everything.swap(false, Ordering::Relaxed);
        let (look, stood_down) = self.costs.write(|cluster| {
            let mut look = cluster.look(now);
            if everything {
                look.pods = cluster.asking();
            }
            // Of a pod that is gone nothing is remembered.
            let mut removals = self.remembered.removals.lock();
            removals.retain(|key, _| cluster.known_set_of(&key.namespace, &key.name).is_some());
            (look, cluster.stood_down())
        });
        let Look { ranked, pods, stances } = look;
        if self.remembered.leading.load(Ordering::Relaxed) {
            let metrics = &self.shared.metrics;
            match ranked {
                Some(ranked) => {
                    let seconds = started.elapsed().as_secs_f64();
                    metrics.cost_ranking(seconds, ranked.changed_nodes, ranked.renumbered);
                }
                None => metrics.cost_pass_unchanged(),
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
        pods.into_iter().map(|(namespace, name)| PodKey { namespace, name }).collect()
    }

    /// Tells of a new order, if there is one and the last was told long enough ago.
    fn tell_order(&self, now: Timestamp) {
        let mut told = self.remembered.told.lock();
        if told.at.is_some_and(|at| now.duration_since(at) < TOLD_EVERY) {
            return;
        }
        let note = self.costs.read(|cluster| {
            let ranking = cluster.ranking();
            if ranking.order().eq(told.order.iter().map(|name| &**name)) {
                return None;
            }
            told.order = ranking.order().map(Into::into).collect();
            Some(describe(cluster))
        });
        let Some(note) = note else { return };
        told.at = Some(now);
        tracing::info!(order = %note, "nodes ranked");
        self.shared.applier.tell(&self.about_own_pod(false, "RankingCompleted", "Rank", note));
    }

    fn tell_stance(&self, stance: &Stance) {
        let object = self.costs.read(|cluster| match &stance.scope {
            Scope::Node(node) => Some((String::new(), Reference::node(node))),
            Scope::Set(uid) => {
                let set = cluster.set(uid)?;
                Some((set.namespace.to_string(), Reference::replica_set(&set.name, &set.uid)))
            }
        });
        let Some((namespace, regarding)) = object else { return };
        let name = format!("{} {}", regarding.kind, regarding.name);
        let (reason, note) = match stance.until {
            Some(until) => {
                tracing::warn!(object = %name, %until, "another controller writes deletion costs here; standing down");
                let note = format!(
                    "Another controller rewrites deletion costs here: Belay writes none until it has been still for a \
                     while, at the earliest at {until:.0}"
                );
                ("DeletionCostStoodDown", note)
            }
            None => {
                tracing::info!(object = %name, "no other controller writes deletion costs here any more");
                ("DeletionCostResumed", "No other controller rewrites deletion costs here any more".to_owned())
            }
        };
        let warning = stance.until.is_some();
        let event = Event { namespace, regarding, related: None, warning, reason, action: "Yield", note };
        self.shared.applier.tell(&event);
    }

    async fn look_at(&self, key: &PodKey) -> Option<Timestamp> {
        if !self.asks(key) {
            self.written.forget(key);
            return None;
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
            Err(error) => Some(failed(key, &error, now)),
        }
    }

    fn asks(&self, key: &PodKey) -> bool {
        self.costs.read(|cluster| cluster.asked_of(&key.namespace, &key.name).is_some())
    }

    fn removals_of(&self, key: &PodKey) -> (Box<str>, Removals) {
        self.remembered.removals.lock().get(key).cloned().unwrap_or_default()
    }
}

/// How many nodes are in each group.
fn groups(cluster: &Cluster) -> [(&'static str, i64); 5] {
    let mut counts = [("Draining", 0), ("Drifted", 0), ("Normal", 0), ("Waiting", 0), ("Protected", 0)];
    for (_, verdict) in cluster.ranking().verdicts() {
        let at = match verdict {
            Verdict::Ranked(ranked) => match ranked.group {
                Group::Draining => 0,
                Group::Drifted => 1,
                Group::Normal => 2,
            },
            Verdict::Waiting { .. } => 3,
            Verdict::Protected(_) => 4,
        };
        counts[at].1 += 1;
    }
    counts
}

/// How many nodes the note of an Event names.
const NAMED: usize = 5;

/// The order for people.
fn describe(cluster: &Cluster) -> String {
    let ranking = cluster.ranking();
    let mut groups: BTreeMap<Group, usize> = BTreeMap::new();
    for (_, verdict) in ranking.verdicts() {
        if let Verdict::Ranked(ranked) = verdict {
            *groups.entry(ranked.group).or_default() += 1;
        }
    }
    let count: usize = groups.values().sum();
    if count == 0 {
        return "No node is to empty: none may be ranked".to_owned();
    }
    let groups: Vec<_> =
        groups.iter().map(|(group, count)| format!("{count} {}", format!("{group:?}").to_lowercase())).collect();
    let first: Vec<_> = ranking.order().take(NAMED).collect();
    let more = if count > NAMED { ", …" } else { "" };
    format!("{count} nodes ranked ({}); first to empty: {}{more}", groups.join(", "), first.join(", "))
}

fn failed(key: &PodKey, error: &ApplyError, now: Timestamp) -> Timestamp {
    if error.is_benign() {
        tracing::debug!(pod = %key, %error, "looking again");
    } else {
        tracing::warn!(pod = %key, %error, "deletion cost not brought up to date, trying again");
    }
    match error {
        // The pod itself must change, and is looked at then.
        ApplyError::Refused { .. } => now.saturating_add(REFUSED).unwrap_or(Timestamp::MAX),
        _ => work::again(error, now),
    }
}

impl Work for Loop {
    type Key = PodKey;

    async fn changed(&self) {
        self.costs.changed().await;
        tokio::time::sleep(GATHER).await;
    }

    fn take(&self) -> BTreeSet<PodKey> {
        if self.is_blind() { BTreeSet::new() } else { self.rank(Clock::wall()) }
    }

    fn touch_all(&self) {
        self.remembered.everything.store(true, Ordering::Relaxed);
    }

    async fn look(&self, key: &PodKey) -> Option<Timestamp> {
        self.look_at(key).await
    }

    fn observe(&self, leading: bool) {
        self.remembered.leading.store(leading, Ordering::Relaxed);
        if !leading {
            self.remembered.removals.lock().clear();
            *self.remembered.told.lock() = Told::default();
            self.shared.metrics.no_costs();
        }
    }
}
