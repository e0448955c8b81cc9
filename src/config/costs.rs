//! The part of the configuration that is about deletion costs.
//!
//! It takes effect at a program's start, since it also decides what is watched and which rights there are; the chart
//! starts the programs anew when it changes.

#[cfg(test)]
mod tests;

use std::time::Duration;

use belay_decide::cost::Options;
use belay_decide::cost::view::MOST_NODES;
use jiff::SignedDuration;
use serde::Deserialize;

use super::duration;

/// Deletion costs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeletionCost {
    /// Off: no value is written.
    pub enabled: bool,
    /// How many nodes are ranked.
    pub max_nodes: usize,
    /// Only nodes of these pools are ranked; empty for all nodes.
    pub node_pools: Vec<String>,
    /// Treat workloads without topology spread constraints as if they asked to be spread over zones.
    pub spread_zones: bool,
    /// What is younger is still changing.
    #[serde(deserialize_with = "duration")]
    pub settle_period: Duration,
    /// How long another controller is left alone, the first time.
    #[serde(deserialize_with = "duration")]
    pub stand_down_period: Duration,
    /// How many of the controller's writes a second may be about costs: fewer than all that it may make, so that a
    /// drain never waits behind hints.
    pub writes_per_second: u32,
}

impl Default for DeletionCost {
    fn default() -> Self {
        Self {
            enabled: false,
            max_nodes: 50,
            node_pools: Vec::new(),
            spread_zones: false,
            settle_period: Duration::from_mins(5),
            stand_down_period: Duration::from_mins(10),
            writes_per_second: 10,
        }
    }
}

impl DeletionCost {
    /// The key that is wrong, and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let between = |key, is_so, bounds: &str| if is_so { Ok(()) } else { Err((key, format!("must be {bounds}"))) };
        let second = Duration::from_secs(1);
        between(
            "deletionCost.maxNodes",
            (1..=MOST_NODES).contains(&self.max_nodes),
            &format!("from 1 to {MOST_NODES}: more leaves no room between the ranks"),
        )?;
        between(
            "deletionCost.settlePeriod",
            (second..=Duration::from_hours(1)).contains(&self.settle_period),
            "from 1s to 1h",
        )?;
        between(
            "deletionCost.standDownPeriod",
            (second..=Duration::from_hours(24)).contains(&self.stand_down_period),
            "from 1s to 24h",
        )?;
        between("deletionCost.writesPerSecond", (1..=100).contains(&self.writes_per_second), "from 1 to 100")
    }

    /// What decisions read.
    pub fn options(&self) -> Options {
        let pools = self.node_pools.iter().map(|name| name.as_str().into()).collect();
        Options {
            max_nodes: self.max_nodes,
            pools: (!self.node_pools.is_empty()).then_some(pools),
            span_zones: self.spread_zones,
            settle: span(self.settle_period),
        }
    }

    /// How long another controller is left alone, the first time.
    pub fn stand_down(&self) -> SignedDuration {
        span(self.stand_down_period)
    }
}

fn span(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
