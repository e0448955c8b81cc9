//! Which rules are accepted, and what is said of the others.

use jiff::SignedDuration;

use crate::busy::testing::{preset_rules, rule_of, runner_kind, worker_rule};
use crate::busy::{GroupKind, OnIdle, OwnerRule, Rule, RuleError, RuleSpec, State};

fn bent(bend: impl FnOnce(&mut RuleSpec)) -> RuleSpec {
    let mut spec = worker_rule();
    bend(&mut spec);
    spec
}

fn problem(spec: RuleSpec) -> String {
    Rule::compile(spec).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

#[test]
fn a_wrong_rule_is_named_with_the_key_and_what_to_do() {
    let span = |seconds: i64| SignedDuration::from_secs(seconds);
    let name = |name: &'static str| bent(|spec| spec.name = name.into());
    let label = |key: &'static str| bent(|spec| spec.linked_label = Some(key.into()));
    let job_field = |field: &'static str| bent(|spec| spec.owner.as_mut().unwrap().job_fields = vec![field.into()]);
    let bad_name = |name: &str| {
        format!(
            "the rule name {name:?} must be small letters, digits and dashes, begin and end with a letter or digit, and have at most 40 characters"
        )
    };
    let bad_field = |field: &str| {
        format!("rule worker: owner.jobFields has {field:?}, which is no path: write it like status.jobId")
    };
    let bad_label = |key: &str| format!("rule worker: linkedPods.labelKey {key:?} is not the key of a label");
    let long = "x".repeat(41);
    let table = [
        (bent(|_| ()), "accepted".to_owned()),
        (name("a"), "accepted".to_owned()),
        (name("0-runner-9"), "accepted".to_owned()),
        (bent(|spec| spec.name = long[..40].into()), "accepted".to_owned()),
        (bent(|spec| spec.name.clone_from(&long)), bad_name(&long)),
        (name(""), bad_name("")),
        (name("Runner"), bad_name("Runner")),
        (name("a.b"), bad_name("a.b")),
        (name("-a"), bad_name("-a")),
        (name("a-"), bad_name("a-")),
        (name("\u{e4}"), bad_name("\u{e4}")),
        (bent(|spec| spec.states.clear()), "rule worker: it has 0 states; 1 to 16 are allowed".to_owned()),
        (bent(|spec| spec.states = vec![(State::Busy, "true".into()); 16]), "accepted".to_owned()),
        (
            bent(|spec| spec.states = vec![(State::Busy, "true".into()); 17]),
            "rule worker: it has 17 states; 1 to 16 are allowed".to_owned(),
        ),
        (
            bent(|spec| spec.max_busy = span(0)),
            "rule worker: maxBusy must be longer than 0s and at most 120h".to_owned(),
        ),
        (
            bent(|spec| spec.max_busy = span(-1)),
            "rule worker: maxBusy must be longer than 0s and at most 120h".to_owned(),
        ),
        (bent(|spec| spec.max_busy = span(120 * 3600)), "accepted".to_owned()),
        (
            bent(|spec| spec.max_busy = span(120 * 3600 + 1)),
            "rule worker: maxBusy must be longer than 0s and at most 120h".to_owned(),
        ),
        (label("runner-pod"), "accepted".to_owned()),
        (label("example.com/runner_pod.1"), "accepted".to_owned()),
        (label(""), bad_label("")),
        (label("runner pod"), bad_label("runner pod")),
        (label("/runner"), bad_label("/runner")),
        (label("example.com/"), bad_label("example.com/")),
        (label("a/b/c"), bad_label("a/b/c")),
        (label("-runner"), bad_label("-runner")),
        (label("Example.com/runner"), bad_label("Example.com/runner")),
        (label(&"x".repeat(64).leak()[..]), bad_label(&"x".repeat(64))),
        (job_field("status.jobId"), "accepted".to_owned()),
        (job_field("job"), "accepted".to_owned()),
        (job_field(""), bad_field("")),
        (job_field("status."), bad_field("status.")),
        (job_field(".status"), bad_field(".status")),
        (job_field("status..jobId"), bad_field("status..jobId")),
        (
            bent(|spec| spec.owner.as_mut().unwrap().kind = GroupKind::new("ci.example", "")),
            "rule worker: owner.kind must not be empty".to_owned(),
        ),
        (
            bent(|spec| spec.owner.as_mut().unwrap().through = Some(GroupKind::new("apps", ""))),
            "rule worker: owner.through.kind must not be empty".to_owned(),
        ),
        // The core group has no name.
        (bent(|spec| spec.owner.as_mut().unwrap().kind = GroupKind::new("", "ReplicationController")), "accepted".to_owned()),
        (
            bent(|spec| spec.states.push((State::Busy, "owner.x = 1".into()))),
            "rule worker: states[3] (Busy): line 1, column 9: token recognition error at: '= '".to_owned(),
        ),
        (
            bent(|spec| spec.states.push((State::Idle, "pod.x &&\n  onwer.x".into()))),
            "rule worker: states[3] (Idle): line 2, column 3: onwer is not known; an expression reads pod, owner, linked, now".to_owned(),
        ),
        (
            bent(|spec| spec.linked_label = None),
            "rule worker: states[1] (Busy): line 1, column 1: linked is not known; an expression reads pod, owner, now".to_owned(),
        ),
        (
            bent(|spec| spec.owner = None),
            "rule worker: states[0] (Done): line 1, column 1: owner is not known; an expression reads pod, linked, now".to_owned(),
        ),
    ];
    for (spec, expected) in table {
        assert_eq!(problem(spec.clone()), expected, "{spec:?}");
    }
}

#[test]
fn only_an_owner_that_is_the_pods_own_can_be_deleted_instead() {
    let deletes = |owner: Option<OwnerRule>| RuleSpec {
        owner,
        on_idle: OnIdle::DeleteOwner,
        ..rule_of(&[(State::Busy, "has(pod.x)")])
    };
    let owner = OwnerRule { kind: runner_kind(), through: None, job_fields: Vec::new() };
    let far = OwnerRule { through: Some(GroupKind::new("apps", "StatefulSet")), ..owner.clone() };
    for (owner, expected) in [
        (None, "rule worker: eviction.idle is DeleteOwner, but the rule has no owner: name it"),
        (
            Some(far),
            "rule worker: eviction.idle is DeleteOwner, but the owner is two hops away (owner.through) and may have \
             other pods",
        ),
        (Some(owner), "accepted"),
    ] {
        assert_eq!(problem(deletes(owner)), expected);
    }
}

#[test]
fn two_rules_of_one_name_are_refused() {
    let rules = |names: &[&str]| {
        let specs = names.iter().map(|name| bent(|spec| spec.name = (*name).into())).collect();
        Rule::compile_all(specs).map(|rules| rules.into_iter().map(|rule| rule.spec.name).collect::<Vec<_>>())
    };
    assert_eq!(rules(&[]), Ok(Vec::new()));
    assert_eq!(rules(&["b", "a", "c"]), Ok(vec!["b".into(), "a".into(), "c".into()]), "in their order");
    assert_eq!(rules(&["a", "b", "a"]), Err(RuleError::Duplicate("a".into())));
    assert_eq!(RuleError::Duplicate("a".into()).to_string(), "two rules are named \"a\"");
    // The first wrong rule is told.
    assert!(matches!(rules(&["a", "B", "a"]), Err(RuleError::Name(name)) if name == "B"));
}

#[test]
fn the_presets_can_be_used_together() {
    let rules = Rule::compile_all(preset_rules()).unwrap();
    let names: Vec<_> = rules.iter().map(|rule| &*rule.spec.name).collect();
    let expected = [
        "agones-gameserver",
        "arc-runner",
        "arc-job",
        "argo-workflows-pod",
        "buildkite-job",
        "gitlab-runner-job",
        "tekton-taskrun",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_rule_says_where_to_look_and_how_often() {
    let rule = |spec| Rule::compile(spec).unwrap();
    let kind = runner_kind();
    assert_eq!(rule(worker_rule()).asked_kinds().next(), Some(&kind));
    let through = GroupKind::new("apps", "StatefulSet");
    let far = bent(|spec| spec.owner.as_mut().unwrap().through = Some(through.clone()));
    assert_eq!(rule(far).asked_kinds().next(), Some(&through));
    let alone = rule(rule_of(&[(State::Busy, "true")]));
    assert_eq!((alone.asked_kinds().next(), alone.reads_time()), (None, false));
    assert!(rule(rule_of(&[(State::Done, "has(pod.x)"), (State::Busy, "now > timestamp(pod.x)")])).reads_time());
    assert!(!rule(rule_of(&[(State::Busy, "pod.now || pod.x.exists(now, now == 1)")])).reads_time());
    assert_eq!(kind.to_string(), "Runner.ci.example");
    assert_eq!(GroupKind::new("", "Pod").to_string(), "Pod");
}
