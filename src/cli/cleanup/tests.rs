use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use crate::testing::{ApiServer, Asked, Reply};

const RECORD: &str = r#"{"karpenter.sh/do-not-disrupt":"true","label:belay.dev/busy":"true"}"#;

/// A pod that Belay wrote on, or did not.
fn pod(name: &str, is_marked: bool) -> Value {
    let mut meta = json!({"namespace": "ci", "name": name, "uid": format!("uid of {name}"), "resourceVersion": "7",
        "labels": {"app": "x"}, "annotations": {"note": "x"}});
    if is_marked {
        meta["labels"]["belay.dev/busy"] = json!("true");
        meta["annotations"]["karpenter.sh/do-not-disrupt"] = json!("true");
        meta["annotations"][MANAGED_ANNOTATION] = json!(RECORD);
    }
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta})
}

fn list(items: &[Value], next: &str) -> Reply {
    Reply::Json(json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "9", "continue": next}, "items": items}))
}

/// A cluster of two pages of pods: one marked on each, one not marked on the first. `bent` answers before it does.
async fn cluster(bent: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static) -> ApiServer {
    ApiServer::start(move |asked| {
        if let Some(reply) = bent(asked) {
            return reply;
        }
        match (asked.what.as_str(), asked.query.get("continue").map(String::as_str)) {
            ("GET /api/v1/pods", None) => list(&[pod("a", true), pod("b", false)], "more"),
            ("GET /api/v1/pods", Some("more")) => list(&[pod("c", true)], ""),
            (what, _) if what.starts_with("PATCH /api/v1/namespaces/ci/pods/") => Reply::Json(pod("w", false)),
            _ => Reply::Status(404, "there is no such thing"),
        }
    })
    .await
}

fn patches(api: &ApiServer) -> Vec<Asked> {
    let mut asked = api.asked();
    asked.retain(|asked| asked.what.starts_with("PATCH"));
    asked
}

fn rate() -> TokenBucket {
    TokenBucket::new(1000)
}

#[tokio::test]
async fn a_pass_takes_ours_off_each_pod_of_every_page_and_nothing_else() {
    let api = cluster(|_| None).await;
    let done = pass(&api.client, Some(&rate()), Keep::default()).await.unwrap();
    assert_eq!((done.found, done.objects.len(), done.refused.len(), done.is_whole), (2, 2, 0, true));
    let patches = patches(&api);
    let names: Vec<_> = patches.iter().map(|asked| asked.what.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["a", "c"]);
    let expected = json!({"metadata": {
        "uid": "uid of a", "resourceVersion": "7", "labels": {"belay.dev/busy": null},
        "annotations": {"karpenter.sh/do-not-disrupt": null, "belay.dev/managed": null}}});
    assert_eq!(patches[0].body, expected);
}

#[tokio::test]
async fn without_a_rate_a_pass_only_notes_what_it_finds() {
    let api = cluster(|_| None).await;
    let done = pass(&api.client, None, Keep::default()).await.unwrap();
    assert_eq!(done.found, 2);
    let report = serde_json::to_value(Report::of(true, done.objects)).unwrap();
    let keys = ["belay.dev/managed", "karpenter.sh/do-not-disrupt", "belay.dev/busy"];
    let object = |name: &str| json!({"kind": "Pod", "namespace": "ci", "name": name, "keys": keys});
    assert_eq!(report, json!({"dryRun": true, "pods": 2, "surges": 0, "objects": [object("a"), object("c")]}));
    assert_eq!(patches(&api), []);
}

#[tokio::test]
async fn one_pod_that_cannot_be_written_keeps_no_other_from_being_cleaned() {
    let table = [
        ("it changed", 409, 0),
        ("it is gone", 404, 0),
        ("the API server is busy", 429, 0),
        ("a right is missing", 403, 1),
        ("somebody refuses it", 400, 1),
    ];
    for (name, code, refused) in table {
        let api = cluster(move |asked| asked.what.ends_with("/pods/a").then_some(Reply::Status(code, "words"))).await;
        let done = pass(&api.client, Some(&rate()), Keep::default()).await.unwrap();
        assert_eq!((done.found, done.objects.len(), done.refused.len()), (2, 1, refused), "{name}");
        assert!(done.refused.iter().all(|refusal| refusal.contains("Pod ci/a") && refusal.contains("words")), "{name}");
    }
}

