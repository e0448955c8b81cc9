//! What a HandoverPolicy's status says: whether the next drain will find its workloads protected, and if not, why.
//!
//! Told before the drain, not during it: `kubectl describe handoverpolicy` answers from these conditions.

use crate::policy::{self, Mode, PolicyView, Protection, Source, Unsupported};
use crate::view::{DeploymentView, Strategy};

/// How many Deployments a message names; the rest is counted.
const NAMED: usize = 5;

/// One condition, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: &'static str,
    /// `status`; absent means Unknown.
    pub status: Option<bool>,
    /// `reason`.
    pub reason: &'static str,
    /// `message`.
    pub message: String,
}

/// One Deployment that the policy selects, and what protects it.
pub type Target<'a> = (&'a DeploymentView, Option<&'a Protection>);

/// The conditions of a policy: `TargetSupported`, `ZeroDowntimeUpdateStrategy`, `Protected`, in this order.
///
/// `invalid` says why the policy selects nothing whatever there is; `excluded`, that no eviction in its namespace is
/// ever held.
pub fn conditions(
    policy: &PolicyView,
    invalid: Option<&str>,
    excluded: bool,
    targets: &[Target<'_>],
) -> [Condition; 3] {
    let [supported, strategy, mut protected] = by_targets(policy, invalid, targets);
    if excluded {
        // Whatever else is wrong, this is what keeps evictions from being held.
        protected = Condition {
            kind: protected.kind,
            status: Some(false),
            reason: "NamespaceExcluded",
            message: format!(
                "evictions in the namespace {} are never held: it is kube-system, Belay's own, or excluded by \
                 configuration",
                policy.namespace
            ),
        };
    }
    [supported, strategy, protected]
}

fn by_targets(policy: &PolicyView, invalid: Option<&str>, targets: &[Target<'_>]) -> [Condition; 3] {
    let unknown = |kind: &'static str, reason: &'static str, message: &str| Condition {
        kind,
        status: None,
        reason,
        message: message.to_owned(),
    };
    if let Some(problem) = invalid {
        let refuse =
            |kind| Condition { kind, status: Some(false), reason: "InvalidPolicy", message: problem.to_owned() };
        return [
            refuse("TargetSupported"),
            unknown("ZeroDowntimeUpdateStrategy", "InvalidPolicy", problem),
            refuse("Protected"),
        ];
    }
    if targets.is_empty() {
        let message = if policy.by_name {
            "no Deployment of that name exists in this namespace"
        } else {
            "no Deployment in this namespace has labels that the selector matches"
        };
        let refuse =
            |kind| Condition { kind, status: Some(false), reason: "TargetNotFound", message: message.to_owned() };
        return [
            refuse("TargetSupported"),
            unknown("ZeroDowntimeUpdateStrategy", "TargetNotFound", message),
            refuse("Protected"),
        ];
    }
    [supported(targets), strategy(targets), protected(policy, targets)]
}

/// Whether each target can be handed over at all, leaving the strategy to its own condition.
fn supported(targets: &[Target<'_>]) -> Condition {
    let kind = "TargetSupported";
    let failing: Vec<_> = targets
        .iter()
        .filter_map(|(deployment, _)| {
            policy::supported(deployment, Mode::Restart, None).err().map(|why| (*deployment, why))
        })
        .filter(|(_, why)| *why != Unsupported::LossyStrategy)
        .collect();
    match failing.first() {
        Some((_, why)) => {
            let message = format!("{}: {}", names(failing.iter().map(|(target, _)| *target)), why.advice());
            Condition { kind, status: Some(false), reason: why.reason(), message }
        }
        None => {
            let message = format!("{} can be handed over", names(targets.iter().map(|(target, _)| *target)));
            Condition { kind, status: Some(true), reason: "Supported", message }
        }
    }
}

fn strategy(targets: &[Target<'_>]) -> Condition {
    let kind = "ZeroDowntimeUpdateStrategy";
    let of = |wanted: fn(&DeploymentView) -> bool| {
        let found: Vec<_> = targets.iter().map(|(target, _)| *target).filter(|target| wanted(target)).collect();
        (!found.is_empty()).then(|| names(found.into_iter()))
    };
    let is_lossy = |target: &DeploymentView| {
        target.strategy.max_missing(target.replicas.max(1)).is_some_and(|missing| missing > 0)
    };
    if let Some(names) = of(is_lossy) {
        let message = format!("{names}: {}", Unsupported::LossyStrategy.advice());
        return Condition { kind, status: Some(false), reason: "LossyStrategy", message };
    }
    if let Some(names) = of(|target| target.strategy == Strategy::Recreate) {
        let message = format!(
            "{names}: strategy Recreate stops the old pod before the new one starts, so each handover has a gap; two \
             copies never run at once"
        );
        return Condition { kind, status: Some(false), reason: "Recreate", message };
    }
    let message = "the replacement serves before the old pod goes".to_owned();
    Condition { kind, status: Some(true), reason: "SurgingStrategy", message }
}

fn protected(policy: &PolicyView, targets: &[Target<'_>]) -> Condition {
    let kind = "Protected";
    let refuse = |reason, message| Condition { kind, status: Some(false), reason, message };
    for (deployment, protection) in targets {
        match protection.map(|protection| &protection.source) {
            None => {
                let message =
                    format!("{} is opted out by its annotation {}", deployment.name, policy::HANDOVER_ANNOTATION);
                return refuse("OptedOut", message);
            }
            Some(Source::Policy(name)) if *name != policy.name => {
                let message = format!("{} is governed by HandoverPolicy {name}", deployment.name);
                return refuse("GovernedByAnotherPolicy", message);
            }
            Some(_) => {}
        }
        if let Err(why) = policy::supported(deployment, Mode::Restart, None) {
            return refuse(why.reason(), format!("{}: {}", deployment.name, why.advice()));
        }
    }
    let message = format!(
        "an eviction of {} is held while its Deployment replaces it, for {} s at most",
        names(targets.iter().map(|(target, _)| *target)),
        policy.settings.readiness_deadline_seconds
    );
    Condition { kind, status: Some(true), reason: "Protected", message }
}

fn names<'a>(targets: impl Iterator<Item = &'a DeploymentView>) -> String {
    let all: Vec<_> = targets.map(|target| target.name.as_str()).collect();
    let shown = all.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(NAMED) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Settings;
    use crate::testing::{deployment, protection};
    use crate::view::IntOrPercent;

    type Case<'a> = (&'a str, Option<&'a str>, Vec<Target<'a>>, [(Option<bool>, &'a str); 3]);

    fn policy() -> PolicyView {
        PolicyView {
            namespace: "shop".into(),
            name: "web".into(),
            created: 1,
            by_name: true,
            settings: Settings::default(),
        }
    }

    #[test]
    fn the_status_tells_what_the_next_drain_will_meet() {
        let ours = protection();
        let others = Protection { source: Source::Policy("older".into()), ..protection() };
        let base = || deployment("shop", "web");
        let three = DeploymentView { replicas: 3, ..base() };
        let paused = DeploymentView { paused: true, ..base() };
        let recreate = DeploymentView { strategy: Strategy::Recreate, ..base() };
        let lossy = DeploymentView {
            strategy: Strategy::RollingUpdate {
                max_surge: IntOrPercent::Int(0),
                max_unavailable: IntOrPercent::Int(1),
            },
            ..base()
        };
        let plain = base();
        let table: Vec<Case<'_>> = vec![
            (
                "a surging single replica",
                None,
                vec![(&plain, Some(&ours))],
                [(Some(true), "Supported"), (Some(true), "SurgingStrategy"), (Some(true), "Protected")],
            ),
            (
                "Recreate is protected, with a gap",
                None,
                vec![(&recreate, Some(&ours))],
                [(Some(true), "Supported"), (Some(false), "Recreate"), (Some(true), "Protected")],
            ),
            (
                "a lossy strategy",
                None,
                vec![(&lossy, Some(&ours))],
                [(Some(true), "Supported"), (Some(false), "LossyStrategy"), (Some(false), "LossyStrategy")],
            ),
            (
                "three replicas",
                None,
                vec![(&three, Some(&ours))],
                [
                    (Some(false), "MoreThanOneReplica"),
                    (Some(true), "SurgingStrategy"),
                    (Some(false), "MoreThanOneReplica"),
                ],
            ),
            (
                "one of two is paused",
                None,
                vec![(&plain, Some(&ours)), (&paused, Some(&ours))],
                [(Some(false), "Paused"), (Some(true), "SurgingStrategy"), (Some(false), "Paused")],
            ),
            (
                "opted out",
                None,
                vec![(&plain, None)],
                [(Some(true), "Supported"), (Some(true), "SurgingStrategy"), (Some(false), "OptedOut")],
            ),
            (
                "an older policy governs",
                None,
                vec![(&plain, Some(&others))],
                [(Some(true), "Supported"), (Some(true), "SurgingStrategy"), (Some(false), "GovernedByAnotherPolicy")],
            ),
            (
                "nothing found",
                None,
                vec![],
                [(Some(false), "TargetNotFound"), (None, "TargetNotFound"), (Some(false), "TargetNotFound")],
            ),
            (
                "an invalid policy",
                Some("spec.selector is not a valid label selector"),
                vec![],
                [(Some(false), "InvalidPolicy"), (None, "InvalidPolicy"), (Some(false), "InvalidPolicy")],
            ),
        ];
        for (name, invalid, targets, expected) in table {
            let found = conditions(&policy(), invalid, false, &targets);
            let seen: Vec<_> = found.iter().map(|condition| (condition.status, condition.reason)).collect();
            assert_eq!(seen, expected, "{name}");
            assert!(found.iter().all(|condition| !condition.message.is_empty()), "{name}");
        }
    }

    #[test]
    fn a_policy_in_an_excluded_namespace_protects_nothing() {
        let (target, ours) = (deployment("kube-system", "web"), protection());
        let [_, _, protected] = conditions(&policy(), None, true, &[(&target, Some(&ours))]);
        assert_eq!((protected.status, protected.reason), (Some(false), "NamespaceExcluded"));
        let [_, _, protected] = conditions(&policy(), None, true, &[]);
        assert_eq!(protected.reason, "NamespaceExcluded", "it comes before a target that is not found");
    }

    #[test]
    fn many_targets_are_counted_rather_than_listed() {
        let many: Vec<_> = (0..9).map(|number| deployment("shop", &format!("web-{number}"))).collect();
        let ours = protection();
        let targets: Vec<_> = many.iter().map(|target| (target, Some(&ours))).collect();
        let message = &conditions(&policy(), None, false, &targets)[2].message;
        assert!(message.contains("web-0, web-1, web-2, web-3, web-4 and 4 more"), "{message}");
    }
}
