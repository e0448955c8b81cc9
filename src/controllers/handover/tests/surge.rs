//! A surge from its first write to its last, with the objects that an API server would keep.

use std::collections::BTreeMap;

use belay_decide::cost::COST_ANNOTATION;
use jiff::SignedDuration;
use parking_lot::Mutex;

use super::*;
use crate::cluster::subset::PodSubset;

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/shop/deployments/web";
const HOLD: &str = "/apis/belay.dev/v1alpha1/namespaces/shop/evictionholds/web-a-uidofweb";
const PODS: &str = "/api/v1/namespaces/shop/pods";

/// Stands among the objects while the Deployment may not be written to.
const REFUSED: &str = "refused";

/// Objects by their paths.
#[derive(Clone, Default)]
struct Stored(Arc<Mutex<BTreeMap<String, Value>>>);

impl Stored {
    fn put(&self, path: &str, object: Value) {
        self.0.lock().insert(path.to_owned(), object);
    }

    fn get(&self, path: &str) -> Value {
        self.0.lock().get(path).cloned().unwrap_or_default()
    }

    fn remove(&self, path: &str) {
        self.0.lock().remove(path);
    }

    /// A write, by whomever: what it makes of the object.
    fn write(&self, path: &str, merge: &Value) -> Value {
        let mut all = self.0.lock();
        let object = all.get_mut(path).expect("it is there");
        json_patch::merge(object, merge);
        let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        object.clone()
    }

    fn pods(&self) -> Vec<Value> {
        let all = self.0.lock();
        all.iter().filter(|(path, _)| path.starts_with(PODS)).map(|(_, pod)| pod.clone()).collect()
    }

    fn answer(&self, asked: &Asked) -> Reply {
        let (method, path) = asked.what.split_once(' ').unwrap();
        let path = path.strip_suffix("/status").unwrap_or(path);
        if (method, path) == ("GET", PODS) {
            return Reply::Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"},
                "items": self.pods()}));
        }
        if method == "PATCH" && path == DEPLOYMENT && !self.get(REFUSED).is_null() {
            return Reply::Status(403, "deployments.apps \"web\" is forbidden");
        }
        let stored = self.get(path);
        if method != "PATCH" || stored.is_null() {
            return Reply::Status(404, "there is no such thing");
        }
        let wanted = &asked.body["metadata"];
        if ["uid", "resourceVersion"].iter().any(|field| stored["metadata"][field] != wanted[field]) {
            return Reply::Status(409, "the object has been modified");
        }
        Reply::Json(self.write(path, &asked.body))
    }

    /// The watches bring everything as it stands.
    fn see(&self, index: &Index) {
        let mut sink = IndexSink(index.clone());
        let deployment: DeploymentSubset = serde_json::from_value(self.get(DEPLOYMENT)).unwrap();
        sink.apply(project::deployment(&deployment));
        let pods = self.pods().into_iter().map(|pod| serde_json::from_value::<PodSubset>(pod).unwrap());
        sink.replace(pods.map(|pod| project::pod(&pod, false)).collect());
        let hold: crate::api::EvictionHold = serde_json::from_value(self.get(HOLD)).unwrap();
        sink.apply(project::hold(&hold));
    }
}

fn ago(minutes: i64) -> Timestamp {
    Clock::wall().saturating_sub(SignedDuration::from_mins(minutes)).unwrap()
}

/// A pod of the Deployment that has served since then, on a node of its own.
fn serving(name: &str, since: Timestamp) -> (String, Value) {
    let name = format!("web-{name}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid of {name}"), "resourceVersion": "1",
            "creationTimestamp": since, "labels": {"app": "web", "pod-template-hash": "1"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "s",
                "controller": true}]},
        "spec": {"nodeName": format!("node of {name}")},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]},
    });
    (format!("{PODS}/{name}"), pod)
}

/// So many replicas are there, by the Deployment controller's word.
fn counted(replicas: i32) -> Value {
    json!({"status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas,
        "availableReplicas": replicas}})
}

