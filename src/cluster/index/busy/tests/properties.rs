//! The cache against a model that keeps plain lists and looks everything up anew.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::cluster::watch::Sink;

/// A kind by its place in [`kinds`].
type KindNumber = usize;

fn kinds() -> [GroupKind; 3] {
    [runner(), pool(), set()]
}

/// The pool is of the cluster.
fn namespace_of(kind: KindNumber, namespace: &str) -> &str {
    if kind == 1 { "" } else { namespace }
}

/// The UID of an object: each generation of a name has another.
fn uid_of(kind: KindNumber, namespace: &str, name: &str, generation: u8) -> String {
    format!("{kind} {}/{name} {generation}", namespace_of(kind, namespace))
}

fn controller_of(namespace: &str, reference: Option<&(KindNumber, &str, u8)>) -> Option<ControllerRef> {
    let (kind, name, generation) = reference?;
    let uid = uid_of(*kind, namespace, name, *generation).as_str().into();
    Some(ControllerRef { kind: kinds()[*kind].clone(), name: (*name).into(), uid })
}

/// What a watch may bring.
#[derive(Clone, Debug)]
enum News<T> {
    Put(T),
    Gone(T),
    All(Vec<T>),
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there are never many")]
enum Change {
    Pods(usize, News<BusyPod>),
    Owners(KindNumber, News<Owner>),
    Linked(&'static str, News<Linked>),
    Holds(News<HoldView>),
    Views(News<PodView>),
}

/// Objects by a number of what they are (rule, kind, label), namespace and name.
#[derive(Clone)]
struct List<T>(BTreeMap<(usize, String, String), T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone> List<T> {
    /// Takes news in; whatever was there or is there now under the names that it speaks of.
    fn take(&mut self, number: usize, news: &News<T>, name: impl Fn(&T) -> (&str, &str)) -> Vec<T> {
        let key = |one: &T| (number, name(one).0.to_owned(), name(one).1.to_owned());
        match news {
            News::Put(one) => self.0.insert(key(one), one.clone()).into_iter().chain([one.clone()]).collect(),
            News::Gone(one) => self.0.remove(&key(one)).into_iter().chain([one.clone()]).collect(),
            News::All(all) => {
                let (gone, kept) = std::mem::take(&mut self.0).into_iter().partition(|((of, ..), _)| *of == number);
                let gone: BTreeMap<_, _> = gone;
                self.0 = kept;
                self.0.extend(all.iter().map(|one| (key(one), one.clone())));
                gone.into_values().chain(all.iter().cloned()).collect()
            }
        }
    }
}

const LABELS: [&str; 2] = ["job-of", "task-of"];

#[derive(Clone, Default)]
struct Model {
    pods: List<BusyPod>,
    owners: List<Owner>,
    linked: List<Linked>,
    holds: List<HoldView>,
    views: List<PodView>,
}

impl Model {
    /// Takes a change in; the pods that it may concern.
    fn take(&mut self, change: &Change) -> BTreeSet<String> {
        let before = self.clone();
        match change {
            Change::Pods(rule, news) => {
                let pods = self.pods.take(*rule, news, |pod| (&pod.namespace, &pod.name));
                pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect()
            }
            Change::Owners(kind, news) => {
                let owners = self.owners.take(*kind, news, |owner| (&owner.namespace, &owner.name));
                let uids: BTreeSet<_> = owners.into_iter().map(|owner| owner.uid).collect();
                before.asking(&uids).union(&self.asking(&uids)).cloned().collect()
            }
            Change::Linked(label, news) => {
                let number = LABELS.iter().position(|known| known == label).unwrap();
                let pods = self.linked.take(number, news, |pod| (&pod.namespace, &pod.name));
                pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.to)).collect()
            }
            Change::Holds(news) => {
                let holds = self.holds.take(0, news, |hold| (&hold.namespace, &hold.name));
                let of_busy = holds.iter().filter(|hold| hold.spec.reason != HoldReason::Handover);
                of_busy.map(|hold| format!("{}/{}", hold.namespace, hold.spec.victim_name)).collect()
            }
            Change::Views(news) => {
                let views = self.views.take(0, news, |view| (&view.namespace, &view.name));
                let named = views.iter().map(|view| format!("{}/{}", view.namespace, view.name));
                let held = self.holds.0.values().filter(|_| matches!(news, News::All(_)));
                named.chain(held.map(|hold| format!("{}/{}", hold.namespace, hold.spec.victim_name))).collect()
            }
        }
    }

