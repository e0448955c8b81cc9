//! The durable record of a surge: replicas that a workload has for a while beyond those that it should have.
//!
//! It stands on the object whose number was raised (the Deployment, its HorizontalPodAutoscaler or its ScaledObject)
//! and comes and goes in the same writes as the raised number, with the object's `resourceVersion` as precondition. So
//! where the record is, the number is raised, and where it is not, it was put back: exactly once, whoever leads.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Annotation that carries the record, a JSON object.
pub const SURGE_ANNOTATION: &str = "belay.dev/surge";

/// One surge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SurgeRecord {
    /// UID of the Deployment.
    pub workload: String,
    /// The number before; absent where the object left it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<i32>,
    /// How many replicas the Deployment had, and has without the surge.
    pub base: i32,
    /// How many of them have to be available for a victim to go: what was available when the surge began, at most
    /// `base`, at least one.
    pub floor: i32,
    /// How many are added; the number written is `base + surge`. Where it has come down to nothing the number is the
    /// original one again, and the record stays until the victims that were let go are gone.
    pub surge: i32,
    /// UIDs of the victims that it was raised for and that were not let go yet. Who sees no hold of one of them sees old
    /// holds, and does not take the surge for over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaited: Vec<String>,
    /// UIDs of the victims that were let go, as far as they still stand. Since it is written with the object's version as
    /// precondition, no two controllers can let two victims go for the same stand-in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<String>,
    /// When it began.
    pub since: Timestamp,
    /// Somebody changed the number in the meantime, and it was raised once more. Not again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renewed: bool,
}

impl SurgeRecord {
    /// How many replicas the Deployment has with the surge.
    pub fn raised(&self) -> i32 {
        self.base.saturating_add(self.surge)
    }

    /// The number that was written.
    pub fn number(&self) -> Option<i32> {
        if self.surge > 0 { Some(self.raised()) } else { self.original }
    }
}

/// Reads the annotation. One that somebody damaged reads as none: the number then stays as it is, and is the user's.
///
/// So does one with numbers that Belay never writes: obeyed, they would be refused by the API server for ever, or put
/// "back" what never was.
pub fn parse(annotation: Option<&str>) -> Option<SurgeRecord> {
    let record: SurgeRecord = serde_json::from_str(annotation?).ok()?;
    let is_ours = record.base >= 1
        && (1..=record.base).contains(&record.floor)
        && record.surge >= 0
        && record.original.is_none_or(|original| (0..=record.base).contains(&original));
    is_ours.then_some(record)
}

/// Writes the annotation.
pub fn render(record: &SurgeRecord) -> String {
    // Serialising strings, numbers, a timestamp and a boolean cannot fail.
    serde_json::to_string(record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_annotation_and_a_damaged_one_reads_as_none() {
        let record = SurgeRecord {
            workload: "uid".into(),
            original: None,
            base: 3,
            floor: 2,
            surge: 1,
            awaited: vec!["another".into()],
            released: vec!["victim".into()],
            since: Timestamp::UNIX_EPOCH,
            renewed: true,
        };
        assert_eq!(parse(Some(&render(&record))), Some(record.clone()));
        assert_eq!((record.raised(), record.number()), (4, Some(4)));
        assert_eq!(SurgeRecord { surge: 0, ..record.clone() }.number(), None);
        assert_eq!(parse(Some("{not json")), None);
        assert_eq!(parse(None), None);
        let wrong: [fn(&mut SurgeRecord); 6] = [
            |record| record.original = Some(-9),
            |record| record.original = Some(50_000),
            |record| record.base = -1,
            |record| record.floor = 0,
            |record| record.floor = 4,
            |record| record.surge = -1,
        ];
        for (number, bend) in wrong.into_iter().enumerate() {
            let mut record = record.clone();
            bend(&mut record);
            assert_eq!(parse(Some(&render(&record))), None, "{number}");
        }
    }
}
