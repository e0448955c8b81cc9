//! A surge that has outlived its Deployment: on an autoscaler whose Deployment was deleted in the middle of it, or that
//! was pointed at something else by then. Nothing else would ever put the minimum back.

use super::lever::Lever;
use crate::action::{Action, Event, Reference};
use crate::view::{AutoscalerView, Governor};

/// The writes that put back what was raised on an autoscaler that governs no Deployment.
pub fn leftover(autoscaler: &AutoscalerView) -> Vec<Action> {
    let lever = Lever::of_autoscaler(autoscaler);
    let Some(record) = lever.record else { return Vec::new() };
    let mut steps = vec![lever.put_back()];
    if record.surge > 0 && !lever.was_changed() {
        let number = record.original.map_or_else(|| "its default".to_owned(), |number| number.to_string());
        let note = format!("{} is back at {number}: the Deployment that it was raised for is gone", lever.field());
        steps.push(told(autoscaler, note));
    }
    steps
}

fn told(autoscaler: &AutoscalerView, note: String) -> Action {
    let api_version = match autoscaler.governor {
        Governor::ScaledObject => "keda.sh/v1alpha1",
        Governor::Deployment | Governor::HorizontalPodAutoscaler => "autoscaling/v2",
    };
    let (kind, object) = (autoscaler.governor.kind(), &autoscaler.object);
    Action::Event(Event {
        namespace: object.namespace.clone(),
        regarding: Reference { api_version, kind, name: object.name.clone(), uid: object.uid.clone(), field: None },
        related: None,
        warning: false,
        reason: "SurgeEnded",
        action: "ScaleBack",
        note,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::ObjectRef;
    use crate::handover::surge::SurgeRecord;
    use crate::testing::START;

    fn raised(minimum: Option<i32>, surge: Option<i32>) -> AutoscalerView {
        AutoscalerView {
            governor: Governor::HorizontalPodAutoscaler,
            object: ObjectRef {
                namespace: "shop".into(),
                name: "web".into(),
                uid: "h".into(),
                resource_version: "7".into(),
            },
            target: "web".into(),
            minimum,
            maximum: 9,
            paused: false,
            surge: surge.map(|surge| SurgeRecord {
                workload: "gone".into(),
                original: Some(2),
                base: 3,
                floor: 3,
                surge,
                awaited: Vec::new(),
                released: Vec::new(),
                since: START,
                renewed: false,
            }),
        }
    }

    #[test]
    fn what_is_left_is_put_back_unless_somebody_else_changed_it() {
        let words = |autoscaler: &AutoscalerView| {
            let plan = crate::handover::Plan { sequences: vec![leftover(autoscaler)], ..Default::default() };
            crate::testing::in_words(&plan).concat()
        };
        let back = ["HorizontalPodAutoscaler: 2, no record", "event: SurgeEnded"];
        assert_eq!(words(&raised(Some(4), Some(1))), back);
        let record_alone = ["HorizontalPodAutoscaler: no record"];
        assert_eq!(words(&raised(Some(5), Some(1))), record_alone, "5 is somebody else's");
        assert_eq!(words(&raised(Some(2), Some(0))), record_alone, "it is back already");
        assert_eq!(leftover(&raised(Some(4), None)), [], "there is no surge");
    }
}
