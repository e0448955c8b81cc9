//! Which values pods get.

use super::super::testing::*;
use super::super::*;
use crate::testing::after;
use crate::view::PodPhase;

fn spread(name: &str, replicas: i32) -> SetView {
    SetView { constraints: vec![over(ZONE, 1)], ..set(name, replicas) }
}

/// The nodes that a scale-down empties, in the order in which its pods go.
fn nodes_in_turn(world: &World, set: &str) -> Vec<String> {
    let turns = world.removal(set).into_iter();
    turns.map(|at| world.pods[at].node.as_deref().unwrap_or("").to_owned()).collect()
}

#[test]
fn a_scale_down_empties_one_node_after_the_other() {
    let mut world = World::of(&[("a", 3)]).with(set("web", 9), &[("a1", 3), ("a2", 3), ("a3", 3)]).settled();
    world.remove("web", 3);
    assert_eq!(world.placement("web"), [("a2", 3), ("a3", 3)].into());
    assert_eq!(world.pass().len(), 0);
    world.bind("web", "a1");
    world.ready();
    assert_eq!(world.pass().len(), 0);
    world.remove("web", 2);
    assert_eq!(world.placement("web"), [("a2", 2), ("a3", 3)].into());
}

#[test]
fn every_pod_on_a_node_has_its_rank() {
    let world = World::of(&[("a", 2)]).with(set("web", 4), &[("a1", 1), ("a2", 2)]).settled();
    let rank = |node| world.last.as_ref().unwrap().rank_of(node).unwrap();
    assert_eq!(world.values("web", "a1"), [rank("a1")]);
    assert_eq!(world.values("web", "a2"), [rank("a2"); 2]);
}

#[test]
fn a_set_whose_pods_are_not_to_be_steered_gets_no_values() {
    type Bend = fn(&mut World);
    let table: [(&str, Bend, Option<Withheld>); 4] = [
        ("plain", |_| {}, None),
        ("stood down", |world| world.sets[0].stood_down = true, Some(Withheld::StoodDown)),
        (
            "somebody sends a pod first",
            |world| world.pods[1].standing = Standing::Theirs { value: -1, replaced: false },
            Some(Withheld::Steered { pod: "web-002".into() }),
        ),
        (
            "somebody keeps a pod longer",
            |world| world.pods[1].standing = Standing::Theirs { value: 5, replaced: false },
            None,
        ),
    ];
    for (name, bend, expected) in table {
        let mut world = World::of(&[("a", 2)]).with(set("web", 4), &[("a1", 2), ("a2", 2)]);
        bend(&mut world);
        let pods: Vec<&CostPod> = world.pods.iter().collect();
        assert_eq!(withheld(&world.sets[0], &pods), expected, "{name}");
        let looked = world.look();
        assert_eq!(looked.desired.iter().all(Option::is_none), expected.is_some(), "{name}");
        assert_eq!(looked.desired[3].is_none(), expected.is_some(), "{name}");
    }
}

#[test]
fn a_set_of_one_pod_or_none_gets_no_values() {
    for (replicas, pods, expected) in [(0, 0, true), (0, 1, true), (1, 1, true), (2, 1, false), (1, 2, false)] {
        let mut world = World::of(&[("a", 1)]).with(set("web", replicas), &[("a1", pods)]);
        // Those that end do not count.
        let ending = world.run("web", "a1");
        world.pods[ending].terminating = true;
        let seen: Vec<&CostPod> = world.pods.iter().collect();
        let why = withheld(&world.sets[0], &seen);
        assert_eq!(why, expected.then_some(Withheld::SinglePod), "{replicas}, {pods}");
        assert_eq!(world.look().writes.is_empty(), replicas < 2, "{replicas}, {pods}");
    }
}

#[test]
fn no_value_is_taken_off_while_a_set_shrinks_and_all_that_ought_to_go_are_once_it_has() {
    for (replicas, written) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
        let mut world = World::of(&[("a", 2)]).with(set("web", 6), &[("a1", 3), ("a2", 3)]).settled();
        world.sets[0].replicas = replicas;
        // That their node loses its rank has to wait as well.
        for node in ["a1", "a2"] {
            world.node(node).keep = Some(Keep::DoNotDisrupt);
        }
        for left in (replicas + 1..=6).rev() {
            assert_eq!(world.members("web").len() as i32, left);
            assert_eq!(world.pass().len(), 0, "{left} of {replicas}");
            world.remove("web", 1);
        }
        assert_eq!(world.pass().len(), written, "{replicas}");
        assert!(world.pods.iter().all(|pod| pod.standing == Standing::Absent));
    }
}

