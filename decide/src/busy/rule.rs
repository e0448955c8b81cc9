//! A busy rule: which pods it is about, whom to ask about them, and how to read the answer.
//!
//! A rule is checked as a whole when it is loaded: what compiles here cannot fail later but for the objects it reads.

use jiff::SignedDuration;
use serde::Deserialize;
use thiserror::Error;

use super::expression::{CompileError, Expression, VARIABLES};
use super::fields::Fields;

/// Longest `maxBusy`: GitHub ends a self-hosted runner's job after five days, the longest limit that any of the known
/// systems has.
pub const LONGEST_BUSY: SignedDuration = SignedDuration::from_hours(120);

/// Most states a rule may name.
const MAX_STATES: usize = 16;

/// Longest name: with `.busy.belay.dev` it is a webhook's name, and must be a DNS label.
const MAX_NAME: usize = 40;

/// What a pod is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum State {
    /// Its work is over; it only has to end.
    Done,
    /// It works.
    Busy,
    /// It is about to work, or was made for work that has not shown yet.
    Starting,
    /// It has nothing to do.
    Idle,
}

impl State {
    /// As in a rule.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::Busy => "Busy",
            Self::Starting => "Starting",
            Self::Idle => "Idle",
        }
    }
}

/// What a pod counts as where its state cannot be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum OnUnknown {
    /// It stays.
    #[default]
    Busy,
    /// It may go.
    Idle,
}

/// A kind of object; its version is discovered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind {
    /// API group; empty for the core.
    pub group: Box<str>,
    /// Kind.
    pub kind: Box<str>,
}

impl GroupKind {
    /// The kind of this name in this group.
    pub fn new(group: &str, kind: &str) -> Self {
        Self { group: group.into(), kind: kind.into() }
    }
}

impl std::fmt::Display for GroupKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.group.is_empty() { f.write_str(&self.kind) } else { write!(f, "{}.{}", self.kind, self.group) }
    }
}

/// Whom to ask about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRule {
    /// Its kind.
    pub kind: GroupKind,
    /// The pod's controller, where that is not the owner itself but controlled by it.
    pub through: Option<GroupKind>,
    /// Fields that speak of one pod's job. Where they were last written before the pod was created, they speak of a
    /// former pod, and are taken as absent.
    pub job_fields: Vec<String>,
}

/// What Cluster Autoscaler is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum AutoscalerHint {
    /// Nothing.
    None,
    /// `true` and `false`.
    #[default]
    SafeToEvict,
    /// `on-completion` besides, which versions before 1.36 take for no hint at all.
    OnCompletion,
}

/// Which hints a rule's pods get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own, as in the configuration")]
pub struct HintSwitches {
    /// Annotation `cluster-autoscaler.kubernetes.io/safe-to-evict`.
    pub cluster_autoscaler: AutoscalerHint,
    /// Annotation `karpenter.sh/do-not-disrupt`.
    pub karpenter: bool,
    /// Label `belay.dev/busy`.
    pub busy_label: bool,
    /// Annotation `descheduler.alpha.kubernetes.io/prefer-no-eviction`.
    pub descheduler: bool,
    /// Label `autoscaling.cast.ai/removal-disabled`.
    pub cast_ai: bool,
    /// Label `spotinst.io/restrict-scale-down`.
    pub spot_ocean: bool,
    /// Annotation `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: bool,
    /// Nodes are ranked, so the deletion costs of pods that this rule gives none are looked after elsewhere.
    #[serde(skip)]
    pub costs_are_ranked: bool,
}

impl Default for HintSwitches {
    /// Those that every cluster may have a reader of, and that cost nothing without one.
    fn default() -> Self {
        Self {
            cluster_autoscaler: AutoscalerHint::default(),
            karpenter: true,
            busy_label: true,
            descheduler: true,
            cast_ai: false,
            spot_ocean: false,
            deletion_cost: false,
            costs_are_ranked: false,
        }
    }
}

