//! The busy rules: what becomes of one in the configuration and among the webhook entries, and how presets are expanded.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::chart::{self, NAMESPACE, Objects};
use crate::documentation;
use crate::matrix;

/// The rules of the presets that the tests bring themselves, so that they do not hang on what a real one says.
const PRESETS: &[(&str, &str)] = &[
    (
        "one",
        "
- name: one
  namespaces: [a, b]
  podSelector: {matchLabels: {app: one}}
  owner: {group: example.com, kind: Worker}
  states: [{state: Busy, when: 'has(owner.status)'}]
  maxBusy: 2h
  hints: {karpenter: true, castAi: true}
  eviction: {idle: DeleteOwner}
",
    ),
    (
        "two",
        "
- name: two-a
  podSelector: {matchLabels: {app: two-a}}
  states: [{state: Busy, when: 'true'}]
- name: two-b
  podSelector: {matchLabels: {app: two-b}}
  states: [{state: Busy, when: 'true'}]
",
    ),
    ("broken", "podSelector: {}\n"),
    ("empty", "# nothing\n"),
    ("boundless", "- {name: boundless, podSelector: {matchLabels: {}}, states: [{state: Busy, when: 'true'}]}\n"),
];

/// A copy of the chart that brings these presets and no others.
pub(crate) static WITH_PRESETS: LazyLock<PathBuf> = LazyLock::new(|| {
    // A folder of this process's own: several test runs may share the target folder.
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chart-{}", std::process::id()));
    copy_folder(&chart::folder(), &copy);
    let presets = copy.join("files/presets");
    let _ = std::fs::remove_dir_all(&presets);
    std::fs::create_dir_all(&presets).expect("the folder can be made");
    for (name, text) in PRESETS {
        std::fs::write(presets.join(format!("{name}.yaml")), text).expect("the preset can be written");
    }
    copy
});

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the folder can be made");
    for entry in std::fs::read_dir(from).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("the file can be copied");
        }
    }
}

/// Values with busy hints on.
fn busy(more: &Value) -> Value {
    let mut values = json!({ "busyHints": more });
    values["busyHints"]["enabled"] = json!(true);
    values
}

/// The rules of the configuration file that the program will read.
fn rules(objects: &Objects) -> Vec<Value> {
    objects.config()["busyHints"]["rules"].as_array().expect("a list of rules").clone()
}

fn names(rules: &[Value]) -> Vec<&str> {
    rules.iter().map(|rule| rule["name"].as_str().expect("a rule has a name")).collect()
}

#[test]
fn rules_stand_in_the_configuration_as_they_are_written() {
    let mut odd = matrix::plain_rule();
    odd["name"] = json!("odd");
    odd["podSelector"] = json!({ "matchLabels": { "a": "on", "b": "1e3", "c": "", "d": "null" } });
    odd["states"] = json!([
        { "state": "Busy", "when": "pod.metadata.name.matches('^a\\\\.b$') && 1 < 2 && \"{{ x }}\" != '#'" },
        { "state": "Starting", "when": "  true ||\n  'ä: & <b>' == ''\n\n" },
        { "state": "Idle", "when": "yes" },
        { "state": "Done", "when": format!("{}true", "true && ".repeat(40)) },
    ]);
    odd["startupGrace"] = json!("1h30m");
    let expected = vec![matrix::runner_rule(), odd, matrix::plain_rule()];
    let objects = Objects::render(&busy(&json!({ "rules": expected })));
    assert_eq!(objects.config()["busyHints"], json!({ "enabled": true, "rules": expected }));
}

#[test]
fn while_they_are_off_nothing_of_them_is_rendered() {
    let off = json!({ "busyHints": { "rules": [matrix::runner_rule()], "presets": ["one"] } });
    let objects = Objects::render(&off);
    assert_eq!(objects.config(), Objects::render(&json!({})).config());
    assert_eq!(objects.webhooks(), Objects::render(&json!({})).webhooks());
}

