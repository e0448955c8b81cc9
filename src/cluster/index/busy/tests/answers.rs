//! What is answered about a pod.

use super::*;

#[test]
fn of_two_rules_that_select_a_pod_the_first_governs_until_it_selects_it_no_more() {
    let cluster = Cluster::new();
    cluster.pods(PLAIN).apply(pod("w", "p-1", 0));
    assert_eq!(cluster.ask("ci", "w").governed, Some("plain p-1".into()));
    cluster.pods(MEMBER).apply(pod("w", "p-1", 0));
    assert_eq!(cluster.ask("ci", "w").governed, Some("member p-1".into()), "whichever watch comes first");
    cluster.pods(MEMBER).delete(pod("w", "p-1", 0));
    assert_eq!(cluster.ask("ci", "w").governed, Some("plain p-1".into()), "its labels were changed");
    cluster.pods(PLAIN).delete(pod("w", "p-1", 0));
    assert_eq!(cluster.ask("ci", "w"), Answer::default());
    assert_eq!(cluster.ask("other", "w"), Answer::default());
    assert!(cluster.index.is_empty());
}

#[test]
fn an_owner_is_the_pods_by_its_uid() {
    let cluster = Cluster::new();
    cluster.pods(RUNNER).apply(controlled(pod("w", "p-1", 0), runner(), "r", "r-1"));
    assert_eq!(cluster.ask("ci", "w").owner, None, "not seen yet");
    cluster.owners(runner()).apply(owner("ci", "r", "r-1"));
    assert_eq!(cluster.ask("ci", "w").owner, Some("r-1".into()));
    cluster.owners(runner()).apply(owner("ci", "r", "r-2"));
    assert_eq!(cluster.ask("ci", "w").owner, None, "another one of the same name is not the pod's");
    cluster.pods(RUNNER).apply(controlled(pod("w", "p-2", 5), runner(), "r", "r-2"));
    assert_eq!(cluster.ask("ci", "w").owner, Some("r-2".into()), "but that of its successor");
    cluster.owners(runner()).delete(owner("ci", "r", "r-2"));
    assert_eq!(cluster.ask("ci", "w").owner, None);
}

#[test]
fn an_owner_of_another_kind_or_namespace_is_not_asked() {
    let cluster = Cluster::new();
    cluster.pods(RUNNER).apply(controlled(pod("w", "p-1", 0), pool(), "r", "r-1"));
    cluster.owners(pool()).apply(owner("ci", "r", "r-1"));
    assert_eq!(cluster.ask("ci", "w").owner, None, "its rule asks a Runner");
    cluster.pods(RUNNER).apply(controlled(pod("w", "p-1", 0), runner(), "r", "r-1"));
    cluster.owners(runner()).apply(owner("other", "r", "r-1"));
    assert_eq!(cluster.ask("ci", "w").owner, None);
}

#[test]
fn an_owner_two_hops_away_is_found_through_what_it_controls() {
    let cluster = Cluster::new();
    cluster.pods(MEMBER).apply(controlled(pod("w", "p-1", 0), set(), "s", "s-1"));
    cluster.owners(pool()).apply(owner("", "p", "pool-1"));
    assert_eq!(cluster.ask("ci", "w").owner, None, "what leads there is not seen yet");
    let led_by = |uid: &str| Owner {
        controller: Some(ControllerRef { kind: pool(), name: "p".into(), uid: uid.into() }),
        ..owner("ci", "s", "s-1")
    };
    cluster.owners(set()).apply(led_by("pool-1"));
    assert_eq!(cluster.ask("ci", "w").owner, Some("pool-1".into()));
    cluster.owners(set()).apply(led_by("pool-0"));
    assert_eq!(cluster.ask("ci", "w").owner, None, "it has another controller now");
    cluster.owners(set()).apply(owner("ci", "s", "s-1"));
    assert_eq!(cluster.ask("ci", "w").owner, None, "it has none any more");
}

#[test]
fn an_owner_of_the_cluster_is_found_from_any_namespace() {
    let cluster = Cluster::new();
    cluster.owners(pool()).apply(owner("", "p", "pool-1"));
    cluster.pods(WORKER).apply(controlled(pod("w", "p-1", 0), pool(), "p", "pool-1"));
    let elsewhere = BusyPod { namespace: "other".into(), ..pod("w", "p-2", 0) };
    cluster.pods(WORKER).apply(controlled(elsewhere, pool(), "p", "pool-1"));
    assert_eq!(cluster.ask("ci", "w").owner, Some("pool-1".into()));
    assert_eq!(cluster.ask("other", "w").owner, Some("pool-1".into()));
}

