use jiff::SignedDuration;

use super::*;
use crate::cost::Options;
use crate::testing::START;

#[test]
fn nothing_stays_of_a_pod_that_is_gone() {
    let mut cluster = Cluster::new(Options::default(), SignedDuration::from_mins(10));
    let known = KnownPod {
        pod: crate::cost::testing::pod("web-1", "web", "a1"),
        resource_version: "1".into(),
        present: None,
        managed: None,
        labels: std::sync::Arc::default(),
        hold_until: None,
    };
    cluster.put_pod(known, START);
    assert!(!cluster.pods.is_empty());
    cluster.remove_pod("shop", "web-1");
    assert!(cluster.pods.is_empty());
}
