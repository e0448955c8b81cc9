//! Budgets and holds: since when they keep a node, and until when.

use jiff::SignedDuration;

use super::super::*;
use super::api::*;
use crate::cost::{PodHold, Protection, Readiness, Verdict};
use crate::testing::after;
use crate::view::PodPhase;

type Bend<'a> = &'a dyn Fn(&mut Api);

#[test]
fn a_pod_is_blocked_as_kubernetes_refuses_its_eviction() {
    let used_up = |api: &mut Api, name: &str| {
        let created = after(-1000);
        let budget = Budget { exhausted_since: Some(after(-900)), created, ..budget(name, ("app", "web")) };
        api.budgets.insert(shop(name), budget);
    };
    let pod = |api: &mut Api, bend: fn(&mut CostPod)| api.change(&shop("web-001"), |known| bend(&mut known.pod));
    let table: [(&str, Option<i64>, Bend<'_>); 14] = [
        ("no budget", None, &|_| {}),
        ("one that lets it go", None, &|api| {
            api.budgets.insert(shop("web"), budget("web", ("app", "web")));
        }),
        ("one of others", None, &|api| {
            used_up(api, "web");
            let others = Budget { exhausted_since: Some(after(-900)), ..budget("web", ("app", "api")) };
            api.budgets.insert(shop("web"), others);
        }),
        ("one of another namespace", None, &|api| {
            let mut far = budget("web", ("app", "web"));
            (far.namespace, far.exhausted_since) = ("far".into(), Some(after(-900)));
            api.budgets.insert(("far".into(), "web".into()), far);
        }),
        ("one that is used up", Some(-900), &|api| used_up(api, "web")),
        ("a pod that came later", Some(-60), &|api| {
            used_up(api, "web");
            pod(api, |pod| pod.created = after(-60));
        }),
        ("a pending pod", None, &|api| {
            used_up(api, "web");
            pod(api, |pod| pod.phase = PodPhase::Pending);
        }),
        ("a finished pod", None, &|api| {
            used_up(api, "web");
            pod(api, |pod| pod.phase = PodPhase::Succeeded);
        }),
        ("a pod that ends", None, &|api| {
            used_up(api, "web");
            pod(api, |pod| pod.terminating = true);
        }),
        ("an unready pod", Some(-900), &|api| {
            used_up(api, "web");
            pod(api, |pod| pod.readiness = Readiness::NotReady(None));
        }),
        ("an unready pod where those may always go", None, &|api| {
            used_up(api, "web");
            api.budgets.get_mut(&shop("web")).unwrap().lets_unready_go = true;
            pod(api, |pod| pod.readiness = Readiness::NotReady(None));
        }),
        ("a ready pod where unready ones may always go", Some(-900), &|api| {
            used_up(api, "web");
            api.budgets.get_mut(&shop("web")).unwrap().lets_unready_go = true;
        }),
        ("two that let it go, since the second came", Some(-100), &|api| {
            for (name, ago) in [("one", -100), ("two", -2000)] {
                let both = Budget { created: after(ago), lets_unready_go: true, ..budget(name, ("app", "web")) };
                api.budgets.insert(shop(name), both);
            }
            pod(api, |pod| pod.readiness = Readiness::NotReady(None));
        }),
        ("three, since the second of them came", Some(-200), &|api| {
            for (name, ago) in [("one", -100), ("two", -2000), ("three", -200)] {
                api.budgets.insert(shop(name), Budget { created: after(ago), ..budget(name, ("app", "web")) });
            }
        }),
    ];
    for (name, expected, bend) in table {
        let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a")]).with_set("web", &[("a1", 1)]);
        bend(&mut api);
        let blocked = |cluster: &Cluster| cluster.pods_of("web-set")[0].0.pod.blocked_since;
        assert_eq!(blocked(&api.cluster()), expected.map(after), "{name}");
        // The budgets come after the pod, and go again.
        let mut cluster = Cluster::new(api.options.clone(), STAND_DOWN);
        for object in api.objects().iter().rev() {
            api.tell(&mut cluster, object);
        }
        assert_eq!(blocked(&cluster), expected.map(after), "{name}, pods first");
        cluster.retain_budgets(&HashSet::new());
        assert_eq!(blocked(&cluster), None, "{name}, no more");
    }
}

#[test]
fn a_budget_that_changes_is_read_anew() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a")]).with_set("web", &[("a1", 1)]);
    api.change(&shop("web-001"), |known| known.pod.readiness = Readiness::NotReady(None));
    let mut cluster = api.cluster();
    let one = Budget { exhausted_since: Some(after(-900)), ..budget("one", ("app", "web")) };
    let two = budget("two", ("app", "web"));
    let changes = [
        (one.clone(), Some(-900)),
        (Budget { exhausted_since: Some(after(-800)), ..one.clone() }, Some(-800)),
        (Budget { lets_unready_go: true, ..one.clone() }, None),
        (one, Some(-900)),
        (Budget { created: after(-300), ..two.clone() }, Some(-300)),
        (Budget { created: after(-200), ..two }, Some(-200)),
    ];
    for (budget, expected) in changes {
        let label = format!("{budget:?}");
        cluster.put_budget(budget);
        assert_eq!(cluster.pods_of("web-set")[0].0.pod.blocked_since, expected.map(after), "{label}");
    }
}

