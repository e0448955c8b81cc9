//! The objects of a small cluster as the API server has them, and what ought to follow from them: worked out from
//! scratch, and without the code under test as far as that goes beyond [`pass_remembering`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::super::*;
use crate::action::Action;
use crate::cost::testing::{node, pod, set};
use crate::cost::{COST_ANNOTATION, cluster};
use crate::cost::{Input, Pass, Readiness, Remembered, Standing, bind_annotations, pass_remembering, write};
use crate::ownership::{MANAGED_ANNOTATION, Record, Removals};
use crate::testing::START;
use crate::view::PodPhase;

pub(super) const STAND_DOWN: SignedDuration = SignedDuration::from_mins(10);

/// An object, by what it is told apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    Node(Arc<str>),
    Claim(Arc<str>),
    Pool(Box<str>),
    Set(Arc<str>),
    Budget(PodName),
    Pod(PodName),
}

#[derive(Clone, Debug)]
pub(super) struct Api {
    pub(super) nodes: BTreeMap<Arc<str>, NodeFacts>,
    pub(super) claims: BTreeMap<Arc<str>, Claim>,
    /// Whether each is never consolidated.
    pub(super) pools: BTreeMap<Box<str>, bool>,
    pub(super) sets: BTreeMap<Arc<str>, KnownSet>,
    pub(super) budgets: BTreeMap<PodName, Budget>,
    /// With the holds that their annotations name, run out or not.
    pub(super) pods: BTreeMap<PodName, KnownPod>,
    pub(super) options: Options,
    pub(super) now: Timestamp,
    serial: u32,
    removals: BTreeMap<Arc<str>, Removals>,
}

