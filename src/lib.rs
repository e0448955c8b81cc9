//! Belay holds a pod in place until it is safe to leave.
//!
//! This package is the program: input and output. What it decides is in `belay-decide`, how it makes certificates
//! in `webhook-certs`. Calls go one way: `cli` → `webhook`, `controllers` → `cluster` → `decide`.

pub mod api;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod controllers;
pub mod metrics;
pub mod rate;
pub mod settings;
pub mod tasks;
pub mod webhook;

#[cfg(test)]
mod docs_test;
#[cfg(test)]
mod testing;
