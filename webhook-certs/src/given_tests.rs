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

/// What a process wants that begins with this.
fn at_first(given: &[Certificate], bundles: &[Vec<u8>]) -> Wanted {
    let live = live(bundles);
    Given::begin(given, &live, day_one()).wanted(given, &live, day_one())
}

#[test]
fn an_empty_configuration_is_filled_and_a_full_one_left_alone() {
    let given = [ca()];
    let bundle = pem(&[&given[0]]);
    let wanted = at_first(&given, &[bundle.clone(), vec![]]);
    assert_eq!((wanted.ca_bundle, wanted.targets.len(), wanted.until), (bundle.clone(), 1, None));
    assert!(at_first(&given, &[bundle]).targets.is_empty());
}

#[test]
fn an_authority_that_is_not_given_any_more_stays_for_ten_minutes_from_then() {
    let (old, new) = (ca(), ca());
    let (given, both) = ([new.clone()], pem(&[&new, &old]));
    let before = live(&[pem(&[&old]), pem(&[&old])]);
    let mut memory = Given::begin(std::slice::from_ref(&old), &before, day_one() - SignedDuration::from_hours(5));
    let wanted = memory.wanted(&given, &before, day_one());
    assert_eq!((&wanted.ca_bundle, wanted.targets.len(), wanted.until), (&both, 2, Some(after(10))));
    let during = live(&[both.clone(), both]);
    assert!(memory.wanted(&given, &during, after(9)).targets.is_empty());
    let wanted = memory.wanted(&given, &during, after(10));
    assert_eq!((wanted.ca_bundle, wanted.targets.len(), wanted.until), (pem(&[&new]), 2, None));
    // What a process that starts now finds, it counts from now.
    let wanted = Given::begin(&given, &during, after(10)).wanted(&given, &during, after(10));
    assert_eq!(wanted.until, Some(after(20)));
}

#[test]
fn one_of_many_authorities_that_is_not_given_any_more_stays_as_long_as_a_single_one() {
    let (many, new) = ((0..20).map(|_| ca()).collect::<Vec<_>>(), ca());
    let bundle = pem(&many.iter().collect::<Vec<_>>());
    let others = [&many[1..], std::slice::from_ref(&new)].concat();
    let known = Given::begin(&many, &live(std::slice::from_ref(&bundle)), day_one());
    let unknown = Given::begin(&others, &live(std::slice::from_ref(&bundle)), day_one());
    for mut memory in [known, unknown] {
        let wanted = memory.wanted(&others, &live(std::slice::from_ref(&bundle)), day_one());
        let kept = pem(&others.iter().chain([&many[0]]).collect::<Vec<_>>());
        assert_eq!((wanted.ca_bundle, wanted.until), (kept, Some(after(10))));
        // All of them replaced at once.
        let wanted = memory.wanted(std::slice::from_ref(&new), &live(std::slice::from_ref(&bundle)), after(1));
        assert_eq!(Certificate::readable_from_pem(&wanted.ca_bundle).len(), 21);
    }
}

#[test]
fn at_first_what_every_entry_trusts_is_kept_and_what_an_edit_put_into_one_is_not() {
    let (given, old, foreign) = ([ca()], ca(), ca());
    let expired = Ca::generate("old", day_one() - SignedDuration::from_hours(400 * 24)).unwrap();
    let new_only = pem(&[&given[0]]);
    for (what, bundles, expected) in [
        ("what all trust", vec![pem(&[&old]), pem(&[&old])], pem(&[&given[0], &old])),
        ("beside a new entry", vec![pem(&[&old]), vec![], pem(&[&old])], pem(&[&given[0], &old])),
        ("beside garbage", vec![b"garbage".to_vec(), pem(&[&old])], pem(&[&given[0], &old])),
        ("half written", vec![pem(&[&given[0], &old]), pem(&[&old])], pem(&[&given[0], &old])),
        ("an edit of one entry", vec![pem(&[&given[0]]), pem(&[&given[0], &foreign])], new_only.clone()),
        ("an edit and what all trust", vec![pem(&[&old, &foreign]), pem(&[&old])], pem(&[&given[0], &old])),
        ("an expired one", vec![pem(&[expired.certificate()])], new_only.clone()),
        ("a client's", vec![pem(&[&certificate_of_a_client()])], new_only.clone()),
        ("nothing", vec![], new_only),
    ] {
        assert_eq!(at_first(&given, &bundles).ca_bundle, expected, "{what}");
    }
}

#[test]
fn what_an_edit_puts_into_all_entries_later_is_put_right_at_once() {
    let (given, foreign) = ([ca()], ca());
    let bundle = pem(&[&given[0]]);
    let mut memory = Given::begin(&given, &live(std::slice::from_ref(&bundle)), day_one());
    for edited in [pem(&[&foreign]), pem(&[&given[0], &foreign])] {
        let wanted = memory.wanted(&given, &live(&[edited.clone(), edited]), after(1));
        assert_eq!((&wanted.ca_bundle, wanted.targets.len(), wanted.until), (&bundle, 2, None));
    }
}

#[test]
fn an_edit_takes_no_trust_from_replicas_that_have_yet_to_move_over() {
    let (old, new) = (ca(), ca());
    let given = [new.clone()];
    let before = live(&[pem(&[&old]), pem(&[&old])]);
    let mut memory = Given::begin(std::slice::from_ref(&old), &before, day_one());
    memory.wanted(&given, &before, day_one());
    let wanted = memory.wanted(&given, &live(&[vec![], pem(&[&new])]), after(1));
    assert_eq!((wanted.ca_bundle, wanted.until), (pem(&[&new, &old]), Some(after(10))));
}

#[test]
fn what_comes_back_is_given_and_what_is_not_given_once_more_begins_anew() {
    let (old, new) = (ca(), ca());
    let (one, both) = ([new.clone()], [new.clone(), old.clone()]);
    let found = live(&[pem(&[&new, &old])]);
    let mut memory = Given::begin(&one, &found, day_one());
    assert_eq!(memory.wanted(&one, &found, day_one()).until, Some(after(10)));
    let wanted = memory.wanted(&both, &found, after(9));
    assert_eq!((wanted.ca_bundle, wanted.until), (pem(&[&new, &old]), None));
    assert_eq!(memory.wanted(&one, &found, after(12)).until, Some(after(22)));
    // As it does after a clock was set back.
    assert_eq!(memory.wanted(&one, &found, after(2)).until, Some(after(12)));
    // What nobody can use goes at once.
    let late = after(366 * 24 * 60);
    assert_eq!(memory.wanted(&one, &found, late).until, None);
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
