//! Random histories: what is taken in piece by piece comes to what is decided from scratch.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;
use super::api::*;
use crate::cost::testing::{HOSTNAME, ZONE, node, over, set};
use crate::cost::{Constraint, PodHold, Readiness};
use crate::testing::runner;
use crate::view::PodPhase;

const ZONES: [&str; 3] = ["a", "b", "c"];
const NODES: usize = 7;
const SETS: usize = 4;
const SETTLE: i64 = 300;

/// Something that happens. Numbers choose among what is there.
#[derive(Clone, Debug)]
enum Step {
    Create {
        set: usize,
    },
    Run {
        set: usize,
        node: usize,
    },
    /// With or without the webhook.
    Bind {
        pod: usize,
        node: usize,
        valued: bool,
    },
    Serve {
        pod: usize,
    },
    Fail {
        pod: usize,
        phase: PodPhase,
    },
    Unready {
        pod: usize,
        ago: i64,
    },
    Restart {
        pod: usize,
    },
    End {
        pod: usize,
    },
    Delete {
        pod: usize,
    },
    Replace {
        pod: usize,
    },
    Own {
        pod: usize,
        set: Option<usize>,
    },
    Relabel {
        pod: usize,
        app: usize,
    },
    Hold {
        pod: usize,
        hold: Option<PodHold>,
        minutes: Option<i64>,
    },
    Edit {
        pod: usize,
        value: &'static str,
    },
    Strip {
        pod: usize,
        record: bool,
    },
    Prefer {
        pod: usize,
        priority: i32,
    },
    Touch {
        pod: usize,
    },
    Come {
        node: usize,
        zone: usize,
        minutes: i64,
    },
    Go {
        node: usize,
    },
    Cordon {
        node: usize,
        cordoned: bool,
    },
    Keep {
        node: usize,
        keep: Option<Keep>,
    },
    Zone {
        node: usize,
        zone: Option<usize>,
    },
    Pool {
        node: usize,
        pool: Option<usize>,
    },
    Claim {
        claim: usize,
        node: Option<usize>,
        leaving: bool,
        drifted: bool,
    },
    Unclaim {
        claim: usize,
    },
    Still {
        pool: usize,
        still: Option<bool>,
    },
    Budget {
        budget: usize,
        app: usize,
        exhausted: Option<i64>,
        lets_unready_go: bool,
        created: i64,
    },
    Unbudget {
        budget: usize,
    },
    Scale {
        set: usize,
        replicas: i32,
    },
    Constrain {
        set: usize,
        constraints: Vec<Constraint>,
    },
    Forget {
        set: usize,
    },
    Write {
        which: usize,
    },
    WriteAll,
    /// Time that brings no look at everything.
    Tick {
        seconds: i64,
    },
    Settle {
        settles: i64,
        seconds: i64,
    },
    Relist,
}

fn constraints() -> impl Strategy<Value = Vec<Constraint>> {
    prop_oneof![
        Just(vec![]),
        (1..3).prop_map(|skew| vec![over(ZONE, skew)]),
        Just(vec![over(HOSTNAME, 1)]),
        Just(vec![Constraint { hard: false, ..over(ZONE, 1) }]),
    ]
}

fn keep() -> impl Strategy<Value = Option<Keep>> {
    prop_oneof![2 => Just(None), 1 => Just(Some(Keep::DoNotDisrupt)), 1 => Just(Some(Keep::ControlPlane))]
}

