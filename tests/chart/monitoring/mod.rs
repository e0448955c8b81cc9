//! Alerts and the dashboard, held against Prometheus' own parsers and engine and against the metrics that Belay serves.

mod alerts;
mod dashboard;
mod monitors;
mod scenes;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use belay_e2e::{process, programs};
use serde::Deserialize;
use serde_json::{Value, json};

/// What Prometheus says to a request, see `tests/promql/main.go`.
#[derive(Deserialize)]
struct Answer {
    /// What it refuses.
    wrong: Vec<String>,
    /// What each expression asks for, those of the rules first.
    asked: Vec<Vec<Selector>>,
    /// The alerts that fire in each scene.
    firing: Vec<Vec<Alert>>,
}

/// A metric and the labels of it that an expression reads.
#[derive(Deserialize)]
struct Selector {
    metric: String,
    labels: Vec<String>,
}

/// An alert as it reaches a person.
#[derive(Debug, Deserialize)]
struct Alert {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// Asks Prometheus about a rule file, expressions and scenes.
fn prometheus(rules: &Value, expressions: &[String], scenes: &[Value]) -> Answer {
    let request = json!({ "rules": rules.to_string(), "expressions": expressions, "scenes": scenes });
    let program = programs::promql().expect("the program can be built");
    let mut child = process::guarded(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // It reads everything before it answers.
    let mut input = child.stdin.take().expect("its input is ours");
    input.write_all(request.to_string().as_bytes()).expect("it reads the request");
    drop(input);
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("an answer")
}

/// Labels that come with being scraped, see the PodMonitor and the ServiceMonitor.
const OF_TARGETS: &[&str] = &["namespace", "pod", "job", "instance"];

/// Those that every target has, whoever says what is scraped.
const OF_ALL_TARGETS: &[&str] = &["job", "instance"];

/// What Prometheus itself writes of each target.
const OF_PROMETHEUS: &[&str] = &["up"];

/// The API server's metrics that alerts and dashboard read, with their labels, by `pkg/admission/metrics/metrics.go` of
/// `k8s.io/apiserver`.
const OF_API_SERVERS: &[(&str, &[&str])] = &[
    ("apiserver_admission_webhook_fail_open_count", &["name", "type"]),
    ("apiserver_admission_webhook_rejection_count", &["name", "type", "operation", "error_type", "rejection_code"]),
    ("apiserver_admission_webhook_admission_duration_seconds_bucket", &["name", "type", "operation", "rejected", "le"]),
];

/// What Belay serves: metrics and their labels, by the table of `docs/operations.md`, which a test of the program holds
/// against the program.
fn served() -> BTreeMap<String, BTreeSet<String>> {
    let page = operations();
    let rows = page.lines().filter(|line| line.starts_with("| `belay_"));
    let served: BTreeMap<String, BTreeSet<String>> = rows
        .map(|row| {
            let mut columns = row.trim_matches('|').split('|').map(str::trim);
            let name = columns.next().expect("a name").trim_matches('`').to_owned();
            (name, labels(columns.next().expect("labels")))
        })
        .collect();
    assert!(served.len() > 25, "only {served:?} were found");
    served
}

/// The labels that a cell names; what stands in parentheses are their values.
fn labels(cell: &str) -> BTreeSet<String> {
    let outside = cell.split('(').map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
    let outside = outside.collect::<Vec<_>>().concat();
    outside.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The page with the runbooks.
fn operations() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    std::fs::read_to_string(path).expect("the page can be read")
}

/// The metric that a series belongs to: a histogram's are those of one.
fn family(series: &str) -> (&str, bool) {
    let parts = ["_bucket", "_count", "_sum"].iter().find_map(|part| series.strip_suffix(part));
    parts.map_or((series, false), |family| (family, series.ends_with("_bucket")))
}

/// Every selector must ask for what somebody serves.
fn assert_served(asked: &[Vec<Selector>]) {
    let served = served();
    for selector in asked.iter().flatten() {
        let Selector { metric, labels } = selector;
        if OF_PROMETHEUS.contains(&metric.as_str()) {
            assert!(labels.iter().all(|label| OF_TARGETS.contains(&label.as_str())), "{metric}: {labels:?}");
            continue;
        }
        let (name, is_bucket) = family(metric);
        let of_api_server = OF_API_SERVERS.iter().find(|(name, _)| name == metric).map(|(_, labels)| *labels);
        let known = match (of_api_server, served.get(metric).or_else(|| served.get(name))) {
            (Some(labels), _) => labels.iter().map(|&label| label.to_owned()).collect(),
            (None, Some(labels)) => labels.clone(),
            (None, None) => panic!("{metric} is not served"),
        };
        for label in labels {
            let of_targets = if of_api_server.is_some() { OF_ALL_TARGETS } else { OF_TARGETS };
            let of_target = of_targets.contains(&label.as_str());
            let is_bound = label == "le" && is_bucket;
            assert!(known.contains(label) || of_target || is_bound, "{metric} has no label {label}");
        }
    }
}

#[test]
fn what_is_not_served_or_does_not_parse_is_noticed() {
    let asked = |metric: &str, labels: &[&str]| {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        vec![vec![Selector { metric: metric.to_owned(), labels }]]
    };
    assert_served(&asked("belay_holds", &["phase", "namespace"]));
    assert_served(&asked("belay_review_duration_seconds_bucket", &["path", "le"]));
    for (metric, label) in [
        ("belay_hold", "phase"),
        ("belay_holds", "reason"),
        ("belay_holds", "le"),
        ("apiserver_admission_webhook_fail_open_count", "namespace"),
    ] {
        let refused = std::panic::catch_unwind(|| assert_served(&asked(metric, &[label])));
        assert!(refused.is_err(), "{metric} {label}");
    }
    let answer = prometheus(&json!({ "groups": [] }), &["sum by (x)".to_owned()], &[]);
    assert_eq!(answer.wrong.len(), 1, "{:?}", answer.wrong);
    let rule = json!({ "alert": "A", "expr": "up", "annotations": { "summary": "{{ $label.x }}" } });
    let answer = prometheus(&json!({ "groups": [{ "name": "g", "rules": [rule] }] }), &[], &[]);
    assert!(answer.wrong.iter().any(|wrong| wrong.contains("$label")), "{:?}", answer.wrong);
}
