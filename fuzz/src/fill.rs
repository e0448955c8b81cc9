//! What the cache of the webhook holds: of each kind of pod that answers differ for, one.

use belay::cluster::clock::Clock;
use belay::cluster::costs::Costs;
use belay::cluster::index::{BusyPodSink, Index, IndexSink, OwnerSink, Policy, SeenNode, Target};
use belay::cluster::project_busy::OwnerFields;
use belay::cluster::subset::{DeploymentSubset, NodeSubset, PodSubset, ReplicaSetSubset};
use belay::cluster::watch::Sink as _;
use belay::cluster::{project, project_busy, project_cost};
use belay::config::DeletionCost;
use belay_decide::busy::GroupKind;
use belay_decide::cost::cluster::Cluster;
use belay_decide::handover::record::RECORDS_ANNOTATION;
use jiff::SignedDuration;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Where all of it is.
const NAMESPACE: &str = "default";

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the API server's")
}

/// A pod of a ReplicaSet, Ready for years.
pub(crate) fn pod(set: &str, hash: &str, name: &str, labels: &Value) -> Value {
    let mut labels = labels.clone();
    labels["pod-template-hash"] = json!(hash);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": NAMESPACE, "name": name, "uid": format!("{name}-uid"), "resourceVersion": "1",
            "creationTimestamp": "2020-01-01T00:00:00Z", "labels": labels, "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": format!("{set}-uid"),
                "controller": true }] },
        "spec": { "nodeName": "node-1" },
        "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z" }] },
    })
}

fn replica_set(name: &str, hash: &str, owner: Option<&str>, replicas: i32) -> Value {
    let owners = owner.map(|owner| {
        json!([{ "apiVersion": "apps/v1", "kind": "Deployment", "name": owner,
        "uid": format!("{owner}-uid"), "controller": true }])
    });
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": { "namespace": NAMESPACE, "name": name, "uid": format!("{name}-uid"), "ownerReferences": owners,
            "annotations": { "deployment.kubernetes.io/revision": "1" }, "labels": { "pod-template-hash": hash } },
        "spec": { "replicas": replicas, "template": { "metadata": { "labels": { "app": name } }, "spec": {} } },
        "status": { "busy": name == "busy" },
    })
}

/// A protected Deployment of one pod, which is the recorded victim, held already; and pods that are busy, idle, and to be
/// retired.
pub(crate) fn index(index: &Index) {
    let mut sink = IndexSink(index.clone());
    for name in ["node-1", "node-2"] {
        let node: NodeSubset = read(json!({ "metadata": { "name": name } }));
        sink.apply(SeenNode { view: project::node(&node), at: Clock::wall() });
    }
    sink.apply(project::deployment(&read::<DeploymentSubset>(json!({
        "metadata": { "namespace": NAMESPACE, "name": "web", "uid": "web-uid", "generation": 1, "resourceVersion": "1",
            "annotations": { "deployment.kubernetes.io/revision": "1", RECORDS_ANNOTATION: "[]" } },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "web" } } },
        "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 },
    }))));
    let set = replica_set("web-d7f965486", "d7f965486", Some("web"), 1);
    sink.apply(project::replica_set(&read::<ReplicaSetSubset>(set)));
    let victim = pod("web-d7f965486", "d7f965486", "web-d7f965486-ppzlz", &json!({ "app": "web" }));
    sink.apply(project::pod(&read::<PodSubset>(victim), false));
    let policy: belay::api::HandoverPolicy = read(json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
        "metadata": { "namespace": NAMESPACE, "name": "web", "uid": "h" }, "spec": { "targetRef": { "name": "web" } },
    }));
    let view = project::policy(&policy);
    let (resource_version, uid) = ("1".into(), "h".into());
    let target = Target::of(Some("web"), None);
    sink.apply(Policy { view, target, generation: 1, resource_version, uid, status: None });
    let hold: belay::api::EvictionHold = read(json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
        "metadata": { "namespace": NAMESPACE, "name": "web-d7f965486-ppzlz", "uid": "e" },
        "spec": {
            "victim": { "name": "web-d7f965486-ppzlz", "uid": "web-d7f965486-ppzlz-uid", "node": "node-1",
                "templateHash": "d7f965486" },
            "workload": { "kind": "Deployment", "name": "web", "uid": "web-uid" }, "reason": "Handover",
            "requestedAt": "2026-11-29T23:25:18Z", "deadline": "2226-11-29T23:35:18Z" },
    }));
    sink.apply(project::hold(&hold));
    for (name, labels, rule) in
        [("busy", json!({ "app": "rec" }), 0), ("idle", json!({ "app": "rec" }), 0), ("bare", json!({}), 1)]
    {
        let pod = pod(name, "1", &format!("{name}-1"), &labels);
        sink.apply(project::pod(&read::<PodSubset>(pod.clone()), false));
        let governed = project_busy::pod(&read(pod), &index.rules()[rule], Clock::wall());
        BusyPodSink { index: index.clone(), rule }.apply(governed);
        let mut owners = OwnerSink { index: index.clone(), kind: GroupKind::new("apps", "ReplicaSet") };
        let fields = OwnerFields { read: owners.fields().read, job_fields: Vec::new() };
        owners.apply(project_busy::owner(&read(replica_set(name, "1", None, 1)), &fields));
    }
}

/// Two nodes that are ranked, and a ReplicaSet whose pods get a value when they are bound.
pub(crate) fn costs(options: &DeletionCost) -> Costs {
    let mut cluster = Cluster::new(options.options(), SignedDuration::from_mins(10)).only_ranks();
    let now = Clock::wall();
    for name in ["node-1", "node-2"] {
        let node = json!({ "metadata": { "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" } });
        cluster.put_node(project_cost::node(&read(node), now));
    }
    cluster.put_set(project_cost::set(&read(replica_set("many", "1", None, 3))));
    cluster.look(now);
    Costs::new(cluster)
}
