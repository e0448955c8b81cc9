//! What this replica remembers of the victims that it held.
//!
//! Short-lived by design: everything that must outlive the process is in the API. It bounds a hold whose record
//! was lost, guards against a wall clock that is set back, and keeps a release.

use std::collections::HashMap;
use std::time::Duration;

use belay_decide::{busy, hold};
use parking_lot::{Mutex, MutexGuard};

/// How many victims are remembered. A full drain of the largest clusters Kubernetes supports touches 150,000
/// pods over hours; held ones at any time are far fewer, and each costs about 150 bytes.
const CAPACITY: usize = 20_000;

/// What is remembered of one victim.
pub trait Aged: Copy {
    /// Uptime of this process when it was first asked.
    fn first(&self) -> Duration;
}

impl Aged for hold::Memory {
    fn first(&self) -> Duration {
        self.first.uptime
    }
}

impl Aged for busy::eviction::Memory {
    fn first(&self) -> Duration {
        self.first.uptime
    }
}

/// When this replica was first asked about a pod that it did not see as it is.
#[derive(Clone, Copy, Debug)]
pub struct Unseen(pub hold::Moment);

impl Aged for Unseen {
    fn first(&self) -> Duration {
        self.0.uptime
    }
}

/// The memory, by UID of the victim.
#[derive(Debug)]
pub struct Victims<M> {
    by_uid: Mutex<HashMap<Box<str>, M>>,
}

impl<M> Default for Victims<M> {
    fn default() -> Self {
        Self { by_uid: Mutex::default() }
    }
}

/// The memory, locked while one request is decided, so that two requests for one victim at once see one first
/// moment.
pub struct Locked<'a, M> {
    by_uid: MutexGuard<'a, HashMap<Box<str>, M>>,
}

impl<M> Victims<M> {
    /// Locks it.
    pub fn lock(&self) -> Locked<'_, M> {
        Locked { by_uid: self.by_uid.lock() }
    }
}

impl<M: Aged> Locked<'_, M> {
    /// What is remembered of a victim.
    pub fn get(&self, uid: &str) -> Option<M> {
        self.by_uid.get(uid).copied()
    }

    /// Remembers. Beyond the capacity the victims that were asked for first go: theirs are the holds that ended.
    pub fn put(&mut self, uid: &str, memory: M) {
        if let Some(known) = self.by_uid.get_mut(uid) {
            *known = memory;
            return;
        }
        if self.by_uid.len() >= CAPACITY {
            let mut ages: Vec<_> = self.by_uid.values().map(Aged::first).collect();
            ages.sort_unstable();
            let median = ages.get(ages.len() / 2).copied().unwrap_or_default();
            self.by_uid.retain(|_, memory| memory.first() > median);
        }
        self.by_uid.insert(uid.into(), memory);
    }
}

#[cfg(test)]
mod tests {
    use belay_decide::hold::{Memory, Moment};
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn the_oldest_victims_are_forgotten_and_the_memory_stays_bounded() {
        let victims = Victims::default();
        let mut memory = victims.lock();
        for second in 0..(CAPACITY as u64 * 2) {
            let first = Moment { wall: Timestamp::UNIX_EPOCH, uptime: Duration::from_secs(second) };
            let one = Memory { first, limit: Duration::from_mins(10), released: false };
            memory.put(&format!("uid-{second}"), one);
            assert!(memory.by_uid.len() <= CAPACITY);
        }
        assert!(memory.get(&format!("uid-{}", CAPACITY * 2 - 1)).is_some());
        assert!(memory.get("uid-0").is_none());
    }
}
