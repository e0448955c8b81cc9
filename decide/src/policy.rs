//! Which workloads are protected, and with which settings.
//!
//! Three sources, from the most particular to the most general: the annotation `belay.dev/handover` on the
//! Deployment, the HandoverPolicy that selects it, the platform's default for chosen namespaces. The annotation
//! decides *whether*, and by which mode; the policy or the default decides everything else.

use crate::view::{AutoscalerView, DeploymentView, Strategy};

/// Annotation on a Deployment: `Restart` or `Scale` opts it in (with or without a policy) and says how, `Off` opts it
/// out.
pub const HANDOVER_ANNOTATION: &str = "belay.dev/handover";

/// How long a victim is held at most where nobody said otherwise, in seconds. Equals the default
/// `progressDeadlineSeconds` of a Deployment: a rollout that takes longer counts as failed there too.
pub const DEFAULT_READINESS_DEADLINE_SECONDS: u32 = 600;

/// A HandoverPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyView {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp` in seconds: among several policies for one Deployment the oldest governs.
    pub created: i64,
    /// The policy names its Deployment (`targetRef`); one that does governs before one that selects.
    pub by_name: bool,
    /// What the policy sets.
    pub settings: Settings,
}

/// How a workload is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `handover`: how the replacement is made to serve.
    pub mode: Mode,
    /// `trigger`: when a handover begins.
    pub trigger: Trigger,
    /// `surgeReplicas`: how many pods are added at most while victims wait for their stand-ins ([`Mode::Scale`]).
    pub surge_replicas: i32,
    /// `readinessDeadlineSeconds`: a victim is held at most this long.
    pub readiness_deadline_seconds: u32,
    /// `onFailure`.
    pub on_failure: OnFailure,
    /// `fieldManager`: under which name the template is patched; absent for Belay's own.
    pub field_manager: Option<String>,
    /// `ignoreEvictors`: user names whose evictions pass; a trailing `*` matches a prefix.
    pub ignore_evictors: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Restart,
            trigger: Trigger::OnEviction,
            surge_replicas: DEFAULT_SURGE_REPLICAS,
            readiness_deadline_seconds: DEFAULT_READINESS_DEADLINE_SECONDS,
            on_failure: OnFailure::Release,
            field_manager: None,
            ignore_evictors: Vec::new(),
        }
    }
}

/// How many pods are added where nobody said otherwise. One is enough for any number of victims, one after the other.
pub const DEFAULT_SURGE_REPLICAS: i32 = 1;

/// How the replacement is made to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One rollout of the Deployment. For one replica.
    #[default]
    Restart,
    /// More replicas for a while. For workloads that tolerate another copy.
    Scale,
}

impl Mode {
    /// As written in a policy and in the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restart => "Restart",
            Self::Scale => "Scale",
        }
    }

    /// Reads the annotation's value, in any case of letters.
    fn parse(text: &str) -> Option<Self> {
        [Self::Restart, Self::Scale].into_iter().find(|mode| text.eq_ignore_ascii_case(mode.as_str()))
    }
}

/// When a handover begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// When the eviction of a pod is asked for.
    #[default]
    OnEviction,
    /// When the pod's node is about to go, or the pod's eviction is asked for, whichever comes first.
    OnDoom,
}

/// What happens to the workload when its replacement did not come in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The victim is released; the template stays as it is.
    #[default]
    Release,
    /// The template is put back as it was, once, and the victim is released.
    RollBack,
}

/// The platform's default (`evictionHold.defaultPolicy`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultPolicy {
    /// Off: only annotated Deployments and those with a policy are protected.
    pub enabled: bool,
    /// Namespaces it covers; `*` covers all.
    pub namespaces: Vec<String>,
    /// How.
    pub settings: Settings,
}

/// Where a Deployment's protection comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The HandoverPolicy of this name.
    Policy(String),
    /// The annotation alone.
    Annotation,
    /// The platform's default.
    Default,
}

/// A Deployment's protection: that it has one, from where, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Where it comes from.
    pub source: Source,
    /// How the workload is handed over.
    pub settings: Settings,
}

/// The policy that governs a Deployment, among those that select it: by name before by selector, then the
/// oldest, then by name, so that every replica picks the same.
pub fn governing<'a>(policies: &[&'a PolicyView]) -> Option<&'a PolicyView> {
    policies.iter().min_by_key(|policy| (!policy.by_name, policy.created, policy.name.as_str())).copied()
}

