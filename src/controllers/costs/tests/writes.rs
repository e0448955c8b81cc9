//! What is written, and when not.

use super::*;

#[tokio::test]
async fn each_pod_whose_value_differs_gets_it_in_one_patch_and_then_nothing_is_written() {
    let stage = stage().await;
    stage.meddle("web-2", &json!({COST: "77"}));
    let taken = stage.work.take_now();
    assert_eq!(
        taken,
        keys(&["api-1", "api-2", "api-3", "web-1", "web-3", "web-4", "web-5"]),
        "what is a user's is not asked for"
    );
    assert!(stage.rank("n1") < stage.rank("n2") && stage.rank("n2") < stage.rank("n3"), "by the number of pods");
    assert_eq!(stage.look("api-2").await, (1, None));
    let expected = Asked {
        what: format!("PATCH {PODS}api-2"),
        query: BTreeMap::from([("fieldManager".to_owned(), "belay".to_owned())]),
        content_type: "application/merge-patch+json".to_owned(),
        body: json!({"metadata": {"uid": "api-2-uid", "resourceVersion": "1", "annotations": ours(stage.rank("n2"))}}),
    };
    assert_eq!(stage.patches(), [expected]);
    stage.see("api-2");
    stage.look_at_all(&taken).await;
    assert_eq!(stage.patches().len(), taken.len() - 1, "one each");
    for (name, node) in [("web-1", "n1"), ("web-3", "n2"), ("web-4", "n3"), ("api-3", "n3")] {
        assert_eq!(stage.annotations(name), ours(stage.rank(node)), "{name}");
    }
    assert_eq!(stage.annotations("web-2"), json!({COST: "77"}));
    assert_eq!(stage.annotations("single-1"), Value::Null, "a set of one pod has nothing to choose");
    assert_eq!(stage.metric("writes_total{result=\"Ok\"}").as_deref(), Some("7"));

    assert_eq!(stage.work_off().await, keys(&[]));
    stage.work.touch_all();
    assert_eq!(stage.work_off().await, keys(&[]), "not even where everything is looked at");
    assert_eq!(stage.look("api-2").await, (0, None));
}

#[tokio::test]
async fn one_nodes_change_is_written_to_that_nodes_pods_alone() {
    let stage = stage().await;
    assert_eq!(stage.work_off().await, keys(&RANKED));
    let changed = stage.metric("changed_nodes_total").unwrap();
    stage.patches();
    stage.see_node("n2", &json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}));
    assert_eq!(stage.work_off().await, keys(&["api-2", "web-2", "web-3"]));
    let nothing = json!({COST: null, MANAGED: null});
    assert!(stage.patches().iter().all(|patch| patch.body["metadata"]["annotations"] == nothing));
    assert_eq!(stage.annotations("web-2"), json!({}), "what is to stay carries nothing");
    assert_eq!((changed.as_str(), stage.metric("changed_nodes_total").as_deref()), ("3", Some("4")));
    stage.see_node("n2", &json!({}));
    assert_eq!(stage.work_off().await, keys(&["api-2", "web-2", "web-3"]), "and back");
}

#[tokio::test]
async fn a_pod_is_left_alone_until_our_own_write_is_seen() {
    let stage = stage().await;
    stage.work.take_now();
    assert_eq!(stage.look("web-1").await, (1, None));
    for _ in 0..3 {
        assert_eq!(stage.look("web-1").await, (0, Some(2)), "it would only meet a conflict");
    }
    stage.see("web-1");
    assert_eq!(stage.look("web-1").await, (0, None));
}

#[tokio::test]
async fn who_wrote_in_between_is_met_by_a_new_decision() {
    let stage = stage().await;
    stage.work.take_now();
    for (name, theirs, decided) in [("web-1", json!({COST: "5"}), 0), ("web-2", json!({"note": "x"}), 1)] {
        stage.stored.lock().write(name, &json!({"metadata": {"annotations": theirs}}));
        assert_eq!(stage.look(name).await, (1, Some(2)), "{name}: a conflict");
        assert_eq!(stage.annotations(name), theirs, "{name}: nothing was written");
        stage.see(name);
        assert_eq!(stage.look(name).await, (decided, None), "{name}");
    }
    assert_eq!(stage.annotations("web-1"), json!({COST: "5"}), "a user's from the start, which is no conflict");
    assert_eq!(stage.annotations("web-2")[COST], stage.rank("n2").to_string());
    assert_eq!(stage.metric("writes_total{result=\"Conflict\"}").as_deref(), Some("2"));
    assert_eq!(stage.metric("conflicts_total").as_deref(), Some("0"));
    stage.work.take_now();
    assert_eq!(stage.events().await.iter().filter(|(reason, _)| reason == "DeletionCostConflict").count(), 0);
}

