//! Records holds in the API, and that their evictions are asked for still, outside the request path.
//!
//! A request puts the hold into a bounded queue and is answered; this task writes it. The hold's name derives
//! from the victim's name and UID, so the replicas' writes meet and one object comes of them. What is lost (queue
//! full, API server away) is asked for again by the drainer's next request.
//!
//! An eviction that is asked for again is noted in its hold's status, seldom: what was begun for a drainer that has given
//! up ends by that.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use belay_decide::hold::{HoldReason, HoldSpec, HoldTrigger, HoldView, Moment, hold_name};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::memory::{Aged, Victims};
use crate::cluster::apply::{ApplyError, holds, within};
use crate::metrics::Metrics;
use crate::rate::TokenBucket;
use crate::tasks::Tasks;

/// How many holds may wait to be written. At 20 writes a second this is 50 s of work, longer than a drainer waits
/// before it asks again; more would only be stale.
const QUEUE: usize = 1024;

/// Pauses before the second, third and fourth try: within the half minute for which an unrecorded hold is held.
const RETRIES: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];

/// A write that takes longer has failed: its retries must fit into the unrecorded grace.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it is noted that an eviction is asked for still. Drainers ask every few seconds, and what reads it counts in
/// minutes.
pub const NOTE_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// How many holds are written at once: a drain asks for all pods of a node at once, and each write waits mostly.
const WRITERS: usize = 8;

/// The way into the queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<Entry>,
    waiting: Arc<Mutex<HashSet<Key>>>,
    noted: Arc<Victims<Noted>>,
    metrics: Arc<Metrics>,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) namespace: String,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    /// A hold.
    Hold(Box<HoldSpec>),
    /// That the eviction of this hold's victim was asked for at this time.
    Asked { name: String, uid: String, at: Timestamp },
}

/// What tells entries apart: the UID of the victim and the reason, or the UID of the hold.
type Key = (String, Option<HoldReason>);

impl Entry {
    fn key(&self) -> Key {
        match &self.what {
            What::Hold(spec) => (spec.victim_uid.clone(), Some(spec.reason)),
            What::Asked { uid, .. } => (uid.clone(), None),
        }
    }
}

/// Uptime when this replica last had an eviction noted.
#[derive(Clone, Copy, Debug)]
struct Noted(Duration);

impl Aged for Noted {
    fn first(&self) -> Duration {
        self.0
    }
}

impl Recorder {
    /// A queue, and the tasks that write what comes through it until `stop`.
    pub fn start(
        client: &Client,
        writes_per_second: u32,
        metrics: Arc<Metrics>,
        tasks: &Tasks,
        stop: &CancellationToken,
    ) -> Self {
        let (recorder, entries) = Self::queue(metrics);
        let writer = Writer {
            client: client.clone(),
            entries: Arc::new(tokio::sync::Mutex::new(entries)),
            rate: Arc::new(TokenBucket::new(writes_per_second)),
            waiting: Arc::clone(&recorder.waiting),
            metrics: Arc::clone(&recorder.metrics),
            stop: stop.clone(),
        };
        for _ in 0..WRITERS {
            drop(tasks.spawn("recorder", writer.clone().run()));
        }
        recorder
    }

    /// The queue alone.
    pub(super) fn queue(metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<Entry>) {
        let (queue, entries) = mpsc::channel(QUEUE);
        (Self { queue, waiting: Arc::default(), noted: Arc::default(), metrics }, entries)
    }

    /// Has a hold recorded; returns at once. A hold that waits to be written already is not queued again.
    pub fn record(&self, namespace: &str, spec: HoldSpec) {
        self.put(Entry { namespace: namespace.to_owned(), what: What::Hold(Box::new(spec)) });
    }

    /// Has it noted that the eviction of a hold's victim is asked for again; returns at once. Once in [`NOTE_EVERY`],
    /// whichever replica is asked, as far as this one sees what the others wrote.
    pub fn asked_again(&self, hold: &HoldView, now: Moment) {
        // What began before anybody asked says nothing of when somebody did.
        let first = (hold.spec.trigger == HoldTrigger::Eviction).then_some(hold.spec.requested_at);
        let known = hold.status.last_requested_at.max(first);
        if known.is_some_and(|known| now.wall.duration_since(known) < NOTE_EVERY) {
            return;
        }
        let mut noted = self.noted.lock();
        let is_recent = |noted: Noted| now.uptime.saturating_sub(noted.0) < NOTE_EVERY.unsigned_abs();
        if noted.get(&hold.uid).is_some_and(is_recent) {
            return;
        }
        noted.put(&hold.uid, Noted(now.uptime));
        drop(noted);
        let what = What::Asked { name: hold.name.clone(), uid: hold.uid.clone(), at: now.wall };
        self.put(Entry { namespace: hold.namespace.clone(), what });
    }

