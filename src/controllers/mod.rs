//! The controller's loops: each watches what changed, decides with `belay-decide`, and has the applier write.

pub mod busy;
pub mod certificates;
pub mod handover;
pub mod policies;
pub mod work;
