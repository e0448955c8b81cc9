//! The durable record of restarts, kept on the Deployment itself.
//!
//! The record of a victim and the template change that restarts its workload are one write with the
//! Deployment's `resourceVersion` as precondition. So no crash, no second leader and no lost answer can separate
//! them: where the record is, the restart was made, and where it is not, it was not. That is what makes "one
//! restart per victim" hold.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Annotation on the Deployment that carries the records, a JSON list.
pub const RECORDS_ANNOTATION: &str = "belay.dev/handovers";

/// Annotation on the pod template that a restart alternates.
pub const SLOT_ANNOTATION: &str = "belay.dev/restart";

/// How many records are kept. Each is about 200 bytes and an annotation map may hold 256 KiB in all; a victim
/// older than the last ten restarts of a single-replica workload has long been gone.
pub const MAX_RECORDS: usize = 10;

/// One restart, made for one victim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandoverRecord {
    /// UID of the victim.
    pub victim: String,
    /// When its eviction was first asked for.
    pub requested_at: Timestamp,
    /// When it is released at the latest.
    pub deadline: Timestamp,
    /// When the restart was written.
    pub restarted_at: Timestamp,
    /// The slot before, absent where the template had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The slot after.
    pub to: String,
    /// The template was put back after the handover failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rolled_back: bool,
}

/// Reads the annotation. One that somebody damaged reads as empty: the EvictionHold's status guards the
/// restart as well, and the next write mends it.
pub fn parse(annotation: Option<&str>) -> Vec<HandoverRecord> {
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Writes the annotation.
pub fn render(records: &[HandoverRecord]) -> String {
    // Serialising strings, timestamps and booleans cannot fail; an empty list would only lose the guard.
    serde_json::to_string(records).unwrap_or_else(|_| "[]".to_owned())
}

/// The records with one more, the oldest dropped beyond [`MAX_RECORDS`].
pub fn with(records: &[HandoverRecord], new: HandoverRecord) -> Vec<HandoverRecord> {
    let mut all: Vec<_> = records.iter().filter(|record| record.victim != new.victim).cloned().collect();
    all.push(new);
    let surplus = all.len().saturating_sub(MAX_RECORDS);
    all.split_off(surplus)
}

/// The slot to write next. Alternating between two values makes the Deployment controller find the ReplicaSet
/// of two restarts ago again (it matches by template), so any number of handovers leaves at most two
/// ReplicaSets per release, and the user's revision history is not flushed.
pub fn next_slot(current: Option<&str>) -> &'static str {
    match current {
        Some("a") => "b",
        _ => "a",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(victim: &str) -> HandoverRecord {
        HandoverRecord {
            victim: victim.into(),
            requested_at: Timestamp::UNIX_EPOCH,
            deadline: Timestamp::UNIX_EPOCH,
            restarted_at: Timestamp::UNIX_EPOCH,
            from: None,
            to: "a".into(),
            rolled_back: false,
        }
    }

    #[test]
    fn slots_alternate_between_two_values() {
        let mut slot = None;
        let mut seen = Vec::new();
        for _ in 0..4 {
            slot = Some(next_slot(slot));
            seen.extend(slot);
        }
        assert_eq!(seen, ["a", "b", "a", "b"]);
        assert_eq!(next_slot(Some("written by hand")), "a");
    }

    #[test]
    fn records_survive_the_annotation_and_a_damaged_one_reads_as_empty() {
        let records =
            vec![record("one"), HandoverRecord { rolled_back: true, from: Some("b".into()), ..record("two") }];
        assert_eq!(parse(Some(&render(&records))), records);
        assert_eq!(parse(Some("{not json")), []);
        assert_eq!(parse(None), []);
    }

    #[test]
    fn a_victim_has_one_record_and_only_the_newest_are_kept() {
        let mut records = Vec::new();
        for number in 0..25 {
            records = with(&records, record(&format!("victim-{number}")));
            records = with(&records, record(&format!("victim-{number}")));
        }
        assert_eq!(records.len(), MAX_RECORDS);
        assert_eq!(records.first().map(|record| record.victim.as_str()), Some("victim-15"));
        assert_eq!(records.last().map(|record| record.victim.as_str()), Some("victim-24"));
    }
}
