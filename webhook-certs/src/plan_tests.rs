//! The planner's table: one situation a row, and what is done about it.

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::ca::CA_LIFETIME;

fn day_one() -> Timestamp {
    "2026-03-01T10:00:00Z".parse().unwrap()
}

fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

fn minutes(count: i64) -> SignedDuration {
    SignedDuration::from_mins(count)
}

fn entry(kind: ConfigKind, webhook: &str) -> Entry {
    Entry { kind, config: "belay".into(), webhook: webhook.into() }
}

/// Two configurations with three entries, each holding what `bundle` gives for its place.
fn live_with(bundle: impl Fn(usize) -> Vec<u8>) -> Vec<LiveCaBundle> {
    [
        entry(ConfigKind::Validating, "eviction.belay.dev"),
        entry(ConfigKind::Mutating, "pods.belay.dev"),
        entry(ConfigKind::Mutating, "bindings.belay.dev"),
    ]
    .into_iter()
    .enumerate()
    .map(|(place, entry)| LiveCaBundle { entry, ca_bundle: bundle(place) })
    .collect()
}

fn live(secret: &CaSecret) -> Vec<LiveCaBundle> {
    live_with(|_| secret.bundle_pem())
}

fn created(now: Timestamp) -> CaSecret {
    let step = Step::Create { keep: vec![] };
    step.apply(None, "belay", now).unwrap().unwrap()
}

/// Plans against live configurations that hold the bundle, insists on `expected`, and applies it.
fn then(secret: &CaSecret, expected: &Step, now: Timestamp) -> CaSecret {
    assert_eq!(&plan(Some(secret), &live(secret), now), expected);
    expected.apply(Some(secret), "belay", now).unwrap().unwrap()
}

#[test]
fn a_cluster_without_a_secret_gets_one_and_then_its_configurations_are_filled() {
    let blank = live_with(|_| vec![]);
    let step = plan(None, &blank, day_one());
    assert_eq!(step, Step::Create { keep: vec![] });

    let secret = step.apply(None, "belay", day_one()).unwrap().unwrap();
    let targets = blank.iter().map(|live| live.entry.clone()).collect();
    let ca_bundle = secret.bundle_pem();
    assert_eq!(plan(Some(&secret), &blank, day_one()), Step::PatchBundles { ca_bundle, targets });

    let until = secret.active().certificate().validity.renew_at();
    let waits = Step::Wait { until, reason: Awaited::Renewal };
    assert_eq!(plan(Some(&secret), &live(&secret), day_one()), waits);
}

#[test]
fn a_rotation_publishes_waits_until_all_have_seen_it_activates_and_retires_a_leaf_life_later() {
    let secret = created(day_one());
    let first = secret.active().clone();
    let due = first.certificate().validity.renew_at();
    assert!(due < later(day_one(), CA_LIFETIME));

    let published = then(&secret, &Step::Publish, due);
    assert_eq!(published.active(), &first, "the next one does not sign yet");
    assert_eq!(published.bundle.len(), 2);
    let next = published.next().unwrap().clone();

    // One configuration after the other; nothing goes on before the last one holds it.
    let lagging = live_with(|place| if place == 2 { secret.bundle_pem() } else { published.bundle_pem() });
    let targets = vec![lagging[2].entry.clone()];
    let ca_bundle = published.bundle_pem();
    assert_eq!(plan(Some(&published), &lagging, due), Step::PatchBundles { ca_bundle, targets });

    let seen = later(due, minutes(5));
    let observed = then(&published, &Step::Record(Fact::AllHold), seen);
    let settled = later(seen, SETTLE);
    let wait = Step::Wait { until: settled, reason: Awaited::Settled };
    let just_before = settled.checked_sub(SignedDuration::from_secs(1)).unwrap();
    assert_eq!(plan(Some(&observed), &live(&observed), just_before), wait);

    let activated = then(&observed, &Step::Activate, settled);
    assert_eq!(activated.active(), &next);
    assert_eq!(activated.bundle, observed.bundle, "the old one stays trusted, no patch is needed");

    let retire = later(settled, LEAF_LIFETIME);
    let wait = Step::Wait { until: retire, reason: Awaited::Retirement };
    assert_eq!(plan(Some(&activated), &live(&activated), later(settled, days(6))), wait);
    let retired = then(&activated, &Step::Retire, retire);
    assert_eq!(retired.bundle, vec![next.certificate().clone()]);
    let ca_bundle = retired.bundle_pem();
    let step = plan(Some(&retired), &live(&activated), retire);
    assert!(matches!(&step, Step::PatchBundles { ca_bundle: to, .. } if *to == ca_bundle), "{step:?}");
    let wait = Step::Wait { until: next.certificate().validity.renew_at(), reason: Awaited::Renewal };
    assert_eq!(plan(Some(&retired), &live(&retired), retire), wait);
}