fn of_pods() -> impl Strategy<Value = Step> {
    let pod = 0..40_usize;
    let ended = prop_oneof![Just(PodPhase::Succeeded), Just(PodPhase::Failed), Just(PodPhase::Unknown)];
    let hold = prop_oneof![Just(None), Just(Some(PodHold::DoNotDisrupt)), Just(Some(PodHold::Unmanaged))];
    prop_oneof![
        4 => (0..SETS).prop_map(|set| Step::Create { set }),
        3 => (0..SETS, 0..NODES).prop_map(|(set, node)| Step::Run { set, node }),
        5 => (pod.clone(), 0..NODES, any::<bool>()).prop_map(|(pod, node, valued)| Step::Bind { pod, node, valued }),
        5 => pod.clone().prop_map(|pod| Step::Serve { pod }),
        1 => (pod.clone(), ended).prop_map(|(pod, phase)| Step::Fail { pod, phase }),
        1 => (pod.clone(), 0..700_i64).prop_map(|(pod, ago)| Step::Unready { pod, ago }),
        1 => pod.clone().prop_map(|pod| Step::Restart { pod }),
        1 => pod.clone().prop_map(|pod| Step::End { pod }),
        2 => pod.clone().prop_map(|pod| Step::Delete { pod }),
        1 => pod.clone().prop_map(|pod| Step::Replace { pod }),
        2 => (pod.clone(), prop::option::of(0..SETS)).prop_map(|(pod, set)| Step::Own { pod, set }),
        1 => (pod.clone(), 0..SETS).prop_map(|(pod, app)| Step::Relabel { pod, app }),
        2 => (pod.clone(), hold, prop::option::of(0..20_i64))
            .prop_map(|(pod, hold, minutes)| Step::Hold { pod, hold, minutes }),
        2 => (pod.clone(), prop_oneof![Just("7"), Just("-7"), Just("junk")])
            .prop_map(|(pod, value)| Step::Edit { pod, value }),
        2 => (pod.clone(), any::<bool>()).prop_map(|(pod, record)| Step::Strip { pod, record }),
        1 => (pod.clone(), prop_oneof![Just(0), Just(i32::MIN)])
            .prop_map(|(pod, priority)| Step::Prefer { pod, priority }),
        1 => pod.prop_map(|pod| Step::Touch { pod }),
    ]
}

fn of_others() -> impl Strategy<Value = Step> {
    let (node, zone) = (0..NODES, 0..ZONES.len());
    prop_oneof![
        3 => (node.clone(), zone.clone(), 0..30_i64)
            .prop_map(|(node, zone, minutes)| Step::Come { node, zone, minutes }),
        2 => node.clone().prop_map(|node| Step::Go { node }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, cordoned)| Step::Cordon { node, cordoned }),
        2 => (node.clone(), keep()).prop_map(|(node, keep)| Step::Keep { node, keep }),
        1 => (node.clone(), prop::option::of(zone)).prop_map(|(node, zone)| Step::Zone { node, zone }),
        1 => (node.clone(), prop::option::of(0..2_usize)).prop_map(|(node, pool)| Step::Pool { node, pool }),
        3 => (0..5_usize, prop::option::of(node), any::<bool>(), any::<bool>())
            .prop_map(|(claim, node, leaving, drifted)| Step::Claim { claim, node, leaving, drifted }),
        1 => (0..5_usize).prop_map(|claim| Step::Unclaim { claim }),
        2 => (0..2_usize, prop::option::of(any::<bool>())).prop_map(|(pool, still)| Step::Still { pool, still }),
        3 => (0..3_usize, 0..SETS, prop::option::of(0..900_i64), any::<bool>(), 0..1500_i64).prop_map(
            |(budget, app, exhausted, lets_unready_go, created)| {
                Step::Budget { budget, app, exhausted, lets_unready_go, created }
            }
        ),
        1 => (0..3_usize).prop_map(|budget| Step::Unbudget { budget }),
        2 => (0..SETS, prop_oneof![Just(0), Just(1), Just(2), Just(20)])
            .prop_map(|(set, replicas)| Step::Scale { set, replicas }),
        2 => (0..SETS, constraints()).prop_map(|(set, constraints)| Step::Constrain { set, constraints }),
        1 => (0..SETS).prop_map(|set| Step::Forget { set }),
    ]
}

fn of_time_and_writes() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..40_usize).prop_map(|which| Step::Write { which }),
        4 => Just(Step::WriteAll),
        2 => (1..200_i64).prop_map(|seconds| Step::Tick { seconds }),
        5 => (1..4_i64, 0..SETTLE).prop_map(|(settles, seconds)| Step::Settle { settles, seconds }),
        1 => Just(Step::Relist),
    ]
}

fn history() -> impl Strategy<Value = Vec<(Step, bool, u32)>> {
    let step = prop_oneof![5 => of_pods(), 3 => of_others(), 3 => of_time_and_writes()];
    vec((step, any::<bool>(), any::<u32>()), 1..90)
}

fn options() -> impl Strategy<Value = Options> {
    (1..8_usize, any::<bool>(), any::<bool>()).prop_map(|(max_nodes, span_zones, one_pool)| Options {
        max_nodes,
        span_zones,
        pools: one_pool.then(|| BTreeSet::from(["p0".into()])),
        ..Options::default()
    })
}

fn node_name(at: usize) -> Box<str> {
    format!("n{at}").into()
}

