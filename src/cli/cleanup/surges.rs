//! Puts replicas back that a surge added, where nobody is left who would.
//!
//! What is found by the annotation is read once more, whole, since a list of metadata is all that most clusters need and
//! the number must be the one of the version that is written to.

use anyhow::Context as _;
use belay_decide::handover::surge::{self, SURGE_ANNOTATION, SurgeRecord};
use belay_decide::view::Governor;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt as _};

use super::report::Cleaned;
use super::{PAGE, Pass, unreadable};
use crate::cli::connect::told;
use crate::cluster::apply::{ApplyError, bounded, governor_kind, number_field, object_ref, scaled_object, write_surge};
use crate::cluster::owners::{Resources, Served, look_up};
use crate::cluster::project_autoscaler::is_of_scaled_object;
use crate::rate::TokenBucket;

/// What a surge may stand on.
const GOVERNORS: [Governor; 3] = [Governor::Deployment, Governor::HorizontalPodAutoscaler, Governor::ScaledObject];

/// Looks at everything once that a surge may stand on; without a rate it only notes what it finds.
pub(super) async fn pass(client: &Client, rate: Option<&TokenBucket>) -> anyhow::Result<Pass> {
    let resources = Resources::default();
    let keda = look_up(client, &scaled_object()).await.map_err(|error| told(&error));
    resources.set(&scaled_object(), keda.context("cannot look up KEDA's ScaledObjects")?);
    let mut pass = Pass { is_whole: true, ..Pass::default() };
    for governor in GOVERNORS {
        if let Some(kind) = governor_kind(governor, &resources) {
            pass.add(of_kind(client, governor, &kind, rate).await?);
        }
    }
    Ok(pass)
}

async fn of_kind(
    client: &Client,
    governor: Governor,
    kind: &Served,
    rate: Option<&TokenBucket>,
) -> anyhow::Result<Pass> {
    let all = kind.all(client);
    let mut page = ListParams::default().limit(PAGE);
    let mut pass = Pass::default();
    loop {
        let listed = match bounded(format!("the list of {}s", governor.kind()), all.list_metadata(&page)).await {
            Ok(listed) => listed,
            // The list grew too old: the next pass begins a new one.
            Err(error) if error.is_benign() => return Ok(pass),
            Err(error) => return Err(unreadable(error)),
        };
        for object in listed.items.iter().filter(|object| object.annotations().contains_key(SURGE_ANNOTATION)) {
            let namespace = object.namespace().unwrap_or_default();
            let cleaned = Cleaned::of(governor.kind(), &object_ref(&object.metadata), [SURGE_ANNOTATION]);
            pass.found += 1;
            let Some(rate) = rate else {
                pass.objects.push(cleaned);
                continue;
            };
            rate.take().await;
            let api = kind.api(client, &namespace);
            match put_back(&api, governor, &object.name_any(), cleaned.to_string()).await {
                Ok(()) => pass.objects.push(cleaned),
                // Met again in the next pass.
                Err(error) if error.is_benign() || matches!(error, ApplyError::Unreachable { .. }) => {
                    tracing::debug!(%error, "looking again");
                }
                // One that cannot be written keeps no other from being put back.
                Err(error) => pass.refused.push(error.to_string()),
            }
        }
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(Pass { is_whole: true, ..pass }),
        }
    }
}

async fn put_back(api: &Api<DynamicObject>, governor: Governor, name: &str, what: String) -> Result<(), ApplyError> {
    let object = bounded(what.clone(), api.get(name)).await?;
    let Some(annotation) = object.annotations().get(SURGE_ANNOTATION) else { return Ok(()) };
    let number = object.data["spec"][number_field(governor)].as_i64().and_then(|number| i32::try_from(number).ok());
    // The record of an autoscaler that KEDA makes is a copy of the ScaledObject's, and the number KEDA's.
    let record = surge::parse(Some(annotation)).filter(|_| !is_of_scaled_object(&object.metadata));
    let number = put_back_to(number, record.as_ref());
    bounded(what, write_surge(api, governor, &object_ref(&object.metadata), number, None)).await.map(drop)
}

