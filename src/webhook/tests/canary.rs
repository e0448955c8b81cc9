//! Probes, as the API server brings them.

use belay_decide::probe::{ANNOTATION, POD, Reply, Verdict};

use super::*;

const NONCE: &str = "0123456789abcdef";

/// The recorded eviction as a probe asks for it, with these annotations.
fn probe(annotations: &Value) -> String {
    let mut review: Value = serde_json::from_str(DRY_RUN).unwrap();
    let request = &mut review["request"];
    (request["name"], request["namespace"], request["dryRun"]) = (json!(POD), json!("belay-system"), json!(true));
    request["object"]["metadata"] = json!({ "name": POD, "namespace": "belay-system", "annotations": annotations });
    review.to_string()
}

#[tokio::test]
async fn a_probe_is_told_which_replica_it_reached() {
    let webhook = Webhook::of(&testing::config(""));
    let response = webhook.review(CANARY_PATH, probe(&json!({ ANNOTATION: NONCE }))).await;
    let warnings: Vec<String> = serde_json::from_value(response["warnings"].clone()).unwrap();
    let reply = Reply { code: 404, warnings, message: String::new(), missing: "pods".into() };
    assert_eq!(Verdict::of_reply(&reply, NONCE), Verdict::Reached { replica: "belay-webhook-1".into() });
    assert_eq!(response["allowed"], true);
}

#[tokio::test]
async fn whatever_else_comes_there_passes_without_a_word() {
    let webhook = Webhook::of(&testing::config(""));
    webhook.fill();
    webhook.hold();
    let table = [
        ("the eviction of a pod that is held", EVICTION.to_owned()),
        ("no annotations", probe(&Value::Null)),
        ("another annotation", probe(&json!({ "example.com/probe": NONCE }))),
        ("a word that is none", probe(&json!({ ANNOTATION: "two words" }))),
        ("a word of megabytes", probe(&json!({ ANNOTATION: "x".repeat(1 << 20) }))),
        ("a number for a word", probe(&json!({ ANNOTATION: 7 }))),
    ];
    for (name, review) in table {
        let response = webhook.review(CANARY_PATH, review).await;
        assert_eq!(response["allowed"], true, "{name}");
        assert!(response["warnings"].is_null() && response["patch"].is_null(), "{name}: {response}");
    }
    let metrics = webhook.handlers.metrics.encode().unwrap();
    let mut counts = metrics.lines().filter(|line| line.starts_with("belay_eviction_reviews_total{"));
    assert!(counts.all(|count| count.ends_with(" 0")), "a probe is no eviction: {metrics}");
}

#[tokio::test]
async fn at_the_path_of_evictions_a_probe_is_an_eviction_in_belays_own_namespace() {
    let webhook = Webhook::of(&testing::config(""));
    let response = webhook.review(EVICTION_PATH, probe(&json!({ ANNOTATION: NONCE }))).await;
    assert_eq!(response["allowed"], true);
    let metrics = webhook.handlers.metrics.encode().unwrap();
    assert!(metrics.contains(r#"decision="Allow",reason="ExcludedNamespace""#), "{metrics}");
}
