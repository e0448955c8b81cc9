//! Other controllers that write values: where Belay leaves the field to them, and when it comes back.

use jiff::SignedDuration;

use super::super::*;
use super::api::*;
use crate::cost::testing::{ZONE, over};
use crate::cost::{Protection, Standing, Verdict};
use crate::testing::after;

/// Two ReplicaSets with three pods each on one node, one with one on another; all values are written.
fn shop_at_rest() -> (Api, Cluster) {
    let mut api = Api::new(Options::default()).with_nodes(&[("a1", "a"), ("b1", "b")]);
    api = api.with_set("web", &[("a1", 3), ("b1", 3)]).with_set("api", &[("a1", 3)]);
    let mut cluster = api.cluster();
    api.settle(&mut cluster);
    (api, cluster)
}

fn rewrite(api: &mut Api, cluster: &mut Cluster, name: &str, value: &str) {
    let name = shop(name);
    api.change(&name, |known| {
        let managed = known.managed.take();
        annotate(known, Some(value), managed.as_deref());
    });
    api.tell_pod(cluster, &name);
}

fn strip(api: &mut Api, cluster: &mut Cluster, name: &str) {
    let name = shop(name);
    api.change(&name, |known| {
        let managed = known.managed.take();
        annotate(known, None, managed.as_deref());
    });
    api.tell_pod(cluster, &name);
}

/// Another controller gives these pods a value, or takes theirs away; the last of them a while after the others.
fn come(api: &mut Api, cluster: &mut Cluster, names: [&str; 3], value: Option<&str>) {
    for (at, name) in names.into_iter().enumerate() {
        if at == 2 {
            api.now += SignedDuration::from_secs(20);
        }
        match value {
            Some(value) => rewrite(api, cluster, name, value),
            None => strip(api, cluster, name),
        }
    }
}

fn node(name: &str) -> Scope {
    Scope::Node(name.into())
}

fn set(name: &str) -> Scope {
    Scope::Set(format!("{name}-set").into())
}

/// Where Belay stands down from this look on, and where it is back.
fn stances(cluster: &mut Cluster, now: Timestamp) -> (Vec<Scope>, Vec<Scope>) {
    let (down, back): (Vec<_>, Vec<_>) = cluster.look(now).stances.into_iter().partition(|one| one.until.is_some());
    let scopes = |stances: Vec<Stance>| stances.into_iter().map(|one| one.scope).collect();
    (scopes(down), scopes(back))
}

fn is_stood_down(cluster: &Cluster, node: &str) -> bool {
    cluster.ranking().verdict(node) == Some(&Verdict::Protected(Protection::StoodDown))
}

#[test]
fn so_many_pods_of_so_many_sets_are_another_controller() {
    type Act = fn(&mut Api, &mut Cluster, &str);
    let edit: Act = |api, cluster, name| rewrite(api, cluster, name, "-7");
    let table: [(&str, Act, &[&str], Vec<Scope>); 8] = [
        ("one pod is an edit", edit, &["web-001"], vec![]),
        ("one pod again and again", edit, &["web-001", "web-001", "web-001", "web-001"], vec![]),
        ("two pods", edit, &["web-001", "api-007"], vec![]),
        ("three pods of two sets on a node", edit, &["web-001", "web-002", "api-007"], vec![node("a1")]),
        ("three pods of two sets on two nodes", edit, &["web-001", "web-004", "api-007"], vec![]),
        ("three pods of one set on a node", edit, &["web-001", "web-002", "web-003"], vec![set("web")]),
        ("three pods of one set on two nodes", edit, &["web-001", "web-004", "web-005"], vec![set("web")]),
        ("three stripped", strip, &["web-001", "web-002", "web-003"], vec![set("web")]),
    ];
    for (label, act, names, expected) in table {
        let (mut api, mut cluster) = shop_at_rest();
        for name in names {
            api.now += SignedDuration::from_secs(20);
            act(&mut api, &mut cluster, name);
        }
        assert_eq!(stances(&mut cluster, api.now), (expected.clone(), vec![]), "{label}");
        let count = |is_node: bool| expected.iter().filter(|one| matches!(one, Scope::Node(_)) == is_node).count();
        assert_eq!(cluster.stood_down(), (count(true), count(false)), "{label}");
        assert_eq!(stances(&mut cluster, api.now), (vec![], vec![]), "{label}: told once");
    }
}

