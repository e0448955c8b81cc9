//! What holds of every cluster, also of one whose values nobody can explain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::testing::*;
use super::super::*;
use crate::testing::{after, runner};
use crate::view::PodPhase;

const ZONES: [&str; 3] = ["a", "b", "c"];

/// A node: zone, hours of age, what bends it.
type AnyNode = (usize, i64, u8);

/// A pod: its ReplicaSet, its node, its standing value, its state, its priority.
type AnyPod = (usize, usize, Standing, u8, i32);

fn standing() -> impl Strategy<Value = Standing> {
    let any_value = prop_oneof![-BOUND..=0, any::<i32>()];
    prop_oneof![
        4 => Just(Standing::Absent),
        3 => any_value.clone().prop_map(Standing::Ours),
        1 => any_value.clone().prop_map(Standing::Stripped),
        1 => (0..100, any::<bool>()).prop_map(|(value, replaced)| Standing::Theirs { value, replaced }),
        1 => Just(Standing::GivenUp),
        1 => (-100..100).prop_map(Standing::OtherPart),
    ]
}

fn priority() -> impl Strategy<Value = i32> {
    let edge = view::LOWEST_PRIORITY;
    prop_oneof![6 => Just(0), 1 => edge - 40..edge + 40, 1 => -(1 << 25) - 5..-(1 << 25) + 5, 1 => any::<i32>()]
}

fn set_kind() -> impl Strategy<Value = (i32, Vec<Constraint>)> {
    let constraints = prop_oneof![
        3 => Just(vec![]),
        3 => (1..3).prop_map(|skew| vec![over(ZONE, skew)]),
        1 => Just(vec![over(ZONE, 1), over(HOSTNAME, 2)]),
        1 => Just(vec![over(HOSTNAME, 1)]),
        1 => Just(vec![Constraint { hard: false, ..over(ZONE, 1) }]),
    ];
    (prop_oneof![9 => Just(20), 1 => Just(1)], constraints)
}

prop_compose! {
    fn world()(
        nodes in vec((0..3_usize, 0..30_i64, 0..16_u8), 1..14),
        sets in vec(set_kind(), 1..5),
        pods in vec((0..5_usize, 0..16_usize, standing(), 0..8_u8, priority()), 0..60),
        max_nodes in 1..16_usize,
        span_zones: bool,
    ) -> World {
        build(&nodes, sets, &pods, max_nodes, span_zones)
    }
}

fn build(
    nodes: &[AnyNode],
    sets: Vec<(i32, Vec<Constraint>)>,
    pods: &[AnyPod],
    max_nodes: usize,
    span_zones: bool,
) -> World {
    let mut world = World::of(&[]);
    world.options = Options { max_nodes, span_zones, ..Options::default() };
    for (at, (zone, minutes, bend)) in nodes.iter().enumerate() {
        let name = format!("n{at:02}");
        let mut facts = node(&name, ZONES[*zone]);
        facts.created = after(-60 * minutes);
        match bend {
            0 => facts.node.unschedulable = true,
            1 => facts.drifted = true,
            2 => facts.keep = Some(Keep::DoNotDisrupt),
            3 => facts.stood_down = true,
            4 => facts.topology = Arc::default(),
            _ => {}
        }
        world.nodes.insert(name.into(), facts);
    }
    for (at, (replicas, constraints)) in sets.into_iter().enumerate() {
        world.sets.push(SetView { constraints, ..set(&format!("s{at}"), replicas) });
    }
    for (set, on, standing, state, priority) in pods {
        // Beyond the nodes that there are: not bound.
        let at = world.run(&format!("s{set}"), &format!("n{on:02}"));
        let pod = &mut world.pods[at];
        pod.standing = *standing;
        pod.priority = *priority;
        if *on >= nodes.len() {
            pod.node = None;
        }
        match state {
            0 => pod.readiness = Readiness::NotReady(Some(after(-10))),
            1 => pod.readiness = Readiness::NotReady(Some(after(-1000))),
            2 => pod.phase = PodPhase::Pending,
            3 => pod.blocked_since = Some(after(-1000)),
            4 => pod.terminating = true,
            _ => {}
        }
    }
    world
}

