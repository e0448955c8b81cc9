//! The page about deletion costs against what there is: keys and bounds, groups, reasons, Events, constants, the picture.

use std::collections::BTreeSet;
use std::iter::successors;
use std::path::Path;

use belay_decide::cost::view::{LOWEST_PRIORITY, MOST_NODES};
use belay_decide::cost::{BOUND, COST_ANNOTATION, Group, Keep, PodHold, Protection, Withheld};
use belay_decide::doom::SIGNALS;
use belay_decide::ownership::MANAGED_ANNOTATION;
use serde_json::Value;

use super::busy::words;
use super::{OPERATIONS_PAGE, assert_documented, read};
use crate::config::{Config, DeletionCost};

const PAGE: &str = "docs/deletion-cost.md";

/// Where the reasons stand that people are told.
const EXPLAIN: &str = "src/cli/explain/node.rs";

/// Where Events are made.
const TELLERS: [&str; 3] = ["src/controllers/costs.rs", "src/controllers/costs/tell.rs", "decide/src/cost/write.rs"];

/// The page's text in one line, since sentences go on in the next one.
fn page() -> String {
    read(PAGE).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The row of the page that begins with this word as code.
fn row(word: &str) -> String {
    let page = read(PAGE);
    let row = page.lines().find(|line| line.starts_with(&format!("| `{word}` |")));
    row.unwrap_or_else(|| panic!("{PAGE} has no row of {word}")).to_owned()
}

/// The first string literal of a source behind some text, in pieces around what is filled in.
fn literal(file: &str, behind: &str) -> Vec<String> {
    let source = read(file);
    let (_, rest) = source.split_once(behind).unwrap_or_else(|| panic!("{file} has no {behind}"));
    let (_, rest) = rest.split_once('"').unwrap_or_else(|| panic!("{file} has no text behind {behind}"));
    let end = rest.char_indices().find(|(at, letter)| *letter == '"' && !rest[..*at].ends_with('\\'));
    let text = &rest[..end.expect("a text ends").0];
    let pieces = text.split(['{', '}']).step_by(2).map(|piece| piece.replace("\\\"", "\""));
    pieces.filter(|piece| !piece.is_empty()).collect()
}

/// A row of the page must say all of these.
fn assert_explained(what: &str, pieces: &[String]) {
    assert!(pieces.iter().any(|piece| piece.len() > 5), "{EXPLAIN}: {what} is told by {pieces:?}");
    let page = read(PAGE);
    let explained = |line: &str| line.starts_with("| `") && pieces.iter().all(|piece| line.contains(piece));
    assert!(page.lines().any(explained), "{PAGE} does not explain {what}, which is told as {pieces:?}");
}

fn keeps() -> Vec<Keep> {
    let all = successors(Some(Keep::DoNotDisrupt), |last| match last {
        Keep::DoNotDisrupt => Some(Keep::ScaleDownDisabled),
        Keep::ScaleDownDisabled => Some(Keep::ControlPlane),
        Keep::ControlPlane => Some(Keep::ConsolidationOff),
        Keep::ConsolidationOff => None,
    });
    all.collect()
}

fn holds() -> Vec<PodHold> {
    let all = successors(Some(PodHold::DoNotDisrupt), |last| match last {
        PodHold::DoNotDisrupt => Some(PodHold::NotSafeToEvict),
        PodHold::NotSafeToEvict => Some(PodHold::Unmanaged),
        PodHold::Unmanaged => None,
    });
    all.collect()
}

/// Each with the reasons that it has besides its own.
fn protections() -> Vec<Protection> {
    let pod: Box<str> = "shop/web-1".into();
    let all = successors(Some(Protection::OtherPool), |last| match last {
        Protection::OtherPool => Some(Protection::StoodDown),
        Protection::StoodDown => Some(Protection::JustFreed),
        Protection::JustFreed => Some(Protection::Budget { pod: pod.clone() }),
        Protection::Budget { .. } => Some(Protection::Node(Keep::DoNotDisrupt)),
        Protection::Node(_) => Some(Protection::Pod { pod: pod.clone(), hold: PodHold::Unmanaged }),
        Protection::Pod { .. } => None,
    });
    all.collect()
}

fn withheld() -> Vec<Withheld> {
    let all = successors(Some(Withheld::SinglePod), |last| match last {
        Withheld::SinglePod => Some(Withheld::StoodDown),
        Withheld::StoodDown => Some(Withheld::Steered { pod: "web-1".into() }),
        Withheld::Steered { .. } => None,
    });
    all.collect()
}

/// A variant's name, without what it holds.
fn variant(value: impl std::fmt::Debug) -> String {
    format!("{value:?}").split(|letter: char| !letter.is_ascii_alphanumeric()).next().expect("a name").to_owned()
}

#[test]
fn every_reason_why_a_node_has_no_rank_is_explained() {
    for protection in protections() {
        let name = format!("Protection::{}", variant(&protection));
        match protection {
            Protection::Node(_) => {
                for keep in keeps() {
                    let name = format!("Keep::{}", variant(keep));
                    assert_explained(&name, &literal(EXPLAIN, &name));
                }
            }
            Protection::Pod { .. } => {
                let around = literal(EXPLAIN, "PodHold::Unmanaged =>").len();
                assert_eq!(around, 1, "the reason is one text");
                for hold in holds() {
                    let name = format!("PodHold::{}", variant(hold));
                    let pieces = [literal(EXPLAIN, "            };\n            format!("), literal(EXPLAIN, &name)];
                    assert_explained(&name, &pieces.concat());
                }
            }
            Protection::OtherPool | Protection::StoodDown | Protection::JustFreed | Protection::Budget { .. } => {
                assert_explained(&name, &literal(EXPLAIN, &name));
            }
        }
    }
    let waiting = "it has no rank, since others are to empty sooner";
    assert!(literal(EXPLAIN, "Verdict::Waiting").concat().contains(waiting), "{EXPLAIN}");
    assert_documented(PAGE, [waiting]);
}

#[test]
fn every_reason_why_a_replica_set_has_no_values_is_explained() {
    for withheld in withheld() {
        let name = format!("Withheld::{}", variant(withheld));
        assert_explained(&name, &literal(EXPLAIN, &name));
    }
}

#[test]
fn every_group_is_explained() {
    let all = successors(Some(Group::Draining), |last| match last {
        Group::Draining => Some(Group::Drifted),
        Group::Drifted => Some(Group::Normal),
        Group::Normal => None,
    });
    for group in all {
        row(&variant(group));
    }
    let draining = row(&variant(Group::Draining));
    let hard = SIGNALS.iter().filter(|signal| !signal.soft && signal.key != "node.kubernetes.io/out-of-service");
    for remover in hard.map(|signal| signal.by) {
        assert!(draining.contains(remover), "{PAGE} does not say that a signal of {remover} means draining");
    }
}

#[test]
fn every_event_has_a_row_and_every_word_is_explained() {
    let words: BTreeSet<_> = TELLERS.into_iter().flat_map(words).collect();
    let is_reason = |word: &&String| word.starts_with("Ranking") || word.starts_with("DeletionCost");
    let reasons: Vec<_> = words.iter().filter(is_reason).collect();
    assert!(reasons.len() >= 5, "only {words:?} were found");
    for reason in reasons {
        let row = row(reason);
        assert!(row.contains(" | Warning | ") || row.contains(" | Normal | "), "{row}");
    }
    let pages = read(PAGE) + &read(OPERATIONS_PAGE);
    let missing: Vec<_> = words.iter().filter(|word| !pages.contains(&format!("`{word}`"))).collect();
    assert!(missing.is_empty(), "neither {PAGE} nor {OPERATIONS_PAGE} names {missing:?}");
}

fn values() -> Value {
    serde_saphyr::from_str(&read("charts/belay/values.yaml")).expect("values")
}

#[test]
fn every_key_has_a_row_with_its_default() {
    let values = values();
    let cost = &values["deletionCost"];
    let schema: Value = serde_json::from_str(&read("charts/belay/values.schema.json")).expect("a schema");
    let keys = schema["properties"]["deletionCost"]["properties"].as_object().expect("keys");
    assert!(keys.len() >= 7, "only {:?} were found", keys.keys());
    for key in keys.keys() {
        let default = match &cost[key] {
            Value::String(text) => text.clone(),
            Value::Null => panic!("{key} has no default"),
            other => other.to_string(),
        };
        let row = row(key);
        assert!(row.starts_with(&format!("| `{key}` | `{default}` |")), "{row}\nits default is {default}");
    }
    let read: DeletionCost = serde_json::from_value(cost.clone()).expect("the program reads the chart's values");
    assert_eq!(read, DeletionCost::default(), "the chart's defaults are the program's");
    let binding = &values["admission"]["binding"];
    let (policy, seconds) = (binding["failurePolicy"].as_str().expect("a policy"), &binding["timeoutSeconds"]);
    let told =
        format!("`admission.binding.failurePolicy` (`{policy}`) and `admission.binding.timeoutSeconds` ({seconds})");
    assert!(page().contains(&told), "{PAGE} does not say {told}");
}

/// The bounds are those of the refusal.
#[test]
fn every_bound_of_a_key_is_that_of_the_program() {
    let too_many = (MOST_NODES + 1).to_string();
    let table = [
        ("maxNodes", too_many.as_str()),
        ("settlePeriod", "999h"),
        ("standDownPeriod", "999h"),
        ("writesPerSecond", "1000"),
    ];
    for (key, wrong) in table {
        let text = format!(
            "certs: {{secretName: belay-ca, dnsNames: [belay]}}\nwebhookConfigurations: {{validating: belay, mutating: \
             belay}}\ndeletionCost: {{{key}: {wrong}}}\n"
        );
        let refusal = Config::parse(Path::new("config.yaml"), &text).expect_err(key).to_string();
        let (_, bounds) = refusal.split_once("must be from ").unwrap_or_else(|| panic!("{refusal}"));
        let bounds = bounds.split(':').next().expect("bounds").trim();
        assert!(row(key).contains(bounds), "{PAGE} does not say that {key} is from {bounds}");
    }
}

/// A whole number that a source gives a constant.
fn constant(file: &str, name: &str) -> i64 {
    let source = read(file);
    let (_, rest) = source.split_once(&format!("const {name}: ")).unwrap_or_else(|| panic!("{file} has no {name}"));
    let (_, value) = rest.split_once(" = ").expect("a value");
    let digits = value.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    digits.split(|letter: char| !letter.is_ascii_digit()).next().expect("digits").parse().expect("a number")
}

/// The strings of a source between the name of a constant and its end.
fn strings(file: &str, name: &str) -> Vec<String> {
    let source = read(file);
    let (_, rest) = source.split_once(&format!("const {name}: ")).unwrap_or_else(|| panic!("{file} has no {name}"));
    let (list, _) = rest.split_once(";\n").expect("an end");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_constant_that_the_page_names_is_the_programs() {
    const CODE: &str = "decide/src/cost/code.rs";
    const RIVALS: &str = "decide/src/cost/cluster/rivals.rs";
    const TELL: &str = "src/controllers/costs/tell.rs";
    let ranks = constant(CODE, "RANKS");
    assert!(read(CODE).contains("const TALL: i32 = BOUND - (1 << 17);"), "{CODE}: TALL is reckoned otherwise");
    let tiers = (i64::from(BOUND) - (1 << 17)) / ranks - 1;
    let in_words =
        |number: i64| ["no", "one", "two", "three", "four", "five", "six"][usize::try_from(number).expect("small")];
    let ordinal = |number: i64| ["", "", "half", "third", "fourth", "fifth"][usize::try_from(number).expect("small")];
    let table = [
        ("±BOUND", format!("Within ±{BOUND} (2^20)")),
        ("LOWEST_PRIORITY", format!("below {LOWEST_PRIORITY}")),
        ("RANKS", format!("a number below 0 and above -{ranks}")),
        ("RANKS", format!("the rank less {ranks} for each tier")),
        ("STEP", format!("({}, where there is room)", constant("decide/src/cost/number.rs", "STEP"))),
        ("TIERS", format!("More than {tiers} pods in one domain")),
        ("RESERVE", format!("more than a {} of the places", ordinal(constant("decide/src/cost/order.rs", "RESERVE")))),
        ("PODS", format!("where {} pods are rewritten", in_words(constant(RIVALS, "PODS")))),
        ("MOST_DOUBLINGS", format!("up to {} times the first", 1 << constant(RIVALS, "MOST_DOUBLINGS"))),
        ("REMOVALS", format!("the {} time within an hour", ordinal(constant("decide/src/ownership.rs", "REMOVALS")))),
        ("NAMED", format!("the first {}", in_words(constant(TELL, "NAMED")))),
        ("PATIENCE", format!("within 0.{} s", constant("src/webhook/live.rs", "PATIENCE") / 100)),
    ];
    let page = page();
    let missing: Vec<_> = table.iter().filter(|(_, words)| !page.contains(words)).collect();
    assert!(missing.is_empty(), "{PAGE} does not say {missing:?}");
    let as_told = [
        ("decide/src/cost/order.rs", "1 + pods / 8", "off by one, and one more for each eight"),
        (TELL, "const TOLD_EVERY: SignedDuration = SignedDuration::from_mins(1);", "at most once a minute"),
        (
            "decide/src/ownership.rs",
            "REMOVED_WITHIN: SignedDuration = SignedDuration::from_hours(1);",
            "within an hour",
        ),
    ];
    for (file, code, words) in as_told {
        assert!(read(file).contains(code), "{file} has no `{code}` any more, which {PAGE} tells as {words:?}");
        assert!(page.contains(words), "{PAGE} does not say {words:?}");
    }
    let projection = "src/cluster/project_cost.rs";
    let labels = [strings(projection, "POOL_LABELS"), strings(projection, "CONTROL_PLANE")].concat();
    assert_eq!(labels.len(), 6, "{labels:?}");
    assert_documented(PAGE, labels.iter().map(String::as_str));
    assert_documented(PAGE, [COST_ANNOTATION, MANAGED_ANNOTATION, "binding.cost.belay.dev"]);
    assert!(read("charts/belay/templates/admission/mutating.yaml").contains("name: binding.cost.belay.dev"));
}

/// A value stands on one line of the picture, and what it is made of on the next.
#[test]
fn the_pictures_values_are_made_as_it_says() {
    let picture = read("docs/images/deletion-cost.svg").replace('\u{2212}', "-");
    let number = |text: &str| text.trim().parse::<i64>().unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let text = |line: &str| {
        line.rsplit_once("</text>").and_then(|(line, _)| line.rsplit_once('>')).map(|found| found.1.to_owned())
    };
    let lines: Vec<_> = picture.lines().filter_map(text).collect();
    let ranks = constant("decide/src/cost/code.rs", "RANKS");
    let mut values = Vec::new();
    for (value, made) in lines.iter().zip(lines.iter().skip(1)) {
        let Some((rest, range)) = made.split_once(" × ") else { continue };
        let (rank, tier) = rest.rsplit_once(" - ").expect("a rank and a tier");
        assert_eq!(number(range), ranks);
        assert_eq!(number(value), number(rank) - number(tier) * ranks, "{made}");
        values.push(number(value));
    }
    assert_eq!(values.len(), 5, "{values:?}");
    values.sort_unstable();
    let in_turn = lines.iter().skip_while(|line| *line != "1.").filter_map(|line| line.parse::<i64>().ok());
    assert_eq!(in_turn.collect::<Vec<_>>(), values, "the lowest goes first");
}