fn set_name(at: usize) -> String {
    format!("s{at}")
}

struct History {
    api: Api,
    cluster: Cluster,
    /// What changed and was not told yet.
    untold: Vec<Object>,
    /// Where Belay stands down, as it was told.
    down: BTreeSet<Scope>,
    /// The last look at everything was at this very time, so that time makes no difference.
    exact: bool,
    /// The pods that asked for a write at the last look, and for which.
    asked: BTreeMap<PodName, (Box<str>, Option<i32>)>,
    /// What every pod ought to have carried then, by UID.
    desired: BTreeMap<Box<str>, Option<i32>>,
    order: Vec<String>,
}

impl History {
    fn of(options: Options) -> Self {
        let mut api = Api::new(options.clone());
        for at in 0..NODES - 2 {
            api.nodes.insert(node_name(at), pooled(node(&node_name(at), ZONES[at % 3]), Some(at % 2)));
        }
        for at in 0..SETS {
            let constraints = if at % 2 == 0 { vec![] } else { vec![over(ZONE, 1)] };
            api = api.with_set(&set_name(at), &[("n0", 1), ("n1", 1)]);
            api.set(&set_name(at)).constraints = constraints;
        }
        let cluster = Cluster::new(options, STAND_DOWN);
        let untold = api.objects().into_iter().collect();
        let (down, asked, desired) = Default::default();
        Self { api, cluster, untold, down, exact: true, asked, desired, order: Vec::new() }
    }

    fn pod(&self, at: usize) -> Option<PodName> {
        let pods = &self.api.pods;
        pods.keys().nth(at.checked_rem(pods.len())?).cloned()
    }

    fn on_pod(&mut self, at: usize, bend: impl FnOnce(&mut KnownPod)) {
        if let Some(name) = self.pod(at) {
            self.api.change(&name, bend);
            self.untold.push(Object::Pod(name));
        }
    }

    fn on_node(&mut self, at: usize, bend: impl FnOnce(&mut NodeFacts)) {
        if let Some(facts) = self.api.nodes.get_mut(&node_name(at)) {
            bend(facts);
            self.untold.push(Object::Node(node_name(at)));
        }
    }

    fn on_set(&mut self, at: usize, bend: impl FnOnce(&mut SetView)) {
        let uid: Box<str> = format!("{}-set", set_name(at)).into();
        let fresh = || KnownSet { set: set(&set_name(at), 20), deployment: None };
        bend(&mut self.api.sets.entry(uid.clone()).or_insert_with(fresh).set);
        self.untold.push(Object::Set(uid));
    }

    fn step(&mut self, step: Step) {
        let now = self.api.now;
        match step {
            Step::Create { .. }
            | Step::Run { .. }
            | Step::Bind { .. }
            | Step::Serve { .. }
            | Step::Fail { .. }
            | Step::Unready { .. }
            | Step::Restart { .. }
            | Step::End { .. }
            | Step::Delete { .. }
            | Step::Replace { .. } => self.live(step),
            Step::Own { pod, set } => {
                self.on_pod(pod, |known| known.pod.set = set.map(|at| format!("{}-set", set_name(at)).into()));
            }
            Step::Relabel { pod, app } => {
                self.on_pod(pod, |known| known.labels = labels(&[("app", &set_name(app))]));
            }
            Step::Hold { pod, hold, minutes } => self.on_pod(pod, |known| {
                known.pod.hold = hold;
                let minutes = minutes.filter(|_| hold.is_some());
                known.hold_until = minutes.map(|minutes| now + SignedDuration::from_mins(minutes));
            }),
            Step::Edit { pod, value } => self.on_pod(pod, |known| {
                let managed = known.managed.take();
                annotate(known, Some(value), managed.as_deref());
            }),
            Step::Strip { pod, record } => self.on_pod(pod, |known| {
                let managed = known.managed.take().filter(|_| !record);
                annotate(known, None, managed.as_deref());
            }),
            Step::Prefer { pod, priority } => self.on_pod(pod, |known| known.pod.priority = priority),
            Step::Touch { pod } => self.on_pod(pod, |_| {}),
            Step::Write { which } => self.write(which),
            Step::WriteAll => (0..self.cluster.asking().len()).for_each(|at| self.write(at)),
            Step::Tick { seconds } => {
                let left = SETTLE - 1 - now.as_second().rem_euclid(SETTLE);
                if left > 0 {
                    self.exact = false;
                    self.api.now += SignedDuration::from_secs(seconds.min(left));
                }
            }
            Step::Settle { settles, seconds } => {
                let began = now.as_second() - now.as_second().rem_euclid(SETTLE);
                self.api.now = Timestamp::from_second(began + settles * SETTLE + seconds).unwrap();
                self.exact = true;
                self.look(0);
            }
            Step::Relist => {
                self.untold.clear();
                self.api.relist(&mut self.cluster);
            }
            other => self.around(other),
        }
    }

