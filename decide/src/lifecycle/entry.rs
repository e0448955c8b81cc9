//! The entry by which a new pod names Belay as a responder.
//!
//! It must be there when the pod is created: `spec.evictionResponders` cannot be changed later. Pods that were there
//! before, or that Belay did not know to be protected, go without, and lose nothing: the last responder asks the
//! eviction API, which Belay's webhook answers.

use serde_json::{Value, json};

use super::{PRIORITY, RESPONDER};
use crate::steer::Add;

/// How many responders a pod may name (`pkg/apis/core/validation/validation.go`, `MaxPodEvictionResponders`).
const MOST: usize = 10;

/// What to add to a pod, given its `spec.evictionResponders` and `spec.schedulingGroup` as they stand in the request.
///
/// Only `add` of what is absent, or at the end of a list that has room: such a patch cannot be refused, which matters
/// because a refused patch blocks the pod's creation even under `failurePolicy: Ignore`. A pod of a PodGroup may name
/// no responders at all (`dependentForbidden("schedulingGroup")` on the field).
pub fn entry(responders: Option<&Value>, scheduling_group: Option<&Value>) -> Option<Add> {
    if scheduling_group.is_some_and(|group| !group.is_null()) {
        return None;
    }
    let path = "/spec/evictionResponders".to_owned();
    let ours = json!({ "name": RESPONDER, "priority": PRIORITY });
    match responders {
        None | Some(Value::Null) => Some(Add { path, value: json!([ours]) }),
        Some(Value::Array(others)) => {
            let is_there = others.iter().any(|other| other["name"] == *RESPONDER);
            (!is_there && others.len() < MOST).then(|| Add { path: format!("{path}/-"), value: ours })
        }
        // The API server refuses such a pod by itself.
        Some(_) => None,
    }
}
