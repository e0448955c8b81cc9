//! Which nodes are ranked, and in which order.

use jiff::SignedDuration;

use super::super::testing::*;
use super::super::*;
use crate::testing::after;

/// `web` with so many pods on nodes of one zone.
fn cluster(pods: &[usize]) -> World {
    let nodes: Vec<_> = (1..=pods.len()).map(|at| format!("a{at}")).collect();
    let pods: Vec<_> = nodes.iter().map(String::as_str).zip(pods.iter().copied()).collect();
    World::of(&[("a", pods.len())]).with(set("web", 10_000), &pods)
}

fn protection(world: &World, node: &str) -> Option<Protection> {
    match world.look().ranking.verdict(node)? {
        Verdict::Protected(protection) => Some(protection.clone()),
        _ => None,
    }
}

#[test]
fn fewer_pods_go_first_and_then_the_name_decides() {
    let world = cluster(&[9, 3, 5, 3]).settled();
    assert_eq!(world.order(), ["a2", "a4", "a3", "a1"]);
}

#[test]
fn nodes_that_are_going_come_first_and_then_drifted_ones() {
    let mut world = cluster(&[1, 9, 9, 9, 9]);
    world.node("a2").node.unschedulable = true;
    world.node("a3").node.taints = vec!["ToBeDeletedByClusterAutoscaler".into()];
    world.node("a4").drifted = true;
    world.node("a5").leaving = true;
    assert_eq!(world.settled().order(), ["a2", "a3", "a5", "a4", "a1"]);
}

#[test]
fn a_node_that_is_to_stay_gets_no_rank_whatever_else_it_is() {
    type Bend = fn(&mut World);
    let kept = |keep| Protection::Node(keep);
    let table: [(&str, Bend, Protection); 9] = [
        ("the node", |world| world.node("a1").keep = Some(Keep::DoNotDisrupt), kept(Keep::DoNotDisrupt)),
        (
            "cordoned as well",
            |world| {
                world.node("a1").keep = Some(Keep::DoNotDisrupt);
                world.node("a1").node.unschedulable = true;
            },
            kept(Keep::DoNotDisrupt),
        ),
        (
            "the autoscaler",
            |world| world.node("a1").keep = Some(Keep::ScaleDownDisabled),
            kept(Keep::ScaleDownDisabled),
        ),
        ("the pool's", |world| world.node("a1").keep = Some(Keep::ConsolidationOff), kept(Keep::ConsolidationOff)),
        (
            "of another pool",
            |world| {
                world.options.pools = Some(["spot".into()].into());
                world.node("a1").pool = Some("metal".into());
            },
            Protection::OtherPool,
        ),
        ("of no pool", |world| world.options.pools = Some(["spot".into()].into()), Protection::OtherPool),
        ("stood down", |world| world.node("a1").stood_down = true, Protection::StoodDown),
        (
            "a pod",
            |world| world.pods[0].hold = Some(PodHold::DoNotDisrupt),
            Protection::Pod { pod: "shop/web-001".into(), hold: PodHold::DoNotDisrupt },
        ),
        (
            "a budget",
            |world| world.pods[0].blocked_since = Some(after(-1)),
            Protection::Budget { pod: "shop/web-001".into() },
        ),
    ];
    for (name, bend, expected) in table {
        let mut world = cluster(&[2, 2]);
        bend(&mut world);
        assert_eq!(protection(&world, "a1"), Some(expected), "{name}");
        assert!(world.look().desired[..2].iter().all(Option::is_none), "{name}");
    }
}

#[test]
fn consolidation_that_is_off_does_not_keep_a_node_that_goes_anyway() {
    for bend in [|node: &mut NodeFacts| node.drifted = true, |node: &mut NodeFacts| node.node.unschedulable = true] {
        let mut world = cluster(&[2, 2]);
        world.node("a1").keep = Some(Keep::ConsolidationOff);
        bend(world.node("a1"));
        assert_eq!(protection(&world, "a1"), None);
    }
}

#[test]
fn a_budget_that_is_used_up_for_a_moment_takes_no_rank_away() {
    let mut world = cluster(&[2, 2]).settled();
    world.pods[0].blocked_since = Some(world.now);
    assert_eq!(world.pass().len(), 0);
    world.now = after(299);
    assert_eq!(world.pass().len(), 0);
    world.now = after(300);
    assert_eq!(world.pass().len(), 2, "after five minutes it is no moment any more");
    // What has no rank gets none while a budget is used up, so that a restart changes nothing.
    world.pods[0].blocked_since = Some(world.now);
    assert_eq!(world.pass().len(), 0);
    world.pods[0].blocked_since = None;
    assert_eq!(world.pass().len(), 2);
}

