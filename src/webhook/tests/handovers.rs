//! Reviews of pods that handover policies protect.

use proptest::prelude::*;

use super::*;

/// A webhook with handover policies alone, whose cache holds the protected Deployment.
fn protecting() -> Webhook {
    let webhook = Webhook::of(&testing::config(""));
    webhook.fill();
    webhook
}

#[tokio::test]
async fn a_recorded_eviction_is_held_and_its_hold_recorded_once() {
    let mut webhook = protecting();
    for _ in 0..3 {
        let response = webhook.review(EVICTION_PATH, EVICTION).await;
        assert_eq!(response["uid"], "371e4411-cf51-4018-ae12-4ddcc4b2a6c5");
        assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(429)));
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("belay: holding web-d7f965486-ppzlz: "), "{message}");
    }
    let entry = webhook.records.try_recv().unwrap();
    let What::Hold(spec) = entry.what else { panic!("{entry:?}") };
    assert_eq!(
        (entry.namespace.as_str(), spec.victim_uid.as_str(), spec.evictor.as_str()),
        ("default", "p", "drainer")
    );
    assert!(webhook.records.try_recv().is_err(), "retries must not queue the same hold again");
}

#[tokio::test]
async fn a_recorded_dry_run_passes_with_a_warning_and_leaves_nothing() {
    let mut webhook = protecting();
    let named = DRY_RUN.replace("rec-6dbcd878fd-98q5c", "web-d7f965486-ppzlz");
    let response = webhook.review(EVICTION_PATH, named).await;
    assert_eq!(response["allowed"], true);
    assert!(response["warnings"][0].as_str().unwrap().contains("would be held"), "{response}");
    assert!(webhook.records.try_recv().is_err());
}

/// What is noted of the recorded hold: nothing, or that its eviction is asked for.
fn is_noted(webhook: &mut Webhook) -> bool {
    match webhook.records.try_recv() {
        Ok(Entry { namespace, what: What::Asked { name, uid, .. } }) => {
            assert_eq!((&*namespace, &*name, &*uid), ("default", "web-d7f965486-ppzlz-p", "e"));
            true
        }
        Ok(other) => panic!("{other:?}"),
        Err(_) => false,
    }
}

#[tokio::test]
async fn an_eviction_that_is_asked_for_again_is_noted_in_its_hold_also_after_the_release() {
    let dry_run = DRY_RUN.replace("rec-6dbcd878fd-98q5c", "web-d7f965486-ppzlz");
    let just_now = Clock::start().now().wall;
    let table = [
        ("a hold that was recorded long ago", EVICTION, json!({}), true),
        ("one that is released, by whose victim somebody still waits", EVICTION, json!({"phase": "Released"}), true),
        ("one whose victim is gone", EVICTION, json!({"phase": "Completed"}), false),
        ("one that another replica noted just now", EVICTION, json!({"lastRequestedAt": just_now}), false),
        ("a dry run", dry_run.as_str(), json!({}), false),
    ];
    for (name, review, status, noted) in table {
        let mut webhook = protecting();
        webhook.hold_with(&status);
        webhook.review(EVICTION_PATH, review).await;
        assert_eq!(is_noted(&mut webhook), noted, "{name}");
        webhook.review(EVICTION_PATH, review).await;
        assert!(!is_noted(&mut webhook), "{name}: within the minute it is enough to have said it once");
    }
    let mut webhook = protecting();
    webhook.hold();
    let mut other: Value = serde_json::from_str(EVICTION).unwrap();
    other["request"]["object"]["deleteOptions"]["preconditions"] = json!({"uid": "of another pod of that name"});
    webhook.review(EVICTION_PATH, other.to_string()).await;
    assert!(!is_noted(&mut webhook), "another pod was meant");
}

/// The recorded creation, of another revision of `web`, with this affinity.
fn creation(affinity: Option<Value>) -> Value {
    let text = CREATION.replace("rec-6dbcd878fd", "web-6dbcd878fd");
    let mut review: Value = serde_json::from_str(&text).unwrap();
    if let Some(affinity) = affinity {
        review["request"]["object"]["spec"]["affinity"] = affinity;
    }
    review
}

#[tokio::test]
async fn a_recorded_creation_is_kept_off_its_victims_node_while_a_handover_runs() {
    let webhook = protecting();
    let review = creation(None);
    let response = webhook.review(PODS_PATH, review.to_string()).await;
    assert!(response["patch"].is_null(), "without a hold there is nothing to avoid");

    webhook.hold();
    let response = webhook.review(PODS_PATH, review.to_string()).await;
    let pod = patched(&review, &response);
    let terms = &pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let expected = json!([{
        "labelSelector": {"matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "pod-template-hash", "operator": "In", "values": ["d7f965486"]}]},
        "topologyKey": "kubernetes.io/hostname",
    }]);
    assert_eq!(*terms, expected);

    let mut mirror = review.clone();
    mirror["request"]["object"]["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert!(webhook.review(PODS_PATH, mirror.to_string()).await["patch"].is_null(), "mirror pods are left alone");
    let mut placed = review.clone();
    placed["request"]["object"]["spec"]["nodeName"] = json!("node-1");
    assert!(webhook.review(PODS_PATH, placed.to_string()).await["patch"].is_null(), "a placed pod cannot avoid");
}

/// Anything that JSON can hold, with the keys of an affinity made likely.
fn any_affinity() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        Just("podAntiAffinity".to_owned()),
        Just("nodeAffinity".to_owned()),
        Just("requiredDuringSchedulingIgnoredDuringExecution".to_owned()),
        Just("preferredDuringSchedulingIgnoredDuringExecution".to_owned()),
        "[a-z~/]{0,4}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        ".{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_patch_always_applies_and_takes_nothing_away(affinity in any_affinity()) {
        let webhook = protecting();
        webhook.hold();
        let review = creation(Some(affinity.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(webhook.review(PODS_PATH, review.to_string()));
        prop_assert_eq!(&response["allowed"], &json!(true));
        if !response["patch"].is_null() {
            let pod = patched(&review, &response);
            prop_assert!(contains(&pod["spec"]["affinity"], &affinity), "{} lost something of {}", pod, affinity);
        }
    }
}
