//! Watches that keep going.
//!
//! kube's watcher recovers from most failures, but not well from a version that is gone (HTTP 410, as after a
//! restart of the API server, an etcd restore or a long outage). Where the *start* of a watch is refused for it, that
//! same version is tried again for ever; where a watch that has started is told so, the list that cures it comes only
//! after the pause that the outage before has grown to. So such a watch is thrown away and begun anew with a list.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::BackoffBuilder as _;
use futures::{StreamExt, pin_mut};
use kube::runtime::watcher::{self, Event, watcher as watch_objects};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::tasks::Tasks;

/// First pause after a failed watch.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
/// Longest pause, which jitter may double: an eviction that comes while the cache is blind is answered from old facts,
/// so the cache must see again soon after the API server is back. One request per watch in so many seconds troubles no
/// API server.
const MAX_BACKOFF: Duration = Duration::from_millis(2500);

/// Trouble that lasts this long is no start or upgrade of an API server, which pass within seconds.
const LASTING: Duration = Duration::from_secs(30);

/// A watch that was begun again after a failure says nothing of it where nothing changes. One that is silent for so long
/// after trouble is begun anew with a list, which tells: before trouble counts as lasting, and seldom enough for an API
/// server that hangs.
const SILENT: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(10) };

/// What takes in the objects of a watch.
pub trait Sink<K>: Send {
    /// The complete set, as listed: replaces everything known before.
    fn replace(&mut self, objects: Vec<K>);
    /// An object is new or changed.
    fn apply(&mut self, object: K);
    /// An object is gone.
    fn delete(&mut self, object: K);
}

/// Whether a watch has its objects, and what keeps it from them.
#[derive(Clone, Debug)]
pub struct Health {
    /// What is watched, for people.
    pub what: Arc<str>,
    state: Arc<Mutex<State>>,
    /// Cancelled when it was complete for the first time.
    first: CancellationToken,
    /// Cancelled when it is known for the first time whether it can be complete.
    known: CancellationToken,
    failing: Gauge,
}

#[derive(Debug)]
struct State {
    synced: bool,
    trouble: Option<String>,
    /// Since when there is trouble.
    since: Option<Instant>,
}

impl Health {
    /// A watch that has seen nothing yet; `failing` is 1 while it cannot see.
    pub fn new(what: impl Into<Arc<str>>, failing: Gauge) -> Self {
        Self {
            what: what.into(),
            state: Arc::new(Mutex::new(State { synced: false, trouble: None, since: None })),
            first: CancellationToken::new(),
            known: CancellationToken::new(),
            failing,
        }
    }

    /// The complete set was seen at least once.
    pub fn is_synced(&self) -> bool {
        self.state.lock().synced
    }

    /// `Err` with one line while the watch has never been complete.
    pub fn ready(&self) -> Result<(), String> {
        let state = self.state.lock();
        match (&state.trouble, state.synced) {
            (_, true) => Ok(()),
            (Some(trouble), false) => Err(format!("cache of {} not filled: {trouble}", self.what)),
            (None, false) => Err(format!("cache of {} not filled yet", self.what)),
        }
    }

    /// What has kept the watch from seeing for longer than an API server needs to start.
    pub fn lasting_trouble(&self) -> Option<String> {
        let state = self.state.lock();
        let lasts = state.since.is_some_and(|since| since.elapsed() >= LASTING);
        state.trouble.as_ref().filter(|_| lasts || self.known.is_cancelled() && !state.synced).cloned()
    }

    /// It failed, and has not been seen to work since.
    pub(super) fn is_in_trouble(&self) -> bool {
        self.state.lock().trouble.is_some()
    }

    /// `Err` with one line while it is not known yet whether the watch can be complete.
    pub fn settled(&self) -> Result<(), String> {
        if self.known.is_cancelled() { Ok(()) } else { self.ready() }
    }

    /// There is nothing to be seen, for now: nothing is missing.
    pub fn absent(&self) {
        self.failing.set(0);
        self.synced();
    }

    /// Notes trouble, and tells of it where it is news. Trouble that is `final` does not pass by itself.
    pub fn note(&self, trouble: &str, is_final: bool) {
        if self.troubled(trouble, is_final) {
            tracing::warn!(what = %self.what, error = %trouble, "watch failed, trying again");
        }
    }

    fn synced(&self) {
        *self.state.lock() = State { synced: true, trouble: None, since: None };
        self.first.cancel();
        self.known.cancel();
    }