#[tokio::test]
async fn another_pod_of_that_name_is_not_written() {
    let stage = stage().await;
    stage.work.take_now();
    stage.stored.lock().pods.get_mut("web-1").unwrap()["metadata"]["uid"] = json!("next");
    assert_eq!(stage.look("web-1").await, (1, Some(2)));
    assert_eq!(stage.annotations("web-1"), Value::Null);
    stage.see("web-1");
    assert_eq!(stage.look("web-1").await, (0, None), "what it is to carry is not decided yet");
    assert!(stage.work.take_now().contains(&key("web-1")));
    assert_eq!(stage.look("web-1").await, (1, None));
    assert_eq!(stage.patches()[1].body["metadata"]["uid"], "next");
}

#[tokio::test]
async fn a_pod_whose_patch_fails_is_looked_at_again_as_soon_as_that_makes_sense() {
    let gone = "Pod \"web-1\" is invalid: metadata.uid: Invalid value";
    let table = [
        ("Gone", Reply::Status(404, "pods \"web-1\" not found"), 2),
        ("Gone", Reply::Status(422, gone), 2),
        ("Forbidden", Reply::Status(403, "pods \"web-1\" is forbidden"), 15),
        ("Unreachable", Reply::Status(500, "etcdserver: request timed out"), 2),
        ("Refused", Reply::Status(422, "metadata.annotations: Too long"), 300),
    ];
    for (label, trouble, seconds) in table {
        let stage = stage().await;
        stage.work.take_now();
        stage.stored.lock().trouble = Some(trouble);
        assert_eq!(stage.look("web-1").await, (1, Some(seconds)), "{label}");
        assert_eq!(stage.metric(&format!("writes_total{{result=\"{label}\"}}")).as_deref(), Some("1"));
        stage.stored.lock().trouble = None;
        assert_eq!(stage.look("web-1").await, (1, None), "{label}: nothing is awaited of a write that failed");
    }
}

#[tokio::test]
async fn a_pod_whose_patch_fails_again_and_again_waits_longer_each_time() {
    let table: [(Reply, &[i64]); 2] = [
        (Reply::Status(500, "etcdserver: request timed out"), &[2, 4, 8, 16, 30, 30]),
        (Reply::Status(403, "admission webhook \"w\" denied the request"), &[15, 30, 60, 120, 240, 300, 300]),
    ];
    let stage = stage().await;
    stage.work.take_now();
    for (trouble, pauses) in table {
        stage.stored.lock().trouble = Some(trouble.clone());
        for pause in pauses {
            assert_eq!(stage.look("web-1").await, (1, Some(*pause)), "{trouble:?}");
        }
        assert_eq!(stage.look("web-2").await, (1, Some(pauses[0])), "another pod's own");
        stage.stored.lock().trouble = None;
        for name in ["web-1", "web-2"] {
            assert_eq!(stage.look(name).await, (1, None), "{trouble:?}");
            stage.meddle(name, &json!({COST: null}));
        }
        stage.work.take_now();
    }
}

#[tokio::test]
async fn without_the_right_to_write_one_pod_is_tried_now_and_then_and_it_is_told_once() {
    let stage = stage().await;
    let missing = "pods \"web\" is forbidden: User \"belay\" cannot patch resource \"pods\" in API group \"\"";
    let taken = stage.work.take_now();
    stage.events().await;
    stage.stored.lock().trouble = Some(Reply::Status(403, missing));
    for (seconds, next) in [(0, 5), (5, 10), (10, 20), (20, 40)] {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        tokio::time::resume();
        let mut patches = 0;
        for key in &taken {
            let (count, wake) = stage.look(&key.name).await;
            assert_eq!(wake, Some(next), "{key}");
            patches += count;
        }
        assert_eq!(patches, 1, "of {} pods, after {seconds} s", taken.len());
        stage.work.take_now();
    }
    assert_eq!(stage.metric("writes_total{result=\"Forbidden\"}").as_deref(), Some("4"));
    let told = stage.told().await;
    let notes: Vec<_> = told.iter().map(|event| (text(&event["reason"]), text(&event["note"]))).collect();
    let [(reason, note)] = notes.as_slice() else { panic!("{notes:?}") };
    assert_eq!(reason, "RankingFailed");
    assert!(note.contains("cannot patch resource \"pods\"") && note.contains("grant it"), "{note}");
    // It is granted.
    stage.stored.lock().trouble = None;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(40)).await;
    tokio::time::resume();
    assert_eq!(stage.look_at_all(&taken).await, taken);
    assert_eq!(stage.events().await, []);
}

