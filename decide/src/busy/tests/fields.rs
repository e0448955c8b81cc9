//! What is kept of an object is what its rule reads, and nothing else.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::evaluation::texts;
use super::objects;
use crate::busy::expression::{Expression, Inputs};
use crate::busy::testing::{preset_rule, preset_rules, rule_of};
use crate::busy::{Fields, OwnerRule, Rule, RuleSpec, State};
use crate::testing::{START, runner};

const ALL: [&str; 4] = ["pod", "owner", "linked", "now"];

/// A rule of one expression that may read everything.
fn rule(text: &str) -> Result<Rule, crate::busy::RuleError> {
    let owner = OwnerRule { kind: crate::busy::testing::runner_kind(), through: None, job_fields: Vec::new() };
    let spec = rule_of(&[(State::Busy, text)]);
    Rule::compile(RuleSpec { owner: Some(owner), linked_label: Some("of".into()), ..spec })
}

fn pod() -> Json {
    json!({
        "metadata": {
            "name": "w", "labels": {"app": "ci", "tier": "x"}, "annotations": {"secret": "s"},
            "deletionTimestamp": "2026-11-30T14:00:00Z",
        },
        "spec": {"containers": [{"name": "a", "image": "i", "env": [{"name": "TOKEN", "value": "t"}]}, {"name": "b"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "reason": "r"}], "ip": "10.0.0.1"},
    })
}

#[test]
fn keeps_what_is_read_and_nothing_else() {
    let whole = pod();
    let containers = &whole["spec"]["containers"];
    for (text, expected) in [
        ("true", json!({})),
        ("owner.status.phase == 'Running'", json!({})),
        ("pod.status.phase == 'Running'", json!({"status": {"phase": "Running"}})),
        ("pod['status']['phase'] == 'Running'", json!({"status": {"phase": "Running"}})),
        // Whether it is there, and not what it is.
        ("has(pod.spec)", json!({"spec": {}})),
        ("has(pod.metadata.labels)", json!({"metadata": {"labels": {}}})),
        ("has(pod.spec.containers)", json!({"spec": {"containers": []}})),
        ("has(pod.metadata.absent)", json!({"metadata": {}})),
        ("has(pod.status) && has(pod.status.phase)", json!({"status": {"phase": "Running"}})),
        // A map that is asked for a key is kept; a literal key is a field.
        ("'app' in pod.metadata.labels", json!({"metadata": {"labels": {"app": "ci", "tier": "x"}}})),
        ("pod.metadata.labels['app'] == 'ci'", json!({"metadata": {"labels": {"app": "ci"}}})),
        (
            "pod.metadata.labels[pod.metadata.name] == 'ci'",
            json!({"metadata": {"name": "w", "labels": {"app": "ci", "tier": "x"}}}),
        ),
        // Of a list each element's fields.
        (
            "pod.spec.containers.exists(c, c.name == 'a')",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
        ),
        ("pod.spec.containers[0].name == 'a'", json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}})),
        ("pod.spec.containers.exists(c, has(c.env))", json!({"spec": {"containers": [{"env": []}, {}]}})),
        (
            "pod.spec.containers.exists(c, c.env.exists(e, e.name == 'TOKEN'))",
            json!({"spec": {"containers": [{"env": [{"name": "TOKEN"}]}, {}]}}),
        ),
        (
            "pod.spec.containers.map(c, c.name) == ['a', 'b']",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
        ),
        // How many there are, and not what they are.
        ("pod.spec.containers.size() > 1", json!({"spec": {"containers": [{}, {}]}})),
        ("size(pod.spec.containers) > 1", json!({"spec": {"containers": [{}, {}]}})),
        ("pod.spec.containers.exists(c, true)", json!({"spec": {"containers": [{}, {}]}})),
        // What is passed on is kept whole.
        ("pod.spec.containers.filter(c, c.name == 'a').size() == 1", json!({"spec": {"containers": containers}})),
        ("pod.spec.containers == []", json!({"spec": {"containers": containers}})),
        ("pod.spec.containers.exists(c, c == pod.spec)", json!({"spec": whole["spec"]})),
        // The keys of a map that is walked through count.
        ("pod.metadata.labels.exists(key, key == 'app')", json!({"metadata": {"labels": {"app": "ci", "tier": "x"}}})),
        ("pod.metadata.labels.all(key, true)", json!({"metadata": {"labels": {"app": "ci", "tier": "x"}}})),
        ("pod.metadata.labels.size() == 2", json!({"metadata": {"labels": {"app": "ci", "tier": "x"}}})),
        // Names of loops are what they loop over, whatever else has their name.
        ("owner.list.exists(pod, pod.spec)", json!({})),
        (
            "pod.spec.containers.exists(pod, pod.name == 'a') && pod.status.ip == ''",
            json!({
                "spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "status": {"ip": "10.0.0.1"}
            }),
        ),
        (
            "(pod.status.ip == '' ? pod.metadata : pod.status).phase == 'x'",
            json!({"metadata": whole["metadata"], "status": whole["status"]}),
        ),
        ("pod == owner", whole.clone()),
        ("[pod].exists(p, p.x == 1)", whole.clone()),
    ] {
        let kept = rule(text).unwrap_or_else(|error| panic!("{error}")).pod_fields.of(&whole);
        assert_eq!(kept, expected, "{text}");
    }
}

