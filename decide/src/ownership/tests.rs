//! Who owns a key: every combination, and what becomes of keys that are removed again and again.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::testing::{after, runner};

fn key() -> Key {
    Key::annotation("example.com/hint")
}

fn other() -> Key {
    Key::annotation("example.com/other")
}

/// What is recorded of [`key`].
#[derive(Clone, Copy, Debug)]
enum Of {
    Nothing,
    GivenUp,
    Value(&'static str),
}

fn recorded(of: Of) -> Record {
    let value = match of {
        Of::Nothing => return Record::default(),
        Of::GivenUp => None,
        Of::Value(value) => Some(value.to_owned()),
    };
    Record(BTreeMap::from([(key(), value)]))
}

fn present(value: Option<&str>) -> BTreeMap<Key, String> {
    value.map(|value| (key(), value.to_owned())).into_iter().collect()
}

fn wanted(value: Option<&str>) -> BTreeMap<Key, Option<String>> {
    BTreeMap::from([(key(), value.map(str::to_owned))])
}

/// One outcome in words: what is written, what is recorded from then on, and what is told.
fn in_words(outcome: &Outcome) -> (String, String, &'static str) {
    let change = match outcome.changes.get(&key()) {
        None => "nothing".to_owned(),
        Some(None) => "remove".to_owned(),
        Some(Some(value)) => format!("write {value}"),
    };
    let record = match outcome.record.0.get(&key()) {
        None => "none".to_owned(),
        Some(None) => "given up".to_owned(),
        Some(Some(value)) => value.clone(),
    };
    let told = match (outcome.yielded.contains(&key()), outcome.restored.contains(&key())) {
        (false, false) => "",
        (true, false) => "yielded",
        (false, true) => "restored",
        (true, true) => "both",
    };
    (change, record, told)
}

#[test]
fn every_combination_of_record_presence_and_wish() {
    const NONE: Of = Of::Nothing;
    const UP: Of = Of::GivenUp;
    const OLD: Of = Of::Value("old");
    const NEW: Of = Of::Value("new");
    // What is recorded, present and wanted; what is written, recorded from then on, and told.
    let table = [
        // Never ours.
        (NONE, None, None, "nothing", "none", ""),
        (NONE, None, Some("new"), "write new", "new", ""),
        (NONE, Some("theirs"), None, "nothing", "none", ""),
        (NONE, Some("theirs"), Some("new"), "nothing", "none", ""),
        // Somebody else wrote just what we would have written.
        (NONE, Some("new"), Some("new"), "nothing", "none", ""),
        // Given up: theirs, present or not.
        (UP, None, None, "nothing", "given up", ""),
        (UP, None, Some("new"), "nothing", "given up", ""),
        (UP, Some("theirs"), None, "nothing", "given up", ""),
        (UP, Some("theirs"), Some("new"), "nothing", "given up", ""),
        (UP, Some("new"), Some("new"), "nothing", "given up", ""),
        // Ours, as we wrote it.
        (OLD, Some("old"), None, "remove", "none", ""),
        (OLD, Some("old"), Some("new"), "write new", "new", ""),
        (NEW, Some("new"), Some("new"), "nothing", "new", ""),
        // Ours, and somebody changed it.
        (OLD, Some("theirs"), None, "nothing", "none", "yielded"),
        (OLD, Some("theirs"), Some("new"), "nothing", "none", "yielded"),
        (NEW, Some("theirs"), Some("new"), "nothing", "none", "yielded"),
        // Also where they changed it to what we are about to write: the value is theirs.
        (OLD, Some("new"), Some("new"), "nothing", "none", "yielded"),
        // Ours, and somebody removed it.
        (OLD, None, None, "nothing", "none", ""),
        (OLD, None, Some("new"), "write new", "new", "restored"),
        (NEW, None, Some("new"), "write new", "new", "restored"),
    ];
    for (record, there, wish, change, then, told) in table {
        let outcome = reconcile(&recorded(record), &present(there), &wanted(wish), &mut Removals::default(), after(0));
        let expected = (change.to_owned(), then.to_owned(), told);
        assert_eq!(in_words(&outcome), expected, "recorded {record:?}, present {there:?}, wanted {wish:?}");
    }
}

#[test]
fn keys_that_nobody_asked_for_are_left_alone() {
    let mut record = recorded(Of::Value("old"));
    record.insert(other(), "ours".into());
    let there = BTreeMap::from([(key(), "old".to_owned()), (other(), "changed".to_owned())]);
    let outcome = reconcile(&record, &there, &wanted(Some("new")), &mut Removals::default(), after(0));
    assert_eq!(outcome.changes, BTreeMap::from([(key(), Some("new".to_owned()))]));
    assert_eq!(outcome.record.written(&other()), Some("ours"));
    assert_eq!((outcome.yielded, outcome.restored), (BTreeSet::new(), BTreeSet::new()));
}

#[test]
fn a_label_and_an_annotation_of_one_name_are_two_keys() {
    let (label, annotation) = (Key::label("example.com/x"), Key::annotation("example.com/x"));
    let desired = BTreeMap::from([(label.clone(), Some("l".to_owned())), (annotation.clone(), Some("a".to_owned()))]);
    let theirs = BTreeMap::from([(label.clone(), "theirs".to_owned())]);
    let outcome = reconcile(&Record::default(), &theirs, &desired, &mut Removals::default(), after(0));
    assert_eq!(outcome.changes, BTreeMap::from([(annotation.clone(), Some("a".to_owned()))]));

    let outcome = reconcile(&Record::default(), &BTreeMap::new(), &desired, &mut Removals::default(), after(0));
    let rendered = outcome.record.render().unwrap();
    assert_eq!(rendered, r#"{"example.com/x":"a","label:example.com/x":"l"}"#);
    let read = Record::parse(Some(&rendered));
    assert_eq!((read.written(&label), read.written(&annotation)), (Some("l"), Some("a")));
}

/// Finds the key removed at these seconds, each time at another version of the pod; says what was done each time.
fn removed_at(times: &[i64]) -> Vec<&'static str> {
    let (mut record, mut removals) = (recorded(Of::Value("v")), Removals::default());
    let done = times.iter().enumerate().map(|(version, seconds)| {
        removals.look_at(&version.to_string());
        let outcome = reconcile(&record, &BTreeMap::new(), &wanted(Some("v")), &mut removals, after(*seconds));
        record = outcome.record.clone();
        in_words(&outcome).2
    });
    done.collect()
}

#[test]
fn three_removals_within_an_hour_are_a_decision() {
    const BACK: &str = "restored";
    const UP: &str = "yielded";
    for (times, expected) in [
        (&[0][..], &[BACK][..]),
        (&[0, 1], &[BACK, BACK]),
        (&[0, 1, 2], &[BACK, BACK, UP]),
        (&[0, 1800, 3599], &[BACK, BACK, UP]),
        // Given up for good.
        (&[0, 1, 2, 3, 10_000], &[BACK, BACK, UP, "", ""]),
        // Spread over more than an hour they never are.
        (&[0, 1800, 3600], &[BACK, BACK, BACK]),
        (&[0, 1801, 3602, 5403, 7204, 9005], &[BACK; 6]),
        // Any hour counts, not the first.
        (&[0, 3000, 3700, 6599], &[BACK, BACK, BACK, UP]),
        // A clock that was set back forgets nothing.
        (&[0, -7200, -7100], &[BACK, BACK, UP]),
    ] {
        assert_eq!(removed_at(times), expected, "{times:?}");
    }
}

#[test]
fn each_key_is_given_up_for_itself() {
    let mut removals = Removals::default();
    let record = Record(BTreeMap::from([(key(), Some("v".to_owned())), (other(), Some("w".to_owned()))]));
    let desired = BTreeMap::from([(key(), Some("v".to_owned())), (other(), Some("w".to_owned()))]);
    let mut look = |version: &str, there: &BTreeMap<Key, String>| {
        removals.look_at(version);
        reconcile(&record, there, &desired, &mut removals, after(0))
    };
    let both = BTreeMap::new();
    let one = BTreeMap::from([(other(), "w".to_owned())]);
    assert_eq!(look("1", &both).restored.len(), 2);
    assert_eq!(look("2", &one).restored, BTreeSet::from([key()]));
    let third = look("3", &both);
    assert_eq!((third.yielded, third.restored), (BTreeSet::from([key()]), BTreeSet::from([other()])));
    assert!(third.record.is_given_up(&key()) && third.record.written(&other()) == Some("w"));
}

/// The pod is looked at again for another reason before the key is back.
#[test]
fn one_removal_that_is_seen_several_times_is_one() {
    let mut removals = Removals::default();
    let mut look = |version: &str| {
        removals.look_at(version);
        let outcome =
            reconcile(&recorded(Of::Value("v")), &BTreeMap::new(), &wanted(Some("v")), &mut removals, after(0));
        in_words(&outcome).2
    };
    assert_eq!([look("1"), look("1"), look("1"), look("1")], ["restored"; 4]);
    assert_eq!([look("2"), look("2"), look("3")], ["restored", "restored", "yielded"]);
    assert_eq!(look("3"), "yielded", "and what was decided is decided again");
}

#[test]
fn says_whose_a_key_is() {
    for (record, there, holder_of_it) in [
        (Of::Nothing, None, Holder::Nobody),
        (Of::Nothing, Some("x"), Holder::Other),
        (Of::Value("v"), Some("v"), Holder::Belay),
        (Of::Value("v"), None, Holder::Belay),
        (Of::Value("v"), Some("x"), Holder::Other),
        (Of::GivenUp, None, Holder::Other),
        (Of::GivenUp, Some("x"), Holder::Other),
    ] {
        assert_eq!(holder(&recorded(record), &key(), there), holder_of_it, "{record:?} {there:?}");
    }
}

#[test]
fn takes_away_what_is_ours_and_as_we_wrote_it() {
    let keys = ["ours", "changed", "removed", "given-up", "theirs"].map(Key::annotation);
    let [ours, changed, removed, given_up, theirs] = keys;
    let record = Record(BTreeMap::from([
        (ours.clone(), Some("v".to_owned())),
        (changed.clone(), Some("v".to_owned())),
        (removed, Some("v".to_owned())),
        (given_up.clone(), None),
    ]));
    let there = [(ours.clone(), "v"), (changed, "x"), (given_up, "v"), (theirs, "v")];
    let there = there.into_iter().map(|(key, value)| (key, value.to_owned())).collect();
    assert_eq!(release(&record, &there), BTreeMap::from([(ours, None)]));
}

#[test]
fn what_is_no_record_of_ours_is_none() {
    for junk in [
        "",
        "junk",
        "null",
        "[]",
        "7",
        "\"x\"",
        "{\"a\":1}",
        "{\"a\":{\"b\":\"c\"}}",
        "{\"a\":\"b\"",
        "{\"a\":\"b\"}x",
        "{\"a\":[\"b\"]}",
        "{\"a\":\"b\",\"c\":true}",
    ] {
        assert!(Record::parse(Some(junk)).is_empty(), "{junk}");
    }
    assert!(Record::parse(None).is_empty() && Record::parse(Some("{}")).is_empty());
    assert_eq!(Record::default().render(), None, "nothing to record is no annotation");
}

#[test]
fn given_up_keys_are_forgotten_when_nobody_writes_them_any_more() {
    let mut record =
        Record(BTreeMap::from([(key(), None), (other(), None), (Key::label("kept"), Some("v".to_owned()))]));
    record.drop_given_up(&BTreeMap::from([(key(), 0), (Key::label("kept"), 0)]));
    let left = Record(BTreeMap::from([(other(), None), (Key::label("kept"), Some("v".to_owned()))]));
    assert_eq!(record, left);
}

fn keys() -> impl Strategy<Value = Key> {
    // Names as Kubernetes has them hold no colon.
    let name = "[a-z0-9./_-]{1,12}|label|[\"\\\\/\u{e4}]{1,3}";
    (any::<bool>(), name).prop_map(|(is_label, name)| if is_label { Key::label(&name) } else { Key::annotation(&name) })
}

fn values() -> impl Strategy<Value = Option<String>> {
    prop_oneof![Just(None), "[ -~]{0,8}".prop_map(Some), "\\PC{0,8}".prop_map(Some), Just(Some("null".to_owned()))]
}

proptest! {
    #![proptest_config(runner(500))]

    #[test]
    fn a_record_survives_its_annotation(map in prop::collection::btree_map(keys(), values(), 0..6)) {
        let record = Record(map);
        let rendered = record.render();
        prop_assert_eq!(rendered.is_none(), record.is_empty());
        prop_assert_eq!(&Record::parse(rendered.as_deref()), &record);
        prop_assert_eq!(Record::parse(rendered.as_deref()).render(), rendered, "byte for byte");
    }

    #[test]
    fn no_annotation_breaks_the_reading(text in "\\PC{0,40}|[{}\":,a-z\\[\\]0-9 ]{0,40}") {
        let record = Record::parse(Some(&text));
        prop_assert_eq!(Record::parse(record.render().as_deref()), record);
    }

    /// Done once, there is nothing left to do, and nothing of somebody else was touched.
    #[test]
    fn one_write_is_enough(
        record in prop::collection::btree_map(keys(), values(), 0..5),
        there in prop::collection::btree_map(keys(), "[ab]", 0..5),
        desired in prop::collection::btree_map(keys(), prop::option::of("[ab]"), 0..5),
        ours in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        // Random keys hardly ever meet.
        let mut record = Record(record);
        let all: Vec<Key> = there.keys().chain(desired.keys()).cloned().collect();
        for index in ours.into_iter().filter(|_| !all.is_empty()) {
            let key = index.get(&all);
            record.insert(key.clone(), there.get(key).cloned().unwrap_or_else(|| "a".into()));
        }
        let mut removals = Removals::default();
        let outcome = reconcile(&record, &there, &desired, &mut removals, after(0));
        let mut then = there.clone();
        for (key, value) in &outcome.changes {
            prop_assert!(holder(&record, key, there.get(key).map(String::as_str)) != Holder::Other, "{key}");
            prop_assert_ne!(there.get(key), value.as_ref(), "a change changes something");
            match value {
                Some(value) => drop(then.insert(key.clone(), value.clone())),
                None => drop(then.remove(key)),
            }
        }
        let again = reconcile(&outcome.record, &then, &desired, &mut removals, after(0));
        prop_assert_eq!((again.changes, again.record), (BTreeMap::new(), outcome.record));
        prop_assert!(again.yielded.is_empty() && again.restored.is_empty());
    }
}
