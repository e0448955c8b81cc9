//! The Scale handover from outside, handovers that begin by themselves, and the real evictors beside Belay.
//!
//! What is claimed here is counted where it happens: pods that were available by a watch of them, writes and refused
//! evictions by the API server's audit log. The tests share one control plane and one Belay, and run in parallel, each in
//! a namespace and on nodes of its own; those that uninstall Belay have clusters of their own. Deaths of leaders in each
//! phase of a surge are in `faults`, and Karpenter's own node termination is in `karpenter`.

mod autoscalers;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/busy_support.rs"]
mod busy_support;
mod cordons;
mod doom;
mod drain;
mod evictors;
mod foreign;
mod leaving;
mod policies;
mod refused;
mod scene;
mod stage;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/support.rs"]
mod support;
mod surge;
