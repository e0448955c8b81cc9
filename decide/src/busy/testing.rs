//! Builders for tests: a worker pod, its owner, and a rule that reads one word of it; and the presets of the chart.
//!
//! A [`Scene`] is one moment of one pod that every test may bend: the worker `w` of the `Runner` of that name has been
//! ready on `node-1` for an hour. What the owner's `status.phase` says is its state; without a status nobody knows.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::reconcile::{Input, Memory, Plan, reconcile};
use super::{
    AutoscalerHint, BusyPod, ControllerRef, Found, GroupKind, HintSwitches, OnBusy, OnIdle, OnUnknown, Owner,
    OwnerRule, Rule, RuleSpec, Seen, State, Verdict, judge,
};
use crate::action::Action;
use crate::hold::{HoldReason, HoldSpec, HoldStatus, HoldTrigger, HoldView, Moment, WorkloadRef, hold_name};
use crate::ownership::{Key, MANAGED_ANNOTATION, Record};
use crate::testing::after;
use crate::view::PodPhase;

/// The kind of the worker's owner.
pub(crate) fn runner_kind() -> GroupKind {
    GroupKind::new("ci.example", "Runner")
}

/// A rule without an owner.
pub(crate) fn rule_of(states: &[(State, &str)]) -> RuleSpec {
    RuleSpec {
        name: "worker".into(),
        owner: None,
        linked_label: None,
        states: states.iter().map(|(state, when)| (*state, (*when).to_owned())).collect(),
        on_unknown: OnUnknown::Busy,
        startup_grace: SignedDuration::ZERO,
        idle_debounce: SignedDuration::from_secs(15),
        max_busy: SignedDuration::from_hours(6),
        hints: HintSwitches::default(),
        on_busy: OnBusy::Hold,
        on_idle: OnIdle::Allow,
    }
}

/// The rule of every [`Scene`].
pub(crate) fn worker_rule() -> RuleSpec {
    let states = [
        (State::Done, "owner.status.phase == 'Done'"),
        (State::Busy, "linked.size() > 0 || owner.status.phase == 'Busy'"),
        (State::Starting, "owner.status.phase == 'Starting'"),
    ];
    RuleSpec {
        owner: Some(OwnerRule { kind: runner_kind(), through: None, job_fields: vec!["status.job".into()] }),
        linked_label: Some("worker".into()),
        ..rule_of(&states)
    }
}

/// Every hint.
pub(crate) fn all_hints() -> HintSwitches {
    HintSwitches {
        cluster_autoscaler: AutoscalerHint::SafeToEvict,
        karpenter: true,
        busy_label: true,
        descheduler: true,
        cast_ai: true,
        spot_ocean: true,
        deletion_cost: true,
        costs_are_ranked: false,
    }
}

/// One moment of one pod.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) rule: RuleSpec,
    pub(crate) pod: BusyPod,
    /// Absent where it is missing.
    pub(crate) owner: Option<Owner>,
    pub(crate) linked: Vec<Json>,
    pub(crate) holds: Vec<HoldView>,
    pub(crate) memory: Option<Memory>,
    pub(crate) now: Timestamp,
}

impl Scene {
    /// The owner says this; nothing was written on the pod yet.
    pub(crate) fn of(phase: &str) -> Self {
        let owner = Owner {
            namespace: "ci".into(),
            name: "w".into(),
            uid: "runner-1".into(),
            terminating: false,
            controller: None,
            object: json!({"status": {"phase": phase}}),
            written: BTreeMap::new(),
        };
        Self {
            rule: worker_rule(),
            pod: worker(),
            owner: Some(owner),
            linked: Vec::new(),
            holds: Vec::new(),
            memory: None,
            now: after(0),
        }
    }

    /// The same, as the controller left it when it was last idle.
    pub(crate) fn settled(phase: &str) -> Self {
        let mut scene = Self::of("Idle");
        scene.settle();
        scene.say(phase);
        scene
    }

    /// The same, told as busy since `seconds` ago.
    pub(crate) fn busy_for(seconds: i64) -> Self {
        let mut scene = Self::of("Busy");
        scene.now = after(-seconds);
        scene.pod.created = after(-seconds - 3600);
        scene.pod.ready_since = Some(scene.pod.created);
        scene.settle();
        scene.now = after(0);
        scene
    }

    /// The owner says this from now on.
    pub(crate) fn say(&mut self, phase: &str) {
        self.owner.as_mut().expect("the scene has an owner").object = json!({"status": {"phase": phase}});
    }

    /// This scene, bent.
    pub(crate) fn with(mut self, bend: impl FnOnce(&mut Self)) -> Self {
        bend(&mut self);
        self
    }

    pub(crate) fn at(self, seconds: i64) -> Self {
        self.with(|scene| scene.now = after(seconds))
    }

    pub(crate) fn compiled(&self) -> Rule {
        Rule::compile(self.rule.clone()).expect("the scene's rule compiles")
    }