    fn put(&self, entry: Entry) {
        let key = entry.key();
        if !self.waiting.lock().insert(key.clone()) {
            return;
        }
        if self.queue.try_send(entry).is_err() {
            self.waiting.lock().remove(&key);
            self.metrics.record("QueueFull");
        }
    }
}

/// What writes the queue's entries.
#[derive(Clone)]
struct Writer {
    client: Client,
    entries: Arc<tokio::sync::Mutex<mpsc::Receiver<Entry>>>,
    rate: Arc<TokenBucket>,
    waiting: Arc<Mutex<HashSet<Key>>>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl Writer {
    async fn run(self) {
        loop {
            let entry = tokio::select! {
                entry = async { self.entries.lock().await.recv().await } => entry,
                () = self.stop.cancelled() => None,
            };
            let Some(entry) = entry else { return };
            self.rate.take().await;
            let result = write_with_retries(&self.client, &entry).await;
            self.metrics.record(result.as_ref().map_or_else(ApplyError::label, |written| written.label()));
            match &entry.what {
                What::Hold(spec) => tell(&entry.namespace, spec, &result),
                What::Asked { name, .. } => tell_asked(&entry.namespace, name, &result),
            }
            self.waiting.lock().remove(&entry.key());
        }
    }
}

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// The hold is there now.
    Created,
    /// The hold was there already.
    Exists,
    /// The request is noted.
    Noted,
}

impl Written {
    fn label(self) -> &'static str {
        match self {
            Self::Created => "Created",
            Self::Exists => "Exists",
            Self::Noted => "Noted",
        }
    }
}

fn tell(namespace: &str, spec: &HoldSpec, result: &Result<Written, ApplyError>) {
    match result {
        // One line an episode, from the replica whose write created the record.
        Ok(Written::Created) => tracing::info!(
            %namespace,
            victim = %spec.victim_name,
            node = %spec.victim_node,
            reason = spec.reason.as_str(),
            workload = %spec.workload.name,
            evictor = %spec.evictor,
            deadline = %spec.deadline,
            "eviction held"
        ),
        Ok(_) => {}
        Err(error) => tracing::error!(
            %error,
            %namespace,
            victim = %spec.victim_name,
            "hold not recorded; unrecorded, it is let go after half a minute"
        ),
    }
}

fn tell_asked(namespace: &str, hold: &str, result: &Result<Written, ApplyError>) {
    match result {
        Ok(_) => {}
        Err(error) if error.is_benign() => tracing::debug!(%error, %namespace, hold, "nothing to be noted on"),
        Err(error) => tracing::warn!(
            %error,
            %namespace,
            hold,
            "not noted that the eviction is asked for still; a surge may end before it"
        ),
    }
}

async fn write_with_retries(client: &Client, entry: &Entry) -> Result<Written, ApplyError> {
    let mut pauses = RETRIES.iter();
    loop {
        let error = match write(client, entry).await {
            Ok(written) => return Ok(written),
            Err(error) => error,
        };
        match (pauses.next(), &error) {
            (Some(pause), ApplyError::Unreachable { .. }) => tokio::time::sleep(*pause).await,
            _ => return Err(error),
        }
    }
}

async fn write(client: &Client, entry: &Entry) -> Result<Written, ApplyError> {
    let namespace = &entry.namespace;
    match &entry.what {
        What::Hold(spec) => {
            let object = holds::name_of(namespace, &hold_name(spec.reason, &spec.victim_name, &spec.victim_uid));
            let created = within(WRITE_TIMEOUT, object, holds::create(client, namespace, spec)).await?;
            Ok(if created { Written::Created } else { Written::Exists })
        }
        What::Asked { name, uid, at } => {
            let write = holds::note_request(client, namespace, name, uid, *at);
            within(WRITE_TIMEOUT, holds::name_of(namespace, name), write).await.map(|()| Written::Noted)
        }
    }
}
