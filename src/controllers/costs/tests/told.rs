//! What people are told: Events and counts.

use super::*;

fn own() -> String {
    "Pod belay-system/belay-controller-0".to_owned()
}

fn completed() -> (String, String) {
    ("RankingCompleted".to_owned(), own())
}

#[tokio::test]
async fn an_order_is_told_when_it_changed_and_at_most_once_a_minute() {
    let stage = stage().await;
    let began = Clock::wall();
    let after = |seconds| began + SignedDuration::from_secs(seconds);
    stage.work.rank(began);
    let told = stage.told().await;
    assert_eq!(told.len(), 1);
    let event = &told[0];
    assert_eq!((event["type"].as_str(), event["reason"].as_str()), (Some("Normal"), Some("RankingCompleted")));
    assert_eq!((about(event), &event["regarding"]["uid"]), (own(), &json!("own")));
    assert_eq!(event["note"], "3 nodes ranked (3 normal); first to empty: n1, n2, n3");
    // Another order, too soon, and once more.
    stage.see_node("n3", &json!({"spec": {"unschedulable": true}}));
    for seconds in [1, 30, 59] {
        stage.work.rank(after(seconds));
        assert_eq!(stage.events().await, [], "{seconds} s later");
    }
    stage.work.rank(after(60));
    let told = stage.told().await;
    assert_eq!(told.len(), 1, "by then, though nothing has changed since");
    let note = "3 nodes ranked (1 draining, 2 normal); first to empty: n3, n1, n2";
    assert_eq!((&told[0]["note"], &told[0]["series"]), (&json!(note), &Value::Null), "no repetition of the first");
    // The same order: another number of nodes to be ranked changes it, another pod does not.
    stage.stored.lock().pods.insert("web-6".into(), pod("web", "web-6", "n3"));
    stage.see("web-6");
    stage.work.rank(after(200));
    assert_eq!(stage.events().await, []);
    stage.see_node("n1", &json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}));
    stage.work.rank(after(300));
    assert_eq!(stage.events().await, [completed()]);
    // Who takes the lead over tells of the next order, and not once more of the one that it finds.
    stage.work.observe(false);
    stage.work.rank(after(301));
    stage.work.observe(true);
    stage.work.rank(after(302));
    assert_eq!(stage.events().await, []);
    stage.see_node("n1", &json!({}));
    stage.work.rank(after(303));
    assert_eq!(stage.events().await, [completed()]);
}

#[tokio::test]
async fn a_new_leader_counts_the_nodes_whose_pods_do_not_say_yet_what_it_ranked_before() {
    let stage = stage().await;
    let changed = || stage.metric("changed_nodes_total");
    stage.work.observe(false);
    stage.work.take_now();
    assert_eq!(changed().as_deref(), Some("0"), "who does not lead writes nothing of it");
    for written in [false, true] {
        stage.work.observe(true);
        stage.work.touch_all();
        assert_eq!(stage.work_off().await.is_empty(), written);
        assert_eq!(changed().as_deref(), Some("3"), "{written}");
        stage.work.observe(false);
    }
}

#[tokio::test]
async fn an_order_is_described_by_its_groups_and_its_first_nodes() {
    let stage = stage().await;
    for at in 4..=6 {
        stage.see_node(&format!("n{at}"), &json!({"spec": {"unschedulable": at == 4}}));
    }
    stage.work.take_now();
    let described = || stage.work.costs.read(tell::describe);
    assert_eq!(described(), "6 nodes ranked (1 draining, 5 normal); first to empty: n4, n5, n6, n1, n2, …");
    for at in 1..=6 {
        let still = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
        stage.see_node(&format!("n{at}"), &still);
    }
    stage.work.take_now();
    assert_eq!(described(), "No node is to empty: none may be ranked");
}

