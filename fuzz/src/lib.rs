//! What the fuzz targets do with their bytes, and what must hold whatever those are.
//!
//! Each function panics where something does not hold: that is how a target tells what it found. It takes any bytes, and
//! keeps nothing from one call to the next that could change an answer, so that one input is enough to see a defect again.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a panic is how a target tells what it found"
)]

mod fill;
mod seeds;
mod stage;

use std::path::Path;

use belay::config::Config;
use belay::settings::Settings;
use belay::webhook::review::{Answer, Eviction, Review};
use belay_decide::busy::expression::{Expression, Inputs};
use jiff::Timestamp;
use serde_json::{Value, json};

pub use seeds::{TARGETS, seeds};

/// What is not UTF-8 is no text that anybody could have written.
fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// The parser of reviews: what it reads is answered with its uid, in JSON that says the same.
pub fn review(data: &[u8]) {
    let Ok(review) = Review::parse(data) else { return };
    let Some(request) = &review.request else { return };
    let eviction = request.object.and_then(|object| serde_json::from_str::<Eviction<'_>>(object.get()).ok());
    if let Some(eviction) = eviction {
        assert!(eviction.uid().is_none_or(|uid| !uid.is_empty()));
    }
    let words = format!("{} {eviction:?}", request.user(), eviction = request.name);
    let bytes = Answer::allow_with(words.clone()).encode(review.api_version.as_deref(), &request.uid);
    let answer: Value = serde_json::from_slice(&bytes).expect("an answer is JSON");
    assert_eq!(answer["response"], json!({ "uid": request.uid, "allowed": true, "warnings": [words] }));
}

/// A body at every endpoint of a webhook with a filled cache: see [`stage::Stage::check`].
pub fn answer(data: &[u8]) {
    kinds_of_answers(data);
}

/// What the endpoints made of a body: the path and `allowed`, `refused` or `patched`, for each.
pub fn kinds_of_answers(data: &[u8]) -> Vec<String> {
    let mut kinds = Vec::new();
    stage::with(|stage| kinds = stage.check(data));
    kinds
}

/// A configuration: what is accepted compiles and can be put in force, what is not says what is wrong with it.
pub fn config(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match Config::parse(Path::new("config.yaml"), text) {
        Ok(config) => {
            let (rules, selects) = config.busy_hints.compile().expect("what is accepted compiles");
            assert_eq!(rules.len(), selects.len());
            let settings = Settings::of(&config, "belay-system");
            assert!(settings.rules.excludes("belay-system") && settings.rules.excludes("kube-system"));
            assert!(config.timing().renew_deadline < config.timing().lease_duration);
            assert_eq!(Config::parse(Path::new("config.yaml"), text).expect("it was accepted"), config);
        }
        Err(error) => assert!(error.to_string().contains("config.yaml"), "{error}"),
    }
}

/// An expression of a busy rule: what compiles can be evaluated on anything, to the same every time.
pub fn expression(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let Ok(expression) = Expression::compile(text, &["pod", "owner", "linked", "now"]) else { return };
    let pod = json!({ "metadata": { "name": "runner", "labels": { "a": "b", "c": "" }, "annotations": {} },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }], "count": 3 } });
    let owner = json!({ "status": { "jobId": "7", "ready": true, "items": [1, 2.5, null, "x"], "map": { "k": [] } } });
    let now = Timestamp::UNIX_EPOCH;
    for (owner, linked) in
        [(Some(&owner), vec![&pod, &owner]), (Some(&Value::Null), vec![]), (None, vec![&Value::Null])]
    {
        let inputs = Inputs { pod: &pod, owner, linked: &linked, now };
        let (first, second) = (expression.evaluate(&inputs), expression.evaluate(&inputs));
        assert_eq!(first, second, "{text}");
    }
}