    /// Notes trouble; true where it is news.
    fn troubled(&self, trouble: &str, is_final: bool) -> bool {
        let mut state = self.state.lock();
        let lasts = state.since.get_or_insert_with(Instant::now).elapsed() >= LASTING;
        let news = state.trouble.as_deref() != Some(trouble);
        self.failing.set(1);
        state.trouble = Some(trouble.to_owned());
        if is_final || lasts {
            self.known.cancel();
        }
        news
    }

    fn recovered(&self) -> bool {
        self.failing.set(0);
        let mut state = self.state.lock();
        state.since = None;
        state.trouble.take().is_some()
    }
}

/// Waits until every watch has been complete once; false where `stop` came first.
///
/// A decision on half-filled caches would take what is not listed yet for gone.
pub async fn synced(health: &[Health], stop: &CancellationToken) -> bool {
    all(health.iter().map(|health| &health.first), stop).await
}

/// Waits until it is known of every watch whether it can be complete; false where `stop` came first.
pub async fn settled(health: impl Iterator<Item = &Health>, stop: &CancellationToken) -> bool {
    all(health.map(|health| &health.known), stop).await
}

/// Waits until every watch has been complete once; false where that takes longer.
pub async fn synced_within(health: &[Health], patience: Duration) -> bool {
    let never = CancellationToken::new();
    tokio::time::timeout(patience, synced(health, &never)).await.is_ok()
}

async fn all(tokens: impl Iterator<Item = &CancellationToken>, stop: &CancellationToken) -> bool {
    for token in tokens {
        tokio::select! {
            () = token.cancelled() => {}
            () = stop.cancelled() => return false,
        }
    }
    true
}

/// The watches that busy rules need.
#[derive(Clone, Debug, Default)]
pub struct RuleHealth {
    /// The pods that each selects, by the rule's number.
    pub pods: Vec<Health>,
    /// What each asks about its pods, by the rule's number: owners, what leads to them, linked pods.
    pub asked: Vec<Vec<Health>>,
}

impl RuleHealth {
    /// It is known which pods are governed.
    pub fn is_governing_known(&self) -> bool {
        self.pods.iter().all(Health::is_synced)
    }

    /// `Err` with one line while what the rule of this number asks is not known.
    pub fn asked(&self, rule: usize) -> Result<(), String> {
        self.asked.get(rule).into_iter().flatten().try_for_each(Health::ready)
    }
}

/// What watches are started with.
pub struct Watches {
    /// The client.
    pub client: Client,
    /// What misses a watch that ended.
    pub tasks: Tasks,
    /// Where a failing watch shows.
    pub metrics: Arc<Metrics>,
    /// Ends them all.
    pub stop: CancellationToken,
}

impl Watches {
    /// Starts a watch. What `project` makes nothing of is passed over.
    pub fn start<K, V>(
        &self,
        what: &'static str,
        api: Api<K>,
        config: watcher::Config,
        project: impl Fn(&K) -> Option<V> + Send + Sync + 'static,
        sink: impl Sink<V> + 'static,
    ) -> Health
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Send + 'static,
    {
        self.start_named(what, what.into(), api, config, project, sink)
    }

    /// Starts a watch of several for one purpose, with a name of its own.
    pub fn start_named<K, V>(
        &self,
        task: &'static str,
        what: Arc<str>,
        api: Api<K>,
        config: watcher::Config,
        project: impl Fn(&K) -> Option<V> + Send + Sync + 'static,
        sink: impl Sink<V> + 'static,
    ) -> Health
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Send + 'static,
    {
        let health = Health::new(Arc::clone(&what), self.metrics.watch_failing(what));
        self.tasks.spawn(task, run(api, config, project, sink, health.clone(), self.stop.clone()));
        health
    }
}