    /// Pods that come, live and go.
    fn live(&mut self, step: Step) {
        let now = self.api.now;
        match step {
            Step::Create { set } => {
                let name = self.api.create(&set_name(set));
                self.untold.push(Object::Pod(name));
            }
            Step::Run { set, node } => {
                let name = self.api.run(&set_name(set), &node_name(node));
                self.untold.push(Object::Pod(name));
            }
            Step::Bind { pod, node, valued } => {
                let unbound = self.api.pods.iter().filter(|(_, known)| known.pod.node.is_none());
                let unbound: Vec<PodName> = unbound.map(|(name, _)| name.clone()).collect();
                let Some(name) = pod.checked_rem(unbound.len()).map(|at| unbound[at].clone()) else { return };
                let coming = self.api.pods[&name].pod.clone();
                let node = node_name(node);
                let value = valued.then(|| self.cluster.value_at_bind(&coming, &node, now)).flatten();
                if valued {
                    self.cluster.assume(&coming, &node, value, now);
                }
                self.api.bind(&name, &node, value);
                self.untold.push(Object::Pod(name));
            }
            Step::Serve { pod } => {
                let Some(name) = self.pod(pod) else { return };
                if self.api.pods[&name].pod.node.is_some() {
                    self.api.serve(&name);
                    self.untold.push(Object::Pod(name));
                }
            }
            Step::Fail { pod, phase } => self.on_pod(pod, |known| known.pod.phase = phase),
            Step::Unready { pod, ago } => self.on_pod(pod, |known| {
                known.pod.readiness = Readiness::NotReady(Some(now - SignedDuration::from_secs(ago)));
            }),
            Step::Restart { pod } => self.on_pod(pod, |known| known.pod.restarts += 1),
            Step::End { pod } => self.on_pod(pod, |known| known.pod.terminating = true),
            Step::Delete { pod } => {
                if let Some(name) = self.pod(pod) {
                    self.api.pods.remove(&name);
                    self.untold.push(Object::Pod(name));
                }
            }
            Step::Replace { pod } => self.on_pod(pod, |known| {
                known.pod.uid = format!("{}+", known.pod.uid).into();
                known.pod.terminating = false;
                annotate(known, None, None);
            }),
            other => panic!("not of pods: {other:?}"),
        }
    }

    /// What pods live in.
    fn around(&mut self, step: Step) {
        let now = self.api.now;
        match step {
            Step::Come { node: at, zone, minutes } => {
                let created = now - SignedDuration::from_mins(minutes);
                let facts = NodeFacts { created, ..node(&node_name(at), ZONES[zone]) };
                self.api.nodes.insert(node_name(at), pooled(facts, Some(at % 2)));
                self.untold.push(Object::Node(node_name(at)));
            }
            Step::Go { node } => {
                self.api.nodes.remove(&node_name(node));
                self.untold.push(Object::Node(node_name(node)));
            }
            Step::Cordon { node, cordoned } => self.on_node(node, |facts| facts.node.unschedulable = cordoned),
            Step::Keep { node, keep } => self.on_node(node, |facts| facts.keep = keep),
            Step::Zone { node, zone } => self.on_node(node, |facts| match zone {
                Some(zone) => drop(facts.topology.insert(ZONE.into(), ZONES[zone].into())),
                None => drop(facts.topology.remove(ZONE)),
            }),
            Step::Pool { node, pool } => self.on_node(node, |facts| *facts = pooled(facts.clone(), pool)),
            Step::Claim { claim, node, leaving, drifted } => {
                let name: Box<str> = format!("c{claim}").into();
                let known = Claim { name: name.clone(), node: node.map(node_name), leaving, drifted };
                self.api.claims.insert(name.clone(), known);
                self.untold.push(Object::Claim(name));
            }
            Step::Unclaim { claim } => {
                let name: Box<str> = format!("c{claim}").into();
                self.api.claims.remove(&name);
                self.untold.push(Object::Claim(name));
            }
            Step::Still { pool, still } => {
                let name: Box<str> = format!("p{pool}").into();
                match still {
                    Some(still) => drop(self.api.pools.insert(name.clone(), still)),
                    None => drop(self.api.pools.remove(&name)),
                }
                self.untold.push(Object::Pool(name));
            }
            Step::Budget { budget: at, app, exhausted, lets_unready_go, created } => {
                let name = shop(&format!("b{at}"));
                let budget = Budget {
                    exhausted_since: exhausted.map(|ago| now - SignedDuration::from_secs(ago)),
                    created: now - SignedDuration::from_secs(created),
                    lets_unready_go,
                    ..budget(&name.1, ("app", &set_name(app)))
                };
                self.api.budgets.insert(name.clone(), budget);
                self.untold.push(Object::Budget(name));
            }
            Step::Unbudget { budget } => {
                let name = shop(&format!("b{budget}"));
                self.api.budgets.remove(&name);
                self.untold.push(Object::Budget(name));
            }
            Step::Scale { set, replicas } => self.on_set(set, |set| set.replicas = replicas),
            Step::Constrain { set, constraints } => self.on_set(set, |set| set.constraints = constraints),
            Step::Forget { set } => {
                let uid: Box<str> = format!("{}-set", set_name(set)).into();
                self.api.sets.remove(&uid);
                self.untold.push(Object::Set(uid));
            }
            other => panic!("not around pods: {other:?}"),
        }
    }

