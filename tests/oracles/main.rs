//! What Belay predicts of Kubernetes, held against Kubernetes' own code: small Go programs around its packages.
//!
//! No cluster runs here. The cases are made by a generator of our own rather than a property test, since all of them
//! are asked in one run of the program; they are the same every time, and `BELAY_ORACLE_SEED` makes others.

#![expect(clippy::expect_used, reason = "a helper that cannot go on fails the test that called it")]

mod ask;
mod chance;
mod removal;
mod spread;
