//! Creations of pods that busy rules select: `POST /mutate/busy`.

use std::collections::BTreeMap;

use belay_decide::busy::{GroupKind, hints};
use belay_decide::ownership::Record;
use proptest::prelude::*;

use super::*;
use crate::cluster::index::OwnerSink;
use crate::cluster::project_busy::{self, OwnerFields};

/// Rules for the recorded pod, which is of a ReplicaSet; that one says whether it is busy. `bare` selects pods without
/// labels, too.
const RULES: &str = "
- name: set
  namespaces: [default, kube-system, ours]
  podSelector: {matchLabels: {app: rec}}
  owner: {group: apps, kind: ReplicaSet}
  states: [{state: Busy, when: owner.status.busy}]
- name: bare
  podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}
  states: [{state: Busy, when: 'true'}]
  hints: {castAi: true, spotOcean: true, deletionCost: true}
- name: sleeping
  podSelector: {matchLabels: {app: sleeping}}
  states: [{state: Busy, when: 'false'}]
";

const SAFE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
const MANAGED: &str = "belay.dev/managed";

fn ruled() -> Webhook {
    Webhook::of(&testing::config_of_rules(RULES))
}

impl Webhook {
    /// The ReplicaSet of the recorded pod says this.
    fn set_says(&self, busy: bool) {
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"namespace": "default", "name": "rec-6dbcd878fd", "uid": "78f0a190-87aa-4d62-9c8b-d4a5292d369f"},
            "status": {"busy": busy},
        });
        let mut sink = OwnerSink { index: self.handlers.index.clone(), kind: GroupKind::new("apps", "ReplicaSet") };
        let fields = OwnerFields { read: sink.fields().read, job_fields: Vec::new() };
        sink.apply(project_busy::owner(&serde_json::from_value(set).unwrap(), &fields));
    }

    /// How many pods were stamped.
    fn stamped(&self) -> String {
        let text = self.handlers.metrics.encode().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("belay_pods_stamped_total "));
        line.expect("counted from the start").to_owned()
    }
}

/// The recorded creation, bent.
fn creation(bend: impl FnOnce(&mut Value)) -> Value {
    let mut review: Value = serde_json::from_str(CREATION).unwrap();
    bend(&mut review["request"]);
    review
}

/// The recorded creation with other labels and annotations; absent where nothing is given.
fn marked(labels: Option<Value>, annotations: Option<Value>) -> Value {
    creation(|request| {
        let meta = request["object"]["metadata"].as_object_mut().unwrap();
        for (field, value) in [("labels", labels), ("annotations", annotations)] {
            match value {
                Some(value) => meta.insert(field.to_owned(), value),
                None => meta.remove(field),
            };
        }
    })
}

#[tokio::test]
async fn a_recorded_creation_gets_the_hints_of_a_pod_that_may_go() {
    let webhook = ruled();
    let review = creation(|_| {});
    assert_eq!(review["request"]["name"], Value::Null, "the server is to name it");
    let response = webhook.review(BUSY_PATH, review.to_string()).await;
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")));
    let mut expected = review["request"]["object"].clone();
    expected["metadata"]["annotations"] = json!({SAFE: "true", MANAGED: format!("{{\"{SAFE}\":\"true\"}}")});
    assert_eq!(patched(&review, &response), expected, "and nothing else");
    assert_eq!(webhook.stamped(), "1");
}

#[tokio::test]
async fn a_pod_whose_owner_is_busy_already_is_born_with_the_hints_of_a_busy_one() {
    let webhook = ruled();
    webhook.set_says(false);
    let review = creation(|_| {});
    let response = webhook.review(BUSY_PATH, review.to_string()).await;
    assert_eq!(patched(&review, &response)["metadata"]["annotations"][SAFE], "true");

    webhook.set_says(true);
    let before = Clock::wall();
    let response = webhook.review(BUSY_PATH, review.to_string()).await;
    let pod = patched(&review, &response);
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"app": "rec", "pod-template-hash": "6dbcd878fd", "belay.dev/busy": "true"})
    );
    let since: jiff::Timestamp = annotations["belay.dev/busy-since"].as_str().unwrap().parse().unwrap();
    assert!(before.as_second() <= since.as_second() && since <= Clock::wall(), "{since}");
    let written = json!({
        SAFE: "false",
        "karpenter.sh/do-not-disrupt": "true",
        "descheduler.alpha.kubernetes.io/prefer-no-eviction": "true",
        "belay.dev/busy-since": since.to_string(),
    });
    let mut without_record = annotations.clone();
    let record = without_record.as_object_mut().unwrap().remove(MANAGED).unwrap();
    assert_eq!(without_record, written);
    let mut recorded = written;
    recorded["label:belay.dev/busy"] = json!("true");
    assert_eq!(serde_json::from_str::<Value>(record.as_str().unwrap()).unwrap(), recorded, "the record names each");
}

