//! The busy hints switched on, off and on again: what was there before, and what is left after.
//!
//! A release is one for the whole cluster, so these have a cluster of their own and run one after another
//! (see [`stage`]).

#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/busy_support.rs"]
mod busy_support;
mod leaving;
mod restart;
mod stage;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/support.rs"]
mod support;
mod switching_on;
