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
