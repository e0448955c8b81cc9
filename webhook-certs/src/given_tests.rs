//! What configurations are to hold, given authorities of somebody else's.

use jiff::SignedDuration;

use super::*;
use crate::ca::Ca;
use crate::pair::tests::{certificate_of_a_client, self_signed};
use crate::plan::ConfigKind;

fn day_one() -> Timestamp {
    "2026-03-01T10:00:00Z".parse().unwrap()
}

fn after(minutes: i64) -> Timestamp {
    day_one() + SignedDuration::from_mins(minutes)
}

fn ca() -> Certificate {
    Ca::generate("somebody's", day_one()).unwrap().certificate().clone()
}

fn pem(certificates: &[&Certificate]) -> Vec<u8> {
    certificates.iter().map(|certificate| certificate.to_pem()).collect::<String>().into_bytes()
}

fn live(bundles: &[Vec<u8>]) -> Vec<LiveCaBundle> {
    let entry =
        |place| Entry { kind: ConfigKind::Mutating, config: "belay".into(), webhook: format!("w{place}.belay.dev") };
    let bundles = bundles.iter().enumerate();
    bundles.map(|(place, bundle)| LiveCaBundle { entry: entry(place), ca_bundle: bundle.clone() }).collect()
}

#[test]
fn an_empty_configuration_is_filled_and_a_full_one_left_alone() {
    let given = [ca()];
    let bundle = pem(&[&given[0]]);
    let wanted = Given::default().wanted(&given, &live(&[bundle.clone(), vec![]]), day_one());
    assert_eq!((wanted.ca_bundle, wanted.targets.len(), wanted.until), (bundle.clone(), 1, None));
    let wanted = Given::default().wanted(&given, &live(&[bundle]), day_one());
    assert!(wanted.targets.is_empty());
}

#[test]
fn an_authority_that_is_not_given_any_more_stays_for_ten_minutes_from_when_it_is_found() {
    let (old, new) = (ca(), ca());
    let (given, both) = ([new.clone()], pem(&[&new, &old]));
    let mut memory = Given::default();
    let wanted = memory.wanted(&given, &live(&[pem(&[&old]), pem(&[&old])]), day_one());
    assert_eq!((&wanted.ca_bundle, wanted.targets.len(), wanted.until), (&both, 2, Some(after(10))));
    let wanted = memory.wanted(&given, &live(&[both.clone(), both.clone()]), after(9));
    assert!(wanted.targets.is_empty());
    let wanted = memory.wanted(&given, &live(&[both.clone(), both.clone()]), after(10));
    assert_eq!((wanted.ca_bundle, wanted.targets.len(), wanted.until), (pem(&[&new]), 2, None));
    // What a process that starts now finds, it counts from now.
    let wanted = Given::default().wanted(&given, &live(&[both.clone(), both]), after(10));
    assert_eq!(wanted.until, Some(after(20)));
}

#[test]
fn what_comes_back_is_given_and_what_nobody_can_use_is_dropped_at_once() {
    let (old, new) = (ca(), ca());
    let expired = Ca::generate("old", day_one() - SignedDuration::from_hours(400 * 24)).unwrap();
    let found = live(&[pem(&[&new, &old, expired.certificate()]), b"garbage".to_vec()]);
    let mut memory = Given::default();
    assert_eq!(memory.wanted(std::slice::from_ref(&new), &found, day_one()).ca_bundle, pem(&[&new, &old]));
    let wanted = memory.wanted(&[new.clone(), old.clone()], &found, after(11));
    assert_eq!((wanted.ca_bundle, wanted.until), (pem(&[&new, &old]), None));
    // Not given once more: its time begins anew.
    let wanted = memory.wanted(std::slice::from_ref(&new), &found, after(12));
    assert_eq!(wanted.until, Some(after(22)));
    // As it does after a clock was set back.
    let wanted = memory.wanted(&[new], &found, after(2));
    assert_eq!(wanted.until, Some(after(12)));
}

#[test]
fn authorities_that_nobody_could_trust_are_told() {
    let (client, good) = (pem(&[&certificate_of_a_client()]), pem(&[&ca()]));
    for (name, text, now, expected) in [
        ("nothing", &b""[..], day_one(), "holds no certificate that is valid now and"),
        ("a client's", &client[..], day_one(), "holds no certificate that is valid now and"),
        ("an expired one", &good[..], after(366 * 24 * 60), "holds no certificate that is valid now and"),
        ("half of one", &good[..good.len() / 2], day_one(), "does not hold PEM certificates"),
    ] {
        let error = authorities(text, now).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    let itself = self_signed("w.ns.svc", day_one()).pem();
    for good in [&good, itself.as_bytes()] {
        assert_eq!(authorities(good, day_one()).unwrap().len(), 1);
    }
}
