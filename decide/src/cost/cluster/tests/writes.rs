//! Writes that are performed one by one: what was decided for a pod stays so while others are still being written.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;
use super::api::*;
use crate::cost::testing::{HOSTNAME, ZONE, node, over};
use crate::testing::runner;

/// What changes in a cluster at rest.
#[derive(Clone, Debug)]
enum Change {
    Keep(usize),
    Cordon(usize),
    Drift(usize),
    Go(usize),
    Come(usize),
    Pods { set: usize, node: usize, count: usize },
    Leave { node: usize, count: usize },
    Constrain { set: usize, skew: i32 },
    Scale(usize),
    Settle,
}

fn change() -> impl Strategy<Value = Change> {
    let node = 0..6_usize;
    let set = 0..3_usize;
    prop_oneof![
        node.clone().prop_map(Change::Keep),
        node.clone().prop_map(Change::Cordon),
        node.clone().prop_map(Change::Drift),
        node.clone().prop_map(Change::Go),
        (0..3_usize).prop_map(Change::Come),
        (set.clone(), node.clone(), 1..6_usize).prop_map(|(set, node, count)| Change::Pods { set, node, count }),
        (node, 1..6_usize).prop_map(|(node, count)| Change::Leave { node, count }),
        (set.clone(), 0..3_i32).prop_map(|(set, skew)| Change::Constrain { set, skew }),
        set.prop_map(Change::Scale),
        Just(Change::Settle),
    ]
}

fn zone(at: usize) -> &'static str {
    ["a", "b", "c"][at % 3]
}

fn apply(api: &mut Api, change: &Change) {
    let name = |at: &usize| format!("n{at}");
    match change {
        Change::Keep(at) => api.node(&name(at)).keep = Some(Keep::DoNotDisrupt),
        Change::Cordon(at) => api.node(&name(at)).node.unschedulable = true,
        Change::Drift(at) => api.node(&name(at)).drifted = true,
        Change::Go(at) => {
            api.nodes.remove(&*name(at));
            api.pods.retain(|_, known| known.pod.node.as_deref() != Some(&name(at)));
        }
        Change::Come(at) => drop(api.nodes.insert("m".into(), node("m", zone(*at)))),
        Change::Pods { set, node, count } => {
            for _ in 0..*count {
                api.run(&format!("s{set}"), &name(node));
            }
        }
        Change::Leave { node, count } => {
            let on_node = api.pods.iter().filter(|(_, known)| known.pod.node.as_deref() == Some(&name(node)));
            let gone: Vec<PodName> = on_node.map(|(name, _)| name.clone()).take(*count).collect();
            api.pods.retain(|name, _| !gone.contains(name));
        }
        Change::Constrain { set, skew } => {
            let constraints = if *skew == 0 { Vec::new() } else { vec![over(ZONE, *skew)] };
            api.set(&format!("s{set}")).constraints = constraints;
        }
        Change::Scale(set) => api.set(&format!("s{set}")).replicas = 1,
        Change::Settle => api.now += SignedDuration::from_mins(10),
    }
}

prop_compose! {
    /// A cluster at rest: set, node and whether it came lately, for each pod.
    fn at_rest(is_spread: bool)(
        pods in vec((0..3_usize, 0..6_usize, any::<bool>()), 0..40),
        spread in vec(if is_spread { 1..4_usize } else { 0..1 }, 3),
        max_nodes in prop_oneof![2..7_usize, Just(50)],
    ) -> (Api, Cluster) {
        let mut api = Api::new(Options { max_nodes, ..Options::default() });
        for at in 0..6 {
            let name = format!("n{at}");
            api.nodes.insert(name.as_str().into(), node(&name, zone(at)));
        }
        for (at, kind) in spread.iter().enumerate() {
            let name = format!("s{at}");
            api = api.with_set(&name, &[]);
            api.set(&name).constraints = match kind {
                1 => vec![over(ZONE, 1)],
                2 => vec![over(ZONE, 2)],
                3 => vec![over(ZONE, 1), over(HOSTNAME, 2)],
                _ => vec![],
            };
        }
        for (set, node, is_young) in pods {
            let name = api.run(&format!("s{set}"), &format!("n{node}"));
            if is_young {
                let now = api.now;
                api.pod(&name).pod.created = now;
            }
        }
        let mut cluster = api.cluster();
        api.settle(&mut cluster);
        (api, cluster)
    }
}

/// What every pod that asks for a write is to carry.
fn wanted(cluster: &Cluster) -> BTreeMap<PodName, Option<i32>> {
    let asked = |name: PodName| {
        let (_, value) = cluster.asked_of(&name.0, &name.1).expect("it asks");
        (name, value)
    };
    cluster.asking().into_iter().map(asked).collect()
}

proptest! {
    #![proptest_config(runner(300))]

    #[test]
    fn what_one_look_decided_is_all_that_is_written_in_whatever_order_and_however_slowly(
        (mut api, mut cluster) in at_rest(false),
        change in change(),
        picks in vec((any::<prop::sample::Index>(), any::<bool>(), any::<bool>()), 150),
    ) {
        if let Change::Constrain { .. } = change {
            return Ok(());
        }
        apply(&mut api, &change);
        api.relist(&mut cluster);
        let look = cluster.look(api.now);
        let decided = wanted(&cluster);
        let mut left: Vec<PodName> = decided.keys().cloned().collect();
        let mut unseen: Vec<PodName> = Vec::new();
        for (pick, sees, looks) in picks {
            if !left.is_empty() {
                let name = left.swap_remove(pick.index(left.len()));
                prop_assert!(api.perform(&cluster, &name));
                unseen.push(name);
            }
            if sees || left.is_empty() {
                for name in unseen.drain(..) {
                    api.tell_pod(&mut cluster, &name);
                }
            }
            if looks {
                cluster.look(api.now);
            }
            for (name, value) in wanted(&cluster) {
                prop_assert_eq!(decided.get(&name), Some(&value), "{:?}, {} left: {:?}", name, left.len(), look.ranked);
            }
        }
        cluster.look(api.now);
        prop_assert_eq!(wanted(&cluster), BTreeMap::new());
    }

    /// Where tiers change, what was written already may let what stands fit in another way.
    #[test]
    fn tiers_that_are_written_one_by_one_come_to_rest_and_no_pod_is_written_more_than_twice(
        (mut api, mut cluster) in at_rest(true),
        change in change(),
        picks in vec(any::<prop::sample::Index>(), 150),
    ) {
        apply(&mut api, &change);
        api.relist(&mut cluster);
        cluster.look(api.now);
        let mut writes: BTreeMap<PodName, usize> = BTreeMap::new();
        for pick in picks {
            let left: Vec<PodName> = wanted(&cluster).into_keys().collect();
            if left.is_empty() {
                break;
            }
            let name = pick.get(&left);
            prop_assert!(api.perform(&cluster, name));
            api.tell_pod(&mut cluster, name);
            cluster.look(api.now);
            *writes.entry(name.clone()).or_default() += 1;
        }
        prop_assert_eq!(wanted(&cluster), BTreeMap::new());
        prop_assert!(writes.values().all(|count| *count <= 2), "{:?}", writes);
    }
}
