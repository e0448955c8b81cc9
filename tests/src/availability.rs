//! How many pods of a workload were available at each moment, from a watch: between two polls a pod may go and another
//! come, and nobody would have seen the gap.
//!
//! A watch tells every change of the pods in the order in which they were written, so the least count that it passes
//! through is the least there was. A pod counts as available while it is Ready and was not asked to go, as the
//! ReplicaSet counts it where `minReadySeconds` is 0.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::watching::events;
use crate::world::{Namespace, PodInfo, eventually};

/// A watch begins within a moment.
const BEGINS_WITHIN: Duration = Duration::from_secs(30);

/// A running count; it ends when dropped.
pub struct Availability {
    story: Arc<Mutex<Story>>,
    _watch: AbortOnDropHandle<()>,
}

impl Availability {
    /// Begins to count the pods with the label `app` of this value.
    ///
    /// # Errors
    /// When the watch does not begin.
    pub async fn watch(ns: &Namespace, app: &str) -> anyhow::Result<Self> {
        let story = Arc::new(Mutex::new(Story::new()));
        let pods: Api<Pod> = ns.api();
        let config = watcher::Config::default().labels(&format!("app={app}"));
        let teller = story.clone();
        let watch = ns.cluster().runtime().spawn(async move {
            let mut events = std::pin::pin!(events(pods, config));
            while let Some(event) = events.next().await {
                teller.lock().take(event);
            }
        });
        let availability = Self { story, _watch: AbortOnDropHandle::new(watch) };
        eventually("a watch of the pods", BEGINS_WITHIN, async || {
            availability.story.lock().least.map(drop).context("it has told nothing yet")
        })
        .await?;
        Ok(availability)
    }

    /// The fewest pods that were available at any moment since it began.
    pub fn least(&self) -> usize {
        self.story.lock().least.unwrap_or_default()
    }

    /// The most pods that were there at any moment, going ones left out.
    pub fn most_staying(&self) -> usize {
        self.story.lock().most
    }

    /// # Errors
    /// When ever fewer than this were available, with what happened around it.
    pub fn ensure_never_fewer_than(&self, count: usize) -> anyhow::Result<()> {
        let story = self.story.lock();
        let least = story.least.unwrap_or_default();
        ensure!(least >= count, "only {least} pods were available at some moment, not {count}:\n{}", story.told);
        Ok(())
    }
}

struct Story {
    began: Instant,
    pods: BTreeMap<String, PodInfo>,
    /// Between the begin and the end of a list pods are told in no order of time.
    listing: bool,
    least: Option<usize>,
    most: usize,
    /// One line for each change of the count.
    told: String,
    last: Option<usize>,
}

impl Story {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            pods: BTreeMap::new(),
            listing: true,
            least: None,
            most: 0,
            told: String::new(),
            last: None,
        }
    }

    fn take(&mut self, event: Event<Pod>) {
        let about = match event {
            Event::Init => {
                (self.listing, self.pods) = (true, BTreeMap::new());
                String::new()
            }
            Event::InitDone => {
                self.listing = false;
                "as listed".to_owned()
            }
            Event::Apply(pod) | Event::InitApply(pod) => {
                let pod = PodInfo::from(pod);
                let state = match (pod.terminating, pod.ready) {
                    (true, _) => "going",
                    (false, true) => "ready",
                    (false, false) => "not ready",
                };
                let about = format!("{} on {} is {state}", pod.name, pod.node);
                self.pods.insert(pod.uid.clone(), pod);
                about
            }
            Event::Delete(pod) => {
                let pod = PodInfo::from(pod);
                self.pods.remove(&pod.uid);
                format!("{} is gone", pod.name)
            }
        };
        if !self.listing {
            self.count(&about);
        }
    }

    fn count(&mut self, about: &str) {
        let staying = self.pods.values().filter(|pod| !pod.terminating);
        self.most = self.most.max(staying.clone().count());
        let available = staying.filter(|pod| pod.ready).count();
        self.least = Some(self.least.map_or(available, |least| least.min(available)));
        if self.last != Some(available) {
            let after = self.began.elapsed().as_secs_f64();
            let _ = writeln!(self.told, "  {after:6.2} s: {available} available ({about})");
            self.last = Some(available);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ready: bool, going: bool) -> Pod {
        let status = if ready { "True" } else { "False" };
        let deleted = going.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": { "name": name, "uid": name, "deletionTimestamp": deleted },
            "status": { "conditions": [{ "type": "Ready", "status": status }] },
        }))
        .unwrap()
    }

    fn told(events: Vec<Event<Pod>>) -> Story {
        let mut story = Story::new();
        for event in events {
            story.take(event);
        }
        story
    }

    #[test]
    fn the_least_is_what_it_passed_through_and_not_what_a_list_passes_through() {
        let listed = || {
            let pods = ["a", "b"].map(|name| Event::InitApply(pod(name, true, false)));
            std::iter::once(Event::Init).chain(pods).chain([Event::InitDone]).collect::<Vec<_>>()
        };
        let comes = Event::Apply(pod("c", true, false));
        for (name, events, least, most) in [
            ("nothing more", vec![], 2, 2),
            ("one goes", vec![Event::Apply(pod("a", true, true))], 1, 2),
            ("one is not ready", vec![Event::Apply(pod("a", false, false))], 1, 2),
            ("one comes before one goes", vec![comes, Event::Delete(pod("a", true, true))], 2, 3),
            ("another list", listed(), 2, 2),
            ("an unfinished list", vec![Event::Init, Event::InitApply(pod("a", true, false))], 2, 2),
        ] {
            let story = told(listed().into_iter().chain(events).collect());
            assert_eq!((story.least, story.most), (Some(least), most), "{name}: {}", story.told);
        }
        assert_eq!(told(vec![Event::Init, Event::InitApply(pod("a", true, false))]).least, None);
    }
}
