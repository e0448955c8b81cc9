//! Belay beside the real Karpenter: who writes how much, what Karpenter takes nodes for, and who gives way to whom.
//!
//! Each test has a cluster and a Karpenter of its own, since both concern all of a cluster's nodes.

#![expect(clippy::expect_used, reason = "a helper that cannot go on fails the test that called it")]

mod empty;
mod give_way;
mod scene;
mod values;
mod writes;
