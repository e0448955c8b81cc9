//! Creations of pods where the API server serves `lifecycle.k8s.io`: they name Belay as a responder.

use belay_decide::lifecycle::{self, PRIORITY, RESPONDER};
use proptest::prelude::*;

use super::*;
use crate::cluster::owners::Served;

/// A rule for the recorded pod, which is of a ReplicaSet.
const RULES: &str = "
- name: rec
  podSelector: {matchLabels: {app: rec}}
  states: [{state: Busy, when: 'true'}]
";

/// A webhook whose cache holds the protected Deployment `web`.
fn protecting(more: &str) -> Webhook {
    let webhook = Webhook::of(&testing::config(more));
    webhook.fill();
    webhook.serve();
    webhook
}

fn governing() -> Webhook {
    let webhook = Webhook::of(&testing::config_of_rules(RULES));
    webhook.serve();
    webhook
}

impl Webhook {
    /// The API server serves Evictions from now on.
    fn serve(&self) {
        let served = Served::of(&lifecycle::eviction(), lifecycle::VERSION, "evictions");
        self.handlers.resources.set(&lifecycle::eviction(), Some(served));
    }

    /// How many pods were given the entry.
    fn given(&self) -> String {
        let text = self.handlers.metrics.encode().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("belay_pods_given_responder_total "));
        line.expect("counted from the start").to_owned()
    }

    /// The pod as it is created.
    async fn created(&self, path: &str, review: &Value) -> Value {
        let response = self.review(path, review.to_string()).await;
        assert_eq!(response["allowed"], true);
        if response["patch"].is_null() { review["request"]["object"].clone() } else { patched(review, &response) }
    }
}

/// The recorded creation, of a pod of `web`, bent.
fn of_web(bend: impl FnOnce(&mut Value)) -> Value {
    let mut review: Value = serde_json::from_str(&CREATION.replace("rec-6dbcd878fd", "web-6dbcd878fd")).unwrap();
    bend(&mut review["request"]);
    review
}

fn entry() -> Value {
    json!({"name": RESPONDER, "priority": PRIORITY})
}

#[tokio::test]
async fn a_pod_of_a_protected_deployment_names_belay_as_a_responder() {
    let webhook = protecting("");
    let review = of_web(|_| {});
    let mut expected = review["request"]["object"].clone();
    expected["spec"]["evictionResponders"] = json!([entry()]);
    assert_eq!(webhook.created(PODS_PATH, &review).await, expected, "and nothing else");
    assert_eq!(webhook.given(), "1");

    let dry = of_web(|request| request["dryRun"] = json!(true));
    assert_eq!(webhook.created(PODS_PATH, &dry).await, expected, "a dry run shows what would be");
    assert_eq!(webhook.given(), "1");

    webhook.hold();
    let steered = webhook.created(PODS_PATH, &review).await;
    assert_eq!(steered["spec"]["evictionResponders"], json!([entry()]));
    assert!(steered["spec"]["affinity"]["podAntiAffinity"].is_object(), "both: {steered}");
}

#[tokio::test]
async fn a_pod_that_a_busy_rule_governs_names_belay_as_a_responder_once() {
    let webhook = governing();
    let review: Value = serde_json::from_str(CREATION).unwrap();
    let created = webhook.created(BUSY_PATH, &review).await;
    assert_eq!(created["spec"]["evictionResponders"], json!([entry()]));
    assert!(created["metadata"]["annotations"]["belay.dev/managed"].is_string(), "{created}");
    let mut again = review.clone();
    again["request"]["object"] = created.clone();
    assert_eq!(webhook.created(BUSY_PATH, &again).await, created, "asked again");
    assert_eq!(webhook.given(), "1");
}

#[tokio::test]
async fn no_other_pod_names_anybody() {
    let mirror = |request: &mut Value| {
        request["object"]["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    };
    let grouped = |request: &mut Value| request["object"]["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
    let ten: Value = (0..10).map(|number| json!({"name": format!("a.io/{number}"), "priority": 2000})).collect();
    let full = move |request: &mut Value| request["object"]["spec"]["evictionResponders"] = ten.clone();
    let elsewhere = |request: &mut Value| request["namespace"] = json!("other");
    let excluded = "evictionHold: {excludedNamespaces: [default]}\n";
    let table: [(&str, &str, Value); 8] = [
        ("a mirror pod", "", of_web(mirror)),
        ("a pod of a PodGroup", "", of_web(grouped)),
        ("a pod that names ten others", "", of_web(full)),
        ("a pod of a Deployment of another namespace", "", of_web(elsewhere)),
        ("a pod of another Deployment", "", serde_json::from_str(CREATION).unwrap()),
        ("a pod of no Deployment", "", of_web(|request| request["object"]["metadata"]["ownerReferences"] = json!([]))),
        ("in an excluded namespace", excluded, of_web(|_| {})),
        ("with the hold off", "evictionHold: {enabled: false}\n", of_web(|_| {})),
    ];
    for (name, config, review) in table {
        let created = protecting(config).created(PODS_PATH, &review).await;
        assert_eq!(created, review["request"]["object"], "{name}");
    }
    let unserved = protecting("");
    unserved.handlers.resources.set(&lifecycle::eviction(), None);
    let review = of_web(|_| {});
    assert_eq!(unserved.created(PODS_PATH, &review).await, review["request"]["object"], "where nobody would respond");
    let table = [
        (
            "a mirror pod",
            serde_json::from_str::<Value>(CREATION).map(|mut review| {
                mirror(&mut review["request"]);
                review
            }),
        ),
        (
            "in an excluded namespace",
            serde_json::from_str::<Value>(CREATION).map(|mut review| {
                review["request"]["namespace"] = json!("kube-system");
                review
            }),
        ),
    ];
    for (name, review) in table {
        let created = governing().created(BUSY_PATH, &review.unwrap()).await;
        assert!(created["spec"]["evictionResponders"].is_null(), "{name}");
    }
}

/// Anything that may stand in the field.
fn any_responders() -> impl Strategy<Value = Value> {
    let one = prop_oneof![
        3 => "[a-z]{1,2}".prop_map(|name| json!({"name": format!("{name}.io/x"), "priority": 2000})),
        1 => Just(json!({"name": RESPONDER, "priority": 7})),
        1 => Just(json!("x")),
        1 => Just(Value::Null),
    ];
    prop_oneof![
        4 => proptest::collection::vec(one, 0..13).prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(json!({})),
        1 => Just(json!("x")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_patch_always_applies_and_only_adds_one_entry(responders in any_responders(), by_rule in any::<bool>()) {
        let (webhook, path, mut review) = if by_rule {
            (governing(), BUSY_PATH, serde_json::from_str(CREATION).unwrap())
        } else {
            (protecting(""), PODS_PATH, of_web(|_| {}))
        };
        review["request"]["object"]["spec"]["evictionResponders"] = responders.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let created = runtime.block_on(webhook.created(path, &review));
        let (before, after) = (responders.as_array().cloned(), &created["spec"]["evictionResponders"]);
        match (before, after.as_array()) {
            (Some(before), Some(after)) => {
                prop_assert!(after.starts_with(&before) && after.len() <= before.len() + 1, "{:?}", after);
                prop_assert!(after.len() == before.len() || (after.len() <= 10 && after.last() == Some(&entry())));
            }
            (None, Some(after)) => prop_assert!(responders.is_null() && after == &[entry()], "{:?}", after),
            (_, None) => prop_assert_eq!(after, &responders),
        }
    }
}
