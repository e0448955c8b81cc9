//! Probes of a server on the loopback that answers as an API server does.

use belay_decide::probe::echo;
use k8s_openapi::ByteString;
use serde_json::Value;

use super::*;
use crate::testing::{ApiServer, Asked, Reply};

const CONFIGURATION: &str = "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/belay";
const ALL: &str = "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const EVICT: &str = "POST /api/v1/namespaces/belay-system/pods/belay-canary/eviction";

/// The configuration as the chart makes it and the controller completes it.
fn configuration() -> Value {
    let entry = |name: &str, path: &str| {
        json!({
            "name": name,
            "clientConfig": {
                "service": { "namespace": "belay-system", "name": "belay-webhook", "path": path, "port": 443 },
                "caBundle": ByteString(b"certificates".to_vec()),
            },
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "belay" },
        "webhooks": [
            entry("eviction.hold.belay.dev", "/validate/eviction"),
            entry("canary.hold.belay.dev", "/validate/canary"),
        ],
    })
}

fn prober(api: &ApiServer) -> Prober {
    Prober::new(api.client.clone(), "belay-system".into(), "belay".into())
}

/// The warning of a replica that was asked, and somebody else's before it.
fn answered(asked: &Asked) -> Reply {
    let nonce = asked.body["metadata"]["annotations"][ANNOTATION].as_str().unwrap();
    Reply::NoSuchPod(vec!["policy/v1beta1 is old".into(), echo(nonce, "belay-webhook-1").unwrap()])
}

/// What is found where the configuration is this one and evictions are answered so, and how often one was asked for.
async fn found(configuration: Reply, evict: fn(&Asked) -> Reply) -> (Found, usize) {
    let api = ApiServer::start(move |asked| match &*asked.what {
        CONFIGURATION => configuration.clone(),
        EVICT => evict(asked),
        what => panic!("{what}"),
    })
    .await;
    let report = prober(&api).probe().await;
    let evictions = api.asked().into_iter().filter(|asked| asked.what == EVICT);
    (report, evictions.count())
}

#[tokio::test]
async fn what_is_asked_for_evicts_nothing() {
    let api = ApiServer::start(|asked| match &*asked.what {
        CONFIGURATION => Reply::Json(configuration()),
        _ => answered(asked),
    })
    .await;
    let verdict = Verdict::Reached { replica: "belay-webhook-1".into() };
    assert_eq!(prober(&api).probe().await, Found { verdict, unread: None });
    let asked = api.asked();
    assert_eq!(asked.iter().map(|asked| &*asked.what).collect::<Vec<_>>(), [CONFIGURATION, EVICT]);
    assert_eq!(asked[1].query["dryRun"], "All");
    let nonce = asked[1].body["metadata"]["annotations"][ANNOTATION].clone();
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "name": "belay-canary", "namespace": "belay-system", "annotations": { "belay.dev/probe": nonce } },
        "deleteOptions": { "dryRun": ["All"] },
    });
    assert_eq!(asked[1].body, eviction);
    assert_eq!(prober(&api).probe().await.verdict.result(), "Reached");
    assert_ne!(api.asked()[1].body["metadata"]["annotations"][ANNOTATION], nonce, "a word is never used again");
}