#[tokio::test]
async fn that_something_cannot_be_watched_is_told_by_the_leader_once_each_time_it_begins() {
    let health = Health::new("poddisruptionbudgets", Gauge::default());
    let stage = stage_with(vec![health.clone()], 1000).await;
    stage.leadership.lose();
    health.note("missing right: poddisruptionbudgets is forbidden", true);
    stage.work.observe(false);
    for _ in 0..3 {
        assert_eq!(stage.work.take_now(), keys(&[]));
    }
    assert_eq!(stage.events().await, [], "not by who does not lead");
    stage.leadership.win();
    stage.work.observe(true);
    for _ in 0..3 {
        assert_eq!(stage.work.take_now(), keys(&[]));
    }
    let told = stage.told().await;
    assert_eq!(told.len(), 1, "{told:?}");
    let event = &told[0];
    assert_eq!((event["type"].as_str(), event["reason"].as_str()), (Some("Warning"), Some("RankingFailed")));
    assert_eq!(about(event), own());
    let note = text(&event["note"]);
    assert!(note.contains("no deletion cost is written"), "{note}");
    assert!(note.contains("poddisruptionbudgets cannot be watched: missing right"), "{note}");
    health.note("missing right: poddisruptionbudgets is still forbidden", true);
    stage.work.take_now();
    let told = stage.told().await;
    let notes: Vec<_> = told.iter().map(|event| text(&event["note"])).collect();
    assert!(notes.len() == 1 && notes[0].contains("is still forbidden"), "{notes:?}");
    health.absent();
    stage.work.take_now();
    assert_eq!(stage.events().await, [completed()]);
}

#[tokio::test]
async fn a_value_that_somebody_changed_is_theirs_and_told_on_the_pod_and_counted() {
    let stage = stage().await;
    stage.work_off().await;
    stage.events().await;
    stage.patches();
    stage.meddle("web-1", &json!({COST: "5"}));
    assert_eq!(stage.work_off().await, keys(&["web-1"]));
    assert_eq!(stage.patches()[0].body["metadata"]["annotations"], json!({MANAGED: null}), "only the record goes");
    assert_eq!(stage.annotations("web-1"), json!({COST: "5"}));
    let told = stage.told().await;
    assert_eq!(told.len(), 1, "{told:?}");
    let event = &told[0];
    assert_eq!((event["type"].as_str(), event["reason"].as_str()), (Some("Warning"), Some("DeletionCostConflict")));
    assert_eq!((about(event), &event["regarding"]["uid"]), ("Pod shop/web-1".to_owned(), &json!("web-1-uid")));
    let note = text(&event["note"]);
    assert!(note.contains("set \"5\" in controller.kubernetes.io/pod-deletion-cost"), "{note}");
    assert_eq!(stage.metric("conflicts_total").as_deref(), Some("1"));
    for value in ["6", "7"] {
        stage.meddle("web-1", &json!({COST: value}));
        stage.see_node("n1", &json!({"spec": {"unschedulable": value == "6"}}));
        assert!(!stage.work_off().await.contains(&key("web-1")));
    }
    assert_eq!(
        (stage.annotations("web-1"), stage.metric("conflicts_total").as_deref()),
        (json!({COST: "7"}), Some("1"))
    );
}

