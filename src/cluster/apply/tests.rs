//! Writes, before a server on the loopback.

use belay_decide::hold::{HoldStatus, Phase};
use jiff::Timestamp;

use super::*;
use crate::testing::{ApiServer, Asked, Reply};

const POD: &str = "PATCH /api/v1/namespaces/ci/pods/w";
const HOLD: &str = "PATCH /apis/belay.dev/v1alpha1/namespaces/ci/evictionholds/w-busy/status";
const OWNER: &str = "DELETE /apis/ci.example/v2/namespaces/ci/runners/r";

fn object(name: &str) -> ObjectRef {
    ObjectRef { namespace: "ci".into(), name: name.into(), uid: format!("uid of {name}"), resource_version: "7".into() }
}

fn changes<const N: usize>(changes: [(Key, Option<&str>); N]) -> BTreeMap<Key, Option<String>> {
    changes.into_iter().map(|(key, value)| (key, value.map(str::to_owned))).collect()
}

fn patch_pod() -> Action {
    Action::PatchPod { pod: object("w"), changes: changes([(Key::label("belay.dev/busy"), Some("true"))]) }
}

fn update_hold() -> Action {
    Action::UpdateHold { hold: object("w-busy"), status: HoldStatus { phase: Phase::Active, ..HoldStatus::default() } }
}

fn delete_owner(kind: &str, name: &str) -> Action {
    Action::DeleteOwner { kind: GroupKind::new("ci.example", kind), owner: object(name) }
}

/// What is written has this version from then on.
fn written(version: &str) -> Reply {
    Reply::Json(json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "w", "uid": "uid of w", "resourceVersion": version}}))
}

fn written_hold(version: &str) -> Reply {
    Reply::Json(json!({"kind": "EvictionHold", "apiVersion": "belay.dev/v1alpha1",
        "metadata": {"name": "w-busy", "uid": "uid of w-busy", "resourceVersion": version},
        "spec": {"victim": {"name": "w", "uid": "p"}, "reason": "Busy", "requestedAt": "2026-11-30T12:00:00Z",
            "deadline": "2026-11-30T18:00:00Z"}}))
}

/// An applier that leads, of an API server that knows these answers.
struct Stage {
    api: ApiServer,
    applier: Arc<Applier>,
    leadership: Arc<Leadership>,
    metrics: Arc<Metrics>,
}

