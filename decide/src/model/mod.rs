//! A small cluster to run whole histories of handovers in, without a cluster.
//!
//! The tables beside the code say what one decision is. What must *always* hold speaks of histories: of caches that
//! lag behind each other, of writes that are lost or answered and not performed, of clocks that jump, of users and
//! Kubernetes' own controllers in between. So the world is modelled here, down to what decisions read: the API
//! server's objects and versions ([`cluster`]), the Deployment and ReplicaSet controllers, scheduler and kubelets
//! ([`kubernetes`]), Belay's webhook replicas and leaders ([`belay`]), the people ([`people`]), and what is watched
//! throughout ([`laws`]). [`histories`] draws histories at random and states what is proved of them; [`drains`] are the
//! histories in which all goes well, [`found`] those that once broke a law.
//!
//! Time is a number of seconds that the history itself advances; nothing here waits or reads a clock.

mod belay;
mod cluster;
mod drains;
mod found;
mod histories;
mod kubernetes;
mod laws;
mod people;

use std::collections::BTreeMap;

use belay::{Leader, Replica};
use cluster::{Api, Seen};
use laws::Laws;

use crate::hold::HoldSpec;
use crate::policy::OnFailure;

/// What stays the same during one history.
#[derive(Clone, Debug)]
struct Config {
    recreate: bool,
    min_ready: i32,
    /// `readinessDeadlineSeconds`.
    limit: u32,
    on_failure: OnFailure,
    progress_deadline: Option<i64>,
    /// How long a pod terminates, in seconds.
    grace: i64,
    /// Holds are recorded at once; else they wait in the replica's queue.
    prompt_records: bool,
}

/// The whole world.
struct World {
    config: Config,
    /// True time, in seconds since [`crate::testing::START`].
    time: i64,
    /// How long a pod that is created now takes to be ready; absent for one that never is.
    startup: Option<i64>,
    api: Api,
    /// What a cache may show: the objects after every step so far.
    history: Vec<Seen>,
    replicas: [Replica; 2],
    leaders: [Leader; 2],
    laws: Laws,
}

impl World {
    /// One Deployment at rest: its pod serves on `node-1`.
    fn new(config: Config, startup: Option<i64>) -> Self {
        let mut world = Self {
            api: Api::new(&config),
            config,
            time: 0,
            startup: Some(0),
            history: Vec::new(),
            replicas: Default::default(),
            leaders: Default::default(),
            laws: Laws::default(),
        };
        world.see();
        for _ in 0..6 {
            world.round();
        }
        world.startup = startup;
        world
    }

    /// Keeps what there is for the caches, after a step.
    fn see(&mut self) {
        self.history.push(self.api.seen(self.history.last()));
        self.check();
    }

    /// Lets time pass.
    fn advance(&mut self, seconds: i64) {
        self.time += seconds;
    }

    /// One second in which every controller of Kubernetes comes to its turn.
    fn round(&mut self) {
        self.roll_out();
        self.replicate();
        self.run_pods();
        self.replicate();
        self.roll_out();
        self.advance(1);
    }
}

/// Holds that a replica has not recorded yet, oldest first.
type Queue = Vec<HoldSpec>;

/// By UID.
type ByUid<T> = BTreeMap<String, T>;