#[test]
fn each_rule_has_an_entry_for_just_the_pods_that_it_selects() {
    let objects = Objects::render(&matrix::busy_alone());
    let entries = objects.get("MutatingWebhookConfiguration", "belay")["webhooks"].as_array().expect("entries");
    let entry = |rule: &Value, namespaces: Value| {
        let service = json!({ "name": "belay-webhook", "namespace": NAMESPACE, "path": "/mutate/busy", "port": 443 });
        json!({
            "name": format!("{}.busy.belay.dev", rule["name"].as_str().expect("a name")),
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "service": service },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"],
                "scope": "Namespaced",
            }],
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "reinvocationPolicy": "IfNeeded",
            "failurePolicy": "Ignore",
            "timeoutSeconds": 2,
            "namespaceSelector": { "matchExpressions": namespaces },
            "objectSelector": rule["podSelector"],
        })
    };
    let name = "kubernetes.io/metadata.name";
    let excluded = json!({ "key": name, "operator": "NotIn", "values": [NAMESPACE, "kube-system"] });
    let expected = [
        entry(&matrix::runner_rule(), json!([excluded, { "key": name, "operator": "In", "values": ["ci"] }])),
        entry(&matrix::plain_rule(), json!([excluded])),
    ];
    assert_eq!(*entries, expected);
}

#[test]
fn entries_follow_the_settings_of_pod_creation() {
    let objects = Objects::render(&matrix::everything());
    let entries = objects.get("MutatingWebhookConfiguration", "belay")["webhooks"].as_array().expect("entries");
    let names: Vec<&str> = entries.iter().filter_map(|entry| entry["name"].as_str()).collect();
    let own = ["pod.handover.belay.dev", "runner.busy.belay.dev", "plain.busy.belay.dev"];
    let presets = ["arc-runner.busy.belay.dev", "arc-job.busy.belay.dev"];
    assert_eq!(names, [&own[..], &presets, &["binding.cost.belay.dev"]].concat());
    for entry in entries.iter().filter(|entry| entry["name"] != "binding.cost.belay.dev") {
        assert_eq!(entry["failurePolicy"], "Fail");
        assert_eq!(entry["timeoutSeconds"], 1);
        assert_eq!(entry["reinvocationPolicy"], "Never");
        assert_eq!(entry["namespaceSelector"]["matchLabels"], json!({ "example.com/belay": "on" }));
    }
}

#[test]
fn evictions_are_asked_about_whichever_capability_holds_them() {
    let alone = Objects::render(&matrix::busy_alone());
    let hold = Objects::render(&json!({}));
    let entries = |objects: &Objects| objects.get("ValidatingWebhookConfiguration", "belay")["webhooks"].clone();
    assert_eq!(entries(&alone), entries(&hold));
}

#[test]
fn the_users_rules_come_before_those_of_the_presets_in_the_order_of_the_values() {
    let values = busy(&json!({ "presets": ["two", "one"], "rules": [matrix::plain_rule(), matrix::runner_rule()] }));
    let objects = Objects::render_of(&WITH_PRESETS, &values);
    let rules = rules(&objects);
    assert_eq!(names(&rules), ["plain", "runner", "two-a", "two-b", "one"]);
    let preset: Value = chart::parse(PRESETS[0].1).remove(0);
    assert_eq!(rules[4], preset[0]);

    let entries = objects.get("MutatingWebhookConfiguration", "belay")["webhooks"].as_array().expect("entries");
    let entries = entries.iter().filter_map(|entry| entry["name"].as_str()?.strip_suffix(".busy.belay.dev"));
    assert_eq!(entries.collect::<Vec<_>>(), names(&rules));
    let owners = "apiGroups: [\"example.com\"]\n    resources: [\"workers\"]";
    let manifest = chart::template_of(&WITH_PRESETS, &values, &[]).expect("it was rendered before");
    assert_eq!(manifest.matches(owners).count(), 3, "read by both components, deleted by one");
}

