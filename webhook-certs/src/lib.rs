//! Certificates for admission webhooks: an own CA, in-memory leaf certificates, planned rotation.
//!
//! An API server calls a webhook over HTTPS and trusts exactly the PEM bundle that stands in the
//! webhook configuration (`clientConfig.caBundle`). So three things have to agree at every moment:
//! what signs, what is served, what is trusted. They live in different places, are written by
//! different processes and are seen late by every reader. This package holds what each of those
//! processes has to decide, as plain functions of what it sees and of `now`:
//!
//! * one **controller** keeps the CA [`Secret`](secret::CaSecret) and the live bundles:
//!   [`plan::plan`] says the next step, [`plan::Step::apply`] makes the Secret to be written;
//! * each **replica** signs its own short-lived leaf in memory and serves it:
//!   [`replica::Replica`] says when to switch, [`resolver::CertResolver`] switches without a
//!   dropped connection, [`replica::Replica::ready`] says whether callers accept what is served.
//!
//! Where certificates come from elsewhere, as files, [`given::Given`] takes the planner's place and
//! [`mounted::Mounted`] the replica's; the rule of when to switch (`succession`) is the same.
//!
//! There is no clock, no I/O and no async here: `now` is a parameter, and randomness is used only
//! to generate keys. That is why a year of rotations with crashes and late readers runs as a
//! property test in seconds (`tests/rotation.rs`).

pub mod ca;
pub mod cert;
pub mod given;
pub mod leaf;
pub mod mounted;
pub mod pair;
pub mod plan;
pub mod replica;
pub mod resolver;
pub mod secret;
mod succession;
pub mod verify;

pub use ca::Ca;
pub use given::Given;
pub use leaf::{Jitter, Leaf, LeafRequest};
pub use mounted::Mounted;
pub use pair::{Files, Pair};
pub use plan::{ConfigKind, Entry, LiveCaBundle, Step, plan};
pub use replica::Replica;
pub use resolver::CertResolver;
pub use secret::CaSecret;