#[test]
fn where_it_stands_down_on_a_node_its_other_values_go_and_new_pods_get_none() {
    let (mut api, mut cluster) = shop_at_rest();
    come(&mut api, &mut cluster, ["web-001", "web-002", "api-007"], Some("5"));
    let look = cluster.look(api.now);
    assert_eq!(look.stances, [Stance { scope: node("a1"), until: Some(api.now + STAND_DOWN) }]);
    assert!(is_stood_down(&cluster, "a1") && !is_stood_down(&cluster, "b1"));
    let others = ["web-003", "api-008", "api-009"].map(shop);
    for name in &others {
        assert!(look.pods.contains(name), "{name:?} is told");
        assert_eq!(cluster.asked_of(&name.0, &name.1).map(|(_, value)| value), Some(None), "{name:?}");
    }
    let coming = api.create("api");
    assert_eq!(cluster.value_at_bind(&api.pods[&coming].pod, "a1", api.now), None);
    assert!(cluster.value_at_bind(&api.pods[&coming].pod, "b1", api.now).is_some());
    // Also where tiers would be written on protected nodes.
    api.set("api").constraints = vec![over(ZONE, 1)];
    api.tell_all(&mut cluster);
    cluster.look(api.now);
    assert_eq!(cluster.value_at_bind(&api.pods[&coming].pod, "a1", api.now), None);
    api.settle(&mut cluster);
    for name in &others {
        assert_eq!(api.pods[name].present, None, "{name:?}");
    }
    // What was rewritten is theirs for good, whatever becomes of the node.
    assert_eq!(api.pods[&shop("web-001")].present.as_deref(), Some("5"));
    assert_eq!(api.pods[&shop("web-001")].managed, None);
}

#[test]
fn where_it_stands_down_for_a_set_its_other_values_go_on_every_node() {
    let (mut api, mut cluster) = shop_at_rest();
    come(&mut api, &mut cluster, ["web-001", "web-002", "web-004"], Some("5"));
    let look = cluster.look(api.now);
    assert_eq!(look.stances, [Stance { scope: set("web"), until: Some(api.now + STAND_DOWN) }]);
    for name in ["web-003", "web-005", "web-006"] {
        assert!(look.pods.contains(&shop(name)), "{name} is told");
        assert_eq!(cluster.asked_of("shop", name).map(|(_, value)| value), Some(None), "{name}");
    }
    for name in ["api-007", "api-008", "api-009"] {
        assert_eq!(cluster.asked_of("shop", name), None, "{name} is of another set");
    }
    let coming = api.create("web");
    assert_eq!(cluster.value_at_bind(&api.pods[&coming].pod, "b1", api.now), None);
    // Also after it was scaled, and listed anew.
    api.set("web").replicas = 4;
    api.relist(&mut cluster);
    cluster.look(api.now);
    assert_eq!(cluster.value_at_bind(&api.pods[&coming].pod, "b1", api.now), None);
    // And after it was forgotten and came to be known again.
    cluster.remove_set("web-set");
    api.tell(&mut cluster, &Object::Set("web-set".into()));
    cluster.look(api.now);
    assert_eq!(cluster.value_at_bind(&api.pods[&coming].pod, "b1", api.now), None);
    assert!(cluster.set("web-set").is_some_and(|set| set.stood_down));
}

#[test]
fn a_node_that_comes_again_by_the_same_name_is_left_alone_still() {
    let (mut api, mut cluster) = shop_at_rest();
    come(&mut api, &mut cluster, ["web-001", "web-002", "api-007"], Some("5"));
    cluster.remove_node("a1");
    cluster.look(api.now);
    assert_eq!(cluster.ranking().verdict("a1"), None);
    api.tell(&mut cluster, &Object::Node("a1".into()));
    cluster.look(api.now);
    assert!(is_stood_down(&cluster, "a1"));
}

#[test]
fn it_comes_back_when_the_other_has_been_quiet_and_writes_its_values_again() {
    let (mut api, mut cluster) = shop_at_rest();
    come(&mut api, &mut cluster, ["web-001", "web-002", "api-007"], Some("5"));
    api.settle(&mut cluster);
    // They are still at it, on a pod that was ours and on one that is theirs already.
    api.now = after(250);
    rewrite(&mut api, &mut cluster, "web-001", "6");
    api.settle(&mut cluster);
    assert_eq!(cluster.next_look(after(700)), after(850), "not only each five minutes");
    for (seconds, is_over) in [(600, false), (849, false), (850, true)] {
        api.now = after(seconds);
        let expected = if is_over { vec![node("a1")] } else { vec![] };
        assert_eq!(stances(&mut cluster, api.now), (vec![], expected), "{seconds}");
        assert_eq!(is_stood_down(&cluster, "a1"), !is_over, "{seconds}");
    }
    assert_eq!(cluster.stood_down(), (0, 0));
    let others = ["web-003", "api-008", "api-009"].map(shop);
    assert_eq!(cluster.asking(), BTreeSet::from(others));
    api.settle(&mut cluster);
    // Somebody else again: twice as long.
    come(&mut api, &mut cluster, ["web-003", "api-008", "api-009"], Some("5"));
    let look = cluster.look(api.now);
    assert_eq!(look.stances, [Stance { scope: node("a1"), until: Some(api.now + STAND_DOWN * 2) }]);
}