/// The protection of a Deployment; `policies` are those that select it.
pub fn protection(
    deployment: &DeploymentView,
    policies: &[&PolicyView],
    default: &DefaultPolicy,
) -> Option<Protection> {
    let annotation = deployment.handover.as_deref().map(str::trim);
    if annotation.is_some_and(|value| value.eq_ignore_ascii_case("off")) {
        return None;
    }
    let mode = annotation.and_then(Mode::parse);
    let settings = |of: &Settings| Settings { mode: mode.unwrap_or(of.mode), ..of.clone() };
    if let Some(policy) = governing(policies) {
        let source = Source::Policy(policy.name.clone());
        return Some(Protection { source, settings: settings(&policy.settings) });
    }
    if mode.is_some() {
        return Some(Protection { source: Source::Annotation, settings: settings(&default.settings) });
    }
    let covered = |name: &String| name == "*" || *name == deployment.namespace;
    (default.enabled && default.namespaces.iter().any(covered))
        .then(|| Protection { source: Source::Default, settings: default.settings.clone() })
}

/// Why a Deployment cannot be handed over in its mode, right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// A paused Deployment does not roll.
    Paused,
    /// There is nothing to hand over.
    ZeroReplicas,
    /// A restart would churn healthy pods.
    MoreThanOneReplica(i32),
    /// The rollout itself takes the pod away before its replacement serves.
    LossyStrategy,
    /// Two copies must never run, so none can be added (Scale).
    Recreate,
    /// The autoscaler that governs the replicas is at its maximum, which is the user's bound (Scale).
    AutoscalerAtMaximum(i32),
    /// The autoscaler that governs the replicas is paused, so raising its minimum does nothing (Scale).
    AutoscalerPaused,
}

impl Unsupported {
    /// The reason in conditions, Events and metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Paused => "Paused",
            Self::ZeroReplicas => "ZeroReplicas",
            Self::MoreThanOneReplica(_) => "MoreThanOneReplica",
            Self::LossyStrategy => "LossyStrategy",
            Self::Recreate => "Recreate",
            Self::AutoscalerAtMaximum(_) => "AutoscalerAtMaximum",
            Self::AutoscalerPaused => "AutoscalerPaused",
        }
    }

    /// What it means and what to do about it.
    pub fn advice(self) -> String {
        match self {
            Self::Paused => "the Deployment is paused and cannot roll out a replacement; \
                 `kubectl rollout resume` protects it again"
                .to_owned(),
            Self::ZeroReplicas => "the Deployment has zero replicas; there is nothing to hand over".to_owned(),
            Self::MoreThanOneReplica(replicas) => format!(
                "the Deployment has {replicas} replicas and Restart is for one: it would replace healthy pods too; \
                 set handover: Scale, or protect several replicas with a PodDisruptionBudget"
            ),
            Self::LossyStrategy => "the Deployment's strategy lets its only pod go before the replacement serves; \
                 set maxUnavailable: 0 and maxSurge: 1"
                .to_owned(),
            Self::Recreate => "the Deployment's strategy is Recreate, so two copies of it must never run and Scale \
                 would run one more; set handover: Restart, or strategy RollingUpdate if it does tolerate a second copy"
                .to_owned(),
            Self::AutoscalerAtMaximum(maximum) => format!(
                "the Deployment's autoscaler is at its maximum of {maximum} replicas and leaves no room for a stand-in; \
                 raise its maximum by one"
            ),
            Self::AutoscalerPaused => "the Deployment's autoscaler is paused, so no stand-in can be asked of it; \
                 take the annotation that pauses it away"
                .to_owned(),
        }
    }
}

/// Whether a Deployment can be handed over in this mode, judged from its live state each time: replicas, pause,
/// strategy and autoscaler may change after a policy was accepted.
pub fn supported(
    deployment: &DeploymentView,
    mode: Mode,
    autoscaler: Option<&AutoscalerView>,
) -> Result<(), Unsupported> {
    if deployment.replicas == 0 {
        return Err(Unsupported::ZeroReplicas);
    }
    match mode {
        Mode::Restart => supports_restart(deployment, autoscaler),
        Mode::Scale => supports_scale(deployment, autoscaler),
    }
}

fn supports_scale(deployment: &DeploymentView, autoscaler: Option<&AutoscalerView>) -> Result<(), Unsupported> {
    if deployment.strategy == Strategy::Recreate {
        return Err(Unsupported::Recreate);
    }
    let Some(autoscaler) = autoscaler else { return Ok(()) };
    if autoscaler.paused {
        return Err(Unsupported::AutoscalerPaused);
    }
    // In a surge its own pods may be those that fill it, until the last victim has gone: the minimum comes down before the
    // replicas do.
    let is_surged = autoscaler.surge.as_ref().is_some_and(|record| record.workload == deployment.uid);
    if !is_surged && deployment.replicas >= autoscaler.maximum {
        return Err(Unsupported::AutoscalerAtMaximum(autoscaler.maximum));
    }
    Ok(())
}

