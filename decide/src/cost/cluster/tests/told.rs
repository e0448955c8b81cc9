//! What a cluster is told, case by case: claims, pools, Deployments, whose a pod is, and what is no news.

use jiff::SignedDuration;

use super::super::*;
use super::api::*;
use crate::cost::testing::{ZONE, over};
use crate::cost::{Group, Protection, Remembered, Verdict};
use crate::testing::after;

type Bend<'a> = &'a dyn Fn(&mut Api);

type Change<'a> = (&'a str, Bend<'a>);

fn group_of(cluster: &Cluster, node: &str) -> Option<Group> {
    match cluster.ranking().verdict(node)? {
        Verdict::Ranked(ranked) => Some(ranked.group),
        Verdict::Waiting { group, .. } => Some(*group),
        Verdict::Protected(_) => None,
    }
}

fn claim(name: &str, node: Option<&str>, leaving: bool, drifted: bool) -> Claim {
    Claim { name: name.into(), node: node.map(Into::into), leaving, drifted }
}

#[test]
fn a_node_is_what_all_claims_of_its_name_say() {
    let (api, mut cluster) = one_node();
    let mut group = |change: &dyn Fn(&mut Cluster)| {
        change(&mut cluster);
        cluster.look(api.now);
        group_of(&cluster, "a1").expect("it is not protected")
    };
    let put = |claim: Claim| move |cluster: &mut Cluster| cluster.put_claim(claim.clone());
    let remove = |name: &'static str| move |cluster: &mut Cluster| cluster.remove_claim(name);
    assert_eq!(group(&put(claim("one", None, true, true))), Group::Normal, "it names no node yet");
    assert_eq!(group(&put(claim("one", Some("a1"), false, true))), Group::Drifted);
    assert_eq!(group(&put(claim("one", Some("a1"), true, true))), Group::Draining);
    assert_eq!(group(&put(claim("two", Some("a1"), false, false))), Group::Draining, "one of both still leaves");
    assert_eq!(group(&put(claim("two", Some("a1"), false, true))), Group::Draining);
    assert_eq!(group(&remove("one")), Group::Drifted, "the other is left");
    assert_eq!(group(&put(claim("two", Some("b1"), false, true))), Group::Normal, "it is another node's");
    assert_eq!(group(&put(claim("two", Some("a1"), false, true))), Group::Drifted);
    assert_eq!(group(&put(claim("two", None, false, true))), Group::Normal);
    assert_eq!(group(&remove("two")), Group::Normal);
}

#[test]
fn a_claim_counts_whichever_came_first() {
    let (api, mut cluster) = one_node();
    cluster.remove_node("a1");
    cluster.put_claim(claim("one", Some("a1"), false, true));
    cluster.put_node(api.nodes["a1"].clone());
    cluster.look(api.now);
    assert_eq!(group_of(&cluster, "a1"), Some(Group::Drifted));
    // The node's own word counts beside the claim's.
    cluster.put_node(NodeFacts { leaving: true, ..api.nodes["a1"].clone() });
    cluster.look(api.now);
    assert_eq!(group_of(&cluster, "a1"), Some(Group::Draining));
}

#[test]
fn a_pool_that_is_never_consolidated_protects_its_nodes_and_no_others() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("a2", "a"), ("a3", "a")]);
    api.node("a1").pool = Some("still".into());
    api.node("a2").pool = Some("still".into());
    api.node("a2").keep = Some(Keep::DoNotDisrupt);
    let mut cluster = api.cluster();
    let verdicts = |cluster: &mut Cluster| {
        cluster.look(after(0));
        let of = |node| match cluster.ranking().verdict(node) {
            Some(Verdict::Protected(Protection::Node(keep))) => Some(*keep),
            _ => None,
        };
        ["a1", "a2", "a3"].map(of)
    };
    let (off, own) = (Some(Keep::ConsolidationOff), Some(Keep::DoNotDisrupt));
    assert_eq!(verdicts(&mut cluster), [None, own, None]);
    cluster.put_pool("still", true);
    assert_eq!(verdicts(&mut cluster), [off, own, None], "a node's own word goes first");
    cluster.put_pool("other", true);
    cluster.retain_pools(&HashSet::from(["still".into()]));
    assert_eq!(verdicts(&mut cluster), [off, own, None]);
    cluster.retain_pools(&HashSet::from(["other".into()]));
    assert_eq!(verdicts(&mut cluster), [None, own, None]);
}

