//! Belay beside the real Karpenter: who writes how much, what Karpenter takes nodes for, who gives way to whom, and how a
//! node of Karpenter's ends.
//!
//! Each test has a cluster and a Karpenter of its own, since both concern all of a cluster's nodes.

#![expect(clippy::expect_used, reason = "a helper that cannot go on fails the test that called it")]

#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/busy_support.rs"]
mod busy_support;
mod empty;
mod give_way;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../handover/scene.rs"]
mod handover_scene;
mod scene;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/support.rs"]
mod support;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../handover/surge.rs"]
mod surge;
mod termination;
mod values;
mod writes;