#[test]
fn an_outside_edit_is_repaired_whatever_it_was() {
    let secret = created(day_one());
    let other = created(day_one());
    let mut spaced = secret.bundle_pem();
    spaced.push(b'\n');
    for (what, edit) in [
        ("emptied", vec![]),
        ("garbage", b"not a bundle".to_vec()),
        ("another authority", other.bundle_pem()),
        ("one more authority", [secret.bundle_pem(), other.bundle_pem()].concat()),
        ("one more line end", spaced),
    ] {
        let edited = live_with(|place| if place == 1 { edit.clone() } else { secret.bundle_pem() });
        let expected = Step::PatchBundles { ca_bundle: secret.bundle_pem(), targets: vec![edited[1].entry.clone()] };
        assert_eq!(plan(Some(&secret), &edited, day_one()), expected, "{what}");
    }
}

#[test]
fn what_everybody_trusts_instead_is_trusted_on_for_a_leaf_life_and_then_dropped() {
    let (secret, other) = (created(day_one()), created(day_one()));
    let elsewhere = live_with(|place| if place == 1 { vec![] } else { other.bundle_pem() });
    let keep = other.bundle.clone();
    let step = plan(Some(&secret), &elsewhere, day_one());
    assert_eq!(step, Step::Adopt { keep });

    let adopted = step.apply(Some(&secret), "belay", day_one()).unwrap().unwrap();
    assert_eq!(adopted.active(), secret.active());
    let both = [secret.bundle_pem(), other.bundle_pem()].concat();
    let patch = plan(Some(&adopted), &elsewhere, day_one());
    assert!(matches!(&patch, Step::PatchBundles { ca_bundle, .. } if *ca_bundle == both), "{patch:?}");
    let observed = then(&adopted, &Step::Record(Fact::AllHold), day_one());
    let retired = then(&observed, &Step::Retire, later(day_one(), LEAF_LIFETIME));
    assert_eq!(retired.bundle, secret.bundle);
}

#[test]
fn nothing_is_adopted_that_nobody_can_be_served_by() {
    let secret = created(day_one());
    let expired = created(day_one().checked_sub(days(400)).unwrap());
    let mut full = secret.clone();
    full.bundle.extend((0..MAX_KEPT).map(|_| created(day_one()).active().certificate().clone()));
    let other = created(day_one()).bundle_pem();
    for (what, secret, bundle) in [
        ("emptied", &secret, vec![]),
        ("garbage", &secret, b"not a bundle".to_vec()),
        ("an expired authority", &secret, expired.bundle_pem()),
        ("one too many", &full, other),
    ] {
        let step = plan(Some(secret), &live_with(|_| bundle.clone()), day_one());
        assert!(matches!(step, Step::PatchBundles { .. }), "{what}: {step:?}");
    }
}

