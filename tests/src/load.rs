//! A client that counts: requests at a steady rate to a Service, and what became of each.
//!
//! It chooses among the endpoints as kube-proxy does, from a watch of its own, and opens a new connection for each
//! request: a request fails exactly where a real client's would have, and "0 failed requests" is a measurement.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::StreamExt as _;
use http::StatusCode;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use crate::endpoints::{self, Endpoint};
use crate::network::Network;
use crate::plain_http;
use crate::service_proxy::SERVICE_NAME;
use crate::watching::{Change, changes};

/// How long a request may take; a pod answers within a millisecond, so a longer wait is an outage to a user.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);

/// How long a Service may take to get its first endpoint. EndpointSlices follow pods late by a second where two changes
/// come in quick succession (the controller's own back-off over a stale cache).
const ENDPOINT_WITHIN: Duration = Duration::from_secs(30);

/// How many failures are kept with their times and pods; the counts go on.
const FAILURES_KEPT: usize = 200;

/// What went wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// The Service had no endpoint to choose.
    NoEndpoint,
    /// Nobody listened at the endpoint.
    Refused,
    /// The connection ended before the whole answer was there.
    Reset,
    /// No answer in time.
    TimedOut,
    /// An answer, but not 200.
    BadStatus,
}

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// When it was sent, since the load began.
    pub at: Duration,
    /// What went wrong.
    pub what: Failure,
    /// The pod it was sent to, empty when there was none.
    pub pod: String,
}

/// What became of the requests so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// Answered with 200.
    pub ok: u64,
    /// The Service had no endpoint.
    pub no_endpoint: u64,
    /// Nobody listened.
    pub refused: u64,
    /// The connection ended early.
    pub reset: u64,
    /// No answer within 2 s.
    pub timed_out: u64,
    /// Answered with another status than 200.
    pub bad_status: u64,
    /// When the first request that failed was sent, since the load began.
    pub first_failure: Option<Duration>,
    /// When the last request that failed was sent.
    pub last_failure: Option<Duration>,
    /// The longest time between two good answers (or from the last good one until now): how long a user would have
    /// seen nothing.
    pub longest_gap: Duration,
    /// The first failures one by one.
    pub failures: Vec<Failed>,
}

impl Served {
    /// How many requests failed, whatever the reason.
    pub fn failed(&self) -> u64 {
        self.no_endpoint + self.refused + self.reset + self.timed_out + self.bad_status
    }

    fn count(&mut self, failed: Failed) {
        *match failed.what {
            Failure::NoEndpoint => &mut self.no_endpoint,
            Failure::Refused => &mut self.refused,
            Failure::Reset => &mut self.reset,
            Failure::TimedOut => &mut self.timed_out,
            Failure::BadStatus => &mut self.bad_status,
        } += 1;
        self.first_failure = Some(self.first_failure.map_or(failed.at, |first| first.min(failed.at)));
        self.last_failure = Some(self.last_failure.map_or(failed.at, |last| last.max(failed.at)));
        if self.failures.len() < FAILURES_KEPT {
            self.failures.push(failed);
        }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests answered, {} failed", self.ok, self.failed())?;
        let kinds = [
            (self.no_endpoint, "without an endpoint"),
            (self.refused, "refused"),
            (self.reset, "cut off"),
            (self.timed_out, "timed out"),
            (self.bad_status, "with a bad status"),
        ];
        let kinds: Vec<String> =
            kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        if !kinds.is_empty() {
            write!(f, " ({})", kinds.join(", "))?;
        }
        if let (Some(first), Some(last)) = (self.first_failure, self.last_failure) {
            write!(f, ", between {:.1} s and {:.1} s", first.as_secs_f64(), last.as_secs_f64())?;
        }
        write!(f, "; longest time without an answer {:.2} s", self.longest_gap.as_secs_f64())
    }
}