    /// Pods whose controller is one of these, or is controlled by one of these.
    fn asking(&self, uids: &BTreeSet<Box<str>>) -> BTreeSet<String> {
        let controlled = |controller: Option<&ControllerRef>, by: &BTreeSet<Box<str>>| {
            controller.is_some_and(|controller| by.contains(&controller.uid))
        };
        let steps = self.owners.0.values().filter(|owner| controlled(owner.controller.as_ref(), uids));
        let all: BTreeSet<_> = steps.map(|owner| owner.uid.clone()).chain(uids.iter().cloned()).collect();
        let pods = self.pods.0.values().filter(|pod| controlled(pod.controller.as_ref(), &all));
        pods.map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect()
    }

    fn owner(&self, kind: &GroupKind, namespace: &str, controller: Option<&ControllerRef>) -> Option<&Owner> {
        let controller = controller?;
        let number = kinds().iter().position(|known| known == kind)?;
        let namespace = namespace_of(number, namespace);
        let owner = self.owners.0.get(&(number, namespace.to_owned(), controller.name.to_string()))?;
        (controller.kind == *kind && owner.uid == controller.uid).then_some(owner)
    }

    fn ask(&self, rules: &[Rule], namespace: &str, name: &str) -> Answer {
        let of_name = self
            .pods
            .0
            .iter()
            .filter(|((_, in_namespace, named), _)| (in_namespace.as_str(), named.as_str()) == (namespace, name));
        let governed = of_name.map(|((number, ..), pod)| (&rules[*number], pod)).next();
        let owner = governed.and_then(|(rule, pod)| {
            let asked = rule.spec.owner.as_ref()?;
            let controller = match &asked.through {
                None => pod.controller.as_ref(),
                Some(through) => self.owner(through, namespace, pod.controller.as_ref())?.controller.as_ref(),
            };
            self.owner(&asked.kind, namespace, controller)
        });
        let linked = governed.map(|(rule, pod)| {
            let label = LABELS.iter().position(|label| rule.spec.linked_label.as_deref() == Some(label));
            let of_label = self.linked.0.iter().filter(|((of, ..), _)| Some(*of) == label).map(|(_, one)| one);
            let to_pod = of_label.filter(|one| *one.namespace == *namespace && *one.to == *name);
            let counts = |one: &&Linked| !one.finished && one.created >= pod.created && one.name != pod.name;
            to_pod.filter(counts).map(|one| one.object["is"].to_string()).collect()
        });
        let holds = self.holds.0.values().filter(|hold| {
            hold.spec.reason != HoldReason::Handover && hold.namespace == namespace && hold.spec.victim_name == name
        });
        Answer {
            governed: governed.map(|(rule, pod)| format!("{} {}", rule.spec.name, pod.uid)),
            owner: owner.map(|owner| owner.uid.to_string()),
            linked: linked.unwrap_or_default(),
            living: self.living(namespace, name),
            holds: holds.map(|hold| hold.name.clone()).collect(),
        }
    }

    fn living(&self, namespace: &str, name: &str) -> Option<String> {
        let view = self.views.0.get(&(0, namespace.to_owned(), name.to_owned()))?;
        (!view.terminating && !view.is_finished()).then(|| view.uid.to_string())
    }