#[test]
fn an_outside_edit_while_the_next_authority_settles_starts_the_wait_over() {
    let secret = created(day_one());
    let due = secret.active().certificate().validity.renew_at();
    let observed = then(&then(&secret, &Step::Publish, due), &Step::Record(Fact::AllHold), due);
    let edited = live_with(|place| if place == 0 { vec![] } else { observed.bundle_pem() });

    let soon = later(due, minutes(1));
    let step = plan(Some(&observed), &edited, soon);
    assert_eq!(step, Step::Record(Fact::NotAllHold));
    let recorded = step.apply(Some(&observed), "belay", soon).unwrap().unwrap();
    assert!(matches!(plan(Some(&recorded), &edited, soon), Step::PatchBundles { .. }));

    // Repaired: had the first record stayed, the next one would activate here.
    let later_on = later(due, SETTLE);
    let again = then(&recorded, &Step::Record(Fact::AllHold), later_on);
    let wait = Step::Wait { until: later(later_on, SETTLE), reason: Awaited::Settled };
    assert_eq!(plan(Some(&again), &live(&again), later_on), wait);
}

#[test]
fn a_deleted_secret_is_made_anew_and_goes_on_trusting_what_was_trusted() {
    let lost = created(day_one());
    let now = later(day_one(), days(3));
    let expired = created(day_one().checked_sub(days(400)).unwrap());
    let live = live_with(|place| match place {
        0 => lost.bundle_pem(),
        1 => [lost.bundle_pem(), expired.bundle_pem()].concat(),
        _ => b"garbage".to_vec(),
    });

    let step = plan(None, &live, now);
    let keep = vec![lost.active().certificate().clone()];
    assert_eq!(step, Step::Create { keep: keep.clone() });
    let secret = step.apply(None, "belay", now).unwrap().unwrap();
    assert_ne!(secret.active(), lost.active());
    assert!(secret.retiring().eq(&keep));

    // Replicas cannot have moved over before the bundles hold the new authority, so the wait begins only then.
    let step = plan(Some(&secret), &live, later(now, days(30)));
    assert!(matches!(step, Step::PatchBundles { .. }), "{step:?}");
    let patched = later(now, days(30));
    let observed = then(&secret, &Step::Record(Fact::AllHold), patched);
    let wait = Step::Wait { until: later(patched, LEAF_LIFETIME), reason: Awaited::Retirement };
    assert_eq!(plan(Some(&observed), &self::live(&observed), patched), wait);
    let retired = then(&observed, &Step::Retire, later(patched, LEAF_LIFETIME));
    assert_eq!(retired.bundle, vec![secret.active().certificate().clone()]);
}

#[test]
fn a_bundle_that_lacked_the_new_authority_puts_the_retirement_of_the_old_one_off() {
    let secret = created(day_one());
    let due = secret.active().certificate().validity.renew_at();
    let observed = then(&then(&secret, &Step::Publish, due), &Step::Record(Fact::AllHold), due);
    let settled = later(due, SETTLE);
    let activated = then(&observed, &Step::Activate, settled);
    // Somebody puts the old bundle back, and it stays: a replica there goes on with the old authority.
    let edited = live_with(|place| if place == 0 { secret.bundle_pem() } else { activated.bundle_pem() });
    let late = later(settled, days(10));
    let step = plan(Some(&activated), &edited, late);
    assert_eq!(step, Step::Record(Fact::NotAllHold));
    let recorded = step.apply(Some(&activated), "belay", late).unwrap().unwrap();
    assert!(matches!(plan(Some(&recorded), &edited, late), Step::PatchBundles { .. }));
    let again = then(&recorded, &Step::Record(Fact::AllHold), late);
    then(&again, &Step::Retire, later(late, LEAF_LIFETIME));
}

#[test]
fn a_foreign_bundle_full_of_authorities_does_not_fill_the_secret() {
    let crowd: Vec<u8> = (0..MAX_KEPT + 3).flat_map(|_| created(day_one()).bundle_pem()).collect();
    let Step::Create { keep } = plan(None, &live_with(|_| crowd.clone()), day_one()) else {
        panic!("not a Create");
    };
    assert_eq!(keep.len(), MAX_KEPT);
}

