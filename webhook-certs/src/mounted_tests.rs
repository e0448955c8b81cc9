//! What a replica makes of files, situation by situation.

use jiff::SignedDuration;

use super::*;
use crate::ca::Ca;
use crate::pair::tests::{authority, day_one, files, files_from};
use crate::plan::{ConfigKind, Entry, SETTLE};

const NAME: &str = "w.ns.svc";

fn replica() -> Mounted {
    Mounted::new(vec![NAME.to_owned()])
}

/// Entries that trust these authorities each.
fn live(entries: &[&[&Ca]]) -> Vec<LiveCaBundle> {
    let entry = |place: usize, authorities: &[&Ca]| LiveCaBundle {
        entry: Entry { kind: ConfigKind::Mutating, config: "belay".into(), webhook: format!("w{place}.belay.dev") },
        ca_bundle: authorities.iter().map(|ca| ca.certificate().to_pem()).collect::<String>().into_bytes(),
    };
    entries.iter().enumerate().map(|(place, authorities)| entry(place, authorities)).collect()
}

fn after(seconds: i64) -> Timestamp {
    day_one() + SignedDuration::from_secs(seconds)
}

#[test]
fn a_first_pair_is_served_at_once_and_is_ready_when_the_bundles_accept_it() {
    let (ca, other) = (authority(), authority());
    let mut replica = replica();
    let error = replica.ready(&[], day_one()).unwrap_err();
    assert_eq!(error, NotReady::NoPair);
    let tick = replica.tick(&files(&ca, NAME), &live(&[&[&other]]), day_one()).unwrap();
    assert!(matches!(tick, Tick::Switched(_)));
    let error = replica.ready(&live(&[&[&ca], &[&other]]), day_one()).unwrap_err().to_string();
    assert!(error.contains("w1.belay.dev: the serving certificate does not verify"), "{error}");
    replica.ready(&live(&[&[&ca], &[&other, &ca]]), day_one()).unwrap();
}

#[test]
fn a_new_pair_of_the_same_authority_takes_over_once_it_has_been_there_for_the_settle_time() {
    let ca = authority();
    let (old, new, live) = (files(&ca, NAME), files(&ca, NAME), live(&[&[&ca]]));
    let mut replica = replica();
    replica.tick(&old, &live, day_one()).unwrap();
    assert!(matches!(replica.tick(&old, &live, after(10)), Ok(Tick::Unchanged)));
    assert!(matches!(replica.tick(&new, &live, after(20)), Ok(Tick::Held { until }) if until == after(20) + SETTLE));
    assert!(matches!(replica.tick(&new, &live, after(139)), Ok(Tick::Held { .. })));
    assert!(matches!(replica.tick(&new, &live, after(140)), Ok(Tick::Switched(_))));
}

#[test]
fn a_pair_of_an_authority_that_is_not_trusted_yet_waits_and_what_goes_back_does_not_count() {
    let (ca, next) = (authority(), authority());
    let (old, new) = (files(&ca, NAME), files(&next, NAME));
    let (before, both) = (live(&[&[&ca], &[&ca]]), live(&[&[&ca, &next], &[&ca, &next]]));
    let mut replica = replica();
    replica.tick(&old, &before, day_one()).unwrap();
    for (now, live) in [(after(10), &before), (after(20), &both), (after(100), &live(&[&[&ca, &next], &[&ca]]))] {
        assert!(matches!(replica.tick(&new, live, now), Ok(Tick::Held { .. })));
    }
    assert!(matches!(replica.tick(&new, &both, after(110)), Ok(Tick::Held { until }) if until == after(110) + SETTLE));
    // The old files again, as by a rollback: nothing waits any more.
    assert!(matches!(replica.tick(&old, &both, after(120)), Ok(Tick::Unchanged)));
    assert!(matches!(replica.tick(&new, &both, after(240)), Ok(Tick::Held { .. })), "it waits anew");
    assert!(matches!(replica.tick(&new, &both, after(360)), Ok(Tick::Switched(_))));
}

#[test]
fn a_pair_takes_over_at_once_where_only_it_is_trusted_or_the_old_one_has_expired() {
    let (ca, next) = (authority(), authority());
    let mut replica = replica();
    replica.tick(&files(&ca, NAME), &live(&[&[&ca]]), day_one()).unwrap();
    assert!(matches!(replica.tick(&files(&next, NAME), &live(&[&[&next]]), after(10)), Ok(Tick::Switched(_))));

    // The pair of the first ten days is over; its authority is not.
    let late = day_one() + SignedDuration::from_hours(11 * 24);
    let later = files_from(&ca, NAME, late);
    assert!(matches!(replica.tick(&later, &live(&[&[&ca, &next]]), late), Ok(Tick::Switched(_))));
}

#[test]
fn a_bad_pair_changes_nothing_and_a_good_one_after_it_is_taken() {
    let ca = authority();
    let live = live(&[&[&ca]]);
    let (old, new) = (files(&ca, NAME), files(&ca, NAME));
    let mixed = Files { key: old.key.clone(), ..new.clone() };
    let mut replica = replica();
    assert!(replica.tick(&mixed, &live, day_one()).is_err());
    assert_eq!(replica.ready(&live, day_one()), Err(NotReady::NoPair));
    replica.tick(&old, &live, day_one()).unwrap();
    let served = replica.served().unwrap().chain().to_vec();
    for bad in [mixed, Files::default(), files(&ca, "x.ns.svc")] {
        assert!(replica.tick(&bad, &live, after(10)).is_err());
        assert_eq!(replica.served().unwrap().chain(), served);
        replica.ready(&live, after(10)).unwrap();
    }
    assert!(matches!(replica.tick(&new, &live, after(20)), Ok(Tick::Held { .. })));
    assert!(matches!(replica.tick(&new, &live, after(140)), Ok(Tick::Switched(_))));
}
