//! Who reads what: for each state exactly these keys and values. The table of `docs/busy.md`.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::busy::hints::{self, DELETION_COST, Told, desired};
use crate::busy::testing::all_hints;
use crate::busy::{AutoscalerHint, HintSwitches};
use crate::ownership::Key;
use crate::testing::after;

const SINCE: &str = "belay.dev/busy-since=2026-11-30T14:00:00Z";
const SAFE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict=true";
const UNSAFE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict=false";
const ON_COMPLETION: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict=on-completion";
const KARPENTER: &str = "karpenter.sh/do-not-disrupt=true";
const LABEL: &str = "label:belay.dev/busy=true";
const DESCHEDULER: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction=true";
const CAST_AI: &str = "label:autoscaling.cast.ai/removal-disabled=true";
const OCEAN: &str = "label:spotinst.io/restrict-scale-down=true";
const COST: &str = "controller.kubernetes.io/pod-deletion-cost=1048576";

/// What stands on the pod, in words, and when that changes by itself, in seconds after the start.
fn told(switches: HintSwitches, told: Told, now: Timestamp) -> (Vec<String>, Option<i64>) {
    let (values, changes_at) = desired(&switches, told, now);
    let all: Vec<_> = hints::keys().into_iter().collect();
    let named: BTreeSet<_> = all.iter().collect();
    assert_eq!(named.len(), values.len(), "every key is decided on, those that are to be absent included");
    assert!(values.keys().eq(named));
    let present = values.iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
    (present.collect(), changes_at.map(|at| at.duration_since(after(0)).as_secs()))
}

fn sorted(mut values: Vec<&str>) -> Vec<String> {
    let key = |text: &str| {
        let (name, _) = text.split_once('=').expect("key and value");
        let label = name.strip_prefix("label:");
        label.map_or_else(|| Key::annotation(name), Key::label)
    };
    values.sort_by_key(|value| key(value));
    values.into_iter().map(str::to_owned).collect()
}

#[test]
fn each_reader_is_told_in_its_own_words() {
    let nothing = || HintSwitches {
        cluster_autoscaler: AutoscalerHint::None,
        karpenter: false,
        busy_label: false,
        descheduler: false,
        cast_ai: false,
        spot_ocean: false,
        deletion_cost: false,
        costs_are_ranked: false,
    };
    let only = |set: fn(&mut HintSwitches)| {
        let mut switches = nothing();
        set(&mut switches);
        switches
    };
    let everything = vec![SINCE, UNSAFE, KARPENTER, LABEL, DESCHEDULER, CAST_AI, OCEAN, COST];
    for (name, switches, free, busy) in [
        ("nobody", nothing(), vec![], vec![SINCE]),
        ("the default", HintSwitches::default(), vec![SAFE], vec![SINCE, UNSAFE, KARPENTER, LABEL, DESCHEDULER]),
        ("everybody", all_hints(), vec![SAFE], everything),
        (
            "Cluster Autoscaler",
            only(|all| all.cluster_autoscaler = AutoscalerHint::SafeToEvict),
            vec![SAFE],
            vec![SINCE, UNSAFE],
        ),
        (
            "Cluster Autoscaler from 1.36 on, which is told on-completion only after a minute",
            only(|all| all.cluster_autoscaler = AutoscalerHint::OnCompletion),
            vec![SAFE],
            vec![SINCE, UNSAFE],
        ),
        ("Karpenter, which is never told false", only(|all| all.karpenter = true), vec![], vec![SINCE, KARPENTER]),
        ("kured and budgets", only(|all| all.busy_label = true), vec![], vec![SINCE, LABEL]),
        ("the descheduler", only(|all| all.descheduler = true), vec![], vec![SINCE, DESCHEDULER]),
        ("CAST AI", only(|all| all.cast_ai = true), vec![], vec![SINCE, CAST_AI]),
        ("Spot Ocean", only(|all| all.spot_ocean = true), vec![], vec![SINCE, OCEAN]),
        ("the ReplicaSet controller", only(|all| all.deletion_cost = true), vec![], vec![SINCE, COST]),
    ] {
        // Whatever the time: these do not age.
        for now in [0, 59, 86_400] {
            assert_eq!(told(switches, Told::Free, after(now)), (sorted(free.clone()), None), "{name}, free");
            // That it was busy since then stays noted.
            let overdue = free.iter().copied().chain([SINCE]).collect();
            assert_eq!(told(switches, Told::Overdue(after(0)), after(now)), (sorted(overdue), None), "{name}, overdue");
        }
        let (told, _) = told(switches, Told::Busy(after(0)), after(0));
        assert_eq!(told, sorted(busy), "{name}, busy");
    }
}

