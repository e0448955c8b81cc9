//! The eviction hold from outside: real `kubectl drain`, real Deployments, Belay installed by its chart.
//!
//! These tests share one control plane and one Belay, and run in parallel, each in a namespace and on nodes of its
//! own. What disturbs others (killed replicas, a restarted API server) is in `faults`.

mod edges;
mod handover;
mod support;
