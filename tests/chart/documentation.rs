//! The documentation of the values: the comments of values.yaml are its source, the README's table is made from them,
//! and the schema must know every key. So none of the three can drift from the others.

use std::fmt::Write as _;

use serde_json::Value;

use crate::chart;

/// The table stands between these lines of the README.
const BEGIN: &str = "<!-- values: made from values.yaml -->\n\n";
const END: &str = "\n<!-- /values -->\n";

/// Keys that a parent chart sets and that values.yaml therefore does not have.
const FOR_PARENT_CHARTS: &[&str] = &["enabled", "global"];

/// One documented value.
pub(crate) struct Row {
    /// Dotted path.
    pub(crate) path: String,
    pub(crate) default: Value,
    pub(crate) description: String,
}

/// Every documented value, in the order of values.yaml: a key with a comment right above it.
///
/// A key without a comment is a section, whose keys must be documented in turn; what is below a documented key is its
/// default.
pub(crate) fn rows() -> Vec<Row> {
    let defaults = chart::read_yaml("values.yaml");
    let mut rows = Vec::new();
    let mut sections: Vec<String> = Vec::new();
    let mut comment = String::new();
    // Deeper lines than a documented key belong to its default.
    let mut inside: Option<usize> = None;
    for line in chart::read("values.yaml").lines() {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 2;
        if text.is_empty() {
            comment.clear();
            continue;
        }
        if inside.is_some_and(|documented| depth > documented) {
            continue;
        }
        inside = None;
        if let Some(words) = text.strip_prefix("# ") {
            if !comment.is_empty() {
                comment.push(' ');
            }
            comment.push_str(words);
            continue;
        }
        let (key, rest) = text.split_once(':').unwrap_or_else(|| panic!("not a key: {line}"));
        sections.truncate(depth);
        sections.push(key.to_owned());
        let path = sections.join(".");
        if comment.is_empty() {
            assert!(rest.is_empty(), "{path} has no comment in values.yaml");
            continue;
        }
        let default = defaults.pointer(&format!("/{}", sections.join("/"))).cloned();
        let default = default.unwrap_or_else(|| panic!("{path} is not in values.yaml as it is read"));
        rows.push(Row { path, default, description: std::mem::take(&mut comment) });
        inside = Some(depth);
    }
    rows
}

/// The table in Markdown. A default that is long is shown by its kind; values.yaml has it in full.
fn table(rows: &[Row]) -> String {
    let mut table = String::from("| Value | Default | What it is |\n|---|---|---|\n");
    for row in rows {
        let mut default = row.default.to_string();
        if default.len() > 60 {
            "see values.yaml".clone_into(&mut default);
        } else {
            default = format!("`{default}`");
        }
        let _ = writeln!(table, "| `{}` | {default} | {} |", row.path, row.description.replace('|', "\\|"));
    }
    table
}

#[test]
fn the_table_of_the_readme_is_made_from_the_values() {
    let readme = chart::read("README.md");
    let (before, rest) = readme.split_once(BEGIN).expect("the README has a place for the table");
    let (_, after) = rest.split_once(END).expect("the table has an end");
    let expected = format!("{before}{BEGIN}{}{END}{after}", table(&rows()));
    chart::assert_generated(&chart::folder().join("README.md"), &expected);
}

#[test]
fn every_value_is_documented() {
    fn leaves(value: &Value, path: &str, documented: &[String], missing: &mut Vec<String>) {
        if documented.iter().any(|row| row == path) {
            return;
        }
        match value.as_object().filter(|map| !map.is_empty()) {
            Some(map) => {
                for (key, value) in map {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    leaves(value, &path, documented, missing);
                }
            }
            None => missing.push(path.to_owned()),
        }
    }
    let documented: Vec<String> = rows().into_iter().map(|row| row.path).collect();
    let mut missing = Vec::new();
    leaves(&chart::read_yaml("values.yaml"), "", &documented, &mut missing);
    assert_eq!(missing, Vec::<String>::new());
    assert!(documented.len() > 60, "only {} values were found", documented.len());
}

/// The schema of one value, with what it refers to.
struct Schema<'a> {
    root: &'a Value,
    here: &'a Value,
}

impl<'a> Schema<'a> {
    fn referred(&self) -> &'a Value {
        match self.here["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
            Some(pointer) => self.root.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in the schema")),
            None => self.here,
        }
    }

    fn property(&self, key: &str) -> Option<Self> {
        let here = self.referred()["properties"].get(key)?;
        Some(Self { root: self.root, here })
    }

    fn has_description(&self) -> bool {
        self.here["description"].is_string() || self.referred()["description"].is_string()
    }
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    fn check(schema: &Schema<'_>, value: &Value, path: &str, documented: &[String]) {
        assert!(path.is_empty() || schema.has_description(), "{path} has no description in the schema");
        if documented.iter().any(|row| row == path) {
            return;
        }
        assert_eq!(schema.referred()["additionalProperties"], false, "`{path}` is open in the schema");
        let known = schema.referred()["properties"].as_object().unwrap_or_else(|| panic!("{path} has no properties"));
        let values = value.as_object().unwrap_or_else(|| panic!("{path} is not an object"));
        for key in known.keys() {
            let allowed = path.is_empty() && FOR_PARENT_CHARTS.contains(&key.as_str());
            assert!(allowed || values.contains_key(key), "the schema has {path}.{key}, values.yaml does not");
        }
        for (key, value) in values {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let property = schema.property(key).unwrap_or_else(|| panic!("{below} is not in the schema"));
            check(&property, value, &below, documented);
        }
    }
    let text = chart::read("values.schema.json");
    let root: Value = serde_json::from_str(&text).expect("the schema is JSON");
    let documented: Vec<String> = rows().into_iter().map(|row| row.path).collect();
    check(&Schema { root: &root, here: &root }, &chart::read_yaml("values.yaml"), "", &documented);
}
