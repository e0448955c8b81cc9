//! What Belay does, as pure functions of what it sees.
//!
//! Nothing here can reach the cluster: no client, no runtime, no clock, no randomness. Callers project API
//! objects into the small [`view`]s, pass the time in, and get back an answer (for the webhook) or a list of
//! [`action::Action`]s (for the controller). The same input gives the same output, byte for byte, which is what
//! makes the rules testable as tables and properties, and an answer in production reproducible from a log line.
//!
//! The way of one eviction: [`hold::decide`] answers the request from the views; the recorded hold wakes the
//! controller, whose [`handover::reconcile`] says what to write; both read the state of the workload through
//! the one function [`handover::situation`], so they cannot disagree about whether a replacement serves.

pub mod action;
pub mod busy;
pub mod cost;
pub mod doom;
pub mod evictors;
pub mod handover;
pub mod hold;
pub mod lifecycle;
pub mod ownership;
pub mod policy;
pub mod policy_status;
pub mod probe;
pub mod removers;
pub mod steer;
pub mod view;

#[cfg(test)]
mod model;
#[cfg(test)]
mod presets;
#[cfg(test)]
mod testing;