/// A running load; dropping it stops it.
#[derive(Debug)]
pub struct Load {
    count: Arc<Mutex<Count>>,
    answered: watch::Receiver<u64>,
    stop: Option<oneshot::Sender<()>>,
    task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Count {
    served: Served,
    began: Instant,
    last_ok: Option<Instant>,
}

impl Count {
    fn ok(&mut self, now: Instant) {
        self.served.ok += 1;
        self.served.longest_gap = self.gap_until(now);
        self.last_ok = Some(self.last_ok.map_or(now, |last| last.max(now)));
    }

    fn gap_until(&self, now: Instant) -> Duration {
        let gap = self.last_ok.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        gap.max(self.served.longest_gap)
    }

    fn until(&self, now: Instant) -> Served {
        Served { longest_gap: self.gap_until(now), ..self.served.clone() }
    }
}

/// A Service's port as the load sees it.
#[derive(Debug, Clone)]
struct Target {
    slices: Api<EndpointSlice>,
    service: String,
    port_name: String,
}

impl Load {
    /// Starts `per_second` requests a second to the first port of a Service, once it has an endpoint.
    ///
    /// # Errors
    /// When the Service does not exist, has no port, or gets no endpoint within 30 s.
    pub async fn start(
        client: kube::Client,
        network: Arc<Network>,
        namespace: &str,
        service: &str,
        per_second: u32,
    ) -> anyhow::Result<Self> {
        ensure!(per_second > 0, "a load of no requests");
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let found = services.get(service).await.with_context(|| format!("Service {namespace}/{service}"))?;
        let mut ports = found.spec.into_iter().flat_map(|spec| spec.ports.unwrap_or_default());
        let port = ports.next().with_context(|| format!("Service {namespace}/{service} has no port"))?;
        let target = Target {
            slices: Api::namespaced(client, namespace),
            service: service.to_owned(),
            port_name: port.name.unwrap_or_default(),
        };
        let (known, mut endpoints) = watch::channel(Arc::default());
        let follow = AbortOnDropHandle::new(tokio::spawn(follow(target, known)));
        let first = endpoints.wait_for(|known| endpoints::choose(known, 0).is_some());
        let in_time = tokio::time::timeout(ENDPOINT_WITHIN, first).await.is_ok();
        ensure!(in_time, "Service {namespace}/{service} has no ready endpoint after {} s", ENDPOINT_WITHIN.as_secs());

        let count = Arc::new(Mutex::new(Count { served: Served::default(), began: Instant::now(), last_ok: None }));
        let (announce, answered) = watch::channel(0);
        let (stop, stopped) = oneshot::channel();
        let sender = Sender { network, endpoints, count: count.clone(), announce, _follow: follow };
        let every = Duration::from_secs(1) / per_second;
        Ok(Self {
            count,
            answered,
            stop: Some(stop),
            task: AbortOnDropHandle::new(tokio::spawn(Arc::new(sender).run(every, stopped))),
        })
    }

    /// What became of the requests so far.
    pub fn so_far(&self) -> Served {
        self.count.lock().until(Instant::now())
    }

    /// Waits for `more` good answers from now on.
    ///
    /// # Errors
    /// When they have not come `within` that time.
    pub async fn ok(&self, more: u64, within: Duration) -> anyhow::Result<()> {
        let mut answered = self.answered.clone();
        let goal = *answered.borrow() + more;
        let waited = tokio::time::timeout(within, answered.wait_for(|count| *count >= goal)).await;
        if waited.is_err() {
            bail!("fewer than {more} more good answers within {within:?}: {}", self.so_far());
        }
        Ok(())
    }