#[test]
fn pods_that_go_with_their_node_and_pods_that_are_gone_do_not_count() {
    let mut world = cluster(&[4, 2]);
    for at in 0..3 {
        world.pods[at].movable = false;
    }
    assert_eq!(world.clone().settled().order(), ["a1", "a2"]);
    world.pods[0].movable = true;
    world.pods[0].terminating = true;
    assert_eq!(world.clone().settled().order(), ["a1", "a2"]);
    for at in 0..3 {
        world.pods[at] = CostPod { movable: true, terminating: false, ..world.pods[at].clone() };
    }
    assert_eq!(world.settled().order(), ["a2", "a1"]);
}

#[test]
fn a_node_keeps_its_place_until_it_is_clearly_fuller_than_one_behind_it() {
    let mut world = cluster(&[8, 8, 8]).settled();
    let ranks: Vec<_> = ["a1", "a2", "a3"].map(|node| world.last.as_ref().unwrap().rank_of(node)).into();
    for _ in 0..4 {
        world.bind("web", "a1");
        assert_eq!(world.pass().len(), 0);
    }
    assert_eq!(world.order(), ["a1", "a2", "a3"], "12 and 8 are not clearly different");
    world.bind("web", "a1");
    let written = world.pass();
    assert_eq!(world.order(), ["a2", "a3", "a1"]);
    assert_eq!(written.len(), 13, "the one that moved is written, and no other");
    let last = world.last.as_ref().unwrap();
    assert_eq!([last.rank_of("a2"), last.rank_of("a3")], [ranks[1], ranks[2]]);
    // And it does not come back at the first pod less.
    world.ready();
    world.remove("web", 8);
    world.pass();
    assert_eq!(world.placement("web"), [("a1", 13), ("a3", 8)].into());
    assert_eq!(world.order(), ["a2", "a3", "a1"]);
}

#[test]
fn of_two_nodes_in_the_wrong_order_the_one_with_fewer_pods_moves() {
    let mut world = cluster(&[2, 3]).settled();
    for _ in 0..9 {
        world.bind("web", "a1");
    }
    assert_eq!(world.pass().len(), 3);
    assert_eq!(world.order(), ["a2", "a1"]);
}

#[test]
fn a_node_that_comes_goes_to_the_end_until_it_has_settled() {
    let mut world = cluster(&[8, 9, 9]).settled();
    world.nodes.insert("a0".into(), NodeFacts { created: world.now, ..node("a0", "a") });
    assert_eq!(world.pass().len(), 0);
    assert_eq!(world.order(), ["a1", "a2", "a3", "a0"]);
    for _ in 0..3 {
        world.bind("web", "a0");
        assert_eq!(world.pass().len(), 0, "what is bound there has its value");
    }
    world.now += SignedDuration::from_secs(300);
    assert_eq!(world.pass().len(), 3);
    assert_eq!(world.order(), ["a0", "a1", "a2", "a3"]);
}

#[test]
fn a_node_that_comes_and_fills_is_written_by_nothing_but_its_binds() {
    let mut world = cluster(&[8, 9, 9]).settled();
    world.nodes.insert("a0".into(), NodeFacts { created: world.now, ..node("a0", "a") });
    for _ in 0..9 {
        world.bind("web", "a0");
        assert_eq!(world.pass().len(), 0);
    }
    world.now += SignedDuration::from_secs(3600);
    assert_eq!(world.pass().len(), 0);
}

#[test]
fn no_more_nodes_are_ranked_than_may_be_and_the_emptiest_are() {
    let mut world = cluster(&[5, 4, 3, 2, 1]);
    world.options.max_nodes = 3;
    assert_eq!(world.clone().settled().order(), ["a5", "a4", "a3"]);
    world.node("a1").node.unschedulable = true;
    assert_eq!(world.settled().order(), ["a1", "a5", "a4"]);
}

#[test]
fn empty_nodes_take_only_places_that_are_free() {
    let mut world = cluster(&[0, 4, 3, 0, 0]);
    world.options.max_nodes = 3;
    assert_eq!(world.clone().settled().order(), ["a1", "a3", "a2"]);
    world.options.max_nodes = 1;
    assert_eq!(world.settled().order(), ["a3"]);
}

