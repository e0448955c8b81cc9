//! AdmissionReviews: what is read of a request, and the answer's bytes.
//!
//! Only the fields that decisions read are parsed, borrowed from the body: a typed round trip costs five times as
//! much and drops fields that are newer than the types. Parsing is lenient where servers and clients differ
//! (policy/v1 and v1beta1 bodies, absent `metadata.namespace`, absent `userInfo`), strict on nothing but JSON.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A review as it comes in, its object unparsed, or read in the same go where one knows what it has to be.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "O: Deserialize<'de>"))]
pub struct Review<'a, O = &'a RawValue> {
    /// `admission.k8s.io/v1`; echoed.
    #[serde(borrow, default, rename = "apiVersion")]
    pub api_version: Option<Cow<'a, str>>,
    /// The request.
    pub request: Option<Request<'a, O>>,
}

/// The request of a review.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "O: Deserialize<'de>"))]
pub struct Request<'a, O = &'a RawValue> {
    /// Echoed in the answer; an answer without it is thrown away by the API server.
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    /// Name of the object; absent where the server is to make one up.
    #[serde(borrow, default)]
    pub name: Option<Cow<'a, str>>,
    /// Namespace of the object.
    #[serde(borrow, default)]
    pub namespace: Option<Cow<'a, str>>,
    /// The request changes nothing, by its URL.
    #[serde(default)]
    pub dry_run: Option<bool>,
    /// Who asks.
    #[serde(borrow, default)]
    pub user_info: Option<UserInfo<'a>>,
    /// The object.
    #[serde(default = "Option::default")]
    pub object: Option<O>,
}

/// Who asks.
#[derive(Debug, Deserialize)]
pub struct UserInfo<'a> {
    /// User name.
    #[serde(borrow, default)]
    pub username: Option<Cow<'a, str>>,
}

/// An Eviction, of policy/v1 or v1beta1.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction<'a> {
    /// Name and perhaps namespace of the pod.
    #[serde(borrow, default)]
    pub metadata: Option<EvictionMeta<'a>>,
    /// How to delete.
    #[serde(borrow, default)]
    pub delete_options: Option<DeleteOptions<'a>>,
}

/// `metadata` of an Eviction.
#[derive(Debug, Default, Deserialize)]
pub struct EvictionMeta<'a> {
    /// Name of the pod.
    #[serde(borrow, default)]
    pub name: Option<Cow<'a, str>>,
    /// Namespace of the pod.
    #[serde(borrow, default)]
    pub namespace: Option<Cow<'a, str>>,
}

/// `deleteOptions` of an Eviction.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions<'a> {
    /// Non-empty: nothing is to be changed. `kubectl drain --dry-run=server` says it here alone.
    #[serde(borrow, default)]
    pub dry_run: Option<Vec<Cow<'a, str>>>,
    /// Which pod is meant.
    #[serde(borrow, default)]
    pub preconditions: Option<UidPrecondition<'a>>,
}

/// `preconditions` of a deletion.
#[derive(Debug, Default, Deserialize)]
pub struct UidPrecondition<'a> {
    /// UID of the pod that is meant.
    #[serde(borrow, default)]
    pub uid: Option<Cow<'a, str>>,
}

impl<'a> Review<'a> {
    /// Reads a body.
    pub fn parse(body: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }
}

impl<'a, O: Deserialize<'a>> Review<'a, O> {
    /// Reads a body with its object, which a second time would cost as much again; absent where either is odd.
    pub fn parse_whole(body: &'a [u8]) -> Option<Self> {
        // All of it is text, what is passed over, too: a part of it may be kept.
        serde_json::from_str(std::str::from_utf8(body).ok()?).ok()
    }
}

impl<O> Request<'_, O> {
    /// User name of who asks; empty where absent.
    pub fn user(&self) -> &str {
        self.user_info.as_ref().and_then(|user| user.username.as_deref()).unwrap_or_default()
    }
}

impl Eviction<'_> {
    /// The body asks for a dry run.
    pub fn is_dry_run(&self) -> bool {
        let options = self.delete_options.as_ref();
        options.and_then(|options| options.dry_run.as_ref()).is_some_and(|dry_run| !dry_run.is_empty())
    }

    /// The UID that the client insists on.
    pub fn uid(&self) -> Option<&str> {
        let preconditions = self.delete_options.as_ref()?.preconditions.as_ref()?;
        preconditions.uid.as_deref().filter(|uid| !uid.is_empty())
    }
}

/// The answer to a review.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Refused, with the status that the client gets; absent where allowed.
    pub refusal: Option<Refusal>,
    /// Printed by the client.
    pub warnings: Vec<String>,
    /// JSON Patch operations, serialised; absent where nothing is changed.
    pub patch: Option<Vec<u8>>,
}