#[tokio::test(start_paused = true)]
async fn nodes_are_looked_at_once_in_so_long_whatever_wakes_the_loop() {
    let stage = stage().await;
    let passes = |result: &str| stage.metric(&format!("passes_total{{result=\"{result}\"}}"));
    let began = Instant::now();
    stage.work.changed().await;
    assert_eq!(began.elapsed(), GATHER, "what comes together is gathered");
    assert_eq!(stage.work.take(), keys(&RANKED));
    for _ in 0..50 {
        assert_eq!(stage.work.take(), keys(&[]), "as after a write");
    }
    assert_eq!((passes("Ranked").as_deref(), passes("Unchanged")), (Some("1"), None));
    // Writes that end break the wait for a change off, and it is neither forgotten nor put off.
    tokio::time::advance(GATHER * 2).await;
    assert_eq!(stage.work.take(), keys(&[]));
    assert_eq!(passes("Unchanged").as_deref(), Some("1"));
    let began = Instant::now();
    stage.see_node("n2", &json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}));
    for _ in 0..4 {
        tokio::select! {
            () = stage.work.changed() => panic!("too soon, after {:?}", began.elapsed()),
            () = tokio::time::sleep(GATHER / 5) => {}
        }
        assert_eq!(stage.work.take(), keys(&[]));
    }
    stage.work.changed().await;
    assert_eq!(began.elapsed(), GATHER);
    assert_eq!(passes("Ranked").as_deref(), Some("1"));
    stage.work.take();
    assert_eq!(passes("Ranked").as_deref(), Some("2"));
    stage.work.touch_all();
    assert!(!stage.work.take().is_empty(), "where everything is to be looked at nothing is waited for");
}

#[tokio::test]
async fn a_value_that_is_too_low_goes_before_one_that_is_too_high() {
    let stage = stage().await;
    let urgent = || RANKED.into_iter().filter(|name| stage.work.is_urgent(&key(name))).collect::<Vec<_>>();
    let taken = stage.work.take_now();
    assert_eq!(urgent(), [""; 0], "none stands yet, which reads as the highest");
    stage.look_at_all(&taken).await;
    stage.see_node("n1", &json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}));
    let taken = stage.work.take_now();
    assert_eq!(urgent(), ["api-1", "web-1"], "their node is to stay now");
    stage.look_at_all(&taken).await;
    stage.see_node("n1", &json!({}));
    assert!(stage.work.take_now().is_superset(&keys(&["api-1", "web-1"])));
    assert_eq!(urgent().iter().filter(|name| ["api-1", "web-1"].contains(name)).count(), 0, "and may go again");
}

#[tokio::test]
async fn what_is_removed_is_put_back_twice_and_then_given_up() {
    let stage = stage().await;
    stage.work_off().await;
    let value = ours(stage.rank("n1"));
    for removal in 1..=2 {
        stage.meddle("web-1", &json!({COST: null}));
        assert_eq!(stage.work_off().await, keys(&["web-1"]), "removal {removal}");
        assert_eq!(stage.annotations("web-1"), value, "removal {removal}");
    }
    // A write that fails is no answer to a removal, and the same removal is counted once.
    stage.stored.lock().trouble = Some(Reply::Status(500, "etcdserver: leader changed"));
    stage.meddle("web-1", &json!({COST: null}));
    stage.work.take_now();
    for _ in 0..3 {
        stage.look("web-1").await;
    }
    assert_eq!(stage.metric("conflicts_total").as_deref(), Some("0"), "it was not written");
    stage.stored.lock().trouble = None;
    assert_eq!(stage.look("web-1").await, (1, None));
    assert_eq!(stage.annotations("web-1"), json!({MANAGED: json!({COST: null}).to_string()}));
    assert_eq!(stage.metric("conflicts_total").as_deref(), Some("1"));
    let events = stage.told().await;
    let conflict = events.iter().find(|event| event["reason"] == "DeletionCostConflict").expect("it is told");
    assert!(text(&conflict["note"]).contains("keeps removing"), "{conflict}");
    stage.see("web-1");
    stage.see_node("n1", &json!({"spec": {"unschedulable": true}}));
    assert!(!stage.work_off().await.contains(&key("web-1")), "whatever becomes of its node");
}

#[tokio::test]
async fn removals_are_a_pods_own_and_forgotten_with_it() {
    let stage = stage().await;
    stage.work_off().await;
    for _ in 0..2 {
        stage.meddle("web-1", &json!({COST: null}));
        stage.work_off().await;
    }
    assert_eq!(stage.work.remembered.removals.lock().len(), 1);
    // The next pod of that name begins anew.
    stage.stored.lock().pods.get_mut("web-1").unwrap()["metadata"]["uid"] = json!("next");
    stage.meddle("web-1", &json!({COST: null}));
    stage.work_off().await;
    assert_eq!(stage.annotations("web-1"), ours(stage.rank("n1")));
    let pod = serde_json::from_value(stage.stored.lock().pods["web-1"].clone()).unwrap();
    CostSink(Some(stage.work.costs.clone())).delete(project_cost::pod(&pod, &LeftOut::default(), Clock::wall()));
    stage.work.take_now();
    assert!(stage.work.remembered.removals.lock().is_empty());
    assert_eq!(stage.look("web-1").await, (0, None));
}

