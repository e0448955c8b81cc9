//! What people and their tools do to the labels and annotations of a pod.

use super::World;
use crate::busy::hints;
use crate::busy::testing::bump;
use crate::ownership::Key;

/// One deed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    /// Sets one of the keys of hints.
    Set(usize, &'static str),
    /// Removes one.
    Remove(usize),
    /// Removes all, and leaves the record.
    Strip,
    /// Removes the record.
    StripRecord,
    /// Removes all that Belay wrote, the record included: a tool that prunes what it does not know.
    Prune,
    /// Writes something else over the record.
    Junk(&'static str),
    /// Replaces all by what stood there so many steps ago.
    Restore(u8),
}

impl World {
    pub(super) fn person(&mut self, deed: Deed) {
        let before = self.pod.clone();
        let key = |index: usize| hints::keys()[index].clone();
        match deed {
            Deed::Set(index, value) => drop(self.pod.marks.insert(key(index), value.to_owned())),
            Deed::Remove(index) => drop(self.pod.marks.remove(&key(index))),
            Deed::Strip => self.pod.marks.clear(),
            Deed::StripRecord => self.pod.managed = None,
            Deed::Prune => {
                self.pod.marks.retain(|key: &Key, _| !key.name().starts_with("belay.dev/"));
                self.pod.managed = None;
            }
            Deed::Junk(junk) => self.pod.managed = Some(junk.into()),
            Deed::Restore(ago) => {
                let ago = self.history.len().saturating_sub(1 + usize::from(ago));
                let then = &self.history[ago].pod;
                if then.uid == self.pod.uid {
                    (self.pod.marks, self.pod.managed) = (then.marks.clone(), then.managed.clone());
                }
            }
        }
        if before != self.pod {
            bump(&mut self.pod);
            self.watch_person(&before);
        }
    }
}