/// A refusal like a PodDisruptionBudget's: HTTP 429, which every drainer takes for "not yet".
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The whole message.
    pub message: String,
    /// Machine-readable cause, in CamelCase.
    pub cause: &'static str,
    /// What is awaited.
    pub awaited: String,
    /// Seconds after which the client's library asks again by itself.
    pub retry_after_seconds: Option<i32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    kind: &'static str,
    api_version: &'a str,
    response: WireResponse<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<WireStatus<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
}

#[derive(Serialize)]
struct WireStatus<'a> {
    status: &'static str,
    code: u16,
    reason: &'static str,
    message: &'a str,
    details: WireDetails<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireDetails<'a> {
    causes: [WireCause<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<i32>,
}

#[derive(Serialize)]
struct WireCause<'a> {
    reason: &'a str,
    message: &'a str,
}

impl Answer {
    /// Lets the request through with a word to the client.
    pub fn allow_with(warning: String) -> Self {
        Self { warnings: vec![warning], ..Self::default() }
    }

    /// The bytes of the answer to the review with this UID.
    pub fn encode(&self, api_version: Option<&str>, uid: &str) -> Vec<u8> {
        let wire = Wire {
            kind: "AdmissionReview",
            api_version: api_version.unwrap_or("admission.k8s.io/v1"),
            response: WireResponse {
                uid,
                allowed: self.refusal.is_none(),
                status: self.refusal.as_ref().map(|refusal| WireStatus {
                    status: "Failure",
                    code: 429,
                    reason: "TooManyRequests",
                    message: &refusal.message,
                    details: WireDetails {
                        causes: [WireCause { reason: refusal.cause, message: &refusal.awaited }],
                        retry_after_seconds: refusal.retry_after_seconds,
                    },
                }),
                warnings: &self.warnings,
                patch_type: self.patch.as_ref().map(|_| "JSONPatch"),
                patch: self.patch.as_ref().map(|patch| base64_encode(patch)),
            },
        };
        // Strings and numbers always serialise.
        serde_json::to_vec(&wire).unwrap_or_default()
    }
}

fn base64_encode(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_every_client_are_read() {
        let table = [
            (
                "kubectl drain --dry-run=server says it in the body alone",
                r#"{"deleteOptions":{"dryRun":["All"]}}"#,
                true,
                None,
            ),
            (
                "policy/v1beta1 without a namespace",
                r#"{"apiVersion":"policy/v1beta1","metadata":{"name":"x"}}"#,
                false,
                None,
            ),
            ("Karpenter sends the UID", r#"{"deleteOptions":{"preconditions":{"uid":"u-1"}}}"#, false, Some("u-1")),
            ("an empty list is no dry run", r#"{"deleteOptions":{"dryRun":[]}}"#, false, None),
            ("nulls", r#"{"metadata":null,"deleteOptions":null}"#, false, None),
        ];
        for (name, body, dry_run, uid) in table {
            let eviction: Eviction<'_> = serde_json::from_str(body).expect(name);
            assert_eq!((eviction.is_dry_run(), eviction.uid()), (dry_run, uid), "{name}");
        }
    }

    #[test]
    fn a_request_needs_nothing_but_its_uid() {
        let review = Review::parse(br#"{"request":{"uid":"u","escaped":"\u0041"}}"#).unwrap();
        let request = review.request.unwrap();
        assert_eq!((&*request.uid, request.user(), request.dry_run), ("u", "", None));
        let escaped = Review::parse(br#"{"request":{"uid":"\u0041b","userInfo":{"username":"\u0043"}}}"#).unwrap();
        let request = escaped.request.unwrap();
        assert_eq!((&*request.uid, request.user()), ("Ab", "C"));
    }

    #[test]
    fn a_refusal_looks_like_a_disruption_budgets() {
        let answer = Answer {
            refusal: Some(Refusal {
                message: "belay: holding web".into(),
                cause: "ReplacementStarting",
                awaited: "replacement web-2 is starting".into(),
                retry_after_seconds: None,
            }),
            ..Answer::default()
        };
        let wire: serde_json::Value = serde_json::from_slice(&answer.encode(None, "u")).unwrap();
        let expected = serde_json::json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "response": {"uid": "u", "allowed": false, "status": {
                "status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "belay: holding web",
                "details": {"causes": [{"reason": "ReplacementStarting", "message": "replacement web-2 is starting"}]},
            }},
        });
        assert_eq!(wire, expected);
    }

    #[test]
    fn an_allowed_answer_carries_warnings_and_patch() {
        let answer = Answer { patch: Some(b"[]".to_vec()), ..Answer::allow_with("belay: look".into()) };
        let wire: serde_json::Value = serde_json::from_slice(&answer.encode(Some("admission.k8s.io/v1"), "u")).unwrap();
        assert_eq!(
            wire["response"],
            serde_json::json!({"uid": "u", "allowed": true, "warnings": ["belay: look"], "patchType": "JSONPatch", "patch": "W10="})
        );
    }
}
