//! Tests of the harness itself, on the real control plane: what the other end-to-end tests take for granted.

mod arc;
mod autoscaling;
mod belay;
mod ends;
mod instances;
mod nodes;
mod objects;
mod programs;
mod serving;
mod webhooks;
