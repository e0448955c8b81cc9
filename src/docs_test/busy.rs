//! The page about busy hints against what there is: rules, presets, states, hints, answers, Events, evictors.

use std::collections::BTreeSet;
use std::iter::successors;

use belay_decide::busy::hints::{BUSY_SINCE, Told, desired, keys};
use belay_decide::busy::{AutoscalerHint, HintSwitches, State};
use belay_decide::evictors::{Evictor, User, known};
use belay_decide::ownership::{Key, MANAGED_ANNOTATION};
use jiff::Timestamp;
use serde_json::Value;

use super::{HOLD_PAGE, OPERATIONS_PAGE, assert_documented, read, root};

const PAGE: &str = "docs/busy.md";

const PRESETS: &str = "charts/belay/files/presets";

/// The sources in which the words of the busy part stand that users meet: reasons of answers, holds and Events.
const ANSWERS: &str = "decide/src/busy/eviction.rs";
const CONTROLLER: [&str; 2] = ["decide/src/busy/reconcile.rs", "decide/src/busy/reconcile/holds.rs"];

fn states() -> Vec<State> {
    let all = successors(Some(State::Done), |last| match last {
        State::Done => Some(State::Busy),
        State::Busy => Some(State::Starting),
        State::Starting => Some(State::Idle),
        State::Idle => None,
    });
    all.collect()
}

/// The string literals of a source that are one word in CamelCase.
pub(super) fn words(file: &str) -> BTreeSet<String> {
    let is_word = |text: &&str| {
        text.starts_with(|first: char| first.is_ascii_uppercase())
            && text.contains(|letter: char| letter.is_ascii_lowercase())
            && text.chars().all(|letter| letter.is_ascii_alphabetic())
    };
    let source = read(file);
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split('"').skip(1).step_by(2)).filter(is_word).map(str::to_owned).collect()
}

#[test]
fn every_state_is_explained() {
    assert_documented(PAGE, states().into_iter().map(State::as_str));
}

#[test]
fn every_answer_of_a_rule_is_explained_on_both_pages() {
    let words = words(ANSWERS);
    assert!(words.len() >= 4, "only {words:?} were found");
    assert_documented(PAGE, words.iter().map(String::as_str));
    assert_documented(HOLD_PAGE, words.iter().map(String::as_str));
}

#[test]
fn every_word_of_the_controllers_events_and_holds_is_explained() {
    let words: BTreeSet<_> = CONTROLLER.into_iter().flat_map(words).collect();
    assert!(words.len() >= 8, "only {words:?} were found");
    assert_documented(PAGE, words.iter().map(String::as_str));
}

/// The dotted paths of a schema's properties, those of `$ref`s to other parts of rules included.
fn paths(schema: &Value, root: &Value, before: &str, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/busy")) {
        return paths(&root["$defs"][format!("busy{name}")], root, before, found);
    }
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{before}{key}");
        found.push(path.clone());
        paths(property, root, &format!("{path}."), found);
        let list = before.is_empty().then(|| format!("{path}[]."));
        if let Some(before) = list {
            paths(&property["items"], root, &before, found);
        }
    }
}

#[test]
fn every_key_of_a_rule_is_explained() {
    let schema: Value = serde_json::from_str(&read("charts/belay/values.schema.json")).expect("a schema");
    let mut found = Vec::new();
    paths(&schema["$defs"]["busyRule"], &schema, "", &mut found);
    for expected in ["podSelector", "owner.through.kind", "states[].when", "hints.deletionCost", "eviction.idle"] {
        assert!(found.iter().any(|path| path == expected), "{expected} was not found: {found:?}");
    }
    assert_documented(PAGE, found.iter().map(String::as_str));
    let whole = schema["properties"]["busyHints"]["properties"].as_object().expect("keys");
    let overrides = schema["$defs"]["busyOverride"]["properties"].as_object().expect("keys");
    assert_documented(PAGE, overrides.keys().map(String::as_str));
    let page = read(PAGE);
    for key in whole.keys() {
        assert!(page.contains(&format!("busyHints.{key}")) || page.contains(&format!("  {key}:")), "busyHints.{key}");
    }
}

