//! The part of the configuration that says by what a node is known to be about to go.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use belay_decide::doom::Signals;
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer};

use super::duration;

/// Longest that a signal may have to stand: a drain would be over by then.
const LONGEST_STABILITY: Duration = Duration::from_mins(10);

/// Longest notice that means anything: a day is also the longest `readinessDeadlineSeconds`.
const LONGEST_NOTICE: Duration = Duration::from_hours(24);

/// Signals that a node is about to go.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Doom {
    /// How long a signal has to stand without a break for a handover to begin by itself.
    #[serde(deserialize_with = "duration")]
    pub signal_stability: Duration,
    /// Signals that come and go begin Scale handovers.
    pub soft_signals: bool,
    /// Taints beside those that are known.
    pub taints: Vec<Taint>,
    /// Types of node conditions that say so while they are true.
    pub conditions: Vec<String>,
}

/// A taint that says that a node is about to go.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// How long an eviction may be held from when the taint is seen, where the node then goes by itself.
    #[serde(default, deserialize_with = "optional")]
    pub notice: Option<Duration>,
}

fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

impl Default for Doom {
    fn default() -> Self {
        let rules = belay_decide::handover::HandoverRules::default();
        Self {
            signal_stability: rules.signal_stability.unsigned_abs(),
            soft_signals: rules.soft_signals,
            taints: Vec::new(),
            conditions: Vec::new(),
        }
    }
}

impl Doom {
    /// The key that is wrong, and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if !(Duration::from_secs(1)..=LONGEST_STABILITY).contains(&self.signal_stability) {
            let problem = "must be from 1s to 10m: a signal that is gone within a second is none, and a drain does not \
                           wait longer than that";
            return Err(("evictionHold.doom.signalStability", problem.to_owned()));
        }
        self.check_taints().map_err(|problem| ("evictionHold.doom.taints", problem))?;
        self.check_conditions().map_err(|problem| ("evictionHold.doom.conditions", problem))
    }

    fn check_taints(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for Taint { key, notice } in &self.taints {
            if key.is_empty() || key.contains(|letter: char| letter.is_whitespace() || "=:".contains(letter)) {
                return Err(format!("{key:?} is no key of a taint: write the key alone, without value and effect"));
            }
            if !seen.insert(key) {
                return Err(format!("{key} stands twice"));
            }
            if notice.is_some_and(|notice| !(Duration::from_secs(1)..=LONGEST_NOTICE).contains(&notice)) {
                return Err(format!(
                    "the notice of {key} must be from 1s to 24h; leave it out where the node waits for its pods"
                ));
            }
        }
        Ok(())
    }

    fn check_conditions(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for kind in &self.conditions {
            if kind == "Ready" {
                return Err("Ready is true of every node that is well; name a condition that is true of one that is \
                            about to go"
                    .to_owned());
            }
            if kind.is_empty() || kind.contains(|letter: char| letter.is_whitespace() || "=:".contains(letter)) {
                return Err(format!("{kind:?} is no type of a condition: write the type alone, without its status"));
            }
            if !seen.insert(kind) {
                return Err(format!("{kind} stands twice"));
            }
        }
        Ok(())
    }

    /// What nodes are judged by besides what is known to everybody.
    pub fn signals(&self) -> Signals {
        let taints = self.taints.iter().map(|taint| (taint.key.clone(), taint.notice.map(span)));
        Signals { taints: taints.collect(), conditions: self.conditions.clone() }
    }

    /// How long a signal has to stand.
    pub fn stability(&self) -> SignedDuration {
        span(self.signal_stability)
    }
}

fn span(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
