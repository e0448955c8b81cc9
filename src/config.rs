//! The configuration: one YAML file, rendered from Helm values.
//!
//! Reading it is strict (an unknown key is an error, so a typo cannot switch protection off silently) and every
//! error names the key and the fix. The file is read again when it changes; a bad new file is reported and the
//! old one stays in force.

mod busy;
mod certs;
mod costs;
mod doom;
mod handover;
mod probe;

use std::path::{Path, PathBuf};
use std::time::Duration;

use belay_decide::hold::Rules;
use belay_decide::policy::DefaultPolicy;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::cluster::lease::Timing;
pub use busy::{BusyHints, Selects};
pub use certs::{Certs, CertsMode};
pub use costs::DeletionCost;
pub use doom::Doom;
pub use handover::{DefaultPolicyConfig, ScaleConfig};
pub use probe::Probe;

/// A namespace that runs what everything else depends on: holding its pods could block the repair of a cluster.
const ALWAYS_EXCLUDED: &str = "kube-system";

/// Why a configuration is not used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not what a configuration looks like.
    #[error("the configuration {path} is wrong: {message}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where and what, with the keys that exist.
        message: String,
    },
    /// A value makes no sense.
    #[error("the configuration {path} is wrong: {key}: {problem}")]
    Value {
        /// Which file.
        path: PathBuf,
        /// Which key.
        key: &'static str,
        /// What is wrong and how to mend it.
        problem: String,
    },
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The eviction hold.
    #[serde(default)]
    pub eviction_hold: EvictionHold,
    /// Busy hints.
    #[serde(default)]
    pub busy_hints: BusyHints,
    /// Deletion costs.
    #[serde(default)]
    pub deletion_cost: DeletionCost,
    /// Certificates.
    pub certs: Certs,
    /// Our own webhook configurations.
    pub webhook_configurations: WebhookConfigurations,
    /// The self-probe.
    #[serde(default)]
    pub probe: Probe,
    /// Leader election.
    #[serde(default)]
    pub leader_election: LeaderElection,
    /// How many writes a second each process makes in the long run: a controller for handovers and policy statuses
    /// together, a webhook replica for its records of holds. Twenty is what client-go's own controllers default to, and
    /// a node full of single-replica workloads still hands over within seconds.
    #[serde(default = "default_writes_per_second")]
    pub writes_per_second: u32,
}

/// The eviction hold.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EvictionHold {
    /// Off: every eviction passes.
    pub enabled: bool,
    /// How long a completed hold is kept.
    #[serde(rename = "historyTTL", deserialize_with = "duration")]
    pub history_ttl: Duration,
    /// Namespaces whose pods are never held, besides `kube-system` and Belay's own.
    pub excluded_namespaces: Vec<String>,
    /// User names whose evictions always pass; a trailing `*` matches a prefix.
    pub ignore_evictors: Vec<String>,
    /// Evictions for a handover pass where a program that restarts or resizes pods asks for them.
    pub ignore_restarters: bool,
    /// By what a node is known to be about to go.
    pub doom: Doom,
    /// Surges.
    pub scale: ScaleConfig,
    /// Covers Deployments without a HandoverPolicy.
    pub default_policy: DefaultPolicyConfig,
}

impl Default for EvictionHold {
    fn default() -> Self {
        Self {
            enabled: true,
            history_ttl: Duration::from_hours(1),
            excluded_namespaces: Vec::new(),
            ignore_evictors: Vec::new(),
            ignore_restarters: true,
            doom: Doom::default(),
            scale: ScaleConfig::default(),
            default_policy: DefaultPolicyConfig::default(),
        }
    }
}

/// Our own webhook configurations, whose `caBundle` the controller keeps right.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookConfigurations {
    /// Name of the ValidatingWebhookConfiguration.
    pub validating: String,
    /// Name of the MutatingWebhookConfiguration.
    pub mutating: String,
}

/// Leader election.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeaderElection {
    /// Name of the Lease in Belay's own namespace.
    pub lease_name: String,
    /// A Lease that nobody renewed for this long is free.
    #[serde(deserialize_with = "duration")]
    pub lease_duration: Duration,
    /// A leader that could not renew for this long stops acting.
    #[serde(deserialize_with = "duration")]
    pub renew_deadline: Duration,
    /// How often the Lease is looked at.
    #[serde(deserialize_with = "duration")]
    pub retry_period: Duration,
}

