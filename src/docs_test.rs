//! The documentation against the code: what a page lists must be what there is.
//!
//! Words that users look up (reasons, outcomes, metrics, conditions, fields) are compared one by one; the lists of
//! them here are made by `match`, so a new word does not compile before it is listed, and does not pass before it is
//! documented.

mod busy;
mod certs;
mod cli;
mod costs;
mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::path::{Path, PathBuf};

use belay_decide::doom::{Place, SIGNALS, Signal};
use belay_decide::handover::Situation;
use belay_decide::handover::scale::Awaited;
use belay_decide::handover::situation::Replacement;
use belay_decide::hold::{Allowed, Held, Outcome, Phase};
use belay_decide::policy::{PolicyView, Protection, Settings, Source, Unsupported};
use belay_decide::policy_status;
use belay_decide::view::{DeploymentStatus, DeploymentView, IntOrPercent, Mark, PodPhase, PodView, Strategy};
use jiff::Timestamp;

use crate::api;
use crate::metrics::Metrics;
use crate::webhook::server::Telemetry;

const HOLD_PAGE: &str = "docs/eviction-hold.md";
const OPERATIONS_PAGE: &str = "docs/operations.md";
const ARCHITECTURE_PAGE: &str = "docs/architecture.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Every word must stand in the page as code.
fn assert_documented<'a>(page: &str, words: impl IntoIterator<Item = &'a str>) {
    let text = read(page);
    let missing: Vec<_> = words.into_iter().filter(|word| !text.contains(&format!("`{word}`"))).collect();
    assert!(missing.is_empty(), "{page} does not name {missing:?}");
}

fn pod() -> PodView {
    PodView {
        namespace: "shop".into(),
        name: "web-1".into(),
        uid: "uid".into(),
        node: Some("node".into()),
        replica_set: None,
        template_hash: None,
        phase: PodPhase::Running,
        ready_since: None,
        terminating: false,
        unschedulable: false,
        marked: false,
        mark: Mark::Free,
    }
}

fn surging() -> Strategy {
    Strategy::RollingUpdate { max_surge: IntOrPercent::Int(1), max_unavailable: IntOrPercent::Int(0) }
}

fn deployment() -> DeploymentView {
    DeploymentView {
        namespace: "shop".into(),
        name: "web".into(),
        uid: "uid".into(),
        resource_version: "1".into(),
        generation: 1,
        labels: BTreeMap::new(),
        selector: BTreeMap::new(),
        query: String::new(),
        handover: None,
        records: Vec::new(),
        surge: None,
        replicas: 1,
        paused: false,
        min_ready_seconds: 0,
        strategy: surging(),
        slot: None,
        revision: None,
        status: DeploymentStatus::default(),
    }
}

/// All of them: each arm gives the next one.
fn unsupported() -> Vec<Unsupported> {
    let all = successors(Some(Unsupported::Paused), |last| match last {
        Unsupported::Paused => Some(Unsupported::ZeroReplicas),
        Unsupported::ZeroReplicas => Some(Unsupported::MoreThanOneReplica(3)),
        Unsupported::MoreThanOneReplica(_) => Some(Unsupported::LossyStrategy),
        Unsupported::LossyStrategy => Some(Unsupported::Recreate),
        Unsupported::Recreate => Some(Unsupported::AutoscalerAtMaximum(3)),
        Unsupported::AutoscalerAtMaximum(_) => Some(Unsupported::AutoscalerPaused),
        Unsupported::AutoscalerPaused => None,
    });
    all.collect()
}

