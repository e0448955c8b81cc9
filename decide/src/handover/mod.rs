//! Handover: making the victim's replacement serve before the victim goes.
//!
//! [`situation`] reads where a workload stands with respect to one victim; the webhook answers from it and the
//! controller acts on it. [`reconcile`] is the controller's step: holds and workload in, actions out.

pub mod close;
mod doomed;
pub mod reconcile;
pub mod record;
pub mod scale;
pub mod situation;
pub mod surge;
#[cfg(test)]
mod tests;

pub use close::ClosePod;
pub use doomed::has_begun;
pub use reconcile::{HandoverRules, Plan, reconcile};
pub use situation::{Situation, Workload, situation};
