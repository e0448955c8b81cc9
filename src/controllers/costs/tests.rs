//! The loop's looks, one by one, before a server on the loopback that keeps pods and Events as an API server does.

mod told;
mod writes;

use std::collections::BTreeMap;

use arc_swap::ArcSwap;
use belay_decide::action::Event;
use belay_decide::cost::cluster::{Cluster, KnownSet};
use belay_decide::cost::{COST_ANNOTATION as COST, Options, SetView};
use belay_decide::ownership::MANAGED_ANNOTATION as MANAGED;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};

use super::*;
use crate::cluster::costs::CostSink;
use crate::cluster::index::Index;
use crate::cluster::lease::Leadership;
use crate::cluster::owners::Resources;
use crate::cluster::project_cost::{self, LeftOut};
use crate::cluster::watch::Sink as _;
use crate::settings::Settings;
use crate::testing::{self, ApiServer, Asked, Reply};

const PODS: &str = "/api/v1/namespaces/shop/pods/";

/// Longer than anything takes that is awaited.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the API server has.
#[derive(Default)]
struct Stored {
    pods: BTreeMap<String, Value>,
    /// Patches of pods as they came in.
    patches: Vec<Asked>,
    /// Events as they came in, new ones and those that raise a count.
    events: Vec<Value>,
    /// The answer to patches of pods, where it is none that a healthy API server would give.
    trouble: Option<Reply>,
}

impl Stored {
    /// A write, by whomever.
    fn write(&mut self, name: &str, merge: &Value) -> Value {
        let pod = self.pods.get_mut(name).expect("the test names a pod that is there");
        json_patch::merge(pod, merge);
        let version: u64 = pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        pod["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        pod.clone()
    }

    fn answer(&mut self, asked: &Asked) -> Reply {
        if asked.what.contains("/apis/events.k8s.io/v1/namespaces/") {
            let mut event = asked.body.clone();
            event["metadata"]["namespace"] = json!(asked.what.split('/').nth(5).unwrap());
            self.events.push(event.clone());
            return Reply::Json(event);
        }
        let Some((_, name)) = asked.what.split_once(PODS).filter(|(method, _)| *method == "PATCH ") else {
            return Reply::Status(403, "who asks this?");
        };
        self.patches.push(asked.clone());
        if let Some(trouble) = &self.trouble {
            return trouble.clone();
        }
        let Some(pod) = self.pods.get(name) else { return Reply::Status(404, "there is no such pod") };
        let wanted = &asked.body["metadata"];
        if ["uid", "resourceVersion"].iter().any(|field| pod["metadata"][field] != wanted[field]) {
            return Reply::Status(409, "the object has been modified");
        }
        Reply::Json(self.write(name, &asked.body))
    }
}

/// The loop over three nodes and what runs there: on `n1` one pod of `web` and one of `api`, on `n2` two of `web` and
/// one of `api`, on `n3` the rest of both and one of `single`. All of it has been there for long.
struct Stage {
    stored: Arc<Mutex<Stored>>,
    leadership: Arc<Leadership>,
    work: Loop,
    _api: ApiServer,
}

fn node(name: &str, more: &Value) -> Value {
    let mut node = json!({"metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}});
    json_patch::merge(&mut node, more);
    node
}

fn pod(set: &str, name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "uid": format!("{name}-uid"), "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T01:00:00Z", "labels": {"app": set},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": set,
                "controller": true}]},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "startTime": "2026-01-01T01:00:00Z", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T01:01:00Z"}]},
    })
}

fn ours(value: i32) -> Value {
    json!({COST: value.to_string(), MANAGED: json!({COST: value.to_string()}).to_string()})
}

fn key(name: &str) -> PodKey {
    PodKey::new("shop", name)
}

fn keys(names: &[&str]) -> BTreeSet<PodKey> {
    names.iter().map(|name| key(name)).collect()
}

/// The pods that are to carry a value.
const RANKED: [&str; 8] = ["api-1", "api-2", "api-3", "web-1", "web-2", "web-3", "web-4", "web-5"];

async fn stage() -> Stage {
    stage_with(Vec::new(), 1000).await
}

async fn stage_with(health: Vec<Health>, writes_per_second: u32) -> Stage {
    let stored: Arc<Mutex<Stored>> = Arc::default();
    let answering = Arc::clone(&stored);
    let api = ApiServer::start(move |asked| answering.lock().answer(asked)).await;
    let (index, dirty) = Index::following(Vec::new());
    let (applier, leadership, metrics) =
        testing::leading_applier(&api, Resources::default(), Some("belay-controller-0"));
    let config = testing::config("deletionCost: {enabled: true}");
    let shared = Shared {
        client: api.client.clone(),
        index,
        dirty,
        applier,
        settings: Arc::new(ArcSwap::from_pointee(Settings::of(&config, "belay-system"))),
        leadership: Arc::clone(&leadership),
        metrics,
        health: Vec::new(),
    };
    let costs = Costs::new(Cluster::new(Options::default(), SignedDuration::from_mins(10)));
    let own = OwnPod { namespace: "belay-system".into(), name: "belay-controller-0".into(), uid: "own".into() };
    let work = Loop::new(shared, costs, health, own, writes_per_second);
    let stage = Stage { stored, leadership, work, _api: api };
    for name in ["n1", "n2", "n3"] {
        stage.see_node(name, &json!({}));
    }
    for (name, replicas) in [("web", 5), ("api", 3), ("single", 1)] {
        stage.see_set(name, replicas);
    }
    let pods = [("web", "1223"), ("api", "123"), ("single", "3")];
    let mut all: Vec<_> = pods
        .iter()
        .flat_map(|(set, nodes)| {
            let numbered = nodes.chars().enumerate();
            numbered.map(move |(at, node)| pod(set, &format!("{set}-{}", at + 1), &format!("n{node}")))
        })
        .collect();
    all.push(pod("web", "web-5", "n3"));
    for pod in all {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        stage.stored.lock().pods.insert(name.clone(), pod);
        stage.see(&name);
    }
    stage.work.observe(true);
    stage
}

