//! What the server counts. Everything here is a fault of somebody's: a quiet server counts nothing but connections.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::connection::REFUSED;
use super::request::Trouble;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The server's counters. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    connections: Gauge,
    accept_failures: Counter,
    made_room: Counter,
    handshake_failures: Family<Reason, Counter>,
    unserved: Family<Reason, Counter>,
}

impl Telemetry {
    /// New counters that `registry` serves.
    pub fn register(registry: &mut Registry) -> Self {
        let telemetry = Self::default();
        registry.register("webhook_connections", "Open connections", telemetry.connections.clone());
        registry.register(
            "webhook_accept_failures",
            "Connections that could not be accepted, such as for want of file descriptors",
            telemetry.accept_failures.clone(),
        );
        registry.register(
            "webhook_connections_made_room",
            "Idle connections that were closed to make room because all were taken",
            telemetry.made_room.clone(),
        );
        registry.register(
            "webhook_handshake_failures",
            "TLS handshakes that failed; PeerRefused: a caller does not trust the serving certificate",
            telemetry.handshake_failures.clone(),
        );
        registry.register(
            "webhook_requests_unserved",
            "Requests that the router did not answer, by what was wrong",
            telemetry.unserved.clone(),
        );
        // What alerts count is served from 0 on: an increase is not seen of a series that begins with its first step.
        telemetry.handshake_failures.get_or_create(&Reason { reason: REFUSED }).inc_by(0);
        for reason in [Trouble::Overloaded, Trouble::Panicked, Trouble::TimedOut].map(Trouble::name) {
            telemetry.unserved.get_or_create(&Reason { reason }).inc_by(0);
        }
        telemetry
    }

    /// Counts one of each kind, so that each kind is served.
    #[cfg(test)]
    pub(crate) fn count_everything(&self) {
        self.handshake_failed("PeerRefused");
        self.unserved("Overloaded");
    }

    /// How many connections are open.
    #[cfg(test)]
    pub(super) fn open_connections(&self) -> i64 {
        self.connections.get()
    }

    /// Requests that the router did not answer, for this reason.
    #[cfg(test)]
    pub(super) fn unserved_count(&self, reason: &'static str) -> u64 {
        self.unserved.get_or_create(&Reason { reason }).get()
    }

    /// Handshakes that failed, for this reason.
    #[cfg(test)]
    pub(super) fn handshake_failure_count(&self, reason: &'static str) -> u64 {
        self.handshake_failures.get_or_create(&Reason { reason }).get()
    }

    /// A connection is open until what is returned is dropped.
    pub(super) fn connection(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    pub(super) fn accept_failed(&self) {
        self.accept_failures.inc();
    }

    pub(super) fn made_room(&self) {
        self.made_room.inc();
    }

    pub(super) fn handshake_failed(&self, reason: &'static str) {
        self.handshake_failures.get_or_create(&Reason { reason }).inc();
    }

    pub(super) fn unserved(&self, reason: &'static str) {
        self.unserved.get_or_create(&Reason { reason }).inc();
    }
}

pub(super) struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
