//! The stage of these tests: one Belay for all of them.

use std::time::Duration;

use belay_e2e::keda;
use belay_e2e::world::{Namespace, test};
use serde_json::{Value, json};

/// How long a signal has to last in these tests, for a handover to begin by it: long enough for several looks at what must
/// not begin before.
pub(crate) const STABILITY: Duration = Duration::from_secs(3);

/// The chart's values for these tests.
pub(crate) fn values() -> Value {
    json!({ "evictionHold": { "doom": { "signalStability": format!("{}s", STABILITY.as_secs()) } } })
}

/// A test in a namespace of its own, with the Belay that all of them share.
pub(crate) fn handover(name: &str, body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>) {
    test(name, async |ns: &Namespace| {
        // Belay finds a kind half a minute after its definition, where it was there before it.
        keda::define(ns.cluster()).await?;
        ns.cluster().belay_with(values()).await?;
        body(ns).await
    });
}