    fn is_marked(&self, namespace: &str, name: &str) -> bool {
        self.views.0.get(&(0, namespace.to_owned(), name.to_owned())).is_some_and(|view| view.marked)
    }
}

const NAMESPACES: [&str; 2] = ["ci", "other"];
const NAMES: [&str; 3] = ["u", "v", "w"];

fn namespaces() -> impl Strategy<Value = &'static str> {
    select(NAMESPACES.to_vec())
}

fn names() -> impl Strategy<Value = &'static str> {
    select(NAMES.to_vec())
}

fn references() -> impl Strategy<Value = Option<(KindNumber, &'static str, u8)>> {
    proptest::option::weighted(0.8, (0..3_usize, names(), 0..2_u8))
}

fn pods() -> impl Strategy<Value = BusyPod> {
    (namespaces(), names(), 0..2_u8, references(), 0..3_i64).prop_map(
        |(namespace, name, generation, owner, created)| BusyPod {
            namespace: namespace.into(),
            controller: controller_of(namespace, owner.as_ref()),
            ..pod(name, &generation.to_string(), created)
        },
    )
}

fn owners(kind: KindNumber) -> impl Strategy<Value = Owner> {
    (namespaces(), names(), 0..2_u8, references(), any::<bool>()).prop_map(
        move |(namespace, name, generation, above, says)| Owner {
            // What is of the cluster is controlled by what is of the cluster.
            controller: controller_of(namespace, above.as_ref().filter(|(above, ..)| kind != 1 || *above == 1)),
            object: json!({ "says": says }),
            ..owner(namespace_of(kind, namespace), name, &uid_of(kind, namespace, name, generation))
        },
    )
}

fn links() -> impl Strategy<Value = Linked> {
    (namespaces(), names(), names(), 0..3_i64, any::<bool>()).prop_map(|(namespace, name, to, created, finished)| {
        Linked { namespace: namespace.into(), finished, ..linked(name, to, created) }
    })
}

fn holds() -> impl Strategy<Value = HoldView> {
    (namespaces(), select(vec!["h", "i"]), select(HoldReason::ALL.to_vec()), names(), names()).prop_map(
        |(namespace, name, reason, victim, workload)| HoldView {
            namespace: namespace.into(),
            ..hold(name, reason, victim, workload)
        },
    )
}

fn views() -> impl Strategy<Value = PodView> {
    (namespaces(), names(), 0..2_u8, any::<bool>(), any::<bool>()).prop_map(
        |(namespace, name, generation, terminating, marked)| PodView {
            namespace: namespace.into(),
            uid: generation.to_string().as_str().into(),
            terminating,
            ..view(name, marked)
        },
    )
}

/// An object that goes is told as it was last, or as nobody knew it.
fn news<T: Clone + std::fmt::Debug + 'static>(
    one: impl Strategy<Value = T> + Clone + 'static,
) -> BoxedStrategy<News<T>> {
    prop_oneof![
        5 => one.clone().prop_map(News::Put),
        2 => one.clone().prop_map(News::Gone),
        1 => proptest::collection::vec(one, 0..5).prop_map(News::All),
    ]
    .boxed()
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..4_usize, news(pods().boxed())).prop_map(|(rule, news)| Change::Pods(rule, news)),
        4 => (0..3_usize).prop_flat_map(|kind| {
            news(owners(kind).boxed()).prop_map(move |news| Change::Owners(kind, news))
        }),
        2 => (select(LABELS.to_vec()), news(links().boxed())).prop_map(|(label, news)| Change::Linked(label, news)),
        1 => news(holds().boxed()).prop_map(Change::Holds),
        1 => news(views().boxed()).prop_map(Change::Views),
    ]
}

fn feed<T>(mut sink: impl Sink<T>, news: News<T>) {
    match news {
        News::Put(one) => sink.apply(one),
        News::Gone(one) => sink.delete(one),
        News::All(all) => sink.replace(all),
    }
}

