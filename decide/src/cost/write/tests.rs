//! The write to one pod: every standing against every wish.

use std::sync::Arc;

use super::*;
use crate::cost::testing::pod;
use crate::cost::{CostPod, Standing};
use crate::testing::{START, after};

/// Label, value and record as they stand, the value that is due, and what is written.
type Row<'a> = (&'a str, Option<&'a str>, Option<&'a str>, Option<i32>, &'a [&'a str]);

const COST: &str = COST_ANNOTATION;

/// A pod with these annotations.
fn known(present: Option<&str>, managed: Option<&str>) -> KnownPod {
    let standing = Standing::read(present, &Record::parse(managed));
    KnownPod {
        pod: CostPod { standing, ..pod("web-1", "web", "a1") },
        resource_version: "7".into(),
        present: present.map(Into::into),
        managed: managed.map(Into::into),
        labels: Arc::default(),
        hold_until: None,
    }
}

fn record(value: &str) -> String {
    format!(r#"{{"{COST}":{value}}}"#)
}

/// A write in words: the value, the record, and what is told.
fn in_words(wanted: Option<Write>) -> Vec<String> {
    let Some(wanted) = wanted else { return Vec::new() };
    let yields = wanted.sequence.iter().any(|action| matches!(action, Action::Event(_)));
    assert_eq!(yields, wanted.yielded, "a value that is given up is told of");
    let words = |action: &Action| match action {
        Action::PatchPod { pod, changes } => {
            assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("shop", "web-1", "web-1-uid"));
            assert_eq!(pod.resource_version, "7");
            let said = |(key, value): (&Key, &Option<String>)| {
                let value = value.as_deref().unwrap_or("nothing");
                let name = if key.name() == COST { "value" } else { "record" };
                assert!(matches!(key, Key::Annotation(_)) && [COST, MANAGED_ANNOTATION].contains(&key.name()));
                format!("{name} {value}")
            };
            changes.iter().map(said).collect::<Vec<_>>().join(", ").replace(COST, "cost")
        }
        Action::Event(event) => {
            format!("{} {}: {}", event.reason, event.regarding.name, event.note.replace(COST, "cost"))
        }
        other => panic!("no action on a pod: {other:?}"),
    };
    wanted.sequence.iter().map(words).collect()
}