/// The number that is to stand there, where this one stands now: that from before the surge, where nobody has changed it
/// since; else what somebody made of it is theirs.
fn put_back_to(number: Option<i32>, record: Option<&SurgeRecord>) -> Option<i32> {
    match record {
        Some(record) if number == record.number() => record.original,
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{self, ApiServer, Asked, Kind, Reply};

    fn object(kind: &str, name: &str, annotation: Option<&str>, spec: &Value) -> Value {
        let mut meta =
            json!({"namespace": "shop", "name": name, "uid": format!("uid of {name}"), "resourceVersion": "7"});
        if let Some(annotation) = annotation {
            meta["annotations"] = json!({ SURGE_ANNOTATION: annotation });
        }
        json!({"kind": kind, "apiVersion": "v1", "metadata": meta, "spec": spec})
    }

    const KEDA: &[Kind] = &[Kind::in_namespaces(["keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"])];

    /// A Deployment, an autoscaler and a ScaledObject with a surge each, and KEDA's copy of the last; a Deployment that has
    /// none, and one whose record somebody damaged.
    fn answer(asked: &Asked) -> Reply {
        let surged = surge::render(&testing::surge(Some(3)));
        let deployments = [
            object("Deployment", "web", Some(&surged), &json!({"replicas": 4})),
            object("Deployment", "quiet", None, &json!({"replicas": 4})),
            object("Deployment", "damaged", Some("{"), &json!({"replicas": 4})),
        ];
        let bare = surge::render(&testing::surge(None));
        let mut copy = object("HorizontalPodAutoscaler", "keda-hpa-web", Some(&surged), &json!({"minReplicas": 4}));
        copy["metadata"]["ownerReferences"] = json!([{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "name": "web", "uid": "s", "controller": true}]);
        let horizontal = [object("HorizontalPodAutoscaler", "web", Some(&bare), &json!({"minReplicas": 4})), copy];
        // Somebody has set it since.
        let scaled = [object("ScaledObject", "web", Some(&surged), &json!({"minReplicaCount": 6}))];
        let paths: [(&str, &str, &[Value]); 3] = [
            ("/apis/apps/v1", "deployments", &deployments),
            ("/apis/autoscaling/v2", "horizontalpodautoscalers", &horizontal),
            ("/apis/keda.sh/v1alpha1", "scaledobjects", &scaled),
        ];
        for (group, plural, objects) in paths {
            if asked.what == format!("GET {group}/{plural}") {
                return Reply::Json(json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": "9"}, "items": objects}));
            }
            for object in objects {
                let path = format!("{group}/namespaces/shop/{plural}/{}", object["metadata"]["name"].as_str().unwrap());
                if asked.what == format!("GET {path}") || asked.what == format!("PATCH {path}") {
                    return Reply::Json(object.clone());
                }
            }
        }
        Reply::Status(404, "there is no such thing")
    }

    fn patches(api: &ApiServer) -> Vec<(String, Value)> {
        let asked = api.asked().into_iter().filter(|asked| asked.what.starts_with("PATCH"));
        asked.map(|asked| (asked.what.rsplitn(3, '/').take(2).collect::<Vec<_>>().join(" "), asked.body)).collect()
    }

    #[tokio::test]
    async fn every_surge_is_put_back_to_the_number_before_it_where_nobody_changed_it_since() {
        let api = ApiServer::serving(KEDA, answer).await;
        let done = pass(&api.client, Some(&TokenBucket::new(1000))).await.unwrap();
        assert_eq!((done.found, done.objects.len(), done.refused.len(), done.is_whole), (5, 5, 0, true));
        let expected = |name: &str, spec: Value| {
            json!({"spec": spec, "metadata": {"uid": format!("uid of {name}"), "resourceVersion": "7",
                "annotations": {SURGE_ANNOTATION: null}}})
        };
        let written = [
            ("web deployments", expected("web", json!({"replicas": 3}))),
            ("damaged deployments", expected("damaged", json!({"replicas": 4}))),
            ("web horizontalpodautoscalers", expected("web", json!({"minReplicas": null}))),
            ("keda-hpa-web horizontalpodautoscalers", expected("keda-hpa-web", json!({"minReplicas": 4}))),
            ("web scaledobjects", expected("web", json!({"minReplicaCount": 6}))),
        ];
        assert_eq!(patches(&api), written.map(|(name, body)| (name.to_owned(), body)));
    }

    #[tokio::test]
    async fn without_a_rate_or_without_keda_nothing_more_than_that_is_done() {
        let api = ApiServer::start(answer).await;
        let seen = pass(&api.client, None).await.unwrap();
        assert_eq!((seen.found, seen.objects.len(), seen.is_whole), (4, 4, true));
        assert_eq!(patches(&api), []);
    }

    #[tokio::test]
    async fn what_changes_meanwhile_is_met_again_and_what_is_refused_is_told() {
        for (code, refused) in [(409, 0), (404, 0), (503, 0), (403, 1)] {
            let api = ApiServer::serving(KEDA, move |asked| {
                let is_bent = asked.what.starts_with("PATCH") && asked.what.ends_with("deployments/web");
                if is_bent { Reply::Status(code, "words") } else { answer(asked) }
            })
            .await;
            let done = pass(&api.client, Some(&TokenBucket::new(1000))).await.unwrap();
            assert_eq!((done.found, done.objects.len(), done.refused.len()), (5, 4, refused), "{code}");
            assert!(done.refused.iter().all(|refusal| refusal.contains("Deployment shop/web")), "{:?}", done.refused);
        }
    }

    #[test]
    fn a_number_is_put_back_only_where_it_is_still_the_raised_one() {
        let (to, none) = (testing::surge(Some(2)), testing::surge(None));
        let table = [
            (Some(4), Some(&to), Some(2)),
            (Some(4), Some(&none), None),
            (Some(5), Some(&to), Some(5)),
            (None, Some(&to), None),
            // All stand-ins are taken back already.
            (Some(2), Some(&SurgeRecord { surge: 0, ..to.clone() }), Some(2)),
            (None, Some(&SurgeRecord { surge: 0, ..none.clone() }), None),
            (Some(3), Some(&SurgeRecord { surge: 0, ..to.clone() }), Some(3)),
            (Some(4), None, Some(4)),
        ];
        for (number, record, expected) in table {
            assert_eq!(put_back_to(number, record), expected, "{number:?} {record:?}");
        }
    }
}