async fn stage<const N: usize>(answers: [(&'static str, Reply); N]) -> Stage {
    let answers = BTreeMap::from(answers);
    let api = ApiServer::start(move |asked: &Asked| {
        answers.get(asked.what.as_str()).cloned().unwrap_or(Reply::Status(404, "there is no such thing"))
    })
    .await;
    let (applier, leadership, metrics) = crate::testing::leading_applier(
        &api,
        api.resources(&[("ci.example", "Runner"), ("ci.example", "Pool")]).await,
        Some("belay-controller-0"),
    );
    Stage { api, applier, leadership, metrics }
}

impl Stage {
    async fn one(&self, action: Action) -> Result<(), ApplyError> {
        self.applier.perform(&[action]).await.1
    }

    /// How many writes of this kind had this result.
    fn counted(&self, kind: &str, result: &str) -> bool {
        let line = format!("belay_writes_total{{kind=\"{kind}\",result=\"{result}\"}} 1");
        self.metrics.encode().unwrap().lines().any(|one| one == line)
    }
}

const EVICTION: &str = "PATCH /apis/lifecycle.k8s.io/v1alpha1/namespaces/ci/evictions/e/status";
const NOTED: &str = "PATCH /apis/belay.dev/v1alpha1/namespaces/ci/evictionholds/w/status";

#[tokio::test]
async fn a_report_changes_ones_own_entry_alone_and_only_of_the_eviction_that_was_looked_at() {
    let written = Reply::Json(json!({"kind": "Eviction", "apiVersion": "lifecycle.k8s.io/v1alpha1",
        "metadata": {"name": "e", "uid": "uid of e", "resourceVersion": "8"}, "spec": {"target": {}}}));
    let stage = stage([(EVICTION, written)]).await;
    let second = |second: i64| Timestamp::from_second(1_796_047_200 + second).unwrap();
    let report =
        Report { heartbeat: Some(second(1)), expected: Some(second(600)), completed: None, message: "starting".into() };
    let respond = Action::Respond { eviction: object("e"), report };
    let (superseded, result) = stage.applier.perform(&[respond]).await;
    result.unwrap();
    assert_eq!(superseded, [Superseded { uid: "uid of e".into(), version: "7".into() }]);
    let asked = stage.api.asked();
    assert_eq!(asked[0].content_type, "application/strategic-merge-patch+json", "entries are merged by their names");
    let expected = json!({
        "metadata": {"uid": "uid of e", "resourceVersion": "7"},
        "status": {"responders": [{"name": "belay.dev/hold", "message": "starting",
            "heartbeatTime": "2026-11-30T14:00:01Z", "expectedCompletionTime": "2026-11-30T14:10:00Z"}]},
    });
    assert_eq!(asked[0].body, expected, "what is not reported stays as it is");
    assert!(stage.counted("EvictionStatus", "Ok"));
}

#[tokio::test]
async fn a_request_is_noted_whatever_else_was_written_to_its_hold() {
    let stage = stage([(NOTED, written_hold("9"))]).await;
    let at = Timestamp::from_second(1_796_047_200).unwrap();
    stage.one(Action::NoteRequest { hold: object("w"), at }).await.unwrap();
    let expected = json!({"metadata": {"uid": "uid of w"}, "status": {"lastRequestedAt": "2026-11-30T14:00:00Z"}});
    assert_eq!(stage.api.asked()[0].body, expected);
    assert!(stage.counted("EvictionHoldStatus", "Ok"));
}

#[test]
fn a_pods_patch_names_it_by_uid_and_version_and_each_map_that_changes() {
    let both = json!({"uid": "uid of w", "resourceVersion": "7"});
    let with = |more: serde_json::Value| {
        let mut meta = both.clone();
        meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "metadata": meta })
    };
    let table = [
        ("nothing", changes([]), with(json!({}))),
        (
            "annotations alone",
            changes([(Key::annotation("a.example/x"), Some("1")), (Key::annotation("gone"), None)]),
            with(json!({"annotations": {"a.example/x": "1", "gone": null}})),
        ),
        ("labels alone", changes([(Key::label("l"), None)]), with(json!({"labels": {"l": null}}))),
        (
            "one name in both",
            changes([(Key::label("x"), Some("label")), (Key::annotation("x"), Some("annotation"))]),
            with(json!({"labels": {"x": "label"}, "annotations": {"x": "annotation"}})),
        ),
    ];
    for (name, changes, expected) in table {
        assert_eq!(pod_patch(&object("w"), &changes), expected, "{name}");
    }
}

#[tokio::test]
async fn a_pod_is_patched_in_one_write_that_tells_which_version_it_supersedes() {
    let stage = stage([(POD, written("8"))]).await;
    let (superseded, result) = stage.applier.perform(&[patch_pod()]).await;
    result.unwrap();
    assert_eq!(superseded, [Superseded { uid: "uid of w".into(), version: "7".into() }]);
    let expected = Asked {
        what: POD.into(),
        query: BTreeMap::from([("fieldManager".into(), "belay".into())]),
        content_type: "application/merge-patch+json".into(),
        body: json!({"metadata": {"uid": "uid of w", "resourceVersion": "7", "labels": {"belay.dev/busy": "true"}}}),
    };
    assert_eq!(stage.api.asked(), [expected]);
    assert!(stage.counted("Pod", "Ok"));

    let unchanged = self::stage([(POD, written("7"))]).await;
    assert_eq!(
        unchanged.applier.perform(&[patch_pod()]).await.0,
        [],
        "a write that changes nothing supersedes nothing"
    );
}

