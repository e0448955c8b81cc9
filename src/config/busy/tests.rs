use std::path::Path;

use belay_decide::busy::{AutoscalerHint, HintSwitches};

use super::super::{Config, ConfigError};
use super::*;

const MINIMAL: &str = "certs: {secretName: belay-ca, dnsNames: [belay-webhook.belay-system.svc]}
webhookConfigurations: {validating: belay, mutating: belay}
";

/// Every key of a rule, none at its default.
const FULL: &str = "
busyHints:
  enabled: true
  rules:
    - name: runner
      namespaces: [ci, ci-large]
      podSelector:
        matchLabels: {app: runner}
        matchExpressions: [{key: tier, operator: NotIn, values: [test]}]
      owner:
        group: ci.example
        kind: Pool
        resource: pools
        through: {group: apps, kind: ReplicaSet, resource: replicasets}
        jobFields: [status.job, status.run.id]
      linkedPods: {labelKey: ci.example/runner-pod}
      states:
        - {state: Done, when: \"owner.status.phase == 'Done'\"}
        - {state: Busy, when: linked.size() > 0}
        - {state: Starting, when: \"!has(pod.status)\"}
        - {state: Idle, when: \"now > timestamp('2026-11-30T12:00:00Z')\"}
      onUnknown: Idle
      startupGrace: 1m30s
      idleDebounce: 5s
      maxBusy: 12h
      hints:
        clusterAutoscaler: OnCompletion
        karpenter: false
        busyLabel: false
        descheduler: false
        castAi: true
        spotOcean: true
        deletionCost: true
      eviction: {busy: Allow, idle: Allow}
    - name: job
      podSelector: {matchExpressions: [{key: runner-pod, operator: Exists}]}
      states: [{state: Busy, when: 'true'}]
";

const PRESETS: [(&str, &str); 6] = [
    ("agones", include_str!("../../../charts/belay/files/presets/agones.yaml")),
    ("arc", include_str!("../../../charts/belay/files/presets/arc.yaml")),
    ("argo-workflows", include_str!("../../../charts/belay/files/presets/argo-workflows.yaml")),
    ("buildkite", include_str!("../../../charts/belay/files/presets/buildkite.yaml")),
    ("gitlab-runner", include_str!("../../../charts/belay/files/presets/gitlab-runner.yaml")),
    ("tekton", include_str!("../../../charts/belay/files/presets/tekton.yaml")),
];

fn parse(extra: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("config.yaml"), &format!("{MINIMAL}{extra}\n"))
}

fn compiled(extra: &str) -> Compiled {
    parse(extra).expect("a good configuration").busy_hints.compile().expect("what is parsed compiles")
}

/// A configuration of these rules, of which each is a flow mapping without its braces.
fn rules(rules: &[&str]) -> String {
    let lines: Vec<_> = rules.iter().map(|rule| format!("    - {{{rule}}}")).collect();
    format!("busyHints:\n  enabled: true\n  rules:\n{}", lines.join("\n"))
}

/// A rule that is good, but for what is given.
fn rule(rest: &str) -> String {
    rules(&[&format!("name: one, podSelector: {{matchLabels: {{a: b}}}}, {rest}")])
}

/// A rule with one state, Busy by this expression.
fn busy_when(expression: &str, rest: &str) -> String {
    rule(&format!("states: [{{state: Busy, when: \"{expression}\"}}]{rest}"))
}

/// A wrong configuration: in words, as it is written, and what is said of it.
type Wrong<'a> = (&'a str, String, &'a [&'a str]);

