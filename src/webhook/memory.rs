//! What this replica remembers of the victims that it held.
//!
//! Short-lived by design: everything that must outlive the process is in the API. It bounds a hold whose record
//! was lost, guards against a wall clock that is set back, and keeps a release.

use std::collections::HashMap;

use belay_decide::hold::Memory;
use parking_lot::{Mutex, MutexGuard};

/// How many victims are remembered. A full drain of the largest clusters Kubernetes supports touches 150,000
/// pods over hours; held ones at any time are far fewer, and each costs about 150 bytes.
const CAPACITY: usize = 20_000;

/// The memory, by UID of the victim.
#[derive(Debug, Default)]
pub struct Victims {
    by_uid: Mutex<HashMap<Box<str>, Memory>>,
}

/// The memory, locked while one request is decided, so that two requests for one victim at once see one first
/// moment.
pub struct Locked<'a> {
    by_uid: MutexGuard<'a, HashMap<Box<str>, Memory>>,
}

impl Victims {
    /// Locks it.
    pub fn lock(&self) -> Locked<'_> {
        Locked { by_uid: self.by_uid.lock() }
    }
}

impl Locked<'_> {
    /// What is remembered of a victim.
    pub fn get(&self, uid: &str) -> Option<Memory> {
        self.by_uid.get(uid).copied()
    }

    /// Remembers. Beyond the capacity the victims that were asked for first go: theirs are the holds that ended.
    pub fn put(&mut self, uid: &str, memory: Memory) {
        if let Some(known) = self.by_uid.get_mut(uid) {
            *known = memory;
            return;
        }
        if self.by_uid.len() >= CAPACITY {
            let mut ages: Vec<_> = self.by_uid.values().map(|memory| memory.first.uptime).collect();
            ages.sort_unstable();
            let median = ages.get(ages.len() / 2).copied().unwrap_or_default();
            self.by_uid.retain(|_, memory| memory.first.uptime > median);
        }
        self.by_uid.insert(uid.into(), memory);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use belay_decide::hold::Moment;
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
