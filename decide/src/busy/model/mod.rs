//! A small cluster around one pod, to run whole histories of hints and holds in.
//!
//! The tables beside the code say what one look is. What must *always* hold speaks of histories: of caches that lag
//! behind each other, of writes that meet a conflict or whose answer is lost, of processes that forget, and of people who
//! change, strip, restore and claim whatever stands on the pod. Here is the API server's truth of one pod, its owner and
//! its holds; the controller ([`controller`]), the webhook's replicas ([`replicas`]) and the people ([`people`]) who work
//! on it; and what is watched after every step ([`laws`]). [`histories`] draws histories at random and states what is
//! proved of them.
//!
//! Time is a number of seconds that the history itself advances; nothing here waits or reads a clock.

mod controller;
mod histories;
mod laws;
mod people;
mod replicas;

use std::rc::Rc;

use jiff::SignedDuration;
use serde_json::{Value as Json, json};

use self::controller::Leader;
use self::laws::Laws;
use self::replicas::Replica;
use super::create::first_hints;
use super::testing::{all_hints, bump, worker, worker_rule};
use super::{AutoscalerHint, BusyPod, Found, HintSwitches, Owner, Rule, RuleSpec, Seen};
use crate::hold::HoldView;
use crate::ownership::Key;
use crate::testing::after;
use crate::view::PodPhase;

/// What stays the same during one history.
#[derive(Clone, Copy, Debug)]
struct Config {
    /// `maxBusy`, in seconds.
    max_busy: i64,
    on_completion: bool,
}

/// What a cache shows of one moment. Each kind is a watch of its own.
#[derive(Clone)]
struct Moment {
    pod: Rc<BusyPod>,
    owner: Option<Rc<Owner>>,
    linked: Rc<Vec<Json>>,
    holds: Rc<Vec<HoldView>>,
}

/// How many steps each kind of an actor's cache lags behind: pods, owners and linked pods, holds.
type Lag = [u8; 3];

/// An actor's cache: for each kind the step it has got to. A watch never goes back.
#[derive(Clone, Debug, Default)]
struct Cache([usize; 3]);

impl Cache {
    fn look(&mut self, history: &[Moment], lag: Lag) -> Moment {
        let last = history.len() - 1;
        for (at, lag) in self.0.iter_mut().zip(lag) {
            *at = (*at).max(last.saturating_sub(usize::from(lag)));
        }
        let [pod, owner, holds] = self.0.map(|at| &history[at]);
        Moment {
            pod: Rc::clone(&pod.pod),
            owner: owner.owner.clone(),
            linked: Rc::clone(&owner.linked),
            holds: Rc::clone(&holds.holds),
        }
    }
}

impl Moment {
    fn seen(&self) -> Seen<'_> {
        Seen {
            pod: &self.pod,
            owner: self.owner.as_deref().map_or(Found::Missing, Found::Owner),
            linked: self.linked.iter().collect(),
        }
    }
}

/// The whole world.
struct World {
    config: Config,
    /// Two versions of one rule, of which the operator switches from one to the other.
    rules: [Rule; 2],
    rule: usize,
    /// True time, in seconds since [`crate::testing::START`].
    time: i64,
    pod: BusyPod,
    owner: Option<Owner>,
    linked: Vec<Json>,
    holds: Vec<HoldView>,
    history: Vec<Moment>,
    leader: Leader,
    replicas: [Replica; 2],
    laws: Laws,
    /// Counts pods and holds.
    counter: u64,
}

impl World {
    /// A worker that was there before Belay, idle.
    fn new(config: Config) -> Self {
        let rule = |hints: HintSwitches| {
            let spec = RuleSpec { hints, max_busy: SignedDuration::from_secs(config.max_busy), ..worker_rule() };
            Rule::compile(spec).expect("the rule compiles")
        };
        let cluster_autoscaler =
            if config.on_completion { AutoscalerHint::OnCompletion } else { AutoscalerHint::SafeToEvict };
        let some = HintSwitches { cluster_autoscaler, ..HintSwitches::default() };
        let mut world = Self {
            config,
            rules: [rule(some), rule(all_hints())],
            rule: 0,
            time: 0,
            pod: worker(),
            owner: None,
            linked: Vec::new(),
            holds: Vec::new(),
            history: Vec::new(),
            leader: Leader::default(),
            replicas: Default::default(),
            laws: Laws::default(),
            counter: 1,
        };
        world.say(Some("Idle"));
        world.see();
        world
    }

    /// Keeps what there is for the caches, after a step.
    fn see(&mut self) {
        fn shared<T: PartialEq + Clone>(before: Option<&Rc<T>>, now: &T) -> Rc<T> {
            before.filter(|before| ***before == *now).map_or_else(|| Rc::new(now.clone()), Rc::clone)
        }
        let before = self.history.last();
        let moment = Moment {
            pod: shared(before.map(|moment| &moment.pod), &self.pod),
            owner: self.owner.as_ref().map(|now| shared(before.and_then(|moment| moment.owner.as_ref()), now)),
            linked: shared(before.map(|moment| &moment.linked), &self.linked),
            holds: shared(before.map(|moment| &moment.holds), &self.holds),
        };
        self.history.push(moment);
        self.note_spell();
    }

    /// The owner says this from now on; nothing where it is gone.
    fn say(&mut self, phase: Option<&str>) {
        self.owner = phase.map(|phase| Owner {
            namespace: "ci".into(),
            name: "w".into(),
            uid: "runner-1".into(),
            terminating: false,
            controller: None,
            object: json!({"status": {"phase": phase}}),
            written: std::collections::BTreeMap::new(),
        });
    }

    /// The kubelet writes the pod's status.
    fn kubelet(&mut self) {
        bump(&mut self.pod);
    }

    /// The pod is replaced by one of the same name, with this in its create; the webhook adds the first hints.
    fn recreate(&mut self, own: Option<(Key, &str)>, lag: Lag) {
        self.counter += 1;
        let owner = self.replicas[0].cache.look(&self.history, lag).owner;
        let mut pod = BusyPod {
            uid: "".into(),
            created: after(self.time),
            phase: PodPhase::Pending,
            node: None,
            ready_since: None,
            marks: own.into_iter().map(|(key, value)| (key, value.to_owned())).collect(),
            managed: None,
            ..worker()
        };
        let found = owner.as_deref().map_or(Found::Missing, Found::Owner);
        let seen = Seen { pod: &pod, owner: found, linked: Vec::new() };
        let adds = first_hints(&self.rules[self.rule], &seen, after(self.time));
        super::testing::patch_new(&mut pod, adds);
        pod.uid = format!("pod-{}", self.counter).into();
        (pod.phase, pod.node, pod.ready_since) = (PodPhase::Running, Some("node-1".into()), Some(after(self.time)));
        pod.resource_version = (self.counter * 1_000_000).to_string().into();
        self.pod = pod;
        self.laws.another_pod(&self.pod);
    }
}
