//! Numbers of replicas that the API server does not let be changed: a right is missing, or another webhook refuses it.
//!
//! Nobody but the log would know, while the holds say that a replica is about to be added. So the reason is remembered for
//! as long as it lasts, and goes into their messages and into one Event. A new leader finds out by its first try.

use std::collections::HashMap;

use belay_decide::action::Action;
use parking_lot::Mutex;

use crate::cluster::apply::{ApplyError, governor_name};
use crate::cluster::index::WorkloadKey;

/// Longest reason that is told, in characters: whoever writes a webhook's refusal may write a page.
const LONGEST: usize = 500;

/// Why changes were refused, by the workload they were for.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<WorkloadKey, String>>);

impl Refusals {
    /// Why the last change was refused; absent where it was not.
    pub(super) fn of(&self, key: &WorkloadKey) -> Option<String> {
        self.0.lock().get(key).cloned()
    }

    /// There is nothing to change any more.
    pub(super) fn forget(&self, key: &WorkloadKey) {
        self.0.lock().remove(key);
    }

    /// These actions were performed.
    pub(super) fn succeeded(&self, key: &WorkloadKey, sequence: &[Action]) {
        if sequence.iter().any(|action| matches!(action, Action::Surge { .. })) {
            self.forget(key);
        }
    }

    /// One of these actions failed. Says why, where it was the change of a number, and its refusal is news.
    pub(super) fn failed(&self, key: &WorkloadKey, sequence: &[Action], error: &ApplyError) -> Option<String> {
        let (ApplyError::Forbidden { object: refused, .. } | ApplyError::Refused { object: refused, .. }) = error
        else {
            return None;
        };
        let is_change = |action: &Action| matches!(action, Action::Surge { governor, object, .. } if governor_name(*governor, object) == *refused);
        if !sequence.iter().any(is_change) {
            return None;
        }
        let why: String = error.to_string().chars().take(LONGEST).collect();
        self.0.lock().insert(key.clone(), why.clone()).is_none().then_some(why)
    }
}
