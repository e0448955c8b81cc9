//! Evictions of pods that busy rules govern, before a real client of an API server on the loopback.

mod cached;
mod live;
mod unseen;

use std::collections::BTreeMap;

use belay_decide::hold::{HoldReason, hold_name};
use jiff::{SignedDuration, Timestamp};
use prometheus_client::metrics::gauge::Gauge;

use super::*;
use crate::cluster::index::{BusyPodSink, LinkedSink, OwnerSink};
use crate::cluster::project_busy;
use crate::cluster::watch::Health;
use crate::testing::{ApiServer, Asked, Reply};

/// A rule for each way to ask.
const RULES: &str = "
- name: runner
  podSelector: {matchLabels: {rule: runner}}
  owner: {group: ci.example, kind: Runner, jobFields: [status.job]}
  linkedPods: {labelKey: job-of}
  states:
    - {state: Done, when: owner.status.phase == 'Done'}
    - {state: Busy, when: linked.size() > 0 || has(owner.status.job)}
    - {state: Starting, when: owner.status.phase == 'Starting'}
  eviction: {idle: DeleteOwner}
- name: member
  podSelector: {matchLabels: {rule: member}}
  owner: {group: ci.example, kind: Pool, through: {group: apps, kind: Set}}
  states: [{state: Busy, when: owner.status.busy}]
- name: plain
  podSelector: {matchLabels: {rule: plain}}
  states: [{state: Busy, when: has(pod.metadata.annotations.work)}]
- name: easy
  podSelector: {matchLabels: {rule: easy}}
  owner: {group: ci.example, kind: Runner}
  states: [{state: Busy, when: has(owner.status.job)}]
  onUnknown: Idle
  eviction: {busy: Allow}
";
const RUNNER: usize = 0;
const MEMBER: usize = 1;
const PLAIN: usize = 2;
const EASY: usize = 3;

/// The pod of the recorded eviction.
const NAME: &str = "web-d7f965486-ppzlz";
const POD: &str = "GET /api/v1/namespaces/default/pods/web-d7f965486-ppzlz";
const LINKED: &str = "GET /api/v1/namespaces/default/pods";
const OWNER: &str = "GET /apis/ci.example/v2/namespaces/default/runners/r";
const SET: &str = "GET /apis/apps/v1/namespaces/default/sets/s";
const POOL: &str = "GET /apis/ci.example/v1/pools/p";

/// So many minutes ago.
fn ago(minutes: i64) -> Timestamp {
    Timestamp::from_second(Clock::wall().as_second() - minutes * 60).unwrap()
}

/// The recorded pod, ten hours old and ready, of this controller, with these annotations.
fn pod(uid: &str, controller: &Value, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": NAME, "uid": uid, "resourceVersion": "1",
            "creationTimestamp": ago(600), "ownerReferences": [controller], "annotations": annotations},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": ago(599)}]},
    })
}

fn controller(group_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": group_version, "kind": kind, "name": name, "uid": uid, "controller": true})
}

fn of_runner() -> Value {
    controller("ci.example/v2", "Runner", "r", "r-1")
}

fn runner(uid: &str, status: &Value) -> Value {
    json!({"apiVersion": "ci.example/v2", "kind": "Runner",
        "metadata": {"namespace": "default", "name": "r", "uid": uid}, "status": status})
}

fn set() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Set", "metadata": {"namespace": "default", "name": "s", "uid": "s-1",
        "ownerReferences": [controller("ci.example/v1", "Pool", "p", "pool-1")]}})
}

fn pool(busy: bool) -> Value {
    json!({"apiVersion": "ci.example/v1", "kind": "Pool", "metadata": {"name": "p", "uid": "pool-1"},
        "status": {"busy": busy}})
}

fn job(minutes_old: i64, phase: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": "job", "uid": "j", "labels": {"job-of": NAME},
            "creationTimestamp": ago(minutes_old)},
        "status": {"phase": phase}})
}