#[test]
fn on_completion_is_a_second_step() {
    let switches = HintSwitches { cluster_autoscaler: AutoscalerHint::OnCompletion, ..HintSwitches::default() };
    let busy = |safe| sorted(vec![SINCE, safe, KARPENTER, LABEL, DESCHEDULER]);
    for (now, expected) in [
        (0, (busy(UNSAFE), Some(60))),
        (59, (busy(UNSAFE), Some(60))),
        (60, (busy(ON_COMPLETION), None)),
        (86_400, (busy(ON_COMPLETION), None)),
        // A clock that was set back.
        (-60, (busy(UNSAFE), Some(60))),
    ] {
        assert_eq!(told(switches, Told::Busy(after(0)), after(now)), expected, "after {now} s");
    }
    for other in [AutoscalerHint::SafeToEvict, AutoscalerHint::None] {
        let switches = HintSwitches { cluster_autoscaler: other, ..HintSwitches::default() };
        assert_eq!(told(switches, Told::Busy(after(0)), after(0)).1, None, "nothing changes by itself");
    }
}

#[test]
fn no_value_is_one_that_a_reader_takes_for_something_else() {
    for told in [Told::Free, Told::Busy(after(0)), Told::Overdue(after(0))] {
        for cluster_autoscaler in [AutoscalerHint::SafeToEvict, AutoscalerHint::OnCompletion] {
            for now in [0, 3600] {
                let switches = HintSwitches { cluster_autoscaler, ..all_hints() };
                let (values, _) = desired(&switches, told, after(now));
                let value = |key: Key| values[&key].as_deref();
                // Karpenter answers "false" with a warning; the string is exact for Cluster Autoscaler.
                assert!(matches!(value(Key::annotation(hints::DO_NOT_DISRUPT)), None | Some("true")));
                let safe = value(Key::annotation(hints::SAFE_TO_EVICT)).expect("it is always told");
                assert!(["true", "false", "on-completion"].contains(&safe));
                // Karpenter adds these up: beyond 2^20 it takes them for the whole story.
                let cost = value(Key::annotation(hints::DELETION_COST)).map(|cost| cost.parse::<i32>().unwrap());
                assert!(cost.is_none_or(|cost| cost.abs() <= 1 << 20));
            }
        }
    }
}

#[test]
fn a_record_is_of_hints_where_it_has_one_of_their_keys() {
    for (record, expected) in [
        (r#"{"karpenter.sh/do-not-disrupt":"true"}"#, true),
        (r#"{"belay.dev/busy-since":null}"#, true),
        (r#"{"label:belay.dev/busy":"true"}"#, true),
        (r#"{"controller.kubernetes.io/pod-deletion-cost":"1048576"}"#, true),
        // A handover's victim.
        (r#"{"controller.kubernetes.io/pod-deletion-cost":"-1048576"}"#, false),
        // The annotation of a label's name is not the label.
        (r#"{"belay.dev/busy":"true"}"#, false),
        (r#"{"example.com/other":"1"}"#, false),
        ("{}", false),
        ("junk", false),
    ] {
        assert_eq!(hints::are_in(record, false), expected, "{record}");
    }
}

#[test]
fn a_cost_is_left_to_the_ranks_unless_the_rule_asks_for_one() {
    let cost = Key::annotation(DELETION_COST);
    for (costs_are_ranked, deletion_cost, expected) in
        [(false, false, true), (false, true, true), (true, true, true), (true, false, false)]
    {
        let switches = HintSwitches { deletion_cost, costs_are_ranked, ..HintSwitches::default() };
        let (values, _) = desired(&switches, Told::Free, after(0));
        assert_eq!(values.contains_key(&cost), expected, "{switches:?}");
    }
    let record = r#"{"controller.kubernetes.io/pod-deletion-cost":"-7"}"#;
    assert!(hints::are_in(record, false) && !hints::are_in(record, true));
}
