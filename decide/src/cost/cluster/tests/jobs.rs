//! Pods that keep their node and come and go all day.

use jiff::SignedDuration;

use super::super::*;
use super::api::*;
use crate::cost::{PodHold, Protection, Verdict};
use crate::testing::after;

/// A node with five pods and one whose jobs come and go, beside another; all values are written.
fn with_runner() -> (Api, Cluster, PodName) {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 5), ("b1", 5)]);
    let runner = api.run("runner", "a1");
    api.change(&runner, |known| known.pod.set = None);
    let mut cluster = api.cluster();
    api.settle(&mut cluster);
    (api, cluster, runner)
}

fn hold(api: &mut Api, cluster: &mut Cluster, runner: &PodName, hold: Option<PodHold>) {
    api.change(runner, |known| known.pod.hold = hold);
    api.tell_pod(cluster, runner);
}

/// Looks, and performs all writes; how many those were.
fn writes(api: &mut Api, cluster: &mut Cluster) -> usize {
    cluster.look(api.now);
    let count = cluster.asking().len();
    api.settle(cluster);
    count
}

fn is_just_freed(cluster: &Cluster) -> bool {
    cluster.ranking().verdict("a1") == Some(&Verdict::Protected(Protection::JustFreed))
}

#[test]
fn jobs_that_come_and_go_each_minute_take_a_rank_away_once() {
    let (mut api, mut cluster, runner) = with_runner();
    let mut written = Vec::new();
    for _ in 0..60 {
        hold(&mut api, &mut cluster, &runner, Some(PodHold::DoNotDisrupt));
        written.push(writes(&mut api, &mut cluster));
        api.now += SignedDuration::from_secs(40);
        hold(&mut api, &mut cluster, &runner, None);
        written.push(writes(&mut api, &mut cluster));
        assert!(is_just_freed(&cluster));
        api.now += SignedDuration::from_secs(20);
        written.push(writes(&mut api, &mut cluster));
    }
    assert_eq!(written[0], 5, "the rank goes at once");
    assert_eq!(written[1..].iter().sum::<usize>(), 0, "{written:?}");
}

#[test]
fn a_node_is_ranked_again_once_it_was_free_for_a_while() {
    for (freed, still, again) in [(0, 599, 600), (299, 599, 600), (300, 899, 900)] {
        let (mut api, mut cluster, runner) = with_runner();
        hold(&mut api, &mut cluster, &runner, Some(PodHold::DoNotDisrupt));
        writes(&mut api, &mut cluster);
        api.now = after(freed);
        hold(&mut api, &mut cluster, &runner, None);
        for (seconds, expected) in [(freed, 0), (still, 0), (again, 5)] {
            api.now = after(seconds);
            assert_eq!(writes(&mut api, &mut cluster), expected, "{freed}, {seconds}");
            assert_eq!(is_just_freed(&cluster), expected == 0, "{freed}, {seconds}");
        }
    }
}

#[test]
fn a_pod_that_ends_or_goes_frees_its_node_no_sooner_than_one_that_says_so() {
    let ends: [fn(&mut Api, &mut Cluster, &PodName); 3] = [
        |api, cluster, runner| {
            api.change(runner, |known| known.pod.terminating = true);
            api.tell_pod(cluster, runner);
        },
        |api, cluster, runner| {
            api.pods.remove(runner);
            api.tell_pod(cluster, runner);
        },
        |api, cluster, runner| {
            api.pods.retain(|_, known| known.pod.node.as_deref() != Some("a1"));
            api.relist(cluster);
            assert!(!api.pods.contains_key(runner));
        },
    ];
    for end in ends {
        let (mut api, mut cluster, runner) = with_runner();
        hold(&mut api, &mut cluster, &runner, Some(PodHold::Unmanaged));
        writes(&mut api, &mut cluster);
        end(&mut api, &mut cluster, &runner);
        cluster.look(api.now);
        assert!(is_just_freed(&cluster));
        // Who does not remember it sees a node like any other.
        let mut begun = api.cluster();
        begun.look(api.now);
        assert!(begun.ranking().rank_of("a1").is_some());
    }
}

#[test]
fn what_was_freed_is_forgotten_with_its_node_and_when_the_clock_goes_back() {
    let (mut api, mut cluster, runner) = with_runner();
    hold(&mut api, &mut cluster, &runner, Some(PodHold::DoNotDisrupt));
    writes(&mut api, &mut cluster);
    hold(&mut api, &mut cluster, &runner, None);
    cluster.look(api.now);
    assert!(is_just_freed(&cluster));
    let mut set_back = cluster.clone();
    set_back.look(api.now - SignedDuration::from_hours(1));
    assert!(set_back.ranking().rank_of("a1").is_some() && set_back.freed.is_empty());
    cluster.remove_node("a1");
    cluster.look(api.now);
    assert!(cluster.freed.is_empty());
}