#[test]
fn it_comes_back_to_a_set() {
    let (mut api, mut cluster) = shop_at_rest();
    come(&mut api, &mut cluster, ["web-001", "web-002", "web-004"], None);
    assert_eq!(stances(&mut cluster, api.now), (vec![set("web")], vec![]));
    api.settle(&mut cluster);
    api.now += STAND_DOWN;
    assert_eq!(stances(&mut cluster, api.now), (vec![], vec![set("web")]));
    let all: BTreeSet<_> = (1..=6).map(|at| shop(&format!("web-{at:03}"))).collect();
    assert_eq!(cluster.asking(), all, "what was taken away is not theirs");
}

#[test]
fn nothing_of_our_own_is_a_sign() {
    let (mut api, mut cluster) = shop_at_rest();
    // Two edits, which are yielded, and then all that Belay does in its turn.
    for name in ["web-001", "api-007"] {
        rewrite(&mut api, &mut cluster, name, "5");
    }
    strip(&mut api, &mut cluster, "web-004");
    api.settle(&mut cluster);
    assert_eq!(api.pods[&shop("web-001")].pod.standing, Standing::Theirs { value: 5, replaced: false });
    assert!(matches!(api.pods[&shop("web-004")].pod.standing, Standing::Ours(_)), "it was put back");
    for keep in [Some(Keep::DoNotDisrupt), None] {
        // Values are removed, and written again.
        api.node("a1").keep = keep;
        api.node("b1").keep = keep;
        api.tell_all(&mut cluster);
        api.settle(&mut cluster);
    }
    // Other values.
    api.node("b1").node.unschedulable = true;
    api.set("web").constraints = vec![over(ZONE, 1)];
    api.tell_all(&mut cluster);
    api.settle(&mut cluster);
    // What is theirs lives on.
    for name in ["web-001", "api-007", "web-002"].map(shop) {
        api.change(&name, |known| known.pod.restarts += 1);
        api.serve(&name);
        api.tell_pod(&mut cluster, &name);
    }
    for _ in 0..3 {
        let name = api.create("api");
        api.tell_pod(&mut cluster, &name);
        let value = cluster.value_at_bind(&api.pods[&name].pod, "a1", api.now);
        api.bind(&name, "a1", value);
        api.tell_pod(&mut cluster, &name);
    }
    assert_eq!(stances(&mut cluster, api.now), (vec![], vec![]));
    assert_eq!(cluster.stood_down(), (0, 0));
}

#[test]
fn what_another_part_of_belay_writes_makes_no_while_longer() {
    let (mut api, mut cluster) = shop_at_rest();
    come(&mut api, &mut cluster, ["web-001", "web-002", "web-003"], None);
    let until = cluster.look(api.now).stances[0].until.expect("it stands down");
    let name = shop("web-004");
    for value in [0, 100, 0, 200] {
        api.now += SignedDuration::from_secs(60);
        api.change(&name, |known| known.pod.standing = Standing::OtherPart(value));
        api.tell_pod(&mut cluster, &name);
        cluster.look(api.now);
        assert_eq!(cluster.rivals.next(), Some(until), "{value}");
        assert_eq!(cluster.asked_of("shop", "web-004"), None);
    }
    // Somebody else's is one there as well.
    api.now += SignedDuration::from_secs(60);
    rewrite(&mut api, &mut cluster, "web-004", "-7");
    assert_eq!(cluster.rivals.next(), Some(api.now + STAND_DOWN));
}

#[test]
fn a_value_that_was_never_ours_is_no_sign() {
    let (mut api, mut cluster) = shop_at_rest();
    for number in 0..5 {
        let name = api.create(if number % 2 == 0 { "web" } else { "api" });
        api.bind(&name, "a1", None);
        api.tell_pod(&mut cluster, &name);
        rewrite(&mut api, &mut cluster, &name.1, "5");
        rewrite(&mut api, &mut cluster, &name.1, "6");
    }
    assert_eq!(stances(&mut cluster, api.now), (vec![], vec![]));
}

