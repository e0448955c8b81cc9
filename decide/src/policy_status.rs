//! What a HandoverPolicy's status says: whether the next drain will find its workloads protected, and if not, why.
//!
//! Told before the drain, not during it: `kubectl describe handoverpolicy` answers from these conditions.

use crate::policy::{self, Mode, PolicyView, Protection, Settings, Source, Trigger, Unsupported};
use crate::view::{AutoscalerView, DeploymentView, Strategy};

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

/// One Deployment that the policy selects.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// It.
    pub deployment: &'a DeploymentView,
    /// What protects it; absent where nothing does.
    pub protection: Option<&'a Protection>,
    /// What governs its replicas, where that is not the Deployment itself.
    pub autoscaler: Option<&'a AutoscalerView>,
}

impl Target<'_> {
    /// Why an eviction of its pods would pass unheld, where it would.
    fn supported(&self, settings: &Settings) -> Result<(), Unsupported> {
        policy::supported(self.deployment, settings.mode, self.autoscaler)
    }

    /// How it is handed over, as far as its own source says; else as the policy does.
    fn settings<'a>(&'a self, policy: &'a PolicyView) -> &'a Settings {
        self.protection.map_or(&policy.settings, |protection| &protection.settings)
    }

    /// Its rollouts' loss, for people: `web (1 of 4)`; absent where they lose none, or all at once. Of one that is
    /// scaled by itself, at its maximum: a status that followed its replicas would be written all day.
    fn loss(&self) -> Option<String> {
        let replicas = self.autoscaler.map_or(self.deployment.replicas, |autoscaler| autoscaler.maximum).max(1);
        let missing = self.deployment.strategy.max_missing(replicas)?;
        (missing > 0).then(|| format!("{} ({} of {replicas})", self.deployment.name, missing.min(replicas)))
    }
}

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
    [supported(policy, targets), strategy(policy, targets), protected(policy, targets)]
}

