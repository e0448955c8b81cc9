//! The part about the self-probe against what there is: results, reasons, Events, bounds.

use std::iter::successors;

use belay_decide::probe::{ANNOTATION, CANARY_ENTRY, EVICTION_ENTRY, Miss, POD, Verdict};

use super::busy::words;
use super::{OPERATIONS_PAGE, assert_documented};

/// All of them: each arm gives the next one.
fn misses() -> Vec<Miss> {
    let all = successors(Some(Miss::NoConfiguration), |last| match last {
        Miss::NoConfiguration => Some(Miss::NoEvictionEntry),
        Miss::NoEvictionEntry => Some(Miss::NoCanaryEntry),
        Miss::NoCanaryEntry => Some(Miss::LeadsElsewhere { to: String::new(), expected: String::new() }),
        Miss::LeadsElsewhere { .. } => Some(Miss::NoAuthority),
        Miss::NoAuthority => Some(Miss::OtherAuthority),
        Miss::OtherAuthority => Some(Miss::Silent),
        Miss::Silent => Some(Miss::Unserved { warning: String::new() }),
        Miss::Unserved { .. } => None,
    });
    all.collect()
}

fn verdicts() -> Vec<Verdict> {
    let all = successors(Some(Verdict::Reached { replica: String::new() }), |last| match last {
        Verdict::Reached { .. } => Some(Verdict::NotReached(Miss::Silent)),
        Verdict::NotReached(_) => Some(Verdict::Refused { message: String::new() }),
        Verdict::Refused { .. } => Some(Verdict::Unreachable { message: String::new() }),
        Verdict::Unreachable { .. } => None,
    });
    all.collect()
}

#[test]
fn every_finding_of_a_probe_and_its_reason_is_explained() {
    assert_documented(OPERATIONS_PAGE, verdicts().iter().map(Verdict::result));
    assert_documented(OPERATIONS_PAGE, misses().iter().map(Miss::reason));
    assert_documented(OPERATIONS_PAGE, [ANNOTATION, CANARY_ENTRY, EVICTION_ENTRY, POD]);
}

#[test]
fn every_event_of_the_probe_is_explained() {
    let mut words = words("src/controllers/probe.rs");
    assert!(words.remove("Probe"), "the action, which is no reason");
    assert_eq!(words.len(), 2, "{words:?}");
    assert_documented(OPERATIONS_PAGE, words.iter().map(String::as_str));
}
