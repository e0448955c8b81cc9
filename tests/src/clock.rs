//! The harness's wall clock: the one place that reads it, for the timestamps that Kubernetes objects carry.
//!
//! Durations are measured with `Instant` everywhere else.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

/// The wall-clock time, as precise as the system gives it.
#[expect(clippy::disallowed_methods, reason = "the harness plays kubelets, which stamp objects with the real time")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The wall-clock time as a Kubernetes `Time`, which keeps whole seconds only.
pub fn time() -> Time {
    let now = now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The wall-clock time as a Kubernetes `MicroTime`, as Leases carry it.
pub fn micro_time() -> MicroTime {
    MicroTime(now())
}
