//! Explanations of pods in a cluster that a server on the loopback plays.

mod nodes;
mod workloads;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::*;
use crate::cli::page::{ForPeople, Page};
use crate::config::Config;
use crate::testing::{self, ApiServer, Reply};

const RULES: &str = "
- name: runner
  podSelector: {matchLabels: {app: web}}
  owner: {group: ci.example, kind: Runner}
  states: [{state: Busy, when: owner.status.busy}]
";

const POD: &str = "GET /api/v1/namespaces/ci/pods/w";
const OWNER: &str = "GET /apis/ci.example/v2/namespaces/ci/runners/r";
const SETS: &str = "GET /apis/apps/v1/namespaces/ci/replicasets";
const DEPLOYMENTS: &str = "GET /apis/apps/v1/namespaces/ci/deployments";
const PODS: &str = "GET /api/v1/namespaces/ci/pods";
const NODES: &str = "GET /api/v1/nodes";
const HOLDS: &str = "GET /apis/belay.dev/v1alpha1/namespaces/ci/evictionholds";
const POLICIES: &str = "GET /apis/belay.dev/v1alpha1/namespaces/ci/handoverpolicies";

fn ago(minutes: i64) -> Timestamp {
    let at = Clock::wall().saturating_sub(SignedDuration::from_mins(minutes)).unwrap();
    Timestamp::from_second(at.as_second()).unwrap()
}

fn list(items: &[Value]) -> Reply {
    Reply::Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

fn controller(group_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": group_version, "kind": kind, "name": name, "uid": uid, "controller": true})
}

fn pod(controller: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "ci", "name": "w", "uid": "p", "resourceVersion": "1", "creationTimestamp": ago(60),
            "labels": {"app": "web", "pod-template-hash": "h"}, "ownerReferences": [controller],
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
                "karpenter.sh/do-not-disrupt": "false",
                "belay.dev/managed": "{\"cluster-autoscaler.kubernetes.io/safe-to-evict\":\"true\"}"}},
        "spec": {"nodeName": "node-1", "volumes": [{"name": "tmp", "emptyDir": {}}]},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": ago(59)}]},
    })
}

fn runner(busy: bool) -> (&'static str, Reply) {
    let owner = json!({"apiVersion": "ci.example/v2", "kind": "Runner",
        "metadata": {"namespace": "ci", "name": "r", "uid": "r-1"}, "status": {"busy": busy}});
    (OWNER, Reply::Json(owner))
}

fn of_runner() -> (&'static str, Reply) {
    (POD, Reply::Json(pod(&controller("ci.example/v2", "Runner", "r", "r-1"))))
}

fn hold(phase: &str) -> Value {
    json!({"apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
        "metadata": {"namespace": "ci", "name": "w-p-busy", "uid": "e"},
        "spec": {"victim": {"name": "w", "uid": "p"}, "reason": "Busy", "evictor": "drainer", "requestedAt": ago(5),
            "deadline": ago(-60)},
        "status": {"phase": phase, "message": "the message"}})
}

