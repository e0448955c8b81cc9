//! Belay from outside: real `kubectl drain`, real Deployments, played runners, Belay installed by its chart.
//!
//! These tests share one control plane and one Belay, and run in parallel, each in a namespace and on nodes of its
//! own. What disturbs others (killed replicas, a restarted API server) is in `faults`, and what is about switching on
//! and off in `busy`.

mod busy_arc;
mod busy_drain;
mod busy_explain;
mod busy_foreign;
mod busy_hints;
mod busy_presets;
mod busy_support;
mod columns;
mod command_line;
mod edges;
mod handover;
mod support;