impl Cluster {
    fn take(&self, change: Change) {
        match change {
            Change::Pods(rule, news) => feed(self.pods(rule), news),
            Change::Owners(kind, news) => feed(self.owners(kinds()[kind].clone()), news),
            Change::Linked(label, news) => feed(self.linked(label), news),
            Change::Holds(news) => feed(self.views(), news),
            Change::Views(news) => feed(self.views(), news),
        }
    }

    /// All that can be asked about all pods.
    fn ask_all(&self) -> BTreeMap<String, (Answer, bool)> {
        all_keys(|namespace, name| (self.ask(namespace, name), self.index.is_marked(&PodKey::new(namespace, name))))
    }
}

fn all_keys<V>(ask: impl Fn(&str, &str) -> V) -> BTreeMap<String, V> {
    let keys = NAMESPACES.into_iter().flat_map(|namespace| NAMES.map(|name| (namespace, name)));
    keys.map(|(namespace, name)| (format!("{namespace}/{name}"), ask(namespace, name))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_the_cache_answers_as_lists_do_and_has_looked_at_what_changed(
        changes in proptest::collection::vec(changes(), 1..60),
    ) {
        let (cluster, mut model) = (Cluster::new(), Model::default());
        let mut before = cluster.ask_all();
        for change in changes {
            let concerned = model.take(&change);
            cluster.take(change.clone());
            let now = cluster.ask_all();
            let expected = all_keys(|namespace, name| {
                (model.ask(cluster.index.rules(), namespace, name), model.is_marked(namespace, name))
            });
            prop_assert_eq!(&now, &expected, "after {:?}", change);
            let touched: BTreeSet<_> = cluster.touched().into_iter().collect();
            for (key, answer) in &now {
                // Whether a pod lives matters to its holds alone.
                let was = (before[key].0.holds.is_empty() && answer.0.holds.is_empty())
                    .then(|| (Answer { living: answer.0.living.clone(), ..before[key].0.clone() }, before[key].1));
                let same = was.as_ref().unwrap_or(&before[key]) == answer;
                prop_assert!(same || touched.contains(key), "{} is missed after {:?}", key, change);
            }
            prop_assert!(touched.is_subset(&concerned), "{:?}, not only {:?} after {:?}", touched, concerned, change);
            before = now;
        }
        for rule in 0..4 {
            cluster.take(Change::Pods(rule, News::All(Vec::new())));
        }
        for kind in 0..3 {
            cluster.take(Change::Owners(kind, News::All(Vec::new())));
        }
        for label in LABELS {
            cluster.take(Change::Linked(label, News::All(Vec::new())));
        }
        cluster.take(Change::Holds(News::All(Vec::new())));
        cluster.take(Change::Views(News::All(Vec::new())));
        prop_assert!(cluster.index.is_empty(), "something is kept of what is gone");
    }

    #[test]
    fn what_comes_and_goes_one_by_one_leaves_nothing(changes in proptest::collection::vec(changes(), 1..60)) {
        let (cluster, mut model) = (Cluster::new(), Model::default());
        for change in changes {
            model.take(&change);
            cluster.take(change);
        }
        for ((rule, ..), pod) in model.pods.0 {
            cluster.take(Change::Pods(rule, News::Gone(pod)));
        }
        for ((kind, ..), owner) in model.owners.0 {
            cluster.take(Change::Owners(kind, News::Gone(owner)));
        }
        for ((label, ..), linked) in model.linked.0 {
            cluster.take(Change::Linked(LABELS[label], News::Gone(linked)));
        }
        for hold in model.holds.0.into_values() {
            cluster.take(Change::Holds(News::Gone(hold)));
        }
        for view in model.views.0.into_values() {
            cluster.take(Change::Views(News::Gone(view)));
        }
        prop_assert!(cluster.index.is_empty(), "something is kept of what is gone");
    }
}