/// A budget over the pods with this label.
pub(super) fn budget(name: &str, label: (&str, &str)) -> Budget {
    let (key, value) = (label.0.to_owned(), label.1.to_owned());
    Budget {
        namespace: "shop".into(),
        name: name.into(),
        created: START - SignedDuration::from_hours(2),
        selector: format!("{key}={value}").into(),
        selects: Arc::new(move |labels| labels.get(&key) == Some(&value)),
        exhausted_since: None,
        lets_unready_go: false,
    }
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> Arc<cluster::Labels> {
    Arc::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
}

pub(super) fn shop(name: &str) -> PodName {
    ("shop".into(), name.into())
}

/// Gives the pod these annotations.
pub(super) fn annotate(known: &mut KnownPod, present: Option<&str>, managed: Option<&str>) {
    known.present = present.map(Into::into);
    known.managed = managed.map(Into::into);
    known.pod.standing = Standing::read(present, &Record::parse(managed));
}

impl Api {
    pub(super) fn new(options: Options) -> Self {
        Self {
            nodes: BTreeMap::new(),
            claims: BTreeMap::new(),
            pools: BTreeMap::new(),
            sets: BTreeMap::new(),
            budgets: BTreeMap::new(),
            pods: BTreeMap::new(),
            options,
            now: START,
            serial: 0,
            removals: BTreeMap::new(),
        }
    }

    /// Nodes by name and zone.
    pub(super) fn with_nodes(mut self, nodes: &[(&str, &str)]) -> Self {
        self.nodes.extend(nodes.iter().map(|(name, zone)| ((*name).into(), node(name, zone))));
        self
    }

    /// A ReplicaSet without constraints, and so many of its pods on each of these nodes.
    pub(super) fn with_set(mut self, name: &str, pods: &[(&str, usize)]) -> Self {
        let known = KnownSet { set: set(name, 20), deployment: Some(format!("{name}-deployment").into()) };
        self.sets.insert(known.set.uid.clone(), known);
        for (node, count) in pods {
            for _ in 0..*count {
                self.run(name, node);
            }
        }
        self
    }

    pub(super) fn set(&mut self, name: &str) -> &mut SetView {
        &mut self.sets.get_mut(&*format!("{name}-set")).expect("the test names a ReplicaSet that is there").set
    }

    pub(super) fn node(&mut self, name: &str) -> &mut NodeFacts {
        self.nodes.get_mut(name).expect("the test names a node that is there")
    }

    pub(super) fn pod(&mut self, name: &PodName) -> &mut KnownPod {
        self.pods.get_mut(name).expect("the test names a pod that is there")
    }

    fn number(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    /// A pod that has been serving for an hour.
    pub(super) fn run(&mut self, set: &str, node: &str) -> PodName {
        let number = self.number();
        let pod = pod(&format!("{set}-{number:03}"), set, node);
        let name = (pod.namespace.clone(), pod.name.clone());
        let known = KnownPod {
            pod,
            resource_version: number.to_string().into(),
            present: None,
            managed: None,
            labels: labels(&[("app", set)]),
            hold_until: None,
        };
        self.pods.insert(name.clone(), known);
        name
    }

    /// A pod that was just created.
    pub(super) fn create(&mut self, set: &str) -> PodName {
        let (name, now) = (self.run(set, ""), self.now);
        let pod = &mut self.pod(&name).pod;
        pod.node = None;
        pod.phase = PodPhase::Pending;
        pod.readiness = Readiness::NotReady(None);
        pod.created = now;
        name
    }

    /// Changes a pod, as a write does.
    pub(super) fn change(&mut self, name: &PodName, bend: impl FnOnce(&mut KnownPod)) {
        let number = self.number();
        let known = self.pod(name);
        bend(known);
        known.resource_version = number.to_string().into();
    }

    /// The bind's own write.
    pub(super) fn bind(&mut self, name: &PodName, node: &str, value: Option<i32>) {
        self.change(name, |known| {
            known.pod.node = Some(node.into());
            if let Some(value) = value {
                let annotations = bind_annotations(value, None);
                let of = |key: &str| annotations.get(key).map(String::as_str);
                annotate(known, of(COST_ANNOTATION), of(MANAGED_ANNOTATION));
            }
        });
    }

    pub(super) fn serve(&mut self, name: &PodName) {
        let now = self.now;
        self.change(name, |known| {
            known.pod.phase = PodPhase::Running;
            known.pod.readiness = Readiness::Ready(Some(now));
        });
    }

    pub(super) fn objects(&self) -> BTreeSet<Object> {
        let nodes = self.nodes.keys().cloned().map(Object::Node);
        let claims = self.claims.keys().cloned().map(Object::Claim);
        let pools = self.pools.keys().cloned().map(Object::Pool);
        let sets = self.sets.keys().cloned().map(Object::Set);
        let budgets = self.budgets.keys().cloned().map(Object::Budget);
        let pods = self.pods.keys().cloned().map(Object::Pod);
        nodes.chain(claims).chain(pools).chain(sets).chain(budgets).chain(pods).collect()
    }

    /// The pod as it is told now: a hold that has run out is none.
    fn told(&self, known: &KnownPod) -> KnownPod {
        let mut known = known.clone();
        if known.hold_until.is_some_and(|until| until <= self.now) {
            known.hold_until = None;
            known.pod.hold = None;
        }
        known
    }

    /// Tells of one object: as it is, or that it is gone.
    pub(super) fn tell(&self, cluster: &mut Cluster, object: &Object) {
        match object {
            Object::Node(name) => match self.nodes.get(name) {
                Some(facts) => cluster.put_node(facts.clone()),
                None => cluster.remove_node(name),
            },
            Object::Claim(name) => match self.claims.get(name) {
                Some(claim) => cluster.put_claim(claim.clone()),
                None => cluster.remove_claim(name),
            },
            Object::Pool(name) => cluster.put_pool(name, self.pools.get(name) == Some(&true)),
            Object::Set(uid) => match self.sets.get(uid) {
                Some(known) => cluster.put_set(known.clone()),
                None => cluster.remove_set(uid),
            },
            Object::Budget(name) => match self.budgets.get(name) {
                Some(budget) => cluster.put_budget(budget.clone()),
                None => cluster.remove_budget(&name.0, &name.1),
            },
            Object::Pod(name) => match self.pods.get(name) {
                Some(known) => cluster.put_pod(self.told(known), self.now),
                None => cluster.remove_pod(&name.0, &name.1),
            },
        }
    }

    pub(super) fn tell_pod(&self, cluster: &mut Cluster, name: &PodName) {
        self.tell(cluster, &Object::Pod(name.clone()));
    }

    pub(super) fn tell_all(&self, cluster: &mut Cluster) {
        for object in self.objects() {
            self.tell(cluster, &object);
        }
    }

    /// Every watch lists anew.
    pub(super) fn relist(&self, cluster: &mut Cluster) {
        cluster.retain_nodes(&self.nodes.keys().cloned().collect());
        cluster.retain_claims(&self.claims.keys().cloned().collect());
        cluster.retain_pools(&self.pools.keys().cloned().collect());
        cluster.retain_sets(&self.sets.keys().cloned().collect());
        cluster.retain_budgets(&self.budgets.keys().cloned().collect());
        cluster.retain_pods(|pod| self.pods.contains_key(&(pod.namespace.clone(), pod.name.clone())));
        self.tell_all(cluster);
    }

    /// A cluster that was told all of this.
    pub(super) fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new(self.options.clone(), STAND_DOWN);
        self.tell_all(&mut cluster);
        cluster
    }

    /// Performs the write that a pod asks for, as the applier does: on the pod as the cluster knows it, and only if it
    /// still is so. Says whether anything was written.
    pub(super) fn perform(&mut self, cluster: &Cluster, name: &PodName) -> bool {
        let Some((known, desired)) = cluster.asked_of(&name.0, &name.1) else { return false };
        let removals = self.removals.entry(known.pod.uid.clone()).or_default();
        let wanted = write(known, desired, removals, self.now).expect("a pod that asks has something to write");
        let [Action::PatchPod { pod, changes }, ..] = &wanted.sequence[..] else { panic!("no patch: {wanted:?}") };
        let Some(there) = self.pods.get(name) else { return false };
        if *pod.uid != *there.pod.uid || *pod.resource_version != *there.resource_version {
            return false;
        }
        let (mut present, mut managed) = (there.present.clone(), there.managed.clone());
        for (key, value) in changes {
            let value = value.as_deref().map(Into::into);
            match key.name() {
                COST_ANNOTATION => present = value,
                MANAGED_ANNOTATION => managed = value,
                other => panic!("{other} is no key of the costs"),
            }
        }
        self.change(name, |known| annotate(known, present.as_deref(), managed.as_deref()));
        true
    }

    /// Performs every write that is asked for, until none is.
    pub(super) fn settle(&mut self, cluster: &mut Cluster) {
        for _ in 0..8 {
            cluster.look(self.now);
            let asking = cluster.asking();
            if asking.is_empty() {
                return;
            }
            for name in asking {
                self.perform(cluster, &name);
                self.tell_pod(cluster, &name);
            }
        }
        panic!("it never comes to rest: {:?}", cluster.asking());
    }

    /// The nodes with all that is known of them, where Belay stands down for these.
    fn composed(&self, down: &BTreeSet<Scope>) -> Nodes {
        let mut nodes = Nodes::new();
        for (name, told) in &self.nodes {
            let mut facts = told.clone();
            for claim in self.claims.values().filter(|claim| claim.node.as_ref() == Some(name)) {
                facts.leaving |= claim.leaving;
                facts.drifted |= claim.drifted;
            }
            if facts.keep.is_none() && facts.pool.as_ref().is_some_and(|pool| self.pools.get(pool) == Some(&true)) {
                facts.keep = Some(Keep::ConsolidationOff);
            }
            facts.stood_down = down.contains(&Scope::Node(name.clone()));
            nodes.insert(name.clone(), facts);
        }
        nodes
    }

    /// Since when a pod cannot be evicted, by the words of `pkg/registry/core/pod/storage/eviction.go`.
    fn blocked(&self, known: &KnownPod) -> Option<Timestamp> {
        let pod = &known.pod;
        if pod.terminating || matches!(pod.phase, PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed) {
            return None;
        }
        let covering: Vec<&Budget> = self
            .budgets
            .values()
            .filter(|budget| budget.namespace == pod.namespace && (budget.selects)(&known.labels))
            .collect();
        let since = match &covering[..] {
            [] => return None,
            [only] if only.lets_unready_go && matches!(pod.readiness, Readiness::NotReady(_)) => return None,
            [only] => only.exhausted_since?,
            several => {
                let mut created: Vec<_> = several.iter().map(|budget| budget.created).collect();
                created.sort();
                created[1]
            }
        };
        Some(since.max(pod.created))
    }

    /// Everything decided at once, and the names of the pods in its order.
    pub(super) fn scratch(&self, down: &BTreeSet<Scope>, remembered: Remembered<'_>) -> (Pass, Vec<PodName>) {
        let nodes = self.composed(down);
        let names: Vec<PodName> = self.pods.keys().cloned().collect();
        let pods: Vec<CostPod> = self
            .pods
            .values()
            .map(|known| CostPod { blocked_since: self.blocked(known), ..self.told(known).pod })
            .collect();
        let sets: Vec<SetView> = self
            .sets
            .values()
            .map(|known| SetView { stood_down: down.contains(&Scope::Set(known.set.uid.clone())), ..known.set.clone() })
            .collect();
        let input = Input { nodes: &nodes, pods: &pods, sets: &sets, options: &self.options, now: self.now };
        (pass_remembering(&input, remembered), names)
    }
}

/// What every pod that is known ought to carry.
pub(super) fn desired_of(cluster: &Cluster, name: &PodName) -> Option<i32> {
    let id = cluster.pods.id(&name.0, &name.1).expect("the pod is known");
    cluster.pods.get(id).expect("the pod is there").desired
}

/// One node with one pod, looked at.
pub(super) fn one_node() -> (Api, Cluster) {
    let api = Api::new(Options::default()).with_nodes(&[("a1", "a")]).with_set("web", &[("a1", 1)]);
    let mut cluster = api.cluster();
    cluster.look(api.now);
    (api, cluster)
}
