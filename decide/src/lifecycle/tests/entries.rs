//! The entry of a new pod.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{PRIORITY, RESPONDER, entry};
use crate::testing::runner;

fn others(count: usize) -> Value {
    (0..count).map(|number| json!({ "name": format!("acme.io/r{number}"), "priority": 2000 })).collect()
}

#[test]
fn a_pod_gets_the_entry_where_it_has_room_and_may_have_one() {
    let ours = json!({ "name": RESPONDER, "priority": PRIORITY });
    let table = [
        ("none", None, None, Some("/spec/evictionResponders")),
        ("null", Some(Value::Null), Some(Value::Null), Some("/spec/evictionResponders")),
        ("an empty list", Some(json!([])), None, Some("/spec/evictionResponders/-")),
        ("nine others", Some(others(9)), None, Some("/spec/evictionResponders/-")),
        ("ten others", Some(others(10)), None, None),
        ("ours, with another priority", Some(json!([{ "name": RESPONDER, "priority": 5000 }])), None, None),
        ("a pod of a group", None, Some(json!({ "podGroupName": "g" })), None),
        ("a shape that the API refuses", Some(json!({ "name": RESPONDER })), None, None),
    ];
    for (name, responders, group, expected) in table {
        let add = entry(responders.as_ref(), group.as_ref());
        assert_eq!(add.as_ref().map(|add| &*add.path), expected, "{name}");
        if let Some(add) = add {
            let value = if add.path.ends_with('-') { json!([add.value]) } else { add.value };
            assert_eq!(value, json!([ours]), "{name}");
        }
    }
}

/// As validated by the API server: `pkg/apis/core/validation/validation.go` and the field's declarative rules.
fn is_valid(responders: &[Value]) -> bool {
    let mut names: Vec<_> = responders.iter().map(|one| one["name"].as_str().unwrap_or_default()).collect();
    let (domain, key) = RESPONDER.split_once('/').expect("a key with a domain");
    names.sort_unstable();
    names.dedup();
    names.len() == responders.len()
        && responders.len() <= 10
        && responders.iter().all(|one| one["priority"].as_i64().is_some_and(|at| (1000..=100_000).contains(&at)))
        && !domain.ends_with("k8s.io")
        && !domain.ends_with("kubernetes.io")
        && domain.contains('.')
        && !key.is_empty()
}

proptest! {
    #![proptest_config(runner(200))]

    #[test]
    fn a_valid_pod_stays_valid_and_asked_again_gets_nothing(count in 0_usize..=10, has_ours in any::<bool>(), list in any::<bool>()) {
        let mut before = others(count).as_array().cloned().expect("a list");
        if has_ours && count < 10 {
            before.push(json!({ "name": RESPONDER, "priority": PRIORITY }));
        }
        let present = (list || !before.is_empty()).then(|| Value::Array(before.clone()));
        let mut after = before.clone();
        if let Some(add) = entry(present.as_ref(), None) {
            match (add.path.as_str(), &present) {
                ("/spec/evictionResponders", None) => after = add.value.as_array().cloned().expect("a list"),
                ("/spec/evictionResponders/-", Some(_)) => after.push(add.value),
                (path, present) => prop_assert!(false, "{path} of {present:?} would be refused"),
            }
        }
        prop_assert!(is_valid(&after), "{after:?}");
        prop_assert!(after.starts_with(&before));
        prop_assert_eq!(entry(Some(&Value::Array(after)), None), None);
    }
}