    /// On the pod as it was told, which may be out of date.
    fn write(&mut self, which: usize) {
        let asking = self.cluster.asking();
        let Some(name) = which.checked_rem(asking.len()).and_then(|at| asking.into_iter().nth(at)) else { return };
        if self.api.perform(&self.cluster, &name) {
            self.untold.push(Object::Pod(name));
        }
    }

    /// The watches bring what changed, in whatever order and some of it twice, and the cluster is looked at.
    fn look(&mut self, seed: u32) {
        let mut untold = std::mem::take(&mut self.untold);
        untold.sort_by_key(|object| mixed(object, seed));
        for object in &untold {
            self.api.tell(&mut self.cluster, object);
        }
        let look = self.cluster.look(self.api.now);
        for stance in &look.stances {
            match stance.until {
                Some(_) => assert!(self.down.insert(stance.scope.clone()), "stands down twice: {stance:?}"),
                None => assert!(self.down.remove(&stance.scope), "was not gone: {stance:?}"),
            }
        }
        self.check_asking(&look);
        self.check_order(&look);
        if self.exact {
            self.check_against_scratch();
        }
        self.desired = self
            .api
            .pods
            .iter()
            .map(|(name, known)| (known.pod.uid.clone(), desired_of(&self.cluster, name)))
            .collect();
        assert_eq!(self.cluster.look(self.api.now), Look::default(), "nothing changed");
    }

    /// A pod that asks for another write than before is told.
    fn check_asking(&mut self, look: &Look) {
        let asking = self.cluster.asking().into_iter().map(|name| {
            let (known, desired) = self.cluster.asked_of(&name.0, &name.1).expect("it asks");
            (name.clone(), (known.resource_version.clone(), desired))
        });
        let asking: BTreeMap<_, _> = asking.collect();
        for (name, what) in &asking {
            assert!(look.pods.contains(name) || self.asked.get(name) == Some(what), "{name:?} asks for {what:?}");
        }
        self.asked = asking;
    }

    fn check_order(&mut self, look: &Look) {
        let order: Vec<String> = self.cluster.ranking().order().map(str::to_owned).collect();
        assert_eq!(look.ranked.is_some_and(|ranked| ranked.new_order), order != self.order);
        self.order = order;
    }

    fn check_against_scratch(&self) {
        let (pass, names) = self.api.scratch(&self.down);
        assert_eq!(*self.cluster.ranking(), pass.ranking);
        for (at, name) in names.iter().enumerate() {
            let known = &self.api.pods[name];
            let desired = desired_of(&self.cluster, name);
            let (known_set, written) = (known.pod.set.as_ref(), known.pod.standing.written());
            if known_set.is_some_and(|uid| !self.api.sets.contains_key(uid)) {
                // Of a ReplicaSet that is not known nothing is decided.
                let before = self.desired.get(&known.pod.uid).copied();
                assert!(desired == written || before == Some(desired) || desired.is_none(), "{name:?}: {desired:?}");
                continue;
            }
            assert_eq!(desired, pass.desired[at], "{known:?}");
            let asks = self.cluster.asking().contains(name);
            assert_eq!(asks, pass.writes.contains(&at), "{known:?} ought to carry {desired:?}");
        }
        assert_eq!(self.cluster.pods.all().count(), names.len());
        let down = |is_node: bool| self.down.iter().filter(|scope| matches!(scope, Scope::Node(_)) == is_node).count();
        assert_eq!(self.cluster.stood_down(), (down(true), down(false)));
    }
}

