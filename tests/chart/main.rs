//! Tests of the Helm chart, with the real Helm: what it renders, what it refuses, what it promises in its
//! documentation, and what a real API server, the API types of every Kubernetes version that it is for, and Prometheus say
//! to it.
//!
//! `UPDATE_GOLDEN=1` rewrites the golden render and the table of values in the chart's README.

#![expect(clippy::expect_used, clippy::panic, reason = "a helper that cannot go on fails the test that called it")]

mod busy;
mod certs;
mod chart;
mod cleanup;
mod cost;
mod documentation;
mod live;
mod matrix;
mod monitoring;
mod policy;
mod probe;
mod program;
mod rbac;
mod refusals;
mod render;
mod schemas;
mod upgrade;
