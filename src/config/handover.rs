//! The part of the configuration that says how workloads are handed over: the platform's default, and the bounds of a
//! surge.

use std::time::Duration;

use belay_decide::handover::HandoverRules;
use belay_decide::policy::{self, DefaultPolicy, OnFailure, Settings};
use jiff::SignedDuration;
use serde::Deserialize;

use super::duration;
use crate::api;
use crate::cluster::project;

/// The shortest time after which a surge counts as abandoned. Cluster Autoscaler asks for two minutes and comes back
/// after three (`--scale-down-delay-after-failure`); that it asked may be noted a minute late
/// ([`crate::webhook::recorder::NOTE_EVERY`]); and the write itself takes its time.
const SHORTEST_ABANDON_AFTER: Duration = Duration::from_secs(270);

/// Covers Deployments without a HandoverPolicy.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DefaultPolicyConfig {
    /// Off: only annotated Deployments and those with a policy are protected.
    pub enabled: bool,
    /// Namespaces by name, or `*`.
    pub namespaces: Vec<String>,
    /// How.
    pub handover: api::HandoverMode,
    /// When a handover begins.
    pub trigger: api::Trigger,
    /// How many replicas are added at most while victims wait for their stand-ins (Scale).
    pub surge_replicas: i32,
    /// A victim is held at most this long, in seconds.
    pub readiness_deadline_seconds: u32,
    /// What happens when no replacement came in time.
    pub on_failure: api::OnFailure,
}

impl Default for DefaultPolicyConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            namespaces: Vec::new(),
            handover: api::HandoverMode::Restart,
            trigger: api::Trigger::OnEviction,
            surge_replicas: policy::DEFAULT_SURGE_REPLICAS,
            readiness_deadline_seconds: policy::DEFAULT_READINESS_DEADLINE_SECONDS,
            on_failure: api::OnFailure::Release,
        }
    }
}

impl DefaultPolicyConfig {
    /// The key that is wrong, and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if !(1..=86_400).contains(&self.readiness_deadline_seconds) {
            let problem = "must be from 1 to 86400 seconds".to_owned();
            return Err(("evictionHold.defaultPolicy.readinessDeadlineSeconds", problem));
        }
        if !(1..=100).contains(&self.surge_replicas) {
            return Err(("evictionHold.defaultPolicy.surgeReplicas", "must be from 1 to 100".to_owned()));
        }
        if self.enabled && self.namespaces.is_empty() {
            let problem = "must name the namespaces to cover, or \"*\", while defaultPolicy is enabled".to_owned();
            return Err(("evictionHold.defaultPolicy.namespaces", problem));
        }
        Ok(())
    }

    /// What decisions read.
    pub(super) fn policy(&self) -> DefaultPolicy {
        DefaultPolicy {
            enabled: self.enabled,
            namespaces: self.namespaces.clone(),
            settings: Settings {
                mode: project::mode(self.handover),
                trigger: project::trigger(self.trigger),
                surge_replicas: self.surge_replicas,
                readiness_deadline_seconds: self.readiness_deadline_seconds,
                on_failure: match self.on_failure {
                    api::OnFailure::Release => OnFailure::Release,
                    api::OnFailure::RollBack => OnFailure::RollBack,
                },
                ..Settings::default()
            },
        }
    }
}

/// Surges.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ScaleConfig {
    /// A surge ends when nobody has asked for its victims' evictions for this long.
    #[serde(deserialize_with = "duration")]
    pub abandon_after: Duration,
}

impl Default for ScaleConfig {
    fn default() -> Self {
        Self { abandon_after: HandoverRules::default().abandon_after.unsigned_abs() }
    }
}

impl ScaleConfig {
    /// The key that is wrong, and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.abandon_after < SHORTEST_ABANDON_AFTER {
            let problem = "must be 4m30s or more: Cluster Autoscaler asks again after a pause of 3m, which may be noted \
                           a minute late, and a shorter time would end surges that it comes back to";
            return Err(("evictionHold.scale.abandonAfter", problem.to_owned()));
        }
        Ok(())
    }

    /// The same, as decisions read it.
    pub fn abandon_after(&self) -> SignedDuration {
        SignedDuration::try_from(self.abandon_after).unwrap_or(SignedDuration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use belay_decide::policy::{Mode, Trigger};

    use crate::config::Config;
    use crate::settings::Settings;
    use crate::testing::{NEEDED, config};

    #[test]
    fn what_is_left_out_is_the_cautious_way() {
        let settings = Settings::of(&config(""), "belay-system");
        let default = settings.default_policy.settings;
        assert_eq!((default.mode, default.trigger, default.surge_replicas), (Mode::Restart, Trigger::OnEviction, 1));
        assert_eq!(settings.handovers.abandon_after.as_mins(), 6);
    }

    #[test]
    fn what_is_said_reaches_decisions() {
        let config = config(
            "evictionHold: {scale: {abandonAfter: 4m30s}, defaultPolicy: {handover: Scale, trigger: OnDoom, \
             surgeReplicas: 3}}",
        );
        let settings = Settings::of(&config, "belay-system");
        let default = settings.default_policy.settings;
        assert_eq!((default.mode, default.trigger, default.surge_replicas), (Mode::Scale, Trigger::OnDoom, 3));
        assert_eq!(settings.handovers.abandon_after.as_secs(), 270);
    }

    #[test]
    fn a_wrong_value_is_told_by_key_and_reason() {
        let table: &[(&str, &[&str])] = &[
            ("{scale: {abandonAfter: 4m29s}}", &["evictionHold.scale.abandonAfter", "4m30s", "Cluster Autoscaler"]),
            ("{scale: {abandonAfter: 6}}", &["6", "10m"]),
            ("{scale: {giveUpAfter: 6m}}", &["giveUpAfter", "abandonAfter"]),
            ("{defaultPolicy: {surgeReplicas: 0}}", &["evictionHold.defaultPolicy.surgeReplicas", "from 1 to 100"]),
            ("{defaultPolicy: {surgeReplicas: 101}}", &["evictionHold.defaultPolicy.surgeReplicas", "from 1 to 100"]),
            ("{defaultPolicy: {trigger: OnWhim}}", &["OnWhim", "OnDoom"]),
        ];
        for (text, expected) in table {
            let parsed = Config::parse("config.yaml".as_ref(), &format!("{NEEDED}evictionHold: {text}\n"));
            let error = parsed.expect_err(text).to_string();
            for word in *expected {
                assert!(error.contains(word), "{text}: {error:?} lacks {word:?}");
            }
        }
    }
}
