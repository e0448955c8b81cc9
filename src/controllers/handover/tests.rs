//! The loop's looks, one by one, before a server on the loopback.

mod surge;

use arc_swap::ArcSwap;
use belay_decide::action::ObjectRef;
use belay_decide::handover::surge::{SURGE_ANNOTATION, render};
use belay_decide::view::Governor;
use serde_json::{Value, json};

use super::*;
use crate::cluster::index::{AutoscalerSink, Index, IndexSink};
use crate::cluster::subset::{DeploymentSubset, ReplicaSetSubset};
use crate::cluster::watch::Sink as _;
use crate::cluster::{project, project_autoscaler};
use crate::settings::Settings;
use crate::testing::{self, ApiServer, Asked, Reply};

const PODS: &str = "GET /api/v1/namespaces/shop/pods";
const DEPLOYMENT: &str = "PATCH /apis/apps/v1/namespaces/shop/deployments/web";

fn key() -> WorkloadKey {
    WorkloadKey::new("shop", "web")
}

/// A pod of this ReplicaSet, which Belay gave a deletion cost.
fn pod(name: &str, set: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid of {name}"), "resourceVersion": "7",
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": "-9",
                "belay.dev/managed": r#"{"controller.kubernetes.io/pod-deletion-cost":"-9"}"#},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": set,
                "controller": true}]},
        "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"},
    })
}

struct Stage {
    api: ApiServer,
    work: Loop,
}

/// A Deployment with one ReplicaSet, as the watches brought it.
async fn stage(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Stage {
    let api = ApiServer::start(answer).await;
    let (index, dirty) = Index::following(Vec::new());
    let (applier, leadership, metrics) = testing::leading_applier(&api, api.resources(&[]).await, None);
    let shared = Shared {
        client: api.client.clone(),
        index: index.clone(),
        dirty,
        applier,
        settings: Arc::new(ArcSwap::from_pointee(Settings::of(&testing::config(""), "belay-system"))),
        leadership,
        metrics,
        health: Vec::new(),
    };
    let deployment = json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "d", "resourceVersion": "1",
            "annotations": {SURGE_ANNOTATION: render(&testing::surge(Some(3)))}},
        "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "web", "tier": "front"}, "matchExpressions": [
            {"key": "track", "operator": "In", "values": ["stable", "beta"]}, {"key": "old", "operator": "DoesNotExist"}]}},
    });
    let set = json!({"metadata": {"namespace": "shop", "name": "web-1", "uid": "s", "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]}});
    let mut sink = IndexSink(index);
    sink.apply(project::deployment(&serde_json::from_value::<DeploymentSubset>(deployment).unwrap()));
    sink.apply(project::replica_set(&serde_json::from_value::<ReplicaSetSubset>(set).unwrap()));
    Stage { api, work: Loop::new(shared, LeftOut::default()) }
}

impl Stage {
    fn pods_of(&self) -> PodsOf {
        let default = belay_decide::policy::DefaultPolicy::default();
        self.work.shared.index.workload(&key(), &default, |workload, _, _| PodsOf::new(workload.unwrap())).unwrap()
    }
}

#[tokio::test]
async fn a_close_look_reads_the_workloads_own_pods_as_they_stand() {
    let stage = stage(|asked| match asked.what.as_str() {
        PODS => Reply::Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"},
            "items": [pod("web-1-a", "s"), pod("of-another", "t"), pod("web-1-b", "s")]})),
        _ => Reply::Status(404, "there is no such thing"),
    })
    .await;
    let close = stage.work.look_closer(&key(), &stage.pods_of(), Timestamp::UNIX_EPOCH).await.unwrap();
    let names: Vec<_> = close.iter().map(|pod| &*pod.pod.name).collect();
    assert_eq!(names, ["web-1-a", "web-1-b"], "labels alone do not make a pod the workload's");
    let first = &close[0];
    assert_eq!((first.value.as_deref(), &*first.resource_version), (Some("-9"), "7"));
    assert_eq!(first.record.render().as_deref(), Some(r#"{"controller.kubernetes.io/pod-deletion-cost":"-9"}"#));
    let asked = stage.api.asked();
    assert_eq!(asked.iter().map(|asked| asked.what.as_str()).collect::<Vec<_>>(), [PODS]);
    assert_eq!(asked[0].query["labelSelector"], "app=web,tier=front,track in (beta,stable),!old");
}

#[tokio::test]
async fn pods_that_cannot_be_read_are_said_whose_they_are() {
    let stage = stage(|_| Reply::Status(403, "pods is forbidden")).await;
    let error = stage.work.look_closer(&key(), &stage.pods_of(), Timestamp::UNIX_EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("the pods of Deployment shop/web"), "{error}");
}

#[tokio::test]
async fn what_was_put_back_is_awaited_before_the_workload_is_looked_at_again() {
    let stage = stage(|asked| match asked.what.as_str() {
        DEPLOYMENT => Reply::Json(json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "web", "uid": "d", "resourceVersion": "2"}})),
        _ => Reply::Status(404, "there is no such thing"),
    })
    .await;
    let object =
        ObjectRef { namespace: "shop".into(), name: "web".into(), uid: "d".into(), resource_version: "1".into() };
    let back = Action::Surge {
        governor: Governor::Deployment,
        object,
        number: Some(3),
        record: None,
        field_manager: Some("flux".into()),
    };
    let plan = Plan { sequences: vec![vec![back]], ..Plan::default() };
    let now = Clock::wall();
    assert_eq!(stage.work.perform(&key(), &plan, now).await, None);
    let asked = stage.api.asked();
    assert_eq!(asked.len(), 1);
    let expected = json!({"spec": {"replicas": 3},
        "metadata": {"uid": "d", "resourceVersion": "1", "annotations": {SURGE_ANNOTATION: null}}});
    assert_eq!(asked[0].body, expected);
    assert_eq!(asked[0].query["fieldManager"], "flux");
    let wake = stage.work.look(&key()).await.expect("it is looked at again");
    assert!(wake > now, "what is cached is still as it was before the write");
    assert!(stage.api.asked().is_empty(), "so nothing is decided on it");
}

