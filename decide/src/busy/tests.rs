//! Busy rules, from the expression to the eviction: tables whose names are the rules they stand for, and properties.

mod create;
mod evaluation;
mod evictions;
mod expressions;
mod fields;
mod hints;
mod holds;
mod reconcile;
mod rules;
mod states;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// Objects of a few names, so that expressions find some of them, with values of every kind.
fn objects() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        (-2..3_i64).prop_map(Json::from),
        prop::sample::select(vec![json!(i64::MIN), json!(u64::MAX), json!(0.5)]),
        prop::sample::select(vec!["", "a", "b", "True", "Running", "Busy", "2026-11-30T13:00:00Z"])
            .prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let names = prop::sample::select(vec!["a", "b", "status", "phase", "metadata", "labels", "conditions", "type"]);
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            3 => prop::collection::btree_map(names, inner, 0..5)
                .prop_map(|map| Json::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())),
        ]
    })
}