#[tokio::test]
async fn a_sequence_ends_at_its_first_write_that_fails_and_tells_what_came_before() {
    let stage = stage([(POD, written("8")), (HOLD, Reply::Status(500, "etcdserver: no leader"))]).await;
    let (superseded, result) = stage.applier.perform(&[patch_pod(), update_hold(), delete_owner("Runner", "r")]).await;
    let error = result.unwrap_err();
    assert_eq!((error.label(), error.is_benign()), ("Unreachable", false));
    assert_eq!(error.to_string(), "cannot write EvictionHold ci/w-busy now: etcdserver: no leader");
    assert_eq!(superseded.len(), 1, "the pod's");
    let asked: Vec<_> = stage.api.asked().into_iter().map(|asked| asked.what).collect();
    assert_eq!(asked, [POD, HOLD]);
    assert!(stage.counted("Pod", "Ok") && stage.counted("EvictionHoldStatus", "Unreachable"));
}

#[tokio::test]
async fn an_owner_is_deleted_by_its_uid_whatever_was_written_to_it() {
    let gone = Reply::Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}));
    let stage = stage([(OWNER, gone)]).await;
    stage.one(delete_owner("Runner", "r")).await.unwrap();
    let asked = stage.api.asked();
    assert_eq!((asked.len(), asked[0].what.as_str()), (1, OWNER), "in the version that is served");
    assert_eq!(asked[0].body["preconditions"], json!({"uid": "uid of r"}));
}

#[tokio::test]
async fn an_owner_that_is_gone_or_another_one_needs_no_deleting() {
    let table = [
        (Reply::Status(404, "runners \"r\" not found"), "Gone"),
        (Reply::Status(409, "the UID in the precondition does not match"), "Conflict"),
    ];
    for (answer, label) in table {
        let stage = stage([(OWNER, answer), (HOLD, written_hold("8"))]).await;
        let (superseded, result) = stage.applier.perform(&[delete_owner("Runner", "r"), update_hold()]).await;
        result.unwrap();
        assert_eq!(superseded.len(), 1, "the sequence goes on");
        assert!(stage.counted("Owner", label), "{label} is counted as what it was");
    }
}

#[tokio::test]
async fn an_owner_that_cannot_be_deleted_is_told_by_name_and_reason() {
    let stage = stage([(OWNER, Reply::Status(403, "runners \"r\" is forbidden"))]).await;
    let error = stage.one(delete_owner("Runner", "r")).await.unwrap_err();
    assert_eq!(error.label(), "Forbidden");
    let text =
        "missing right to write Runner.ci.example ci/r: runners \"r\" is forbidden; grant it in the chart's RBAC";
    assert_eq!(error.to_string(), text);
    stage.api.asked();

    for (kind, name) in [("Job", "j"), ("Pool", "p")] {
        let error = stage.one(delete_owner(kind, name)).await.unwrap_err();
        assert_eq!((error.label(), error.is_benign()), ("Refused", false));
        let text = format!(
            "the API server refuses the write of {kind}.ci.example ci/{name}: the API server does not serve this kind \
             in namespaces"
        );
        assert_eq!(error.to_string(), text, "not served at all, or of the cluster");
    }
    assert_eq!(stage.api.asked(), [], "nobody is asked for what is not there");
}

#[tokio::test]
async fn who_does_not_lead_writes_nothing() {
    let stage = stage([(POD, written("8"))]).await;
    for stop in [Leadership::lose, Leadership::run_out] {
        stage.leadership.win();
        stop(&stage.leadership);
        for action in [patch_pod(), update_hold(), delete_owner("Runner", "r")] {
            let error = stage.one(action).await.unwrap_err();
            assert_eq!((error.label(), error.is_benign()), ("NotLeading", true));
        }
    }
    assert_eq!(stage.api.asked(), []);
}

