//! What the operations page says of certificates against what there is: steps, modes, times.

use std::iter::successors;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use webhook_certs::plan::{Awaited, Fact, SETTLE, Step};
use webhook_certs::{given, leaf};

use super::{OPERATIONS_PAGE, assert_documented, read};
use crate::cluster::mounted;
use crate::config::CertsMode;

/// All of them: each arm gives the next one.
fn steps() -> Vec<Step> {
    let all = successors(Some(Step::Create { keep: Vec::new() }), |last| match last {
        Step::Create { .. } => Some(Step::Adopt { keep: Vec::new() }),
        Step::Adopt { .. } => Some(Step::Publish),
        Step::Publish => Some(Step::Record(Fact::AllHold)),
        Step::Record(_) => Some(Step::Activate),
        Step::Activate => Some(Step::Retire),
        Step::Retire => Some(Step::PatchBundles { ca_bundle: Vec::new(), targets: Vec::new() }),
        Step::PatchBundles { .. } => Some(Step::Wait { until: Timestamp::MAX, reason: Awaited::Renewal }),
        Step::Wait { .. } => None,
    });
    all.filter(|step| !matches!(step, Step::Wait { .. })).collect()
}

fn mode(mode: CertsMode) -> &'static str {
    match mode {
        CertsMode::Auto => "auto",
        CertsMode::CertManager => "certManager",
        CertsMode::ExistingSecret => "existingSecret",
    }
}

#[test]
fn every_step_and_mode_is_explained() {
    let page = read(OPERATIONS_PAGE);
    let row = page.lines().find(|line| line.starts_with("| `belay_certificate_rotation_step`")).expect("a row");
    let missing: Vec<_> = steps().iter().map(Step::name).filter(|step| !row.contains(&format!("`{step}`"))).collect();
    assert!(missing.is_empty(), "the row of the steps lacks {missing:?}");
    assert_documented(OPERATIONS_PAGE, steps().iter().map(Step::name));
    assert_documented(OPERATIONS_PAGE, [CertsMode::Auto, CertsMode::CertManager, CertsMode::ExistingSecret].map(mode));
}

#[test]
fn the_times_are_those_of_the_program() {
    let page = read(OPERATIONS_PAGE).split_whitespace().collect::<Vec<_>>().join(" ");
    for (said, holds) in [
        ("files are read every 10 s", mounted::POLL == Duration::from_secs(10)),
        ("not in `ca.crt` for ten minutes more", given::KEEP == SignedDuration::from_mins(10)),
        ("has done so for two minutes", SETTLE == SignedDuration::from_mins(2)),
        ("stays so for a week", leaf::LEAF_LIFETIME == SignedDuration::from_hours(7 * 24)),
    ] {
        assert!(holds && page.contains(said), "{OPERATIONS_PAGE}: {said}");
    }
}
