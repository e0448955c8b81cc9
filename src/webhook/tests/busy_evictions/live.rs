//! An idle pod is looked at once more, live.

use super::*;
use crate::cluster::owners::Resources;

#[tokio::test]
async fn an_idle_pod_is_looked_at_once_more_before_it_goes() {
    let owner = |status: Value| (OWNER, Reply::Json(runner("r-1", &status)));
    let online = || owner(json!({"phase": "Online"}));
    let none = || (LINKED, list(&[]));
    let mut of_former = runner("r-1", &json!({"phase": "Online", "job": 7}));
    of_former["metadata"]["managedFields"] = json!([{"manager": "listener", "operation": "Update", "time": ago(700),
        "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:job": {}}}}]);
    let mut going = runner("r-1", &json!({"phase": "Online"}));
    going["metadata"]["deletionTimestamp"] = json!(ago(0));
    let alive = |annotations: Value| (POD, Reply::Json(pod("p", &of_runner(), &annotations)));
    let another = Reply::Json(pod("p-2", &of_runner(), &json!({"work": ""})));
    let failed = Reply::Status(500, "etcdserver: request timed out");
    let refused = Reply::Status(403, "pods is forbidden");
    let leads = || (SET, Reply::Json(set()));
    let table = [
        ("as idle as was known: its owner is to go", RUNNER, vec![online(), none()], "Hold OwnerRetiring"),
        ("a job was assigned", RUNNER, vec![owner(json!({"phase": "Online", "job": 7})), none()], "Hold PodBusy"),
        ("its job is a former pod's", RUNNER, vec![(OWNER, Reply::Json(of_former)), none()], "Hold OwnerRetiring"),
        ("a job's pod was made", RUNNER, vec![online(), (LINKED, list(&[job(1, "Pending")]))], "Hold PodBusy"),
        ("a job's pod has ended", RUNNER, vec![online(), (LINKED, list(&[job(1, "Failed")]))], "Hold OwnerRetiring"),
        (
            "a job's pod is a former pod's",
            RUNNER,
            vec![online(), (LINKED, list(&[job(700, "Running")]))],
            "Hold OwnerRetiring",
        ),
        ("it starts again", RUNNER, vec![owner(json!({"phase": "Starting"})), none()], "Hold PodStarting"),
        ("its work is done", RUNNER, vec![owner(json!({"phase": "Done"})), none()], "Allow Idle"),
        ("its owner goes already", RUNNER, vec![(OWNER, Reply::Json(going)), none()], "Hold OwnerRetiring"),
        ("its owner is gone", RUNNER, vec![none()], "Hold PodStateUnknown"),
        (
            "its owner is another one",
            RUNNER,
            vec![(OWNER, Reply::Json(runner("r-2", &json!({"phase": "Online"})))), none()],
            "Hold PodStateUnknown",
        ),
        ("its owner cannot be read", RUNNER, vec![(OWNER, failed.clone()), none()], "Hold PodStateUnknown"),
        ("linked pods may not be read", RUNNER, vec![online(), (LINKED, refused)], "Hold PodStateUnknown"),
        ("two hops away all is idle", MEMBER, vec![leads(), (POOL, Reply::Json(pool(false)))], "Allow Idle"),
        ("two hops away there is work", MEMBER, vec![leads(), (POOL, Reply::Json(pool(true)))], "Hold PodBusy"),
        ("what leads to its owner is gone", MEMBER, vec![(POOL, Reply::Json(pool(false)))], "Hold PodStateUnknown"),
        ("the pod is as it was", PLAIN, vec![alive(json!({}))], "Allow Idle"),
        ("the pod works", PLAIN, vec![alive(json!({"work": ""}))], "Hold PodBusy"),
        ("the pod is gone", PLAIN, vec![], "Allow Idle"),
        ("the pod is another one, which works", PLAIN, vec![(POD, another)], "Allow Idle"),
        ("the pod cannot be read", PLAIN, vec![(POD, failed.clone())], "Hold PodStateUnknown"),
        ("unknown, and taken for idle", EASY, vec![(OWNER, failed)], "Allow Idle"),
    ];
    for (name, rule, answers, expected) in table {
        let api = api(&answers).await;
        let mut webhook = ruled(Some(&api)).await;
        webhook.knows_idle(rule);
        let (counted, response) = webhook.evict(EVICTION).await;
        assert_eq!(counted, expected, "{name}: {response}");
        let workload = match (rule, expected) {
            // Its owner is not found: then what controls the pod itself is named.
            (MEMBER, "Hold PodStateUnknown") => "Set.apps s s-1",
            (MEMBER, _) => "Pool.ci.example p pool-1",
            _ => "Runner.ci.example r r-1",
        };
        let expected = match expected {
            "Hold OwnerRetiring" => vec![("Retire", workload.to_owned())],
            "Allow Idle" => vec![],
            _ => vec![("Busy", workload.to_owned())],
        };
        assert_eq!(webhook.recorded(), expected, "{name}");
    }
}

