//! The part of the configuration that is about the self-probe.

use std::time::Duration;

use serde::Deserialize;

use super::duration;

/// The shortest interval: a webhook that hangs takes its whole timeout (3 s by default) to be found out.
const SHORTEST: Duration = Duration::from_secs(5);

/// The longest: the chart's alert takes what was found a quarter of an hour ago for too old to be true.
const LONGEST: Duration = Duration::from_mins(10);

/// The self-probe of the leading controller.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Probe {
    /// Off: nobody asks by itself.
    pub enabled: bool,
    /// How often is asked.
    #[serde(deserialize_with = "duration")]
    pub interval: Duration,
}

impl Default for Probe {
    fn default() -> Self {
        Self { enabled: true, interval: Duration::from_mins(1) }
    }
}

impl Probe {
    /// The key that is wrong, and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if (SHORTEST..=LONGEST).contains(&self.interval) {
            return Ok(());
        }
        Err(("probe.interval", "must be from 5s to 10m".to_owned()))
    }
}
