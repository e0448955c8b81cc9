//! The client that counts, on either kind of cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use belay_e2e::load::Load;
use kube::Client;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

/// Requests a second.
pub(super) const RATE: u32 = 50;

/// A cluster that has just become available answers within seconds.
const FLOWING_WITHIN: Duration = Duration::from_mins(1);

/// What became of the requests of one act.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) answered: u64,
    pub(super) failed: u64,
    /// The longest time between two answers.
    pub(super) longest_gap: Duration,
    /// How often the drain was told to wait.
    pub(super) held: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, failed, longest_gap, .. } = self;
        write!(f, "requests: {answered} answered, {failed} failed; longest time without an answer {longest_gap:.1?}")
    }
}

/// Requests that flow until they are stopped.
pub(super) enum Requests {
    /// Straight to the ready endpoints, as kube-proxy would send them.
    Endpoints(Load),
    /// Through the API server's service proxy, which reaches pods on any cluster.
    Proxy(Proxied),
}

impl Requests {
    /// Waits until answers come.
    pub(super) async fn flowing(&self) -> anyhow::Result<()> {
        match self {
            Self::Endpoints(load) => load.ok(u64::from(RATE), FLOWING_WITHIN).await,
            Self::Proxy(proxied) => proxied.flowing().await,
        }
    }

    pub(super) async fn stop(self) -> Tally {
        match self {
            Self::Endpoints(load) => {
                let served = load.stop().await;
                Tally { answered: served.ok, failed: served.failed(), longest_gap: served.longest_gap, held: 0 }
            }
            Self::Proxy(proxied) => proxied.stop(),
        }
    }
}

/// A load through the API server.
pub(super) struct Proxied {
    count: Arc<Mutex<Count>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Count {
    tally: Tally,
    last: Option<Instant>,
}

impl Proxied {
    pub(super) fn start(client: Client, namespace: &str, service: &str) -> Self {
        let count: Arc<Mutex<Count>> = Arc::default();
        let uri = format!("/api/v1/namespaces/{namespace}/services/{service}:80/proxy/");
        let counting = count.clone();
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                let (client, uri, counting) = (client.clone(), uri.clone(), counting.clone());
                tokio::spawn(async move {
                    let Ok(request) = http::Request::get(uri).body(Vec::new()) else { return };
                    let answer = client.request_text(request).await;
                    counting.lock().note(answer.is_ok());
                });
            }
        });
        Self { count, task }
    }

    async fn flowing(&self) -> anyhow::Result<()> {
        let flowing = async {
            while self.count.lock().tally.answered < u64::from(RATE) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            // What failed before the first answers came says nothing of the drain.
            self.count.lock().tally = Tally::default();
        };
        tokio::time::timeout(FLOWING_WITHIN, flowing).await.context("the web server does not answer")
    }

    fn stop(self) -> Tally {
        self.task.abort();
        let mut count = self.count.lock();
        count.gap();
        count.tally
    }
}

impl Count {
    fn note(&mut self, answered: bool) {
        if answered {
            self.tally.answered += 1;
            self.gap();
            self.last = Some(Instant::now());
        } else {
            self.tally.failed += 1;
        }
    }

    fn gap(&mut self) {
        let gap = self.last.map(|last| last.elapsed()).unwrap_or_default();
        self.tally.longest_gap = self.tally.longest_gap.max(gap);
    }
}