#[test]
fn keeps_of_owners_what_job_fields_name_and_of_linked_pods_what_is_read_of_each() {
    let rule = Rule::compile(preset_rule("arc-runner")).unwrap();
    let owner = json!({
        "metadata": {"name": "r", "deletionTimestamp": "2026-11-30T14:00:00Z", "labels": {"a": "b"}},
        "spec": {"githubConfigSecret": "s"},
        "status": {"phase": "Running", "ready": true, "jobId": "1", "jobRequestId": 2, "workflowRunId": 3, "jobDisplayName": "d"},
    });
    let expected = json!({
        "metadata": {"deletionTimestamp": "2026-11-30T14:00:00Z"},
        "status": {"phase": "Running", "ready": true, "jobId": "1", "jobRequestId": 2, "workflowRunId": 3},
    });
    assert_eq!(rule.owner_fields.of(&owner), expected);
    assert_eq!(rule.pod_fields.of(&pod()), json!({}));
    // They are counted.
    assert_eq!(rule.linked_fields.of(&pod()), json!({}));

    let of = |text: &str| super::fields::rule(text).unwrap().linked_fields.of(&pod());
    assert_eq!(of("linked.exists(p, p.status.phase == 'Running')"), json!({"status": {"phase": "Running"}}));
    assert_eq!(of("linked[0].metadata.name == 'w'"), json!({"metadata": {"name": "w"}}));
    assert_eq!(of("linked.map(p, p) == []"), pod());
    assert_eq!(of("pod in linked"), pod());
    assert_eq!(of("pod.x"), json!({}));
}

#[test]
fn several_rules_keep_what_any_of_them_reads() {
    let of = |text: &str| rule(text).unwrap().pod_fields;
    let parts = [
        of("pod.status.phase == 'x'"),
        of("has(pod.status.conditions)"),
        of("pod.metadata.labels.exists(key, key == 'x')"),
        of("pod.metadata.labels['a'] == 'x'"),
        of("pod.spec.containers.exists(c, c.name == 'x')"),
    ];
    let kept = Fields::union(&parts).of(&pod());
    let expected = json!({
        "status": {"phase": "Running", "conditions": []},
        "metadata": {"labels": {"app": "ci", "tier": "x"}},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
    });
    assert_eq!(kept, expected);
    assert_eq!(Fields::union(&[]).of(&pod()), json!({}));
    assert_eq!(Fields::union([&parts[0], &Fields::All]).of(&pod()), pod());
}