#[tokio::test]
async fn maps_are_made_where_there_are_none_and_kept_where_there_are() {
    let webhook = ruled();
    let given = [None, Some(Value::Null), Some(json!({})), Some(json!({"other.example/a~b": "x", "": ""}))];
    for labels in &given {
        for annotations in &given {
            let review = marked(labels.clone(), annotations.clone());
            let response = webhook.review(BUSY_PATH, review.to_string()).await;
            let pod = patched(&review, &response);
            for (field, given, added) in [("labels", labels, 3), ("annotations", annotations, 6)] {
                let now = pod["metadata"][field].as_object().expect(field);
                let before = given.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
                assert!(before.iter().all(|(key, value)| now.get(key) == Some(value)), "{field} of {pod}");
                assert_eq!(now.len(), before.len() + added, "{field} of {pod}");
            }
        }
    }
}

#[tokio::test]
async fn asked_again_about_a_pod_it_adds_nothing() {
    let webhook = ruled();
    webhook.set_says(true);
    let mut review = creation(|_| {});
    let response = webhook.review(BUSY_PATH, review.to_string()).await;
    review["request"]["object"] = patched(&review, &response);
    for busy in [true, false] {
        webhook.set_says(busy);
        let again = webhook.review(BUSY_PATH, review.to_string()).await;
        assert!(again["patch"].is_null(), "{again}");
    }
    assert_eq!(webhook.stamped(), "1");
}

#[tokio::test]
async fn what_the_template_says_stays_and_is_not_managed() {
    let webhook = ruled();
    let own = json!({SAFE: "false", "karpenter.sh/do-not-disrupt": "false"});
    let review = marked(Some(json!({"belay.dev/busy": "maybe"})), Some(own.clone()));
    let response = webhook.review(BUSY_PATH, review.to_string()).await;
    let pod = patched(&review, &response);
    let annotations = &pod["metadata"]["annotations"];
    for (key, value) in own.as_object().unwrap() {
        assert_eq!(annotations[key], *value);
    }
    assert_eq!(pod["metadata"]["labels"]["belay.dev/busy"], "maybe");
    let record = Record::parse(annotations[MANAGED].as_str());
    let names: Vec<_> = record.keys().map(ToString::to_string).collect();
    let expected = [
        "belay.dev/busy-since",
        "controller.kubernetes.io/pod-deletion-cost",
        "descheduler.alpha.kubernetes.io/prefer-no-eviction",
        "label:autoscaling.cast.ai/removal-disabled",
        "label:spotinst.io/restrict-scale-down",
    ];
    assert_eq!(names, expected);

    let all = marked(Some(json!({"app": "sleeping"})), Some(json!({SAFE: "false"})));
    let response = webhook.review(BUSY_PATH, all.to_string()).await;
    assert!(response["patch"].is_null(), "with nothing to add there is nothing to record: {response}");
    assert_eq!(webhook.stamped(), "1");
}

#[tokio::test]
async fn pods_that_are_not_to_be_touched_pass_as_they_are() {
    let labelled = |labels: Value| marked(Some(labels), None);
    let in_namespace = |namespace: &str| creation(|request| request["namespace"] = json!(namespace));
    let annotated = |key: &str| marked(Some(json!({"app": "rec"})), Some(json!({key: "{}"})));
    let table = [
        ("one that no rule selects", labelled(json!({"app": "web"}))),
        ("one in a namespace that its rule is not for", in_namespace("other")),
        ("one in kube-system", in_namespace("kube-system")),
        ("one in Belay's own namespace", in_namespace("belay-system")),
        ("one in an excluded namespace", in_namespace("ours")),
        ("the mirror of a static pod", annotated("kubernetes.io/config.mirror")),
        ("one that was looked after elsewhere", annotated(MANAGED)),
        ("one without a name, nor one to be made up", creation(|request| request["object"] = json!({"metadata": {}}))),
        ("one without metadata", creation(|request| request["object"] = json!({}))),
        ("one that is none", creation(|request| request["object"] = json!(["a", "list"]))),
        ("one that is not there", creation(|request| request["object"] = Value::Null)),
        ("one whose labels are none", labelled(json!(["app", "rec"]))),
        ("one whose label is no text", labelled(json!({"app": "rec", "more": 1}))),
    ];
    let config = format!(
        "evictionHold: {{excludedNamespaces: [ours]}}\nbusyHints:\n  enabled: true\n  rules:\n    {}",
        RULES.replace('\n', "\n    ")
    );
    let webhook = Webhook::of(&testing::config(&config));
    for (name, review) in table {
        let response = webhook.review(BUSY_PATH, review.to_string()).await;
        assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null), "{name}");
    }
    assert_eq!(webhook.stamped(), "0");
    let off = Webhook::of(&testing::config(""));
    assert!(off.review(BUSY_PATH, CREATION).await["patch"].is_null(), "without rules");
    let named_inside = creation(|request| drop(request.as_object_mut().unwrap().remove("namespace")));
    let response = webhook.review(BUSY_PATH, named_inside.to_string()).await;
    assert!(response["patch"].is_string(), "the pod tells its namespace where the request does not");
}

