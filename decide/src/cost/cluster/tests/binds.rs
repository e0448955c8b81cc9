//! Values at binds, and binds that were answered and not seen yet.

use jiff::SignedDuration;

use super::super::*;
use super::api::*;
use crate::cost::Standing;
use crate::cost::testing::{HOSTNAME, ZONE, over};

/// A zone each with one node, and a ReplicaSet that is to be spread over them.
fn zones() -> (Api, Cluster) {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("b1", "b"), ("c1", "c")]);
    api = api.with_set("web", &[]);
    api.set("web").constraints = vec![over(ZONE, 1)];
    let mut cluster = api.cluster();
    cluster.look(api.now);
    (api, cluster)
}

/// The webhook answers a bind.
fn answer(api: &mut Api, cluster: &mut Cluster, name: &PodName, node: &str) -> Option<i32> {
    let coming = api.pods[name].pod.clone();
    let value = cluster.value_at_bind(&coming, node, api.now);
    cluster.assume(&coming, node, value, api.now);
    api.bind(name, node, value);
    value
}

#[test]
fn of_a_burst_that_is_bound_before_any_is_seen_bound_none_asks_for_a_write() {
    for (label, is_seen) in [("seen as it was created", true), ("not seen at all", false)] {
        let (mut api, mut cluster) = zones();
        let names: Vec<PodName> = (0..30).map(|_| api.create("web")).collect();
        for name in names.iter().filter(|_| is_seen) {
            api.tell_pod(&mut cluster, name);
        }
        cluster.look(api.now);
        let values: BTreeSet<_> = names
            .iter()
            .zip(["a1", "b1", "c1"].into_iter().cycle())
            .map(|(name, node)| answer(&mut api, &mut cluster, name, node).expect("it is to be spread"))
            .collect();
        assert!(values.len() > 20, "{label}: each height has its own values: {values:?}");
        for name in names.iter().rev() {
            api.tell_pod(&mut cluster, name);
        }
        cluster.look(api.now);
        assert_eq!(cluster.asking(), BTreeSet::new(), "{label}");
        assert!(cluster.assumed.is_empty(), "{label}: all were seen");
        for name in &names {
            api.serve(name);
            api.tell_pod(&mut cluster, name);
        }
        for minutes in [0, 5, 10, 15] {
            api.now += SignedDuration::from_mins(minutes);
            cluster.look(api.now);
            assert_eq!(cluster.asking(), BTreeSet::new(), "{label}, {minutes} minutes later");
        }
    }
}

#[test]
fn a_burst_that_is_seen_while_it_is_bound_costs_nothing_either() {
    let (mut api, mut cluster) = zones();
    let names: Vec<PodName> = (0..30).map(|_| api.create("web")).collect();
    let mut lagging = std::collections::VecDeque::new();
    for (at, (name, node)) in names.iter().zip(["a1", "b1", "c1"].into_iter().cycle()).enumerate() {
        answer(&mut api, &mut cluster, name, node);
        lagging.push_back(name.clone());
        while lagging.len() > at % 5 {
            let seen = lagging.pop_front().expect("it is not empty");
            api.tell_pod(&mut cluster, &seen);
        }
        cluster.look(api.now);
        assert_eq!(cluster.asking(), BTreeSet::new(), "after {name:?}");
    }
}

#[test]
fn a_bind_that_failed_is_forgotten() {
    let (mut api, mut cluster) = zones();
    let (failed, next) = (api.create("web"), api.create("web"));
    for name in [&failed, &next] {
        api.tell_pod(&mut cluster, name);
    }
    let coming = |name: &PodName| api.pods[name].pod.clone();
    let first = cluster.value_at_bind(&coming(&failed), "a1", api.now);
    cluster.assume(&coming(&failed), "a1", first, api.now);
    let at = |cluster: &Cluster, seconds| {
        cluster.value_at_bind(&coming(&next), "a1", api.now + SignedDuration::from_secs(seconds))
    };
    assert!(at(&cluster, 0) < first, "it goes on top of the other");
    assert_eq!(at(&cluster, 29), at(&cluster, 0));
    assert_eq!(at(&cluster, 30), first, "as if the other never was");
    // It is bound elsewhere at last: the last answer counts.
    cluster.assume(&coming(&failed), "b1", at(&cluster, 30), api.now + SignedDuration::from_secs(31));
    assert_eq!(at(&cluster, 32), first);
    assert_eq!(cluster.assumed.len(), 1);
    cluster.look(api.now + SignedDuration::from_mins(5));
    assert!(cluster.assumed.is_empty());
}

#[test]
fn a_bind_is_forgotten_with_its_pod() {
    let (mut api, mut cluster) = zones();
    for is_seen in [true, false] {
        let (gone, next) = (api.create("web"), api.create("web"));
        if is_seen {
            api.tell_pod(&mut cluster, &gone);
        }
        let alone = cluster.value_at_bind(&api.pods[&next].pod, "a1", api.now);
        answer(&mut api, &mut cluster, &gone, "a1");
        assert!(cluster.value_at_bind(&api.pods[&next].pod, "a1", api.now) < alone);
        // Seen bound and gone, or only gone.
        if !is_seen {
            api.tell_pod(&mut cluster, &gone);
        }
        cluster.remove_pod(&gone.0, &gone.1);
        assert!(cluster.assumed.is_empty());
        assert_eq!(cluster.value_at_bind(&api.pods[&next].pod, "a1", api.now), alone);
        api.pods.clear();
    }
}

