//! What is told of certificates.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use webhook_certs::cert::Validity;

use super::Metrics;

/// What is told of certificates.
#[derive(Debug)]
pub(super) struct Certificates {
    starts: Family<RoleLabel, Gauge<f64, AtomicU64>>,
    ends: Family<RoleLabel, Gauge<f64, AtomicU64>>,
    steps: Family<StepLabel, Gauge>,
    refused: Counter,
    failed: Family<ReasonLabel, Counter>,
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

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl Certificates {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let certificates = Self {
            starts: Family::default(),
            ends: Family::default(),
            steps: Family::default(),
            refused: Counter::default(),
            failed: Family::default(),
        };
        registry.register(
            "certificate_not_before_timestamp_seconds",
            "When the certificate begins to be valid, as this process knows it; absent while it knows none",
            certificates.starts.clone(),
        );
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
        registry.register(
            "certificate_step_failures",
            "Attempts to keep the authority and what is trusted that failed, by reason; each is tried again",
            certificates.failed.clone(),
        );
        certificates
    }
}

impl Metrics {
    /// A certificate is valid in this span; `None` while none is known.
    pub fn certificate_validity(&self, role: Role, validity: Option<Validity>) {
        let label = RoleLabel {
            role: match role {
                Role::Leaf => "Leaf",
                Role::Authority => "Authority",
            },
        };
        let Certificates { starts, ends, .. } = &self.certificates;
        let Some(Validity { not_before, not_after }) = validity else {
            starts.remove(&label);
            ends.remove(&label);
            return;
        };
        starts.get_or_create(&label).set(not_before.as_second() as f64);
        ends.get_or_create(&label).set(not_after.as_second() as f64);
    }

    /// This step comes next in the life of the authority; `None` while this process does not know.
    pub fn rotation_step(&self, step: Option<&'static str>) {
        self.certificates.steps.clear();
        if let Some(step) = step {
            self.certificates.steps.get_or_create(&StepLabel { step }).set(1);
        }
    }

    /// An attempt to keep the authority and what is trusted failed for this reason.
    pub fn certificate_step_failed(&self, reason: &'static str) {
        self.certificates.failed.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Certificate files were not taken.
    pub fn certificate_files_refused(&self) {
        self.certificates.refused.inc();
    }
}
