//! Rotation as a whole, simulated: one API, leaders that crash or pause at any point, replicas and
//! API servers that see everything late, clocks that disagree, people who edit and delete.
//!
//! What must hold throughout: the leaf that a replica serves verifies against the bundle of every
//! configuration as every API server, and the replica itself, last saw it. Only a bundle is excused
//! that somebody else wrote and that did not trust the signer of the day, while it is what is seen.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "what fails here fails the test")]

mod world;

use jiff::SignedDuration;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use world::{Op, Tamper, World};

fn tamper() -> impl Strategy<Value = Tamper> {
    prop_oneof![
        Just(Tamper::Empty),
        Just(Tamper::Garbage),
        Just(Tamper::Foreign),
        (0..8_usize).prop_map(Tamper::Earlier),
    ]
}

/// What happens in any cluster.
fn ordinary() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..240_i64).prop_map(Op::Pass),
        1 => (1..200_i64).prop_map(Op::RunDays),
        1 => Just(Op::RunUntilDue),
        1 => (1..4_i64).prop_map(Op::LeaderlessDays),
        6 => (0..4_usize).prop_map(Op::LeaderStep),
        2 => Just(Op::LeaderPauses),
        2 => Just(Op::PausedLeaderGoesOn),
        1 => Just(Op::LeaderChanges),
        2 => (0..2_usize, 0..60_i64).prop_map(|(replica, lag)| Op::ReplicaLag(replica, lag)),
        2 => (0..2_usize, 0..world::MAX_API_LAG).prop_map(|(server, lag)| Op::ApiServerLag(server, lag)),
    ]
}

fn with_edits() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        12 => ordinary(),
        2 => (0..world::ENTRIES, tamper()).prop_map(|(entry, tamper)| Op::Edit(entry, tamper)),
    ];
    prop::collection::vec(op, 20..80)
}

/// Without the two things that make a deletion lossy, as nothing is left then that remembers the
/// old authority: a replica that starts right after it has no leaf to hold on to, and a bundle that
/// somebody emptied before no longer says what it trusted.
fn with_deletions() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![12 => ordinary(), 1 => Just(Op::DeleteSecret)];
    prop::collection::vec(op, 20..80)
}

/// The same cases every time, each of them years of simulated time, so that a red build is red for everybody. To look
/// further: `PROPTEST_CASES=5000 PROPTEST_RNG_SEED=7 cargo test -p webhook-certs --test rotation`.
fn runner() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(64) }
}

fn run(mut world: World, ops: &[Op]) {
    for op in ops {
        world.apply(op);
    }
    world.comes_to_rest();
}

proptest! {
    #![proptest_config(runner())]

    #[test]
    fn what_is_served_is_always_trusted_whoever_crashes_starts_lags_or_edits(ops in with_edits()) {
        run(World::started(true), &ops);
    }

    #[test]
    fn deleting_the_secret_at_any_moment_fails_no_call_of_a_replica_that_runs(ops in with_deletions()) {
        run(World::started(false), &ops);
    }
}

#[test]
fn five_undisturbed_years_are_seven_rotations_without_a_gap() {
    let mut world = World::started(true);
    let writes_before = world.writes;
    world.apply(&Op::RunDays(5 * 365));
    world.comes_to_rest();
    // A rotation is due every 243 days.
    assert_eq!(world.rotations, 5 * 365 / 243);
    // Publish, record, activate, retire; each of two bundle changes patches every entry.
    let per_rotation = 4 + 2 * world::ENTRIES;
    assert_eq!(world.writes - writes_before, world.rotations * per_rotation);
    // A leaf each replica about every four and a half days.
    let leaves = world.leaves / world::REPLICAS;
    assert!((5 * 365 / 5..5 * 365 / 4).contains(&leaves), "{leaves}");
}

#[test]
fn a_cluster_at_rest_is_written_to_by_nobody() {
    let mut world = World::started(true);
    let writes_before = world.writes;
    world.apply(&Op::RunDays(200));
    assert_eq!(world.writes, writes_before);
}

#[test]
fn an_authority_that_expired_while_everything_was_down_is_replaced_at_once() {
    let mut world = World::started(true);
    world.is_down_for(SignedDuration::from_hours(500 * 24));
    world.comes_to_rest();
    assert_eq!(world.rotations, 1);
}
