//! What is taken from `evictionHold.doom`, and what is refused.

use jiff::SignedDuration;

use crate::config::Config;
use crate::testing::{self, NEEDED};

#[test]
fn a_configuration_that_says_nothing_waits_half_a_minute_and_takes_no_soft_signal() {
    let doom = testing::config("").eviction_hold.doom;
    assert_eq!((doom.stability(), doom.soft_signals), (SignedDuration::from_secs(30), false));
    assert_eq!(doom.signals(), belay_decide::doom::Signals::default());
}

#[test]
fn taints_and_conditions_of_ones_own_are_signals() {
    let doom = testing::config(
        "evictionHold:
  doom:
    signalStability: 1m
    softSignals: true
    taints: [{key: example.com/going}, {key: example.com/soon, notice: 45s}]
    conditions: [KernelDeadlock]
",
    )
    .eviction_hold
    .doom;
    assert_eq!((doom.stability(), doom.soft_signals), (SignedDuration::from_secs(60), true));
    let signals = doom.signals();
    assert_eq!(signals.conditions, ["KernelDeadlock"]);
    let soon = Some(SignedDuration::from_secs(45));
    assert_eq!(signals.taints, [("example.com/going".to_owned(), None), ("example.com/soon".to_owned(), soon)]);
}

#[test]
fn a_wrong_signal_is_told_by_key_and_fix() {
    let table: &[(&str, &[&str])] = &[
        ("signalStability: 0s", &["evictionHold.doom.signalStability", "1s to 10m"]),
        ("signalStability: 11m", &["evictionHold.doom.signalStability", "1s to 10m"]),
        ("signalStability: soon", &["soon", "10m"]),
        ("taints: [{key: \"a=b:NoSchedule\"}]", &["evictionHold.doom.taints", "without value and effect"]),
        ("taints: [{key: \"\"}]", &["evictionHold.doom.taints", "no key"]),
        ("taints: [{key: a}, {key: a}]", &["evictionHold.doom.taints", "a stands twice"]),
        ("taints: [{key: a, notice: 0s}]", &["evictionHold.doom.taints", "notice of a", "leave it out"]),
        ("taints: [{key: a, notice: 25h}]", &["evictionHold.doom.taints", "24h"]),
        ("taints: [{notice: 5s}]", &["key"]),
        ("taints: [a]", &["taints"]),
        ("conditions: [Ready]", &["evictionHold.doom.conditions", "every node that is well"]),
        ("conditions: [\"KernelDeadlock=True\"]", &["evictionHold.doom.conditions", "without its status"]),
        ("conditions: [A, A]", &["evictionHold.doom.conditions", "A stands twice"]),
        ("softSignal: true", &["softSignal", "softSignals"]),
    ];
    for (extra, expected) in table {
        let text = format!("{NEEDED}evictionHold: {{doom: {{{extra}}}}}\n");
        let error = Config::parse("config.yaml".as_ref(), &text).expect_err(extra).to_string();
        for word in *expected {
            assert!(error.contains(word), "{extra}: {error:?} lacks {word:?}");
        }
    }
}