/// Karpenter's share of a pod in the cost of disrupting its node (`pkg/utils/disruption`, `EvictionCost`), as it takes
/// it from the pod's annotation and priority.
fn share(cost: i32, priority: i32) -> f64 {
    let share = 1.0 + f64::from(cost) / 2_f64.powi(27) + f64::from(priority) / 2_f64.powi(25);
    share.clamp(-10.0, 10.0).max(0.0)
}

/// The nodes that Karpenter takes for empty (`pkg/controllers/disruption/types.go`, `IsEmpty`), where pods cost this.
fn empty_to_karpenter(world: &World, cost: impl Fn(usize) -> i32) -> BTreeSet<&str> {
    let mut sums: BTreeMap<&str, f64> = world.nodes.keys().map(|name| (&**name, 1.0)).collect();
    for (at, pod) in world.pods.iter().enumerate().filter(|(_, pod)| pod.is_active()) {
        if let Some(sum) = pod.node.as_deref().and_then(|node| sums.get_mut(node)) {
            *sum += share(cost(at), pod.priority);
        }
    }
    sums.into_iter().filter(|(_, sum)| *sum <= 1.0).map(|(node, _)| node).collect()
}

/// What is decided, by names and not by places.
fn by_name(world: &World) -> String {
    let looked = world.look();
    let name = |at: usize| &world.pods[at].name;
    let desired: BTreeMap<_, _> = looked.desired.iter().enumerate().map(|(at, value)| (name(at), value)).collect();
    let writes: BTreeSet<_> = looked.writes.iter().map(|at| name(*at)).collect();
    format!("{:?} {desired:?} {writes:?}", looked.ranking)
}

fn pods_on(world: &World, node: &str) -> BTreeSet<String> {
    let on_node = world.pods.iter().filter(|pod| pod.node.as_deref() == Some(node));
    on_node.map(|pod| pod.name.to_string()).collect()
}

/// Nothing but plain sets, so that a pod's value is its node's rank.
fn plain(mut world: World) -> World {
    world.options.span_zones = false;
    for set in &mut world.sets {
        set.constraints.clear();
        // None shrinks, which would have values stay.
        set.replicas = 100;
    }
    world
}

