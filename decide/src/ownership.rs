//! Who owns a label or annotation that Belay writes on a pod.
//!
//! What Belay writes it also records on the pod itself, in `belay.dev/managed`: key and last value. The record tells
//! whose a value is, for any replica, after any restart and at an uninstall:
//!
//! - present and not recorded: somebody else's, never touched;
//! - recorded and changed: theirs from then on, the record is dropped;
//! - recorded and gone: put back, since a stripped value is more often an accident than a decision; stripped again and
//!   again it counts as a decision, and is recorded as given up (`null`), so that nothing ever fights.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};

#[cfg(test)]
mod tests;

/// The annotation that holds the record.
pub const MANAGED_ANNOTATION: &str = "belay.dev/managed";

/// A label's key in the record begins with this, since a pod may have a label and an annotation of one name.
const LABEL_PREFIX: &str = "label:";

/// So many removals within [`REMOVED_WITHIN`] are a decision.
const REMOVALS: usize = 3;

/// See [`REMOVALS`].
const REMOVED_WITHIN: SignedDuration = SignedDuration::from_hours(1);

/// A label or annotation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// An annotation.
    Annotation(Box<str>),
    /// A label.
    Label(Box<str>),
}

impl Key {
    /// The annotation of this name.
    pub fn annotation(name: &str) -> Self {
        Self::Annotation(name.into())
    }

    /// The label of this name.
    pub fn label(name: &str) -> Self {
        Self::Label(name.into())
    }

    /// Its name, without what it is.
    pub fn name(&self) -> &str {
        match self {
            Self::Annotation(name) | Self::Label(name) => name,
        }
    }

    fn parse(text: &str) -> Self {
        text.strip_prefix(LABEL_PREFIX).map_or_else(|| Self::annotation(text), Self::label)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation(name) => f.write_str(name),
            Self::Label(name) => write!(f, "{LABEL_PREFIX}{name}"),
        }
    }
}

/// What Belay wrote on a pod: key and last value, or nothing where it gave the key up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record(BTreeMap<Key, Option<String>>);

impl Record {
    /// Reads the annotation. What is not a record of ours counts as none: then every value there is somebody else's.
    pub fn parse(annotation: Option<&str>) -> Self {
        let read: Option<BTreeMap<String, Option<String>>> =
            annotation.and_then(|text| serde_json::from_str(text).ok());
        Self(read.into_iter().flatten().map(|(key, value)| (Key::parse(&key), value)).collect())
    }

    /// The annotation's value; absent where there is nothing to record.
    pub fn render(&self) -> Option<String> {
        let plain: BTreeMap<String, &Option<String>> =
            self.0.iter().map(|(key, value)| (key.to_string(), value)).collect();
        (!plain.is_empty()).then(|| serde_json::to_string(&plain).unwrap_or_default())
    }

    /// Notes what is written.
    pub fn insert(&mut self, key: Key, value: String) {
        self.0.insert(key, Some(value));
    }

    /// The last value that Belay wrote.
    pub fn written(&self, key: &Key) -> Option<&str> {
        self.0.get(key)?.as_deref()
    }

    /// Belay gave this key up.
    pub fn is_given_up(&self, key: &Key) -> bool {
        self.0.get(key).is_some_and(Option::is_none)
    }

    /// The keys in it.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }

    /// Forgets that these keys were given up: nobody writes them any more.
    pub fn drop_given_up<V>(&mut self, keys: &BTreeMap<Key, V>) {
        self.0.retain(|key, value| value.is_some() || !keys.contains_key(key));
    }

    /// Takes out what it says of some keys, by key and value, as a record of its own.
    #[must_use]
    pub fn split_off(&mut self, is_taken: impl Fn(&Key, Option<&str>) -> bool) -> Self {
        let all = std::mem::take(&mut self.0).into_iter();
        let (taken, left) = all.partition(|(key, value)| is_taken(key, value.as_deref()));
        self.0 = left;
        Self(taken)
    }

    /// There is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whose a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody's: it is absent.
    Nobody,
    /// Belay's.
    Belay,
    /// Somebody else's.
    Other,
}