#[tokio::test]
async fn a_list_that_grew_too_old_ends_a_pass_and_not_the_whole() {
    // A page is asked for minutes after the first where there are many pods to be written.
    let is_second = |asked: &Asked| asked.query.contains_key("continue");
    let api = cluster(move |asked| {
        is_second(asked).then_some(Reply::Status(410, "The provided continue parameter is too old"))
    })
    .await;
    let done = pass(&api.client, Some(&rate()), Keep::default()).await.unwrap();
    assert_eq!((done.found, done.objects.len(), done.is_whole), (1, 1, false));

    let api =
        cluster(|asked| (asked.what == "GET /api/v1/pods").then_some(Reply::Status(403, "pods is forbidden"))).await;
    let error = pass(&api.client, Some(&rate()), Keep::default()).await.map(|pass| pass.found).unwrap_err();
    let words = "cannot read the list of pods: pods is forbidden; ask for that right";
    assert!(error.to_string().starts_with(words), "{error}");
}

/// Answers that change: of each, the next one every time, and then the last.
async fn scripted(script: Vec<(&'static str, Vec<Reply>)>) -> ApiServer {
    let script: Arc<Mutex<BTreeMap<_, _>>> = Arc::new(Mutex::new(script.into_iter().collect()));
    ApiServer::start(move |asked| match script.lock().get_mut(asked.what.as_str()) {
        Some(replies) if replies.len() > 1 => replies.remove(0),
        Some(replies) => replies[0].clone(),
        None => Reply::Status(404, "there is no such thing"),
    })
    .await
}

const CONTROLLER: &str = "GET /apis/apps/v1/namespaces/belay-system/deployments/belay-controller";
const SCALE: &str = "PATCH /apis/apps/v1/namespaces/belay-system/deployments/belay-controller/scale";
const PODS: &str = "GET /api/v1/namespaces/belay-system/pods";

fn controller(status: &Value) -> Reply {
    Reply::Json(json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": "belay-system", "name": "belay-controller", "generation": 2},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "controller"}}, "template": {}},
        "status": status}))
}

#[tokio::test]
async fn the_controller_is_scaled_to_zero_and_its_pods_are_awaited() {
    let scale = Reply::Json(json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"},
        "spec": {"replicas": 0}, "status": {"replicas": 0}}));
    let left = list(&[pod("belay-controller-1", false)], "");
    let api = scripted(vec![
        (CONTROLLER, vec![controller(&json!({}))]),
        (SCALE, vec![scale]),
        (PODS, vec![left, list(&[], "")]),
    ])
    .await;
    stop_controller(&api.client, "belay-system", "belay-controller").await.unwrap();
    let asked = api.asked();
    let whats: Vec<_> = asked.iter().map(|asked| asked.what.as_str()).collect();
    assert_eq!(whats, [CONTROLLER, SCALE, PODS, PODS]);
    assert_eq!(asked[1].body, json!({"spec": {"replicas": 0}}));
    assert_eq!(asked[2].query["labelSelector"], "app=controller");

    let api = scripted(Vec::new()).await;
    stop_controller(&api.client, "belay-system", "belay-controller").await.unwrap();
    remove_webhooks(&api.client, "belay").await.unwrap();
    assert_eq!(api.asked().len(), 2, "what is not there needs no stopping");
}

#[tokio::test]
async fn a_rollout_is_awaited_to_the_end_of_the_last_old_pod() {
    let rolling = |observed: i64, replicas: i32, updated: i32, terminating: i32| {
        controller(&json!({"observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated,
            "terminatingReplicas": terminating}))
    };
    let states =
        vec![rolling(1, 2, 2, 0), rolling(2, 3, 1, 0), rolling(2, 3, 2, 0), rolling(2, 2, 2, 1), rolling(2, 2, 2, 0)];
    let count = states.len();
    let api = scripted(vec![(CONTROLLER, states)]).await;
    await_rollout(&api.client, "belay-system", "belay-controller").await.unwrap();
    assert_eq!(api.asked().len(), count);

    // Where nothing is enabled any more, there is no Deployment, and its pods may still be ending.
    let api = scripted(vec![(PODS, vec![list(&[pod("belay-controller-1", false)], ""), list(&[], "")])]).await;
    await_rollout(&api.client, "belay-system", "belay-controller").await.unwrap();
    let whats: Vec<_> = api.asked().into_iter().map(|asked| asked.what).collect();
    assert_eq!(whats, [CONTROLLER, PODS, CONTROLLER, PODS]);
}

