//! The loop's looks, one by one, before a server on the loopback that keeps one Eviction as an API server does.

use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use belay_decide::hold::{HoldReason, hold_name};
use belay_decide::lifecycle;
use jiff::SignedDuration;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};

use super::*;
use crate::cluster::index::{BusyPodSink, Index, IndexSink, Policy, Target};
use crate::cluster::subset::{DeploymentSubset, PodSubset, ReplicaSetSubset};
use crate::cluster::watch::Sink as _;
use crate::cluster::{project, project_busy, project_lifecycle};
use crate::testing::{self, ApiServer, Asked, Reply};

const RULES: &str = "
- name: plain
  podSelector: {matchLabels: {app: plain}}
  states: [{state: Busy, when: has(pod.metadata.annotations.work)}]
";

const CREATE: &str = "POST /apis/belay.dev/v1alpha1/namespaces/shop/evictionholds";
const DELETE: &str = "DELETE /apis/belay.dev/v1alpha1/namespaces/shop/evictionholds/web-1-p";
const NOTE: &str = "PATCH /apis/belay.dev/v1alpha1/namespaces/shop/evictionholds/web-1-p/status";
const RESPOND: &str = "PATCH /apis/lifecycle.k8s.io/v1alpha1/namespaces/shop/evictions/e/status";
const GET_POD: &str = "GET /api/v1/namespaces/shop/pods/web-1";

/// The Eviction and the pod as they stand in the API.
#[derive(Clone)]
struct Stored {
    eviction: Arc<Mutex<Value>>,
    pod: Arc<Mutex<Value>>,
    /// No hold is taken.
    refuses: Arc<AtomicBool>,
}

impl Stored {
    fn answer(&self, asked: &Asked) -> Reply {
        match asked.what.as_str() {
            CREATE if self.refuses.load(Ordering::Relaxed) => Reply::Status(403, "exceeded quota"),
            CREATE => Reply::Json(asked.body.clone()),
            DELETE => Reply::Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}})),
            NOTE => Reply::Json(hold("2", &json!({}))),
            GET_POD => Reply::Json(self.pod.lock().clone()),
            RESPOND => {
                let mut eviction = self.eviction.lock();
                if eviction["metadata"]["resourceVersion"] != asked.body["metadata"]["resourceVersion"] {
                    return Reply::Status(409, "the object has been modified");
                }
                // As a strategic merge patch does by the entries' names.
                let ours = asked.body["status"]["responders"][0].clone();
                json_patch::merge(&mut eviction["status"]["responders"][1], &ours);
                let version: u64 = eviction["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                eviction["metadata"]["resourceVersion"] = json!((version + 1).to_string());
                Reply::Json(eviction.clone())
            }
            _ => Reply::Status(403, "who asks this?"),
        }
    }
}

struct Stage {
    api: ApiServer,
    stored: Stored,
    work: Loop,
}

fn key() -> PodKey {
    PodKey::new("shop", "web-1")
}

fn ago(seconds: i64) -> Timestamp {
    Clock::wall().saturating_sub(SignedDuration::from_secs(seconds)).unwrap()
}

fn pod(app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "web-1", "uid": "p", "resourceVersion": "1",
            "creationTimestamp": ago(3600), "labels": {"app": app, "pod-template-hash": "h"}, "annotations": {},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-h", "uid": "r",
                "controller": true}]},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ago(3600)}]},
    })
}

fn eviction() -> Value {
    json!({
        "apiVersion": "lifecycle.k8s.io/v1alpha1", "kind": "Eviction",
        "metadata": {"namespace": "shop", "name": "e", "uid": "eu", "resourceVersion": "1"},
        "spec": {"target": {"pod": {"name": "web-1", "uid": "p"}}},
        "status": {
            "requesters": [{"name": "acme.io/upgrade", "intent": "Eviction"}],
            "targetResponders": [
                {"name": "imperative-eviction.k8s.io/evictor", "priority": 100, "state": "Inactive"},
                {"name": lifecycle::RESPONDER, "priority": lifecycle::PRIORITY, "state": "Active"}],
            "responders": [{"name": "imperative-eviction.k8s.io/evictor"},
                {"name": lifecycle::RESPONDER, "startTime": ago(60)}],
        },
    })
}