/// Three replicas, of which the eviction of `web-a` was asked for; `bent` answers before the API server does.
async fn drained(bent: impl Fn(&Stored, &Index, &Asked) + Send + Sync + 'static) -> (Stage, Stored) {
    let stored = Stored::default();
    stored.put(
        DEPLOYMENT,
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"namespace": "shop", "name": "web", "uid": "d", "resourceVersion": "1", "generation": 1,
                "annotations": {"belay.dev/handover": "Scale", "deployment.kubernetes.io/revision": "1"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}},
        }),
    );
    stored.write(DEPLOYMENT, &counted(3));
    for name in ["a", "b", "c"] {
        let (path, pod) = serving(name, ago(60));
        stored.put(&path, pod);
    }
    stored.put(
        HOLD,
        json!({
            "apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
            "metadata": {"namespace": "shop", "name": "web-a-uidofweb", "uid": "e", "resourceVersion": "1"},
            "spec": {"victim": {"name": "web-a", "uid": "uid of web-a", "node": "node of web-a", "templateHash": "1"},
                "reason": "Handover", "evictor": "drainer", "requestedAt": ago(0), "deadline": ago(-10),
                "workload": {"group": "apps", "kind": "Deployment", "name": "web", "uid": "d"}},
        }),
    );
    let shared: Arc<std::sync::OnceLock<Index>> = Arc::default();
    let (answering, index) = (stored.clone(), Arc::clone(&shared));
    let stage = super::stage(move |asked| {
        let reply = answering.answer(asked);
        if let Some(index) = index.get() {
            bent(&answering, index, asked);
        }
        reply
    })
    .await;
    let set = json!({"metadata": {"namespace": "shop", "name": "web-1", "uid": "s",
        "annotations": {"deployment.kubernetes.io/revision": "1"}, "labels": {"pod-template-hash": "1"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d",
            "controller": true}]}});
    let seen = stage.work.shared.index.clone();
    IndexSink(seen.clone()).apply(project::replica_set(&serde_json::from_value::<ReplicaSetSubset>(set).unwrap()));
    shared.set(seen).ok().expect("once");
    (stage, stored)
}

/// What was asked for since this was last called, but for Events, which come when they may.
fn asked(stage: &Stage) -> Vec<String> {
    let asked = stage.api.asked().into_iter().map(|asked| asked.what);
    asked.filter(|what| !what.contains("events.k8s.io")).collect()
}

/// Looks until there is nothing more to be written; what was asked for meanwhile, in its order.
async fn settle(stage: &Stage, stored: &Stored) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..20 {
        stored.see(&stage.work.shared.index);
        stage.work.look(&key()).await;
        let asked = asked(stage);
        let is_quiet = !asked.iter().any(|what| what.starts_with("PATCH"));
        all.extend(asked);
        if is_quiet {
            return all;
        }
    }
    panic!("it does not come to rest: {all:#?}");
}

fn patched(path: &str) -> String {
    format!("PATCH {path}")
}

#[tokio::test]
async fn a_victim_is_marked_let_go_and_the_replicas_put_back_each_by_what_was_read_just_then() {
    let (stage, stored) = drained(|_, _, _| {}).await;
    let status = patched(&format!("{HOLD}/status"));
    let (deployment, victim) = (patched(DEPLOYMENT), patched(&format!("{PODS}/web-a")));
    let list = format!("GET {PODS}");

    let asked = settle(&stage, &stored).await;
    assert_eq!(asked[..2], [status.clone(), deployment.clone()], "the hold is seen to be as it was before the surge");
    let raised = stored.get(DEPLOYMENT);
    assert_eq!(raised["spec"]["replicas"], 4);
    assert!(raised["metadata"]["annotations"][SURGE_ANNOTATION].is_string());
    assert!(asked.contains(&victim), "{asked:#?}");
    assert_eq!(stored.get(&format!("{PODS}/web-a"))["metadata"]["annotations"][COST_ANNOTATION], "-1048576");

    // Not even another pod that serves is enough, where it served before.
    assert_eq!(stored.get(HOLD)["status"]["phase"], "Active");
    let (path, stand_in) = serving("d", Clock::wall());
    stored.put(&path, stand_in);
    stored.write(DEPLOYMENT, &counted(4));
    let asked = settle(&stage, &stored).await;
    assert_eq!(asked[..3], [list, deployment.clone(), status], "read, written into the record, and only then let go");
    assert_eq!(stored.get(DEPLOYMENT)["spec"]["replicas"], 3, "the ReplicaSet takes it");
    let hold = stored.get(HOLD);
    assert_eq!((&hold["status"]["phase"], &hold["status"]["outcome"]), (&json!("Released"), &json!("HandedOver")));

    stored.remove(&format!("{PODS}/web-a"));
    stored.write(DEPLOYMENT, &counted(3));
    settle(&stage, &stored).await;
    let quiet = stored.get(DEPLOYMENT);
    assert_eq!((&quiet["spec"]["replicas"], quiet["metadata"]["annotations"].get(SURGE_ANNOTATION)), (&json!(3), None));
    assert_eq!(stored.get(HOLD)["status"]["phase"], "Completed");
}

