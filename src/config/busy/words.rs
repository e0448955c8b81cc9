//! Names in a rule that mean something to the API server alone, checked as far as their form tells.
//!
//! A wrong one would be asked for in vain for ever. The chart's schema says the same, but not every file is a chart's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::RuleConfig;

/// What is wrong and how to mend it.
pub(super) fn check(rule: &RuleConfig) -> Result<(), String> {
    check_selector(&rule.pod_selector)?;
    let owner = rule.owner.as_ref();
    let through = owner.and_then(|owner| owner.through.as_ref());
    let kinds = [
        ("owner.kind", owner.map(|owner| owner.kind.as_str())),
        ("owner.through.kind", through.map(|through| through.kind.as_str())),
    ];
    for (key, kind) in kinds {
        if let Some(kind) = kind.filter(|kind| !is_kind(kind)) {
            return Err(format!("{key} {kind:?} is no kind: write it as in a manifest, such as EphemeralRunner"));
        }
    }
    let mut fields = owner.into_iter().flat_map(|owner| &owner.job_fields);
    if let Some(field) = fields.find(|field| field.split('.').any(str::is_empty)) {
        return Err(format!("owner.jobFields: {field:?} is no path of a field: write one such as status.jobId"));
    }
    let label = rule.linked_pods.as_ref().map(|linked| linked.label_key.as_str());
    if let Some(label) = label.filter(|label| !is_label_key(label)) {
        return Err(format!(
            "linkedPods.labelKey {label:?} is no label: write one such as runner-pod or example.com/runner-pod"
        ));
    }
    Ok(())
}

fn check_selector(selector: &LabelSelector) -> Result<(), String> {
    for LabelSelectorRequirement { key, operator, values } in selector.match_expressions.iter().flatten() {
        let has_values = values.as_ref().is_some_and(|values| !values.is_empty());
        match (operator.as_str(), has_values) {
            ("In" | "NotIn", true) | ("Exists" | "DoesNotExist", false) => {}
            ("In" | "NotIn", false) => {
                return Err(format!("podSelector: {operator} of {key} has no values: list at least one"));
            }
            ("Exists" | "DoesNotExist", true) => {
                return Err(format!(
                    "podSelector: {operator} of {key} has values: take them away, or write In or NotIn"
                ));
            }
            _ => {
                return Err(format!(
                    "podSelector: {operator:?} of {key} is no operator: write In, NotIn, Exists or DoesNotExist"
                ));
            }
        }
    }
    Ok(())
}

fn is_kind(kind: &str) -> bool {
    kind.starts_with(|first: char| first.is_ascii_uppercase()) && kind.chars().all(|one| one.is_ascii_alphanumeric())
}

/// A qualified name (`k8s.io/apimachinery/pkg/util/validation`, `IsQualifiedName`).
fn is_label_key(key: &str) -> bool {
    let ends_well = |text: &str| {
        let is_good = |one: Option<u8>| one.is_some_and(|one| one.is_ascii_alphanumeric());
        is_good(text.bytes().next()) && is_good(text.bytes().last())
    };
    let is_domain = |text: &str| {
        let is_plain = |one: u8| one.is_ascii_lowercase() || one.is_ascii_digit() || one == b'-';
        text.len() <= 253 && text.split('.').all(|part| ends_well(part) && part.bytes().all(is_plain))
    };
    let is_plain = |one: u8| one.is_ascii_alphanumeric() || b"-_.".contains(&one);
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_domain) && name.len() <= 63 && ends_well(name) && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_of_linked_pods_is_one_that_the_api_server_takes() {
        let long = "x".repeat(63);
        let good = ["runner-pod", "a", "A_b.c", "ci.example/pod", "a-1.b/c", &long];
        for key in good {
            assert!(is_label_key(key), "{key:?} is a label");
        }
        let too_long = "x".repeat(64);
        let bad = ["", "/", "a/", "/a", "a/b/c", "-a", "a-", "a b", "CI/pod", "ci..example/pod", "ä", &too_long];
        for key in bad {
            assert!(!is_label_key(key), "{key:?} is no label");
        }
    }
}