#[test]
fn every_preset_and_each_of_its_rules_is_explained() {
    let files = std::fs::read_dir(root().join(PRESETS)).expect("the presets");
    let mut names = Vec::new();
    for file in files.map(|file| file.expect("a file").path()) {
        let text = std::fs::read_to_string(&file).expect("a preset");
        names.push(file.file_stem().expect("a name").to_string_lossy().into_owned());
        names.extend(text.lines().filter_map(|line| line.strip_prefix("- name: ")).map(str::to_owned));
    }
    assert!(names.len() >= 13, "only {names:?} were found");
    assert_documented(PAGE, names.iter().map(String::as_str));
}

/// The row of a hint: what it is, and its values in both kinds of states.
#[test]
fn every_hint_has_a_row_with_its_values() {
    let on = HintSwitches {
        cluster_autoscaler: AutoscalerHint::SafeToEvict,
        karpenter: true,
        busy_label: true,
        descheduler: true,
        cast_ai: true,
        spot_ocean: true,
        deletion_cost: true,
        costs_are_ranked: false,
    };
    let page = read(PAGE);
    let now = Timestamp::UNIX_EPOCH;
    let (free, _) = desired(&on, Told::Free, now);
    let (busy, _) = desired(&on, Told::Busy(now), now);
    let cell = |key: &Key, value: &Option<String>| match value {
        None => "absent".to_owned(),
        Some(_) if key.name() == BUSY_SINCE => "a time".to_owned(),
        Some(value) => format!("`\"{value}\"`"),
    };
    for key in keys() {
        let kind = match key {
            Key::Label(_) => "label",
            Key::Annotation(_) => "annotation",
        };
        let row = page.lines().find(|line| line.starts_with(&format!("| {kind} `{}` | ", key.name())));
        let row = row.unwrap_or_else(|| panic!("{PAGE} has no row of the {kind} {}", key.name()));
        let values = format!(" | {} | {} | ", cell(&key, &free[&key]), cell(&key, &busy[&key]));
        assert!(row.contains(&values), "{row}\ndoes not say{values}");
    }
    assert_documented(PAGE, [MANAGED_ANNOTATION]);
    let (later, _) = desired(
        &HintSwitches { cluster_autoscaler: AutoscalerHint::OnCompletion, ..on },
        Told::Busy(now),
        now + jiff::SignedDuration::from_hours(1),
    );
    let later: BTreeSet<_> = later.values().flatten().map(|value| format!("\"{value}\"")).collect();
    assert!(later.contains("\"on-completion\""));
    assert_documented(PAGE, ["\"on-completion\""]);
}

fn row(evictor: &Evictor) -> String {
    let users = evictor.users.iter().map(|user| match *user {
        User::Exact(name) => format!("`{name}`"),
        User::ServiceAccount(name) => format!("ServiceAccount `{name}`"),
        User::ServiceAccountIn { namespace, name } => format!("ServiceAccount `{namespace}/{name}`"),
    });
    let users: Vec<_> = users.collect();
    let users = if users.is_empty() { "not recognised".to_owned() } else { users.join(", ") };
    format!("| {} | {} | {} | {users} |", evictor.name, evictor.patience(), evictor.when_refused)
}

#[test]
fn every_evictor_has_a_row_as_the_program_knows_it() {
    let page = read(PAGE);
    let missing: Vec<_> = known().iter().map(row).filter(|row| !page.lines().any(|line| line == row)).collect();
    assert!(missing.is_empty(), "{PAGE} lacks these rows:\n{}", missing.join("\n"));
}

/// Writes are counted by the kind that the applier names.
#[test]
fn every_kind_of_a_counted_write_is_explained() {
    let kinds: BTreeSet<_> = ["src/cluster/apply.rs", "src/controllers/policies.rs", "src/controllers/certificates.rs"]
        .into_iter()
        .flat_map(|file| {
            let source = read(file);
            let calls: Vec<_> = source.split(".write(\"").skip(1).filter_map(|rest| rest.split_once('"')).collect();
            calls.into_iter().map(|(kind, _)| kind.to_owned()).collect::<Vec<_>>()
        })
        .collect();
    assert!(kinds.contains("Pod") && kinds.contains("Owner"), "only {kinds:?} were found");
    assert_documented(OPERATIONS_PAGE, kinds.iter().map(String::as_str));
}
