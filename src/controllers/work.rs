//! What the loops over many objects have in common: look at each when something about it changes or when its time has
//! come, several at once, and only while leading.
//!
//! A loop keeps no state but when to look again. A leader that is new, or did not lead for a while, looks at everything
//! once.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::cluster::apply::{ApplyError, Superseded};
use crate::cluster::clock::Clock;
use crate::cluster::index::PodKey;
use crate::cluster::lease::Leadership;
use crate::cluster::watch::{Health, synced};

/// How many objects are written at once. Each waits mostly for the API server; the token bucket sets the rate.
const CONCURRENCY: usize = 16;

/// A watch brings a write back within milliseconds. One that takes this long is broken, or the API server's storage was
/// put back to an older state; then the conflict is the better answer.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// How soon an object is looked at again after a write failed for no fault of ours.
pub const RETRY: SignedDuration = SignedDuration::from_secs(2);

/// How soon after a write was refused: somebody must mend rights or objects first.
const RETRY_REFUSED: SignedDuration = SignedDuration::from_secs(15);

/// How soon a pod is looked at again whose patch the API server refuses, such as for annotations that are full: the pod
/// itself must change, and is looked at then.
const RETRY_POD: SignedDuration = SignedDuration::from_mins(5);

/// The longest pause between writes to one pod that fail one after the other: what was mended shows within minutes.
const LONGEST_RETRY: SignedDuration = SignedDuration::from_mins(5);

/// The longest where the API server was not reached: nobody has to mend anything on the pod.
const LONGEST_UNREACHED: SignedDuration = SignedDuration::from_secs(30);

/// Longest sleep, so that a wall clock that jumps forward is noticed in time.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// A kind of work.
pub trait Work {
    /// What is looked at.
    type Key: Clone + Ord + Hash;

    /// Waits until something changed.
    fn changed(&self) -> impl Future<Output = ()> + Send;
    /// Takes what changed.
    fn take(&self) -> BTreeSet<Self::Key>;
    /// Has everything looked at.
    fn touch_all(&self);
    /// Looks at one; when to look again.
    fn look(&self, key: &Self::Key) -> impl Future<Output = Option<Timestamp>> + Send;
    /// The lead was won or lost, or something was looked at.
    fn observe(&self, leading: bool);
    /// Somebody waits for this one: it goes before the others that are due.
    fn is_urgent(&self, _key: &Self::Key) -> bool {
        false
    }
}

/// Works until `stop`, then ends what it is at.
pub async fn run<W: Work>(work: W, leadership: &Leadership, health: &[Health], stop: CancellationToken) {
    let mut wakes = Wakes::default();
    let mut changes = leadership.changes();
    if !synced(health, &stop).await {
        return;
    }
    // A lead that was won before we watched is told by nobody.
    changes.mark_changed();
    let mut looks = FuturesUnordered::new();
    let mut busy: HashSet<W::Key> = HashSet::new();
    let mut due = Due::default();
    // Nothing was looked at yet, or not all.
    let mut missed = true;
    loop {
        let sleep = wakes.sleep(Clock::wall());
        tokio::select! {
            () = work.changed() => {}
            () = tokio::time::sleep(sleep) => {}
            _ = changes.changed() => {}
            Some((key, wake)) = looks.next() => {
                busy.remove(&key);
                if let Some(at) = wake {
                    wakes.insert(key, at);
                }
            }
            () = stop.cancelled() => break,
        }
        let leading = leadership.is_leader();
        work.observe(leading);
        if !leading {
            // Dirt gathers no dust: the next leader, be it this one again, looks at everything anyway.
            work.take();
            due = Due::default();
            wakes = Wakes::default();
            missed = true;
            continue;
        }
        if std::mem::take(&mut missed) {
            work.touch_all();
        }
        let now = Clock::wall();
        for key in work.take().into_iter().chain(wakes.take_due(now)) {
            let is_urgent = work.is_urgent(&key);
            due.insert(key, is_urgent);
        }
        let room = CONCURRENCY.saturating_sub(busy.len());
        for key in due.take(room, &busy) {
            wakes.remove(&key);
            busy.insert(key.clone());
            let work = &work;
            looks.push(async move {
                let wake = work.look(&key).await;
                (key, wake)
            });
        }
    }
    while looks.next().await.is_some() {}
}

/// What is due, in the order in which it became so, the urgent before the others.
struct Due<K> {
    urgent: VecDeque<K>,
    others: VecDeque<K>,
    /// What is in one of them, and whether in the first.
    known: HashMap<K, bool>,
}