impl Default for LeaderElection {
    /// client-go's recommended values (`component-base/config/v1alpha1`).
    fn default() -> Self {
        Self {
            lease_name: "belay-controller".to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

fn default_writes_per_second() -> u32 {
    20
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Reads `90s`, `10m`, `1h30m`. The error says how to write one.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let fail = || format!("{text:?} is not a duration; write one like 30s, 10m or 1h30m");
    let span: jiff::SignedDuration = text.parse().map_err(|_| fail())?;
    // jiff also reads words ("2 days ago"); a configuration has one way to write a duration.
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"hms".contains(&byte));
    if !plain || span.is_negative() {
        return Err(fail());
    }
    Ok(span.unsigned_abs())
}

impl Config {
    /// Reads the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &Self::read(path)?)
    }

    /// Reads the file's text.
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })
    }

    /// Reads the text of the file at `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config: Self = serde_saphyr::from_str(text)
            .map_err(|error| ConfigError::Parse { path: path.into(), message: error.to_string() })?;
        for rule in &mut config.busy_hints.rules {
            rule.hints.costs_are_ranked = config.deletion_cost.enabled;
        }
        config.check().map_err(|(key, problem)| ConfigError::Value { path: path.into(), key, problem })?;
        Ok(config)
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let election = &self.leader_election;
        if election.renew_deadline >= election.lease_duration {
            let problem = "must be shorter than leaderElection.leaseDuration, or two replicas could lead at once";
            return Err(("leaderElection.renewDeadline", problem.to_owned()));
        }
        if election.retry_period >= election.renew_deadline {
            let problem = "must be shorter than leaderElection.renewDeadline, or the lead is lost between renewals";
            return Err(("leaderElection.retryPeriod", problem.to_owned()));
        }
        if election.lease_duration < Duration::from_secs(1) || election.retry_period.is_zero() {
            let problem =
                "leaseDuration must be 1s or more (a Lease counts whole seconds) and retryPeriod more than 0s";
            return Err(("leaderElection", problem.to_owned()));
        }
        if self.writes_per_second == 0 {
            return Err(("writesPerSecond", "must be 1 or more".to_owned()));
        }
        self.certs.check()?;
        self.busy_hints.compile()?;
        self.deletion_cost.check()?;
        self.probe.check()?;
        self.eviction_hold.doom.check()?;
        let costs = &self.deletion_cost;
        if costs.enabled && costs.writes_per_second >= self.writes_per_second {
            let problem = format!(
                "must be below writesPerSecond ({}), which bounds all writes together: a drain would wait behind costs",
                self.writes_per_second
            );
            return Err(("deletionCost.writesPerSecond", problem));
        }
        self.eviction_hold.scale.check()?;
        self.eviction_hold.default_policy.check()
    }

    /// Some evictions are held: for handovers, or for busy pods.
    pub fn holds(&self) -> bool {
        self.eviction_hold.enabled || self.busy_hints.enabled
    }

    /// The leading controller asks whether evictions come to the webhook.
    pub fn probes(&self) -> bool {
        self.probe.enabled && self.holds()
    }

    /// What the eviction decision needs.
    pub fn rules(&self, own_namespace: &str) -> Rules {
        let hold = &self.eviction_hold;
        let always = [ALWAYS_EXCLUDED.to_owned(), own_namespace.to_owned()];
        Rules {
            excluded_namespaces: always.into_iter().chain(hold.excluded_namespaces.iter().cloned()).collect(),
            ignore_evictors: hold.ignore_evictors.clone(),
            ignore_restarters: hold.ignore_restarters,
        }
    }

    /// The platform's default.
    pub fn default_policy(&self) -> DefaultPolicy {
        self.eviction_hold.default_policy.policy()
    }

    /// How the election is timed.
    pub fn timing(&self) -> Timing {
        let election = &self.leader_election;
        Timing {
            lease_duration: election.lease_duration,
            renew_deadline: election.renew_deadline,
            retry_period: election.retry_period,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "certs: {secretName: belay-ca, dnsNames: [belay-webhook.belay-system.svc]}
webhookConfigurations: {validating: belay, mutating: belay}
";

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("config.yaml"), text)
    }

    #[test]
    fn what_is_left_out_has_the_documented_default() {
        let config = parse(MINIMAL).unwrap();
        assert!(config.eviction_hold.enabled);
        assert_eq!(config.eviction_hold.history_ttl, Duration::from_hours(1));
        assert_eq!(config.timing().lease_duration, Duration::from_secs(15));
        assert_eq!(config.default_policy().settings.readiness_deadline_seconds, 600);
        assert_eq!(config.rules("belay-system").excluded_namespaces, ["kube-system", "belay-system"]);
    }

    #[test]
    fn nobody_asks_about_evictions_that_are_not_held() {
        let rule = "{name: a, podSelector: {matchLabels: {a: b}}, states: [{state: Busy, when: 'true'}]}";
        let busy = format!("evictionHold: {{enabled: false}}\nbusyHints: {{enabled: true, rules: [{rule}]}}");
        let table =
            [("", true), ("probe: {enabled: false}", false), ("evictionHold: {enabled: false}", false), (&*busy, true)];
        for (extra, probes) in table {
            assert_eq!(parse(&format!("{MINIMAL}{extra}\n")).unwrap().probes(), probes, "{extra}");
        }
    }

    #[test]
    fn a_wrong_file_is_told_by_key_and_fix() {
        let table: &[(&str, &str, &[&str])] = &[
            ("an unknown key", "evictionHold: {enable: true}", &["enable", "enabled"]),
            ("an unknown section", "evictionHolds: {}", &["evictionHolds", "evictionHold"]),
            ("a bad duration", "evictionHold: {historyTTL: soon}", &["soon", "10m"]),
            ("a number for a duration", "evictionHold: {historyTTL: 60}", &["60", "10m"]),
            ("words for a duration", "evictionHold: {historyTTL: 2 hours ago}", &["duration", "10m"]),
            ("a mode that does not exist", "evictionHold: {defaultPolicy: {handover: Move}}", &["Move", "Restart"]),
            ("a wrong type", "writesPerSecond: many", &["writesPerSecond"]),
            ("no writes", "writesPerSecond: 0", &["writesPerSecond", "1 or more"]),
            (
                "a deadline that outlives the lease",
                "leaderElection: {renewDeadline: 20s}",
                &["leaderElection.renewDeadline", "shorter"],
            ),
            ("no node to rank", "deletionCost: {maxNodes: 0}", &["deletionCost.maxNodes", "500"]),
            ("more nodes than ranks", "deletionCost: {maxNodes: 501}", &["deletionCost.maxNodes", "500"]),
            ("a settling time of nothing", "deletionCost: {settlePeriod: 0s}", &["deletionCost.settlePeriod", "1h"]),
            ("an endless one", "deletionCost: {standDownPeriod: 25h}", &["deletionCost.standDownPeriod", "24h"]),
            ("no cost writes", "deletionCost: {writesPerSecond: 0}", &["deletionCost.writesPerSecond", "100"]),
            (
                "as many cost writes as writes",
                "deletionCost: {enabled: true, writesPerSecond: 20}",
                &["deletionCost.writesPerSecond", "below writesPerSecond (20)"],
            ),
            ("a probe without a pause", "probe: {interval: 4s}", &["probe.interval", "5s"]),
            ("a probe now and then", "probe: {interval: 11m}", &["probe.interval", "10m"]),
            (
                "a default for no namespace",
                "evictionHold: {defaultPolicy: {enabled: true}}",
                &["evictionHold.defaultPolicy.namespaces", "\"*\""],
            ),
        ];
        for (name, extra, expected) in table {
            let error = parse(&format!("{MINIMAL}{extra}\n")).expect_err(name).to_string();
            for word in *expected {
                assert!(error.contains(word), "{name}: {error:?} lacks {word:?}");
            }
        }
    }

    #[test]
    fn certificates_that_contradict_each_other_are_told_by_key_and_fix() {
        for (certs, expected) in [
            ("{secretName: a, dnsNames: []}", Err(["certs.dnsNames", "at least one"])),
            ("{dnsNames: [a]}", Err(["certs.secretName", "belay-ca"])),
            ("{mode: automatic, secretName: a, dnsNames: [a]}", Err(["automatic", "existingSecret"])),
            ("{mode: existingSecret, secretName: a, dnsNames: [a]}", Err(["certs.secretName", "remove it"])),
            ("{secretName: a, caInjector: true, dnsNames: [a]}", Err(["certs.caInjector", "certManager"])),
            ("{mode: existingSecret, caInjector: true, dnsNames: [a]}", Err(["certs.caInjector", "certManager"])),
            ("{mode: auto, secretName: a, dnsNames: [a]}", Ok(CertsMode::Auto)),
            ("{mode: certManager, caInjector: true, dnsNames: [a]}", Ok(CertsMode::CertManager)),
            ("{mode: certManager, dnsNames: [a]}", Ok(CertsMode::CertManager)),
            ("{mode: existingSecret, dnsNames: [a]}", Ok(CertsMode::ExistingSecret)),
        ] {
            let parsed = parse(&format!("certs: {certs}\nwebhookConfigurations: {{validating: a, mutating: a}}\n"));
            match (parsed, expected) {
                (Ok(config), Ok(mode)) => assert_eq!(config.certs.mode, mode, "{certs}"),
                (Err(error), Err(words)) => {
                    let error = error.to_string();
                    assert!(words.iter().all(|word| error.contains(word)), "{certs}: {error}");
                }
                (parsed, _) => panic!("{certs}: {:?}", parsed.err()),
            }
        }
    }

    #[test]
    fn a_missing_file_says_which() {
        let error = Config::load(Path::new("/nonexistent/config.yaml")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/config.yaml"), "{error}");
    }
}