/// What becomes of the eviction of a busy pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum OnBusy {
    /// It is held.
    #[default]
    Hold,
    /// It passes.
    Allow,
}

/// What becomes of the eviction of an idle pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum OnIdle {
    /// It passes.
    #[default]
    Allow,
    /// It is held, and the owner is deleted, whose finalizer sees to it that no job is lost.
    DeleteOwner,
}

/// A rule as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// Unique; a DNS label.
    pub name: String,
    /// Whom to ask; absent where the pod itself tells.
    pub owner: Option<OwnerRule>,
    /// Label of linked pods, whose value is the pod's name.
    pub linked_label: Option<String>,
    /// State and expression, in the order in which they are asked.
    pub states: Vec<(State, String)>,
    /// What a pod of unknown state counts as.
    pub on_unknown: OnUnknown,
    /// An idle pod counts as starting until it has been ready for this long.
    pub startup_grace: SignedDuration,
    /// Hints go from busy to idle only after this.
    pub idle_debounce: SignedDuration,
    /// Longest that a pod counts as busy.
    pub max_busy: SignedDuration,
    /// Which hints.
    pub hints: HintSwitches,
    /// Evictions of busy pods.
    pub on_busy: OnBusy,
    /// Evictions of idle pods.
    pub on_idle: OnIdle,
}

/// Why a rule is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RuleError {
    /// The name is not one.
    #[error(
        "the rule name {0:?} must be small letters, digits and dashes, begin and end with a letter or digit, and have at most {MAX_NAME} characters"
    )]
    Name(String),
    /// Two rules have one name.
    #[error("two rules are named {0:?}")]
    Duplicate(String),
    /// There are no states, or too many.
    #[error("rule {rule}: it has {count} states; 1 to {MAX_STATES} are allowed")]
    States {
        /// The rule.
        rule: String,
        /// How many.
        count: usize,
    },
    /// An expression is wrong.
    #[error("rule {rule}: states[{index}] ({state}): {error}")]
    Expression {
        /// The rule.
        rule: String,
        /// Which of its states, from 0.
        index: usize,
        /// That state.
        state: &'static str,
        /// What is wrong with the expression.
        error: CompileError,
    },
    /// A value makes no sense.
    #[error("rule {rule}: {key} {problem}")]
    Value {
        /// The rule.
        rule: String,
        /// Which key.
        key: &'static str,
        /// What is wrong with it and how to mend it.
        problem: String,
    },
}

/// A rule that can be used.
#[derive(Debug)]
pub struct Rule {
    /// As written.
    pub spec: RuleSpec,
    /// State and expression, in order.
    pub states: Vec<(State, Expression)>,
    /// What is kept of a pod that the rule governs.
    pub pod_fields: Fields,
    /// What is kept of an owner.
    pub owner_fields: Fields,
    /// What is kept of a linked pod.
    pub linked_fields: Fields,
}

