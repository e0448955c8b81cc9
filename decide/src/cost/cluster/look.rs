//! A look: what changed since the last one is decided anew.
//!
//! Where everything is looked at, that is a few hundred milliseconds of work on a large cluster, and binds are answered
//! from the same cluster. So a look goes in steps, between which others have their turn.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use jiff::Timestamp;

use super::rivals::Stance;
use super::{Cluster, PodName, name_of};
use crate::cost::group::{Occupancy, is_lately_freed};
use crate::cost::ranking::{Remembered, rank};
use crate::cost::values::desired;
use crate::cost::view::CostPod;

/// So many nodes are summed up in one step of a look, and so many ReplicaSets valued: with thirty pods each that is less
/// work than to rank five thousand nodes, which cannot be divided.
const NODES_AT_ONCE: usize = 64;
const SETS_AT_ONCE: usize = 16;

/// What came of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The nodes were ranked; absent where nothing had changed that could matter.
    pub ranked: Option<Ranked>,
    /// Pods on which there may be something to write.
    pub pods: BTreeSet<PodName>,
    /// Where Belay stands down from now on, or is back.
    pub stances: Vec<Stance>,
}

/// A look that is under way: see [`Cluster::look_on`].
#[derive(Debug, Default)]
pub struct Looking {
    stage: Stage,
    ranked: Option<Ranked>,
    pods: BTreeSet<PodName>,
}

/// What comes next.
#[derive(Debug, Default)]
enum Stage {
    /// See what time has changed.
    #[default]
    Begin,
    /// Sum up the pods of these nodes anew.
    Occupy {
        nodes: Vec<Arc<str>>,
        /// Something differs by now.
        differs: bool,
    },
    Rank {
        differs: bool,
    },
    /// Decide the values of the pods of these ReplicaSets.
    Value {
        sets: Vec<Arc<str>>,
    },
    End,
}

/// What a ranking changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranked {
    /// Nodes whose pods may be worth another value.
    pub changed_nodes: usize,
    /// Nodes that got another rank only because a gap between ranks was used up.
    pub renumbered: usize,
    /// The nodes empty in another order than before.
    pub new_order: bool,
}

impl Cluster {
    /// Ranks the nodes anew, if anything changed that may matter.
    pub fn look(&mut self, now: Timestamp) -> Look {
        let mut looking = Looking::default();
        loop {
            if let Some(look) = self.look_on(&mut looking, now) {
                return look;
            }
        }
    }

    /// The next step of a look, all of which have the same `now`; what came of the look with the last one. No step takes
    /// much longer than the ranking itself, and between two of them the cluster may be told and asked anything: what
    /// changes then is for the next look.
    pub fn look_on(&mut self, looking: &mut Looking, now: Timestamp) -> Option<Look> {
        looking.stage = match mem::take(&mut looking.stage) {
            Stage::Begin => {
                let looked_in = now.as_second().div_euclid(self.settle_seconds());
                if self.looked_in.replace(looked_in) != Some(looked_in) {
                    self.touch_everything(now);
                }
                let stances = self.rivals.expire(self.stand_down, now);
                self.take_stances(stances);
                Stage::Occupy { nodes: mem::take(&mut self.dirty.occupied).into_iter().collect(), differs: false }
            }
            Stage::Occupy { mut nodes, mut differs } => {
                for node in nodes.split_off(nodes.len().saturating_sub(NODES_AT_ONCE)) {
                    differs |= self.occupy(node, now);
                }
                if nodes.is_empty() { Stage::Rank { differs } } else { Stage::Occupy { nodes, differs } }
            }
            Stage::Rank { differs } => {
                if mem::take(&mut self.dirty.nodes) || differs {
                    looking.ranked = Some(self.rank(now));
                }
                let sets = mem::take(&mut self.dirty.sets);
                looking.pods = mem::take(&mut self.dirty.pods);
                if self.only_ranks {
                    looking.pods.clear();
                    Stage::End
                } else {
                    Stage::Value { sets: sets.into_iter().collect() }
                }
            }
            Stage::Value { mut sets } => {
                for set in sets.split_off(sets.len().saturating_sub(SETS_AT_ONCE)) {
                    self.value(&set, &mut looking.pods, now);
                }
                if sets.is_empty() { Stage::End } else { Stage::Value { sets } }
            }
            Stage::End => Stage::End,
        };
        let Stage::End = looking.stage else { return None };
        let Looking { ranked, pods, .. } = mem::take(looking);
        Some(Look { ranked, pods, stances: mem::take(&mut self.stances) })
    }

    fn touch_everything(&mut self, now: Timestamp) {
        self.assumed.retain(|_, assumed| assumed.is_believed(now));
        self.pods.expire(now);
        self.dirty.occupied.extend(self.pods.nodes().cloned());
        self.dirty.sets.extend(self.pods.sets().cloned());
        self.dirty.nodes = true;
    }

    /// Sums up the pods of a node anew; true where that differs.
    fn occupy(&mut self, node: Arc<str>, now: Timestamp) -> bool {
        let occupancy = Occupancy::of(self.pods.on(&node).map(|kept| &kept.known.pod));
        if occupancy.is_held() {
            self.freed.remove(&node);
        } else if self.occupancies.get(&node).is_some_and(Occupancy::is_held) {
            self.freed.insert(Arc::clone(&node), now);
        }
        if self.pods.ids_on(&node).is_empty() {
            return self.occupancies.remove(&node).is_some();
        }
        if let Some(known) = self.occupancies.get_mut(&node) {
            let differs = *known != occupancy;
            *known = occupancy;
            return differs;
        }
        let name = self.nodes.name(&node).map(Arc::clone).unwrap_or(node);
        self.occupancies.insert(name, occupancy);
        true
    }

    fn rank(&mut self, now: Timestamp) -> Ranked {
        let (nodes, options) = (&self.nodes, &self.options);
        self.freed.retain(|node, at| nodes.get(node).is_some() && is_lately_freed(*at, options, now));
        let remembered = Remembered { last: Some(&self.ranking), freed: Some(&self.freed) };
        let ranking = rank(&self.nodes, &self.occupancies, remembered, &self.options, now);
        let changed = ranking.changed_since(&self.ranking);
        for node in &changed {
            self.dirty.sets.extend(self.pods.on(node).filter_map(|kept| kept.known.pod.set.clone()));
        }
        let ranked = Ranked {
            changed_nodes: changed.len(),
            renumbered: ranking.renumbered,
            new_order: !ranking.same_order(&self.ranking),
        };
        self.ranking = ranking;
        ranked
    }

    /// Decides what the pods of a ReplicaSet ought to carry.
    fn value(&mut self, uid: &str, looks: &mut BTreeSet<PodName>, now: Timestamp) {
        // One that is not known yet says nothing about its pods: they keep what they have.
        let Some(known) = self.sets.get(uid) else { return };
        let pods: Vec<&CostPod> = self.pods.of(uid).map(|kept| &kept.known.pod).collect();
        let values = desired(&known.set, &pods, &self.ground(now));
        let ids = self.pods.ids_of(uid).to_vec();
        for (id, value) in ids.into_iter().zip(values) {
            let Some(kept) = self.pods.get_mut(id) else { continue };
            kept.desired = value;
            if kept.asks() {
                looks.insert(name_of(kept));
            }
        }
    }
}