#[test]
fn while_a_set_shrinks_another_value_is_written_and_a_new_one_and_none_stays_that_does_harm() {
    let mut world = World::of(&[("a", 2)]).with(set("web", 8), &[("a1", 5), ("a2", 3)]).settled();
    world.sets[0].replicas = 2;
    world.pods[0].standing = Standing::Ours(-7);
    world.pods[1].standing = Standing::Absent;
    world.pods[2].priority = view::LOWEST_PRIORITY - 1;
    world.pods[5].standing = Standing::Ours(BOUND);
    world.node("a2").keep = Some(Keep::DoNotDisrupt);
    let names = ["web-001", "web-002", "web-003", "web-006"].map(str::to_owned);
    assert_eq!(world.pass(), names.into());
    let rank = world.last.as_ref().and_then(|last| last.rank_of("a1"));
    assert_eq!([0, 1, 2, 5].map(|at| world.pods[at].standing.written()), [rank, rank, None, None]);
}

#[test]
fn a_pod_gets_no_value_that_is_not_to_have_one() {
    type Bend = fn(&mut CostPod);
    let table: [(&str, Bend, bool); 7] = [
        ("serving", |_| {}, true),
        ("starting", |pod| pod.readiness = Readiness::NotReady(Some(after(-9))), true),
        ("not bound", |pod| pod.node = None, false),
        ("of another owner", |pod| pod.set = None, false),
        ("terminating", |pod| pod.terminating = true, false),
        ("finished", |pod| pod.phase = PodPhase::Succeeded, false),
        ("next to nothing to Karpenter", |pod| pod.priority = view::LOWEST_PRIORITY - 1, false),
    ];
    for constraints in [vec![], vec![over(ZONE, 1)]] {
        for (name, bend, expected) in table {
            let mut world = World::of(&[("a", 2), ("b", 1)]).with(set("web", 3), &[("a1", 1), ("a2", 1), ("b1", 1)]);
            world.sets[0].constraints.clone_from(&constraints);
            bend(&mut world.pods[0]);
            assert_eq!(world.look().writes.contains(&0), expected, "{name}");
        }
    }
}

#[test]
fn values_that_are_not_ours_stay_and_are_told_once() {
    let mut world = World::of(&[("a", 2)]).with(set("web", 4), &[("a1", 2), ("a2", 2)]).settled();
    world.pods[0].standing = Standing::Theirs { value: 7, replaced: true };
    world.pods[1].standing = Standing::GivenUp;
    assert_eq!(world.look().writes, [0], "the record is given up, once");
    world.pass();
    assert_eq!(world.pods[0].standing, Standing::Theirs { value: 7, replaced: false });
    assert_eq!(world.pass().len(), 0);
    world.sets[0].stood_down = true;
    world.pass();
    let standing: Vec<_> = world.pods.iter().map(|pod| pod.standing).collect();
    let theirs = Standing::Theirs { value: 7, replaced: false };
    assert_eq!(standing, [theirs, Standing::GivenUp, Standing::Absent, Standing::Absent]);
}

#[test]
fn a_spread_set_is_taken_from_the_over_full_zone_and_from_its_first_node() {
    let world = World::of(&[("a", 2), ("b", 1), ("c", 1)])
        .with(spread("web", 9), &[("a1", 3), ("a2", 1), ("b1", 2), ("c1", 2)])
        .settled();
    assert_eq!(world.order(), ["a2", "b1", "c1", "a1"]);
    assert_eq!(nodes_in_turn(&world, "web"), ["a2", "a1", "b1", "c1", "a1", "b1", "c1", "a1"]);
}

#[test]
fn two_workloads_over_three_zones_keep_their_skew_down_to_one() {
    let pods = [("a1", 3), ("b1", 3), ("c1", 3)];
    let world = World::of(&[("a", 1), ("b", 1), ("c", 1)]);
    let mut world = world.with(spread("web", 9), &pods).with(spread("api", 9), &pods).settled();
    for set in ["web", "api"] {
        assert!(world.skews(set, ZONE, &world.removal(set)).iter().all(|skew| *skew <= 1));
    }
    for _ in 0..8 {
        for set in ["web", "api"] {
            world.remove(set, 1);
            assert!(world.skews(set, ZONE, &[])[0] <= 1);
        }
        assert_eq!(world.pass().len(), 0, "a scale-down costs no write");
    }
}