fn pooled(facts: NodeFacts, pool: Option<usize>) -> NodeFacts {
    NodeFacts { pool: pool.map(|at| format!("p{at}").into()), ..facts }
}

/// A number that puts objects in another order for each seed.
fn mixed(object: &Object, seed: u32) -> u32 {
    let text = format!("{object:?}");
    text.bytes().fold(seed | 1, |mix, byte| mix.wrapping_mul(31).rotate_left(7) ^ u32::from(byte))
}

/// The cluster of a process that began just now: told all there is, in this order.
fn begun(api: &Api, seed: u32) -> Cluster {
    let mut objects: Vec<Object> = api.objects().into_iter().collect();
    objects.sort_by_key(|object| mixed(object, seed));
    let mut cluster = Cluster::new(api.options.clone(), STAND_DOWN);
    for object in &objects {
        api.tell(&mut cluster, object);
    }
    cluster.look(api.now);
    cluster
}

proptest! {
    #![proptest_config(runner(250))]

    #[test]
    fn a_cluster_told_piece_by_piece_comes_to_what_is_decided_from_scratch(
        history in history(),
        options in options(),
    ) {
        let mut world = History::of(options);
        for (step, looks, seed) in history {
            world.step(step);
            if looks {
                world.look(seed);
            }
        }
        world.step(Step::Settle { settles: 1, seconds: 0 });
    }

    #[test]
    fn the_order_in_which_a_process_is_told_of_a_cluster_changes_nothing(
        history in history(),
        options in options(),
        seeds in (any::<u32>(), any::<u32>()),
    ) {
        let mut world = History::of(options);
        for (step, _, _) in history {
            world.step(step);
        }
        world.step(Step::Settle { settles: 1, seconds: 0 });
        let (one, other) = (begun(&world.api, seeds.0), begun(&world.api, seeds.1));
        prop_assert_eq!(one.ranking(), other.ranking());
        prop_assert_eq!(one.asking(), other.asking());
        for name in world.api.pods.keys() {
            prop_assert_eq!(desired_of(&one, name), desired_of(&other, name));
            let known = |name: &PodName| world.api.pods[name].pod.set.as_ref().is_none_or(|uid| world.api.sets.contains_key(uid));
            // A process that has watched for longer knows where it stands down.
            if world.down.is_empty() && one.stood_down() == (0, 0) && known(name) {
                prop_assert_eq!(desired_of(&one, name), desired_of(&world.cluster, name));
            }
        }
    }

    #[test]
    fn a_list_anew_of_what_is_known_changes_nothing(history in history(), options in options()) {
        let mut world = History::of(options);
        for (step, _, _) in history {
            world.step(step);
        }
        world.step(Step::Settle { settles: 1, seconds: 0 });
        let asking = world.cluster.asking();
        world.api.relist(&mut world.cluster);
        let look = world.cluster.look(world.api.now);
        prop_assert_eq!(look.ranked, None);
        prop_assert_eq!(look.pods, asking);
        prop_assert_eq!(look.stances, vec![]);
    }

    #[test]
    fn nothing_stays_of_a_cluster_that_is_gone(history in history(), options in options()) {
        let mut world = History::of(options);
        for (step, _, _) in history {
            world.step(step);
        }
        let mut api = Api::new(world.api.options.clone());
        api.now = world.api.now;
        api.relist(&mut world.cluster);
        world.cluster.look(api.now);
        let cluster = &world.cluster;
        prop_assert!(cluster.pods.is_empty() && cluster.sets.is_empty() && cluster.sets_of.is_empty());
        prop_assert!(cluster.told.is_empty() && cluster.nodes.is_empty() && cluster.occupancies.is_empty());
        prop_assert!(cluster.claims.is_empty() && cluster.claims_of.is_empty() && cluster.still_pools.is_empty());
        prop_assert!(cluster.budgets.names().is_empty());
    }
}
