use belay_decide::cost::cluster::{Labels, Selects};
use belay_decide::cost::{CostPod, Keep, Options, Protection, Readiness, SetView, Standing, Verdict};
use belay_decide::view::{NodeView, PodPhase};
use futures::FutureExt as _;
use jiff::SignedDuration;

use super::*;

fn long_ago() -> Timestamp {
    Clock::wall() - SignedDuration::from_hours(24)
}

/// Node number `at`, of the pool of that number.
fn node(at: usize) -> NodeFacts {
    NodeFacts {
        node: NodeView { name: format!("n{at}").into(), ..NodeView::default() },
        created: long_ago(),
        pool: Some(format!("pool{at}").into()),
        topology: Arc::default(),
        leaving: false,
        drifted: false,
        keep: None,
        stood_down: false,
    }
}

/// A pod on the node of that number.
fn pod(at: usize) -> KnownPod {
    let name = at.to_string();
    KnownPod {
        pod: CostPod {
            namespace: "shop".into(),
            name: format!("web-{at}").into(),
            uid: format!("web-{at}-uid").into(),
            set: Some(format!("set{at}").into()),
            node: Some(format!("n{at}").into()),
            phase: PodPhase::Running,
            terminating: false,
            readiness: Readiness::Ready(Some(long_ago())),
            restarts: 0,
            sidecar_restarts: 0,
            created: long_ago(),
            priority: 0,
            standing: Standing::Absent,
            movable: true,
            hold: None,
            blocked_since: None,
        },
        resource_version: "1".into(),
        present: None,
        managed: None,
        labels: Arc::new(Labels::from([("app".to_owned(), name)])),
        hold_until: None,
    }
}

fn set(at: usize) -> KnownSet {
    let set = SetView {
        namespace: "shop".into(),
        name: format!("web-{at}").into(),
        uid: format!("set{at}").into(),
        replicas: 2,
        constraints: Vec::new(),
        stood_down: false,
    };
    KnownSet { set, deployment: None }
}

/// Used up, for the pod of that number.
fn budget(at: usize) -> Budget {
    let name = at.to_string();
    let selects: Selects = Arc::new(move |labels| labels.get("app") == Some(&name));
    Budget {
        namespace: "shop".into(),
        name: format!("web-{at}").into(),
        created: long_ago(),
        selector: at.to_string().into(),
        selects,
        exhausted_since: Some(long_ago()),
        lets_unready_go: false,
    }
}

/// Of the node of that number, which has drifted.
fn claim(at: usize) -> Claim {
    Claim { name: format!("c{at}").into(), node: Some(format!("n{at}").into()), leaving: false, drifted: true }
}

fn pool(at: usize) -> Pool {
    Pool { name: format!("pool{at}").into(), is_still: true }
}

/// A cache that knows three nodes and three pods.
fn filled() -> Costs {
    let costs = Costs::new(Cluster::new(Options::default(), SignedDuration::from_mins(10)));
    costs.write(|cluster| {
        for at in 1..=3 {
            cluster.put_node(node(at));
            cluster.put_pod(pod(at), Clock::wall());
        }
    });
    costs
}

fn empty() -> Costs {
    Costs::new(Cluster::new(Options::default(), SignedDuration::from_mins(10)))
}

/// What comes, changes nothing or goes by the watch of a kind shows in the cache, and is told.
fn shows<V: Send>(what: &str, costs: &Costs, make: impl Fn(usize) -> V, is_seen: impl Fn(&Cluster, usize) -> bool)
where
    CostSink: Sink<V>,
{
    let mut sink = CostSink(Some(costs.clone()));
    let expect = |step: &str, expected: &[usize]| {
        costs.write(|cluster| cluster.look(Clock::wall()));
        let seen: Vec<_> = costs.read(|cluster| (1..=3).filter(|at| is_seen(cluster, *at)).collect());
        assert_eq!(seen, expected, "{what}: {step}");
        assert!(costs.changed().now_or_never().is_some(), "{what}: {step} is told");
        assert!(costs.changed().now_or_never().is_none(), "{what}: {step} is told once, and looking is not told");
    };
    sink.apply(make(1));
    sink.apply(make(2));
    expect("two that are new", &[1, 2]);
    sink.apply(make(2));
    expect("the same again", &[1, 2]);
    sink.replace(vec![make(3), make(2)]);
    expect("a list without the first and with another", &[2, 3]);
    sink.delete(make(2));
    expect("one that is gone", &[3]);
    sink.delete(make(1));
    expect("one that nobody knows", &[3]);
    sink.replace(Vec::new());
    expect("a list of none", &[]);
}

