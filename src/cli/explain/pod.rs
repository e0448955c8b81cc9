//! The explanation of a pod.

use std::collections::BTreeMap;
use std::fmt;

use belay_decide::action::Action;
use belay_decide::busy::reconcile::{Input, reconcile};
use belay_decide::busy::{Because, Found, eviction as busy_eviction, hints, judge};
use belay_decide::hold::{self, Allowed, Answer, HoldView, Moment};
use belay_decide::ownership::{Holder, Key, Record, holder};
use belay_decide::removers::{LocalVolume, LocalVolumeKind, Outlook, PodFacts, Stage, Verdict, outlooks};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use super::gather::SeenPod;
use crate::cli::page::{ForPeople, Page, Row, Tone};
use crate::cluster::project_busy;
use crate::webhook::eviction::{facts, left_to_policies};

/// What there is to say about a pod.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    namespace: String,
    name: String,
    uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// By a busy rule; absent where none governs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StateReport>,
    hints: Vec<Hint>,
    eviction: EvictionReport,
    holds: Vec<HoldReport>,
    #[cfg_attr(test, schemars(with = "Vec<()>"))]
    removers: Vec<Outlook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct StateReport {
    rule: String,
    state: &'static str,
    because: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    linked_pods: usize,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct Hint {
    kind: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// `Belay`, `Other` or `Nobody`.
    owner: &'static str,
    /// What the controller is about to write; absent where nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    about_to_be: Option<String>,
}

/// How an eviction would be answered.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct EvictionReport {
    pub(super) held: bool,
    pub(super) reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
}

/// A hold.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct HoldReport {
    name: String,
    reason: &'static str,
    phase: &'static str,
    evictor: String,
    requested_at: String,
    deadline: String,
    message: String,
}

/// Explains.
pub(super) fn explain(pod: &SeenPod, now: Timestamp) -> Report {
    let object = &pod.object;
    let eviction = eviction(pod, now);
    Report {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        node: object.data["spec"]["nodeName"].as_str().map(str::to_owned),
        state: state(pod, now),
        hints: hints_of(pod, now),
        removers: removers(pod, eviction.held, now),
        eviction,
        holds: pod.holds.iter().map(HoldReport::of).collect(),
        unread: pod.unread.clone(),
    }
}

fn state(pod: &SeenPod, now: Timestamp) -> Option<StateReport> {
    let (rule, seen) = pod.seen()?;
    let verdict = judge(rule, &seen, now);
    let text = |index: usize| rule.states.get(index).map(|(_, expression)| expression.text().to_owned());
    let (because, expression) = match &verdict.because {
        Because::PodFinished => ("the pod has ended".to_owned(), None),
        Because::Expression(index) => (format!("states[{index}] is true"), text(*index)),
        Because::Failed(index, error) => {
            (format!("states[{index}] gave no answer ({error}), so onUnknown decides"), text(*index))
        }
        Because::NoneTrue => ("no state is true".to_owned(), None),
        Because::StartupGrace => {
            let until = verdict.changes_at.map(|at| format!(", until {at}")).unwrap_or_default();
            (format!("no state is true, and startupGrace is not over{until}"), None)
        }
        Because::OwnerNotSeenYet => ("its owner is not seen yet, and the pod is new".to_owned(), None),
        Because::OwnerMissing => ("its owner is missing, so onUnknown decides".to_owned(), None),
    };
    let owner = match (&seen.owner, &rule.spec.owner) {
        (Found::Owner(owner), Some(asked)) => {
            let going = if owner.terminating { ", being deleted" } else { "" };
            Some(format!("{} {}{going}", asked.kind, owner.name))
        }
        (Found::Missing, Some(asked)) => Some(format!("{}: missing", asked.kind)),
        _ => None,
    };
    Some(StateReport {
        rule: rule.spec.name.clone(),
        state: verdict.state.as_str(),
        because,
        expression,
        owner,
        linked_pods: seen.linked.len(),
    })
}