#[test]
fn pods_of_a_set_that_left_its_deployment_are_no_neighbours_of_those_that_stayed() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("a2", "a")]);
    api = api.with_set("old", &[("a1", 1)]).with_set("new", &[("a1", 1), ("a2", 1)]);
    for known in api.sets.values_mut() {
        known.deployment = Some("web-deployment".into());
    }
    let mut cluster = api.cluster();
    let first = |cluster: &Cluster| -> Vec<String> {
        let batches = cluster.removal("new-set", after(0));
        batches[0].iter().map(|pod| pod.name.to_string()).collect()
    };
    // It has a neighbour of its workload on the node.
    assert_eq!(first(&cluster), ["new-002"]);
    for deployment in [None, Some("another-deployment".into())] {
        api.sets.get_mut("old-set").unwrap().deployment = deployment;
        api.tell(&mut cluster, &Object::Set("old-set".into()));
        assert_eq!(first(&cluster).len(), 2, "nothing tells them apart");
    }
    api.sets.get_mut("old-set").unwrap().deployment = Some("web-deployment".into());
    api.tell(&mut cluster, &Object::Set("old-set".into()));
    assert_eq!(first(&cluster), ["new-002"], "it is back");
    cluster.remove_set("old-set");
    assert_eq!(first(&cluster).len(), 2);
}

#[test]
fn a_neighbour_is_counted_once_whatever_set_of_the_deployment_it_is_of() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("a2", "a")]);
    api = api.with_set("new", &[("a1", 1), ("a2", 2)]).with_set("old", &[("a1", 2)]);
    for known in api.sets.values_mut() {
        known.deployment = Some("web-deployment".into());
    }
    // Three on one node and two on the other.
    let cluster = api.cluster();
    let batches = cluster.removal("new-set", after(0));
    assert_eq!(batches[0].iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["new-001"]);
}

#[test]
fn a_removal_is_told_in_batches_by_what_the_pods_carry_now() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("a2", "a")]);
    api = api.with_set("web", &[("a1", 2), ("a2", 1)]);
    let mut cluster = api.cluster();
    let names = |cluster: &Cluster, now| -> Vec<Vec<String>> {
        let batches = cluster.removal("web-set", now).into_iter();
        batches.map(|batch| batch.iter().map(|pod| pod.name.to_string()).collect()).collect()
    };
    let mut doubled = names(&cluster, api.now);
    doubled[0].sort();
    assert_eq!(doubled, [vec!["web-001", "web-002"], vec!["web-003"]]);
    annotate(api.pod(&shop("web-003")), Some("-5"), None);
    annotate(api.pod(&shop("web-001")), Some("5"), None);
    api.tell_all(&mut cluster);
    assert_eq!(names(&cluster, api.now), [["web-003"], ["web-002"], ["web-001"]]);
    assert_eq!(cluster.removal("nobody-set", api.now), Vec::<Vec<&CostPod>>::new());
}

#[test]
fn what_cannot_matter_is_no_reason_to_rank() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 2), ("b1", 1)]);
    api.budgets.insert(shop("web"), budget("web", ("app", "web")));
    let mut cluster = api.cluster();
    api.settle(&mut cluster);
    let changes: [Change<'_>; 7] = [
        ("nothing", &|_| {}),
        ("a version", &|api| api.change(&shop("web-001"), |_| {})),
        ("labels that no budget selects by", &|api| {
            api.change(&shop("web-001"), |known| known.labels = labels(&[("app", "web"), ("x", "y")]));
        }),
        ("a restart", &|api| api.change(&shop("web-001"), |known| known.pod.restarts += 1)),
        ("a time in the future", &|api| {
            api.now += SignedDuration::from_secs(200);
        }),
        ("replicas", &|api| api.set("web").replicas += 1),
        ("a budget that is the same", &|api| {
            let again = budget("web", ("app", "web"));
            api.budgets.insert(shop("web"), again);
        }),
    ];
    for (name, change) in changes {
        change(&mut api);
        api.tell_all(&mut cluster);
        assert_eq!(cluster.look(api.now), Look::default(), "{name}");
    }
    // And what matters is one.
    api.node("a1").node.unschedulable = true;
    api.tell_all(&mut cluster);
    let ranked = cluster.look(api.now).ranked.expect("a cordon matters");
    assert!(ranked.new_order || ranked.changed_nodes == 0, "{ranked:?}");
    assert_eq!(group_of(&cluster, "a1"), Some(Group::Draining));
    // Another five minutes begin: everything is looked at once.
    api.now = after(300);
    assert_eq!(cluster.next_look(after(200)), api.now);
    assert!(cluster.look(api.now).ranked.is_some());
    assert_eq!(cluster.look(api.now), Look::default());
}