fn allowed() -> Vec<Allowed> {
    let all = successors(Some(Allowed::DryRun { would_hold: None, unsupported: None }), |last| match last {
        Allowed::DryRun { .. } => Some(Allowed::ExcludedNamespace),
        Allowed::ExcludedNamespace => Some(Allowed::NotSynced),
        Allowed::NotSynced => Some(Allowed::UnknownPod),
        Allowed::UnknownPod => Some(Allowed::UidMismatch),
        Allowed::UidMismatch => Some(Allowed::Terminating),
        Allowed::Terminating => Some(Allowed::Finished),
        Allowed::Finished => Some(Allowed::Pending),
        Allowed::Pending => Some(Allowed::NotReady),
        Allowed::NotReady => Some(Allowed::NotProtected),
        Allowed::NotProtected => Some(Allowed::IgnoredEvictor),
        Allowed::IgnoredEvictor => Some(Allowed::Released),
        Allowed::Released => Some(Allowed::DeadlinePassed),
        Allowed::DeadlinePassed => Some(Allowed::NotRecorded),
        Allowed::NotRecorded => Some(Allowed::ReplacementAvailable { replacement: "web-2".into() }),
        Allowed::ReplacementAvailable { .. } => Some(Allowed::Reverted),
        Allowed::Reverted => Some(Allowed::Idle),
        Allowed::Idle => Some(Allowed::Unsupported(Unsupported::Paused)),
        Allowed::Unsupported(_) => None,
    });
    all.chain(unsupported().into_iter().map(Allowed::Unsupported)).collect()
}

fn situations(pod: &PodView) -> Vec<Situation<'_>> {
    let all = successors(Some(Situation::Unobserved), |last| match last {
        Situation::Unobserved => Some(Situation::Settling),
        Situation::Settling => Some(Situation::Steady),
        Situation::Steady => Some(Situation::Rolling(Replacement::NotCreated)),
        Situation::Rolling(Replacement::NotCreated) => Some(Situation::Rolling(Replacement::AfterTermination)),
        Situation::Rolling(Replacement::AfterTermination) => Some(Situation::Rolling(Replacement::Unschedulable(pod))),
        Situation::Rolling(Replacement::Unschedulable(_)) => Some(Situation::Rolling(Replacement::Starting(pod))),
        Situation::Rolling(Replacement::Starting(_)) => Some(Situation::Rolling(Replacement::NotReady(pod))),
        Situation::Rolling(Replacement::NotReady(_)) => {
            Some(Situation::Rolling(Replacement::AvailableAt(pod, Timestamp::UNIX_EPOCH)))
        }
        Situation::Rolling(Replacement::AvailableAt(..)) => Some(Situation::Rolling(Replacement::OnDoomedNode(pod))),
        // Served is never held.
        Situation::Rolling(Replacement::OnDoomedNode(_)) | Situation::Served { .. } => None,
    });
    all.collect()
}

/// What a victim of the Scale handover waits for, besides what it has in common with [`situations`].
fn awaited() -> Vec<Awaited<'static>> {
    let stand_in = Awaited::StandIn { replacement: Replacement::NotCreated, serving: 0, floor: 1 };
    let all = successors(Some(Awaited::Unobserved), |last| match last {
        Awaited::Unobserved => Some(Awaited::Rolling(Replacement::NotCreated)),
        Awaited::Rolling(_) => Some(Awaited::Rollout),
        Awaited::Rollout => Some(Awaited::Surge),
        Awaited::Surge => Some(stand_in.clone()),
        Awaited::StandIn { .. } => Some(Awaited::Turn),
        Awaited::Turn => None,
    });
    all.collect()
}

fn outcomes() -> Vec<Outcome> {
    let all = successors(Some(Outcome::HandedOver), |last| match last {
        Outcome::HandedOver => Some(Outcome::NotNeeded),
        Outcome::NotNeeded => Some(Outcome::VictimGone),
        Outcome::VictimGone => Some(Outcome::Expired),
        Outcome::Expired => Some(Outcome::Failed),
        Outcome::Failed => Some(Outcome::Reverted),
        Outcome::Reverted => Some(Outcome::Abandoned),
        Outcome::Abandoned => Some(Outcome::JobEnded),
        Outcome::JobEnded => Some(Outcome::Retired),
        Outcome::Retired => None,
    });
    all.collect()
}

#[test]
fn every_answer_to_an_eviction_is_explained() {
    assert_documented(HOLD_PAGE, allowed().iter().map(Allowed::reason));
    let (victim, deployment) = (pod(), deployment());
    let held = situations(&victim).into_iter().map(|situation| {
        Held::new(&deployment, &victim, &situation, Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH).reason
    });
    assert_documented(HOLD_PAGE, held);
    assert_documented(HOLD_PAGE, awaited().iter().map(Awaited::reason));
    assert_documented(HOLD_PAGE, [Held::unseen(&victim, Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH).reason]);
}

