//! The series that alerts watch, and whose increase the dashboard shows, served from 0 on: `increase` does not see the first
//! step of a series that begins with it, so the first failure of a process would alert nobody.

use belay_decide::hold::{Allowed, Outcome as HoldOutcome};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::{Outcome, ResultLabel, Review, Write};

/// How handovers end.
const HANDOVERS: [HoldOutcome; 7] = [
    HoldOutcome::HandedOver,
    HoldOutcome::NotNeeded,
    HoldOutcome::VictimGone,
    HoldOutcome::Expired,
    HoldOutcome::Failed,
    HoldOutcome::Reverted,
    HoldOutcome::Abandoned,
];

/// How holds of busy pods end, and of idle ones that are retired.
const BUSY: [HoldOutcome; 5] = [
    HoldOutcome::JobEnded,
    HoldOutcome::Retired,
    HoldOutcome::NotNeeded,
    HoldOutcome::VictimGone,
    HoldOutcome::Expired,
];

/// Why evictions pass that somebody should know of.
const ALLOWED: [Allowed; 2] = [Allowed::NotSynced, Allowed::DeadlinePassed];

/// An eviction that is held since nobody can tell the pod's state.
const UNKNOWN: &str = "PodStateUnknown";

/// Results of writes that do not mend themselves.
const REFUSED: [&str; 2] = ["Forbidden", "Refused"];

/// What is not written for want of room.
const FULL: &str = "QueueFull";

/// Kinds of writes, as `docs/operations.md` lists them.
const KINDS: [&str; 8] = [
    "EvictionHoldStatus",
    "EvictionHold",
    "EvictionStatus",
    "Deployment",
    "Pod",
    "Owner",
    "HandoverPolicyStatus",
    "Certificates",
];

/// Makes those series.
pub(super) fn from_zero(
    evictions: &Family<Review, Counter>,
    records: &Family<ResultLabel, Counter>,
    writes: &Family<Write, Counter>,
    handovers: &Family<Outcome, Counter>,
    busy_holds: &Family<Outcome, Counter>,
) {
    for (ended, outcomes) in [(handovers, &HANDOVERS[..]), (busy_holds, &BUSY)] {
        for outcome in outcomes {
            ended.get_or_create(&Outcome { outcome: outcome.as_str() }).inc_by(0);
        }
    }
    for allowed in &ALLOWED {
        evictions.get_or_create(&Review { decision: "Allow", reason: allowed.reason() }).inc_by(0);
    }
    evictions.get_or_create(&Review { decision: "Hold", reason: UNKNOWN }).inc_by(0);
    for result in REFUSED.into_iter().chain([FULL]) {
        records.get_or_create(&ResultLabel { result }).inc_by(0);
    }
    for kind in KINDS {
        for result in REFUSED {
            writes.get_or_create(&Write { kind, result }).inc_by(0);
        }
    }
    for result in REFUSED.into_iter().chain([FULL]) {
        writes.get_or_create(&Write { kind: "Event", result }).inc_by(0);
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;
    use crate::webhook::server::Telemetry;

    #[test]
    fn what_alerts_count_begins_with_zero() {
        let metrics = Metrics::default();
        metrics.register(Telemetry::register);
        let text = metrics.encode().unwrap();
        for series in [
            r#"belay_handovers_total{outcome="Expired"}"#,
            r#"belay_handovers_total{outcome="Failed"}"#,
            r#"belay_handovers_total{outcome="Reverted"}"#,
            r#"belay_handovers_total{outcome="HandedOver"}"#,
            r#"belay_handovers_total{outcome="Abandoned"}"#,
            r#"belay_busy_holds_ended_total{outcome="JobEnded"}"#,
            r#"belay_busy_holds_ended_total{outcome="Expired"}"#,
            r#"belay_eviction_reviews_total{decision="Allow",reason="NotSynced"}"#,
            r#"belay_eviction_reviews_total{decision="Allow",reason="DeadlinePassed"}"#,
            r#"belay_eviction_reviews_total{decision="Hold",reason="PodStateUnknown"}"#,
            r#"belay_hold_records_total{result="QueueFull"}"#,
            r#"belay_hold_records_total{result="Forbidden"}"#,
            r#"belay_writes_total{kind="Pod",result="Refused"}"#,
            r#"belay_writes_total{kind="Event",result="QueueFull"}"#,
            "belay_hint_conflicts_total",
            "belay_deletion_cost_conflicts_total",
            "belay_webhook_accept_failures_total",
            r#"belay_webhook_handshake_failures_total{reason="PeerRefused"}"#,
            r#"belay_webhook_requests_unserved_total{reason="Panicked"}"#,
            r#"belay_webhook_requests_unserved_total{reason="TimedOut"}"#,
            r#"belay_webhook_requests_unserved_total{reason="Overloaded"}"#,
        ] {
            let line = format!("{series} 0");
            assert!(text.lines().any(|one| one == line), "`{line}` is not served");
        }
    }
}