/// The hold that the Eviction began, with this status.
fn hold(version: &str, status: &Value) -> Value {
    json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
        "metadata": {"namespace": "shop", "name": "web-1-p", "uid": "hu", "resourceVersion": version},
        "spec": {
            "victim": {"name": "web-1", "uid": "p", "node": "node-1", "templateHash": "h"},
            "workload": {"group": "apps", "kind": "Deployment", "name": "web", "uid": "d"}, "reason": "Handover",
            "trigger": "EvictionRequest", "evictor": "acme.io/upgrade",
            "requestedAt": ago(300), "deadline": ago(-300)},
        "status": status,
    })
}

/// Everything is known, and the Deployment protected.
async fn stage(pod: Value) -> Stage {
    let (eviction, pod) = (Arc::new(Mutex::new(eviction())), Arc::new(Mutex::new(pod)));
    let stored = Stored { eviction, pod, refuses: Arc::default() };
    let answering = stored.clone();
    let api = ApiServer::start(move |asked| answering.answer(asked)).await;
    let config = testing::config_of_rules(RULES);
    let (rules, _) = config.busy_hints.compile().unwrap();
    let (index, dirty) = Index::following(rules);
    let resources = api.resources(&[]).await;
    let (applier, leadership, metrics) = testing::leading_applier(&api, resources.clone(), None);
    let shared = Shared {
        client: api.client.clone(),
        index,
        dirty,
        applier,
        settings: Arc::new(ArcSwap::from_pointee(Settings::of(&config, "belay-system"))),
        leadership,
        metrics,
        health: Vec::new(),
    };
    let work = Loop {
        shared,
        evictions: Health::new("Evictions", Gauge::default()),
        rule_health: RuleHealth::default(),
        live: LiveReader::new(api.client.clone(), resources).patient(),
        written: Written::default(),
    };
    work.evictions.absent();
    let stage = Stage { api, stored, work };
    stage.see_workload();
    stage.see_eviction();
    stage
}

impl Stage {
    fn sink(&self) -> IndexSink {
        IndexSink(self.work.shared.index.clone())
    }

    fn see_workload(&self) {
        let mut sink = self.sink();
        let deployment = json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "d", "generation": 1, "resourceVersion": "1",
                "annotations": {"deployment.kubernetes.io/revision": "1"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
        });
        sink.apply(project::deployment(&serde_json::from_value::<DeploymentSubset>(deployment).unwrap()));
        let set = json!({"metadata": {"namespace": "shop", "name": "web-h", "uid": "r",
            "annotations": {"deployment.kubernetes.io/revision": "1"}, "labels": {"pod-template-hash": "h"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]}});
        sink.apply(project::replica_set(&serde_json::from_value::<ReplicaSetSubset>(set).unwrap()));
        let policy: crate::api::HandoverPolicy = serde_json::from_value(json!({
            "apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
            "metadata": {"namespace": "shop", "name": "web"}, "spec": {"targetRef": {"name": "web"}},
        }))
        .unwrap();
        let view = project::policy(&policy);
        let (resource_version, uid) = ("1".to_owned(), "h".to_owned());
        let target = Target::of(Some("web"), None);
        sink.apply(Policy { view, target, generation: 1, resource_version, uid, status: None });
        self.see_pod();
    }

    fn see_pod(&self) {
        let pod = self.stored.pod.lock().clone();
        self.sink().apply(project::pod(&serde_json::from_value::<PodSubset>(pod.clone()).unwrap(), false));
        if pod["metadata"]["labels"]["app"] == "plain" {
            let index = self.work.shared.index.clone();
            let pod = project_busy::pod(&serde_json::from_value(pod).unwrap(), &index.rules()[0], Clock::wall());
            BusyPodSink { index, rule: 0 }.apply(pod);
        }
    }

    fn see_eviction(&self) {
        let eviction = self.stored.eviction.lock().clone();
        self.sink().apply(project_lifecycle::eviction(&serde_json::from_value(eviction).unwrap()));
    }

    fn see_hold(&self, status: &Value) {
        let hold: crate::api::EvictionHold = serde_json::from_value(hold("1", status)).unwrap();
        self.sink().apply(project::hold(&hold));
    }

    /// What Belay has reported.
    fn reported(&self) -> Value {
        self.stored.eviction.lock()["status"]["responders"][1].clone()
    }

    /// Looks once; what was asked of the API server, and in how many seconds it is to be looked at again.
    async fn look(&self) -> (Vec<String>, Option<i64>) {
        let before = Clock::wall();
        let wake = self.work.look(&key()).await;
        let asked = self.api.asked().into_iter().map(|asked| asked.what).collect();
        (asked, wake.map(|at| at.duration_since(before).as_secs_f64().round() as i64))
    }

    fn counted(&self, result: &str) -> bool {
        let text = self.work.shared.metrics.encode().unwrap();
        text.lines().any(|line| line == format!("belay_eviction_requests_total{{result=\"{result}\"}} 1"))
    }
}

