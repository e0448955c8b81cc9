//! `POST /validate/canary`: says that the API server reached this replica, to whoever asked for that.
//!
//! Nothing is ever refused here, and nothing looked up or counted among evictions: the entry of the webhook
//! configuration that leads here matches dry runs alone, and the answer is the same were it another.

use std::collections::BTreeMap;

use belay_decide::probe::{ANNOTATION, echo};
use serde::Deserialize;

use super::Handlers;
use super::review::{Answer, Request};

/// What is read of an Eviction here.
#[derive(Debug, Default, Deserialize)]
struct Marked {
    #[serde(default)]
    metadata: Meta,
}

#[derive(Debug, Default, Deserialize)]
struct Meta {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Answers a probe with its own word, and everything else with silence.
pub fn answer(handlers: &Handlers, request: &Request<'_>) -> Answer {
    let marked: Marked = request.object.and_then(|object| serde_json::from_str(object.get()).ok()).unwrap_or_default();
    let word = marked.metadata.annotations.get(ANNOTATION);
    let echo = word.and_then(|nonce| echo(nonce, &handlers.replica));
    Answer { warnings: echo.into_iter().collect(), ..Answer::default() }
}
