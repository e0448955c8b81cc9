//! A pod that has got further than the cache does not go by what the cache says.

use super::*;

/// The recorded pod as the API server knows it, changed.
fn known(change: impl FnOnce(&mut Value)) -> Value {
    let set = controller("apps/v1", "ReplicaSet", "web-d7f965486", "r");
    let mut pod = pod("p", &set, &json!({}));
    pod["metadata"]["labels"] = json!({"pod-template-hash": "d7f965486", "rule": "plain"});
    change(&mut pod);
    pod
}

fn unruled(pod: &mut Value) {
    pod["metadata"]["labels"]["rule"] = json!("none");
}

fn unowned(pod: &mut Value) {
    pod["metadata"]["ownerReferences"] = json!([]);
}

fn young(pod: &mut Value) {
    pod["status"]["conditions"][0]["lastTransitionTime"] = json!(ago(0));
}

fn unready(pod: &mut Value) {
    pod["status"]["conditions"] = json!([]);
}

fn waiting(pod: &mut Value) {
    unready(pod);
    pod["status"]["phase"] = json!("Pending");
}

#[tokio::test]
async fn a_pod_that_the_cache_has_not_seen_as_it_is_is_held_where_it_matters() {
    let both = |one: fn(&mut Value), other: fn(&mut Value)| {
        known(|pod| {
            one(pod);
            other(pod);
        })
    };
    let live = |pod: Value| vec![(POD, Reply::Json(pod))];
    let failed = || vec![(POD, Reply::Status(500, "etcdserver: request timed out"))];
    // What the watch of all pods has told, what the API server knows, and the answer.
    for (name, cached, answers, expected) in [
        ("not known, and selected by a rule", None, live(known(|_| {})), "Hold NotSeenYet"),
        ("not known, and protected", None, live(known(unruled)), "Hold NotSeenYet"),
        ("not known, and not there", None, vec![], "Allow UnknownPod"),
        ("not known, and not to be read", None, failed(), "Allow UnknownPod"),
        ("not known, and waiting", None, live(known(waiting)), "Allow UnknownPod"),
        ("waiting, and runs by now", Some(known(waiting)), live(known(unready)), "Hold NotSeenYet"),
        ("not ready, as it is", Some(both(unruled, unready)), live(both(unruled, unready)), "Allow NotReady"),
        (
            "not ready, and protected and ready by now",
            Some(both(unruled, unready)),
            live(known(unruled)),
            "Hold NotSeenYet",
        ),
        (
            "ready for a moment, no rule's yet",
            Some(both(unowned, young)),
            live(both(unowned, young)),
            "Hold NotSeenYet",
        ),
        ("ready for long, no rule's", Some(known(unowned)), live(known(unowned)), "Allow NotProtected"),
        ("protected, as was seen", Some(known(unruled)), live(known(unruled)), "Hold AwaitingRestart"),
    ] {
        let api = api(&answers).await;
        let webhook = ruled(Some(&api)).await;
        webhook.fill();
        let mut sink = IndexSink(webhook.handlers.index.clone());
        let read = |pod: Value| project::pod(&serde_json::from_value::<PodSubset>(pod).unwrap(), false);
        match cached {
            Some(pod) => sink.apply(read(pod)),
            None => sink.delete(read(known(|_| {}))),
        }
        let (counted, response) = webhook.evict(EVICTION).await;
        assert_eq!(counted, expected, "{name}: {response}");
    }
}

#[tokio::test]
async fn a_victim_that_was_held_is_not_doubted_when_the_cache_takes_it_for_unready() {
    let protected = known(unruled);
    let api = api(&[(POD, Reply::Json(protected))]).await;
    let webhook = ruled(Some(&api)).await;
    webhook.fill();
    let (counted, response) = webhook.evict(EVICTION).await;
    assert_eq!(counted, "Hold AwaitingRestart", "{response}");
    let flapping = known(|pod| {
        unruled(pod);
        unready(pod);
    });
    let flapping = project::pod(&serde_json::from_value::<PodSubset>(flapping).unwrap(), false);
    IndexSink(webhook.handlers.index.clone()).apply(flapping);
    let (counted, response) = webhook.evict(EVICTION).await;
    assert_eq!(counted, "Allow NotReady", "{response}");
}

#[tokio::test]
async fn a_pod_that_is_not_ready_and_that_its_rule_lets_go_is_not_held_for_having_been_made_just_now() {
    let since = Clock::wall().checked_sub(SignedDuration::from_hours(7)).unwrap().to_string();
    let long = json!({"work": "", "belay.dev/busy-since": since,
        "belay.dev/managed": format!("{{\"belay.dev/busy-since\":\"{since}\"}}")});
    for (name, annotations, released) in [
        ("idle", json!({}), false),
        ("released by its hold", json!({"work": ""}), true),
        ("busy for longer than is allowed", long, false),
    ] {
        let pod = known(|pod| {
            unready(pod);
            pod["metadata"]["annotations"] = annotations;
        });
        let api = api(&[(POD, Reply::Json(pod.clone()))]).await;
        let webhook = ruled(Some(&api)).await;
        webhook.fill();
        webhook.knows_pod(PLAIN, pod);
        if released {
            webhook.knows_hold(HoldReason::Busy, "Released");
        }
        let (counted, response) = webhook.evict(EVICTION).await;
        assert_eq!(counted, "Allow NotReady", "{name}: {response}");
    }
}

#[tokio::test]
async fn a_pod_is_not_held_for_a_policy_that_ignores_who_evicts_it() {
    let api = api(&[(POD, Reply::Json(known(unruled)))]).await;
    let webhook = ruled(Some(&api)).await;
    webhook.fill();
    let mut sink = IndexSink(webhook.handlers.index.clone());
    sink.delete(project::pod(&serde_json::from_value::<PodSubset>(known(unruled)).unwrap(), false));
    assert_eq!(webhook.evict(EVICTION).await.0, "Hold NotSeenYet");
    webhook.protect(&json!({"targetRef": {"name": "web"}, "ignoreEvictors": ["drain*"]}));
    assert_eq!(webhook.evict(EVICTION).await.0, "Allow UnknownPod");
}

#[tokio::test]
async fn an_eviction_that_comes_before_the_caches_are_filled_waits_for_them() {
    let pods = Health::new("pods", Gauge::default());
    let webhook = ruled_with("", None, |handlers| handlers.health = vec![pods.clone()]).await;
    webhook.fill();
    let filling = async {
        // So that the eviction waits by then.
        tokio::task::yield_now().await;
        pods.absent();
    };
    let ((counted, response), ()) = tokio::join!(webhook.evict(EVICTION), filling);
    assert_eq!(counted, "Hold AwaitingRestart", "{response}");
}