fn nothing() -> Vec<String> {
    Vec::new()
}

#[tokio::test]
async fn a_turn_goes_from_the_hold_over_reports_to_completion() {
    let stage = stage(pod("web")).await;
    assert_eq!(stage.work.take(), BTreeSet::from([key()]), "an Eviction is looked at when it comes");
    assert_eq!(stage.look().await, (vec![CREATE.into()], Some(30)));

    stage.see_hold(&json!({}));
    assert_eq!(stage.work.take(), BTreeSet::from([key()]), "and when its hold does");
    assert_eq!(stage.look().await, (vec![RESPOND.into()], Some(120)));
    assert!(stage.reported()["heartbeatTime"].is_string() && stage.counted("Held"), "{}", stage.reported());
    assert_eq!(stage.look().await, (nothing(), Some(2)), "not before the own write is seen");
    stage.see_eviction();
    let (asked, wake) = stage.look().await;
    assert_eq!(asked, nothing());
    // By the report's own time, which is of whole seconds.
    assert!(wake.is_some_and(|wake| (100..=120).contains(&wake)), "{wake:?}");

    stage.see_hold(&json!({"phase": "Active", "message": "replacement web-2 is starting"}));
    let (asked, wake) = stage.look().await;
    assert_eq!(asked, nothing(), "reports keep their distance");
    assert!(wake.is_some_and(|wake| (1..=20).contains(&wake)), "{wake:?}");
    let status = json!({"phase": "Released", "outcome": "HandedOver", "message": "replacement web-2 is available",
        "fromRevision": 1, "releasedAt": Clock::wall()});
    stage.see_hold(&status);
    assert_eq!(stage.look().await.0, [NOTE, RESPOND], "completion does not wait; its victim is still wanted gone");
    assert_eq!(stage.reported()["message"], "HandedOver: replacement web-2 is available");
    assert!(stage.reported()["completionTime"].is_string() && stage.counted("Completed"), "{}", stage.reported());
    stage.stored.eviction.lock()["status"]["targetResponders"][1]["state"] = json!("Completed");
    stage.see_eviction();
    let mut noted = hold("2", &json!({"phase": "Released", "outcome": "HandedOver", "fromRevision": 1}));
    noted["status"]["lastRequestedAt"] = json!(Clock::wall());
    let noted: crate::api::EvictionHold = serde_json::from_value(noted).unwrap();
    stage.sink().apply(project::hold(&noted));
    assert_eq!(stage.look().await.0, nothing());
}

#[tokio::test]
async fn an_eviction_that_changed_meanwhile_is_looked_at_again_soon() {
    let stage = stage(pod("web")).await;
    stage.see_hold(&json!({}));
    stage.stored.eviction.lock()["metadata"]["resourceVersion"] = json!("9");
    assert_eq!(stage.look().await, (vec![RESPOND.into()], Some(2)));
    assert!(!stage.counted("Held"), "nothing was told");
    stage.see_eviction();
    assert_eq!(stage.look().await.0, [RESPOND]);
    assert!(stage.counted("Held"));
}

#[tokio::test]
async fn a_hold_that_is_refused_is_tried_again_at_leisure_and_the_turn_ended_when_it_was_refused_for_long() {
    let stage = stage(pod("web")).await;
    stage.stored.refuses.store(true, Ordering::Relaxed);
    let began = |seconds| {
        stage.stored.eviction.lock()["status"]["responders"][1]["startTime"] = json!(ago(seconds));
        stage.see_eviction();
    };
    began(10);
    assert_eq!(stage.look().await, (vec![CREATE.into()], Some(15)), "somebody has to mend it first");
    assert!(stage.reported()["completionTime"].is_null());
    began(31);
    assert_eq!(stage.look().await, (vec![CREATE.into(), RESPOND.into()], Some(15)));
    let message = "NotRecorded: the hold could not be recorded; an eviction of the pod is answered by the webhook";
    assert_eq!(stage.reported()["message"], message);
    assert!(stage.reported()["completionTime"].is_string() && stage.counted("Completed"), "{}", stage.reported());
}