proptest! {
    #![proptest_config(runner(600))]

    #[test]
    fn no_value_goes_beyond_the_bound_and_karpenter_takes_no_node_for_empty_because_of_one(world in world()) {
        let looked = world.look();
        for (at, value) in looked.desired.iter().enumerate().filter(|(at, _)| world.pods[*at].is_active()) {
            if let Some(value) = value {
                prop_assert!((-BOUND..0).contains(value), "{value}");
                prop_assert!(world.pods[at].node.is_some());
            }
        }
        // What is not ours stands either way.
        let is_open = |at: usize| world.pods[at].standing.is_open();
        let without = |at: usize| if is_open(at) { 0 } else { world.pods[at].standing.effective() };
        let with = |at: usize| looked.desired[at].filter(|_| is_open(at)).unwrap_or(without(at));
        prop_assert_eq!(empty_to_karpenter(&world, with), empty_to_karpenter(&world, without));
    }

    #[test]
    fn the_order_in_which_things_are_listed_changes_nothing(
        world in world(),
        keys in vec(any::<u32>(), 70),
    ) {
        let mut shuffled = world.clone();
        let mut pods: Vec<_> = keys.iter().zip(shuffled.pods).collect();
        pods.sort_by_key(|(key, _)| **key);
        shuffled.pods = pods.into_iter().map(|(_, pod)| pod).collect();
        shuffled.sets.reverse();
        prop_assert_eq!(by_name(&world), by_name(&shuffled));
    }

    #[test]
    fn a_cluster_that_is_as_it_ought_to_be_is_not_written_to(world in world(), hours in 0..3_i64) {
        let mut world = world.at_rest();
        prop_assert_eq!(world.pass(), BTreeSet::new());
        // What was young settles once; from then on time changes nothing.
        world.now += SignedDuration::from_hours(1);
        world.pass();
        prop_assert_eq!(world.pass(), BTreeSet::new());
        world.now += SignedDuration::from_hours(hours);
        prop_assert_eq!(world.pass(), BTreeSet::new());
    }

    #[test]
    fn a_node_that_becomes_protected_costs_its_own_pods_only(world in world(), which in 0..14_usize) {
        let mut world = plain(world).at_rest();
        // A place that becomes free may be given to others where more than a fifth was free already.
        world.options.max_nodes = 50;
        world.pass();
        let ranked: Vec<String> = world.order().into_iter().map(str::to_owned).collect();
        prop_assume!(!ranked.is_empty());
        let node = &ranked[which % ranked.len()];
        let valued = |pod: &CostPod| {
            pod.node.as_deref() == Some(node) && matches!(pod.standing, Standing::Ours(_)) && pod.is_active()
        };
        let own: BTreeSet<_> = world.pods.iter().filter(|pod| valued(pod)).map(|pod| pod.name.to_string()).collect();
        world.node(node).keep = Some(Keep::DoNotDisrupt);
        let written = world.pass();
        // Values from nowhere may have left no room at an end of the range.
        if world.last.as_ref().is_some_and(|last| last.renumbered == 0) {
            prop_assert_eq!(written, own);
        }
    }

    #[test]
    fn a_node_that_comes_costs_none_but_its_own_pods(
        world in world(),
        zone in 0..3_usize,
        pods in 0..6_usize,
        old: bool,
    ) {
        let mut world = world.at_rest();
        let created = after(if old { -10_000 } else { 0 });
        world.nodes.insert("m".into(), NodeFacts { created, ..node("m", ZONES[zone]) });
        let plain_set = world.sets.iter().position(|set| set.constraints.is_empty());
        if let (Some(at), false) = (plain_set, world.options.span_zones) {
            for _ in 0..pods {
                world.run(&format!("s{at}"), "m");
            }
        }
        let full = world.order().len() == world.options.max_nodes;
        let written = world.pass();
        let last = world.last.as_ref().unwrap();
        // Where all places are taken and it is clearly emptier than the fullest, that one loses its own.
        let takes_one = full && last.rank_of("m").is_some();
        if !takes_one && last.renumbered == 0 {
            prop_assert!(written.is_subset(&pods_on(&world, "m")), "{written:?}");
        }
    }

    #[test]
    fn a_node_whose_number_of_pods_changes_moves_alone_or_one_with_fewer_does(
        world in world(),
        which in 0..14_usize,
        more in 1..30_usize,
    ) {
        let mut world = plain(world);
        world.options.max_nodes = 50;
        let mut world = world.at_rest();
        let before = world.last.clone().unwrap();
        let ranked: Vec<String> = world.order().into_iter().map(str::to_owned).collect();
        prop_assume!(!ranked.is_empty());
        let node = &ranked[which % ranked.len()];
        for _ in 0..more {
            let at = world.run("s0", node);
            world.pods[at].standing = before.rank_of(node).map_or(Standing::Absent, Standing::Ours);
        }
        world.pass();
        let after = world.last.as_ref().unwrap();
        // On a node without a value of ours nothing depends on its rank.
        let valued = |node: &&str| {
            let on_node = world.pods.iter().filter(|pod| pod.node.as_deref() == Some(*node) && pod.is_active());
            on_node.map(|pod| pod.standing.written()).any(|written| written.is_some())
        };
        let changed: Vec<_> = after.changed_since(&before).into_iter().filter(valued).collect();
        prop_assert!(after.renumbered > 0 || changed.len() <= 1, "{changed:?}");
        let pods = |node: &str| match after.verdict(node) {
            Some(Verdict::Ranked(ranked)) => ranked.pods,
            _ => 0,
        };
        for other in changed {
            prop_assert!(pods(other) <= pods(node));
        }
    }

    #[test]
    fn a_scale_down_keeps_every_constraint_wherever_all_pods_may_be_steered(world in world()) {
        let mut world = world;
        for pod in &mut world.pods {
            pod.priority = 0;
            pod.standing = match pod.standing {
                Standing::Theirs { .. } | Standing::GivenUp | Standing::OtherPart(_) => Standing::Absent,
                other => other,
            };
        }
        for node in world.nodes.values_mut() {
            node.stood_down = false;
        }
        let world = world.at_rest();
        for set in &world.sets {
            for constraint in set.constraints.iter().filter(|constraint| set.replicas > 1 && constraint.hard) {
                check_spread(&world, &set.name, constraint)?;
            }
        }
    }

    #[test]
    fn within_a_domain_nodes_empty_in_the_order_of_their_ranks(
        world in world(),
        binds in vec((0..5_usize, 0..14_usize), 0..8),
    ) {
        let mut world = world.at_rest();
        for (set, on) in binds {
            let (set, node) = (format!("s{}", set % world.sets.len()), format!("n{:02}", on % world.nodes.len()));
            world.bind(&set, &node);
            world.pass();
        }
        world.ready();
        world.now += SignedDuration::from_hours(1);
        let world = world.at_rest();
        let ranking = world.look().ranking;
        for set in &world.sets {
            let [constraint] = &set.constraints[..] else { continue };
            let mut last: BTreeMap<&str, (i32, &str)> = BTreeMap::new();
            for at in world.removal(&set.name) {
                let pod = &world.pods[at];
                let (Standing::Ours(_), true, Some(node)) = (pod.standing, pod.serves(), pod.node.as_deref()) else {
                    continue;
                };
                let Some(domain) = world.nodes.get(node).and_then(|facts| facts.topology.get(&constraint.key)) else {
                    continue;
                };
                // Nodes without a rank come last, in any order.
                let place = ranking.rank_of(node).unwrap_or(0);
                if let Some((before, other)) = last.insert(domain, (place, node)) {
                    prop_assert!(before <= place, "{other} and {node}");
                }
            }
        }
    }

    #[test]
    fn a_value_at_the_bind_is_final(world in world(), binds in vec((0..5_usize, 0..14_usize), 1..8)) {
        let mut world = world.at_rest();
        for (set, on) in binds {
            let set = format!("s{}", set % world.sets.len());
            let node = format!("n{:02}", on % world.nodes.len());
            let order = world.look().ranking;
            let at = world.bind(&set, &node);
            let name = world.pods[at].name.to_string();
            let written = world.pass();
            if !world.last.as_ref().unwrap().same_order(&order) {
                continue;
            }
            prop_assert!(!written.contains(&name), "{name} on {node}: {written:?}");
            let has_constraints = |known: &SetView| *known.name == *set && !known.constraints.is_empty();
            let spread = world.options.span_zones || world.sets.iter().any(has_constraints);
            prop_assert!(spread || written.is_empty(), "{written:?}");
        }
    }
}

/// The claim: after every removal by our values the skew is at most what it was, or `maxSkew`; pods that start may each
/// add one, and pods that were down for long are gone first.
fn check_spread(world: &World, set: &str, constraint: &Constraint) -> Result<(), TestCaseError> {
    let is_out = |at: &usize| world.pods[*at].is_down(&world.options, world.now) || world.pods[*at].node.is_none();
    let mut order = world.removal(set);
    order.retain(|at| !is_out(at));
    let starting = order.iter().filter(|at| !world.pods[**at].serves()).count();
    let mut world = world.clone();
    for at in 0..world.pods.len() {
        if !order.contains(&at) {
            world.pods[at].set = None;
        }
    }
    let by_value = |at: &usize| matches!(world.pods[*at].standing, Standing::Ours(_)) || !world.pods[*at].serves();
    let valued = order.iter().take_while(|at| by_value(at)).count();
    let skews = world.skews(set, &constraint.key, &order[..valued]);
    let limit = skews[0].max(constraint.max_skew as usize) + starting;
    prop_assert!(skews.iter().all(|skew| *skew <= limit), "{skews:?} with {constraint:?}, {starting} starting");
    Ok(())
}
