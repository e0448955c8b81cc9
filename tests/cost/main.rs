//! Deletion costs, seen from outside: which pods real scale-downs take, what stands on pods, and who wrote what.
//!
//! A release is one for the whole cluster and ranks all of its nodes, so these run one after another, each with nodes
//! in a pool of its own, to which Belay is limited (see [`stage`]).

mod bind;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/busy_support.rs"]
mod busy_support;
mod explained;
mod order;
mod outage;
mod owners;
mod rest;
mod stage;
mod stand_down;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/support.rs"]
mod support;
mod values;
mod zones;
