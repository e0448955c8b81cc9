//! Busy pods stay, idle pods let go.
//!
//! A [`Rule`] says which objects tell what a pod is doing; [`judge`] reads the state. From it follow the pod's
//! [`hints`] (what other systems read), kept true by [`reconcile`](reconcile::reconcile) and set for the first time in
//! the pod's own create by [`create::first_hints`], and the answer to its eviction, [`eviction::decide`], for those
//! that read no hints.

pub mod create;
pub mod eviction;
pub mod expression;
pub mod fields;
pub mod hints;
#[cfg(test)]
mod model;
mod patience;
pub mod reconcile;
mod rule;
mod state;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use fields::Fields;
pub use rule::{
    AutoscalerHint, GroupKind, HintSwitches, LONGEST_BUSY, OnBusy, OnIdle, OnUnknown, OwnerRule, Rule, RuleError,
    RuleSpec, State,
};
pub use state::{Because, BusyPod, ControllerRef, Found, Owner, Seen, Verdict, judge};