#[tokio::test]
async fn a_minimum_is_put_back_whose_deployment_was_deleted_while_it_was_raised() {
    const AUTOSCALER: &str = "PATCH /apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers/web";
    let stage = stage(|asked| match asked.what.as_str() {
        AUTOSCALER => Reply::Json(json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "web", "uid": "h", "resourceVersion": "8"}})),
        _ => Reply::Status(404, "there is no such thing"),
    })
    .await;
    let index = stage.work.shared.index.clone();
    let raised = json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "h", "resourceVersion": "7",
            "annotations": {SURGE_ANNOTATION: render(&testing::surge(Some(3)))}},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 4, "maxReplicas": 9},
    });
    let raised = project_autoscaler::horizontal(&serde_json::from_value(raised).unwrap());
    AutoscalerSink { index: index.clone(), governor: Governor::HorizontalPodAutoscaler }.apply(raised);
    let web = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "d"}});
    IndexSink(index).delete(project::deployment(&serde_json::from_value::<DeploymentSubset>(web).unwrap()));
    stage.work.look(&key()).await;
    let asked = stage.api.asked().into_iter().filter(|asked| !asked.what.contains("events")).collect::<Vec<_>>();
    assert_eq!(asked.iter().map(|asked| asked.what.as_str()).collect::<Vec<_>>(), [AUTOSCALER]);
    let expected = json!({"spec": {"minReplicas": 3},
        "metadata": {"uid": "h", "resourceVersion": "7", "annotations": {SURGE_ANNOTATION: null}}});
    assert_eq!(asked[0].body, expected);
    assert!(stage.work.look(&key()).await.is_some(), "what was written is awaited");
    assert!(stage.api.asked().iter().all(|asked| asked.what.contains("events")), "and not written again");
}
