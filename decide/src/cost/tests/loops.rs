//! Clusters that live: what Belay writes changes what is removed, and that what it writes.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::testing::*;
use super::super::*;
use crate::testing::runner;

/// Where a scheduler would put the next pod of the ReplicaSet: in its emptiest zone if it is to be spread, and there on
/// the emptiest node.
fn emptiest(world: &World, set: &str) -> String {
    let is_spread = world.sets.iter().any(|known| *known.name == *set && !known.constraints.is_empty());
    let placement = world.placement(set);
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, facts) in world.nodes.iter() {
        *zones.entry(&facts.topology[ZONE]).or_default() += placement.get(&**name).unwrap_or(&0);
    }
    let load = |node: &str| world.pods.iter().filter(|pod| pod.node.as_deref() == Some(node)).count();
    let nodes = world.nodes.iter().filter(|(_, facts)| !facts.node.unschedulable);
    let key = |name: &str, facts: &NodeFacts| (if is_spread { zones[&*facts.topology[ZONE]] } else { 0 }, load(name));
    nodes.min_by_key(|(name, facts)| key(name, facts)).map(|(name, _)| name.to_string()).unwrap()
}

/// Scales up one by one, as a scheduler binds. Returns how many pods were written after a bind.
fn scale_up(world: &mut World, set: &str, count: usize) -> usize {
    let mut written = 0;
    for _ in 0..count {
        let node = emptiest(world, set);
        world.bind(set, &node);
        written += world.pass().len();
    }
    world.now += SignedDuration::from_secs(20);
    world.ready();
    written + world.pass().len()
}

fn scale_down(world: &mut World, set: &str, count: usize) -> usize {
    world.remove(set, count);
    world.now += SignedDuration::from_secs(20);
    world.pass().len()
}

fn three_zones(nodes: [usize; 3], spread: bool) -> World {
    let zones: Vec<_> = ["a", "b", "c"].into_iter().zip(nodes).filter(|zone| zone.1 > 0).collect();
    let mut world = World::of(&zones);
    world.pass();
    for name in ["web", "api"] {
        let constraints = if spread { vec![over(ZONE, 1)] } else { Vec::new() };
        world.sets.push(SetView { constraints, ..set(name, 100) });
    }
    world
}

proptest! {
    #![proptest_config(runner(60))]

    #[test]
    fn a_cluster_that_only_shrinks_hardly_changes_its_order(
        nodes in [1..4_usize, 1..4, 1..4],
        spread: bool,
        web in 3..25_usize,
        api in 3..25_usize,
        steps in vec((any::<bool>(), 1..5_usize), 1..24),
    ) {
        let mut world = three_zones(nodes, spread);
        scale_up(&mut world, "web", web);
        scale_up(&mut world, "api", api);
        world.now += SignedDuration::from_hours(1);
        world.pass();
        let mut written: BTreeMap<String, usize> = BTreeMap::new();
        for (first, count) in steps {
            world.remove(if first { "web" } else { "api" }, count);
            for pod in world.pass() {
                *written.entry(pod).or_default() += 1;
            }
        }
        // The first nodes of other zones empty as well and may pass those before them, but nothing goes to and fro.
        prop_assert!(written.values().all(|times| *times == 1), "{written:?}");
        let pods = web + api;
        prop_assert!(written.len() * 4 <= pods, "{} of {pods}", written.len());
    }

    #[test]
    fn a_workload_that_goes_up_and_down_comes_to_rest(
        nodes in [1..4_usize, 0..4, 0..4],
        spread: bool,
        web in 3..20_usize,
        api in 0..20_usize,
        swing in 1..12_usize,
        minutes in 1..20_i64,
    ) {
        let mut world = three_zones(nodes, spread);
        scale_up(&mut world, "api", api);
        scale_up(&mut world, "web", web);
        let mut written = Vec::new();
        for _ in 0..12 {
            let up = scale_up(&mut world, "web", swing);
            world.now += SignedDuration::from_mins(minutes);
            let settled = world.pass().len();
            written.push((up, settled, scale_down(&mut world, "web", swing)));
        }
        let late = &written[8..];
        prop_assert!(late.iter().all(|(up, _, down)| *up + *down == 0), "{written:?}");
        prop_assert!(spread || late.iter().all(|(_, settled, _)| *settled == 0), "{written:?}");
    }
}