fn assert_told(table: &[Wrong<'_>]) {
    for (name, text, expected) in table {
        let error = parse(text).map(|_| ()).expect_err(name).to_string();
        for word in *expected {
            assert!(error.contains(word), "{name}: {error:?} lacks {word:?}");
        }
    }
}

#[test]
fn without_a_word_about_them_busy_hints_are_off_and_nothing_is_governed() {
    let (rules, selects) = compiled("");
    assert!(rules.is_empty() && selects.is_empty());
    // What is off may be unfinished: the chart renders rules in any case.
    let (rules, selects) = compiled("busyHints: {enabled: false, rules: []}");
    assert!(rules.is_empty() && selects.is_empty());
}

#[test]
fn what_a_rule_leaves_out_has_the_documented_default() {
    let (rules, selects) = compiled(&busy_when("true", ""));
    let expected = RuleSpec {
        name: "one".into(),
        owner: None,
        linked_label: None,
        states: vec![(State::Busy, "true".into())],
        on_unknown: OnUnknown::Busy,
        startup_grace: SignedDuration::ZERO,
        idle_debounce: SignedDuration::from_secs(15),
        max_busy: SignedDuration::from_hours(6),
        hints: HintSwitches {
            cluster_autoscaler: AutoscalerHint::SafeToEvict,
            karpenter: true,
            busy_label: true,
            descheduler: true,
            cast_ai: false,
            spot_ocean: false,
            deletion_cost: false,
            costs_are_ranked: false,
        },
        on_busy: OnBusy::Hold,
        on_idle: OnIdle::Allow,
    };
    assert_eq!(rules[0].spec, expected);
    assert!(selects[0].covers("any namespace"));
}

#[test]
fn every_key_of_a_rule_reaches_the_decision() {
    let (rules, selects) = compiled(FULL);
    let expected = RuleSpec {
        name: "runner".into(),
        owner: Some(OwnerRule {
            kind: GroupKind::new("ci.example", "Pool"),
            through: Some(GroupKind::new("apps", "ReplicaSet")),
            job_fields: vec!["status.job".into(), "status.run.id".into()],
        }),
        linked_label: Some("ci.example/runner-pod".into()),
        states: vec![
            (State::Done, "owner.status.phase == 'Done'".into()),
            (State::Busy, "linked.size() > 0".into()),
            (State::Starting, "!has(pod.status)".into()),
            (State::Idle, "now > timestamp('2026-11-30T12:00:00Z')".into()),
        ],
        on_unknown: OnUnknown::Idle,
        startup_grace: SignedDuration::from_secs(90),
        idle_debounce: SignedDuration::from_secs(5),
        max_busy: SignedDuration::from_hours(12),
        hints: HintSwitches {
            cluster_autoscaler: AutoscalerHint::OnCompletion,
            karpenter: false,
            busy_label: false,
            descheduler: false,
            cast_ai: true,
            spot_ocean: true,
            deletion_cost: true,
            costs_are_ranked: false,
        },
        on_busy: OnBusy::Allow,
        on_idle: OnIdle::Allow,
    };
    assert_eq!(rules[0].spec, expected);
    assert_eq!(rules[1].spec.name, "job");
    let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let table = [
        ("a pod of the rule", "ci", labels(&[("app", "runner")]), true),
        ("in its other namespace", "ci-large", labels(&[("app", "runner"), ("tier", "prod")]), true),
        ("in another namespace", "default", labels(&[("app", "runner")]), false),
        ("of another label", "ci", labels(&[("app", "web")]), false),
        ("excluded by an expression", "ci", labels(&[("app", "runner"), ("tier", "test")]), false),
    ];
    for (name, namespace, labels, expected) in table {
        assert_eq!(selects[0].matches(namespace, &labels), expected, "{name}");
    }
    assert!(selects[1].matches("anywhere", &labels(&[("runner-pod", "x")])));
}

#[test]
fn every_preset_of_the_chart_is_read_and_compiles() {
    for (name, preset) in PRESETS {
        let indented = preset.replace('\n', "\n    ");
        let config = parse(&format!("busyHints:\n  enabled: true\n  rules:\n    {indented}"))
            .unwrap_or_else(|error| panic!("preset {name}: {error}"));
        let (rules, _) = config.busy_hints.compile().unwrap();
        assert!(rules.iter().all(|rule| rule.spec.name.starts_with(name.split('-').next().unwrap())), "preset {name}");
    }
}

#[test]
fn a_wrong_rule_is_told_by_key_and_fix() {
    let good = "states: [{state: Busy, when: 'true'}]";
    let with = |rest: &str| busy_when("true", &format!(", {rest}"));
    let named = |name: &str| rules(&[&format!("name: {name}, podSelector: {{matchLabels: {{a: b}}}}, {good}")]);
    let selecting = |selector: &str| rules(&[&format!("name: one, podSelector: {selector}, {good}")]);
    let table: &[Wrong<'_>] = &[
        ("an unknown key", "busyHints: {enable: true}".into(), &["enable", "enabled"]),
        ("an unknown key of a rule", with("debounce: 5s"), &["debounce", "idleDebounce"]),
        ("an unknown hint", with("hints: {kured: true}"), &["kured", "busyLabel"]),
        ("no name", rules(&[&format!("podSelector: {{matchLabels: {{a: b}}}}, {good}")]), &["name"]),
        ("no selector", rules(&[&format!("name: one, {good}")]), &["podSelector"]),
        ("no states", rule("maxBusy: 1h"), &["states"]),
        ("a state that does not exist", rule("states: [{state: Working, when: 'true'}]"), &["Working", "Busy", "Idle"]),
        ("a state without a condition", rule("states: [{state: Busy}]"), &["when"]),
        ("an answer that does not exist", with("eviction: {busy: Wait}"), &["Wait", "Hold", "Allow"]),
        ("an unknown unknown", with("onUnknown: Starting"), &["Starting", "Busy", "Idle"]),
        ("a bad duration", with("maxBusy: 6 hours"), &["6 hours", "10m"]),
        ("a negative duration", with("startupGrace: -5s"), &["-5s", "10m"]),
        (
            "no rules while enabled",
            "busyHints: {enabled: true}".into(),
            &["busyHints.rules", "empty", "name rules, or switch it off"],
        ),
        ("an empty list of states", rule("states: []"), &["busyHints.rules", "rule one", "0 states", "1 to 16"]),
        ("a name that is none", named("Runner_1"), &["busyHints.rules", "Runner_1", "small letters", "40"]),
        ("a name that is too long", named(&"x".repeat(41)), &["busyHints.rules", "40 characters"]),
        (
            "two rules of one name",
            rules(&[
                &format!("name: one, podSelector: {{matchLabels: {{a: b}}}}, {good}"),
                &format!("name: one, podSelector: {{matchLabels: {{a: c}}}}, {good}"),
            ]),
            &["busyHints.rules", "two rules are named \"one\""],
        ),
        ("an empty selector", selecting("{}"), &["busyHints.rules", "rule one", "podSelector is empty", "every pod"]),
        (
            "an empty selector by empty lists",
            selecting("{matchLabels: {}, matchExpressions: []}"),
            &["rule one", "podSelector is empty"],
        ),
        ("a longest time of nothing", with("maxBusy: 0s"), &["rule one", "maxBusy", "longer than 0s", "120h"]),
        ("a longest time that is too long", with("maxBusy: 121h"), &["rule one", "maxBusy", "at most 120h"]),
        (
            "an owner to delete, and none named",
            with("eviction: {idle: DeleteOwner}"),
            &["rule one", "eviction.idle", "DeleteOwner", "no owner: name it"],
        ),
        (
            "an owner to delete that may have other pods",
            with("owner: {group: g, kind: K, through: {group: g, kind: T}}, eviction: {idle: DeleteOwner}"),
            &["rule one", "eviction.idle", "DeleteOwner", "through"],
        ),
    ];
    assert_told(table);
}

#[test]
fn a_word_that_the_api_server_cannot_know_is_told_by_key_and_fix() {
    let with = |rest: &str| busy_when("true", &format!(", {rest}"));
    let selecting = |expression: &str| {
        let selector = format!("podSelector: {{matchExpressions: [{{{expression}}}]}}");
        rules(&[&format!("name: one, {selector}, states: [{{state: Busy, when: 'true'}}]")])
    };
    let table: &[Wrong<'_>] = &[
        (
            "an operator that does not exist",
            selecting("key: a, operator: Is, values: [b]"),
            &["busyHints.rules", "rule one", "podSelector", "\"Is\"", "NotIn"],
        ),
        (
            "an operator with values that it cannot have",
            selecting("key: tier, operator: Exists, values: [b]"),
            &["rule one", "podSelector", "tier", "Exists", "values"],
        ),
        (
            "an operator with an empty list of the values that it needs",
            selecting("key: tier, operator: In, values: []"),
            &["rule one", "podSelector", "tier", "In", "no values"],
        ),
        (
            "an operator without the values that it needs",
            selecting("key: tier, operator: NotIn"),
            &["rule one", "podSelector", "tier", "NotIn", "values"],
        ),
        ("an owner without a kind", with("owner: {group: g}"), &["kind"]),
        ("an owner of an empty kind", with("owner: {group: g, kind: ''}"), &["rule one", "owner.kind", "empty"]),
        (
            "an empty kind on the way",
            with("owner: {group: g, kind: K, through: {group: g, kind: ''}}"),
            &["rule one", "owner.through.kind", "empty"],
        ),
        (
            "a field's path with a gap",
            with("owner: {group: g, kind: K, jobFields: [status..job]}"),
            &["rule one", "owner.jobFields", "status..job", "status.jobId"],
        ),
        ("an empty label", with("linkedPods: {labelKey: ''}"), &["rule one", "linkedPods.labelKey"]),
        (
            "a label that no pod can have",
            with("linkedPods: {labelKey: runner pod}"),
            &["rule one", "linkedPods.labelKey", "runner pod", "label"],
        ),
    ];
    assert_told(table);
}

#[test]
fn a_wrong_expression_is_told_by_rule_state_and_place() {
    let table: &[(&str, &str, &str, &str)] = &[
        ("what is not CEL", "pod.status.phase ==", "", "rule one: states[0] (Busy): line 1, column"),
        (
            "an owner that the rule does not name",
            "true && owner.status.busy",
            "",
            "rule one: states[0] (Busy): line 1, column 9: owner is not known; an expression reads pod, now",
        ),
        (
            "linked pods that the rule does not name",
            "linked.size() > 0",
            ", owner: {group: g, kind: K}",
            "rule one: states[0] (Busy): line 1, column 1: linked is not known; an expression reads pod, owner, now",
        ),
        (
            "a function that does not exist",
            "pod.a.endswith('x')",
            "",
            "rule one: states[0] (Busy): line 1, column 7: there is no function endswith",
        ),
        ("a word for a condition", "'busy'", "", "rule one: states[0] (Busy): it is a constant and not a condition"),
    ];
    for (name, expression, rest, expected) in table {
        let error = parse(&busy_when(expression, rest)).map(|_| ()).expect_err(name).to_string();
        assert!(error.contains("config.yaml is wrong: busyHints.rules: "), "{name}: {error}");
        assert!(error.contains(expected), "{name}: {error}");
    }
    let second = rules(&[
        "name: one, podSelector: {matchLabels: {a: b}}, states: [{state: Busy, when: 'true'}]",
        "name: two, podSelector: {matchLabels: {a: c}}, states: [{state: Done, when: 'true'}, {state: Idle, when: '1 +'}]",
    ]);
    let error = parse(&second).unwrap_err().to_string();
    assert!(error.contains("rule two: states[1] (Idle): line 1, column"), "{error}");
}