#[test]
fn overrides_change_single_keys_of_every_rule_of_their_preset() {
    let overrides = json!({
        "one": {
            "namespaces": [],
            "maxBusy": "1h",
            "onUnknown": "Idle",
            "hints": { "karpenter": false, "spotOcean": true },
            "eviction": { "idle": "Allow" },
        },
        "two": { "namespaces": ["c"], "startupGrace": "1m", "idleDebounce": "0s", "eviction": { "busy": "Allow" } },
    });
    let values = busy(&json!({ "presets": ["one", "two"], "presetOverrides": overrides }));
    let rules = rules(&Objects::render_of(&WITH_PRESETS, &values));

    let mut one = chart::parse(PRESETS[0].1).remove(0)[0].take();
    one["namespaces"] = json!([]);
    one["maxBusy"] = json!("1h");
    one["onUnknown"] = json!("Idle");
    one["hints"] = json!({ "karpenter": false, "castAi": true, "spotOcean": true });
    one["eviction"] = json!({ "idle": "Allow" });
    assert_eq!(rules[0], one);
    let mut two = chart::parse(PRESETS[1].1).remove(0);
    for (rule, expected) in rules[1..].iter().zip(two.as_array_mut().expect("a list")) {
        expected["namespaces"] = json!(["c"]);
        expected["startupGrace"] = json!("1m");
        expected["idleDebounce"] = json!("0s");
        expected["eviction"] = json!({ "busy": "Allow" });
        assert_eq!(rule, expected);
    }
    assert_eq!(rules.len(), 3);
}

/// Names of the presets that the chart brings, sorted.
pub(crate) fn presets() -> Vec<String> {
    let folder = chart::folder().join("files/presets");
    let files = std::fs::read_dir(folder).into_iter().flatten();
    let names = files.filter_map(|file| {
        let file = file.expect("the entry can be read").file_name();
        file.to_str().and_then(|name| name.strip_suffix(".yaml")).map(str::to_owned)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_preset_is_the_same_as_its_rules_written_out() {
    let known = ["agones", "arc", "argo-workflows", "buildkite", "gitlab-runner", "tekton"];
    assert_eq!(presets(), known);
    for preset in known {
        // As values, so that the schema, which no preset meets, is held against them.
        let written = chart::read_yaml(&format!("files/presets/{preset}.yaml"));
        let by_hand = Objects::render(&busy(&json!({ "rules": written })));
        let by_name = Objects::render(&busy(&json!({ "presets": [preset] })));
        assert_eq!(by_name.config(), by_hand.config(), "{preset}");
        assert_eq!(by_name.webhooks(), by_hand.webhooks(), "{preset}");
    }
    let row = documentation::rows().into_iter().find(|row| row.path == "busyHints.presets").expect("it is documented");
    assert!(known.iter().all(|preset| row.description.contains(&format!("`{preset}`"))), "{}", row.description);
    // All at once: no two of them may have a rule of the same name.
    Objects::render(&busy(&json!({ "presets": known })));
}

/// The rule that a comment of values.yaml shows with every key.
pub(crate) fn documented_rule() -> Value {
    let values = chart::read("values.yaml");
    let lines = values.lines().skip_while(|line| !line.starts_with("#   - name:"));
    let lines = lines.map_while(|line| line.strip_prefix("#   "));
    let text: Vec<&str> = lines.collect();
    chart::parse(&text.join("\n")).remove(0)[0].take()
}

#[test]
fn the_documented_rule_is_accepted_and_shows_every_key() {
    fn keys(schema: &Value, root: &Value, path: &str, found: &mut Vec<String>) {
        let referred = schema["$ref"].as_str().and_then(|reference| root.pointer(&reference[1..]));
        let schema = referred.unwrap_or(schema);
        let schema = schema.get("items").unwrap_or(schema);
        for (key, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}/{key}");
            keys(below, root, &path, found);
            found.push(path);
        }
    }
    let rule = documented_rule();
    Objects::render(&busy(&json!({ "rules": [rule] })));

    let schema: Value = serde_json::from_str(&chart::read("values.schema.json")).expect("the schema is JSON");
    let mut found = Vec::new();
    keys(&schema["$defs"]["busyRule"], &schema, "", &mut found);
    assert!(found.len() > 30, "only {found:?}");
    for path in found {
        let shown = path.replace("/states/", "/states/0/").replace("/matchExpressions/", "/matchExpressions/0/");
        assert!(rule.pointer(&shown).is_some(), "{path} is not in the comment of values.yaml");
    }
}

#[test]
fn the_examples_of_the_readme_are_accepted() {
    let readme = chart::read("README.md");
    let (_, section) = readme.split_once("## Busy hints\n").expect("the README has the section");
    let (section, _) = section.split_once("\n## ").expect("the section has an end");
    let examples: Vec<&str> = section.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        assert!(!rules(&Objects::render(&chart::parse(example)[0])).is_empty(), "{example}");
    }
}