#[tokio::test]
async fn nothing_is_written_while_something_cannot_be_watched_and_everything_is_looked_at_after() {
    let health = Health::new("poddisruptionbudgets", Gauge::default());
    let stage = stage_with(vec![health.clone()], 1000).await;
    assert_eq!(stage.work.take_now(), keys(&RANKED), "found before the trouble began");
    health.note("poddisruptionbudgets is forbidden", true);
    assert_eq!(stage.look("web-1").await, (0, None));
    assert_eq!(stage.work_off().await, keys(&[]));
    health.absent();
    assert_eq!(stage.work_off().await, keys(&RANKED), "though nothing has changed since");
}

#[tokio::test]
async fn who_does_not_lead_writes_nothing() {
    let stage = stage().await;
    let taken = stage.work.take_now();
    stage.leadership.lose();
    for key in &taken {
        assert_eq!(stage.look(&key.name).await, (0, Some(2)), "{key}");
    }
    assert_eq!(stage.metric("writes_total{result=\"NotLeading\"}").as_deref(), Some("8"));
    stage.leadership.win();
    assert_eq!(stage.look_at_all(&taken).await, keys(&RANKED));
}

#[tokio::test]
async fn a_new_leader_looks_at_everything_and_who_loses_the_lead_stops() {
    let Stage { stored, leadership, work, _api } = stage().await;
    leadership.lose();
    let (costs, metrics, stop) = (work.costs.clone(), Arc::clone(&work.shared.metrics), CancellationToken::new());
    let running = tokio::spawn(work.run(stop.clone()));
    let until = async |what: &str, is_so: &dyn Fn() -> bool| {
        let so = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, so).await.unwrap_or_else(|_| panic!("never: {what}"));
    };
    let sink = || CostSink(Some(costs.clone()));
    let see_node = |name: &str, more: &Value| {
        sink().apply(project_cost::node(&serde_json::from_value(node(name, more)).unwrap(), Clock::wall()));
    };
    let count = || costs.read(|cluster| cluster.ranking().order().count());
    until("it ranks nodes without leading", &|| count() == 3).await;
    see_node("n4", &json!({}));
    until("it ranks another one", &|| count() == 4).await;
    let told = {
        let stored = stored.lock();
        (stored.patches.len(), stored.events.len())
    };
    assert_eq!(told, (0, 0), "but tells nobody");
    assert!(!metrics.encode().unwrap().contains("deletion_cost_nodes{"));

    leadership.win();
    until("all pods have their value", &|| stored.lock().patches.len() == 8).await;
    leadership.lose();
    until("nobody is told how many nodes there are", &|| !metrics.encode().unwrap().contains("deletion_cost_nodes{"))
        .await;
    // None of the writes is seen yet. A later one is of the pods as they are by then.
    let pods: Vec<_> = stored.lock().pods.values().cloned().collect();
    for pod in pods {
        let pod = serde_json::from_value(pod).unwrap();
        sink().apply(project_cost::pod(&pod, &LeftOut::default(), Clock::wall()));
    }
    see_node("n2", &json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}));
    until("n2 has no rank", &|| count() == 3).await;
    assert_eq!(stored.lock().patches.len(), 8);
    leadership.win();
    until("its pods lose their values", &|| stored.lock().patches.len() == 11).await;
    until("it is told how many nodes there are", &|| metrics.encode().unwrap().contains("deletion_cost_nodes{")).await;
    stop.cancel();
    tokio::time::timeout(PATIENCE, running).await.expect("it goes on").unwrap();
    assert_eq!(stored.lock().patches.len(), 11);
    assert_eq!(stored.lock().events.len(), 0, "each lead found the order as it is");
}

#[tokio::test]
async fn writes_keep_to_a_rate_of_their_own_and_what_has_to_wait_is_decided_only_then() {
    use futures::FutureExt as _;

    let stage = stage_with(Vec::new(), 1).await;
    stage.work.take_now();
    // Twice as many as in a second may come at once.
    for name in ["web-1", "web-2"] {
        assert_eq!(stage.look(name).await, (1, None));
    }
    stage.see("web-1");
    assert_eq!(
        stage.work.look(&key("web-1")).now_or_never(),
        Some(None),
        "where nothing is to be written nothing waits"
    );
    let started = Instant::now();
    let (looked, ()) = tokio::join!(stage.look("web-3"), async { stage.meddle("web-3", &json!({COST: "5"})) });
    assert_eq!(looked, (0, None), "it became a user's while it waited");
    assert_eq!(stage.look("web-4").await, (1, None));
    assert!(started.elapsed() >= Duration::from_millis(1900), "{:?} for two", started.elapsed());
}