#[test]
fn a_look_is_due_when_the_next_five_minutes_begin_whatever_the_clock_says() {
    let (_, cluster) = one_node();
    for (seconds, due) in [(0, 300), (1, 300), (299, 300), (300, 600), (-1, 0), (-300, 0)] {
        assert_eq!(cluster.next_look(after(seconds)), after(due), "{seconds}");
    }
    let short = Options { settle: SignedDuration::from_millis(5), ..Options::default() };
    assert_eq!(Cluster::new(short, STAND_DOWN).next_look(after(7)), after(8), "a second at least");
    assert_eq!(cluster.next_look(Timestamp::MAX), Timestamp::MAX);
}

#[test]
fn of_a_set_that_is_not_known_nothing_is_decided() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 1), ("b1", 1)]);
    let mut cluster = api.cluster();
    api.settle(&mut cluster);
    let set = api.sets.remove("web-set").expect("it is there");
    // A process that begins and has not heard of the ReplicaSet yet.
    let mut begun = api.cluster();
    begun.look(api.now);
    assert_eq!(begun.asking(), BTreeSet::new(), "they keep what they have");
    api.node("a1").keep = Some(Keep::DoNotDisrupt);
    for cluster in [&mut cluster, &mut begun] {
        api.relist(cluster);
        cluster.look(api.now);
        assert_eq!(cluster.asking(), BTreeSet::new(), "also where its node changed");
        cluster.put_set(set.clone());
        cluster.look(api.now);
        assert_eq!(cluster.asking(), BTreeSet::from([shop("web-001")]));
    }
}

#[test]
fn a_pod_that_changes_hands_is_decided_on_by_whose_it_is() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("a2", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 1), ("b1", 1)]).with_set("api", &[("a1", 1), ("b1", 1)]);
    api.set("api").constraints = vec![over(ZONE, 1)];
    let mut cluster = api.cluster();
    api.settle(&mut cluster);
    let name = shop("web-001");
    let mut owned_by = |set: Option<&str>| {
        api.change(&name, |known| known.pod.set = set.map(Into::into));
        api.tell_pod(&mut cluster, &name);
        cluster.look(api.now);
        let (pass, names) = api.scratch(&BTreeSet::new(), Remembered { last: Some(cluster.ranking()), freed: None });
        for (at, name) in names.iter().enumerate() {
            assert_eq!(desired_of(&cluster, name), pass.desired[at], "{name:?} of {set:?}");
        }
        desired_of(&cluster, &name)
    };
    let rank = owned_by(Some("web-set"));
    assert_eq!(owned_by(None), None);
    let tiered = owned_by(Some("api-set"));
    assert!(tiered < rank, "{tiered:?} and {rank:?}");
    assert_eq!(owned_by(Some("web-set")), rank);
}

#[test]
fn who_only_asks_for_ranks_and_binds_gets_no_pods() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 1), ("b1", 1)]);
    let mut whole = api.cluster();
    whole.look(api.now);
    let mut ranks = Cluster::new(api.options.clone(), STAND_DOWN).only_ranks();
    api.tell_all(&mut ranks);
    let look = ranks.look(api.now);
    assert!(look.ranked.is_some() && look.pods.is_empty());
    assert!(ranks.dirty.sets.is_empty() && ranks.dirty.pods.is_empty());
    assert_eq!(ranks.ranking(), whole.ranking());
    let name = api.create("web");
    api.tell_pod(&mut ranks, &name);
    let coming = &api.pods[&name].pod;
    let rank = whole.ranking().rank_of("a1");
    assert!(rank.is_some());
    assert_eq!(ranks.value_at_bind(coming, "a1", api.now), rank);
}