#[test]
fn a_pod_that_took_another_ones_name_is_no_sign() {
    let (mut api, mut cluster) = shop_at_rest();
    for value in [Some("5"), None] {
        for name in ["web-001", "web-002", "api-007"].map(shop) {
            api.change(&name, |known| {
                known.pod.uid = format!("{}+", known.pod.uid).into();
                // Without a value it carries the record of the other, as one that was put back from a file may.
                let managed = known.managed.take().filter(|_| value.is_none());
                annotate(known, value, managed.as_deref());
            });
            api.tell_pod(&mut cluster, &name);
        }
        assert_eq!(stances(&mut cluster, api.now), (vec![], vec![]), "{value:?}");
        (api, cluster) = shop_at_rest();
    }
}

#[test]
fn edits_that_a_process_finds_when_it_begins_are_no_sign_of_a_controller_at_work() {
    let (mut api, mut cluster) = shop_at_rest();
    come(&mut api, &mut cluster, ["web-001", "web-002", "api-007"], Some("5"));
    assert_eq!(stances(&mut cluster, api.now), (vec![node("a1")], vec![]));
    // Nothing was yielded yet.
    let mut begun = Cluster::new(api.options.clone(), STAND_DOWN);
    for object in api.objects() {
        api.now += SignedDuration::from_secs(20);
        api.tell(&mut begun, &object);
    }
    assert_eq!(stances(&mut begun, api.now), (vec![], vec![]));
    let yielded = ["web-001", "web-002", "api-007"].map(shop);
    assert_eq!(begun.asking(), BTreeSet::from(yielded));
    // Until it comes again.
    api.settle(&mut begun);
    come(&mut api, &mut begun, ["web-003", "api-008", "api-009"], Some("5"));
    assert_eq!(stances(&mut begun, api.now), (vec![node("a1")], vec![]));
}

#[test]
fn one_edit_of_all_pods_stands_nothing_down_and_the_next_pass_of_a_controller_does() {
    let (mut api, mut cluster) = shop_at_rest();
    for at in 1..=6 {
        rewrite(&mut api, &mut cluster, &format!("web-{at:03}"), "5");
    }
    api.settle(&mut cluster);
    api.now += SignedDuration::from_secs(60);
    assert_eq!(stances(&mut cluster, api.now), (vec![], vec![]));
    // A pod that has come since.
    let name = api.create("web");
    api.bind(&name, "a1", Some(-1024));
    api.tell_pod(&mut cluster, &name);
    let mut other = (api.clone(), cluster.clone());
    rewrite(&mut api, &mut cluster, &name.1, "5");
    assert_eq!(stances(&mut cluster, api.now), (vec![set("web")], vec![]));
    // Or another value on one that is theirs already.
    rewrite(&mut other.0, &mut other.1, "web-001", "6");
    assert_eq!(stances(&mut other.1, api.now), (vec![set("web")], vec![]));
}

#[test]
fn edits_that_are_far_apart_are_edits() {
    let (mut api, mut cluster) = shop_at_rest();
    for name in ["web-001", "web-002", "web-003", "api-007", "api-008", "api-009"] {
        rewrite(&mut api, &mut cluster, name, "5");
        assert_eq!(stances(&mut cluster, api.now), (vec![], vec![]), "{name}");
        api.settle(&mut cluster);
        api.now += SignedDuration::from_mins(6);
    }
}

#[test]
fn it_comes_back_at_its_time_and_not_only_when_everything_is_looked_at() {
    let (mut api, mut cluster) = shop_at_rest();
    come(&mut api, &mut cluster, ["web-001", "web-002", "web-004"], None);
    api.settle(&mut cluster);
    api.now = after(619);
    cluster.look(api.now);
    assert_eq!((cluster.next_look(api.now), cluster.asking()), (after(620), BTreeSet::new()));
    api.now = after(620);
    let look = cluster.look(api.now);
    assert_eq!(look.stances, [Stance { scope: set("web"), until: None }]);
    assert_eq!(look.pods.len(), 6, "{:?}", look.pods);
}

#[test]
fn it_was_not_wrong_once_all_has_been_quiet_for_as_long_as_it_would_stand_down_next() {
    for (minutes, doubled) in [(0, true), (19, true), (20, false)] {
        let (mut api, mut cluster) = shop_at_rest();
        let comes = |api: &mut Api, cluster: &mut Cluster| {
            come(api, cluster, ["web-001", "web-002", "web-004"], None);
            cluster.look(api.now).stances.first().and_then(|stance| stance.until)
        };
        assert_eq!(comes(&mut api, &mut cluster), Some(api.now + STAND_DOWN));
        api.settle(&mut cluster);
        api.now += STAND_DOWN;
        api.settle(&mut cluster);
        api.now += SignedDuration::from_mins(minutes);
        api.settle(&mut cluster);
        let expected = STAND_DOWN * if doubled { 2 } else { 1 };
        assert_eq!(comes(&mut api, &mut cluster), Some(api.now + expected), "{minutes} minutes");
    }
}
