//! What tests of several parts have in common.

mod api_server;

use belay_decide::busy::Rule;

pub(crate) use api_server::{ApiServer, Asked, Reply};

use crate::config::{Config, Selects};

/// What every configuration must have.
pub(crate) const NEEDED: &str = "certs: {secretName: ca, dnsNames: [belay.svc]}
webhookConfigurations: {validating: b, mutating: b}
";

/// A configuration with these further keys.
pub(crate) fn config(more: &str) -> Config {
    Config::parse("config.yaml".as_ref(), &format!("{NEEDED}{more}")).expect("a good configuration")
}

/// A configuration with these busy rules: a YAML list.
pub(crate) fn config_of_rules(list: &str) -> Config {
    config(&format!("busyHints:\n  enabled: true\n  rules:\n    {}", list.replace('\n', "\n    ")))
}

/// These busy rules, compiled, with what each selects.
pub(crate) fn rules(list: &str) -> (Vec<Rule>, Vec<Selects>) {
    config_of_rules(list).busy_hints.compile().expect("what is parsed compiles")
}