#[test]
fn without_a_constraint_zones_count_only_where_that_is_asked_for() {
    let mut world = World::of(&[("a", 1), ("b", 1)]).with(set("web", 4), &[("a1", 2), ("b1", 2)]);
    assert_eq!(nodes_in_turn(&world.clone().settled(), "web"), ["a1", "a1", "b1", "b1"]);
    world.options.span_zones = true;
    assert_eq!(nodes_in_turn(&world.settled(), "web"), ["a1", "b1", "a1", "b1"]);
}

#[test]
fn a_wish_to_keep_nodes_level_is_not_kept_and_a_demand_is() {
    for (hard, expected) in [(false, ["a1", "a1", "a2", "a2"]), (true, ["a1", "a2", "a1", "a2"])] {
        let mut world = World::of(&[("a", 2)]).with(set("web", 4), &[("a1", 2), ("a2", 2)]);
        world.sets[0].constraints = vec![Constraint { hard, ..over(HOSTNAME, 1) }];
        assert_eq!(nodes_in_turn(&world.settled(), "web"), expected, "{hard}");
    }
}

#[test]
fn a_wish_to_be_spread_over_zones_is_kept() {
    let mut world = World::of(&[("a", 1), ("b", 1)]).with(set("web", 4), &[("a1", 2), ("b1", 2)]);
    world.sets[0].constraints = vec![Constraint { hard: false, ..over(ZONE, 1) }];
    assert_eq!(nodes_in_turn(&world.settled(), "web"), ["a1", "b1", "a1", "b1"]);
}

#[test]
fn on_a_protected_node_only_the_tier_is_written() {
    let pods = [("a1", 2), ("a2", 2), ("b1", 2)];
    let mut world = World::of(&[("a", 2), ("b", 1)]).with(spread("web", 6), &pods);
    world.node("a1").keep = Some(Keep::DoNotDisrupt);
    let world = world.settled();
    assert_eq!(world.values("web", "a1"), [-4096, -2048]);
    assert_eq!(nodes_in_turn(&world, "web"), ["a2", "a2", "b1", "a1", "b1", "a1"]);
}

#[test]
fn on_a_node_that_is_left_to_another_controller_nothing_is_written() {
    let pods = [("a1", 2), ("a2", 2), ("b1", 2)];
    let mut world = World::of(&[("a", 2), ("b", 1)]).with(spread("web", 6), &pods).settled();
    world.node("a1").stood_down = true;
    world.pass();
    assert_eq!(world.values("web", "a1"), [0; 0]);
    assert_eq!(world.values("web", "a2").len(), 2);
}

#[test]
fn constraints_that_no_heights_keep_are_kept_by_the_order_itself() {
    for pods in [[("a1", 2), ("a2", 1), ("b1", 1), ("b2", 1)], [("a1", 1), ("a2", 2), ("b1", 2), ("b2", 1)]] {
        let both = SetView { constraints: vec![over(ZONE, 1), over(HOSTNAME, 1)], ..set("web", 6) };
        let world = World::of(&[("a", 2), ("b", 2)]).with(both, &pods).settled();
        for key in [ZONE, HOSTNAME] {
            let skews = world.skews("web", key, &world.removal("web"));
            assert!(skews.iter().all(|skew| *skew <= 1), "{key}: {skews:?}");
        }
    }
}

#[test]
fn among_pods_of_one_node_the_youngest_goes_first() {
    let mut world = World::of(&[("a", 1), ("b", 1)]).with(spread("web", 4), &[("a1", 3), ("b1", 1)]);
    world.pods[1].created = after(-1000);
    world.pods[2].created = after(-2000);
    let world = world.settled();
    let first: Vec<_> = world.removal("web").into_iter().filter(|at| *at < 3).collect();
    assert_eq!(first, [1, 2, 0]);
}

#[test]
fn a_pod_that_is_on_its_way_out_is_not_written_to() {
    let mut world = World::of(&[("a", 2)]).with(set("web", 4), &[("a1", 2), ("a2", 2)]).settled();
    world.pods[0].terminating = true;
    world.pods[0].standing = Standing::Stripped(-9);
    world.pods[1].phase = PodPhase::Failed;
    world.pods[1].standing = Standing::Theirs { value: -9, replaced: true };
    world.sets[0].stood_down = true;
    assert_eq!(world.look().writes, [2, 3]);
}