#[test]
fn every_state_and_outcome_of_a_hold_is_explained() {
    assert_documented(HOLD_PAGE, outcomes().into_iter().map(Outcome::as_str));
    assert_documented(HOLD_PAGE, [Phase::Pending, Phase::Active, Phase::Released, Phase::Completed].map(Phase::as_str));
}

fn status_target<'a>(deployment: &'a DeploymentView, protection: Option<&'a Protection>) -> policy_status::Target<'a> {
    policy_status::Target { deployment, protection, autoscaler: None }
}

#[test]
fn every_condition_of_a_policy_is_explained() {
    let policy = PolicyView {
        namespace: "shop".into(),
        name: "web".into(),
        created: 0,
        by_name: true,
        settings: Settings::default(),
    };
    let of = |name: &str| Protection { source: Source::Policy(name.into()), settings: Settings::default() };
    let (ours, others) = (of("web"), of("older"));
    let lossy = Strategy::RollingUpdate { max_surge: IntOrPercent::Int(0), max_unavailable: IntOrPercent::Int(1) };
    let plain = deployment();
    let variants = [
        plain.clone(),
        DeploymentView { replicas: 0, ..plain.clone() },
        DeploymentView { replicas: 3, ..plain.clone() },
        DeploymentView { paused: true, ..plain.clone() },
        DeploymentView { strategy: lossy, ..plain.clone() },
        DeploymentView { strategy: Strategy::Recreate, ..plain.clone() },
    ];
    let mut conditions: Vec<_> = variants
        .iter()
        .flat_map(|target| policy_status::conditions(&policy, None, false, &[status_target(target, Some(&ours))]))
        .chain(policy_status::conditions(&policy, None, false, &[status_target(&plain, None)]))
        .chain(policy_status::conditions(&policy, None, false, &[status_target(&plain, Some(&others))]))
        .chain(policy_status::conditions(&policy, None, false, &[]))
        .chain(policy_status::conditions(&policy, None, true, &[status_target(&plain, Some(&ours))]))
        .chain(policy_status::conditions(&policy, Some("wrong"), false, &[]))
        .collect();
    conditions.sort_by_key(|condition| (condition.kind, condition.reason));
    assert_documented(HOLD_PAGE, conditions.iter().flat_map(|condition| [condition.kind, condition.reason]));
}

#[test]
fn every_signal_of_a_node_that_is_about_to_go_has_a_row() {
    let page = read(HOLD_PAGE);
    for Signal { place, key, by, soft, notice, .. } in SIGNALS {
        let word = match place {
            Place::Taint => format!("`{key}`"),
            Place::Condition => format!("condition `{key}`"),
        };
        let row = page.lines().find(|line| line.starts_with("| ") && line.contains(&word));
        let row = row.unwrap_or_else(|| panic!("{HOLD_PAGE} has no row for {word}"));
        let columns: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, set_by, kind, told] = columns[..] else { panic!("{row}") };
        assert!(set_by.starts_with(by), "{row}");
        assert_eq!(kind, if *soft { "soft" } else { "hard" }, "{row}");
        match notice {
            Some(notice) => assert!(told.starts_with(&format!("{} s", notice.as_secs())), "{row}"),
            None => assert_eq!(told, "", "{row}"),
        }
    }
}

#[test]
fn every_field_of_a_policy_is_explained() {
    let crds = api::crds();
    let policy = crds.iter().find(|crd| crd.spec.names.kind == "HandoverPolicy").expect("the kind");
    let schema = policy.spec.versions[0].schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let properties = schema.and_then(|schema| schema.properties.as_ref()).expect("a schema");
    let fields = properties["spec"].properties.as_ref().expect("fields");
    assert_documented(HOLD_PAGE, fields.keys().map(String::as_str));
}

