//! The dashboard: that its expressions are Prometheus', that it shows every metric, and that Grafana finds it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{assert_served, family, prometheus, served};
use crate::chart::{self, Objects};

/// What Grafana puts in for a variable of its own, where it stands for no text.
const RATE_INTERVAL: (&str, &str) = ("$__rate_interval", "2m");

fn dashboard() -> Value {
    serde_json::from_str(&chart::read("files/dashboard.json")).expect("the dashboard is JSON")
}

/// The panels of a dashboard, without the headings of its rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().expect("there are panels");
    panels.iter().filter(|panel| panel["type"] != "row").collect()
}

/// The expressions of a panel, as they reach Prometheus.
fn expressions(panel: &Value) -> Vec<String> {
    let targets = panel["targets"].as_array().unwrap_or_else(|| panic!("{} asks nothing", panel["title"]));
    let texts = targets.iter().map(|target| target["expr"].as_str().expect("a target has an expression"));
    texts.map(|text| text.replace(RATE_INTERVAL.0, RATE_INTERVAL.1)).collect()
}

#[test]
fn every_expression_parses_and_asks_for_what_is_served() {
    let dashboard = dashboard();
    let expressions: Vec<String> = panels(&dashboard).into_iter().flat_map(expressions).collect();
    assert!(expressions.len() > 40, "only {} expressions were found", expressions.len());
    let answer = prometheus(&json!({ "groups": [] }), &expressions, &[]);
    assert_eq!(answer.wrong, [] as [String; 0]);
    assert_served(&answer.asked);

    // One dashboard is for all releases: each of its metrics is chosen by the variables.
    for (expression, selectors) in expressions.iter().zip(&answer.asked) {
        for selector in selectors.iter().filter(|selector| selector.metric.starts_with("belay_")) {
            let chosen = ["namespace", "job"].iter().all(|label| selector.labels.iter().any(|one| one == label));
            assert!(chosen, "{expression} does not choose {} by the variables", selector.metric);
        }
    }

    let shown: BTreeSet<&str> = answer.asked.iter().flatten().map(|one| family(&one.metric).0).collect();
    let all = answer.asked.iter().flatten().map(|one| one.metric.as_str());
    let shown: BTreeSet<&str> = all.chain(shown).collect();
    let missing: Vec<String> = served().into_keys().filter(|metric| !shown.contains(metric.as_str())).collect();
    assert_eq!(missing, [] as [String; 0], "metrics that no panel shows");
}

#[test]
fn what_the_api_servers_count_shows_from_its_first_step_on() {
    let dashboard = dashboard();
    for (title, metric) in [
        ("Failed open", "apiserver_admission_webhook_fail_open_count"),
        ("Failed closed", "apiserver_admission_webhook_rejection_count"),
    ] {
        let panel = panels(&dashboard).into_iter().find(|panel| panel["title"] == title).expect("it is there");
        let [expression] = &expressions(panel)[..] else { panic!("{title} asks more than one thing") };
        let alert = |values: &str, up: &str| {
            let rule = json!({ "alert": "Shown", "expr": format!("{expression} == 2") });
            let labels = r#"{job="apiserver",instance="a",name="eviction.hold.belay.dev",error_type="timeout"}"#;
            let series = [format!("{metric}{labels} {values}"), format!(r#"up{{job="apiserver",instance="a"}} {up}"#)];
            let rules = json!({ "groups": [{ "name": "panel", "rules": [rule] }] });
            let answer = prometheus(&rules, &[], &[json!({ "series": series, "minutes": 10 })]);
            assert_eq!(answer.wrong, [] as [String; 0]);
            answer.firing[0].len()
        };
        assert_eq!(alert("_x18 2x2", "1x20"), 1, "{title}: the series begins with the step");
        assert_eq!(alert("0x10 2x10", "1x20"), 0, "{title}: that was five minutes ago");
        assert_eq!(alert("2x2 _x16 2x2", "1x2 _x16 1x2"), 0, "{title}: Prometheus was away");
    }
}

#[test]
fn panels_are_whole_and_do_not_overlap() {
    let dashboard = dashboard();
    let mut taken = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("there are panels") {
        let title = &panel["title"];
        assert!(
            title.as_str().is_some_and(|title| !title.is_empty()) && numbers.insert(panel["id"].as_u64()),
            "{title}"
        );
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap_or_else(|| panic!("{title} has no {key}"));
        assert!(place("x") + place("w") <= 24, "{title} is wider than the page");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title} lies on another panel");
            }
        }
    }
    for panel in panels(&dashboard) {
        assert_eq!(panel["datasource"], json!({ "type": "prometheus", "uid": "${datasource}" }), "{}", panel["title"]);
        assert!(panel["description"].is_string(), "{}", panel["title"]);
    }
    let variables = dashboard["templating"]["list"].as_array().expect("there are variables");
    let names: Vec<&Value> = variables.iter().map(|variable| &variable["name"]).collect();
    assert_eq!(names, ["datasource", "namespace", "job"]);
}

#[test]
fn grafana_finds_the_dashboard_as_it_is() {
    let values = json!({ "dashboard": { "enabled": true, "annotations": { "grafana_folder": "Platform" } } });
    let objects = Objects::render(&values);
    let map = objects.get("ConfigMap", "belay-dashboard");
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(map["metadata"]["annotations"], json!({ "grafana_folder": "Platform" }));
    let text = map["data"]["belay.json"].as_str().expect("the file is text");
    assert_eq!(serde_json::from_str::<Value>(text).expect("the file is JSON"), dashboard());
}