/// Watches until `stop`, feeding every change into `sink`.
pub async fn run<K, V>(
    api: Api<K>,
    config: watcher::Config,
    project: impl Fn(&K) -> Option<V> + Send,
    mut sink: impl Sink<V>,
    health: Health,
    stop: CancellationToken,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut pauses = backoff();
    while !stop.is_cancelled() {
        let stream = watch_objects(api.clone(), config.clone());
        pin_mut!(stream);
        // The set being listed, kept beside the one in force until it is complete.
        let mut listed = Vec::new();
        loop {
            let event = tokio::select! {
                event = stream.next() => event,
                () = stop.cancelled() => return,
                () = tokio::time::sleep(SILENT), if health.is_in_trouble() => break,
            };
            match event {
                Some(Ok(event)) => {
                    // The first event of a list comes before the API server is asked for it: it says nothing yet.
                    if !matches!(event, Event::Init) {
                        pauses = backoff();
                        if health.recovered() {
                            tracing::info!(what = %health.what, "watch recovered");
                        }
                    }
                    match event {
                        Event::Init => listed = Vec::new(),
                        Event::InitApply(object) => listed.extend(project(&object)),
                        Event::InitDone => {
                            sink.replace(std::mem::take(&mut listed));
                            health.synced();
                        }
                        Event::Apply(object) => {
                            if let Some(view) = project(&object) {
                                sink.apply(view);
                            }
                        }
                        Event::Delete(object) => {
                            if let Some(view) = project(&object) {
                                sink.delete(view);
                            }
                        }
                    }
                }
                Some(Err(error)) => {
                    health.note(&describe(&error), is_denied(&error));
                    // Never in a tight loop, even where an API server calls its own fresh lists too old.
                    tokio::select! {
                        () = tokio::time::sleep(pauses.next().unwrap_or(MAX_BACKOFF)) => {}
                        () = stop.cancelled() => return,
                    }
                    if is_gone(&error) {
                        break;
                    }
                }
                None => break,
            }
        }
    }
}

/// The pauses after failures that follow each other. (kube's own back-off begins anew with each list it tries.)
pub(super) fn backoff() -> impl Iterator<Item = Duration> {
    backon::ExponentialBuilder::default()
        .with_min_delay(MIN_BACKOFF)
        .with_max_delay(MAX_BACKOFF)
        .with_jitter()
        .without_max_times()
        .build()
}

fn is_gone(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) | watcher::Error::WatchError(status) => {
            status.code == 410
        }
        _ => false,
    }
}

/// A right is missing: it stays so until somebody grants it.
fn is_denied(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => matches!(status.code, 401 | 403),
        _ => false,
    }
}

/// One line that says what to do where it is known.
fn describe(error: &watcher::Error) -> String {
    let source = match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => Some(source),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    };
    match source {
        Some(kube::Error::Api(status)) if status.code == 403 => {
            format!(
                "missing right: {}; grant it in the chart's ClusterRole or install the chart's RBAC",
                status.message
            )
        }
        Some(kube::Error::Api(status)) if status.code == 404 => {
            format!(
                "{}; is its CustomResourceDefinition installed? (Belay's own: `belay crds | kubectl apply -f -`)",
                status.message
            )
        }
        Some(source) => super::client::describe(source),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::testing::{ApiServer, Asked, Reply};

    /// Counts the lists that it is given.
    struct Lists(Arc<AtomicUsize>);

    impl Sink<()> for Lists {
        fn replace(&mut self, _: Vec<()>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn apply(&mut self, (): ()) {}

        fn delete(&mut self, (): ()) {}
    }

    #[tokio::test]
    async fn a_watch_that_failed_once_and_then_says_nothing_is_not_taken_for_failing_for_ever() {
        let watches = AtomicUsize::new(0);
        let api = ApiServer::start(move |asked: &Asked| {
            let is_watch = asked.query.contains_key("watch");
            match (is_watch, if is_watch { watches.fetch_add(1, Ordering::SeqCst) } else { 0 }) {
                (false, _) => Reply::Json(json!({"kind": "ConfigMapList", "apiVersion": "v1",
                    "metadata": {"resourceVersion": "1"}, "items": []})),
                (true, 0) => Reply::Status(500, "storage is (re)initializing"),
                (true, _) => Reply::Silence,
            }
        })
        .await;
        let (health, stop, lists) = (Health::new("things", Gauge::default()), CancellationToken::new(), Arc::default());
        let maps: Api<ConfigMap> = Api::all(api.client.clone());
        let sink = Lists(Arc::clone(&lists));
        let config = watcher::Config::default();
        let task = tokio::spawn(run(maps, config, |_| Some(()), sink, health.clone(), stop.clone()));
        while lists.load(Ordering::SeqCst) < 2 || health.is_in_trouble() {
            tokio::task::yield_now().await;
        }
        assert!(health.is_synced() && health.lasting_trouble().is_none());
        stop.cancel();
        task.await.unwrap();
    }

    #[test]
    fn pauses_grow_to_their_bound_and_stay_there() {
        let pauses: Vec<_> = backoff().take(20).collect();
        assert!(pauses[0] >= MIN_BACKOFF && pauses[0] <= MIN_BACKOFF * 2, "{pauses:?}");
        assert!(pauses[10..].iter().all(|pause| (MAX_BACKOFF..=MAX_BACKOFF * 2).contains(pause)), "{pauses:?}");
    }
}