    pub(crate) fn seen(&self) -> Seen<'_> {
        let owner = match (&self.rule.owner, &self.owner) {
            (None, _) => Found::NotAsked,
            (_, None) => Found::Missing,
            (_, Some(owner)) => Found::Owner(owner),
        };
        Seen { pod: &self.pod, owner, linked: self.linked.iter().collect() }
    }

    pub(crate) fn judge(&self) -> Verdict {
        judge(&self.compiled(), &self.seen(), self.now)
    }

    /// The controller's look; nothing is done about it.
    pub(crate) fn plan(&self) -> Plan {
        let rule = self.compiled();
        let input = Input {
            governed: Some((&rule, self.seen())),
            living: None,
            siblings: 0,
            holds: self.holds.iter().collect(),
            history_ttl: SignedDuration::from_hours(1),
            now: self.now,
        };
        reconcile(&input, self.memory.as_ref())
    }

    /// The controller looks, and what it plans for the pod and its holds is done.
    pub(crate) fn look(&mut self) -> Plan {
        let plan = self.plan();
        self.memory.clone_from(&plan.memory);
        for action in plan.sequences.iter().flatten() {
            self.perform(action);
        }
        plan
    }

    fn perform(&mut self, action: &Action) {
        match action {
            Action::PatchPod { pod, changes } => {
                assert_eq!((&*pod.uid, &*pod.name), (&*self.pod.uid, &*self.pod.name));
                assert_eq!(*pod.resource_version, *self.pod.resource_version, "the version that was looked at");
                patch(&mut self.pod, changes);
            }
            Action::UpdateHold { hold, status } => {
                let known = self.holds.iter_mut().find(|known| known.name == hold.name);
                known.expect("a hold of the scene").status = status.clone();
            }
            Action::DeleteHold { hold } => self.holds.retain(|known| known.name != hold.name),
            Action::DeleteOwner { .. } | Action::Event(_) => {}
            other => panic!("no busy rule changes a Deployment or begins a hold: {other:?}"),
        }
    }

    /// Looks until there is nothing to write, at this moment.
    pub(crate) fn settle(&mut self) {
        for _ in 0..4 {
            if self.look().sequences.is_empty() {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.plan());
    }

    /// The values on the pod without the record, as `key=value` in order.
    pub(crate) fn marks(&self) -> Vec<String> {
        self.pod.marks.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    pub(crate) fn mark(&self, key: &Key) -> Option<&str> {
        self.pod.marks.get(key).map(String::as_str)
    }

    /// Somebody else writes a key, or removes it.
    pub(crate) fn somebody(&mut self, key: &Key, value: Option<&str>) {
        match value {
            Some(value) => drop(self.pod.marks.insert(key.clone(), value.into())),
            None => drop(self.pod.marks.remove(key)),
        }
        bump(&mut self.pod);
    }

    pub(crate) fn record(&self) -> Record {
        Record::parse(self.pod.managed.as_deref())
    }

    /// A hold on the worker, asked for `seconds` ago, with six hours' deadline.
    pub(crate) fn holding(mut self, reason: HoldReason, seconds: i64) -> Self {
        let at = self.now - SignedDuration::from_secs(seconds);
        self.holds.push(hold(reason, at));
        self
    }
}

/// The pod of every scene.
pub(crate) fn worker() -> BusyPod {
    BusyPod {
        namespace: "ci".into(),
        name: "w".into(),
        uid: "pod-1".into(),
        resource_version: "10".into(),
        created: after(-3600),
        terminating: false,
        mirror: false,
        node: Some("node-1".into()),
        phase: PodPhase::Running,
        ready_since: Some(after(-3600)),
        controller: Some(ControllerRef { kind: runner_kind(), name: "w".into(), uid: "runner-1".into() }),
        marks: BTreeMap::new(),
        managed: None,
        object: json!({}),
    }
}

/// A hold on the worker.
pub(crate) fn hold(reason: HoldReason, requested_at: Timestamp) -> HoldView {
    HoldView {
        namespace: "ci".into(),
        name: hold_name(reason, "w", "pod-1"),
        uid: format!("{}-hold", reason.as_str()),
        resource_version: "3".into(),
        spec: HoldSpec {
            victim_name: "w".into(),
            victim_uid: "pod-1".into(),
            victim_node: "node-1".into(),
            victim_hash: String::new(),
            reason,
            workload: WorkloadRef {
                group: "ci.example".into(),
                kind: "Runner".into(),
                name: "w".into(),
                uid: "runner-1".into(),
            },
            evictor: "drainer".into(),
            trigger: HoldTrigger::Eviction,
            requested_at,
            deadline: requested_at + SignedDuration::from_hours(6),
        },
        status: HoldStatus::default(),
    }
}

/// A merge patch of labels and annotations arrives.
pub(crate) fn patch(pod: &mut BusyPod, changes: &BTreeMap<Key, Option<String>>) {
    for (key, value) in changes {
        match (key.name() == MANAGED_ANNOTATION, value) {
            (true, value) => pod.managed = value.as_deref().map(Into::into),
            (false, Some(value)) => drop(pod.marks.insert(key.clone(), value.clone())),
            (false, None) => drop(pod.marks.remove(key)),
        }
    }
    bump(pod);
}

/// The webhook's additions to a pod's create arrive.
pub(crate) fn patch_new(pod: &mut BusyPod, adds: BTreeMap<Key, String>) {
    patch(pod, &adds.into_iter().map(|(key, value)| (key, Some(value))).collect());
}

/// The pod was written.
pub(crate) fn bump(pod: &mut BusyPod) {
    let version: u64 = pod.resource_version.parse().expect("versions are numbers here");
    pod.resource_version = (version + 1).to_string().into();
}

/// A moment by both clocks: `wall` seconds after the start, `uptime` seconds after the process's.
pub(crate) fn moment(wall: i64, uptime: u64) -> Moment {
    Moment { wall: after(wall), uptime: Duration::from_secs(uptime) }
}

/// A plan in words, one line an action: what tables compare.
pub(crate) fn in_words(plan: &Plan) -> Vec<Vec<String>> {
    let words = |action: &Action| match action {
        Action::UpdateHold { hold, status } => format!("{}: {} {}", hold.name, status.phase.as_str(), status.reason),
        Action::DeleteHold { hold } => format!("{}: delete", hold.name),
        Action::PatchPod { pod, .. } => format!("{}: patch", pod.name),
        Action::DeleteOwner { kind, owner } => format!("{kind} {} {}: delete", owner.name, owner.uid),
        Action::Event(event) => format!("{}: {}", if event.warning { "warning" } else { "event" }, event.reason),
        other => format!("{other:?}"),
    };
    plan.sequences.iter().map(|sequence| sequence.iter().map(words).collect()).collect()
}

/// The presets' files by name.
pub(crate) const PRESETS: [(&str, &str); 6] = [
    ("agones", include_str!("../../../charts/belay/files/presets/agones.yaml")),
    ("arc", include_str!("../../../charts/belay/files/presets/arc.yaml")),
    ("argo-workflows", include_str!("../../../charts/belay/files/presets/argo-workflows.yaml")),
    ("buildkite", include_str!("../../../charts/belay/files/presets/buildkite.yaml")),
    ("gitlab-runner", include_str!("../../../charts/belay/files/presets/gitlab-runner.yaml")),
    ("tekton", include_str!("../../../charts/belay/files/presets/tekton.yaml")),
];

/// A rule as a preset has it. The program's own reading of it is tested with the configuration.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    name: String,
    owner: Option<WrittenOwner>,
    linked_pods: Option<WrittenLink>,
    states: Vec<WrittenState>,
    startup_grace: Option<String>,
    #[serde(default)]
    eviction: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenOwner {
    group: String,
    kind: String,
    #[serde(default)]
    job_fields: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenLink {
    label_key: String,
}

#[derive(Deserialize)]
struct WrittenState {
    state: String,
    when: String,
}

/// Every rule of every preset.
pub(crate) fn preset_rules() -> Vec<RuleSpec> {
    let written = PRESETS.iter().flat_map(|(name, text)| {
        serde_saphyr::from_str::<Vec<Written>>(text).unwrap_or_else(|error| panic!("preset {name}: {error}"))
    });
    written.map(spec).collect()
}

/// The rule of this name of any preset.
pub(crate) fn preset_rule(name: &str) -> RuleSpec {
    preset_rules().into_iter().find(|rule| rule.name == name).expect("a preset has a rule of this name")
}

fn spec(written: Written) -> RuleSpec {
    let state = |one: WrittenState| {
        let all = [State::Done, State::Busy, State::Starting, State::Idle];
        let state = all.into_iter().find(|state| state.as_str() == one.state);
        (state.expect("a state of a preset is one"), one.when)
    };
    let owner = written.owner.map(|owner| OwnerRule {
        kind: GroupKind::new(&owner.group, &owner.kind),
        through: None,
        job_fields: owner.job_fields,
    });
    RuleSpec {
        name: written.name,
        owner,
        linked_label: written.linked_pods.map(|linked| linked.label_key),
        states: written.states.into_iter().map(state).collect(),
        startup_grace: written.startup_grace.map_or(SignedDuration::ZERO, |span| span.parse().expect("a duration")),
        on_idle: match written.eviction.get("idle").map(String::as_str) {
            Some("DeleteOwner") => OnIdle::DeleteOwner,
            None | Some("Allow") => OnIdle::Allow,
            Some(other) => panic!("{other} is no answer to the eviction of an idle pod"),
        },
        ..rule_of(&[])
    }
}
