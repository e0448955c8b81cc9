//! Tests of the harness itself, on the real control plane: what the other end-to-end tests take for granted.

mod belay;
mod instances;
mod nodes;
mod programs;
mod serving;
mod webhooks;