#[test]
fn a_ranked_node_that_becomes_protected_costs_its_own_pods_only() {
    let mut world = cluster(&[30; 100]).settled();
    assert_eq!(world.order().len(), 50);
    assert_eq!(world.pass().len(), 0);
    let chosen = world.order()[7].to_owned();
    let own: std::collections::BTreeSet<_> =
        world.pods.iter().filter(|pod| pod.node.as_deref() == Some(&chosen)).map(|pod| pod.name.to_string()).collect();
    world.node(&chosen).keep = Some(Keep::DoNotDisrupt);
    assert_eq!(world.pass(), own);
    assert_eq!(world.values("web", &chosen), [0; 0]);
    world.node(&chosen).keep = None;
    assert_eq!(world.pass().len(), 0, "its place is not given away, but it does not get it back at once either");
}

#[test]
fn free_places_are_given_away_when_a_fifth_is_free_or_to_a_clearly_emptier_node() {
    let mut world = cluster(&[30; 100]).settled();
    let chosen: Vec<String> = world.order().into_iter().map(str::to_owned).collect();
    for (count, node) in chosen.iter().enumerate().take(11) {
        assert_eq!(world.order().len(), 50 - count);
        world.node(node).keep = Some(Keep::DoNotDisrupt);
        world.pass();
    }
    assert_eq!(world.order().len(), 50, "the eleventh makes more than a fifth");
    world.node(&chosen[20]).keep = Some(Keep::DoNotDisrupt);
    world.pass();
    let mut world = world.with(set("small", 9), &[]);
    world.nodes.insert("b1".into(), node("b1", "b"));
    world.run("small", "b1");
    assert_eq!(world.pass().len(), 1);
    assert_eq!(world.order()[0], "b1");
}

#[test]
fn all_ranks_are_found_on_the_pods() {
    let mut world = cluster(&[9, 3, 5, 3, 30, 12, 12, 12]).settled();
    for _ in 0..2 {
        world.bind("web", "a2");
    }
    world.pass();
    let before = world.last.take().unwrap();
    assert_eq!(before.renumbered, 0);
    assert_eq!(world.pass().len(), 0);
    assert_eq!(world.last, Some(before), "nothing but the pods tells the ranks");
}

#[test]
fn values_that_are_half_written_are_finished_and_not_begun_anew() {
    let mut world = cluster(&[8, 8, 8]).settled();
    for _ in 0..9 {
        world.run("web", "a1");
    }
    let looked = world.look();
    assert_eq!(looked.writes.len(), 17, "a1 is to move");
    let rank = looked.ranking.rank_of("a1");
    for (done, at) in looked.writes.iter().enumerate() {
        let again = world.look();
        assert_eq!((again.writes.len(), again.ranking.rank_of("a1")), (17 - done, rank), "{done}");
        world.pods[*at].standing = Standing::Ours(looked.desired[*at].unwrap());
    }
    assert_eq!(world.pass().len(), 0);
}

#[test]
fn two_nodes_of_one_rank_are_told_apart_where_fewer_values_say_so() {
    let mut world = cluster(&[3, 2, 4]).settled();
    let rank = world.last.as_ref().unwrap().rank_of("a1").unwrap();
    for at in 3..5 {
        world.pods[at].standing = Standing::Ours(rank);
    }
    assert_eq!(world.pass(), ["web-004".to_owned(), "web-005".to_owned()].into());
    assert_eq!(world.pass().len(), 0);
}

#[test]
fn what_changed_is_told_by_node() {
    let mut world = cluster(&[3, 3, 3]).settled();
    let before = world.last.clone().unwrap();
    assert_eq!(before.neighbours("a2"), (Some("a1"), Some("a3")));
    world.node("a2").keep = Some(Keep::DoNotDisrupt);
    world.nodes.insert("a4".into(), node("a4", "a"));
    world.pass();
    let after = world.last.as_ref().unwrap();
    assert_eq!(after.changed_since(&before), ["a2", "a4"]);
    assert!(!after.same_order(&before));
    assert_eq!(after.changed_since(after), [""; 0]);
}

#[test]
fn of_nodes_without_a_rank_only_those_change_where_belay_stands_down() {
    let mut world = cluster(&[3, 3]);
    world.options.max_nodes = 1;
    let mut world = world.settled();
    assert!(matches!(world.last.as_ref().unwrap().verdict("a2"), Some(Verdict::Waiting { .. })));
    let mut changed_by = |bend: fn(&mut NodeFacts)| {
        let before = world.last.clone().unwrap();
        bend(world.node("a2"));
        world.pass();
        world.last.as_ref().unwrap().changed_since(&before).len()
    };
    assert_eq!(changed_by(|node| node.keep = Some(Keep::DoNotDisrupt)), 0, "pods there are worth the same");
    assert_eq!(changed_by(|node| node.keep = None), 0);
    assert_eq!(changed_by(|node| node.stood_down = true), 1);
    assert_eq!(changed_by(|node| node.stood_down = false), 1);
}