/// Expressions that make it hard to say what they read.
const TRICKY: &[&str] = &[
    "has(pod.a) && has(pod.a.b)",
    "has(pod.a) || has(owner.a)",
    "has(pod.a) ? pod.b == owner.b : pod.a == owner.a",
    "pod.a == owner.a",
    "pod == owner",
    "pod.a in owner.b",
    "'a' in pod.b",
    "pod.a.exists(x, x.a == 'a')",
    "pod.a.exists(x, has(x.b))",
    "pod.a.all(x, x in owner.a)",
    "pod.a.exists(x, true)",
    "pod.a.all(x, false)",
    "pod.a.exists_one(x, x.b)",
    "pod.a.map(x, x.b).size() == 1",
    "pod.a.map(x, x.b) == owner.a.map(x, x.b)",
    "pod.a.map(x, has(x.b), x.a) == []",
    "pod.a.filter(x, x.a == 'a').exists(y, y.b == 'b')",
    "pod.a.filter(x, has(x.a)).size() == 1",
    "pod.a.filter(x, has(x.a))[0].b == 'b'",
    "pod.a.exists(x, x.exists(y, y == 'a'))",
    "pod.a.exists(x, x.exists(y, y.b == 'a'))",
    "pod.a.exists(x, pod.a[x] == 'a')",
    "pod.a.exists(x, owner.a.exists(y, x.b == y.b))",
    "pod.a.exists(pod, pod.b == 'a') || pod.b == 'a'",
    "pod.a.exists(owner, owner.b == 'a')",
    "owner.a.exists(pod, pod.b == 'a')",
    "pod.a.exists(x, owner.b.exists(x, x.a == 'a') && x.b == 'b')",
    "pod.a[0] == 'a'",
    "pod.a[0].b == 'b'",
    "pod.a['b'] == 'b'",
    "pod['a']['b'].a == 'b'",
    "pod.a[pod.b] == owner.a",
    "pod.a[0][0] == 1",
    "pod.a.size() == 2",
    "size(pod.a) == size(owner.a)",
    "pod.a.b.size() == 1",
    "pod.a != null",
    "{'x': pod.a}.x.b == 'a'",
    "[pod.a, owner.a].exists(x, x.b == 'b')",
    "[pod, owner].exists(x, has(x.a) && x.a == 'a')",
    "(has(pod.a) ? pod : owner).b == 'b'",
    "type(pod.a) == list",
    "type(pod.a) == map && pod.a.exists(x, x == 'b')",
    "string(pod.a) == 'a'",
    "pod.a + owner.a == ''",
    "(pod.a + owner.a).exists(x, x.b == 'a')",
    "pod.status.conditions.exists(c, c.type == 'a' && c.status == 'True')",
    "linked.exists(p, p.a == pod.a)",
    "linked.exists(p, p == pod)",
    "linked.size() > 1 && linked[1].a == 'a'",
    "linked.filter(p, has(p.a)).size() == 1",
    "linked.map(p, p.a) == [pod.a]",
    "pod in linked",
    "linked == [pod]",
    "linked.exists(linked, linked.a == 'a')",
];

fn expressions() -> impl Strategy<Value = String> {
    let presets = preset_rules().into_iter().flat_map(|rule| rule.states).map(|(_, text)| text);
    let known: Vec<String> = presets.chain(TRICKY.iter().map(|text| (*text).to_owned())).collect();
    prop_oneof![2 => prop::sample::select(known), 1 => texts()]
}

proptest! {
    #![proptest_config(runner(2500))]

    /// What was thrown away can change neither an answer nor the reason why there is none.
    #[test]
    fn the_answer_is_the_same_from_what_is_kept(
        text in expressions(), pod in objects(), owner in objects(), linked in prop::collection::vec(objects(), 0..3),
    ) {
        let Ok(rule) = rule(&text) else { return Ok(()) };
        let expression = Expression::compile(&text, &ALL).expect("it is the rule's");
        let whole: Vec<&Json> = linked.iter().collect();
        let on_whole = expression.evaluate(&Inputs { pod: &pod, owner: Some(&owner), linked: &whole, now: START });

        let (pod, owner) = (rule.pod_fields.of(&pod), rule.owner_fields.of(&owner));
        let linked: Vec<Json> = linked.iter().map(|one| rule.linked_fields.of(one)).collect();
        let kept: Vec<&Json> = linked.iter().collect();
        let on_kept = expression.evaluate(&Inputs { pod: &pod, owner: Some(&owner), linked: &kept, now: START });
        prop_assert_eq!(on_kept, on_whole, "{} on {} {} {:?}", text, pod, owner, linked);
    }
}
