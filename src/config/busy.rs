//! The part of the configuration that is about busy hints: rules as they are written, checked and compiled as a whole.
//!
//! It takes effect at a program's start, since it also decides what is watched and which rights there are; the chart
//! starts the programs anew when it changes.

#[cfg(test)]
mod tests;

use std::time::Duration;

use belay_decide::busy::{GroupKind, HintSwitches, OnBusy, OnIdle, OnUnknown, OwnerRule, Rule, RuleSpec, State};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Selector, SelectorExt as _};
use serde::Deserialize;

use super::duration;

/// Busy hints.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BusyHints {
    /// Off: no pod is looked at by rules.
    pub enabled: bool,
    /// The first rule that selects a pod governs it.
    pub rules: Vec<RuleConfig>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleConfig {
    /// Unique; a DNS label.
    pub name: String,
    /// Names of namespaces; empty for all that are not excluded.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Which pods.
    pub pod_selector: LabelSelector,
    /// Whom to ask.
    #[serde(default)]
    pub owner: Option<OwnerConfig>,
    /// Pods that are linked by a label.
    #[serde(default)]
    pub linked_pods: Option<LinkedPodsConfig>,
    /// The first true one counts.
    pub states: Vec<StateConfig>,
    /// What a pod of unknown state counts as.
    #[serde(default)]
    pub on_unknown: OnUnknown,
    /// An idle pod counts as starting until it has been ready for this long.
    #[serde(default, deserialize_with = "duration")]
    pub startup_grace: Duration,
    /// Hints go from busy to idle only after this.
    #[serde(default = "default_idle_debounce", deserialize_with = "duration")]
    pub idle_debounce: Duration,
    /// Longest that a pod counts as busy.
    #[serde(default = "default_max_busy", deserialize_with = "duration")]
    pub max_busy: Duration,
    /// Which hints.
    #[serde(default)]
    pub hints: HintSwitches,
    /// What becomes of evictions.
    #[serde(default)]
    pub eviction: EvictionConfig,
}

/// Long enough for a status that flickers between two jobs, short beside Cluster Autoscaler's ten minutes.
fn default_idle_debounce() -> Duration {
    Duration::from_secs(15)
}

/// GitHub's default limit of a job, and longer than most.
fn default_max_busy() -> Duration {
    Duration::from_hours(6)
}

/// A kind of object.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KindConfig {
    /// API group; empty for the core.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Plural, of which the chart makes the right to read it.
    #[serde(default)]
    pub resource: Option<String>,
}

/// Whom to ask about a pod.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OwnerConfig {
    /// API group; empty for the core.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Plural, of which the chart makes the right to read it.
    #[serde(default)]
    pub resource: Option<String>,
    /// The pod's controller, where the owner controls that.
    #[serde(default)]
    pub through: Option<KindConfig>,
    /// Fields that speak of one pod's job.
    #[serde(default)]
    pub job_fields: Vec<String>,
}

/// Pods that are linked by a label.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinkedPodsConfig {
    /// The label whose value is the pod's name.
    pub label_key: String,
}

/// A state and when a pod is in it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StateConfig {
    /// The state.
    pub state: State,
    /// CEL over `pod`, `owner`, `linked` and `now`.
    pub when: String,
}

/// What becomes of evictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EvictionConfig {
    /// Of busy and starting pods.
    pub busy: OnBusy,
    /// Of idle pods.
    pub idle: OnIdle,
}

/// What a rule selects.
#[derive(Clone, Debug)]
pub struct Selects {
    /// Labels.
    pub selector: Selector,
    /// Namespaces; empty for all.
    pub namespaces: Vec<String>,
}

impl Selects {
    /// It selects a pod of this namespace with these labels.
    pub fn matches(&self, namespace: &str, labels: &std::collections::BTreeMap<String, String>) -> bool {
        self.covers(namespace) && self.selector.matches(labels)
    }

    /// It is about pods of this namespace.
    pub fn covers(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|one| one == namespace)
    }
}

/// Rules that can be used, each with what it selects.
pub(super) type Compiled = (Vec<Rule>, Vec<Selects>);

impl BusyHints {
    /// The rules, compiled, each with what it selects; none where the feature is off. Else the key that is wrong, and
    /// what is wrong with it.
    pub fn compile(&self) -> Result<Compiled, (&'static str, String)> {
        const KEY: &str = "busyHints.rules";
        if !self.enabled {
            return Ok((Vec::new(), Vec::new()));
        }
        if self.rules.is_empty() {
            let problem = "is empty while busyHints is enabled: name rules, or switch it off".to_owned();
            return Err((KEY, problem));
        }
        let specs = self.rules.iter().map(RuleConfig::spec).collect();
        let rules = Rule::compile_all(specs).map_err(|error| (KEY, error.to_string()))?;
        let selects = self.rules.iter().map(RuleConfig::selects).collect::<Result<_, _>>();
        Ok((rules, selects.map_err(|problem| (KEY, problem))?))
    }
}

impl RuleConfig {
    fn selects(&self) -> Result<Selects, String> {
        let name = &self.name;
        check_requirements(&self.pod_selector).map_err(|problem| format!("rule {name}: podSelector: {problem}"))?;
        let selector = Selector::try_from(self.pod_selector.clone())
            .map_err(|error| format!("rule {name}: podSelector is not a valid label selector: {error}"))?;
        if selector.selects_all() {
            return Err(format!("rule {name}: podSelector is empty and would select every pod"));
        }
        Ok(Selects { selector, namespaces: self.namespaces.clone() })
    }

    fn spec(&self) -> RuleSpec {
        let kind = |group: &str, kind: &str| GroupKind::new(group, kind);
        let span = |span: Duration| SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
        RuleSpec {
            name: self.name.clone(),
            owner: self.owner.as_ref().map(|owner| OwnerRule {
                kind: kind(&owner.group, &owner.kind),
                through: owner.through.as_ref().map(|through| kind(&through.group, &through.kind)),
                job_fields: owner.job_fields.clone(),
            }),
            linked_label: self.linked_pods.as_ref().map(|linked| linked.label_key.clone()),
            states: self.states.iter().map(|one| (one.state, one.when.clone())).collect(),
            on_unknown: self.on_unknown,
            startup_grace: span(self.startup_grace),
            idle_debounce: span(self.idle_debounce),
            max_busy: span(self.max_busy),
            hints: self.hints,
            on_busy: self.eviction.busy,
            on_idle: self.eviction.idle,
        }
    }
}

/// What the API server would refuse, which a watch would only ask for in vain.
fn check_requirements(selector: &LabelSelector) -> Result<(), String> {
    for LabelSelectorRequirement { key, operator, values } in selector.match_expressions.iter().flatten() {
        let has_values = values.as_ref().is_some_and(|values| !values.is_empty());
        match (operator.as_str(), has_values) {
            ("In" | "NotIn", true) | ("Exists" | "DoesNotExist", false) => {}
            ("In" | "NotIn", false) => {
                return Err(format!("{operator} of {key} has no values: list at least one"));
            }
            ("Exists" | "DoesNotExist", true) => {
                return Err(format!("{operator} of {key} has values: take them away, or write In or NotIn"));
            }
            _ => {
                return Err(format!("{operator:?} of {key} is no operator: write In, NotIn, Exists or DoesNotExist"));
            }
        }
    }
    Ok(())
}