#[tokio::test]
async fn a_dry_run_gets_its_hints_and_is_not_counted() {
    let webhook = ruled();
    let review = creation(|request| request["dryRun"] = json!(true));
    let response = webhook.review(BUSY_PATH, review.to_string()).await;
    assert_eq!(patched(&review, &response)["metadata"]["annotations"][SAFE], "true");
    assert_eq!(webhook.stamped(), "0");
}

#[tokio::test]
async fn a_pod_whose_annotations_have_no_room_passes_as_it_is() {
    let webhook = ruled();
    // The API server allows 256 KiB of annotations in all, names included.
    let filled = |bytes: usize| marked(Some(json!({"app": "sleeping"})), Some(json!({"a": "x".repeat(bytes - 1)})));
    for (name, bytes, is_stamped) in
        [("half", 128 << 10, true), ("nearly all of it", (256 << 10) - 100, false), ("all of it", 256 << 10, false)]
    {
        let review = filled(bytes);
        let response = webhook.review(BUSY_PATH, review.to_string()).await;
        assert_eq!(response["patch"].is_string(), is_stamped, "{name}");
        if is_stamped {
            let pod = patched(&review, &response);
            let annotations = pod["metadata"]["annotations"].as_object().unwrap();
            let size: usize = annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum();
            assert!(size <= 256 << 10, "{name}: {size}");
        }
    }
}

/// Anything that JSON can hold, with the words of a pod made likely.
fn any_object() -> impl Strategy<Value = Value> {
    let mut words: Vec<String> = [
        "metadata",
        "labels",
        "annotations",
        "ownerReferences",
        "controller",
        "status",
        "conditions",
        "spec",
        "name",
        "generateName",
        MANAGED,
    ]
    .map(str::to_owned)
    .into();
    words.extend(hints::keys().iter().map(|key| key.name().to_owned()));
    let key = prop_oneof![4 => proptest::sample::select(words), 1 => "[a-z~/]{0,4}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop_oneof![Just("true".to_owned()), Just("{}".to_owned()), ".{0,5}"].prop_map(Value::from),
    ];
    let object = leaf.prop_recursive(5, 40, 6, move |inner| {
        let map = proptest::collection::btree_map(key.clone(), inner.clone(), 0..6);
        prop_oneof![
            1 => proptest::collection::vec(inner, 0..4).prop_map(Value::from),
            3 => map.prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    let texts = || {
        let words: Vec<_> = hints::keys().iter().map(|key| key.name().to_owned()).chain([MANAGED.to_owned()]).collect();
        let key = prop_oneof![proptest::sample::select(words), "[a-z~/.]{0,4}"];
        let texts = proptest::collection::btree_map(key, prop_oneof![Just("true".to_owned()), ".{0,5}"], 0..4);
        let texts = texts.prop_map(|texts: BTreeMap<_, _>| json!(texts));
        prop_oneof![3 => texts, 1 => Just(Value::Null)]
    };
    prop_oneof![
        1 => object.clone(),
        2 => object.clone().prop_map(|meta| json!({ "metadata": meta })),
        // What gets as far as a patch.
        3 => (texts(), texts(), object).prop_map(|(labels, annotations, status)| {
            json!({"metadata": {"generateName": "w-", "labels": labels, "annotations": annotations}, "status": status})
        }),
    ]
}

/// Each operation of the patch adds what was absent.
fn only_adds(object: &Value, response: &Value) -> Result<(), String> {
    let mut object = object.clone();
    let operations: Vec<Value> = serde_json::from_slice(&decoded(response)).unwrap();
    for operation in operations {
        let path = operation["path"].as_str().unwrap();
        if operation["op"] != "add" || object.pointer(path).is_some_and(|present| !present.is_null()) {
            return Err(format!("{operation} takes something away from {object}"));
        }
        let one: json_patch::Patch = serde_json::from_value(json!([operation])).unwrap();
        json_patch::patch(&mut object, &one).map_err(|error| format!("{operation} fails on {object}: {error}"))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_pod_is_it_passes_and_only_absent_keys_are_added(object in any_object(), in_default in any::<bool>()) {
        let webhook = ruled();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let review = json!({"apiVersion": "admission.k8s.io/v1", "request": {
            "uid": "u", "namespace": if in_default { json!("default") } else { Value::Null }, "object": object}});
        let response = runtime.block_on(webhook.review(BUSY_PATH, review.to_string()));
        prop_assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)));
        if !response["patch"].is_null() {
            if let Err(problem) = only_adds(&object, &response) {
                return Err(TestCaseError::fail(problem));
            }
            let pod = patched(&review, &response);
            prop_assert!(contains(&pod, &object), "{} lost something of {}", pod, object);
        }
    }
}