#[test]
fn what_each_watch_brings_and_takes_shows_in_the_cache_and_is_told() {
    let is_blocked = |cluster: &Cluster, at: usize| {
        let verdict = cluster.ranking().verdict(&format!("n{at}"));
        matches!(verdict, Some(Verdict::Protected(Protection::Budget { .. })))
    };
    let of_node = |cluster: &Cluster, at: usize| cluster.node(&format!("n{at}")).cloned();
    shows("nodes", &empty(), node, |cluster, at| of_node(cluster, at).is_some());
    shows("pods", &empty(), pod, |cluster, at| cluster.known_set_of("shop", &format!("web-{at}")).is_some());
    shows("ReplicaSets", &empty(), set, |cluster, at| cluster.set(&format!("set{at}")).is_some());
    shows("budgets", &filled(), budget, is_blocked);
    shows("NodeClaims", &filled(), claim, |cluster, at| of_node(cluster, at).is_some_and(|node| node.drifted));
    let is_still =
        |cluster: &Cluster, at| of_node(cluster, at).and_then(|node| node.keep) == Some(Keep::ConsolidationOff);
    shows("NodePools", &filled(), pool, is_still);
}

#[test]
fn a_list_brings_what_changed_since_the_last() {
    let costs = filled();
    let mut sink = CostSink(Some(costs.clone()));
    let is = |ask: &dyn Fn(&Cluster) -> bool| costs.read(ask);
    sink.replace(vec![pool(1)]);
    sink.replace(vec![Pool { is_still: false, ..pool(1) }]);
    assert!(is(&|cluster| cluster.node("n1").unwrap().keep.is_none()));
    sink.replace(vec![claim(1)]);
    sink.replace(vec![Claim { node: Some("n2".into()), ..claim(1) }]);
    assert!(is(&|cluster| !cluster.node("n1").unwrap().drifted && cluster.node("n2").unwrap().drifted));
    sink.replace(vec![NodeFacts { leaving: true, ..node(1) }]);
    assert!(is(&|cluster| cluster.node("n1").unwrap().leaving && cluster.node("n2").is_none()));
    let mut bigger = set(1);
    bigger.set.replicas = 9;
    sink.replace(vec![set(1)]);
    sink.replace(vec![bigger]);
    assert!(is(&|cluster| cluster.set("set1").unwrap().replicas == 9));
    let mut moved = pod(1);
    moved.pod.set = None;
    sink.replace(vec![moved]);
    assert!(is(&|cluster| cluster.known_set_of("shop", "web-1") == Some(None)));
}

#[test]
fn a_pod_of_another_namespace_is_another_pod() {
    let costs = empty();
    let mut sink = CostSink(Some(costs.clone()));
    let mut other = pod(1);
    other.pod.namespace = "bank".into();
    sink.replace(vec![pod(1), other.clone()]);
    sink.delete(pod(1));
    let is_known = |namespace: &str| costs.read(|cluster| cluster.known_set_of(namespace, "web-1").is_some());
    assert!(is_known("bank") && !is_known("shop"));
    sink.replace(vec![pod(1)]);
    assert!(!is_known("bank") && is_known("shop"));
}

#[tokio::test]
async fn who_waits_for_a_change_is_told_of_one_that_came_before() {
    let costs = empty();
    CostSink(Some(costs.clone())).apply(node(1));
    costs.clone().changed().await;
    let waiting = tokio::spawn({
        let costs = costs.clone();
        async move { costs.changed().await }
    });
    CostSink(Some(costs)).apply(node(2));
    waiting.await.unwrap();
}

#[test]
fn without_a_cache_what_a_watch_brings_is_swallowed() {
    let mut sink = CostSink(None);
    sink.replace(vec![node(1)]);
    sink.apply(node(1));
    sink.delete(node(1));
}

/// Notes what it is fed.
#[derive(Clone, Default)]
struct Log(Arc<parking_lot::Mutex<Vec<String>>>);

impl Sink<u8> for Log {
    fn replace(&mut self, objects: Vec<u8>) {
        self.0.lock().push(format!("all {objects:?}"));
    }

    fn apply(&mut self, object: u8) {
        self.0.lock().push(format!("put {object}"));
    }

    fn delete(&mut self, object: u8) {
        self.0.lock().push(format!("take {object}"));
    }
}

#[test]
fn of_two_caches_each_is_fed_what_is_for_it() {
    let (first, second) = (Log::default(), Log::default());
    let mut pair = Pair(first.clone(), second.clone());
    let both: [(Option<u8>, Option<u8>); 4] = [(Some(1), Some(11)), (Some(2), None), (None, Some(12)), (None, None)];
    pair.replace(both.to_vec());
    for one in both {
        pair.apply(one);
    }
    for one in both {
        pair.delete(one);
    }
    pair.replace(vec![(None, Some(13))]);
    assert_eq!(*first.0.lock(), ["all [1, 2]", "put 1", "put 2", "take 1", "take 2", "all []"]);
    assert_eq!(*second.0.lock(), ["all [11, 12]", "put 11", "put 12", "take 11", "take 12", "all [13]"]);
}
