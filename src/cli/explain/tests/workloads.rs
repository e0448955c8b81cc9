//! Explanations of Deployments.

use super::*;

const AUTOSCALERS: &str = "GET /apis/autoscaling/v2/namespaces/ci/horizontalpodautoscalers";

fn deployment(replicas: i32) -> Value {
    json!({"metadata": {"namespace": "ci", "name": "web", "uid": "d", "resourceVersion": "5", "generation": 1,
            "annotations": {"deployment.kubernetes.io/revision": "1"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
        "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas,
            "availableReplicas": replicas}})
}

fn set() -> Value {
    json!({"metadata": {"namespace": "ci", "name": "web-h", "uid": "s", "labels": {"pod-template-hash": "h"},
            "annotations": {"deployment.kubernetes.io/revision": "1"},
            "ownerReferences": [controller("apps/v1", "Deployment", "web", "d")]},
        "spec": {"replicas": 1, "template": {}}})
}

fn pod_on(name: &str, node: &str) -> Value {
    let mut pod = pod(&controller("apps/v1", "ReplicaSet", "web-h", "s"));
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(name);
    pod["spec"]["nodeName"] = json!(node);
    pod
}

fn policy(handover: &str) -> (&'static str, Reply) {
    let policy = json!({"apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
        "metadata": {"namespace": "ci", "name": "web", "uid": "h", "resourceVersion": "1", "creationTimestamp": ago(60)},
        "spec": {"targetRef": {"name": "web"}, "handover": handover}});
    (POLICIES, list(&[policy]))
}

async fn explained(answers: &[(&'static str, Reply)]) -> Option<(Value, String)> {
    let api = cluster(answers).await;
    let seen = gather::workload(&api.client, &ruled(), "belay-system", "ci").await;
    let report = workload::explain(&seen, "ci", "web", Clock::wall())?;
    Some(told(&report))
}

fn three_pods() -> Vec<(&'static str, Reply)> {
    let pods = [("web-1", "node-1"), ("web-2", "node-2"), ("web-3", "node-2")].map(|(name, node)| pod_on(name, node));
    vec![(DEPLOYMENTS, list(&[deployment(3)])), (SETS, list(&[set()])), (PODS, list(&pods))]
}

#[tokio::test]
async fn a_scaled_workload_is_explained_by_its_policy_its_autoscaler_and_each_pods_eviction() {
    let autoscaler = json!({"metadata": {"namespace": "ci", "name": "web-hpa", "uid": "a", "resourceVersion": "1"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 2,
            "maxReplicas": 9}});
    let cordoned = json!({"metadata": {"name": "node-1"}, "spec": {"unschedulable": true}});
    let mut answers = three_pods();
    answers.extend([policy("Scale"), (AUTOSCALERS, list(&[autoscaler])), (NODES, list(&[cordoned]))]);
    let (json, text) = explained(&answers).await.unwrap();
    assert_eq!(json["replicas"], 3);
    let protection = json!({"by": "HandoverPolicy web", "handover": "Scale", "readinessDeadlineSeconds": 600});
    assert_eq!(json["protection"], protection);
    assert_eq!(json["autoscaler"], "HorizontalPodAutoscaler web-hpa (minimum 2, maximum 9)");
    let conditions: Vec<_> = json["conditions"].as_array().unwrap().iter().map(|one| one["reason"].clone()).collect();
    assert_eq!(conditions, ["Supported", "SurgingStrategy", "Protected"]);
    let held: Vec<_> = json["pods"].as_array().unwrap().iter().map(|pod| pod["eviction"]["held"].clone()).collect();
    assert_eq!(held, [true, true, true], "{text}");
    for words in ["web (1 more meanwhile, by the minimum of HorizontalPodAutoscaler web-hpa, 9 at most)", "held ("] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[tokio::test]
async fn what_keeps_a_workload_from_being_protected_is_said_with_what_to_do() {
    let mut answers = three_pods();
    let (_, text) = explained(&answers).await.unwrap();
    assert!(text.contains("Not protected") && text.contains("passes (NotProtected)"), "{text}");
    answers.push(policy("Restart"));
    let (json, text) = explained(&answers).await.unwrap();
    assert_eq!(json["conditions"][2]["reason"], "MoreThanOneReplica");
    assert!(text.contains("handover: Scale") && text.contains("passes (MoreThanOneReplica)"), "{text}");
    assert!(explained(&[]).await.is_none(), "there is no such Deployment");
}
