//! What may happen in a random history.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;
use crate::cost::testing::{HOSTNAME, ZONE, over};
use crate::cost::{Constraint, PodHold};
use crate::view::PodPhase;

pub(super) const ZONES: [&str; 3] = ["a", "b", "c"];
pub(super) const NODES: usize = 7;
pub(super) const SETS: usize = 4;
pub(super) const SETTLE: i64 = 300;

/// Something that happens. Numbers choose among what is there.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Create {
        set: usize,
    },
    Run {
        set: usize,
        node: usize,
    },
    /// With or without the webhook.
    Bind {
        pod: usize,
        node: usize,
        valued: bool,
    },
    Serve {
        pod: usize,
    },
    Fail {
        pod: usize,
        phase: PodPhase,
    },
    Unready {
        pod: usize,
        ago: i64,
    },
    Restart {
        pod: usize,
    },
    End {
        pod: usize,
    },
    Delete {
        pod: usize,
    },
    Replace {
        pod: usize,
    },
    Own {
        pod: usize,
        set: Option<usize>,
    },
    Relabel {
        pod: usize,
        app: usize,
    },
    Hold {
        pod: usize,
        hold: Option<PodHold>,
        minutes: Option<i64>,
    },
    Edit {
        pod: usize,
        value: &'static str,
    },
    Strip {
        pod: usize,
        record: bool,
    },
    Prefer {
        pod: usize,
        priority: i32,
    },
    Touch {
        pod: usize,
    },
    Come {
        node: usize,
        zone: usize,
        minutes: i64,
    },
    Go {
        node: usize,
    },
    Cordon {
        node: usize,
        cordoned: bool,
    },
    Keep {
        node: usize,
        keep: Option<Keep>,
    },
    Zone {
        node: usize,
        zone: Option<usize>,
    },
    Pool {
        node: usize,
        pool: Option<usize>,
    },
    Claim {
        claim: usize,
        node: Option<usize>,
        leaving: bool,
        drifted: bool,
    },
    Unclaim {
        claim: usize,
    },
    Still {
        pool: usize,
        still: Option<bool>,
    },
    Budget {
        budget: usize,
        app: usize,
        exhausted: Option<i64>,
        lets_unready_go: bool,
        created: i64,
    },
    Unbudget {
        budget: usize,
    },
    Scale {
        set: usize,
        replicas: i32,
    },
    Constrain {
        set: usize,
        constraints: Vec<Constraint>,
    },
    Forget {
        set: usize,
    },
    Write {
        which: usize,
    },
    WriteAll,
    /// Time that brings no look at everything.
    Tick {
        seconds: i64,
    },
    Settle {
        settles: i64,
        seconds: i64,
    },
    Relist,
}

fn constraints() -> impl Strategy<Value = Vec<Constraint>> {
    prop_oneof![
        Just(vec![]),
        (1..3).prop_map(|skew| vec![over(ZONE, skew)]),
        Just(vec![over(HOSTNAME, 1)]),
        Just(vec![Constraint { hard: false, ..over(ZONE, 1) }]),
    ]
}

fn keep() -> impl Strategy<Value = Option<Keep>> {
    prop_oneof![2 => Just(None), 1 => Just(Some(Keep::DoNotDisrupt)), 1 => Just(Some(Keep::ControlPlane))]
}