/// Whose a key is, that stands so on the pod.
pub fn holder(record: &Record, key: &Key, present: Option<&str>) -> Holder {
    match (record.written(key), present) {
        (Some(written), Some(present)) if written == present => Holder::Belay,
        (_, Some(_)) => Holder::Other,
        (Some(_), None) => Holder::Belay,
        (None, None) if record.is_given_up(key) => Holder::Other,
        (None, None) => Holder::Nobody,
    }
}

/// Times at which keys were found removed, within the last hour. Lost with the process, which costs at most three more
/// attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removals {
    found: BTreeMap<Key, Vec<Found>>,
    version: Box<str>,
}

/// A key was found removed at this time, on the object of this version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    at: Timestamp,
    version: Box<str>,
}

impl Removals {
    /// The object is looked at as it is in this version. What is missing from it is one removal, however often it is
    /// looked at.
    pub fn look_at(&mut self, version: &str) {
        self.version = version.into();
    }

    fn add(&mut self, key: &Key, now: Timestamp) -> usize {
        let found = self.found.entry(key.clone()).or_default();
        found.retain(|removal| now.duration_since(removal.at) < REMOVED_WITHIN);
        if found.last().is_none_or(|last| last.version != self.version) {
            found.push(Found { at: now, version: self.version.clone() });
        }
        found.len()
    }

    /// Nothing was removed.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

/// What to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// New values; nothing takes the key away.
    pub changes: BTreeMap<Key, Option<String>>,
    /// The record from then on.
    pub record: Record,
    /// Keys that somebody changed, or removed too often: theirs from then on.
    pub yielded: BTreeSet<Key>,
    /// Keys that somebody removed and that are put back.
    pub restored: BTreeSet<Key>,
}

/// Brings keys to what they ought to be, as far as they are ours. Keys that `desired` does not name are left alone,
/// recorded or not: another part of Belay looks after those.
pub fn reconcile(
    record: &Record,
    present: &BTreeMap<Key, String>,
    desired: &BTreeMap<Key, Option<String>>,
    removals: &mut Removals,
    now: Timestamp,
) -> Outcome {
    let mut outcome = Outcome { record: record.clone(), ..Outcome::default() };
    for (key, wanted) in desired {
        let present = present.get(key).map(String::as_str);
        match (holder(record, key, present), present, wanted) {
            (Holder::Other, _, _) => {
                // Recorded and changed, rather than never ours.
                if record.written(key).is_some() {
                    outcome.record.0.remove(key);
                    outcome.yielded.insert(key.clone());
                }
            }
            (Holder::Nobody, _, None) => {}
            (Holder::Nobody, _, Some(value)) => outcome.write(key, value),
            (Holder::Belay, None, None) => {
                outcome.record.0.remove(key);
            }
            (Holder::Belay, None, Some(value)) => {
                if removals.add(key, now) >= REMOVALS {
                    outcome.record.0.insert(key.clone(), None);
                    outcome.yielded.insert(key.clone());
                } else {
                    outcome.write(key, value);
                    outcome.restored.insert(key.clone());
                }
            }
            (Holder::Belay, Some(_), None) => {
                outcome.changes.insert(key.clone(), None);
                outcome.record.0.remove(key);
            }
            (Holder::Belay, Some(present), Some(value)) => {
                if present != value {
                    outcome.write(key, value);
                }
            }
        }
    }
    outcome
}

/// Takes away everything that is ours and as we wrote it, and the record with it.
pub fn release(record: &Record, present: &BTreeMap<Key, String>) -> BTreeMap<Key, Option<String>> {
    let ours = record.keys().filter(|key| {
        let present = present.get(*key).map(String::as_str);
        present.is_some() && holder(record, key, present) == Holder::Belay
    });
    ours.map(|key| (key.clone(), None)).collect()
}

impl Outcome {
    fn write(&mut self, key: &Key, value: &str) {
        self.changes.insert(key.clone(), Some(value.to_owned()));
        self.record.insert(key.clone(), value.to_owned());
    }
}
