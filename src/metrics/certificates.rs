//! What is told of certificates.

use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Metrics;

/// What is told of certificates.
#[derive(Debug)]
pub(super) struct Certificates {
    ends: Family<RoleLabel, Gauge<f64, AtomicU64>>,
    steps: Family<StepLabel, Gauge>,
    refused: Counter,
}

/// Which certificate.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// The one that is served.
    Leaf,
    /// The authority that signs it, or of several given ones that which lasts longest.
    Authority,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RoleLabel {
    role: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StepLabel {
    step: &'static str,
}

impl Certificates {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let certificates = Self { ends: Family::default(), steps: Family::default(), refused: Counter::default() };
        registry.register(
            "certificate_not_after_timestamp_seconds",
            "When the certificate is over, as this process knows it; absent while it knows none",
            certificates.ends.clone(),
        );
        registry.register(
            "certificate_rotation_step",
            "1 for the step that comes next in the life of the authority that Belay makes; Publish while all is at rest",
            certificates.steps.clone(),
        );
        registry.register(
            "certificate_files_refused",
            "Certificate files that were not taken since something is wrong with them, once for each fault",
            certificates.refused.clone(),
        );
        certificates
    }
}

impl Metrics {
    /// A certificate is over at this moment; `None` while none is known.
    pub fn certificate_end(&self, role: Role, end: Option<Timestamp>) {
        let label = RoleLabel {
            role: match role {
                Role::Leaf => "Leaf",
                Role::Authority => "Authority",
            },
        };
        match end {
            Some(end) => drop(self.certificates.ends.get_or_create(&label).set(end.as_second() as f64)),
            None => drop(self.certificates.ends.remove(&label)),
        }
    }

    /// This step comes next in the life of the authority.
    pub fn rotation_step(&self, step: &'static str) {
        self.certificates.steps.clear();
        self.certificates.steps.get_or_create(&StepLabel { step }).set(1);
    }

    /// Certificate files were not taken.
    pub fn certificate_files_refused(&self) {
        self.certificates.refused.inc();
    }
}
