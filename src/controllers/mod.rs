//! The controller's loops: each watches what changed, decides with `belay-decide`, and has the applier write.

pub mod busy;
pub mod certificates;
pub mod costs;
pub mod handover;
pub mod policies;
pub mod probe;
pub mod requests;
pub mod work;

use std::sync::Arc;

use arc_swap::ArcSwap;
use belay_decide::action::{Event, Reference};
use kube::Client;

use crate::cluster::apply::Applier;
use crate::cluster::index::{Dirty, Index};
use crate::cluster::lease::Leadership;
use crate::cluster::watch::Health;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// What the loops over workloads, policies and pods work with.
#[derive(Clone)]
pub struct Shared {
    /// The client, for reads of what is not cached.
    pub client: Client,
    /// The cache.
    pub index: Index,
    /// What changes in it.
    pub dirty: Dirty,
    /// The writer.
    pub applier: Arc<Applier>,
    /// The configuration in force.
    pub settings: Arc<ArcSwap<Settings>>,
    /// Whether this replica leads.
    pub leadership: Arc<Leadership>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The watches that fill the cache, but for those of busy rules.
    pub health: Vec<Health>,
}

/// The pod that this process runs in, on which is told what concerns no other object.
#[derive(Clone, Debug, Default)]
pub struct OwnPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl OwnPod {
    /// An Event on it.
    pub fn event(&self, warning: bool, reason: &'static str, action: &'static str, note: String) -> Event {
        let Self { namespace, name, uid } = self;
        let regarding = Reference::pod(name, uid);
        Event { namespace: namespace.clone(), regarding, related: None, warning, reason, action, note }
    }
}