impl Stage {
    /// The watch brings this pod as it stands.
    fn see(&self, name: &str) {
        let pod = serde_json::from_value(self.stored.lock().pods[name].clone()).unwrap();
        CostSink(Some(self.work.costs.clone())).apply(project_cost::pod(&pod, &LeftOut::default(), Clock::wall()));
    }

    fn see_node(&self, name: &str, more: &Value) {
        let node = serde_json::from_value(node(name, more)).unwrap();
        CostSink(Some(self.work.costs.clone())).apply(project_cost::node(&node, Clock::wall()));
    }

    fn see_set(&self, name: &str, replicas: i32) {
        let set = SetView {
            namespace: "shop".into(),
            name: name.into(),
            uid: name.into(),
            replicas,
            constraints: Vec::new(),
            stood_down: false,
        };
        CostSink(Some(self.work.costs.clone())).apply(KnownSet { set, deployment: None });
    }

    /// A write by somebody else, which the watch brings.
    fn meddle(&self, name: &str, annotations: &Value) {
        self.stored.lock().write(name, &json!({"metadata": {"annotations": annotations}}));
        self.see(name);
    }

    /// The same at this time.
    fn meddle_at(&self, name: &str, annotations: &Value, now: Timestamp) {
        let pod = self.stored.lock().write(name, &json!({"metadata": {"annotations": annotations}}));
        let pod = project_cost::pod(&serde_json::from_value(pod).unwrap(), &LeftOut::default(), now);
        self.work.costs.write(|cluster| cluster.put_pod(pod, now));
    }

    /// Looks at one pod; how many patches came of it, and in how many seconds it is to be looked at again.
    async fn look(&self, name: &str) -> (usize, Option<i64>) {
        let before = (Clock::wall(), self.stored.lock().patches.len());
        let wake = self.work.look(&key(name)).await;
        let patches = self.stored.lock().patches.len() - before.1;
        (patches, wake.map(|at| at.duration_since(before.0).as_secs_f64().round() as i64))
    }

    /// Takes what there is and looks at all of it, and the watch brings what came of that; the pods that were patched.
    async fn work_off(&self) -> BTreeSet<PodKey> {
        let taken = self.work.take_now();
        self.look_at_all(&taken).await
    }

    async fn look_at_all(&self, taken: &BTreeSet<PodKey>) -> BTreeSet<PodKey> {
        let mut patched = BTreeSet::new();
        for key in taken {
            let (count, wake) = self.look(&key.name).await;
            assert_eq!(wake, None, "{key}");
            if count > 0 {
                patched.insert(key.clone());
            }
            self.see(&key.name);
        }
        patched
    }

    /// What stands on a pod.
    fn annotations(&self, name: &str) -> Value {
        self.stored.lock().pods[name]["metadata"].get("annotations").cloned().unwrap_or_default()
    }

    fn rank(&self, node: &str) -> i32 {
        self.work.costs.read(|cluster| cluster.ranking().rank_of(node)).expect("it has a rank")
    }

    fn patches(&self) -> Vec<Asked> {
        std::mem::take(&mut self.stored.lock().patches)
    }

    /// The Events told so far: reason, and what each is about. Those that are still under way are waited for.
    async fn events(&self) -> Vec<(String, String)> {
        let events = self.told().await;
        events.iter().map(|event| (text(&event["reason"]), about(event))).collect()
    }

    /// The same, whole. Told Events are forgotten.
    async fn told(&self) -> Vec<Value> {
        let applier = &self.work.shared.applier;
        let mark = Event { namespace: "end".into(), ..self.work.own_pod.event(false, "Mark", "Mark", String::new()) };
        applier.tell(&mark);
        let take = || {
            let mut stored = self.stored.lock();
            let at = stored.events.iter().position(|event| event["reason"] == "Mark")?;
            let told = stored.events.drain(..=at);
            Some(told.filter(|event| event["reason"] != "Mark").collect())
        };
        let told = async {
            loop {
                if let Some(told) = take() {
                    return told;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, told).await.expect("Events are not told")
    }

    fn metric(&self, name: &str) -> Option<String> {
        let text = self.work.shared.metrics.encode().unwrap();
        text.lines()
            .find_map(|line| Some(line.strip_prefix("belay_deletion_cost_")?.strip_prefix(name)?.trim().to_owned()))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Kind and name, with the namespace that the Event is in.
fn about(event: &Value) -> String {
    let (namespace, regarding) = (&event["metadata"]["namespace"], &event["regarding"]);
    format!("{} {}/{}", text(&regarding["kind"]), text(namespace), text(&regarding["name"]))
}
