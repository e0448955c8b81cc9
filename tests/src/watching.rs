//! Watches that survive a restart of the API server.
//!
//! kube's `watcher` retries for ever, but it never lists again when the server answers 410 Gone to the *start* of a
//! watch, and it reports what vanished during an outage only as an absence from the next list. [`changes`] wraps it: a
//! watch that cannot start is begun anew with a list, and what is absent from a list is told as [`Change::Gone`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use futures::stream::{BoxStream, Stream, StreamExt as _};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

/// The first pause after a failure: tests restart the API server and should see it again at once.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause: an outage in a test lasts seconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// So many failures in a row and the watch starts from a fresh list, whatever the reason of the failures.
const FAILURES_BEFORE_RELIST: u32 = 8;

/// Which object a change is about; the UID tells a recreated one from its namesake.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// Empty for objects without a namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's UID.
    pub uid: String,
}

impl Key {
    /// The key of an object.
    pub fn of<K: Resource>(object: &K) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
        }
    }
}

/// One step of a watched set of objects.
#[derive(Debug)]
pub enum Change<K> {
    /// The object is there, in this state.
    Applied(K),
    /// The object is gone.
    Gone(Key),
    /// A whole list has been told.
    Synced,
}

/// All changes to the objects of `api` that match `config`, for ever. Never ends and never fails.
pub fn changes<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = Change<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let watch = Watch { source: Source::new(api, config), known: Known::default(), ready: Vec::new() };
    futures::stream::unfold(watch, |mut watch| async move {
        let change = watch.next().await;
        Some((change, watch))
    })
}

/// The watcher's own events, for those who must tell a list from what happens after it. Never ends and never fails.
pub fn events<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    futures::stream::unfold(Source::new(api, config), |mut source| async move {
        let event = source.next().await;
        Some((event, source))
    })
}

/// kube's watcher, begun anew where it would not do so by itself.
struct Source<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> {
    api: Api<K>,
    config: watcher::Config,
    events: Option<BoxStream<'static, watcher::Result<Event<K>>>>,
    failures: u32,
}

struct Watch<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> {
    source: Source<K>,
    known: Known,
    /// Changes to be told before the next event is read, last first.
    ready: Vec<Change<K>>,
}

impl<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> Source<K> {
    fn new(api: Api<K>, config: watcher::Config) -> Self {
        Self { api, config, events: None, failures: 0 }
    }

    async fn next(&mut self) -> Event<K> {
        loop {
            let events =
                self.events.get_or_insert_with(|| watcher::watcher(self.api.clone(), self.config.clone()).boxed());
            match events.next().await {
                Some(Ok(event)) => {
                    self.failures = 0;
                    return event;
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "watch failed, trying again");
                    self.failures += 1;
                    if starts_from_too_old(&error) || self.failures.is_multiple_of(FAILURES_BEFORE_RELIST) {
                        self.events = None;
                    }
                    tokio::time::sleep(pause_after(self.failures)).await;
                }
                None => self.events = None,
            }
        }
    }
}

impl<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> Watch<K> {
    async fn next(&mut self) -> Change<K> {
        loop {
            if let Some(change) = self.ready.pop() {
                return change;
            }
            let event = self.source.next().await;
            self.take(event);
        }
    }

    fn take(&mut self, event: Event<K>) {
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                let replaced = self.known.seen(Key::of(&object));
                self.ready.push(Change::Applied(object));
                self.ready.extend(replaced.map(Change::Gone));
            }
            Event::Delete(object) => {
                let key = Key::of(&object);
                self.known.forget(&key);
                self.ready.push(Change::Gone(key));
            }
            Event::Init => self.known.begin_list(),
            Event::InitDone => {
                self.ready.push(Change::Synced);
                self.ready.extend(self.known.end_list().into_iter().map(Change::Gone));
            }
        }
    }
}