/// Whether each target can be handed over at all, leaving the strategy to its own condition.
fn supported(policy: &PolicyView, targets: &[Target<'_>]) -> Condition {
    let kind = "TargetSupported";
    let failing: Vec<_> = targets
        .iter()
        .filter_map(|target| target.supported(target.settings(policy)).err().map(|why| (target, why)))
        .filter(|(_, why)| *why != Unsupported::LossyStrategy)
        .collect();
    match failing.first() {
        Some((_, why)) => {
            let message = format!("{}: {}", names(failing.iter().map(|(target, _)| *target)), why.advice());
            Condition { kind, status: Some(false), reason: why.reason(), message }
        }
        None => {
            let message = format!("{} can be handed over", names(targets.iter()));
            Condition { kind, status: Some(true), reason: "Supported", message }
        }
    }
}

/// Whether the targets' own rollouts lose no pod before its replacement serves.
fn strategy(policy: &PolicyView, targets: &[Target<'_>]) -> Condition {
    let kind = "ZeroDowntimeUpdateStrategy";
    let lossy: Vec<_> = targets.iter().filter_map(Target::loss).collect();
    if !lossy.is_empty() {
        let by_restart = targets.iter().any(|target| target.settings(policy).mode == Mode::Restart);
        let handovers = if by_restart { ", and a handover by a rollout would too" } else { "; handovers are not" };
        let message = format!(
            "maxUnavailable and maxSurge let rollouts take pods away before their replacements serve: {}{handovers}; \
             set maxUnavailable: 0 and maxSurge: 1",
            shown(&lossy)
        );
        return Condition { kind, status: Some(false), reason: "LossyStrategy", message };
    }
    let recreate: Vec<_> = targets.iter().filter(|target| target.deployment.strategy == Strategy::Recreate).collect();
    if !recreate.is_empty() {
        let message = format!(
            "{}: strategy Recreate stops the old pod before the new one starts, so each rollout has a gap, and so has \
             a handover by Restart; two copies never run at once",
            names(recreate.into_iter())
        );
        return Condition { kind, status: Some(false), reason: "Recreate", message };
    }
    let message = "the replacement serves before the old pod goes".to_owned();
    Condition { kind, status: Some(true), reason: "SurgingStrategy", message }
}

fn protected(policy: &PolicyView, targets: &[Target<'_>]) -> Condition {
    let kind = "Protected";
    let refuse = |reason, message| Condition { kind, status: Some(false), reason, message };
    for target in targets {
        let deployment = target.deployment;
        match target.protection.map(|protection| &protection.source) {
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
        if let Err(why) = target.supported(target.settings(policy)) {
            return refuse(why.reason(), format!("{}: {}", deployment.name, why.advice()));
        }
    }
    let of_mode = |mode: Mode| targets.iter().filter(move |target| target.settings(policy).mode == mode);
    let by_restart = of_mode(Mode::Restart).next().map(|_| {
        format!(
            "an eviction of {} is held while its Deployment replaces it by one rollout",
            names(of_mode(Mode::Restart))
        )
    });
    let surges: Vec<_> = of_mode(Mode::Scale).map(|target| surge(target, target.settings(policy))).collect();
    let by_scale = (!surges.is_empty())
        .then(|| format!("an eviction of {} is held until a stand-in is available", shown(&surges)));
    let both: Vec<_> = by_restart.into_iter().chain(by_scale).collect();
    let by_itself = match policy.settings.trigger {
        Trigger::OnEviction => "",
        Trigger::OnDoom => "; a handover begins by itself when a pod's node is seen to be about to go",
    };
    let message =
        format!("{}, for {} s at most{by_itself}", both.join(", "), policy.settings.readiness_deadline_seconds);
    Condition { kind, status: Some(true), reason: "Protected", message }
}

/// What the next victims of a workload bring about, for people: `web (3 replicas, 4 meanwhile)`; without the number that
/// an autoscaler changes all day.
fn surge(target: &Target<'_>, settings: &Settings) -> String {
    let (deployment, more) = (target.deployment, settings.surge_replicas);
    match target.autoscaler {
        None => {
            let base = deployment.surge.as_ref().map_or(deployment.replicas, |record| record.base);
            format!("{} ({base} replicas, {} meanwhile)", deployment.name, base.saturating_add(more))
        }
        Some(autoscaler) => format!(
            "{} ({more} more meanwhile, by the minimum of {} {}, {} at most)",
            deployment.name,
            autoscaler.governor.kind(),
            autoscaler.object.name,
            autoscaler.maximum
        ),
    }
}

fn names<'a>(targets: impl Iterator<Item = &'a Target<'a>>) -> String {
    let all: Vec<_> = targets.map(|target| target.deployment.name.clone()).collect();
    shown(&all)
}

fn shown(all: &[String]) -> String {
    let shown = all.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(NAMED) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::ObjectRef;
    use crate::handover::surge::SurgeRecord;
    use crate::testing::{deployment, protection};
    use crate::view::{Governor, IntOrPercent};

    type Case<'a> = (&'a str, Option<&'a str>, Vec<Target<'a>>, [(Option<bool>, &'a str); 3]);

    fn target<'a>(deployment: &'a DeploymentView, protection: Option<&'a Protection>) -> Target<'a> {
        Target { deployment, protection, autoscaler: None }
    }

    fn autoscaler(maximum: i32) -> AutoscalerView {
        AutoscalerView {
            governor: Governor::HorizontalPodAutoscaler,
            object: ObjectRef {
                namespace: "shop".into(),
                name: "web-hpa".into(),
                uid: "h".into(),
                resource_version: "1".into(),
            },
            target: "web".into(),
            minimum: Some(2),
            maximum,
            paused: false,
            surge: None,
        }
    }

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
                vec![target(&plain, Some(&ours))],
                [(Some(true), "Supported"), (Some(true), "SurgingStrategy"), (Some(true), "Protected")],
            ),
            (
                "Recreate is protected, with a gap",
                None,
                vec![target(&recreate, Some(&ours))],
                [(Some(true), "Supported"), (Some(false), "Recreate"), (Some(true), "Protected")],
            ),
            (
                "a lossy strategy",
                None,
                vec![target(&lossy, Some(&ours))],
                [(Some(true), "Supported"), (Some(false), "LossyStrategy"), (Some(false), "LossyStrategy")],
            ),
            (
                "three replicas",
                None,
                vec![target(&three, Some(&ours))],
                [
                    (Some(false), "MoreThanOneReplica"),
                    (Some(true), "SurgingStrategy"),
                    (Some(false), "MoreThanOneReplica"),
                ],
            ),
            (
                "one of two is paused",
                None,
                vec![target(&plain, Some(&ours)), target(&paused, Some(&ours))],
                [(Some(false), "Paused"), (Some(true), "SurgingStrategy"), (Some(false), "Paused")],
            ),
            (
                "opted out",
                None,
                vec![target(&plain, None)],
                [(Some(true), "Supported"), (Some(true), "SurgingStrategy"), (Some(false), "OptedOut")],
            ),
            (
                "an older policy governs",
                None,
                vec![target(&plain, Some(&others))],
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
    fn the_status_of_a_policy_that_scales_says_by_what_and_how_far() {
        let settings = Settings { mode: Mode::Scale, trigger: Trigger::OnDoom, ..Settings::default() };
        let policy = PolicyView { settings: settings.clone(), ..policy() };
        let ours = Protection { settings, ..protection() };
        let three = DeploymentView { replicas: 3, ..deployment("shop", "web") };
        let raised = DeploymentView {
            replicas: 4,
            surge: Some(SurgeRecord {
                workload: "web-uid".into(),
                original: Some(3),
                base: 3,
                floor: 3,
                surge: 1,
                awaited: Vec::new(),
                released: Vec::new(),
                since: crate::testing::START,
                renewed: false,
            }),
            ..three.clone()
        };
        let recreate = DeploymentView { strategy: Strategy::Recreate, ..three.clone() };
        let all =
            Strategy::RollingUpdate { max_surge: IntOrPercent::Int(1), max_unavailable: IntOrPercent::Percent(100) };
        let lossy = DeploymentView { strategy: all, ..three.clone() };
        let (room, full) = (autoscaler(9), autoscaler(3));
        let of = |deployment, autoscaler| Target { deployment, protection: Some(&ours), autoscaler };
        let table = [
            (of(&three, None), "TargetSupported", "Supported", "web can be handed over"),
            (of(&three, None), "Protected", "Protected", "web (3 replicas, 4 meanwhile)"),
            (of(&three, None), "Protected", "Protected", "begins by itself"),
            (of(&raised, None), "Protected", "Protected", "web (3 replicas, 4 meanwhile)"),
            (
                of(&three, Some(&room)),
                "Protected",
                "Protected",
                "web (1 more meanwhile, by the minimum of HorizontalPodAutoscaler web-hpa, 9 at most)",
            ),
            (of(&three, Some(&full)), "Protected", "AutoscalerAtMaximum", "maximum of 3"),
            (of(&recreate, None), "Protected", "Recreate", "handover: Restart"),
            (of(&recreate, None), "ZeroDowntimeUpdateStrategy", "Recreate", "two copies never run at once"),
            (of(&lossy, None), "ZeroDowntimeUpdateStrategy", "LossyStrategy", "web (3 of 3); handovers are not"),
            (of(&lossy, None), "Protected", "Protected", "3 replicas"),
        ];
        for (target, kind, reason, words) in table {
            let found = conditions(&policy, None, false, &[target]);
            let condition = found.iter().find(|condition| condition.kind == kind).expect(kind);
            assert_eq!(condition.reason, reason, "{kind}: {}", condition.message);
            assert!(condition.message.contains(words), "{kind}, {reason}: {}", condition.message);
        }
    }

    #[test]
    fn the_status_stays_as_it_is_while_an_autoscaler_works() {
        let settings = Settings { mode: Mode::Scale, ..Settings::default() };
        let policy = PolicyView { settings: settings.clone(), ..policy() };
        let ours = Protection { settings, ..protection() };
        let autoscaler = autoscaler(20);
        let said = |replicas| {
            let web = DeploymentView { replicas, ..deployment("shop", "web") };
            conditions(
                &policy,
                None,
                false,
                &[Target { deployment: &web, protection: Some(&ours), autoscaler: Some(&autoscaler) }],
            )
        };
        let first = said(1);
        for replicas in 2..20 {
            assert_eq!(said(replicas), first, "at {replicas} replicas");
        }
    }

    #[test]
    fn a_policy_in_an_excluded_namespace_protects_nothing() {
        let (web, ours) = (deployment("kube-system", "web"), protection());
        let [_, _, protected] = conditions(&policy(), None, true, &[target(&web, Some(&ours))]);
        assert_eq!((protected.status, protected.reason), (Some(false), "NamespaceExcluded"));
        let [_, _, protected] = conditions(&policy(), None, true, &[]);
        assert_eq!(protected.reason, "NamespaceExcluded", "it comes before a target that is not found");
    }

    #[test]
    fn many_targets_are_counted_rather_than_listed() {
        let many: Vec<_> = (0..9).map(|number| deployment("shop", &format!("web-{number}"))).collect();
        let ours = protection();
        let targets: Vec<_> = many.iter().map(|web| target(web, Some(&ours))).collect();
        let message = &conditions(&policy(), None, false, &targets)[2].message;
        assert!(message.contains("web-0, web-1, web-2, web-3, web-4 and 4 more"), "{message}");
    }
}
