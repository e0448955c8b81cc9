//! A soak that is short enough to be run with all other tests: what `cargo xtask soak` does a thousand times.

use belay_e2e::soak::{Soak, run};

#[test]
fn twenty_drains_with_kills_in_between_lose_no_request_restart_nobody_twice_and_leave_nothing_behind() {
    let soak = Soak { drains: 20, seed: 1, parallel: 4 };
    let tally = run(&soak, &|line| eprintln!("{line}"), std::future::pending()).expect("the cluster works");
    assert!(tally.is_clean(), "\n{tally}");
}