#[tokio::test]
async fn another_controller_of_a_replica_set_is_yielded_to_and_told_there() {
    let stage = stage().await;
    let began = Clock::wall();
    let taken = stage.work.rank(began);
    stage.look_at_all(&taken).await;
    stage.events().await;
    for (name, seconds) in [("web-1", 0), ("web-2", 0), ("web-4", 60)] {
        stage.meddle_at(name, &json!({COST: "100"}), began + SignedDuration::from_secs(seconds));
    }
    let taken = stage.work.rank(began + SignedDuration::from_secs(61));
    stage.look_at_all(&taken).await;
    let told = stage.told().await;
    let stood_down: Vec<_> = told.iter().filter(|event| event["reason"] == "DeletionCostStoodDown").collect();
    assert_eq!(stood_down.iter().map(|event| about(event)).collect::<Vec<_>>(), ["ReplicaSet shop/web"]);
    assert_eq!((&stood_down[0]["type"], &stood_down[0]["regarding"]["uid"]), (&json!("Warning"), &json!("web")));
    let until = began + SignedDuration::from_mins(11);
    let note = text(&stood_down[0]["note"]);
    let said: Timestamp = note.rsplit_once(' ').unwrap().1.parse().expect("it ends with a time");
    assert!((until.duration_since(said)).as_secs().abs() < 60, "{note}");
    let conflicts = told.iter().filter(|event| event["reason"] == "DeletionCostConflict").count();
    assert_eq!((conflicts, stage.metric("conflicts_total").as_deref()), (3, Some("3")));
    assert_eq!(stage.metric("stood_down{kind=\"ReplicaSet\"}").as_deref(), Some("1"));
    assert_eq!(stage.metric("stood_down{kind=\"Node\"}").as_deref(), Some("0"));
    for name in ["web-3", "web-5"] {
        assert_eq!(stage.annotations(name), json!({}), "{name}: our other values there are taken away");
    }
    assert_eq!(stage.annotations("api-1"), ours(stage.rank("n1")), "and no others");

    let taken = stage.work.rank(began + SignedDuration::from_mins(12));
    assert_eq!(taken, keys(&["web-3", "web-5"]), "what the other changed stays theirs");
    let told = stage.told().await;
    let resumed: Vec<_> = told.iter().filter(|event| event["reason"] == "DeletionCostResumed").collect();
    assert_eq!(resumed.iter().map(|event| about(event)).collect::<Vec<_>>(), ["ReplicaSet shop/web"]);
    assert_eq!(resumed[0]["type"], "Normal");
    assert_eq!(stage.metric("stood_down{kind=\"ReplicaSet\"}").as_deref(), Some("0"));
}

#[tokio::test]
async fn another_controller_of_a_node_is_yielded_to_and_told_there() {
    let stage = stage().await;
    stage.work_off().await;
    stage.events().await;
    let began = Clock::wall();
    for (name, seconds) in [("web-2", 0), ("web-3", 0), ("api-2", 60)] {
        stage.meddle_at(name, &json!({COST: null}), began + SignedDuration::from_secs(seconds));
    }
    stage.work_off().await;
    let told = stage.told().await;
    let stood_down: Vec<_> = told.iter().filter(|event| event["reason"] == "DeletionCostStoodDown").collect();
    assert_eq!(stood_down.iter().map(|event| about(event)).collect::<Vec<_>>(), ["Node default/n2"]);
    assert_eq!(stood_down[0]["regarding"]["uid"], "n2", "as the kubelet has it, so that it is found there");
    assert_eq!(stage.metric("stood_down{kind=\"Node\"}").as_deref(), Some("1"));
    assert_eq!(stage.metric("nodes{group=\"Protected\"}").as_deref(), Some("1"));
    for name in ["web-2", "web-3", "api-2"] {
        assert_eq!(stage.annotations(name), json!({}), "{name}: not put back, and no record either");
    }
}

#[tokio::test]
async fn nodes_are_counted_by_group_as_long_as_this_replica_leads() {
    let stage = stage().await;
    stage.see_node("n2", &json!({"spec": {"unschedulable": true}}));
    stage.see_node("n4", &json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}));
    stage.work.take_now();
    let counts = || {
        let groups = ["Draining", "Drifted", "Normal", "Waiting", "Protected"];
        groups.map(|group| stage.metric(&format!("nodes{{group=\"{group}\"}}")))
    };
    let expected = ["1", "0", "2", "0", "1"].map(|count| Some(count.to_owned()));
    assert_eq!(counts(), expected);
    let passes = |result: &str| stage.metric(&format!("passes_total{{result=\"{result}\"}}"));
    assert_eq!((passes("Ranked").as_deref(), passes("Unchanged")), (Some("1"), None));
    stage.work.take_now();
    assert_eq!((passes("Ranked").as_deref(), passes("Unchanged").as_deref()), (Some("1"), Some("1")));
    stage.work.observe(false);
    assert_eq!(counts(), [const { None }; 5]);
    stage.work.take_now();
    assert_eq!(counts(), [const { None }; 5]);
    stage.work.observe(true);
    stage.work.touch_all();
    stage.work.take_now();
    assert_eq!(counts(), expected, "though nothing has changed");
}
