//! What is said of probes, and by which exit code.

use clap::Parser as _;

use super::*;
use crate::testing::{ApiServer, Reply};

fn reached(replica: &str) -> Found {
    Verdict::Reached { replica: replica.into() }.into()
}

fn missed() -> Found {
    Verdict::NotReached(Miss::Silent).into()
}

fn refused() -> Found {
    Verdict::Refused { message: "HTTP 403: no such right".into() }.into()
}

fn report(found: Vec<Found>) -> Report {
    Report::of(found).expect("something was asked")
}

#[test]
fn the_worst_of_all_attempts_is_told_with_who_answered() {
    let unread = || Found { unread: Some("you may not read it".into()), ..reached("a") };
    let silent = Miss::Silent.to_string();
    let table = [
        ("one attempt", vec![reached("a")], 0, "Webhook: reached\nAnswered by:\n  a, once\n".to_owned()),
        (
            "several",
            vec![reached("b"), reached("a"), reached("b")],
            0,
            "Webhook: reached\n3 attempts: 3 Reached\nAnswered by:\n  a, once\n  b, 2 times\n".to_owned(),
        ),
        (
            "one of several is missed",
            vec![reached("a"), refused(), missed()],
            NOT_REACHED,
            format!(
                "Webhook: not reached\n  {silent}\n3 attempts: 1 NotReached, 1 Reached, 1 Refused\n\
                 Answered by:\n  a, once\n"
            ),
        ),
        (
            "one of several is refused",
            vec![reached("a"), refused()],
            FAILED,
            "Webhook: not known\n  the API server refuses the probe: HTTP 403: no such right\n\
             2 attempts: 1 Reached, 1 Refused\nAnswered by:\n  a, once\n"
                .to_owned(),
        ),
        (
            "the configuration may not be read",
            vec![unread()],
            0,
            "Webhook: reached\nAnswered by:\n  a, once\n\
             Not compared with the entry eviction.hold.belay.dev: you may not read it\n"
                .to_owned(),
        ),
    ];
    for (name, found, code, text) in table {
        let report = report(found);
        let mut page = Page::new(None, false);
        report.write(&mut page);
        assert_eq!((report.exit_code(), page.text()), (code, &*text), "{name}");
    }
}

#[test]
fn programs_are_told_the_same() {
    let expected = serde_json::json!({
        "result": "NotReached",
        "reason": "Silent",
        "message": Miss::Silent.to_string(),
        "attempts": { "NotReached": 1, "Reached": 1 },
        "replicas": { "a": 1 },
    });
    assert_eq!(serde_json::to_value(report(vec![reached("a"), missed()])).unwrap(), expected);
}

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: ProbeArgs,
}

/// The place that is meant by these arguments where these are the namespaces and names of Belays.
async fn place_among(belays: &'static [(&'static str, &'static str)], args: &[&str]) -> Result<Option<String>, String> {
    let api = ApiServer::start(move |_| {
        let of = |(namespace, name): &(&str, &str)| {
            serde_json::json!({
                "metadata": { "name": name },
                "webhooks": [{
                    "name": "canary.hold.belay.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                    "clientConfig": { "service": { "namespace": namespace, "name": "belay-webhook" } },
                }],
            })
        };
        let items: Vec<_> = belays.iter().map(of).collect();
        Reply::Json(serde_json::json!({ "metadata": {}, "items": items }))
    })
    .await;
    let line = Line::try_parse_from(std::iter::once("probe").chain(args.iter().copied())).expect("good arguments");
    let place = place(&api.client, &line.args).await.map_err(|error| format!("{error:#}"))?;
    Ok(place.map(|(namespace, name)| format!("{namespace}/{name}")))
}

#[tokio::test]
async fn belay_is_found_unless_there_are_several() {
    let one: &[_] = &[("belay-system", "belay")];
    let two: &[_] = &[("belay-system", "belay"), ("platform", "rope")];
    let found = |text: &str| Ok(Some(text.to_owned()));
    assert_eq!(place_among(one, &[]).await, found("belay-system/belay"));
    assert_eq!(place_among(&[], &[]).await, Ok(None));
    assert_eq!(place_among(one, &["-n", "elsewhere"]).await, Ok(None));
    assert_eq!(place_among(two, &["-n", "platform"]).await, found("platform/rope"));
    assert_eq!(
        place_among(&[], &["-n", "a", "--configuration", "b"]).await,
        found("a/b"),
        "what is named is not sought"
    );
    let problem = place_among(two, &[]).await.unwrap_err();
    for word in ["belay-system (belay)", "platform (rope)", "--namespace"] {
        assert!(problem.contains(word), "{problem}");
    }
}