#[test]
fn ours_end_where_taking_more_would_leave_a_zone_behind() {
    let mut world =
        World::of(&[("a", 1), ("b", 1), ("c", 1)]).with(spread("web", 9), &[("a1", 3), ("b1", 3), ("c1", 3)]);
    for at in 0..3 {
        world.pods[at].standing = Standing::Theirs { value: 10, replaced: false };
    }
    let world = world.settled();
    assert_eq!([world.values("web", "b1").len(), world.values("web", "c1").len()], [1, 1]);
}

#[test]
fn a_pod_that_has_been_down_for_long_is_not_counted_on() {
    let mut world = World::of(&[("a", 2), ("b", 1)]).with(spread("web", 5), &[("a1", 1), ("a2", 2), ("b1", 2)]);
    let down = world.pods.iter_mut().find(|pod| pod.node.as_deref() == Some("a1")).unwrap();
    down.readiness = Readiness::NotReady(Some(after(-300)));
    let world = world.settled();
    assert_eq!(world.values("web", "a1"), [0; 0]);
    assert_eq!(world.skews("web", ZONE, &world.removal("web")), [1, 0, 1, 0, 1, 0]);
}

#[test]
fn a_pod_that_is_down_keeps_its_tier_for_when_it_serves_again() {
    let pods = [("a1", 2), ("b1", 2)];
    let mut world = World::of(&[("a", 1), ("b", 1)]).with(spread("web", 4), &pods).settled();
    world.pods[0].readiness = Readiness::NotReady(Some(after(-300)));
    assert_eq!(world.pass().len(), 0);
    world.pods[0].readiness = Readiness::Ready(Some(after(0)));
    assert_eq!(world.pass().len(), 0);
}

#[test]
fn a_pod_that_is_bound_gets_its_value_then_and_is_not_written_again() {
    for constraints in [vec![], vec![over(ZONE, 1)]] {
        let mut world = World::of(&[("a", 1), ("b", 1), ("c", 1)]).with(set("web", 30), &[]);
        world.sets[0].constraints = constraints;
        world.pass();
        for _ in 0..5 {
            for node in ["a1", "b1", "c1"] {
                let at = world.bind("web", node);
                assert!(world.pods[at].standing.written().is_some());
                assert_eq!(world.pass().len(), 0);
            }
        }
        world.ready();
        assert_eq!(world.pass().len(), 0);
    }
}

#[test]
fn nothing_is_stamped_over_what_somebody_else_set() {
    let world = World::of(&[("a", 1)]).with(set("web", 3), &[("a1", 2)]).settled();
    let ground =
        Ground { nodes: &world.nodes, ranking: world.last.as_ref().unwrap(), options: &world.options, now: world.now };
    let pods: Vec<&CostPod> = world.pods.iter().collect();
    let coming = |standing| CostPod { node: None, standing, ..pod("web-new", "web", "a1") };
    let at_bind = |standing| at_bind(&world.sets[0], &pods, &coming(standing), "a1", &ground);
    assert_eq!(at_bind(Standing::Absent), world.pods[0].standing.written());
    assert_eq!(at_bind(Standing::Theirs { value: 3, replaced: false }), None);
    assert_eq!(at_bind(Standing::GivenUp), None);
}

#[test]
fn a_set_with_more_pods_than_there_are_tiers_keeps_its_skew_too() {
    let pods = [("a1", 225), ("a2", 225), ("b1", 450), ("c1", 449)];
    let world = World::of(&[("a", 2), ("b", 1), ("c", 1)]).with(spread("web", 2000), &pods);
    // What tells the nodes' ranks: the values of a tall set do not.
    let mut world = world.with(set("api", 8), &[("a1", 2), ("a2", 2), ("b1", 2), ("c1", 2)]).settled();
    assert!(world.skews("web", ZONE, &world.removal("web")).iter().all(|skew| *skew <= 1));
    assert_eq!(world.pass().len(), 0);
    world.bind("web", "c1");
    assert_eq!(world.pass().len(), 0);
    world.remove("web", 500);
    assert_eq!(world.pass().len(), 0, "it stays tall");
}

#[test]
fn constraints_over_zones_and_nodes_are_both_kept() {
    let pods = [("a1", 2), ("a2", 1), ("b1", 1), ("b2", 2), ("c1", 2), ("c2", 1)];
    let mut world = World::of(&[("a", 2), ("b", 2), ("c", 2)]).with(spread("web", 9), &pods);
    world.sets[0].constraints.push(over(HOSTNAME, 1));
    let world = world.settled();
    for key in [ZONE, HOSTNAME] {
        let skews = world.skews("web", key, &world.removal("web"));
        assert!(skews.iter().all(|skew| *skew <= 1), "{key}: {skews:?}");
    }
}