#[tokio::test]
async fn a_surge_that_is_refused_is_said_in_the_hold_and_in_one_event() {
    let (stage, stored) = drained(|_, _, _| {}).await;
    stored.put(REFUSED, json!(true));
    let look = async || {
        stored.see(&stage.work.shared.index);
        let before = Clock::wall();
        let wake = stage.work.look(&key()).await.expect("it is looked at again");
        (wake.duration_since(before).as_secs_f64().round() as i64, stored.get(HOLD)["status"]["message"].clone())
    };
    let (again, message) = look().await;
    assert_eq!((again, message), (2, json!("a replica is about to be added to Deployment web to stand in for it")));
    let refused = "no replica can be added to stand in for it, tried again and again: missing right to write Deployment \
        shop/web: deployments.apps \"web\" is forbidden; grant it in the chart's RBAC";
    for _ in 0..2 {
        assert_eq!(look().await, (15, json!(refused)));
    }
    let events = async {
        loop {
            let asked = stage.api.asked().into_iter().map(|asked| asked.body);
            let reasons: Vec<_> = asked.filter_map(|body| body["reason"].as_str().map(str::to_owned)).collect();
            if !reasons.is_empty() {
                return reasons;
            }
            tokio::task::yield_now().await;
        }
    };
    let events = tokio::time::timeout(std::time::Duration::from_secs(30), events).await.expect("it is told");
    assert_eq!(events.iter().filter(|reason| *reason == "SurgeRefused").count(), 1, "{events:?}");

    stored.remove(REFUSED);
    settle(&stage, &stored).await;
    assert_eq!(stored.get(DEPLOYMENT)["spec"]["replicas"], 4);
    let message = stored.get(HOLD)["status"]["message"].clone();
    assert!(!message.as_str().unwrap().contains("no replica"), "{message}");
}

#[tokio::test]
async fn nothing_is_decided_on_pods_that_were_read_before_the_deployment_changed() {
    let (stage, stored) = drained(|stored, index, asked| {
        // While the pods are read somebody else writes to the Deployment, and the watch brings that first.
        if asked.what == format!("GET {PODS}") && stored.pods().len() == 4 {
            stored.write(DEPLOYMENT, &json!({"metadata": {"labels": {"team": "shop"}}}));
            stored.see(index);
        }
    })
    .await;
    settle(&stage, &stored).await;
    let (path, stand_in) = serving("d", Clock::wall());
    stored.put(&path, stand_in);
    stored.write(DEPLOYMENT, &counted(4));
    stored.see(&stage.work.shared.index);
    let before = Clock::wall();
    let wake = stage.work.look(&key()).await.expect("it is looked at again");
    assert!(wake.duration_since(before) <= RETRY + SignedDuration::from_secs(1), "soon");
    let asked = asked(&stage);
    assert!(asked.contains(&format!("GET {PODS}")), "{asked:#?}");
    assert!(!asked.contains(&patched(DEPLOYMENT)), "nothing is decided on them: {asked:#?}");
    assert_eq!(stored.get(HOLD)["status"]["phase"], "Active");
}

#[tokio::test]
async fn switched_off_the_controller_puts_replicas_back_by_itself() {
    let (stage, stored) = drained(|_, _, _| {}).await;
    settle(&stage, &stored).await;
    assert_eq!(stored.get(DEPLOYMENT)["spec"]["replicas"], 4);
    let off = Settings::of(&testing::config("evictionHold: {enabled: false}"), "belay-system");
    stage.work.shared.settings.store(Arc::new(off));
    stage.work.shared.dirty.take_workloads();
    stage.work.touch_all();
    assert_eq!(stage.work.take(), BTreeSet::from([key()]), "it is looked at when the configuration changes");
    settle(&stage, &stored).await;
    let back = stored.get(DEPLOYMENT);
    assert_eq!((&back["spec"]["replicas"], back["metadata"]["annotations"].get(SURGE_ANNOTATION)), (&json!(3), None));
    let hold = stored.get(HOLD);
    assert_eq!((&hold["status"]["phase"], &hold["status"]["outcome"]), (&json!("Released"), &json!("NotNeeded")));
    let cost = stored.get(&format!("{PODS}/web-a"))["metadata"]["annotations"].get(COST_ANNOTATION).cloned();
    assert_eq!(cost, None, "and nobody is marked any more");
}