fn list(items: &[Value]) -> Reply {
    Reply::Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

/// An API server that knows these answers, and says of the rest that it is not there.
async fn api(answers: &[(&'static str, Reply)]) -> ApiServer {
    let answers: BTreeMap<_, _> = answers.iter().cloned().collect();
    ApiServer::start(move |asked: &Asked| {
        answers.get(asked.what.as_str()).cloned().unwrap_or(Reply::Status(404, "there is no such thing"))
    })
    .await
}

async fn ruled(api: Option<&ApiServer>) -> Webhook {
    ruled_with("", api, |_| {}).await
}

async fn ruled_with(more: &str, api: Option<&ApiServer>, set_up: impl FnOnce(&mut Handlers)) -> Webhook {
    let rules = RULES.replace('\n', "\n    ");
    let config = testing::config(&format!("{more}\nbusyHints:\n  enabled: true\n  rules:\n    {rules}"));
    let live = match api {
        Some(api) => {
            let kinds = [("ci.example", "Runner"), ("ci.example", "Pool"), ("apps", "Set")];
            Some(LiveReader::new(api.client.clone(), api.resources(&kinds).await).patient())
        }
        None => None,
    };
    Webhook::with(&config, |handlers| {
        handlers.live = live;
        set_up(handlers);
    })
}

impl Webhook {
    /// The cache knows this pod, by the watch of its rule's pods and by that of all pods.
    fn knows_pod(&self, rule: usize, pod: Value) {
        let index = self.handlers.index.clone();
        let view = project::pod(&serde_json::from_value::<PodSubset>(pod.clone()).unwrap(), false);
        IndexSink(index.clone()).apply(view);
        let pod = project_busy::pod(&serde_json::from_value(pod).unwrap(), &index.rules()[rule], Clock::wall());
        BusyPodSink { index, rule }.apply(pod);
    }

    /// The cache knows this owner, or what leads to one.
    fn knows_owner(&self, owner: Value) {
        let group = owner["apiVersion"].as_str().unwrap().split('/').next().unwrap();
        let kind = belay_decide::busy::GroupKind::new(group, owner["kind"].as_str().unwrap());
        let mut sink = OwnerSink { index: self.handlers.index.clone(), kind };
        let owner = project_busy::owner(&serde_json::from_value(owner).unwrap(), &sink.fields());
        sink.apply(owner);
    }

    /// The cache knows this hold of the recorded pod.
    fn knows_hold(&self, reason: HoldReason, phase: &str) {
        let hold = json!({
            "apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
            "metadata": {"namespace": "default", "name": hold_name(reason, NAME, "p"), "uid": "e"},
            "spec": {"victim": {"name": NAME, "uid": "p"}, "reason": reason.as_str(),
                "requestedAt": ago(5), "deadline": ago(-60)},
            "status": {"phase": phase},
        });
        let hold: crate::api::EvictionHold = serde_json::from_value(hold).unwrap();
        IndexSink(self.handlers.index.clone()).apply(project::hold(&hold));
    }

    /// The pod of this rule, as idle as the cache can know.
    fn knows_idle(&self, rule: usize) {
        let controller = if rule == MEMBER { controller("apps/v1", "Set", "s", "s-1") } else { of_runner() };
        self.knows_pod(rule, pod("p", &controller, &json!({})));
        self.knows_owner(runner("r-1", &json!({"phase": "Online"})));
        self.knows_owner(set());
        self.knows_owner(pool(false));
    }

    /// Asks for the recorded eviction; decision and reason, as counted, and the response.
    async fn evict(&self, review: &str) -> (String, Value) {
        let before = self.counted();
        let response = self.review(EVICTION_PATH, review).await;
        let after = self.counted();
        let counted: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
        let counted = match counted.as_slice() {
            [line] => line.replace("decision=\"", "").replace("\",reason=\"", " "),
            [] => "uncounted".to_owned(),
            more => panic!("one answer is counted once: {more:?}"),
        };
        let (decision, _) = counted.split_once('"').unwrap_or((&counted, ""));
        let is_held = decision.starts_with("Hold");
        assert_eq!(response["allowed"], json!(!is_held), "{response}");
        (decision.to_owned(), response)
    }

    fn counted(&self) -> Vec<String> {
        let text = self.handlers.metrics.encode().unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("belay_eviction_reviews_total{"));
        lines.map(str::to_owned).collect()
    }

    /// What would be recorded: reason and workload of each hold.
    fn recorded(&mut self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        while let Ok(entry) = self.records.try_recv() {
            let What::Hold(spec) = entry.what else { panic!("{entry:?}") };
            assert_eq!((entry.namespace.as_str(), spec.victim_name.as_str()), ("default", NAME));
            assert_eq!((spec.victim_uid.as_str(), spec.victim_node.as_str()), ("p", "node-1"));
            assert_eq!(spec.evictor, "drainer");
            let workload = &spec.workload;
            let owner = format!("{}.{} {} {}", workload.kind, workload.group, workload.name, workload.uid);
            all.push((spec.reason.as_str(), owner));
        }
        all
    }
}

fn message(response: &Value) -> &str {
    response["status"]["message"].as_str().unwrap_or_default()
}