#[test]
fn a_foreign_bundle_full_of_authorities_does_not_hide_ours() {
    let secret = created(day_one());
    let crowd: Vec<u8> = (0..MAX_KEPT + 3).flat_map(|_| created(day_one()).bundle_pem()).collect();
    let both = [crowd, secret.bundle_pem()].concat();
    let step = plan(Some(&secret), &live_with(|_| both.clone()), day_one());
    assert!(matches!(&step, Step::PatchBundles { ca_bundle, .. } if *ca_bundle == secret.bundle_pem()), "{step:?}");
}

#[test]
fn an_authority_that_nobody_accepts_any_more_is_replaced_without_waiting() {
    let secret = created(day_one());
    let validity = secret.active().certificate().validity;
    for (what, now) in [
        ("expired while no controller ran", later(validity.not_after, days(30))),
        ("made by a clock that was ahead", validity.not_before.checked_sub(days(30)).unwrap()),
    ] {
        let published = then(&secret, &Step::Publish, now);
        // Not before it is trusted, however; then at once.
        let step = plan(Some(&published), &live(&secret), now);
        assert!(matches!(step, Step::PatchBundles { .. }), "{what}: {step:?}");
        then(&published, &Step::Activate, now);
    }
}

#[test]
fn a_next_authority_that_waited_for_too_long_is_replaced() {
    let secret = created(day_one());
    let due = secret.active().certificate().validity.renew_at();
    let published = then(&secret, &Step::Publish, due);
    let unused = published.next().unwrap().clone();
    for now in [
        unused.certificate().validity.renew_at(),
        unused.certificate().validity.not_before.checked_sub(minutes(1)).unwrap(),
    ] {
        let again = then(&published, &Step::Publish, now);
        assert_ne!(again.next(), Some(&unused));
        assert!(!again.bundle.contains(unused.certificate()), "it never signed anything");
        assert!(again.bundle.contains(secret.active().certificate()));
    }
}

#[test]
fn times_that_are_lost_or_lie_ahead_are_taken_to_be_now() {
    let secret = created(day_one());
    let due = secret.active().certificate().validity.renew_at();
    let observed = then(&then(&secret, &Step::Publish, due), &Step::Record(Fact::AllHold), due);

    let clock_set_back = due.checked_sub(minutes(10)).unwrap();
    let observed = then(&observed, &Step::Record(Fact::AllHold), clock_set_back);
    let activated = then(&observed, &Step::Activate, due);
    then(&activated, &Step::Record(Fact::AllHold), clock_set_back);

    let mut data = activated.to_data();
    data.remove("observed-at");
    let lost = CaSecret::parse(&data).unwrap();
    let found = then(&lost, &Step::Record(Fact::AllHold), due);
    assert_eq!(found, activated);
}

#[test]
fn a_step_planned_for_another_secret_is_refused() {
    let secret = created(day_one());
    for (step, secret) in [
        (Step::Create { keep: vec![] }, Some(&secret)),
        (Step::Publish, None),
        (Step::Retire, None),
        (Step::Record(Fact::AllHold), None),
        (Step::Activate, Some(&secret)),
    ] {
        let error = step.apply(secret, "belay", day_one()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("the step {} does not", step.name())), "{error}");
    }
    let wait = Step::Wait { until: day_one(), reason: Awaited::Renewal };
    assert!(wait.apply(None, "belay", day_one()).unwrap().is_none());
}

#[test]
fn no_configuration_at_all_holds_nothing_up() {
    let secret = created(day_one());
    let due = secret.active().certificate().validity.renew_at();
    let published = then(&secret, &Step::Publish, due);
    assert_eq!(plan(Some(&published), &[], due), Step::Record(Fact::AllHold));
}
