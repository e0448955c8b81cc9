//! For how long a pod is held: by its record, by what stands on it, and by the memory of one replica.

use super::*;

#[test]
fn the_earliest_word_bounds_a_hold() {
    let hours = |hours: i64| hours * 3600;
    // Since when it is busy, when the hold was recorded, when this replica was first asked: hours ago. Until when.
    for (since, recorded, first, until) in [
        (None, None, None, Some(6)),
        (Some(0), None, None, Some(6)),
        (Some(2), None, None, Some(4)),
        (None, Some(2), None, Some(4)),
        (Some(1), Some(3), None, Some(3)),
        (Some(1), Some(3), Some(5), Some(1)),
        (Some(5), Some(3), Some(1), Some(1)),
        (Some(3), Some(5), Some(1), Some(1)),
        (Some(6), None, None, None),
        (Some(1), Some(6), None, None),
        (Some(1), Some(1), Some(6), None),
    ] {
        let scene = since.map_or_else(|| Scene::settled("Busy"), |since| Scene::busy_for(hours(since)));
        let job = since.map(|since| after(-hours(since)));
        let scene = recorded.into_iter().fold(scene, |scene, ago| scene.holding(HoldReason::Busy, hours(ago)));
        let case = Case::of(scene).with(|case| {
            case.uptime = 1_000_000;
            case.memory = first.map(|ago| Memory {
                first: moment(-hours(ago), 1_000_000 - hours(ago) as u64),
                job,
                reason: HoldReason::Busy,
                released: false,
            });
        });
        let answer = case.decision().answer;
        let held = answer.held().map(|held| held.deadline);
        assert_eq!(held, until.map(|until| after(hours(until))), "{since:?} {recorded:?} {first:?}: {answer:?}");
        if until.is_none() {
            assert_eq!(answer, Answer::Allow(Allowed::DeadlinePassed));
        }
    }
}

#[test]
fn a_wall_clock_that_is_set_back_prolongs_nothing() {
    for hours_back in [1, 5, 24] {
        // Neither record nor busy-since: only the replica's own memory, by its uptime.
        let mut case = Case::of(Scene::settled("Busy"));
        assert_eq!(case.ask(true), "hold PodBusy");
        case.scene.holds[0].spec.deadline = after(1_000_000);
        let case = case.after(6 * 3600).with(|case| case.scene.now -= SignedDuration::from_hours(hours_back));
        assert_eq!(in_words(&case.step()), "allow DeadlinePassed", "{hours_back} h");
    }
    // And one that is set forth only ends sooner.
    let mut case = Case::of(Scene::settled("Busy"));
    case.ask(true);
    let case = case.with(|case| case.scene.now += SignedDuration::from_hours(6));
    assert_eq!(in_words(&case.step()), "allow DeadlinePassed");
}

#[test]
fn a_release_is_for_this_job_and_not_for_the_next() {
    let mut case = Case::of(Scene::busy_for(6 * 3600 - 10));
    assert_eq!(case.ask(true), "hold PodBusy");
    let mut case = case.after(10);
    assert_eq!(case.ask(true), "allow DeadlinePassed");
    // A budget refuses it after us, and whatever becomes of the record: it stays released.
    let mut case = case.after(5).with(|case| case.scene.holds.clear());
    assert_eq!(case.ask(true), "allow Released");
    let mut case = case.after(1).with(|case| case.scene.now -= SignedDuration::from_hours(3));
    assert_eq!(case.ask(true), "allow Released");

    // The controller has told of the next job.
    let next = Scene::busy_for(30);
    let mut case = Case { scene: next, ..case };
    assert_eq!(case.ask(true), "hold PodBusy");
    assert_eq!(case.memory.map(|memory| memory.released), Some(false));
}

#[test]
fn a_hold_that_is_released_in_the_api_is_released() {
    for phase in [Phase::Released, Phase::Completed] {
        let mut case = Case::of(Scene::busy_for(60).holding(HoldReason::Busy, 0)).with(|case| {
            case.scene.holds[0].status.phase = phase;
            case.scene.holds[0].status.outcome = Some(Outcome::Expired);
        });
        assert_eq!(case.ask(true), "allow Released");
        case.scene.holds.clear();
        assert_eq!(case.ask(true), "allow Released", "and this replica remembers");
    }
}

#[test]
fn a_hold_that_nobody_can_record_is_short_unless_the_pod_says_since_when() {
    let mut unrecorded = Case::of(Scene::settled("Busy"));
    for (second, expected) in
        [(0, "hold PodBusy"), (29, "hold PodBusy"), (1, "allow NotRecorded"), (60, "allow Released")]
    {
        unrecorded = unrecorded.after(second);
        assert_eq!(unrecorded.ask(false), expected);
    }
    let mut noted = Case::of(Scene::busy_for(60));
    for (second, expected) in
        [(0, "hold PodBusy"), (30, "hold PodBusy"), (5 * 3600, "hold PodBusy"), (3600, "allow DeadlinePassed")]
    {
        noted = noted.after(second);
        assert_eq!(noted.ask(false), expected);
    }
    // It says so also where somebody stripped it, by the record beside it.
    let stripped = Scene::busy_for(60).with(|scene| scene.somebody(&Key::annotation(BUSY_SINCE), None));
    let mut stripped = Case::of(stripped);
    assert_eq!(stripped.ask(false), "hold PodBusy");
    let mut stripped = stripped.after(100);
    assert_eq!(stripped.ask(false), "hold PodBusy");
    // To be retired is to be recorded: else nobody deletes the owner.
    let mut retired = Case::live(retiring("Idle"));
    for (second, expected) in [(0, "hold OwnerRetiring"), (29, "hold OwnerRetiring"), (1, "allow NotRecorded")] {
        retired = retired.after(second);
        assert_eq!(retired.ask(false), expected);
    }
}

/// The runner was held once, the drain was given up, and hours later it has its first job.
#[test]
fn a_drain_of_long_ago_takes_nothing_from_todays_job() {
    let mut case = Case::of(Scene::settled("Starting"));
    assert_eq!(case.ask(true), "hold PodStarting");
    // The controller forgot the hold when the pod stayed idle.
    let case = case.after(8 * 3600).with(|case| {
        case.scene.holds.clear();
        case.scene.say("Busy");
        case.scene.settle();
    });
    let mut case = case.with(|case| case.scene.now += SignedDuration::from_secs(60));
    assert_eq!(case.ask(true), "hold PodBusy");
    assert_eq!(case.held().deadline, after(14 * 3600));

    // The same after a job of long ago, before the controller has told of the next.
    let mut case = Case::of(Scene::busy_for(60));
    assert_eq!(case.ask(true), "hold PodBusy");
    let mut case = case.after(8 * 3600);
    case.scene = Scene { now: case.scene.now, ..Scene::settled("Busy") };
    assert_eq!(case.ask(true), "hold PodBusy");
}

#[test]
fn the_job_that_was_asked_about_first_is_told_by_the_controller_a_moment_later() {
    let mut case = Case::of(Scene::settled("Busy"));
    assert_eq!(case.ask(false), "hold PodBusy");
    let mut case = case.after(3).with(|case| case.scene.settle());
    assert_eq!(case.scene.mark(&Key::annotation(BUSY_SINCE)), Some("2026-11-30T14:00:03Z"));
    assert_eq!(case.ask(false), "hold PodBusy");
    assert_eq!(case.memory.map(|memory| memory.first), Some(moment(0, 10_000)), "the first word counts");
    assert_eq!(case.held().deadline, after(6 * 3600));
}
