//! The explanation of a Deployment: what protects it, and what the next eviction of each of its pods would bring about.

use belay_decide::handover::Workload;
use belay_decide::hold::{self, HoldView, Moment};
use belay_decide::policy::{PolicyView, Protection, Source};
use belay_decide::policy_status::conditions;
use belay_decide::view::Strategy;
use jiff::Timestamp;
use serde::Serialize;

use super::gather::SeenWorkloads;
use super::pod::{EvictionReport, HoldReport, write_unread};
use crate::cli::page::{ForPeople, Page, Row};
use crate::cluster::index::{Selected, WorkloadKey};

/// What there is to say about a Deployment.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    namespace: String,
    name: String,
    replicas: i32,
    strategy: &'static str,
    /// Absent where nothing protects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    protection: Option<ProtectionReport>,
    /// What a HandoverPolicy's status would say of this Deployment alone.
    conditions: Vec<ConditionReport>,
    /// What sets its replicas, where that is not itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    autoscaler: Option<String>,
    /// The replicas that it has for a while beyond its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    surge: Option<String>,
    pods: Vec<PodReport>,
    holds: Vec<HoldReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct ProtectionReport {
    by: String,
    handover: &'static str,
    readiness_deadline_seconds: u32,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct ConditionReport {
    r#type: &'static str,
    /// `True`, `False` or `Unknown`.
    status: &'static str,
    reason: &'static str,
    message: String,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct PodReport {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Why its node is about to go; absent where it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    doomed: Option<String>,
    eviction: EvictionReport,
}

/// Explains; absent where there is no such Deployment.
pub(super) fn explain(seen: &SeenWorkloads, namespace: &str, name: &str, now: Timestamp) -> Option<Report> {
    let key = WorkloadKey::new(namespace, name);
    let default = &seen.settings.default_policy;
    let (mut report, places) = seen
        .index
        .deployment(&key, default, |selected, workload, holds| (report(seen, selected, &holds), places(workload)))?;
    let pods = places.into_iter().map(|Place { name, node, doomed }| {
        let eviction = eviction(seen, namespace, &name, now);
        PodReport { name, node, doomed, eviction }
    });
    report.pods = pods.collect();
    Some(report)
}

fn report(seen: &SeenWorkloads, selected: &Selected<'_>, holds: &[&HoldView]) -> Report {
    let deployment = selected.deployment;
    let excluded = !seen.settings.hold_enabled || seen.settings.rules.excludes(&deployment.namespace);
    let conditions = selected.protection.as_ref().map(|protection| {
        conditions(&as_policy(&deployment.namespace, protection), None, excluded, &[selected.target()])
    });
    let record = selected.autoscaler.map_or(deployment.surge.as_ref(), |autoscaler| autoscaler.surge.as_ref());
    Report {
        namespace: deployment.namespace.clone(),
        name: deployment.name.clone(),
        replicas: deployment.replicas,
        strategy: match deployment.strategy {
            Strategy::Recreate => "Recreate",
            Strategy::RollingUpdate { .. } => "RollingUpdate",
        },
        protection: selected.protection.as_ref().map(|protection| ProtectionReport {
            by: match &protection.source {
                Source::Policy(name) => format!("HandoverPolicy {name}"),
                Source::Annotation => "its annotation".to_owned(),
                Source::Default => "evictionHold.defaultPolicy".to_owned(),
            },
            handover: protection.settings.mode.as_str(),
            readiness_deadline_seconds: protection.settings.readiness_deadline_seconds,
        }),
        conditions: conditions
            .into_iter()
            .flatten()
            .map(|condition| ConditionReport {
                r#type: condition.kind,
                status: condition.status.map_or("Unknown", |status| if status { "True" } else { "False" }),
                reason: condition.reason,
                message: condition.message,
            })
            .collect(),
        autoscaler: selected.autoscaler.map(|autoscaler| {
            let minimum = autoscaler.minimum.map_or_else(|| "its default".to_owned(), |minimum| minimum.to_string());
            format!(
                "{} {} (minimum {minimum}, maximum {})",
                autoscaler.governor.kind(),
                autoscaler.object.name,
                autoscaler.maximum
            )
        }),
        surge: record
            .map(|record| format!("{} for a while beyond its {}, since {}", record.surge, record.base, record.since)),
        pods: Vec::new(),
        holds: holds.iter().map(|hold| HoldReport::of(hold)).collect(),
        unread: seen.unread.clone(),
    }
}

/// The policy that would say of the Deployment what its protection does.
fn as_policy(namespace: &str, protection: &Protection) -> PolicyView {
    let name = match &protection.source {
        Source::Policy(name) => name.clone(),
        Source::Annotation | Source::Default => String::new(),
    };
    PolicyView {
        namespace: namespace.to_owned(),
        name,
        created: 0,
        by_name: true,
        settings: protection.settings.clone(),
    }
}

/// A pod, and where it is.
struct Place {
    name: String,
    node: Option<String>,
    doomed: Option<String>,
}

fn places(workload: &Workload<'_>) -> Vec<Place> {
    let doomed = |node: &str| workload.dooms.get(node).map(|doomed| doomed.by.to_string());
    let mut places: Vec<_> = workload
        .pods
        .iter()
        .map(|pod| Place {
            name: pod.name.to_string(),
            node: pod.node.as_deref().map(str::to_owned),
            doomed: pod.node.as_deref().and_then(doomed),
        })
        .collect();
    places.sort_by(|one, other| one.name.cmp(&other.name));
    places
}

/// What the webhook would answer somebody who asks for the eviction now; a busy rule may hold the pod besides, which
/// `belay explain pod` tells.
fn eviction(seen: &SeenWorkloads, namespace: &str, name: &str, now: Timestamp) -> EvictionReport {
    let request = hold::Request { namespace, name, uid: None, dry_run: false, evictor: "" };
    let moment = Moment { wall: now, uptime: std::time::Duration::ZERO };
    let answer = seen.index.victim(namespace, name, &seen.settings.default_policy, true, |facts| {
        hold::decide(&request, &seen.settings.rules, facts, None, moment).answer
    });
    EvictionReport::of(&answer)
}

impl ForPeople for Report {
    fn write(&self, page: &mut Page) {
        let of = format!(": {} replicas, {}", self.replicas, self.strategy);
        page.heading(&format!("Deployment {}/{}", self.namespace, self.name), &of);
        page.gap();
        match &self.protection {
            None => page.line(0, "Not protected: nothing opts it in, or its annotation belay.dev/handover opts it out"),
            Some(ProtectionReport { by, handover, readiness_deadline_seconds: seconds }) => {
                page.line(0, &format!("Protected by {by}: handover {handover}, {seconds} s at most"));
            }
        }
        for ConditionReport { r#type: kind, status, reason, message } in &self.conditions {
            page.line(2, &format!("{kind}: {status} ({reason})"));
            page.line(4, message);
        }
        if let Some(autoscaler) = &self.autoscaler {
            page.gap();
            page.line(0, &format!("Its replicas are governed by {autoscaler}"));
        }
        if let Some(surge) = &self.surge {
            page.gap();
            page.line(0, &format!("Replicas: {surge}"));
        }
        page.gap();
        let rest = if self.pods.is_empty() { " none" } else { "" };
        page.heading("Pods, if their eviction were asked for now:", rest);
        let rows = self.pods.iter().map(|pod| {
            let node = pod.node.as_deref().unwrap_or("no node yet");
            let node = pod.doomed.as_ref().map_or_else(|| node.to_owned(), |by| format!("{node} ({by})"));
            let (verdict, tone) = pod.eviction.verdict();
            let answer = format!("{verdict} ({})", pod.eviction.reason);
            let message = pod.eviction.message.clone().unwrap_or_default();
            Row::of([pod.name.clone(), node, answer]).toned(2, tone).note(message)
        });
        page.table(&["POD", "NODE", "EVICTION"], "", &rows.collect::<Vec<_>>());
        if !self.holds.is_empty() {
            page.gap();
            page.heading("Holds:", "");
        }
        for hold in &self.holds {
            page.line(2, &hold.to_string());
        }
        write_unread(page, &self.unread);
    }
}
