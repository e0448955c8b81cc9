//! What is decided about whole clusters.

mod loops;
mod properties;
mod ranks;
mod values;