#[test]
fn what_is_asked_of_a_cluster_is_what_it_was_told() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 2)]).with_set("api", &[("a1", 1), ("b1", 1)]);
    api.node("b1").keep = Some(Keep::DoNotDisrupt);
    let mut cluster = api.cluster();
    cluster.look(api.now);
    assert_eq!(cluster.sets_on("a1"), BTreeSet::from(["api-set", "web-set"]));
    assert_eq!(cluster.sets_on("b1"), BTreeSet::from(["api-set"]));
    assert_eq!(cluster.node("b1"), Some(&api.nodes["b1"]));
    assert_eq!(cluster.set("web-set"), Some(&api.sets["web-set"].set));
    let pods: Vec<_> = cluster.pods_of("web-set").into_iter().map(|(known, value)| (&*known.pod.name, value)).collect();
    let rank = cluster.ranking().rank_of("a1");
    assert_eq!(pods, [("web-001", rank), ("web-002", rank)]);
    assert_eq!(cluster.asked_of("shop", "web-001").map(|(_, value)| value), Some(rank));
    assert_eq!(cluster.asked_of("shop", "web-009"), None);
    assert_eq!(cluster.asked_of("far", "web-001"), None);
    // A value may be due on a ranked node, and of a set that is to be spread anywhere.
    let may = |cluster: &Cluster| {
        [("web-set", "a1"), ("web-set", "b1"), ("x-set", "a1")].map(|(set, node)| cluster.may_have_value(set, node))
    };
    assert_eq!(may(&cluster), [true, false, false]);
    api.set("web").constraints = vec![over(ZONE, 1)];
    api.tell_all(&mut cluster);
    assert_eq!(may(&cluster), [true, true, false]);
    api.set("web").replicas = 1;
    api.tell_all(&mut cluster);
    assert_eq!(may(&cluster), [false, false, false]);
    api.options.span_zones = true;
    api.set("web").constraints.clear();
    api.set("web").replicas = 2;
    let mut spanning = api.cluster();
    spanning.look(api.now);
    assert_eq!(may(&spanning), [true, true, false]);
}

#[test]
fn a_bind_is_believed_for_half_a_minute_also_by_a_clock_that_was_set_back() {
    let (mut api, mut cluster) = one_node();
    let name = api.create("web");
    cluster.assume(&api.pods[&name].pod, "a1", None, api.now);
    for (seconds, expected) in [(-3600, false), (-30, false), (-1, true), (0, true), (29, true), (30, false)] {
        let is_believed = cluster.assumed.values().any(|assumed| assumed.is_believed(after(seconds)));
        assert_eq!(is_believed, expected, "{seconds}");
    }
}

#[test]
fn what_changes_between_two_steps_of_a_look_is_not_lost() {
    // More nodes and ReplicaSets than one step takes.
    let names: Vec<String> = (0..70).map(|at| format!("n{at:02}")).collect();
    let nodes: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "a")).collect();
    let mut api = Api::new(Options { max_nodes: 10, ..Options::default() }).with_nodes(&nodes);
    for (at, name) in names.iter().enumerate() {
        api = api.with_set(&format!("s{}", at % 20), &[(name, 1 + at % 3), (&names[0], 1)]);
    }
    let mut begun = api.cluster();
    begun.look(api.now);
    // Everything is to be looked at.
    api.now = after(600);
    let late = api.run("s3", "n07");
    api.node("n50").node.unschedulable = true;
    let change = |cluster: &mut Cluster| {
        api.tell_pod(cluster, &late);
        cluster.put_node(api.nodes["n50"].clone());
    };
    let mut steps = 0;
    loop {
        let (mut one, mut other) = (begun.clone(), begun.clone());
        one.look(api.now);
        change(&mut one);
        one.look(api.now);
        let mut looking = Looking::default();
        let done = (0..steps).any(|_| other.look_on(&mut looking, api.now).is_some());
        change(&mut other);
        while !done && other.look_on(&mut looking, api.now).is_none() {}
        other.look(api.now);
        assert_eq!(group_of(&other, "n50"), Some(Group::Draining), "after {steps} steps");
        assert_eq!((one.ranking(), one.asking()), (other.ranking(), other.asking()), "after {steps} steps");
        if done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 4, "nodes and ReplicaSets took several steps: {steps}");
}