#[tokio::test]
async fn why_a_pod_cannot_be_looked_at_is_told_to_who_evicts_it() {
    let failing = (OWNER, Reply::Status(500, "etcdserver: request timed out"));
    let (failing, silent) =
        (api(&[failing, (LINKED, list(&[]))]).await, api(&[(OWNER, Reply::Silence), (LINKED, list(&[]))]).await);
    let kinds = [("ci.example", "Runner")];
    let impatient = LiveReader::new(silent.client.clone(), silent.resources(&kinds).await);
    let table = [
        (ruled(Some(&failing)).await, "etcdserver: request timed out"),
        (ruled(None).await, "there is no API server to ask"),
        (
            ruled_with("", None, |handlers| handlers.live = Some(impatient)).await,
            "the API server did not answer in time",
        ),
    ];
    for (mut webhook, why) in table {
        webhook.knows_idle(RUNNER);
        let (counted, response) = webhook.evict(EVICTION).await;
        assert_eq!(counted, "Hold PodStateUnknown", "{why}");
        assert!(message(&response).contains(why) && message(&response).contains("counts as busy"), "{response}");
        assert_eq!(webhook.recorded(), [("Busy", "Runner.ci.example r r-1".into())], "{why}");
    }
}

#[tokio::test]
async fn just_what_a_rule_asks_is_read() {
    let linked = || {
        (
            LINKED.to_owned(),
            vec![
                ("labelSelector", "job-of=web-d7f965486-ppzlz"),
                // What has ended must not crowd out what works.
                ("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),
                ("limit", "50"),
            ],
        )
    };
    let plain = |what: &str| (what.to_owned(), vec![]);
    let table = [
        (RUNNER, vec![plain(OWNER), linked()]),
        (MEMBER, vec![plain(SET), plain(POOL)]),
        (PLAIN, vec![plain(POD)]),
        (EASY, vec![plain(OWNER)]),
    ];
    for (rule, expected) in table {
        let owner = (OWNER, Reply::Json(runner("r-1", &json!({"phase": "Online"}))));
        let api = api(&[owner, (LINKED, list(&[])), (SET, Reply::Json(set())), (POOL, Reply::Json(pool(false)))]).await;
        let webhook = ruled(Some(&api)).await;
        webhook.knows_idle(rule);
        webhook.evict(EVICTION).await;
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(what, query)| {
                let query = query.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
                Asked { what, query, ..Asked::default() }
            })
            .collect();
        let mut asked = api.asked();
        // All at once, as far as one does not lead to the other.
        asked.sort_by_key(|one| expected.iter().position(|other| other.what == one.what));
        assert_eq!(asked, expected);
    }
}

#[tokio::test]
async fn a_kind_that_is_not_served_is_an_owner_that_is_missing() {
    let api = api(&[(LINKED, list(&[]))]).await;
    let webhook = ruled_with("", Some(&api), |handlers| {
        handlers.live = Some(LiveReader::new(api.client.clone(), Resources::default()));
    })
    .await;
    webhook.knows_idle(RUNNER);
    assert_eq!(webhook.evict(EVICTION).await.0, "Hold PodStateUnknown");
    assert!(api.asked().iter().all(|asked| asked.what == LINKED));
}