#[test]
fn every_standing_against_every_wish() {
    let (ours, up) = (record(r#""-5""#), record("null"));
    let (ours, up) = (Some(ours.as_str()), Some(up.as_str()));
    let theirs = r#"DeletionCostConflict web-1: Somebody else set "8" in cost; Belay leaves this pod's value to them"#;
    let table: [Row<'_>; 18] = [
        ("nothing, and none is due", None, None, None, &[]),
        ("nothing, and one is due", None, None, Some(-5), &[r#"record {"cost":"-5"}, value -5"#]),
        ("ours, as it ought to be", Some("-5"), ours, Some(-5), &[]),
        ("ours, and another is due", Some("-5"), ours, Some(-6), &[r#"record {"cost":"-6"}, value -6"#]),
        ("ours, and none is due", Some("-5"), ours, None, &["record nothing, value nothing"]),
        ("stripped, and the same is due", None, ours, Some(-5), &["value -5"]),
        ("stripped, and another is due", None, ours, Some(-6), &[r#"record {"cost":"-6"}, value -6"#]),
        ("stripped, and none is due", None, ours, None, &["record nothing"]),
        ("rewritten, and one is due", Some("8"), ours, Some(-5), &["record nothing", theirs]),
        ("rewritten, and none is due", Some("8"), ours, None, &["record nothing", theirs]),
        ("rewritten to what is due", Some("8"), ours, Some(8), &["record nothing", theirs]),
        ("theirs, and one is due", Some("8"), None, Some(-5), &[]),
        ("theirs, and just that is due", Some("8"), None, Some(8), &[]),
        ("theirs, and none is due", Some("8"), None, None, &[]),
        ("given up, and one is due", None, up, Some(-5), &[]),
        ("given up, and none is due", None, up, None, &[]),
        ("given up, and theirs since", Some("8"), up, Some(-5), &[]),
        ("a record that cannot be read", Some("-5"), Some("{"), Some(-6), &[]),
    ];
    for (label, present, managed, desired, expected) in table {
        let known = known(present, managed);
        let wanted = write(&known, desired, &mut Removals::default(), START);
        assert_eq!(in_words(wanted), expected, "{label}");
        assert_eq!(known.pod.standing.asks_for_a_write(desired), !expected.is_empty(), "{label}: it asks");
    }
}

#[test]
fn a_value_that_is_stripped_three_times_within_an_hour_is_given_up() {
    let ours = record(r#""-5""#);
    let told = "DeletionCostConflict web-1: Somebody else keeps removing cost; Belay leaves this pod's value to them";
    for (minutes, is_given_up) in [([0, 20, 59], true), ([0, 20, 60], false)] {
        let mut removals = Removals::default();
        let mut last = Vec::new();
        for (version, minute) in minutes.into_iter().enumerate() {
            let mut stripped = known(None, Some(&ours));
            let mut look = |version: String, stripped: &mut KnownPod| {
                stripped.resource_version = version.into();
                let mut wanted = write(stripped, Some(-5), &mut removals, after(minute * 60)).expect("it was stripped");
                if let Some(Action::PatchPod { pod, .. }) = wanted.sequence.first_mut() {
                    pod.resource_version = "7".into();
                }
                in_words(Some(wanted))
            };
            last = look(version.to_string(), &mut stripped);
            assert_eq!(look(version.to_string(), &mut stripped), last, "one removal, looked at twice");
            if version < 2 {
                assert_eq!(last, ["value -5"], "{minutes:?}");
            }
        }
        let expected: &[&str] = if is_given_up { &[r#"record {"cost":null}"#, told] } else { &["value -5"] };
        assert_eq!(last, expected, "{minutes:?}");
    }
}

#[test]
fn what_else_is_recorded_on_the_pod_stays() {
    let others = r#""cluster-autoscaler.kubernetes.io/safe-to-evict":"false""#;
    let with = |cost: &str| format!(r#"{{{others},"{COST}":{cost}}}"#);
    let alone = format!("{{{others}}}");
    let table = [
        (None, alone.clone(), Some(-5), format!("record {}, value -5", with(r#""-5""#))),
        (Some("-5"), with(r#""-5""#), Some(-6), format!("record {}, value -6", with(r#""-6""#))),
        (Some("-5"), with(r#""-5""#), None, format!("record {alone}, value nothing")),
        (Some("8"), with(r#""-5""#), Some(-5), format!("record {alone}")),
    ];
    for (present, managed, desired, expected) in table {
        let wanted = write(&known(present, Some(&managed)), desired, &mut Removals::default(), START);
        assert_eq!(in_words(wanted)[0], expected.replace(COST, "cost"), "{present:?} with {managed}");
    }
}

#[test]
fn the_event_of_a_conflict_is_one_for_each_pod() {
    let ours = record(r#""-5""#);
    let wanted = write(&known(Some("8"), Some(&ours)), None, &mut Removals::default(), START).unwrap();
    let [_, Action::Event(event)] = &wanted.sequence[..] else { panic!("no Event: {wanted:?}") };
    assert!(event.warning);
    assert_eq!((event.namespace.as_str(), event.action), ("shop", "Yield"));
    let key = Key::annotation(COST);
    assert_eq!(event.related, Some(Reference::pod_mark("web-1", "web-1-uid", &key)));
}

#[test]
fn a_pod_that_is_bound_with_a_value_stands_as_ours() {
    let annotations = bind_annotations(-123, None);
    let of = |key: &str| annotations.get(key).map(String::as_str);
    assert_eq!(annotations.len(), 2);
    assert_eq!(of(COST), Some("-123"));
    assert_eq!(of(MANAGED_ANNOTATION), Some(r#"{"controller.kubernetes.io/pod-deletion-cost":"-123"}"#));
    let bound = known(of(COST), of(MANAGED_ANNOTATION));
    assert_eq!(bound.pod.standing, Standing::Ours(-123));
    assert_eq!(write(&bound, Some(-123), &mut Removals::default(), START), None);
}