fn of_pods() -> impl Strategy<Value = Step> {
    let pod = 0..40_usize;
    let ended = prop_oneof![Just(PodPhase::Succeeded), Just(PodPhase::Failed), Just(PodPhase::Unknown)];
    let hold = prop_oneof![Just(None), Just(Some(PodHold::DoNotDisrupt)), Just(Some(PodHold::Unmanaged))];
    prop_oneof![
        4 => (0..SETS).prop_map(|set| Step::Create { set }),
        3 => (0..SETS, 0..NODES).prop_map(|(set, node)| Step::Run { set, node }),
        5 => (pod.clone(), 0..NODES, any::<bool>()).prop_map(|(pod, node, valued)| Step::Bind { pod, node, valued }),
        5 => pod.clone().prop_map(|pod| Step::Serve { pod }),
        1 => (pod.clone(), ended).prop_map(|(pod, phase)| Step::Fail { pod, phase }),
        1 => (pod.clone(), 0..700_i64).prop_map(|(pod, ago)| Step::Unready { pod, ago }),
        1 => pod.clone().prop_map(|pod| Step::Restart { pod }),
        1 => pod.clone().prop_map(|pod| Step::End { pod }),
        2 => pod.clone().prop_map(|pod| Step::Delete { pod }),
        1 => pod.clone().prop_map(|pod| Step::Replace { pod }),
        2 => (pod.clone(), prop::option::of(0..SETS)).prop_map(|(pod, set)| Step::Own { pod, set }),
        1 => (pod.clone(), 0..SETS).prop_map(|(pod, app)| Step::Relabel { pod, app }),
        2 => (pod.clone(), hold, prop::option::of(0..20_i64))
            .prop_map(|(pod, hold, minutes)| Step::Hold { pod, hold, minutes }),
        2 => (pod.clone(), prop_oneof![Just("7"), Just("-7"), Just("junk")])
            .prop_map(|(pod, value)| Step::Edit { pod, value }),
        2 => (pod.clone(), any::<bool>()).prop_map(|(pod, record)| Step::Strip { pod, record }),
        1 => (pod.clone(), prop_oneof![Just(0), Just(i32::MIN)])
            .prop_map(|(pod, priority)| Step::Prefer { pod, priority }),
        1 => pod.prop_map(|pod| Step::Touch { pod }),
    ]
}

fn of_others() -> impl Strategy<Value = Step> {
    let (node, zone) = (0..NODES, 0..ZONES.len());
    prop_oneof![
        3 => (node.clone(), zone.clone(), 0..30_i64)
            .prop_map(|(node, zone, minutes)| Step::Come { node, zone, minutes }),
        2 => node.clone().prop_map(|node| Step::Go { node }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, cordoned)| Step::Cordon { node, cordoned }),
        2 => (node.clone(), keep()).prop_map(|(node, keep)| Step::Keep { node, keep }),
        1 => (node.clone(), prop::option::of(zone)).prop_map(|(node, zone)| Step::Zone { node, zone }),
        1 => (node.clone(), prop::option::of(0..2_usize)).prop_map(|(node, pool)| Step::Pool { node, pool }),
        3 => (0..5_usize, prop::option::of(node), any::<bool>(), any::<bool>())
            .prop_map(|(claim, node, leaving, drifted)| Step::Claim { claim, node, leaving, drifted }),
        1 => (0..5_usize).prop_map(|claim| Step::Unclaim { claim }),
        2 => (0..2_usize, prop::option::of(any::<bool>())).prop_map(|(pool, still)| Step::Still { pool, still }),
        3 => (0..3_usize, 0..SETS, prop::option::of(0..900_i64), any::<bool>(), 0..1500_i64).prop_map(
            |(budget, app, exhausted, lets_unready_go, created)| {
                Step::Budget { budget, app, exhausted, lets_unready_go, created }
            }
        ),
        1 => (0..3_usize).prop_map(|budget| Step::Unbudget { budget }),
        2 => (0..SETS, prop_oneof![Just(0), Just(1), Just(2), Just(20)])
            .prop_map(|(set, replicas)| Step::Scale { set, replicas }),
        2 => (0..SETS, constraints()).prop_map(|(set, constraints)| Step::Constrain { set, constraints }),
        1 => (0..SETS).prop_map(|set| Step::Forget { set }),
    ]
}

fn of_time_and_writes() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..40_usize).prop_map(|which| Step::Write { which }),
        4 => Just(Step::WriteAll),
        2 => (1..200_i64).prop_map(|seconds| Step::Tick { seconds }),
        5 => (1..4_i64, 0..SETTLE).prop_map(|(settles, seconds)| Step::Settle { settles, seconds }),
        1 => Just(Step::Relist),
    ]
}

pub(super) fn history() -> impl Strategy<Value = Vec<(Step, bool, u32)>> {
    let step = prop_oneof![5 => of_pods(), 3 => of_others(), 3 => of_time_and_writes()];
    vec((step, any::<bool>(), any::<u32>()), 1..90)
}