#[tokio::test]
async fn what_the_api_server_says_is_understood() {
    let good = || Reply::Json(configuration());
    let without = |name: &str| {
        let mut configuration = configuration();
        configuration["webhooks"].as_array_mut().unwrap().retain(|entry| entry["name"] != name);
        Reply::Json(configuration)
    };
    let untrusted = || {
        let mut configuration = configuration();
        configuration["webhooks"][0]["clientConfig"]["caBundle"] = json!(ByteString(b"others".to_vec()));
        Reply::Json(configuration)
    };
    let silent: fn(&Asked) -> Reply = |_| Reply::NoSuchPod(Vec::new());
    let missed = Verdict::NotReached;
    let table = [
        ("nobody was asked", good(), silent, missed(Miss::Silent), 1),
        ("no configuration", Reply::Status(404, "not found"), silent, missed(Miss::NoConfiguration), 0),
        ("no canary, so there is no use in asking", without(CANARY_ENTRY), silent, missed(Miss::NoCanaryEntry), 0),
        ("no entry of evictions", without(EVICTION_ENTRY), answered, missed(Miss::NoEvictionEntry), 1),
        ("another authority", untrusted(), answered, missed(Miss::OtherAuthority), 1),
        (
            "a missing right",
            good(),
            |_| Reply::Status(403, "pods belay-canary is forbidden"),
            Verdict::Refused { message: "HTTP 403: pods belay-canary is forbidden".into() },
            1,
        ),
        (
            "an API server that is starting",
            Reply::Status(503, "not yet"),
            silent,
            Verdict::Unreachable { message: "not yet".into() },
            0,
        ),
        (
            "or ends meanwhile",
            good(),
            |_| Reply::Status(500, "etcd is away"),
            Verdict::Unreachable { message: "HTTP 500: etcd is away".into() },
            1,
        ),
    ];
    for (name, configuration, evict, verdict, evictions) in table {
        assert_eq!(found(configuration, evict).await, (Found { verdict, unread: None }, evictions), "{name}");
    }
}

#[tokio::test]
async fn who_may_not_read_the_configuration_is_told_what_a_replica_said_and_that_the_entries_were_not_compared() {
    let (report, _) = found(Reply::Status(403, "you may not"), answered).await;
    assert_eq!(report.verdict, Verdict::Reached { replica: "belay-webhook-1".into() });
    assert!(report.unread.as_ref().is_some_and(|why| why.contains("you may not")), "{report:?}");
}

#[tokio::test]
async fn belays_are_found_by_their_canaries_and_without_one_by_their_entry_of_evictions() {
    let named = |name: &str, namespace: &str| {
        let mut configuration = configuration();
        configuration["metadata"]["name"] = json!(name);
        configuration["webhooks"][1]["clientConfig"]["service"]["namespace"] = json!(namespace);
        configuration
    };
    let mut other = named("other", "elsewhere");
    other["webhooks"].as_array_mut().unwrap().pop();
    let mut foreign = named("foreign", "elsewhere");
    foreign["webhooks"] = json!([]);
    let items = json!([named("belay", "belay-system"), other, foreign, named("rope", "platform")]);
    let list = json!({ "kind": "ValidatingWebhookConfigurationList", "metadata": {}, "items": items });
    let api = ApiServer::start(move |asked| match &*asked.what {
        ALL => Reply::Json(list.clone()),
        what => panic!("{what}"),
    })
    .await;
    let expected = [("belay-system", "belay"), ("belay-system", "other"), ("platform", "rope")];
    let expected = expected.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
    assert_eq!(find(&api.client).await.unwrap(), expected);
}

#[test]
fn texts_are_found_in_warnings_however_they_are_packed() {
    let table: &[(&[&str], &[&str])] = &[
        (&[], &[]),
        (&[r#"299 - "one""#, r#"299 - "two""#], &["one", "two"]),
        (&[r#"299 - "one", 299 - "two, with a comma""#], &["one", "two, with a comma"]),
        (&[r#"299 - "a \"quoted\" word and a \\""#], &[r#"a "quoted" word and a \"#]),
        (&[r#"299 - "one" "Mon, 30 Nov 2026 17:00:00 GMT""#], &["one", "Mon, 30 Nov 2026 17:00:00 GMT"]),
        (&[r#"299 - "cut off"#], &[]),
    ];
    for (headers, expected) in table {
        let mut map = HeaderMap::new();
        for header in *headers {
            map.append(header::WARNING, HeaderValue::from_static(header));
        }
        assert_eq!(warnings(&map), *expected, "{headers:?}");
    }
}
