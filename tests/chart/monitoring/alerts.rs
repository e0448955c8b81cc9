//! The alerts: that Prometheus accepts them, that each has a runbook, and that the values change them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{assert_served, operations, prometheus};
use crate::chart::{self, Objects};

/// The rules of a release with these values of `prometheusRule`, as a rule file.
pub(super) fn rules(values: &Value) -> Value {
    let mut values = json!({ "prometheusRule": values });
    values["prometheusRule"]["enabled"] = json!(true);
    json!({ "groups": Objects::render(&values).get("PrometheusRule", "belay")["spec"]["groups"] })
}

/// The alerts of a rule file.
pub(super) fn alerts(rules: &Value) -> Vec<Value> {
    rules["groups"][0]["rules"].as_array().expect("a group has rules").clone()
}

/// The name of an alert.
pub(super) fn name(alert: &Value) -> &str {
    alert["alert"].as_str().expect("an alert has a name")
}

#[test]
fn prometheus_accepts_every_alert_and_each_asks_for_what_is_served() {
    let answer = prometheus(&rules(&json!({})), &[], &[]);
    assert_eq!(answer.wrong, [] as [String; 0]);
    assert_served(&answer.asked);
    let metrics: BTreeSet<&str> = answer.asked.iter().flatten().map(|selector| selector.metric.as_str()).collect();
    assert!(metrics.len() > 15, "{metrics:?}");
}

#[test]
fn every_alert_says_what_is_wrong_how_bad_it_is_and_where_to_read_on() {
    for alert in alerts(&rules(&json!({}))) {
        let severity = alert["labels"]["severity"].as_str().expect("a severity");
        assert!(["critical", "warning", "info"].contains(&severity), "{alert}");
        let text = |key: &str| alert["annotations"][key].as_str().unwrap_or_else(|| panic!("no {key}: {alert}"));
        assert!(text("summary").ends_with('.') && !text("summary").contains("{{"), "{alert}");
        assert!(text("description").len() > text("summary").len(), "{alert}");
        let anchor = name(&alert).to_lowercase();
        assert_eq!(
            text("runbook_url"),
            format!("https://github.com/belay-dev/belay/blob/main/docs/operations.md#{anchor}")
        );
    }
}

/// The runbooks of the page: headings of alerts and what stands below each.
fn runbooks() -> Vec<(String, String)> {
    let page = operations();
    let section = page.split("\n## Alerts\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("a section");
    let parts = section.split("\n### ").skip(1).filter_map(|part| part.split_once('\n'));
    parts.map(|(heading, text)| (heading.to_owned(), text.to_owned())).collect()
}

#[test]
fn every_alert_has_a_runbook_and_the_other_way_round() {
    let rules = alerts(&rules(&json!({})));
    let alerts: Vec<&str> = rules.iter().map(name).collect();
    let runbooks = runbooks();
    let headings: Vec<&str> = runbooks.iter().map(|(heading, _)| heading.as_str()).collect();
    assert_eq!(headings, alerts, "the headings below Alerts in docs/operations.md, in the order of files/alerts.yaml");
    for (heading, text) in &runbooks {
        for part in ["**Meaning.**", "**Impact.**", "**Look at**", "**Do**"] {
            assert!(text.contains(part), "{heading} has no {part}");
        }
    }
}

#[test]
fn the_table_of_alerts_shows_what_the_rules_say() {
    let page = operations();
    for alert in alerts(&rules(&json!({}))) {
        let name = name(&alert);
        let row = page.lines().find(|line| line.starts_with(&format!("| [{name}](#{}) |", name.to_lowercase())));
        let row = row.unwrap_or_else(|| panic!("no row of {name}"));
        let columns: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let lasting = alert["for"].as_str().unwrap_or("");
        let [_, severity, shown, _] = columns[..] else { panic!("{row}") };
        assert_eq!((severity, shown), (alert["labels"]["severity"].as_str().unwrap_or(""), lasting), "{row}");
    }
}

#[test]
fn the_command_of_the_page_prints_a_rule_file_of_the_release() {
    let page = operations();
    let command = page.lines().find_map(|line| line.strip_prefix("helm template belay charts/belay "));
    let (arguments, rest) = command.and_then(|line| line.split_once(" | ")).expect("the page has the command");
    assert!(rest.starts_with("yq .spec > "), "{rest}");
    let folder = chart::folder();
    let chart = folder.to_str().expect("the path is UTF-8");
    let words: Vec<&str> = ["template", "belay", chart].into_iter().chain(arguments.split(' ')).collect();
    let output = chart::helm(&words, &json!({}));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object = chart::parse(std::str::from_utf8(&output.stdout).expect("it is UTF-8")).remove(0);
    assert_eq!(object["spec"], rules(&json!({})), "what Prometheus reads, of a release belay in belay-system");
}

#[test]
fn single_alerts_can_be_left_out_and_changed() {
    let all = alerts(&rules(&json!({})));
    let changed = alerts(&rules(&json!({
        "disabled": ["BelayHintConflict"],
        "overrides": { "BelayStoodDown": { "for": "3h", "severity": "page" }, "BelaySlow": { "for": "0s" } },
        "runbookUrl": "https://wiki.example.com/belay",
    })));
    assert_eq!(changed.len(), all.len() - 1);
    assert!(changed.iter().all(|alert| name(alert) != "BelayHintConflict"));
    let find = |wanted: &str| changed.iter().find(|alert| name(alert) == wanted).expect("it is there");
    let stood_down = find("BelayStoodDown");
    assert_eq!((&stood_down["for"], &stood_down["labels"]["severity"]), (&json!("3h"), &json!("page")));
    assert_eq!(stood_down["annotations"]["runbook_url"], "https://wiki.example.com/belay#belaystooddown");
    let slow = find("BelaySlow");
    assert_eq!((&slow["for"], &slow["labels"]["severity"]), (&json!("0s"), &json!("warning")));
}

#[test]
fn where_nobody_probes_no_alert_is_about_probes() {
    let names = |values: &Value| -> Vec<String> {
        let mut values = values.clone();
        values["prometheusRule"]["enabled"] = json!(true);
        let objects = Objects::render(&values);
        let groups = &objects.get("PrometheusRule", "belay")["spec"]["groups"];
        let alerts = alerts(&json!({ "groups": groups }));
        alerts.iter().map(name).filter(|name| name.starts_with("BelayProbe")).map(str::to_owned).collect()
    };
    assert_eq!(names(&json!({})), ["BelayProbeFailed", "BelayProbeStale", "BelayProbeUnknown"]);
    let without = json!({ "evictionHold": { "enabled": false }, "deletionCost": { "enabled": true } });
    for values in [json!({ "probe": { "enabled": false } }), without] {
        assert_eq!(names(&values), [] as [&str; 0], "{values}");
    }
}

#[test]
fn alerts_are_about_the_own_release() {
    let answer = prometheus(&rules(&json!({})), &[], &[]);
    for selector in answer.asked.iter().flatten().filter(|selector| selector.metric.starts_with("belay_")) {
        assert!(selector.labels.iter().any(|label| label == "namespace"), "{}", selector.metric);
    }
}
