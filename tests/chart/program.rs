//! That chart and program speak of the same things: what the chart renders is read by the program's own code.

use std::path::Path;
use std::time::Duration;

use belay::config::Config;
use serde_json::{Value, json};

use crate::busy;
use crate::chart::Objects;
use crate::matrix;

/// The configuration file of a render as the program reads it, unknown keys and contradictions refused.
fn read(objects: &Objects) -> Config {
    read_of(objects.get("ConfigMap", "belay-config"))
}

/// The same of a ConfigMap.
pub(crate) fn read_of(map: &Value) -> Config {
    let text = map["data"]["config.yaml"].as_str().expect("the file is text");
    Config::parse(Path::new("/etc/belay/config.yaml"), text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn the_program_accepts_every_rendered_configuration() {
    for case in matrix::cases().into_iter().filter(|case| case.name != "nothing enabled") {
        read(&Objects::render(&case.values));
    }
}

#[test]
fn the_program_compiles_the_rules_of_every_preset() {
    for preset in busy::presets() {
        let values = json!({ "busyHints": { "enabled": true, "presets": [preset] } });
        let config = read(&Objects::render(&values));
        assert!(!config.busy_hints.rules.is_empty(), "{preset}");
    }
}

#[test]
fn the_documented_rule_shows_the_defaults_of_the_program() {
    let read = |rule: &Value| {
        let values = json!({ "busyHints": { "enabled": true, "rules": [rule] } });
        read(&Objects::render(&values)).busy_hints.rules
    };
    let shown = busy::documented_rule();
    let mut short = shown.clone();
    for key in ["onUnknown", "startupGrace", "idleDebounce", "maxBusy", "hints", "eviction"] {
        short.as_object_mut().expect("a rule").remove(key).expect("it is shown");
    }
    assert_eq!(read(&shown), read(&short));
}

#[test]
fn the_program_reads_what_the_values_say() {
    let config = read(&Objects::render(&matrix::everything()));
    let rules: Vec<&str> = config.busy_hints.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(rules, ["runner", "plain", "arc-runner", "arc-job"]);
    assert_eq!(config.busy_hints.rules[0].max_busy, Duration::from_hours(120));
    assert_eq!(config.busy_hints.rules[2].namespaces, ["ci"]);
    assert_eq!(config.busy_hints.rules[2].max_busy, Duration::from_hours(24));
    assert!(config.eviction_hold.enabled);
    assert_eq!(config.eviction_hold.history_ttl, Duration::from_mins(90));
    assert_eq!(config.eviction_hold.excluded_namespaces, ["istio-system", "123"]);
    assert_eq!(config.eviction_hold.ignore_evictors, ["system:serviceaccount:argo-rollouts:*", "yes"]);
    assert_eq!(config.eviction_hold.default_policy.namespaces, ["shop", "*"]);
    assert_eq!(config.eviction_hold.default_policy.readiness_deadline_seconds, 120);
    assert_eq!(config.writes_per_second, 50);
    assert!(config.deletion_cost.enabled && config.deletion_cost.spread_zones);
    assert_eq!(config.deletion_cost.max_nodes, 500);
    assert_eq!(config.deletion_cost.node_pools, ["general", "on", "7"]);
    assert_eq!(config.deletion_cost.settle_period, Duration::from_hours(1));
    assert_eq!(config.deletion_cost.stand_down_period, Duration::from_hours(24));
    assert_eq!(config.deletion_cost.writes_per_second, 15);
    assert_eq!(config.leader_election.lease_duration, Duration::from_secs(20));
    assert_eq!((config.probe.enabled, config.probe.interval), (true, Duration::from_mins(2)));
}

#[test]
fn the_defaults_of_chart_and_program_are_the_same() {
    let rendered = read(&Objects::render(&json!({})));
    let required = "certs: { secretName: belay-ca, dnsNames: [belay-webhook.belay-system.svc] }\n\
                    webhookConfigurations: { validating: belay, mutating: belay }\n\
                    leaderElection: { leaseName: belay-controller }\n";
    let own = Config::parse(Path::new("config.yaml"), required).expect("the rest has defaults");
    assert_eq!(rendered, own);

    // Rendered only while it is on.
    let on = "deletionCost: { enabled: true }\nevictionHold: { enabled: false }\n";
    let own = Config::parse(Path::new("config.yaml"), &format!("{required}{on}")).expect("the rest has defaults");
    assert_eq!(read(&Objects::render(&matrix::cost_alone())), own);
}