#[test]
fn a_new_pod_is_asked_about_before_it_is_known() {
    let cluster = Cluster::new();
    cluster.owners(runner()).apply(owner("ci", "r", "r-1"));
    let rule = &cluster.index.rules()[RUNNER];
    let found = |pod: BusyPod| cluster.index.owner_of_new(rule, &pod, |found| matches!(found, Found::Owner(_)));
    assert!(found(controlled(pod("", "", 0), runner(), "r", "r-1")), "the server has yet to name it");
    assert!(!found(controlled(pod("", "", 0), runner(), "r", "r-0")));
}

#[test]
fn linked_pods_count_as_long_as_they_work_for_this_very_pod() {
    let table = [
        ("one that was made after the pod", linked("job", "w", 10), words(["job"])),
        ("one of the same second", linked("job", "w", 0), words(["job"])),
        ("one that is older: of a former pod of that name", linked("job", "w", -1), words([])),
        ("one that has ended", Linked { finished: true, ..linked("job", "w", 10) }, words([])),
        ("one of another pod", linked("job", "v", 10), words([])),
        ("one in another namespace", Linked { namespace: "other".into(), ..linked("job", "w", 10) }, words([])),
        ("the pod itself", linked("w", "w", 10), words([])),
    ];
    for (name, one, expected) in table {
        let cluster = Cluster::new();
        cluster.pods(RUNNER).apply(pod("w", "p-1", 0));
        cluster.linked("job-of").apply(one.clone());
        cluster.linked("task-of").apply(linked("task", "w", 10));
        assert_eq!(cluster.ask("ci", "w").linked, expected, "{name}");
        cluster.linked("job-of").delete(one);
        assert_eq!(cluster.ask("ci", "w").linked, words([]), "{name}, gone");
    }
}

#[test]
fn a_linked_pod_that_is_relabelled_is_linked_to_the_other_alone() {
    let cluster = Cluster::new();
    for (name, uid) in [("v", "p-1"), ("w", "p-2")] {
        cluster.pods(RUNNER).apply(pod(name, uid, 0));
    }
    cluster.linked("job-of").apply(linked("job", "v", 10));
    cluster.touched();
    cluster.linked("job-of").apply(linked("job", "w", 10));
    assert_eq!(cluster.ask("ci", "v").linked, words([]));
    assert_eq!(cluster.ask("ci", "w").linked, words(["job"]));
    assert_eq!(cluster.touched(), ["ci/v", "ci/w"]);
    // What is known of it counts, whatever the object says at its end.
    cluster.linked("job-of").delete(linked("job", "v", 10));
    assert_eq!(cluster.ask("ci", "w").linked, words([]));
    assert_eq!(cluster.touched(), ["ci/w"]);
}

#[test]
fn holds_of_busy_pods_and_of_handovers_are_kept_apart() {
    let cluster = Cluster::new();
    cluster.views().apply(hold("own-busy", HoldReason::Busy, "own", "web"));
    cluster.views().apply(hold("own-retire", HoldReason::Retire, "own", "web"));
    let handovers = |cluster: &Cluster| {
        let key = WorkloadKey::new("ci", "web");
        let names = |holds: Vec<(&HoldView, Option<&PodView>)>| {
            holds.iter().map(|(hold, _)| hold.name.clone()).collect::<Vec<_>>()
        };
        cluster.index.workload(&key, &crate::cluster::index::DefaultPolicy::default(), |_, _, holds| names(holds))
    };
    assert_eq!(handovers(&cluster), None, "a workload of that name has no handover");
    assert!(cluster.dirty.take_workloads().is_empty());
    cluster.views().apply(hold("own-1", HoldReason::Handover, "own", "web"));
    assert_eq!(handovers(&cluster), Some(vec!["own-1".into()]));
    assert_eq!(cluster.ask("ci", "own").holds, ["own-busy".into(), "own-retire".into()].into());
    cluster.views().replace(vec![hold("own-1", HoldReason::Handover, "own", "web")]);
    assert_eq!(handovers(&cluster), Some(vec!["own-1".into()]));
    assert!(cluster.ask("ci", "own").holds.is_empty());
}