impl<K> Default for Due<K> {
    fn default() -> Self {
        Self { urgent: VecDeque::new(), others: VecDeque::new(), known: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Due<K> {
    fn insert(&mut self, key: K, is_urgent: bool) {
        // One that became urgent is left behind in the other queue, where it is passed over.
        if self.known.get(&key).is_some_and(|urgent| *urgent || !is_urgent) {
            return;
        }
        self.known.insert(key.clone(), is_urgent);
        if is_urgent { &mut self.urgent } else { &mut self.others }.push_back(key);
    }

    /// Takes so many that are not being looked at.
    fn take(&mut self, room: usize, busy: &HashSet<K>) -> Vec<K> {
        let mut taken = Vec::new();
        for (queue, is_urgent) in [(&mut self.urgent, true), (&mut self.others, false)] {
            let mut later = VecDeque::new();
            while taken.len() < room
                && let Some(key) = queue.pop_front()
            {
                if self.known.get(&key) != Some(&is_urgent) {
                    continue;
                }
                if busy.contains(&key) {
                    later.push_back(key);
                } else {
                    self.known.remove(&key);
                    taken.push(key);
                }
            }
            later.append(queue);
            *queue = later;
        }
        taken
    }
}

/// When to look at what again, the soonest first.
struct Wakes<K> {
    at: BTreeMap<K, Timestamp>,
    order: BTreeSet<(Timestamp, K)>,
}

impl<K> Default for Wakes<K> {
    fn default() -> Self {
        Self { at: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Clone + Ord> Wakes<K> {
    fn insert(&mut self, key: K, at: Timestamp) {
        self.remove(&key);
        self.order.insert((at, key.clone()));
        self.at.insert(key, at);
    }

    fn remove(&mut self, key: &K) {
        if let Some(at) = self.at.remove(key) {
            self.order.remove(&(at, key.clone()));
        }
    }

    fn take_due(&mut self, now: Timestamp) -> BTreeSet<K> {
        let mut due = BTreeSet::new();
        while self.order.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, key)) = self.order.pop_first() {
                self.at.remove(&key);
                due.insert(key);
            }
        }
        due
    }

    fn sleep(&self, now: Timestamp) -> Duration {
        let Some((next, _)) = self.order.first() else { return LONGEST_SLEEP };
        // A moment past the mark, so that the comparison with it holds when we wake.
        let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default();
        wait.saturating_add(Duration::from_millis(5)).min(LONGEST_SLEEP)
    }
}

/// When to look again after a failed write.
pub fn again(error: &ApplyError, now: Timestamp) -> Timestamp {
    now.saturating_add(pause_after(error)).unwrap_or(Timestamp::MAX)
}

fn pause_after(error: &ApplyError) -> SignedDuration {
    // An API server that restarts is back within seconds, and a drain waits for this write.
    let soon = error.is_benign() || matches!(error, ApplyError::Unreachable { .. });
    if soon { RETRY } else { RETRY_REFUSED }
}

/// Tells of a write to a pod that failed, and `what` it was about; when to look again, where so many in a row failed
/// before, each of which doubles the pause.
pub fn pod_failed(pod: &PodKey, what: &str, error: &ApplyError, before: u32, now: Timestamp) -> Timestamp {
    if error.is_benign() {
        tracing::debug!(%pod, %error, "looking again");
    } else {
        tracing::warn!(%pod, what, %error, "pod not brought up to date, trying again");
    }
    let (first, longest) = match error {
        ApplyError::Refused { .. } => (RETRY_POD, LONGEST_RETRY),
        ApplyError::Unreachable { .. } => (pause_after(error), LONGEST_UNREACHED),
        _ => (pause_after(error), LONGEST_RETRY),
    };
    // More doublings than any pause has room for.
    let factor = 1 << before.min(10);
    now.saturating_add((first * factor).min(longest)).unwrap_or(Timestamp::MAX)
}

/// How many writes in a row have failed, by what they were about.
pub struct Failures<K>(Mutex<HashMap<K, u32>>);

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> Failures<K> {
    /// Notes one more; how many there were before.
    pub fn add(&self, key: &K) -> u32 {
        let mut all = self.0.lock();
        let count = all.entry(key.clone()).or_default();
        let before = *count;
        *count = before.saturating_add(1);
        before
    }

    /// A write succeeded, or there is nothing to write any more.
    pub fn forget(&self, key: &K) {
        self.0.lock().remove(key);
    }

    /// Nothing is remembered.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

/// The versions of objects that our own writes have superseded, by what they belong to.
///
/// The answer to a write is here before the watch brings the object back. Deciding on the old one in between would
/// only meet a conflict, so what it belongs to is left alone until what was written is seen.
pub struct Written<K>(Mutex<HashMap<K, (Instant, Vec<Superseded>)>>);

impl<K> Default for Written<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> Written<K> {
    /// There is nothing to wait for any more.
    pub fn forget(&self, key: &K) {
        self.0.lock().remove(key);
    }

    /// Notes what a write has superseded.
    pub fn add(&self, key: &K, superseded: Vec<Superseded>) {
        if !superseded.is_empty() {
            let mut all = self.0.lock();
            let (since, known) = all.entry(key.clone()).or_insert_with(|| (Instant::now(), Vec::new()));
            *since = Instant::now();
            known.extend(superseded);
        }
    }

    /// One of these objects (UID and version) is still seen as it was before our write. Forgets what is seen anew.
    pub fn is_awaited(&self, key: &K, mut versions: impl Iterator<Item = (String, String)>) -> bool {
        let mut all = self.0.lock();
        let Some((since, superseded)) = all.get(key) else { return false };
        let awaited =
            versions.any(|(uid, version)| superseded.iter().any(|old| old.uid == uid && old.version == version));
        if !awaited || since.elapsed() > SEEN_WITHIN {
            all.remove(key);
            return false;
        }
        true
    }
}
