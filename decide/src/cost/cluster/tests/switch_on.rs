//! A cluster that gets its first values: it takes minutes to write them all, and what was decided stays so.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;
use super::api::*;
use crate::cost::Verdict;
use crate::cost::testing::{node, set};
use crate::testing::runner;

/// Nodes with so many pods each, of these ReplicaSets; whether each has just come.
fn untouched(nodes: &[(usize, usize, bool)]) -> Api {
    let mut api = Api::new(Options::default());
    for name in ["api", "job", "web"] {
        let known = KnownSet { set: set(name, 10_000), deployment: None };
        api.sets.insert(known.set.uid.clone(), known);
    }
    for (at, (pods, first, young)) in nodes.iter().enumerate() {
        let name = format!("n{at:03}");
        let mut facts = node(&name, "a");
        if *young {
            facts.created = api.now - SignedDuration::from_secs(10);
        }
        api.nodes.insert(name.as_str().into(), facts);
        for pod in 0..*pods {
            api.run(["api", "job", "web"][(first + pod) % 3], &name);
        }
    }
    api
}

fn order(cluster: &Cluster) -> Vec<String> {
    cluster.ranking().order().map(str::to_owned).collect()
}

/// Writes one pod after the other, by name, with a look after each. How often each was written.
fn write_all(api: &mut Api, cluster: &mut Cluster) -> BTreeMap<PodName, usize> {
    let mut written = BTreeMap::new();
    while let Some(name) = cluster.asking().pop_first() {
        assert!(api.perform(cluster, &name));
        api.tell_pod(cluster, &name);
        cluster.look(api.now);
        *written.entry(name).or_default() += 1;
        assert!(written.len() <= api.pods.len() && written.values().all(|times| *times < 9), "it never ends");
    }
    written
}

proptest! {
    #![proptest_config(runner(40))]

    #[test]
    fn the_first_order_is_the_one_that_is_written_and_each_pod_once(
        nodes in vec((1..6_usize, 0..3_usize, any::<bool>()), 10..120),
    ) {
        let mut api = untouched(&nodes);
        let mut cluster = api.cluster();
        cluster.look(api.now);
        let first = order(&cluster);
        prop_assert_eq!(first.len(), nodes.len().min(api.options.max_nodes));
        let asking = cluster.asking();
        let written = write_all(&mut api, &mut cluster);
        prop_assert_eq!(order(&cluster), first);
        prop_assert!(written.values().all(|times| *times == 1), "{:?}", written);
        prop_assert_eq!(written.into_keys().collect::<BTreeSet<_>>(), asking);
        // Nothing of that hangs on memory any more.
        let mut begun = api.cluster();
        begun.look(api.now);
        prop_assert_eq!(begun.ranking(), cluster.ranking());
    }
}

#[test]
fn nodes_that_all_have_room_are_ranked_though_only_some_carry_values_and_the_process_is_new() {
    let nodes: Vec<_> = (0..45).map(|at| (1, at % 3, false)).collect();
    let mut api = untouched(&nodes);
    let mut cluster = api.cluster();
    cluster.look(api.now);
    let first = order(&cluster);
    for name in cluster.asking().into_iter().take(42) {
        api.perform(&cluster, &name);
    }
    let mut begun = api.cluster();
    begun.look(api.now);
    assert_eq!(order(&begun).len(), 45);
    assert_eq!(begun.asking().len(), 3, "no more than were left");
    write_all(&mut api, &mut begun);
    assert_eq!(order(&begun).into_iter().collect::<BTreeSet<_>>(), first.into_iter().collect());
}

#[test]
fn what_is_remembered_of_a_node_ends_with_its_rank() {
    let mut api = untouched(&[(1, 0, false), (2, 0, false), (3, 0, false)]);
    let mut cluster = api.cluster();
    cluster.look(api.now);
    assert_eq!(order(&cluster), ["n000", "n001", "n002"]);
    // It keeps its place like one whose values stand, until it is clearly fuller.
    for _ in 0..3 {
        api.run("web", "n000");
    }
    api.tell_all(&mut cluster);
    cluster.look(api.now);
    assert_eq!(order(&cluster), ["n000", "n001", "n002"]);
    api.node("n000").keep = Some(Keep::DoNotDisrupt);
    api.tell_all(&mut cluster);
    cluster.look(api.now);
    assert!(matches!(cluster.ranking().verdict("n000"), Some(Verdict::Protected(_))));
    api.node("n000").keep = None;
    api.tell_all(&mut cluster);
    cluster.look(api.now);
    assert_eq!(order(&cluster), ["n001", "n002", "n000"]);
}