#[test]
fn an_answer_for_a_pod_that_is_seen_bound_says_nothing_more() {
    let (mut api, mut cluster) = zones();
    let (bound, next) = (api.create("web"), api.create("web"));
    answer(&mut api, &mut cluster, &bound, "a1");
    api.tell_pod(&mut cluster, &bound);
    let expected = cluster.value_at_bind(&api.pods[&next].pod, "b1", api.now);
    // A second scheduler asks late, and the API server will refuse it.
    let late = CostPod { node: None, ..api.pods[&bound].pod.clone() };
    cluster.assume(&late, "b1", Some(-9999), api.now);
    assert_eq!(cluster.value_at_bind(&api.pods[&next].pod, "b1", api.now), expected);
}

#[test]
fn a_value_at_bind_is_never_put_over_somebody_elses() {
    let (mut api, mut cluster) = zones();
    let name = api.create("web");
    api.tell_pod(&mut cluster, &name);
    let coming = |standing| CostPod { standing, ..api.pods[&name].pod.clone() };
    let table = [
        (Standing::Absent, true),
        (Standing::Theirs { value: 5, replaced: false }, false),
        (Standing::Theirs { value: 5, replaced: true }, false),
        (Standing::Stripped(-5), false),
        (Standing::GivenUp, false),
        (Standing::Ours(-5), false),
    ];
    for (standing, expected) in table {
        assert_eq!(cluster.value_at_bind(&coming(standing), "a1", api.now).is_some(), expected, "{standing:?}");
    }
    // Read live: the pod is of a ReplicaSet that the cluster does not know, or of none.
    for set in [Some("x-set".into()), None] {
        assert_eq!(cluster.value_at_bind(&CostPod { set, ..coming(Standing::Absent) }, "a1", api.now), None);
    }
}

#[test]
fn a_pod_that_is_bound_gets_its_nodes_rank_and_needs_no_write_after() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("a2", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 3), ("a2", 1)]);
    api.node("b1").keep = Some(Keep::DoNotDisrupt);
    let mut cluster = api.cluster();
    api.settle(&mut cluster);
    for node in ["a1", "a2", "b1"] {
        let name = api.create("web");
        let value = answer(&mut api, &mut cluster, &name, node);
        assert_eq!(value, cluster.ranking().rank_of(node), "{node}");
        api.tell_pod(&mut cluster, &name);
        cluster.look(api.now);
        assert_eq!(cluster.asking(), BTreeSet::new(), "{node}");
    }
    assert_eq!(cluster.ranking().rank_of("b1"), None);
}

#[test]
fn an_assumed_pod_of_another_set_is_no_sibling() {
    let (mut api, mut cluster) = zones();
    api = api.with_set("api", &[]);
    api.set("api").constraints = vec![over(ZONE, 1), over(HOSTNAME, 1)];
    api.tell_all(&mut cluster);
    let (web, other) = (api.create("web"), api.create("api"));
    let alone = cluster.value_at_bind(&api.pods[&web].pod, "a1", api.now);
    answer(&mut api, &mut cluster, &other, "a1");
    assert_eq!(cluster.value_at_bind(&api.pods[&web].pod, "a1", api.now), alone);
}

#[test]
fn a_bind_is_believed_while_the_pod_is_still_seen_without_a_node() {
    let (mut api, mut cluster) = zones();
    let (coming, next) = (api.create("web"), api.create("web"));
    let alone = cluster.value_at_bind(&api.pods[&next].pod, "a1", api.now);
    let mut seen = api.clone();
    answer(&mut api, &mut cluster, &coming, "a1");
    let after_it = cluster.value_at_bind(&api.pods[&next].pod, "a1", api.now);
    assert!(after_it < alone);
    // Its status was written meanwhile, and that is what the watch brings first.
    seen.tell_pod(&mut cluster, &coming);
    seen.change(&coming, |_| {});
    seen.tell_pod(&mut cluster, &coming);
    assert_eq!(cluster.value_at_bind(&api.pods[&next].pod, "a1", api.now), after_it);
    api.tell_pod(&mut cluster, &coming);
    assert_eq!(cluster.value_at_bind(&api.pods[&next].pod, "a1", api.now), after_it, "and bound it counts once");
}

#[test]
fn pods_that_are_still_to_be_written_are_not_placed_for_the_sake_of_one_that_is_bound() {
    let (mut api, mut cluster) = zones();
    // Bound while no webhook answered.
    for (at, node) in ["a1", "b1", "c1"].into_iter().cycle().take(30).enumerate() {
        let name = api.create("web");
        api.bind(&name, node, None);
        api.tell_pod(&mut cluster, &name);
        assert_eq!(api.pods.len(), at + 1);
    }
    let coming = api.create("web");
    let coming = api.pods[&coming].pod.clone();
    let alone = cluster.value_at_bind(&coming, "a1", api.now).expect("it is to be spread");
    assert_eq!(alone / 2048, -1, "as if it were the first: the controller places them all together");
}

#[test]
fn a_pod_that_waited_long_for_a_node_gets_its_value_all_the_same() {
    let (mut api, mut cluster) = zones();
    let name = api.create("web");
    api.tell_pod(&mut cluster, &name);
    api.now += SignedDuration::from_hours(1);
    cluster.look(api.now);
    assert!(answer(&mut api, &mut cluster, &name, "a1").is_some());
    // A sibling that is bound next reckons with it, though it is not seen bound.
    let (first, second) = (name, api.create("web"));
    let other = answer(&mut api, &mut cluster, &second, "a1").expect("it is to be spread");
    assert_ne!(api.pods[&first].pod.standing, Standing::Ours(other));
}