fn starts_from_too_old(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

/// The objects that have been told, to find out what vanished unseen.
#[derive(Debug, Default)]
struct Known {
    /// Namespace and name to UID, and the number of the list that saw it last.
    objects: HashMap<(String, String), (String, u64)>,
    list: u64,
}

impl Known {
    fn begin_list(&mut self) {
        self.list += 1;
    }

    /// Notes an object; the answer is its namesake that must have been deleted in between.
    fn seen(&mut self, key: Key) -> Option<Key> {
        let list = self.list;
        match self.objects.entry((key.namespace, key.name)) {
            Entry::Occupied(mut entry) => {
                let (uid, _) = entry.insert((key.uid.clone(), list));
                let (namespace, name) = entry.key().clone();
                (uid != key.uid).then_some(Key { namespace, name, uid })
            }
            Entry::Vacant(entry) => {
                entry.insert((key.uid, list));
                None
            }
        }
    }

    fn forget(&mut self, key: &Key) {
        let name = (key.namespace.clone(), key.name.clone());
        if self.objects.get(&name).is_some_and(|(uid, _)| *uid == key.uid) {
            self.objects.remove(&name);
        }
    }

    /// What the list that ends now did not contain.
    fn end_list(&mut self) -> Vec<Key> {
        let list = self.list;
        self.objects
            .extract_if(|_, (_, seen)| *seen != list)
            .map(|((namespace, name), (uid, _))| Key { namespace, name, uid })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    /// Answers lists with one ConfigMap and the starts of watches with 410 Gone, and notes what it was asked.
    fn serve_gone(asked: &Mutex<Vec<&'static str>>, request: &Request<Body>) -> Response<Body> {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        asked.lock().push(if is_watch { "watch" } else { "list" });
        let (code, body) = if is_watch {
            (
                410,
                json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired" }),
            )
        } else {
            let item = json!({ "metadata": { "name": "a", "namespace": "ns", "uid": "1" } });
            let metadata = json!({ "resourceVersion": "5" });
            (200, json!({ "kind": "ConfigMapList", "apiVersion": "v1", "metadata": metadata, "items": [item] }))
        };
        let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
        response.expect("a response of fixed parts")
    }

    #[test]
    fn a_watch_that_starts_too_late_begins_anew_with_a_list() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        runtime.block_on(async {
            let note = asked.clone();
            let service = tower::service_fn(move |request| {
                let response = serve_gone(&note, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let api: Api<ConfigMap> = Api::all(kube::Client::new(service, "default"));
            let mut changes = std::pin::pin!(changes(api, watcher::Config::default()));
            let mut synced = 0;
            while synced < 2 {
                if let Some(Change::Synced) = changes.next().await {
                    synced += 1;
                }
            }
        });
        assert_eq!(*asked.lock(), ["list", "watch", "list"]);
    }

    fn key(name: &str, uid: &str) -> Key {
        Key { namespace: "ns".into(), name: name.into(), uid: uid.into() }
    }

    #[test]
    fn what_a_later_list_lacks_is_gone() {
        let mut known = Known::default();
        known.begin_list();
        assert_eq!(known.seen(key("a", "1")), None);
        assert_eq!(known.seen(key("b", "2")), None);
        assert_eq!(known.end_list(), []);
        known.begin_list();
        known.seen(key("b", "2"));
        assert_eq!(known.end_list(), [key("a", "1")]);
    }

    #[test]
    fn a_namesake_with_another_uid_means_the_first_is_gone() {
        let mut known = Known::default();
        known.seen(key("a", "1"));
        assert_eq!(known.seen(key("a", "1")), None);
        assert_eq!(known.seen(key("a", "2")), Some(key("a", "1")));
        known.forget(&key("a", "1"));
        known.begin_list();
        assert_eq!(known.end_list(), [key("a", "2")], "a late deletion of the first leaves the second known");
    }

    #[test]
    fn pauses_grow_to_a_second_and_no_further() {
        let pauses: Vec<u128> = (1..=7).map(|failures| pause_after(failures).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pause_after(u32::MAX), LONGEST_PAUSE);
    }
}
