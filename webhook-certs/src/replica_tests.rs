//! What a replica serves, situation by situation. Whole histories are in `tests/rotation.rs`.

use jiff::SignedDuration;

use super::*;
use crate::cert::later;
use crate::leaf::Jitter;
use crate::plan::{ConfigKind, SETTLE, Step};

fn day_one() -> Timestamp {
    "2026-03-01T10:00:00Z".parse().unwrap()
}

fn after(seconds: i64) -> Timestamp {
    later(day_one(), SignedDuration::from_secs(seconds))
}

const DAY: i64 = 24 * 3600;

fn secret(keep: &CaSecret) -> CaSecret {
    let step = Step::Create { keep: keep.bundle.clone() };
    step.apply(None, "belay", day_one()).unwrap().unwrap()
}

fn first_secret() -> CaSecret {
    Step::Create { keep: vec![] }.apply(None, "belay", day_one()).unwrap().unwrap()
}

fn replica() -> Replica {
    let dns_names = vec!["w.ns.svc".into()];
    Replica::new(LeafRequest { dns_names, ips: vec![], jitter: Jitter::NONE })
}

fn live(bundles: &[Vec<u8>]) -> Vec<LiveCaBundle> {
    let entry =
        |place| Entry { kind: ConfigKind::Validating, config: "belay".into(), webhook: format!("w{place}.belay.dev") };
    bundles
        .iter()
        .enumerate()
        .map(|(place, ca_bundle)| LiveCaBundle { entry: entry(place), ca_bundle: ca_bundle.clone() })
        .collect()
}

fn switched(tick: &Result<Tick, LeafError>) -> bool {
    matches!(tick, Ok(Tick::Switched(_)))
}

/// A replica that serves a leaf of the first Secret, and a second Secret that trusts the first.
fn serving() -> (Replica, CaSecret, CaSecret) {
    let first = first_secret();
    let mut replica = replica();
    assert!(switched(&replica.tick(Some(&first), &live(&[first.bundle_pem()]), day_one())));
    let second = secret(&first);
    (replica, first, second)
}

#[test]
fn a_first_leaf_is_served_at_once_and_readiness_waits_for_the_bundles() {
    let secret = first_secret();
    let mut replica = replica();
    let blank = live(&[secret.bundle_pem(), vec![]]);
    assert_eq!(replica.ready(&blank, day_one()), Err(NotReady::NoLeaf));
    assert!(switched(&replica.tick(Some(&secret), &blank, day_one())));
    let text = replica.ready(&blank, day_one()).unwrap_err().to_string();
    assert_eq!(
        text,
        "ValidatingWebhookConfiguration belay, webhook w1.belay.dev: its caBundle holds no certificate yet; the \
         controller, or cert-manager's cainjector, fills it in"
    );
    replica.ready(&live(&[secret.bundle_pem(), secret.bundle_pem()]), day_one()).unwrap();
    replica.ready(&[], day_one()).unwrap();
}

#[test]
fn a_leaf_is_kept_until_two_thirds_of_its_life_and_then_renewed_at_once() {
    let (mut replica, first, _) = serving();
    let live = live(&[first.bundle_pem()]);
    let renew_at = replica.served().unwrap().renew_at();
    let just_before = renew_at.checked_sub(SignedDuration::from_secs(1)).unwrap();
    assert!(!switched(&replica.tick(Some(&first), &live, just_before)));
    assert!(switched(&replica.tick(Some(&first), &live, renew_at)));
    assert!(!switched(&replica.tick(Some(&first), &live, renew_at)));
}

#[test]
fn a_new_signer_takes_over_when_all_bundles_have_held_it_for_the_settle_time() {
    let (mut replica, first, second) = serving();
    let (old, both) = (first.bundle_pem(), second.bundle_pem());
    let tick = replica.tick(Some(&second), &live(&[both.clone(), old]), after(0));
    assert!(matches!(tick, Ok(Tick::Held { .. })), "{tick:?}");

    let all = live(&[both.clone(), both]);
    let tick = replica.tick(Some(&second), &all, after(10));
    assert!(matches!(tick, Ok(Tick::Held { until }) if until == later(after(10), SETTLE)), "{tick:?}");
    assert!(!switched(&replica.tick(Some(&second), &all, after(129))));
    assert!(switched(&replica.tick(Some(&second), &all, after(130))));
    assert_eq!(replica.served().unwrap().signer(), second.active().certificate());
}

#[test]
fn a_bundle_that_loses_the_new_signer_starts_the_wait_over() {
    let (mut replica, first, second) = serving();
    let (old, both) = (live(&[first.bundle_pem()]), live(&[second.bundle_pem()]));
    assert!(!switched(&replica.tick(Some(&second), &both, after(0))));
    assert!(!switched(&replica.tick(Some(&second), &old, after(60))));
    assert!(!switched(&replica.tick(Some(&second), &both, after(120))));
    assert!(!switched(&replica.tick(Some(&second), &both, after(239))));
    assert!(switched(&replica.tick(Some(&second), &both, after(240))));
}

#[test]
fn there_is_no_wait_where_the_served_leaf_is_refused_already() {
    let new_only = {
        let (mut replica, _, second) = serving();
        let bundle = live(&[second.active().certificate().to_pem().into_bytes()]);
        replica.tick(Some(&second), &bundle, after(0))
    };
    let expired = {
        let (mut replica, _, second) = serving();
        replica.tick(Some(&second), &live(&[b"garbage".to_vec()]), after(8 * DAY))
    };
    assert!(switched(&new_only) && switched(&expired), "{new_only:?} {expired:?}");
}

#[test]
fn while_a_new_signer_is_not_trusted_the_old_one_renews() {
    let (mut replica, first, second) = serving();
    let old = live(&[first.bundle_pem()]);
    for day in 0..30 {
        replica.tick(Some(&second), &old, after(day * DAY)).unwrap();
        replica.ready(&old, after(day * DAY)).unwrap();
    }
    assert_eq!(replica.served().unwrap().signer(), first.active().certificate());
}

#[test]
fn without_a_secret_the_last_one_seen_goes_on_signing() {
    let (mut replica, first, _) = serving();
    let bundle = live(&[first.bundle_pem()]);
    for day in 0..30 {
        replica.tick(None, &bundle, after(day * DAY)).unwrap();
        replica.ready(&bundle, after(day * DAY)).unwrap();
    }
    assert!(matches!(self::replica().tick(None, &bundle, day_one()), Ok(Tick::Unchanged)));
}

#[test]
fn an_expired_signer_is_an_error_and_what_was_served_stays() {
    let (mut replica, first, _) = serving();
    let error = replica.tick(Some(&first), &[], after(400 * DAY)).unwrap_err();
    assert!(matches!(error, LeafError::SignerNotValid { .. }), "{error}");
    assert!(replica.served().is_some());
}

#[test]
fn a_clock_that_was_ahead_is_forgotten() {
    let (mut replica, _, second) = serving();
    // A leaf from tomorrow is replaced, and a wait that began tomorrow begins now.
    let both = live(&[second.bundle_pem()]);
    assert!(!switched(&replica.tick(Some(&second), &both, after(DAY))));
    assert!(!switched(&replica.tick(Some(&second), &both, after(10))));
    assert!(switched(&replica.tick(Some(&second), &both, after(130))));
    assert_eq!(replica.served().unwrap().validity().not_before, after(10 - 3600));
}