fn supports_restart(deployment: &DeploymentView, autoscaler: Option<&AutoscalerView>) -> Result<(), Unsupported> {
    // A policy that was switched in mid-surge finds replicas that are about to be put back, and are nobody's wish.
    let surges = [deployment.surge.as_ref(), autoscaler.and_then(|autoscaler| autoscaler.surge.as_ref())];
    let ours = surges
        .into_iter()
        .flatten()
        .find(|surge| surge.surge > 0 && surge.workload == deployment.uid && surge.raised() == deployment.replicas);
    let replicas = ours.map_or(deployment.replicas, |surge| surge.base);
    if replicas > 1 {
        return Err(Unsupported::MoreThanOneReplica(replicas));
    }
    if deployment.paused {
        return Err(Unsupported::Paused);
    }
    if deployment.strategy.max_missing(replicas).is_some_and(|missing| missing > 0) {
        return Err(Unsupported::LossyStrategy);
    }
    Ok(())
}

/// A user name matches a list; a trailing `*` in a pattern matches any rest.
pub fn evictor_matches(patterns: &[String], user: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => user.starts_with(prefix),
        None => pattern == user,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::ObjectRef;
    use crate::handover::surge::{self, SurgeRecord};
    use crate::testing::{START, deployment};
    use crate::view::{Governor, IntOrPercent};

    type Case<'a> = (&'a str, Option<&'a str>, &'a [&'a PolicyView], &'a DefaultPolicy, Option<Source>);

    fn policy(name: &str, created: i64, by_name: bool) -> PolicyView {
        PolicyView { namespace: "shop".into(), name: name.into(), created, by_name, settings: Settings::default() }
    }

    #[test]
    fn the_most_particular_source_decides() {
        let covering = DefaultPolicy { enabled: true, namespaces: vec!["shop".into()], settings: Settings::default() };
        let elsewhere = DefaultPolicy { namespaces: vec!["bank".into()], ..covering.clone() };
        let everywhere = DefaultPolicy { namespaces: vec!["*".into()], ..covering.clone() };
        let off = DefaultPolicy { enabled: false, ..covering.clone() };
        let one = policy("one", 1, true);
        let table: &[Case<'_>] = &[
            ("nothing said", None, &[], &off, None),
            ("a policy", None, &[&one], &off, Some(Source::Policy("one".into()))),
            ("a policy before the default", None, &[&one], &covering, Some(Source::Policy("one".into()))),
            ("Off beats a policy", Some("Off"), &[&one], &covering, None),
            ("Off beats the default", Some("off"), &[], &covering, None),
            ("the annotation alone opts in", Some("Restart"), &[], &off, Some(Source::Annotation)),
            ("an unknown value opts nothing in", Some("yes"), &[], &off, None),
            ("an unknown value opts nothing out", Some("yes"), &[&one], &off, Some(Source::Policy("one".into()))),
            ("the default in its namespace", None, &[], &covering, Some(Source::Default)),
            ("the default elsewhere", None, &[], &elsewhere, None),
            ("the default everywhere", None, &[], &everywhere, Some(Source::Default)),
        ];
        for (name, annotation, policies, default, expected) in table {
            let mut target = deployment("shop", "web");
            target.handover = annotation.map(str::to_owned);
            let source = protection(&target, policies, default).map(|protection| protection.source);
            assert_eq!(source, *expected, "{name}");
        }
    }

    #[test]
    fn among_several_policies_a_named_target_then_the_oldest_then_the_name_governs() {
        let (selector, young, old, twin) =
            (policy("a", 1, false), policy("b", 9, true), policy("z", 5, true), policy("y", 5, true));
        assert_eq!(governing(&[&selector, &young, &old, &twin]).map(|policy| policy.name.as_str()), Some("y"));
        assert_eq!(governing(&[&selector, &young]).map(|policy| policy.name.as_str()), Some("b"));
        assert_eq!(governing(&[]), None);
    }

    #[test]
    fn a_restart_needs_one_running_replica_and_a_strategy_that_surges() {
        let surging =
            Strategy::RollingUpdate { max_surge: IntOrPercent::Int(1), max_unavailable: IntOrPercent::Int(0) };
        let lossy = Strategy::RollingUpdate { max_surge: IntOrPercent::Int(0), max_unavailable: IntOrPercent::Int(1) };
        let table = [
            ("one replica that surges", 1, false, surging, Ok(())),
            ("one replica, Recreate", 1, false, Strategy::Recreate, Ok(())),
            ("paused", 1, true, surging, Err(Unsupported::Paused)),
            ("zero", 0, false, surging, Err(Unsupported::ZeroReplicas)),
            ("three", 3, false, surging, Err(Unsupported::MoreThanOneReplica(3))),
            ("lossy", 1, false, lossy, Err(Unsupported::LossyStrategy)),
        ];
        for (name, replicas, paused, strategy, expected) in table {
            let target = DeploymentView { replicas, paused, strategy, ..deployment("shop", "web") };
            assert_eq!(supported(&target, Mode::Restart, None), expected, "{name}");
        }
    }

    #[test]
    fn a_surge_needs_room_below_the_autoscalers_maximum_but_for_what_it_has_taken_itself() {
        let autoscaler = |surge: Option<SurgeRecord>, paused| AutoscalerView {
            governor: Governor::HorizontalPodAutoscaler,
            object: ObjectRef {
                namespace: "shop".into(),
                name: "web".into(),
                uid: "h".into(),
                resource_version: "1".into(),
            },
            target: "web".into(),
            minimum: Some(3),
            maximum: 4,
            paused,
            surge,
        };
        let target = |replicas| DeploymentView { replicas, ..deployment("shop", "web") };
        let of = |workload: &str, surge: i32| {
            let text = format!(
                r#"{{"workload": "{workload}", "original": 3, "base": 3, "floor": 3, "surge": {surge}, "since": "{START}"}}"#
            );
            surge::parse(Some(&text))
        };
        let ours = target(4).uid;
        let full = Err(Unsupported::AutoscalerAtMaximum(4));
        let table = [
            ("room", 3, autoscaler(None, false), Ok(())),
            ("no room", 4, autoscaler(None, false), full),
            ("paused", 3, autoscaler(None, true), Err(Unsupported::AutoscalerPaused)),
            ("its own surge", 4, autoscaler(of(&ours, 1), false), Ok(())),
            ("its own surge, the minimum already back", 4, autoscaler(of(&ours, 0), false), Ok(())),
            ("a surge of its predecessor", 4, autoscaler(of("other", 1), false), full),
        ];
        for (name, replicas, autoscaler, expected) in table {
            assert_eq!(supported(&target(replicas), Mode::Scale, Some(&autoscaler)), expected, "{name}");
        }
    }

    #[test]
    fn replicas_of_a_surge_are_not_held_against_a_restart() {
        let strategy =
            Strategy::RollingUpdate { max_surge: IntOrPercent::Int(1), max_unavailable: IntOrPercent::Int(0) };
        let surge = |base, surge| SurgeRecord {
            workload: "web-uid".into(),
            original: Some(base),
            base,
            floor: 1,
            surge,
            awaited: Vec::new(),
            released: Vec::new(),
            since: START,
            renewed: false,
        };
        let others = SurgeRecord { workload: "other".into(), ..surge(1, 1) };
        let table = [
            ("raised from one", 2, Some(surge(1, 1)), Ok(())),
            ("raised from two", 3, Some(surge(2, 1)), Err(Unsupported::MoreThanOneReplica(2))),
            ("changed by somebody", 3, Some(surge(1, 1)), Err(Unsupported::MoreThanOneReplica(3))),
            ("put back already", 2, Some(surge(1, 0)), Err(Unsupported::MoreThanOneReplica(2))),
            ("another workload's", 2, Some(others), Err(Unsupported::MoreThanOneReplica(2))),
            ("none", 2, None, Err(Unsupported::MoreThanOneReplica(2))),
        ];
        for (name, replicas, surge, expected) in table {
            let target = DeploymentView { surge, replicas, strategy, ..deployment("shop", "web") };
            assert_eq!(supported(&target, Mode::Restart, None), expected, "{name}");
        }
    }

    #[test]
    fn evictors_match_exactly_or_by_prefix() {
        let patterns = ["system:serviceaccount:kube-system:vpa-updater".to_owned(), "argo-*".to_owned()];
        assert!(evictor_matches(&patterns, "system:serviceaccount:kube-system:vpa-updater"));
        assert!(evictor_matches(&patterns, "argo-rollouts"));
        assert!(!evictor_matches(&patterns, "system:serviceaccount:kube-system:vpa"));
        assert!(!evictor_matches(&[], "anybody"));
    }
}