fn hints_of(pod: &SeenPod, now: Timestamp) -> Vec<Hint> {
    let meta = &pod.object.metadata;
    let record = Record::parse(project_busy::managed(meta).as_deref());
    let marks = project_busy::marks(meta);
    let coming = coming(pod, now);
    let report = |key: &Key| {
        let value = marks.get(key).cloned();
        let owner = match holder(&record, key, value.as_deref()) {
            Holder::Belay => "Belay",
            Holder::Other => "Other",
            Holder::Nobody => "Nobody",
        };
        let about_to_be = coming.get(key).map(|value| value.clone().unwrap_or_else(|| "(removed)".to_owned()));
        let kind = match key {
            Key::Label(_) => "label",
            Key::Annotation(_) => "annotation",
        };
        Hint { kind, key: key.name().to_owned(), value, owner, about_to_be }
    };
    let told = |hint: &Hint| hint.owner != "Nobody" || hint.about_to_be.is_some();
    hints::keys().iter().map(report).filter(told).collect()
}

/// What the controller is about to write, as far as its rule says it now.
fn coming(pod: &SeenPod, now: Timestamp) -> BTreeMap<Key, Option<String>> {
    let input = Input {
        governed: pod.seen(),
        living: None,
        siblings: 0,
        holds: Vec::new(),
        history_ttl: SignedDuration::ZERO,
        now,
    };
    let plan = reconcile(&input, None);
    let patch = plan.sequences.into_iter().flatten().find_map(|action| match action {
        Action::PatchPod { changes, .. } => Some(changes),
        _ => None,
    });
    patch.unwrap_or_default()
}

/// What the webhook would answer somebody who asks for the eviction now.
fn eviction(pod: &SeenPod, now: Timestamp) -> EvictionReport {
    let (namespace, name) = (pod.object.namespace().unwrap_or_default(), pod.object.name_any());
    let request = hold::Request { namespace: &namespace, name: &name, uid: None, dry_run: false, evictor: "" };
    let moment = Moment { wall: now, uptime: std::time::Duration::ZERO };
    let by_rule = pod.seen().map(|(rule, seen)| {
        let holds: Vec<_> = pod.holds.iter().collect();
        let read = match pod.governed.as_ref().map(|(_, _, live)| live) {
            Some(Err(problem)) => busy_eviction::Read::Failed(problem),
            _ => busy_eviction::Read::Live,
        };
        let facts = facts(rule, seen, &holds, read);
        busy_eviction::decide(&request, &pod.settings.rules, &facts, None, moment)
    });
    let by_policy = || {
        pod.index.victim(&namespace, &name, &pod.settings.default_policy, true, |facts| {
            hold::decide(&request, &pod.settings.rules, facts, None, moment).answer
        })
    };
    let answer = match left_to_policies(by_rule) {
        Err(answer) => answer,
        Ok(by_rule) => match by_policy() {
            Answer::Allow(Allowed::NotProtected) => Answer::Allow(by_rule),
            other => other,
        },
    };
    EvictionReport::of(&answer)
}

impl EvictionReport {
    pub(super) fn of(answer: &Answer) -> Self {
        match answer {
            Answer::Hold(held) => Self { held: true, reason: held.reason, message: Some(held.message.clone()) },
            Answer::Allow(allowed) => Self { held: false, reason: allowed.reason(), message: allowed.warning() },
        }
    }
}

fn removers(pod: &SeenPod, held: bool, now: Timestamp) -> Vec<Outlook> {
    let object = &pod.object;
    let volumes = object.data["spec"]["volumes"].as_array();
    let local: Vec<_> = volumes.into_iter().flatten().filter_map(local_volume).collect();
    let phase = object.data["status"]["phase"].as_str();
    let facts = PodFacts {
        namespace: object.metadata.namespace.as_deref().unwrap_or_default(),
        labels: object.labels(),
        annotations: object.annotations(),
        controller_kind: object
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| owner.kind.as_str()),
        stage: match phase {
            _ if object.metadata.deletion_timestamp.is_some() => Stage::Terminating,
            Some("Succeeded" | "Failed") => Stage::Finished,
            _ => Stage::Active,
        },
        is_mirror: object.annotations().contains_key(project_busy::MIRROR_ANNOTATION),
        local_volumes: &local,
        started: object.data["status"]["startTime"].as_str().and_then(|at| at.parse().ok()),
        held,
    };
    outlooks(&facts, now)
}

