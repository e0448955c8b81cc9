//! Deletion cost: a scale-down takes its pods from the nodes that ought to empty.
//!
//! A ReplicaSet that shrinks sorts its pods, and within the ready ones the annotation
//! `controller.kubernetes.io/pod-deletion-cost` decides: the lower value goes first ([`removal`] restates that sort).
//! What to write is decided in three steps, each a pure function:
//!
//! 1. [`Occupancy::of`] sums up what the pods of one node mean for it.
//! 2. [`rank`] sorts nodes into groups and gives those that ought to empty a *rank*, a negative number.
//! 3. [`desired`] gives each pod of one ReplicaSet its value, and [`at_bind`] the value of a pod that is about to land.
//!
//! [`pass()`] does all three for a whole cluster, and [`cluster::Cluster`] for one that is watched. A pod of a workload
//! that says nothing about spread gets its node's rank. Where pods are to be spread, the value is a *tier* and the rank
//! within it: the tier takes from the over-full domain first, the rank decides which of a domain's pods that is (the
//! module `spread` says how, and where it cannot).
//!
//! **What is remembered.** Next to nothing that the cluster does not show. A node's rank stands in the values of its
//! pods, so [`rank`] reads the last ranks back from there, and a value that still does its work stays. A controller that
//! restarts, another replica and the webhook thus come to the same numbers, and an unchanged cluster writes nothing.
//! Only for a node on whose pods no value of ours stands (yet) does a process go by what it decided last, and for one
//! that pods kept by when the last of these left ([`Remembered`]); where that differs between two of them, the first
//! value that is written decides.
//!
//! **How large a value may be.** Karpenter reads the annotation back: a pod's share in the cost of disrupting a node is
//! `1 + value / 2^27 + priority / 2^25`, and a node whose shares come to nothing counts as empty and is deleted without
//! a simulation (`pkg/utils/disruption`, `EvictionCost`; `pkg/controllers/disruption/types.go`, `IsEmpty`). So every
//! value lies within ±[`BOUND`], which moves a share by less than a hundredth, and a pod whose priority is so low that
//! even this would count gets none ([`view::LOWEST_PRIORITY`]).

pub mod cluster;
mod code;
mod group;
mod nodes;
mod number;
mod order;
mod pass;
mod ranking;
pub mod removal;
mod spread;
mod values;
pub mod view;
mod write;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use group::{Group, Occupancy, Protection};
pub use nodes::Nodes;
pub use pass::{Input, Pass, pass, pass_remembering};
pub use ranking::{Freed, Occupancies, Ranked, Ranking, Remembered, Verdict, rank};
pub use values::{Ground, Withheld, at_bind, desired, spread_over, withheld};
pub use view::{Constraint, CostPod, Keep, NodeFacts, Options, PodHold, Readiness, SetView, Standing};
pub use write::{Write, bind_annotations, write};

/// The annotation that a ReplicaSet's scale-down reads.
pub const COST_ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";

/// No value of ours is further from nothing than this. See the module's words on Karpenter: at 2^27 a pod would be
/// free.
pub const BOUND: i32 = 1 << 20;

/// The value of a victim of the Scale handover: it goes before every pod that says nothing or carries a rank. No rank is
/// as low, so whoever reads it back knows whose it is.
pub const VICTIM: i32 = -BOUND;