#[test]
fn a_budget_that_is_used_up_for_a_moment_takes_no_rank_away_and_for_long_it_does() {
    let (mut api, mut cluster) = one_node();
    api.settle(&mut cluster);
    let rank = cluster.ranking().rank_of("a1");
    assert!(rank.is_some());
    api.budgets.insert(shop("web"), Budget { exhausted_since: Some(api.now), ..budget("web", ("app", "web")) });
    api.tell_all(&mut cluster);
    cluster.look(api.now);
    assert_eq!(cluster.ranking().rank_of("a1"), rank);
    api.now = cluster.next_look(api.now);
    cluster.look(api.now);
    assert_eq!(cluster.ranking().rank_of("a1"), None);
    assert_eq!(cluster.asking(), BTreeSet::from([shop("web-001")]), "its value is to be removed");
    // Back again.
    cluster.put_budget(budget("web", ("app", "web")));
    cluster.look(api.now);
    assert_eq!(cluster.ranking().rank_of("a1"), rank);
}

#[test]
fn a_budget_that_selects_others_from_now_on_counts_for_them() {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 1)]).with_set("api", &[("b1", 1)]);
    let of = |app| Budget { exhausted_since: Some(after(-900)), ..budget("one", ("app", app)) };
    let mut cluster = api.cluster();
    let protected = |cluster: &mut Cluster| -> Vec<String> {
        cluster.look(after(0));
        let blocked = |verdict: &Verdict| matches!(verdict, Verdict::Protected(Protection::Budget { .. }));
        let verdicts = cluster.ranking().verdicts().filter(|(_, verdict)| blocked(verdict));
        verdicts.map(|(node, _)| node.to_owned()).collect()
    };
    for (budget, expected) in [
        (of("web"), vec!["a1"]),
        (of("api"), vec!["b1"]),
        (Budget { exhausted_since: None, ..of("api") }, vec![]),
        (of("api"), vec!["b1"]),
    ] {
        cluster.put_budget(budget);
        assert_eq!(protected(&mut cluster), expected);
    }
    // A pod that carries the label from now on.
    api.change(&shop("web-001"), |known| known.labels = labels(&[("app", "api")]));
    api.tell_pod(&mut cluster, &shop("web-001"));
    assert_eq!(protected(&mut cluster), ["a1", "b1"]);
    cluster.remove_budget("shop", "one");
    assert_eq!(protected(&mut cluster), Vec::<String>::new());
}

fn is_held(cluster: &Cluster) -> bool {
    matches!(cluster.ranking().verdict("a1"), Some(Verdict::Protected(Protection::Pod { .. })))
}

#[test]
fn a_hold_that_runs_out_ceases_at_the_next_look_at_everything() {
    let (mut api, mut cluster) = one_node();
    api.change(&shop("web-001"), |known| {
        known.pod.hold = Some(PodHold::DoNotDisrupt);
        known.hold_until = Some(after(400));
    });
    api.tell_all(&mut cluster);
    let mut held = |seconds| {
        cluster.look(after(seconds));
        is_held(&cluster)
    };
    assert_eq!([0, 300, 599, 600, 601].map(&mut held), [true, true, true, false, false]);
    // Told again as it is told then.
    api.now = after(601);
    api.tell_all(&mut cluster);
    assert_eq!(cluster.look(api.now).ranked, None);
    // One that holds for longer, and one for ever.
    for until in [Some(after(900)), None] {
        api.change(&shop("web-001"), |known| {
            known.pod.hold = Some(PodHold::DoNotDisrupt);
            known.hold_until = until;
        });
        api.tell_all(&mut cluster);
        api.now += SignedDuration::from_mins(5);
        cluster.look(api.now);
        assert_eq!(is_held(&cluster), until.is_none_or(|until| until > api.now));
    }
}

#[test]
fn a_hold_that_is_made_longer_lasts_longer() {
    let (mut api, mut cluster) = one_node();
    for until in [400, 1000] {
        api.change(&shop("web-001"), |known| {
            known.pod.hold = Some(PodHold::DoNotDisrupt);
            known.hold_until = Some(after(until));
        });
        api.tell_all(&mut cluster);
        cluster.look(api.now);
    }
    let held = [600, 900, 1200].map(|seconds| {
        cluster.look(after(seconds));
        is_held(&cluster)
    });
    assert_eq!(held, [true, true, false]);
}