#[tokio::test]
async fn a_hold_is_written_and_deleted_as_it_was_seen() {
    let delete = "DELETE /apis/belay.dev/v1alpha1/namespaces/ci/evictionholds/w-busy";
    let gone = Reply::Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}));
    let stage = stage([(HOLD, written_hold("8")), (delete, gone)]).await;
    stage.one(update_hold()).await.unwrap();
    stage.one(Action::DeleteHold { hold: object("w-busy") }).await.unwrap();
    let asked = stage.api.asked();
    assert_eq!(asked[0].what, HOLD);
    assert_eq!(asked[0].body["metadata"], json!({"uid": "uid of w-busy", "resourceVersion": "7"}));
    assert_eq!(
        (&asked[0].body["status"]["phase"], &asked[0].body["status"]["releasedAt"]),
        (&json!("Active"), &json!(null))
    );
    let expected = json!({"uid": "uid of w-busy", "resourceVersion": "7"});
    assert_eq!((asked[1].what.as_str(), &asked[1].body["preconditions"]), (delete, &expected));
}

#[tokio::test]
async fn an_event_names_its_field_and_holds_nothing_up() {
    let event = Action::Event(Event {
        namespace: "ci".into(),
        regarding: Reference::pod("w", "uid of w"),
        related: Some(Reference::pod_mark("w", "uid of w", &Key::label("belay.dev/busy"))),
        warning: true,
        reason: "HintConflict",
        action: "Yield",
        note: "Somebody else changed it".into(),
    });
    let posted = "POST /apis/events.k8s.io/v1/namespaces/ci/events";
    let stage = stage([(posted, Reply::Status(403, "events is forbidden")), (POD, written("8"))]).await;
    stage.applier.perform(&[event, patch_pod()]).await.1.unwrap();
    let mut asked = Vec::new();
    let both = async {
        while asked.len() < 2 {
            asked.append(&mut stage.api.asked());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), both).await.expect("the Event is not written");
    let written = asked.iter().find(|asked| asked.what == posted).expect("an Event");
    let body = &written.body;
    assert_eq!(
        (&body["type"], &body["reason"], &body["action"]),
        (&json!("Warning"), &json!("HintConflict"), &json!("Yield"))
    );
    assert_eq!(
        (&body["note"], &body["reportingInstance"]),
        (&json!("Somebody else changed it"), &json!("belay-controller-0"))
    );
    let reference = |field: Option<&str>| {
        let mut reference =
            json!({"apiVersion": "v1", "kind": "Pod", "namespace": "ci", "name": "w", "uid": "uid of w"});
        if let Some(field) = field {
            reference["fieldPath"] = json!(field);
        }
        reference
    };
    assert_eq!(body["regarding"], reference(None));
    assert_eq!(body["related"], reference(Some("metadata.labels[belay.dev/busy]")));
}

#[test]
fn what_an_api_server_answers_is_told_apart() {
    let table = [
        (409, "the object has been modified", "Conflict"),
        (410, "the provided continue parameter is too old", "Conflict"),
        (404, "pods \"w\" not found", "Gone"),
        (422, "metadata.uid: Invalid value: field is immutable", "Gone"),
        (422, "metadata.labels: Invalid value", "Refused"),
        (400, "the body cannot be read", "Refused"),
        (401, "Unauthorized", "Forbidden"),
        (403, "pods is forbidden", "Forbidden"),
        (429, "too many requests", "Unreachable"),
        (500, "etcdserver: request timed out", "Unreachable"),
        (503, "the server is shutting down", "Unreachable"),
    ];
    for (code, message, expected) in table {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message,
            "reason": "", "metadata": {}});
        let status = serde_json::from_value(status).unwrap();
        let error = ApplyError::of(kube::Error::Api(status), "Pod ci/w".into());
        assert_eq!(error.label(), expected, "{code} {message}");
        assert!(error.to_string().contains("Pod ci/w"), "{error}");
    }
}