fn meta(value: serde_json::Value) -> ObjectMeta {
    serde_json::from_value(value).unwrap()
}

#[test]
fn exactly_what_belay_wrote_is_taken_away() {
    let pod = meta(json!({
        "labels": {"belay.dev/busy": "true", "app": "x"},
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
            "descheduler.alpha.kubernetes.io/prefer-no-eviction": "changed by somebody",
            "theirs": "1",
            "belay.dev/managed": r#"{"cluster-autoscaler.kubernetes.io/safe-to-evict":"false",
                "descheduler.alpha.kubernetes.io/prefer-no-eviction":"true","label:belay.dev/busy":"true",
                "theirs":"1","given-up":null,"gone":"1"}"#,
        },
    }));
    let changes = undo(&pod, Keep::default()).expect("there is something of ours");
    let names: Vec<_> = changes.keys().map(ToString::to_string).collect();
    let expected = ["belay.dev/managed", "cluster-autoscaler.kubernetes.io/safe-to-evict", "label:belay.dev/busy"];
    assert_eq!(names, expected);
    assert!(changes.values().all(Option::is_none));
}

#[test]
fn a_pod_without_a_record_is_left_alone() {
    assert_eq!(undo(&meta(json!({})), Keep::default()), None);
    let theirs = json!({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}});
    assert_eq!(undo(&meta(theirs), Keep::default()), None);
}

#[test]
fn what_a_capability_that_is_on_looks_after_is_left_where_it_is() {
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    const HINT: &str = "karpenter.sh/do-not-disrupt";
    let pod = |cost: &str| {
        meta(json!({"annotations": {
            MANAGED_ANNOTATION: json!({COST: cost, "karpenter.sh/do-not-disrupt": "true"}).to_string(),
            "karpenter.sh/do-not-disrupt": "true",
            COST: cost,
        }}))
    };
    let (hints, costs, handovers) = (
        Keep { busy_hints: true, ..Keep::default() },
        Keep { deletion_costs: true, ..Keep::default() },
        Keep { handovers: true, ..Keep::default() },
    );
    let all = Keep { busy_hints: true, deletion_costs: true, handovers: true };
    // Of a pod with a rank, and of a victim of a handover: what is taken off.
    let table: [(Keep, &[&str], &[&str]); 5] = [
        (Keep::default(), &[COST, HINT], &[COST, HINT]),
        // Busy rules may have written the cost, and look after it.
        (hints, &[], &[COST]),
        (costs, &[HINT], &[COST, HINT]),
        (handovers, &[COST, HINT], &[HINT]),
        (all, &[], &[]),
    ];
    for (keep, of_ranked, of_victim) in table {
        for (cost, expected) in [("-7", of_ranked), ("-1048576", of_victim)] {
            let changes = undo(&pod(cost), keep).unwrap_or_default();
            let (record, taken): (Vec<_>, Vec<_>) =
                changes.iter().partition(|(key, _)| key.name() == MANAGED_ANNOTATION);
            let names: Vec<_> = taken.iter().map(|(key, _)| key.name()).collect();
            assert_eq!(names, expected, "{keep:?} {cost}");
            assert!(taken.iter().all(|(_, value)| value.is_none()), "{keep:?} {cost}");
            let left = record.first().and_then(|(_, left)| left.as_deref()).map(|left| Record::parse(Some(left)));
            let left: Vec<_> = left.iter().flat_map(Record::keys).map(Key::name).collect();
            let kept = if expected.is_empty() {
                vec![]
            } else {
                [COST, HINT].into_iter().filter(|key| !expected.contains(key)).collect()
            };
            assert_eq!(left, kept, "{keep:?} {cost}: the record tells of what stays");
        }
    }
}
