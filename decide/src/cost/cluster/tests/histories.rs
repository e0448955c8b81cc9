//! Random histories: what is taken in piece by piece comes to what is decided from scratch.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::prelude::*;

use super::super::*;
use super::api::*;
use super::steps::*;
use crate::cost::testing::{ZONE, node, over, set};
use crate::cost::{Occupancy, Readiness, Remembered};
use crate::testing::runner;

fn options() -> impl Strategy<Value = Options> {
    (1..8_usize, any::<bool>(), any::<bool>()).prop_map(|(max_nodes, span_zones, one_pool)| Options {
        max_nodes,
        span_zones,
        pools: one_pool.then(|| BTreeSet::from(["p0".into()])),
        ..Options::default()
    })
}

fn node_name(at: usize) -> Arc<str> {
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
    desired: BTreeMap<Arc<str>, Option<i32>>,
    order: Vec<String>,
    /// What was remembered when the nodes were ranked.
    last: Ranking,
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
        let (down, asked, desired, order, last) = Default::default();
        Self { api, cluster, untold, down, exact: true, asked, desired, order, last }
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
        let uid: Arc<str> = format!("{}-set", set_name(at)).into();
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
                Some(zone) => drop(Arc::make_mut(&mut facts.topology).insert(ZONE.into(), ZONES[zone].into())),
                None => drop(Arc::make_mut(&mut facts.topology).remove(ZONE)),
            }),
            Step::Pool { node, pool } => self.on_node(node, |facts| *facts = pooled(facts.clone(), pool)),
            Step::Claim { claim, node, leaving, drifted } => {
                let name: Arc<str> = format!("c{claim}").into();
                let known = Claim { name: name.clone(), node: node.map(node_name), leaving, drifted };
                self.api.claims.insert(name.clone(), known);
                self.untold.push(Object::Claim(name));
            }
            Step::Unclaim { claim } => {
                let name: Arc<str> = format!("c{claim}").into();
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
                let uid: Arc<str> = format!("{}-set", set_name(set)).into();
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
        let before = self.cluster.ranking().clone();
        let look = self.cluster.look(self.api.now);
        if look.ranked.is_some() {
            self.last = before;
        }
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

    /// A node has pods and a rank that no value on them says.
    fn is_written_in_part(&self) -> bool {
        let occupancy = |node: &str| self.cluster.occupancies.get(node);
        let is_unsaid = |found: &Occupancy| found.pods > 0 && found.standing_rank().is_none();
        self.cluster.ranking().order().filter_map(occupancy).any(is_unsaid)
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
        let (pass, names) =
            self.api.scratch(&self.down, Remembered { last: Some(&self.last), freed: Some(&self.cluster.freed) });
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
            // A process that has watched for longer knows where it stands down, ranks that no value
            // names yet, and which nodes were kept.
            let knows_more = !world.down.is_empty() || one.stood_down() != (0, 0) || world.is_written_in_part() || !world.cluster.freed.is_empty();
            if !knows_more && known(name) {
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
        prop_assert!(cluster.budgets.names().is_empty() && cluster.freed.is_empty());
    }
}