#[tokio::test]
async fn a_leader_that_comes_late_makes_the_hold_all_the_same() {
    let stage = stage(pod("web")).await;
    stage.stored.eviction.lock()["status"]["responders"][1]["startTime"] = json!(ago(600));
    stage.see_eviction();
    assert_eq!(stage.look().await, (vec![CREATE.into()], Some(30)));
    assert!(stage.reported()["completionTime"].is_null());
}

#[tokio::test]
async fn what_is_not_protected_is_left_to_the_next_responder() {
    let stage = stage(pod("web")).await;
    let mut unprotected = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "d",
        "annotations": {"belay.dev/handover": "Off"}}});
    unprotected["spec"] = json!({"replicas": 1});
    stage.sink().apply(project::deployment(&serde_json::from_value::<DeploymentSubset>(unprotected).unwrap()));
    assert_eq!(stage.look().await, (vec![RESPOND.into()], None));
    assert_eq!(stage.reported()["message"], "NotProtected: nothing holds the pod");
}

#[tokio::test]
async fn a_busy_pod_is_held_and_an_idle_one_looked_at_once_more_live() {
    let mut busy = pod("plain");
    busy["metadata"]["annotations"] = json!({"work": "yes"});
    busy["metadata"]["ownerReferences"] = json!([]);
    let stage = stage(busy).await;
    assert_eq!(stage.look().await.0, [CREATE]);
    let mut busy_hold = hold("1", &json!({"phase": "Active", "message": "it is busy"}));
    busy_hold["metadata"]["name"] = json!(hold_name(HoldReason::Busy, "web-1", "p"));
    busy_hold["spec"]["reason"] = json!("Busy");
    let busy_hold: crate::api::EvictionHold = serde_json::from_value(busy_hold).unwrap();
    stage.sink().apply(project::hold(&busy_hold));
    assert_eq!(stage.look().await.0, [RESPOND]);
    stage.see_eviction();

    // Its job is over by the cache, and not by the API server.
    let with_job = stage.stored.pod.lock().clone();
    stage.stored.pod.lock()["metadata"]["annotations"] = json!({});
    stage.see_pod();
    *stage.stored.pod.lock() = with_job;
    assert_eq!(stage.look().await.0, [GET_POD], "another job has begun");
    stage.stored.pod.lock()["metadata"]["annotations"] = json!({});
    assert_eq!(stage.look().await.0, [GET_POD, RESPOND]);
    assert_eq!(stage.reported()["message"], "Idle: nothing holds the pod");
}

#[tokio::test]
async fn a_hold_is_forgotten_when_its_request_is_withdrawn_unless_that_is_not_known_or_it_has_begun() {
    let gone = async |began: Value, known: bool| {
        let mut stage = stage(pod("web")).await;
        stage.see_hold(&began);
        let eviction = stage.stored.eviction.lock().clone();
        if !known {
            stage.work.evictions = Health::new("Evictions", Gauge::default());
        }
        stage.work.take();
        stage.sink().delete(project_lifecycle::eviction(&serde_json::from_value(eviction).unwrap()));
        assert_eq!(stage.work.take(), BTreeSet::from([key()]), "looked at when its Eviction goes");
        let asked = stage.look().await.0;
        (asked, stage.counted("Withdrawn"))
    };
    assert_eq!(gone(json!({"phase": "Active", "message": "waiting"}), true).await, (vec![DELETE.into()], true));
    assert_eq!(gone(json!({"phase": "Active", "message": "waiting"}), false).await, (nothing(), false));
    assert_eq!(gone(json!({"phase": "Active", "fromRevision": 1}), true).await, (nothing(), false));
}

#[tokio::test]
async fn a_new_leader_looks_at_every_pod_that_evictions_concern() {
    let stage = stage(pod("web")).await;
    stage.see_hold(&json!({}));
    stage.work.take();
    stage.work.touch_all();
    assert_eq!(stage.work.take(), BTreeSet::from([key()]));
}
