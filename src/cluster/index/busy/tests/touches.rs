//! Which pods a change has looked at.

use super::*;

/// Three pods with all that there can be about them, and nothing that is to be looked at.
fn settled() -> Cluster {
    let cluster = Cluster::new();
    cluster.pods(RUNNER).apply(controlled(pod("own", "p-1", 0), runner(), "r", "r-1"));
    cluster.pods(MEMBER).apply(controlled(pod("far", "p-2", 0), set(), "s", "s-1"));
    cluster.pods(WORKER).apply(controlled(pod("wide", "p-3", 0), pool(), "p", "pool-1"));
    cluster.owners(runner()).apply(owner("ci", "r", "r-1"));
    let to_pool = ControllerRef { kind: pool(), name: "p".into(), uid: "pool-1".into() };
    cluster.owners(set()).apply(Owner { controller: Some(to_pool), ..owner("ci", "s", "s-1") });
    cluster.owners(pool()).apply(owner("", "p", "pool-1"));
    cluster.linked("job-of").apply(linked("job", "own", 10));
    cluster.views().apply(hold("own-busy", HoldReason::Busy, "own", "r"));
    cluster.views().apply(hold("web", HoldReason::Handover, "own", "web"));
    cluster.views().apply(view("marked", true));
    cluster.views().apply(view("own", false));
    cluster.touched();
    cluster
}

#[test]
fn a_change_has_just_those_pods_looked_at_that_it_concerns() {
    type Change = fn(&Cluster);
    let table: &[(&str, Change, &[&str])] = &[
        ("a pod", |c| c.pods(RUNNER).apply(pod("own", "p-1", 0)), &["ci/own"]),
        ("a new pod", |c| c.pods(PLAIN).apply(pod("new", "p-9", 0)), &["ci/new"]),
        ("a pod that goes", |c| c.pods(RUNNER).delete(pod("own", "p-1", 0)), &["ci/own"]),
        ("an owner that goes", |c| c.owners(runner()).delete(owner("ci", "r", "r-1")), &["ci/own"]),
        ("an owner that is another one now", |c| c.owners(runner()).apply(owner("ci", "r", "r-2")), &["ci/own"]),
        (
            "an owner that says something else",
            |c| c.owners(runner()).apply(Owner { object: json!({"status": {}}), ..owner("ci", "r", "r-1") }),
            &["ci/own"],
        ),
        ("an owner that says the same", |c| c.owners(runner()).apply(owner("ci", "r", "r-1")), &[]),
        ("an owner of nobody", |c| c.owners(runner()).apply(owner("ci", "q", "r-7")), &[]),
        ("an owner of that name elsewhere", |c| c.owners(runner()).apply(owner("other", "r", "r-8")), &[]),
        (
            "an owner of the cluster, and two hops away",
            |c| c.owners(pool()).apply(Owner { terminating: true, ..owner("", "p", "pool-1") }),
            &["ci/far", "ci/wide"],
        ),
        ("what leads to an owner", |c| c.owners(set()).apply(owner("ci", "s", "s-1")), &["ci/far"]),
        ("a linked pod", |c| c.linked("job-of").apply(linked("more", "wide", 10)), &["ci/wide"]),
        ("a linked pod that says the same", |c| c.linked("job-of").apply(linked("job", "own", 10)), &[]),
        (
            "a linked pod that ends",
            |c| c.linked("job-of").apply(Linked { finished: true, ..linked("job", "own", 10) }),
            &["ci/own"],
        ),
        ("a linked pod that goes", |c| c.linked("job-of").delete(linked("job", "own", 10)), &["ci/own"]),
        ("a hold", |c| c.views().apply(hold("far-busy", HoldReason::Busy, "far", "p")), &["ci/far"]),
        ("a hold to be retired", |c| c.views().apply(hold("x", HoldReason::Retire, "wide", "p")), &["ci/wide"]),
        ("a hold that goes", |c| c.views().delete(hold("own-busy", HoldReason::Busy, "own", "r")), &["ci/own"]),
        ("a hold for a handover", |c| c.views().apply(hold("more", HoldReason::Handover, "own", "web")), &[]),
        ("a pod that bears hints of ours", |c| c.views().apply(view("found", true)), &["ci/found"]),
        ("one that bears them no more", |c| c.views().apply(view("marked", false)), &["ci/marked"]),
        ("one that goes", |c| c.views().delete(view("marked", true)), &["ci/marked"]),
        ("a held pod that goes", |c| c.views().delete(view("own", false)), &["ci/own"]),
        (
            "a held pod that is told to go",
            |c| c.views().apply(PodView { terminating: true, ..view("own", false) }),
            &["ci/own"],
        ),
        (
            "another one of a held pod's name",
            |c| c.views().apply(PodView { uid: "p-9".into(), ..view("own", false) }),
            &["ci/own"],
        ),
        ("a pod without", |c| c.views().apply(view("own", false)), &[]),
        (
            "the whole set of a rule's pods",
            |c| c.pods(RUNNER).replace(vec![pod("new", "p-9", 0)]),
            &["ci/new", "ci/own"],
        ),
        ("the whole set of owners", |c| c.owners(runner()).replace(Vec::new()), &["ci/own"]),
        ("the whole set of owners of the cluster", |c| c.owners(pool()).replace(Vec::new()), &["ci/far", "ci/wide"]),
        (
            "the whole set of linked pods",
            |c| c.linked("job-of").replace(vec![linked("job", "far", 1)]),
            &["ci/far", "ci/own"],
        ),
        ("the whole set of holds", |c| c.views().replace(Vec::<HoldView>::new()), &["ci/own"]),
        (
            "the whole set of pods",
            |c| c.views().replace(vec![view("found", true)]),
            &["ci/found", "ci/marked", "ci/own"],
        ),
        (
            "everything, when it is asked for",
            |c| c.index.touch_busy_pods(),
            &["ci/far", "ci/marked", "ci/own", "ci/wide"],
        ),
    ];
    for (name, change, expected) in table {
        let cluster = settled();
        change(&cluster);
        assert_eq!(cluster.touched(), *expected, "{name}");
    }
}