#[test]
fn every_metric_is_explained_and_no_other() {
    let metrics = Metrics::default();
    metrics.count_everything();
    metrics.register(Telemetry::register).count_everything();
    let text = metrics.encode().expect("text");
    let served: BTreeMap<String, BTreeSet<String>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| match line.split_once(' ') {
            Some((name, "counter")) => (format!("{name}_total"), labels_of(&text, &format!("{name}_total"))),
            Some((name, "histogram")) => (name.to_owned(), labels_of(&text, &format!("{name}_count"))),
            Some((name, _)) => (name.to_owned(), labels_of(&text, name)),
            None => panic!("{line}"),
        })
        .collect();
    let page = read(OPERATIONS_PAGE);
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `belay_")?.split_once("` | "));
    let documented: BTreeMap<String, BTreeSet<String>> =
        rows.map(|(name, rest)| (format!("belay_{name}"), labels_in(rest))).collect();
    assert_eq!(documented, served, "the table of metrics in {OPERATIONS_PAGE}");
}

/// The labels of a metric's first series; one is served of each.
fn labels_of(text: &str, name: &str) -> BTreeSet<String> {
    let series = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
    let pairs = series.map(|(pairs, _)| pairs.split("\",")).into_iter().flatten();
    pairs.filter_map(|pair| Some(pair.split_once("=\"")?.0.to_owned())).collect()
}

/// The labels in the second cell of a row; what stands in parentheses are values.
fn labels_in(row: &str) -> BTreeSet<String> {
    let cell = row.split('|').next().unwrap_or_default();
    let outside = cell.split('(').map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
    outside.collect::<String>().split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Rust files below a folder, but for tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").filter_map(|entry| Some(entry.ok()?.path()));
    let mut files = Vec::new();
    for path in entries.filter(|path| !path.ends_with("tests")) {
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            files.push(path);
        }
    }
    files
}

/// The message of a call of a `tracing` macro, given the text behind its opening parenthesis: its last string.
fn message(call: &str) -> Option<&str> {
    let (mut depth, mut is_string, mut end) = (1, false, None);
    for (at, letter) in call.char_indices() {
        match letter {
            '"' => is_string = !is_string,
            '(' if !is_string => depth += 1,
            ')' if !is_string => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            end = Some(at);
            break;
        }
    }
    call.get(..end?)?.rsplit('"').nth(1)
}

#[test]
fn every_line_of_the_log_is_explained() {
    let texts: Vec<_> =
        sources(&root().join("src")).iter().map(|file| std::fs::read_to_string(file).expect("a file")).collect();
    let messages: BTreeSet<_> = ["info", "warn", "error"]
        .iter()
        .flat_map(|level| {
            let opening = format!("tracing::{level}!(");
            texts.iter().flat_map(move |text| {
                let calls: Vec<_> = text.split(opening.as_str()).skip(1).filter_map(message).collect();
                calls
            })
        })
        .collect();
    assert!(messages.len() > 15, "only {messages:?} were found");
    // A string that goes on in the next line is one sentence.
    let messages: Vec<String> = messages
        .into_iter()
        .map(|message| message.split("\\\n").map(str::trim_start).collect::<Vec<_>>().concat())
        .collect();
    let messages = messages.iter().map(String::as_str);
    assert_documented(OPERATIONS_PAGE, messages);
}

#[test]
fn every_test_that_is_named_exists() {
    let page = read(ARCHITECTURE_PAGE);
    let mut named = 0;
    for line in page.lines() {
        let Some((file, tests)) = line.strip_prefix("- `").and_then(|line| line.split_once("`: `")) else { continue };
        let source = read(file);
        for test in tests.trim_end_matches('`').split("`, `") {
            assert!(source.contains(&format!("fn {test}(")), "{ARCHITECTURE_PAGE}: {file} has no test {test}");
            named += 1;
        }
    }
    assert!(named > 20, "only {named} tests are named; were they found?");
}

/// The pages, by their path from the root.
fn pages() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join("docs")).expect("docs/");
    let pages = folder.filter_map(|entry| Some(entry.ok()?.path()));
    let pages = pages.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    pages.chain(["README.md", "CHANGELOG.md", "charts/belay/README.md"].map(|file| root().join(file))).collect()
}

/// The anchors that GitHub gives a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    headings.map(slug).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.starts_with("http") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let leads = target.exists()
                && (anchor.is_empty()
                    || anchors(&std::fs::read_to_string(&target).unwrap_or_default()).contains(anchor));
            if !leads {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}