/// A cluster that answers so; Belay's CRDs are not installed, and there is nothing else.
async fn cluster(answers: &[(&'static str, Reply)]) -> ApiServer {
    let empty = [PODS, SETS, DEPLOYMENTS, NODES].map(|what| (what, list(&[])));
    let pods = answers.iter().filter_map(|answer| match answer {
        (POD, Reply::Json(pod)) => Some((PODS, list(std::slice::from_ref(pod)))),
        _ => None,
    });
    let answers: BTreeMap<_, _> = empty.into_iter().chain(pods).chain(answers.iter().cloned()).collect();
    ApiServer::start(move |asked| {
        answers.get(asked.what.as_str()).cloned().unwrap_or(Reply::Status(404, "there is no such thing"))
    })
    .await
}

/// For programs, and for people without a terminal.
fn told(report: &(impl ForPeople + Serialize)) -> (Value, String) {
    let mut page = Page::new(None, false);
    report.write(&mut page);
    (serde_json::to_value(report).unwrap(), page.text().to_owned())
}

async fn explained(api: &ApiServer, config: &Config) -> (Value, String) {
    let seen = gather::pod(&api.client, config, "belay-system", "ci", "w").await.unwrap();
    let report = pod::explain(&seen, Clock::wall());
    told(&report)
}

fn ruled() -> Config {
    testing::config_of_rules(RULES)
}

#[tokio::test]
async fn a_busy_pod_is_explained_by_its_rule_its_hints_and_what_each_remover_would_do() {
    let api = cluster(&[of_runner(), runner(true), (HOLDS, list(&[hold("Active")]))]).await;
    let (json, text) = explained(&api, &ruled()).await;
    assert_eq!(
        (&json["namespace"], &json["name"], &json["uid"], &json["node"]),
        (&json!("ci"), &json!("w"), &json!("p"), &json!("node-1"))
    );
    let state = json!({"rule": "runner", "state": "Busy", "because": "states[0] is true", "expression": "owner.status.busy",
        "owner": "Runner.ci.example r", "linkedPods": 0});
    assert_eq!(json["state"], state);
    let hint = |key: &str| json["hints"].as_array().unwrap().iter().find(|hint| hint["key"] == key).cloned().unwrap();
    let safe = hint("cluster-autoscaler.kubernetes.io/safe-to-evict");
    assert_eq!(
        (&safe["value"], &safe["owner"], &safe["aboutToBe"]),
        (&json!("true"), &json!("Belay"), &json!("false"))
    );
    let disrupt = hint("karpenter.sh/do-not-disrupt");
    assert_eq!(
        (&disrupt["value"], &disrupt["owner"], disrupt.get("aboutToBe")),
        (&json!("false"), &json!("Other"), None)
    );
    let label = hint("belay.dev/busy");
    assert_eq!((&label["kind"], label.get("value"), &label["aboutToBe"]), (&json!("label"), None, &json!("true")));
    assert_eq!((&json["eviction"]["held"], &json["eviction"]["reason"]), (&json!(true), &json!("PodBusy")));
    assert_eq!((&json["holds"][0]["name"], &json["holds"][0]["message"]), (&json!("w-p-busy"), &json!("the message")));
    assert!(json["removers"].as_array().is_some_and(|removers| removers.len() > 3), "{json}");
    assert_eq!(json.get("unread"), None);
    for words in [
        "Pod ci/w on node-1",
        "State: Busy (rule runner)",
        "owner: Runner.ci.example r",
        "Eviction now: held (PodBusy)",
        "about to be false",
        "EvictionHold w-p-busy: Busy Active, asked for by drainer",
        "Removers:",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
    assert!(text.lines().all(|line| line == line.trim_end()), "no line ends in spaces");
}

#[tokio::test]
async fn what_an_eviction_would_meet_is_what_the_webhook_would_answer() {
    let web = |busy: bool| {
        let set = json!({"metadata": {"namespace": "ci", "name": "web-h", "uid": "s",
            "annotations": {"deployment.kubernetes.io/revision": "1"}, "labels": {"pod-template-hash": "h"},
            "ownerReferences": [controller("apps/v1", "Deployment", "web", "d")]}});
        let deployment = json!({
            "metadata": {"namespace": "ci", "name": "web", "uid": "d", "generation": 1, "resourceVersion": "1",
                "annotations": {"deployment.kubernetes.io/revision": "1"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}});
        let policy = json!({"apiVersion": "belay.dev/v1alpha1", "kind": "HandoverPolicy",
            "metadata": {"namespace": "ci", "name": "web", "uid": "h"}, "spec": {"targetRef": {"name": "web"}}});
        let mut pod = pod(&controller("apps/v1", "ReplicaSet", "web-h", "s"));
        if busy {
            pod["metadata"]["annotations"]["work"] = json!("");
        }
        vec![
            (POD, Reply::Json(pod)),
            (SETS, list(&[set])),
            (DEPLOYMENTS, list(&[deployment])),
            (POLICIES, list(&[policy])),
            (NODES, list(&[json!({"metadata": {"name": "node-1"}})])),
        ]
    };
    let own = "
- name: web
  podSelector: {matchLabels: {app: web}}
  states: [{state: Busy, when: has(pod.metadata.annotations.work)}]
";
    let table = [
        ("idle, and alone", vec![of_runner(), runner(false)], RULES, false, "Idle"),
        ("busy", vec![of_runner(), runner(true)], RULES, true, "PodBusy"),
        ("its owner is gone", vec![of_runner()], RULES, true, "PodStateUnknown"),
        (
            "its owner cannot be read",
            vec![of_runner(), (OWNER, Reply::Status(403, "forbidden"))],
            RULES,
            true,
            "PodStateUnknown",
        ),
        ("released", vec![of_runner(), runner(true), (HOLDS, list(&[hold("Released")]))], RULES, false, "Released"),
        ("idle, and protected by a policy", web(false), own, true, "AwaitingRestart"),
        ("busy, and protected by a policy", web(true), own, true, "PodBusy"),
        (
            "released by its rule, and protected by a policy",
            [web(true), vec![(HOLDS, list(&[hold("Released")]))]].concat(),
            own,
            true,
            "AwaitingRestart",
        ),
    ];
    for (name, answers, rules, held, reason) in table {
        let api = cluster(&answers).await;
        let (json, text) = explained(&api, &testing::config_of_rules(rules)).await;
        assert_eq!(json["eviction"]["held"], held, "{name}: {text}");
        assert_eq!(json["eviction"]["reason"], reason, "{name}: {text}");
    }
}

#[tokio::test]
async fn what_could_not_be_read_is_said() {
    let denied = Reply::Status(403, "User \"dev\" cannot");
    let api = cluster(&[of_runner(), (OWNER, denied.clone()), (NODES, denied)]).await;
    let (json, text) = explained(&api, &ruled()).await;
    let unread: Vec<_> = json["unread"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert_eq!(unread, ["nodes: User \"dev\" cannot", "what rule runner asks: User \"dev\" cannot"]);
    assert!(text.contains("Not read: nodes"), "{text}");
}

#[tokio::test]
async fn a_pod_that_no_rule_selects_is_explained_all_the_same() {
    let api = cluster(&[of_runner()]).await;
    let excluded = testing::config(&format!(
        "evictionHold: {{excludedNamespaces: [ci]}}\nbusyHints:\n  enabled: true\n  rules:\n    {}",
        RULES.replace('\n', "\n    ")
    ));
    for config in [testing::config(""), excluded] {
        let (json, text) = explained(&api, &config).await;
        assert_eq!(json.get("state"), None);
        assert!(text.contains("State: no busy rule selects it") && text.contains("Eviction now: passes"), "{text}");
    }
}

#[tokio::test]
async fn a_pod_that_is_not_there_is_told_by_name() {
    let api = cluster(&[]).await;
    let error = gather::pod(&api.client, &ruled(), "belay-system", "ci", "w").await.map(|_| ()).unwrap_err();
    assert_eq!(format!("{error:#}"), "cannot read the pod ci/w: there is no such thing");
}

#[tokio::test]
async fn the_configuration_is_the_clusters_own_where_none_is_named() {
    let maps = "GET /api/v1/namespaces/belay-system/configmaps";
    let map = |text: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "belay"}, "data": {"config.yaml": text}});
    let good = "certs: {secretName: ca, dnsNames: [belay.svc]}\nwebhookConfigurations: {validating: b, mutating: b}";
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
    let table = [
        ("the one", list(&[map(good), other]), Ok(())),
        ("none", list(&[]), Err("there is no Belay in the namespace belay-system")),
        ("two", list(&[map(good), map(good)]), Err("several Belays in the namespace belay-system")),
        ("one that is wrong", list(&[map("busy: {}")]), Err("busy")),
        ("one that may not be read", Reply::Status(403, "configmaps is forbidden"), Err("name a copy with --config")),
    ];
    for (name, answer, expected) in table {
        let api = cluster(&[(maps, answer)]).await;
        match (gather::config(&api.client, None, "belay-system").await, expected) {
            (Ok(_), Ok(())) => {
                assert_eq!(api.asked()[0].query["labelSelector"], "app.kubernetes.io/part-of=belay", "{name}");
            }
            (Err(error), Err(words)) => assert!(format!("{error:#}").contains(words), "{name}: {error:#}"),
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
}
