//! Who wrote what: the API server's own audit log, read back.
//!
//! "Steady state costs no writes" and "a dry run changes nothing" are promises about the API server, so they are
//! checked where the API server records every write and its author.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// How the keys begin under which the API server notes the webhooks that it passed over (Kubernetes,
/// `staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/validating/dispatcher.go`).
const FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io/";

/// One write that the API server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// When the API server was asked.
    pub at: Timestamp,
    /// The user that asked, such as `system:serviceaccount:belay-system:belay-controller`, or in whose name was asked.
    pub user: String,
    /// What the client calls itself.
    pub agent: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The resource with its subresource, such as `pods/eviction`.
    pub resource: String,
    /// The object's namespace, empty when it has none.
    pub namespace: String,
    /// The object's name, empty when the server chose it.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// What the API server or a webhook said, where it said something.
    pub message: String,
    /// Whether the request was a dry run by its URL.
    pub dry_run: bool,
    /// Whether a validating webhook gave no answer and was passed over, by its `failurePolicy: Ignore`.
    pub failed_open: bool,
    /// What was to be written, a patch as it was sent; null for those resources whose bodies are not recorded (the
    /// audit policy names those that are).
    pub body: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    user_agent: String,
    request_received_timestamp: Timestamp,
    #[serde(default)]
    request_object: Value,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    #[serde(rename = "requestURI")]
    request_uri: String,
}

impl Event {
    fn author(&self) -> &str {
        &self.impersonated_user.as_ref().unwrap_or(&self.user).username
    }
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
    message: String,
}

/// The writes of the users whose name starts with `user_prefix`, oldest first.
///
/// # Errors
/// When the log cannot be read or holds something that is no audit event.
pub fn writes(log: &Path, user_prefix: &str) -> anyhow::Result<Vec<Write>> {
    Ok(writes_since(log, 0, user_prefix)?.0)
}

/// As [`writes`], of those that stand behind this many bytes of the log; and where to read on the next time. For runs
/// whose log is too long to be read as a whole again and again.
///
/// # Errors
/// As [`writes`].
pub fn writes_since(log: &Path, offset: u64, user_prefix: &str) -> anyhow::Result<(Vec<Write>, u64)> {
    let mut text = String::new();
    let mut read = || {
        let mut file = std::fs::File::open(log)?;
        file.seek(SeekFrom::Start(offset))?;
        file.read_to_string(&mut text)
    };
    read().with_context(|| format!("cannot read {}", log.display()))?;
    let mut writes = Vec::new();
    // The last line may still be being written.
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    for line in whole.lines() {
        let event: Event = serde_json::from_str(line).with_context(|| format!("no audit event: {line}"))?;
        if event.author().starts_with(user_prefix) {
            writes.push(Write::from(event));
        }
    }
    Ok((writes, offset + whole.len() as u64))
}

impl From<Event> for Write {
    fn from(event: Event) -> Self {
        let user = event.author().to_owned();
        let object = event.object_ref;
        let resource = if object.subresource.is_empty() {
            object.resource
        } else {
            format!("{}/{}", object.resource, object.subresource)
        };
        Self {
            at: event.request_received_timestamp,
            user,
            agent: event.user_agent,
            verb: event.verb,
            resource,
            namespace: object.namespace,
            name: object.name,
            code: event.response_status.code,
            message: event.response_status.message,
            failed_open: event.annotations.keys().any(|key| key.starts_with(FAILED_OPEN)),
            body: event.request_object,
            dry_run: event.request_uri.contains("dryRun=All"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_whole_lines_of_the_wanted_user() {
        let folder = std::env::temp_dir().join(format!("belay-audit-{}", std::process::id()));
        let line = |user: &str, sub: &str| {
            format!(
                r#"{{"verb":"create","user":{{"username":"{user}"}},"userAgent":"kubectl","requestReceivedTimestamp":"2026-01-01T00:00:00.5Z","requestURI":"/api/v1/x?dryRun=All","requestObject":{{"a":1}},"annotations":{{"failed-open.validating.webhook.admission.k8s.io/round_0_index_0":"eviction.hold.belay.dev"}},"objectRef":{{"resource":"pods","subresource":"{sub}","namespace":"ns","name":"web"}},"responseStatus":{{"code":429,"message":"no"}}}}"#
            )
        };
        let text = [line("alice", "eviction"), line("bob", ""), r#"{"verb":"cre"#.to_owned()].join("\n");
        std::fs::write(&folder, text).unwrap();
        let read = writes(&folder, "ali");
        let (of_bob, end) = writes_since(&folder, line("alice", "eviction").len() as u64 + 1, "").unwrap();
        let later = writes_since(&folder, end, "").unwrap();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(of_bob.iter().map(|write| write.user.as_str()).collect::<Vec<_>>(), ["bob"]);
        assert_eq!(later, (Vec::new(), end), "the line that is not whole is left for the next time");
        let expected = Write {
            at: "2026-01-01T00:00:00.5Z".parse().unwrap(),
            user: "alice".into(),
            agent: "kubectl".into(),
            verb: "create".into(),
            resource: "pods/eviction".into(),
            namespace: "ns".into(),
            name: "web".into(),
            code: 429,
            message: "no".into(),
            dry_run: true,
            failed_open: true,
            body: serde_json::json!({ "a": 1 }),
        };
        assert_eq!(read.unwrap(), [expected]);
    }
}