impl Rule {
    /// Checks and compiles a rule.
    pub fn compile(spec: RuleSpec) -> Result<Self, RuleError> {
        let rule = || spec.name.clone();
        let fail = |key, problem: &str| RuleError::Value { rule: rule(), key, problem: problem.to_owned() };
        if !is_label(&spec.name) {
            return Err(RuleError::Name(rule()));
        }
        if spec.states.is_empty() || spec.states.len() > MAX_STATES {
            return Err(RuleError::States { rule: rule(), count: spec.states.len() });
        }
        if spec.max_busy.is_zero() || spec.max_busy.is_negative() || spec.max_busy > LONGEST_BUSY {
            return Err(fail("maxBusy", "must be longer than 0s and at most 120h"));
        }
        if spec.on_idle == OnIdle::DeleteOwner {
            match &spec.owner {
                None => return Err(fail("eviction.idle", "is DeleteOwner, but the rule has no owner: name it")),
                Some(OwnerRule { through: Some(_), .. }) => {
                    let problem =
                        "is DeleteOwner, but the owner is two hops away (owner.through) and may have other pods";
                    return Err(fail("eviction.idle", problem));
                }
                Some(_) => {}
            }
        }
        if let Some(key) = spec.linked_label.as_deref().filter(|key| !is_label_key(key)) {
            return Err(fail("linkedPods.labelKey", &format!("{key:?} is not the key of a label")));
        }
        if let Some(owner) = &spec.owner {
            if owner.kind.kind.is_empty() {
                return Err(fail("owner.kind", "must not be empty"));
            }
            if owner.through.as_ref().is_some_and(|through| through.kind.is_empty()) {
                return Err(fail("owner.through.kind", "must not be empty"));
            }
            if let Some(field) = owner.job_fields.iter().find(|field| field.split('.').any(str::is_empty)) {
                let problem = format!("has {field:?}, which is no path: write it like status.jobId");
                return Err(fail("owner.jobFields", &problem));
            }
        }
        let known: Vec<_> = VARIABLES
            .into_iter()
            .filter(|name| match *name {
                "owner" => spec.owner.is_some(),
                "linked" => spec.linked_label.is_some(),
                _ => true,
            })
            .collect();
        let mut states = Vec::with_capacity(spec.states.len());
        for (index, (state, text)) in spec.states.iter().enumerate() {
            let expression = Expression::compile(text, &known).map_err(|error| RuleError::Expression {
                rule: rule(),
                index,
                state: state.as_str(),
                error,
            })?;
            states.push((*state, expression));
        }
        let fields = |variable: &str| {
            let mut fields = Fields::default();
            for (_, expression) in &states {
                expression.add_fields(variable, &mut fields);
            }
            fields
        };
        let (pod_fields, linked_fields) = (fields("pod"), fields("linked").of_element());
        let mut owner_fields = fields("owner");
        for field in spec.owner.iter().flat_map(|owner| &owner.job_fields) {
            owner_fields.keep(&field.split('.').collect::<Vec<_>>());
        }
        Ok(Self { spec, states, pod_fields, owner_fields, linked_fields })
    }

    /// Checks and compiles all rules.
    pub fn compile_all(specs: Vec<RuleSpec>) -> Result<Vec<Self>, RuleError> {
        let mut rules: Vec<Self> = Vec::with_capacity(specs.len());
        for spec in specs {
            if rules.iter().any(|rule| rule.spec.name == spec.name) {
                return Err(RuleError::Duplicate(spec.name));
            }
            rules.push(Self::compile(spec)?);
        }
        Ok(rules)
    }

    /// An expression reads the time: the state may change without any event.
    pub fn reads_time(&self) -> bool {
        self.reads("now")
    }

    /// An expression reads this variable.
    pub fn reads(&self, variable: &str) -> bool {
        self.states.iter().any(|(_, expression)| expression.reads(variable))
    }

    /// The kinds of object that it asks about a pod: its owner's, and what leads to it.
    pub fn asked_kinds(&self) -> impl Iterator<Item = &GroupKind> {
        self.spec.owner.iter().flat_map(|owner| owner.through.iter().chain([&owner.kind]))
    }
}

fn is_label(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    plain && !name.is_empty() && name.len() <= MAX_NAME && !name.starts_with('-') && !name.ends_with('-')
}

/// As the API server has it (`apimachinery/pkg/util/validation`, `IsQualifiedName`); a list by another key would fail.
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let of = |text: &str, longest: usize, also: &[u8], upper: bool| {
        let letter = |byte: u8| {
            if upper { byte.is_ascii_alphanumeric() } else { byte.is_ascii_lowercase() || byte.is_ascii_digit() }
        };
        let ends = [text.bytes().next(), text.bytes().next_back()];
        text.len() <= longest
            && ends.into_iter().all(|end| end.is_some_and(letter))
            && text.bytes().all(|byte| letter(byte) || also.contains(&byte))
    };
    of(name, 63, b"-_.", true) && prefix.is_none_or(|prefix| of(prefix, 253, b"-.", false))
}