#[test]
fn a_hold_that_another_one_of_its_name_replaces_is_forgotten() {
    let cluster = Cluster::new();
    cluster.views().apply(hold("one", HoldReason::Busy, "v", "r"));
    cluster.views().apply(hold("one", HoldReason::Retire, "w", "r"));
    assert!(cluster.ask("ci", "v").holds.is_empty());
    assert_eq!(cluster.ask("ci", "w").holds, ["one".into()].into());
    assert_eq!(cluster.touched(), ["ci/v", "ci/w"]);
    // It says at its end what it never was.
    cluster.views().delete(hold("one", HoldReason::Handover, "v", "r"));
    assert!(cluster.index.is_empty());
}

#[test]
fn the_hold_of_a_pod_is_found_by_reason_and_whole_uid() {
    let busy = hold("own-p1-busy", HoldReason::Busy, "own", "r");
    let all = [&busy];
    let of = |reason, uid: &str| hold_of(&all, reason, &pod("own", uid, 0)).map(|hold| hold.name.as_str());
    assert_eq!(of(HoldReason::Busy, "p-1"), Some("own-p1-busy"));
    assert_eq!(of(HoldReason::Retire, "p-1"), None);
    assert_eq!(of(HoldReason::Busy, "p-1-and-more"), None, "of another pod of that name");
}

#[test]
fn pods_that_bear_hints_of_ours_are_known_by_name() {
    let cluster = Cluster::new();
    cluster.views().apply(view("w", true));
    assert!(cluster.index.is_marked(&PodKey::new("ci", "w")));
    assert!(!cluster.index.is_marked(&PodKey::new("other", "w")));
    cluster.views().apply(view("w", false));
    assert!(!cluster.index.is_marked(&PodKey::new("ci", "w")));
}

#[test]
fn of_owners_and_linked_pods_is_kept_what_any_rule_reads() {
    let cluster = Cluster::new();
    let whole = json!({"status": {"busy": true, "more": 1}, "spec": {}});
    assert_eq!(cluster.owners(pool()).fields().read.of(&whole), json!({"status": {"busy": true}}));
    assert_eq!(cluster.owners(set()).fields().read.of(&whole), json!({}), "nothing is read on the way");
    assert_eq!(cluster.linked("job-of").fields().of(&whole), json!({"status": {"busy": true}}));
    assert_eq!(cluster.linked("task-of").fields().of(&whole), json!({}), "only that they are there");
}

#[test]
fn a_pod_lives_until_it_is_about_to_go() {
    let table = [
        ("it runs", view("w", false), Some("p-1")),
        ("it is about to begin", PodView { phase: PodPhase::Pending, ..view("w", false) }, Some("p-1")),
        ("it is told to go", PodView { terminating: true, ..view("w", false) }, None),
        ("it has ended", PodView { phase: PodPhase::Succeeded, ..view("w", false) }, None),
        ("it has failed", PodView { phase: PodPhase::Failed, ..view("w", false) }, None),
    ];
    for (name, view, expected) in table {
        let cluster = Cluster::new();
        cluster.views().apply(view);
        assert_eq!(cluster.ask("ci", "w").living.as_deref(), expected, "{name}");
    }
}

#[test]
fn the_other_pods_of_an_owner_are_counted_where_it_may_be_deleted() {
    let cluster = Cluster::new();
    let of_owner = |name: &str, uid: &str| controlled(pod(name, uid, 0), runner(), "r", "r-1");
    cluster.pods(RUNNER).apply(of_owner("v", "p-1"));
    assert_eq!(cluster.siblings("ci", "v"), 0);
    cluster.pods(PLAIN).apply(of_owner("w", "p-2"));
    assert_eq!(cluster.siblings("ci", "v"), 1, "whichever rule governs it");
    cluster.pods(PLAIN).apply(BusyPod { phase: PodPhase::Failed, ..of_owner("w", "p-2") });
    assert_eq!(cluster.siblings("ci", "v"), 0, "what has ended loses nothing");
    cluster.pods(RUNNER).apply(controlled(pod("w", "p-3", 0), runner(), "r", "r-2"));
    assert_eq!(cluster.siblings("ci", "v"), 0, "another owner of that name");
    cluster.pods(PLAIN).apply(of_owner("x", "p-4"));
    assert_eq!(cluster.siblings("ci", "x"), 0, "its rule deletes no owner, and many pods may share one");
}