    /// Stops sending, waits for what is under way, and says what became of it all.
    pub async fn stop(mut self) -> Served {
        drop(self.stop.take());
        // It ends by itself once the last request is answered or given up.
        let _ = (&mut self.task).await;
        self.so_far()
    }
}

/// Keeps the Service's endpoints known.
async fn follow(target: Target, known: watch::Sender<Arc<Vec<Endpoint>>>) {
    let of_service = watcher::Config::default().labels(&format!("{SERVICE_NAME}={}", target.service));
    let mut slices = std::collections::BTreeMap::new();
    let mut stream = std::pin::pin!(changes(target.slices, of_service));
    while let Some(change) = stream.next().await {
        match change {
            Change::Applied(slice) => {
                slices.insert(slice.uid().unwrap_or_default(), slice);
            }
            Change::Gone(key) => {
                slices.remove(&key.uid);
            }
            Change::Synced => {}
        }
        known.send_replace(Arc::new(endpoints::of_slices(slices.values(), &target.port_name)));
    }
}

struct Sender {
    network: Arc<Network>,
    endpoints: watch::Receiver<Arc<Vec<Endpoint>>>,
    count: Arc<Mutex<Count>>,
    announce: watch::Sender<u64>,
    _follow: AbortOnDropHandle<()>,
}

impl Sender {
    async fn run(self: Arc<Self>, every: Duration, mut stopped: oneshot::Receiver<()>) {
        let mut ticks = tokio::time::interval(every);
        // A machine that cannot keep up sends fewer requests, not a burst of late ones.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut requests = JoinSet::new();
        for turn in 0.. {
            tokio::select! {
                _ = &mut stopped => break,
                _ = ticks.tick() => {}
            }
            requests.spawn(self.clone().request(turn));
            while requests.try_join_next().is_some() {}
        }
        while requests.join_next().await.is_some() {}
    }

    async fn request(self: Arc<Self>, turn: usize) {
        let sent = Instant::now();
        let endpoints = self.endpoints.borrow().clone();
        let chosen = endpoints::choose(&endpoints, turn);
        let outcome = match chosen {
            None => Err(Failure::NoEndpoint),
            Some(endpoint) => {
                let address = self.network.reach(endpoint.address, endpoint.port);
                let answer = tokio::time::timeout(REQUEST_WITHIN, get(address)).await;
                answer.unwrap_or(Err(Failure::TimedOut))
            }
        };
        let mut count = self.count.lock();
        match outcome {
            Ok(()) => {
                count.ok(Instant::now());
                self.announce.send_replace(count.served.ok);
            }
            Err(what) => {
                let failed = Failed {
                    at: sent.saturating_duration_since(count.began),
                    what,
                    pod: chosen.map(|endpoint| endpoint.pod.clone()).unwrap_or_default(),
                };
                count.served.count(failed);
            }
        }
    }
}

/// One GET over a connection of its own, read to the end.
async fn get(address: SocketAddr) -> Result<(), Failure> {
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Failure::Refused,
        _ => Failure::Reset,
    })?;
    match plain_http::exchange(stream, address, "/", &[]).await {
        Ok((StatusCode::OK, _)) => Ok(()),
        Ok(_) => Err(Failure::BadStatus),
        Err(_) => Err(Failure::Reset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_lies_between_good_answers_or_after_the_last() {
        let began = Instant::now();
        let at = |millis: u64| began + Duration::from_millis(millis);
        let mut count = Count { served: Served::default(), began, last_ok: None };
        assert_eq!(count.until(at(900)).longest_gap, Duration::ZERO, "nothing was served yet");
        for millis in [1000, 1100, 1900, 2000] {
            count.ok(at(millis));
        }
        assert_eq!(count.until(at(2100)).longest_gap, Duration::from_millis(800));
        assert_eq!(count.until(at(5000)).longest_gap, Duration::from_secs(3));
        count.ok(at(1950));
        assert_eq!(count.until(at(2100)).longest_gap, Duration::from_millis(800), "answers may come out of order");
    }

    #[test]
    fn every_failure_is_counted_under_its_reason() {
        let mut served = Served::default();
        let kinds = [
            Failure::NoEndpoint,
            Failure::Refused,
            Failure::Refused,
            Failure::Reset,
            Failure::TimedOut,
            Failure::BadStatus,
        ];
        for (second, what) in kinds.into_iter().enumerate() {
            served.count(Failed { at: Duration::from_secs(second as u64), what, pod: "p".into() });
        }
        assert_eq!(served.failed(), 6);
        assert_eq!(served.refused, 2);
        assert_eq!(
            served.to_string(),
            "0 requests answered, 6 failed (1 without an endpoint, 2 refused, 1 cut off, 1 timed out, 1 with a bad \
             status), between 0.0 s and 5.0 s; longest time without an answer 0.00 s"
        );
    }
}
