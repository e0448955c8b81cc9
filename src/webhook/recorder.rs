//! Records holds in the API, outside the request path.
//!
//! A request puts the hold into a bounded queue and is answered; this task writes it. The hold's name derives
//! from the victim's name and UID, so the replicas' writes meet and one object comes of them. What is lost (queue
//! full, API server away) is asked for again by the drainer's next request.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use belay_decide::hold::{HoldReason, HoldSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::cluster::apply::ApplyError;
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

/// How many holds are written at once: a drain asks for all pods of a node at once, and each write waits mostly.
const WRITERS: usize = 8;

/// The way into the queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<Entry>,
    waiting: Arc<Mutex<HashSet<(String, HoldReason)>>>,
    metrics: Arc<Metrics>,
}

/// A hold to be written.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) namespace: String,
    pub(super) spec: HoldSpec,
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
        (Self { queue, waiting: Arc::default(), metrics }, entries)
    }

    /// Has a hold recorded; returns at once. A hold that waits to be written already is not queued again.
    pub fn record(&self, namespace: &str, spec: HoldSpec) {
        let waiting = (spec.victim_uid.clone(), spec.reason);
        if !self.waiting.lock().insert(waiting.clone()) {
            return;
        }
        let entry = Entry { namespace: namespace.to_owned(), spec };
        if self.queue.try_send(entry).is_err() {
            self.waiting.lock().remove(&waiting);
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
    waiting: Arc<Mutex<HashSet<(String, HoldReason)>>>,
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
            self.tell(&entry, &result);
            self.waiting.lock().remove(&(entry.spec.victim_uid, entry.spec.reason));
        }
    }

    fn tell(&self, entry: &Entry, result: &Result<bool, ApplyError>) {
        let label = match result {
            Ok(true) => "Created",
            Ok(false) => "Exists",
            Err(error) => error.label(),
        };
        self.metrics.record(label);
        match result {
            // One line an episode, from the replica whose write created the record.
            Ok(true) => tracing::info!(
                namespace = %entry.namespace,
                victim = %entry.spec.victim_name,
                node = %entry.spec.victim_node,
                reason = entry.spec.reason.as_str(),
                workload = %entry.spec.workload.name,
                evictor = %entry.spec.evictor,
                deadline = %entry.spec.deadline,
                "eviction held"
            ),
            Ok(false) => {}
            Err(error) => tracing::error!(
                %error,
                namespace = %entry.namespace,
                victim = %entry.spec.victim_name,
                "hold not recorded; unrecorded, it is let go after half a minute"
            ),
        }
    }
}

async fn write_with_retries(client: &Client, entry: &Entry) -> Result<bool, ApplyError> {
    let mut pauses = RETRIES.iter();
    loop {
        let error = match write(client, entry).await {
            Ok(created) => return Ok(created),
            Err(error) => error,
        };
        match (pauses.next(), &error) {
            (Some(pause), ApplyError::Unreachable { .. }) => tokio::time::sleep(*pause).await,
            _ => return Err(error),
        }
    }
}

/// Creates the record; false where it exists already.
async fn write(client: &Client, entry: &Entry) -> Result<bool, ApplyError> {
    let api: Api<api::EvictionHold> = Api::namespaced(client.clone(), &entry.namespace);
    let hold = api::EvictionHold::of(&entry.spec);
    let object = format!("EvictionHold {}/{}", entry.namespace, hold.metadata.name.as_deref().unwrap_or_default());
    match tokio::time::timeout(WRITE_TIMEOUT, api.create(&PostParams::default(), &hold)).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(false),
        Ok(Err(error)) => Err(ApplyError::of(error, object)),
        Err(_) => {
            let message = format!("no answer within {} s", WRITE_TIMEOUT.as_secs());
            Err(ApplyError::Unreachable { object, message })
        }
    }
}
