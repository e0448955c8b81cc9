//! What is queued, how often, and what is written of it.

use serde_json::{Value, json};

use super::*;
use crate::api;
use crate::testing::{ApiServer, Asked, Reply};

const STATUS: &str = "PATCH /apis/belay.dev/v1alpha1/namespaces/shop/evictionholds/web-1-u/status";

fn start() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

/// So many seconds after the start, by both clocks.
fn after(seconds: u64) -> Moment {
    let uptime = Duration::from_secs(seconds);
    Moment { wall: start() + uptime, uptime }
}

fn hold(trigger: HoldTrigger, last_requested: Option<u64>) -> HoldView {
    let spec = HoldSpec {
        victim_name: "web-1".into(),
        victim_uid: "u".into(),
        victim_node: "node-1".into(),
        victim_hash: "h".into(),
        reason: HoldReason::Handover,
        workload: belay_decide::hold::WorkloadRef::deployment("web", "d"),
        evictor: "drainer".into(),
        trigger,
        requested_at: start(),
        deadline: after(600).wall,
    };
    let status = belay_decide::hold::HoldStatus {
        last_requested_at: last_requested.map(|seconds| after(seconds).wall),
        ..belay_decide::hold::HoldStatus::default()
    };
    HoldView {
        namespace: "shop".into(),
        name: "web-1-u".into(),
        uid: "e".into(),
        resource_version: "1".into(),
        spec,
        status,
    }
}

fn queue() -> (Recorder, mpsc::Receiver<Entry>) {
    Recorder::queue(Arc::new(Metrics::default()))
}

#[test]
fn a_request_is_noted_where_the_last_that_is_known_is_a_minute_old() {
    use HoldTrigger::{Doom, Eviction};
    let table = [
        ("the record itself tells of the first", Eviction, None, 59, false),
        ("a minute later it does not", Eviction, None, 60, true),
        ("another replica noted it meanwhile", Eviction, Some(50), 60, false),
        ("and has not since", Eviction, Some(50), 110, true),
        ("nobody asked before", Doom, None, 1, true),
        ("somebody did", Doom, Some(1), 60, false),
    ];
    for (name, trigger, last, at, noted) in table {
        let (recorder, mut entries) = queue();
        recorder.asked_again(&hold(trigger, last), after(at));
        let expected = What::Asked { name: "web-1-u".into(), uid: "e".into(), at: after(at).wall };
        let expected = noted.then(|| Entry { namespace: "shop".into(), what: expected });
        assert_eq!(entries.try_recv().ok(), expected, "{name}");
    }
}

#[test]
fn a_replica_notes_a_hold_once_a_minute_however_late_it_sees_what_was_written() {
    let (recorder, mut entries) = queue();
    let (one, other) =
        (hold(HoldTrigger::Eviction, None), HoldView { uid: "f".into(), ..hold(HoldTrigger::Doom, None) });
    let mut noted = Vec::new();
    for second in 0..200 {
        recorder.asked_again(&one, after(second));
        while let Ok(entry) = entries.try_recv() {
            recorder.waiting.lock().remove(&entry.key());
            noted.push(second);
        }
    }
    assert_eq!(noted, [60, 120, 180]);
    recorder.asked_again(&other, after(200));
    assert!(entries.try_recv().is_ok(), "another hold is another's matter");
}

#[test]
fn what_waits_to_be_written_is_not_queued_again_and_a_full_queue_is_counted() {
    let (recorder, mut entries) = queue();
    let spec = hold(HoldTrigger::Eviction, None).spec;
    recorder.record("shop", spec.clone());
    recorder.record("shop", spec.clone());
    recorder.record("shop", HoldSpec { reason: HoldReason::Busy, ..spec.clone() });
    let reasons: Vec<_> = std::iter::from_fn(|| entries.try_recv().ok())
        .map(|entry| match entry.what {
            What::Hold(spec) => spec.reason,
            What::Asked { .. } => panic!("{entry:?}"),
        })
        .collect();
    assert_eq!(reasons, [HoldReason::Handover, HoldReason::Busy]);
    for number in 0..=QUEUE {
        recorder.record("shop", HoldSpec { victim_uid: format!("u-{number}"), ..spec.clone() });
    }
    let text = recorder.metrics.encode().unwrap();
    assert!(text.contains("belay_hold_records_total{result=\"QueueFull\"} 1"), "{text}");
}

async fn written(reply: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> (Result<Written, ApplyError>, Vec<Asked>) {
    let api = ApiServer::start(reply).await;
    let what = What::Asked { name: "web-1-u".into(), uid: "e".into(), at: start() };
    let result = write_with_retries(&api.client, &Entry { namespace: "shop".into(), what }).await;
    (result, api.asked())
}

#[tokio::test]
async fn a_note_changes_nothing_but_its_field_of_that_very_hold() {
    let whole = api::EvictionHold::of(&hold(HoldTrigger::Eviction, None).spec);
    let whole: Value = serde_json::to_value(whole).unwrap();
    let (result, asked) = written(move |_| Reply::Json(whole.clone())).await;
    assert_eq!(result.unwrap(), Written::Noted);
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].what.as_str(), asked[0].content_type.as_str()), (STATUS, "application/merge-patch+json"));
    let expected = json!({"metadata": {"uid": "e"}, "status": {"lastRequestedAt": "2026-11-30T12:00:00Z"}});
    assert_eq!(asked[0].body, expected);
}

#[tokio::test]
async fn a_note_on_a_hold_that_is_gone_is_nothing_to_be_troubled_about_and_a_missing_right_is() {
    for (code, label, benign) in [(404, "Gone", true), (409, "Conflict", true), (403, "Forbidden", false)] {
        let (result, asked) = written(move |_| Reply::Status(code, "words")).await;
        let error = result.unwrap_err();
        assert_eq!((error.label(), error.is_benign(), asked.len()), (label, benign, 1), "{code}");
        assert!(error.to_string().contains("EvictionHold shop/web-1-u"), "{error}");
    }
}
