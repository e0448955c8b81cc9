//! The objects that Belay serves in the API: `HandoverPolicy` (what people write) and `EvictionHold` (what Belay
//! writes, so that `kubectl get evictionholds` answers "why does my drain wait?").
//!
//! The CRDs in the chart are printed from these types (`belay crds`); a test compares them.

#[allow(
    clippy::duplicated_attributes,
    unreachable_pub,
    reason = "kube's derive repeats keys of printer columns and keeps its own copy of the spec"
)]
pub mod eviction_hold;
#[allow(clippy::duplicated_attributes, unreachable_pub, reason = "as above")]
pub mod handover_policy;

pub use eviction_hold::{
    EvictionHold, EvictionHoldSpec, EvictionHoldStatus, HoldOutcome, HoldPhase, HoldReason, HoldTrigger, Victim,
    Workload,
};
pub use handover_policy::{
    HandoverMode, HandoverPolicy, HandoverPolicySpec, HandoverPolicyStatus, LastHandover, OnFailure, TargetKind,
    TargetRef, Trigger,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// All CRDs, in the order in which they are printed and installed.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![EvictionHold::crd(), HandoverPolicy::crd()]
}

/// A CRD as YAML, as it stands in the chart.
pub fn crd_yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(crd)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_chart_carries_the_crds_of_these_types() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/belay/files/crds");
        for crd in crds() {
            let file = folder.join(format!("{}.yaml", crd.spec.names.plural));
            let expected = crd_yaml(&crd).unwrap();
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&file, &expected).unwrap();
            }
            let found = std::fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(found, expected, "{} differs; run the test once with UPDATE_GOLDEN=1", file.display());
        }
    }
}
