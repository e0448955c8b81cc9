//! The Scale handover: a stand-in beside the victim, by more replicas for a while.
//!
//! A *surge* raises the number that the workload's replicas follow ([`lever`]). It is over when its victims are gone, and
//! everything in between derives from three kinds of objects, so that any leader goes on in any phase: the record that
//! stands on the raised object ([`super::surge`]), the victims' holds, and the pods.
//!
//! **A victim may go** when as many others serve as did before the surge began ([`capacity`]). That is decided by the
//! controller alone, on pods read from the API just then, and written into the record *before* the victim's hold says so.
//! Both are needed: several victims may count on one stand-in, and whoever let a second one go on what a cache showed, or
//! beside another controller that does the same, would let two go for it. So the webhook never lets a victim go by what it
//! counts, only by what was written; what it counts is told to the drainer.
//!
//! **How it goes.** Where no other victim needs the stand-in, the number comes down by one and the ReplicaSet takes the
//! victim, which carries the lowest deletion cost ([`marks`]); but only where [`crate::cost::removal::order`] predicts that
//! it is the victim that goes. Else the evictor takes it, and the pod that the ReplicaSet makes for it is the next stand-in.

mod capacity;
mod ending;
mod holds;
mod leftover;
mod lever;
mod marks;
#[cfg(test)]
mod model;
mod step;
#[cfg(test)]
mod tests;

pub use capacity::{Awaited, awaited, is_let_go};
pub(super) use ending::withdraw;
pub use leftover::leftover;
pub(super) use lever::object_of;
pub(super) use step::reconcile;
