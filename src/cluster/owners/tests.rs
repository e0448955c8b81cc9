use super::*;
use crate::testing::{ApiServer, Reply};

#[tokio::test]
async fn a_kind_is_found_where_it_is_served_and_missed_without_an_error_where_it_is_not() {
    let api = ApiServer::start(|_| Reply::Status(404, "the server could not find the requested resource")).await;
    let table = [
        ("in its group's preferred version", "ci.example", "Runner", Some(("ci.example/v2", "runners", true))),
        ("in an older version alone, of the cluster", "ci.example", "Pool", Some(("ci.example/v1", "pools", false))),
        ("of the core group", "", "Pod", Some(("v1", "pods", true))),
        ("of no group", "ci.example", "Job", None),
        ("of a group that is not there", "gone.example", "Runner", None),
        ("of the core group, and unknown", "", "Runner", None),
    ];
    for (name, group, kind, expected) in table {
        let served = look_up(&api.client, &GroupKind::new(group, kind)).await.expect(name);
        let found = served
            .as_ref()
            .map(|served| (served.resource.api_version.as_str(), served.resource.plural.as_str(), served.namespaced));
        assert_eq!(found, expected, "{name}");
    }
}

/// An API server that serves `Runner` of `ci.example` in v1 and v2, and a process that watches it.
async fn watches() -> (ApiServer, Watches) {
    let api = ApiServer::start(|_| Reply::Status(404, "the server could not find the requested resource")).await;
    let stop = CancellationToken::new();
    let metrics = Arc::new(crate::metrics::Metrics::default());
    let watches = Watches { client: api.client.clone(), tasks: crate::tasks::Tasks::new(stop.clone()), metrics, stop };
    (api, watches)
}

#[tokio::test]
async fn a_kind_of_one_version_is_not_served_in_others() {
    let (api, _watches) = watches().await;
    let kind = GroupKind::new("ci.example", "Runner");
    for (version, expected) in [("v1", Some("ci.example/v1")), ("v2", Some("ci.example/v2")), ("v3", None)] {
        let served = look_up_in(&api.client, &kind, Some(version)).await.unwrap();
        assert_eq!(served.as_ref().map(|served| served.resource.api_version.as_str()), expected, "{version}");
    }
}

#[tokio::test]
async fn it_is_kept_known_what_is_served_without_a_look_at_objects() {
    let (api, watches) = watches().await;
    let resources = Resources::default();
    let known = |kind: &str, version: &'static str| {
        let kind = GroupKind::new("ci.example", kind);
        let health = look_out(&watches, resources.clone(), Followed::only_in(kind.clone(), version));
        (kind, health)
    };
    for (kind, version, expected) in [("Runner", "v1", true), ("Pool", "v1", true), ("Pool", "v2", false)] {
        let (kind, health) = known(kind, version);
        assert!(watch::settled([&health].into_iter(), &watches.stop).await);
        assert!(health.is_synced(), "{version}: nothing is missing where there is nothing");
        assert_eq!(resources.of(&kind).is_some(), expected, "{kind} in {version}");
    }
    assert_eq!(api.asked(), [], "nothing but discovery");
    watches.stop.cancel();
}