fn local_volume(volume: &Value) -> Option<LocalVolume<'_>> {
    let kind = if volume.get("hostPath").is_some() {
        LocalVolumeKind::HostPath
    } else if volume["emptyDir"]["medium"] == "Memory" {
        LocalVolumeKind::EmptyDirInMemory
    } else if volume.get("emptyDir").is_some() {
        LocalVolumeKind::EmptyDir
    } else {
        return None;
    };
    Some(LocalVolume { name: volume["name"].as_str().unwrap_or_default(), kind })
}

impl HoldReport {
    pub(super) fn of(hold: &HoldView) -> Self {
        Self {
            name: hold.name.clone(),
            reason: hold.spec.reason.as_str(),
            phase: hold.status.phase.as_str(),
            evictor: hold.spec.evictor.clone(),
            requested_at: hold.spec.requested_at.to_string(),
            deadline: hold.spec.deadline.to_string(),
            message: hold.status.message.clone(),
        }
    }
}

impl fmt::Display for HoldReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.evictor.is_empty() { "nobody yet" } else { &self.evictor };
        write!(
            f,
            "EvictionHold {}: {} {}, asked for by {by}, until {}: {}",
            self.name, self.reason, self.phase, self.deadline, self.message
        )
    }
}

impl EvictionReport {
    /// In two words, and whether that is good news.
    pub(super) fn verdict(&self) -> (&'static str, Tone) {
        if self.held { ("held", Tone::Waiting) } else { ("passes", Tone::Good) }
    }
}

impl ForPeople for Report {
    fn write(&self, page: &mut Page) {
        let node = self.node.as_deref().unwrap_or("no node yet");
        page.heading(&format!("Pod {}/{}", self.namespace, self.name), &format!(" on {node}"));
        page.gap();
        match &self.state {
            None => page.heading("State:", " no busy rule selects it"),
            Some(state) => state.write(page),
        }
        page.gap();
        let (verdict, tone) = self.eviction.verdict();
        page.verdict("Eviction now:", verdict, tone, &format!(" ({})", self.eviction.reason));
        let message = self.eviction.message.iter().cloned();
        for line in message.chain(self.holds.iter().map(ToString::to_string)) {
            page.line(2, &line);
        }
        page.gap();
        page.heading("Hints:", if self.hints.is_empty() { " none" } else { "" });
        let rows = self.hints.iter().map(|hint| {
            let value = hint.value.as_deref().unwrap_or("(absent)");
            let coming = hint.about_to_be.as_ref().map(|value| format!("about to be {value}")).unwrap_or_default();
            Row::of([format!("{} {}", hint.kind, hint.key), value.to_owned(), hint.owner.to_owned()]).note(coming)
        });
        page.table(&["KEY", "VALUE", "WHOSE"], "", &rows.collect::<Vec<_>>());
        page.gap();
        page.heading("Removers:", "");
        let rows = self.removers.iter().map(|outlook| {
            let row =
                Row::of([outlook.remover.to_owned(), format!("{:?}", outlook.verdict)]).note(outlook.because.clone());
            match outlook.verdict {
                Verdict::Waits => row.toned(1, Tone::Waiting),
                Verdict::Goes => row.toned(1, Tone::Good),
                Verdict::Stays | Verdict::Ignored => row,
            }
        });
        page.table(&["WHO", "POD"], "BECAUSE", &rows.collect::<Vec<_>>());
        write_unread(page, &self.unread);
    }
}

impl StateReport {
    fn write(&self, page: &mut Page) {
        page.heading("State:", &format!(" {} (rule {})", self.state, self.rule));
        page.line(2, &self.because);
        if let Some(expression) = &self.expression {
            page.line(2, expression);
        }
        if let Some(owner) = &self.owner {
            page.line(2, &format!("owner: {owner}"));
        }
        if self.linked_pods > 0 {
            page.line(2, &format!("linked pods: {}", self.linked_pods));
        }
    }
}

/// Tells what could not be read, so that nobody takes silence for absence.
pub(super) fn write_unread(page: &mut Page, unread: &[String]) {
    for unread in unread {
        page.gap();
        page.problem(&format!("Not read: {unread}"));
    }
}
