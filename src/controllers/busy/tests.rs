//! The loop's looks, one by one, before a server on the loopback that keeps one pod as an API server does.

use arc_swap::ArcSwap;
use belay_decide::busy::GroupKind;
use belay_decide::hold::{HoldReason, hold_name};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};

use super::*;
use crate::cluster::index::{BusyPodSink, Index, IndexSink, OwnerSink};
use crate::cluster::project;
use crate::cluster::subset::PodSubset;
use crate::cluster::watch::{Health, Sink as _};
use crate::settings::Settings;
use crate::testing::{self, ApiServer, Asked, Reply};

/// A rule for pods that tell by themselves, and one for such as have an owner to be deleted.
const RULES: &str = "
- name: plain
  podSelector: {matchLabels: {app: plain}}
  states: [{state: Busy, when: has(pod.metadata.annotations.work)}]
- name: runner
  podSelector: {matchLabels: {app: runner}}
  owner: {group: ci.example, kind: Runner}
  states: [{state: Busy, when: owner.status.busy}]
  eviction: {idle: DeleteOwner}
";
const PLAIN: usize = 0;
const RUNNER: usize = 1;

const GET: &str = "GET /api/v1/namespaces/ci/pods/w";
const PATCH: &str = "PATCH /api/v1/namespaces/ci/pods/w";
const DELETE_OWNER: &str = "DELETE /apis/ci.example/v2/namespaces/ci/runners/r";
const SAFE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
const MANAGED: &str = "belay.dev/managed";

/// The pod as it stands in the API; null where there is none.
#[derive(Clone, Default)]
struct Stored(Arc<Mutex<Value>>);

impl Stored {
    fn get(&self) -> Value {
        self.0.lock().clone()
    }

    /// A write, by whomever.
    fn write(&self, merge: &Value) -> Value {
        let mut pod = self.0.lock();
        json_patch::merge(&mut pod, merge);
        let version: u64 = pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        pod["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        pod.clone()
    }

    fn answer(&self, asked: &Asked) -> Reply {
        match asked.what.as_str() {
            GET | PATCH if self.get().is_null() => Reply::Status(404, "pods \"w\" not found"),
            GET => Reply::Json(self.get()),
            PATCH => {
                let (pod, wanted) = (self.get(), &asked.body["metadata"]);
                if ["uid", "resourceVersion"].iter().any(|field| pod["metadata"][field] != wanted[field]) {
                    return Reply::Status(409, "the object has been modified");
                }
                Reply::Json(self.write(&asked.body))
            }
            DELETE_OWNER => {
                Reply::Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}))
            }
            what if what.ends_with("-retire/status") => {
                let mut hold = json!(null);
                json_patch::merge(&mut hold, &serde_json::to_value(retire_hold()).unwrap());
                json_patch::merge(&mut hold, &asked.body);
                hold["metadata"]["resourceVersion"] = json!("2");
                Reply::Json(hold)
            }
            _ => Reply::Status(403, "who asks this?"),
        }
    }
}

struct Stage {
    api: ApiServer,
    stored: Stored,
    work: Loop,
}

fn key() -> PodKey {
    PodKey::new("ci", "w")
}

fn pod(app: &str, annotations: &Value) -> Value {
    let hour_ago = Clock::wall().saturating_sub(SignedDuration::from_hours(1)).unwrap();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "ci", "name": "w", "uid": "p", "resourceVersion": "1", "creationTimestamp": hour_ago,
            "labels": {"app": app}, "annotations": annotations,
            "ownerReferences": [{"apiVersion": "ci.example/v2", "kind": "Runner", "name": "r", "uid": "r-1",
                "controller": true}]},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": hour_ago}]},
    })
}

/// What Belay writes on an idle pod.
fn idle() -> Value {
    json!({SAFE: "true", MANAGED: format!("{{\"{SAFE}\":\"true\"}}")})
}

fn retire_hold() -> crate::api::EvictionHold {
    let soon = Clock::wall().saturating_add(SignedDuration::from_hours(1)).unwrap();
    let hold = json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "EvictionHold",
        "metadata": {"namespace": "ci", "name": hold_name(HoldReason::Retire, "w", "p"), "uid": "e", "resourceVersion": "1"},
        "spec": {"victim": {"name": "w", "uid": "p"}, "reason": "Retire", "requestedAt": Clock::wall(), "deadline": soon,
            "workload": {"group": "ci.example", "kind": "Runner", "name": "r", "uid": "r-1"}},
    });
    serde_json::from_value(hold).unwrap()
}

async fn stage(pod: Value) -> Stage {
    stage_with(pod, "", RuleHealth::default()).await
}

async fn stage_with(pod: Value, more: &str, rule_health: RuleHealth) -> Stage {
    let stored = Stored(Arc::new(Mutex::new(pod)));
    let answering = stored.clone();
    let api = ApiServer::start(move |asked| answering.answer(asked)).await;
    let rules = RULES.replace('\n', "\n    ");
    let config = testing::config(&format!("{more}\nbusyHints:\n  enabled: true\n  rules:\n    {rules}"));
    let (rules, selects) = config.busy_hints.compile().unwrap();
    let (index, dirty) = Index::following(rules);
    let (applier, leadership, metrics) =
        testing::leading_applier(&api, api.resources(&[("ci.example", "Runner")]).await, None);
    let shared = Shared {
        client: api.client.clone(),
        index,
        dirty,
        applier,
        settings: Arc::new(ArcSwap::from_pointee(Settings::of(&config, "belay-system"))),
        leadership,
        metrics,
        health: Vec::new(),
    };
    let selects = Arc::new(selects);
    let work = Loop { shared, selects, rule_health, written: Written::default(), remembered: Remembered::default() };
    Stage { api, stored, work }
}

impl Stage {
    fn index(&self) -> Index {
        self.work.shared.index.clone()
    }

    /// The watches bring the pod as it stands: that of all pods, and that of its rule's.
    fn see(&self) {
        let pod = self.stored.get();
        let rule = match pod["metadata"]["labels"]["app"].as_str() {
            Some("plain") => Some(PLAIN),
            Some("runner") => Some(RUNNER),
            _ => None,
        };
        let index = self.index();
        IndexSink(index.clone()).apply(project::pod(&serde_json::from_value::<PodSubset>(pod.clone()).unwrap(), false));
        if let Some(rule) = rule {
            let pod = project_busy::pod(&serde_json::from_value(pod).unwrap(), &index.rules()[rule], Clock::wall());
            BusyPodSink { index, rule }.apply(pod);
        }
    }

    fn see_owner(&self, busy: bool) {
        let owner = json!({"apiVersion": "ci.example/v2", "kind": "Runner",
            "metadata": {"namespace": "ci", "name": "r", "uid": "r-1"}, "status": {"busy": busy}});
        let mut sink = OwnerSink { index: self.index(), kind: GroupKind::new("ci.example", "Runner") };
        let owner = project_busy::owner(&serde_json::from_value(owner).unwrap(), &sink.fields());
        sink.apply(owner);
    }

    /// Looks once; what was asked of the API server, and in how many seconds it is to be looked at again.
    async fn look(&self) -> (Vec<String>, Option<i64>) {
        let before = Clock::wall();
        let wake = self.work.look(&key()).await;
        let asked = self.api.asked().into_iter().map(|asked| asked.what).collect();
        (asked, wake.map(|at| at.duration_since(before).as_secs_f64().round() as i64))
    }

    fn metric(&self, name: &str) -> Option<String> {
        let text = self.work.shared.metrics.encode().unwrap();
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    }

    fn counted(&self, rule: &str, state: &str) -> Option<String> {
        self.metric(&format!("belay_busy_pods{{rule=\"{rule}\",state=\"{state}\"}}"))
    }
}

/// Nothing was asked.
fn nothing() -> Vec<String> {
    Vec::new()
}

#[tokio::test]
async fn hints_follow_what_a_pod_does_by_one_patch_each_time_and_none_in_between() {
    let stage = stage(pod("plain", &json!({}))).await;
    stage.see();
    assert_eq!(stage.look().await, (vec![PATCH.into()], None), "a pod that was there before the rule");
    assert_eq!(stage.stored.get()["metadata"]["annotations"], idle());
    assert_eq!(stage.counted("plain", "Idle").as_deref(), Some("1"));
    stage.see();
    assert_eq!(stage.look().await, (nothing(), None));

    stage.stored.write(&json!({"metadata": {"annotations": {"work": ""}}}));
    stage.see();
    assert_eq!(stage.look().await.0, [PATCH], "at once");
    let meta = stage.stored.get()["metadata"].clone();
    assert_eq!((&meta["annotations"][SAFE], &meta["labels"]["belay.dev/busy"]), (&json!("false"), &json!("true")));
    assert_eq!(
        (stage.counted("plain", "Busy").as_deref(), stage.counted("plain", "Idle").as_deref()),
        (Some("1"), Some("0"))
    );
    stage.see();
    let (asked, wake) = stage.look().await;
    let six_hours = 6 * 3600;
    assert!(
        asked.is_empty() && wake.is_some_and(|seconds| (six_hours - 60..=six_hours).contains(&seconds)),
        "{wake:?}"
    );

    stage.stored.write(&json!({"metadata": {"annotations": {"work": null}}}));
    stage.see();
    assert_eq!(stage.look().await, (nothing(), Some(15)), "idle only after the debounce");
}

#[tokio::test]
async fn a_pod_is_left_alone_until_our_own_write_is_seen() {
    let stage = stage(pod("plain", &json!({}))).await;
    stage.see();
    stage.look().await;
    for _ in 0..3 {
        assert_eq!(stage.look().await, (nothing(), Some(2)), "it would only meet a conflict");
    }
    stage.see();
    assert_eq!(stage.look().await, (nothing(), None));
}

#[tokio::test]
async fn somebody_elses_write_in_between_is_met_by_a_new_look() {
    let stage = stage(pod("plain", &json!({}))).await;
    stage.see();
    stage.stored.write(&json!({"metadata": {"annotations": {"note": "x"}}}));
    assert_eq!(stage.look().await, (vec![PATCH.into()], Some(2)));
    assert_eq!(stage.stored.get()["metadata"]["annotations"], json!({"note": "x"}), "nothing was written");
    stage.see();
    assert_eq!(stage.look().await, (vec![PATCH.into()], None));
    assert_eq!(stage.stored.get()["metadata"]["annotations"][SAFE], "true");
}

#[tokio::test]
async fn a_hint_that_somebody_changed_is_theirs_and_counted_once_that_is_written() {
    let changed = json!({SAFE: "false", MANAGED: format!("{{\"{SAFE}\":\"true\"}}")});
    let stage = stage(pod("plain", &changed)).await;
    stage.see();
    stage.stored.write(&json!({"metadata": {"annotations": {"note": "x"}}}));
    stage.look().await;
    assert_eq!(stage.metric("belay_hint_conflicts_total").as_deref(), Some("0"), "it was not written");
    stage.see();
    stage.look().await;
    assert_eq!(stage.stored.get()["metadata"]["annotations"], json!({SAFE: "false", "note": "x"}));
    assert_eq!(stage.metric("belay_hint_conflicts_total").as_deref(), Some("1"));
    stage.see();
    assert_eq!(stage.look().await, (nothing(), None), "it is not fought over");
}

#[tokio::test]
async fn what_a_rule_cannot_see_is_not_acted_on_and_other_rules_go_on() {
    let blind = Health::new("Runner.ci.example", Gauge::default());
    let health = RuleHealth { pods: Vec::new(), asked: vec![Vec::new(), vec![blind.clone()]] };
    let stage = stage_with(pod("runner", &idle()), "", health).await;
    stage.see();
    assert_eq!(stage.look().await, (nothing(), Some(30)), "that its owner is missing is not known");
    blind.absent();
    stage.see_owner(true);
    assert_eq!(stage.look().await.0, [PATCH]);

    let blind = Health::new("Runner.ci.example", Gauge::default());
    let health = RuleHealth { pods: Vec::new(), asked: vec![Vec::new(), vec![blind]] };
    let plain = stage_with(pod("plain", &json!({})), "", health).await;
    plain.see();
    assert_eq!(plain.look().await.0, [PATCH]);
}

#[tokio::test]
async fn what_is_left_on_a_pod_that_no_rule_governs_is_taken_off() {
    let mut left = pod(
        "none",
        &json!({SAFE: "true", "karpenter.sh/do-not-disrupt": "true",
        MANAGED: format!("{{\"{SAFE}\":\"true\",\"label:belay.dev/busy\":\"true\"}}")}),
    );
    left["metadata"]["labels"]["belay.dev/busy"] = json!("true");
    let stage = stage(left).await;
    stage.see();
    assert_eq!(stage.look().await, (vec![GET.into(), PATCH.into()], None));
    let meta = stage.stored.get()["metadata"].clone();
    assert_eq!(meta["annotations"], json!({"karpenter.sh/do-not-disrupt": "true"}), "which is somebody else's");
    assert_eq!(meta["labels"], json!({"app": "none"}));
    // The watch has yet to bring that.
    assert_eq!(stage.look().await, (vec![GET.into()], None));
    stage.see();
    assert_eq!(stage.look().await, (nothing(), None));
}

#[tokio::test]
async fn a_pod_that_a_rule_selects_is_nobodys_leftover_though_its_watch_is_late() {
    let stage = stage(pod("none", &idle())).await;
    stage.see();
    stage.stored.write(&json!({"metadata": {"labels": {"app": "plain"}}}));
    assert_eq!(stage.look().await, (vec![GET.into()], Some(2)));
    assert_eq!(stage.stored.get()["metadata"]["annotations"], idle());

    let excluded =
        stage_with(pod("none", &idle()), "evictionHold: {excludedNamespaces: [ci]}", RuleHealth::default()).await;
    excluded.see();
    excluded.stored.write(&json!({"metadata": {"labels": {"app": "plain"}}}));
    assert_eq!(excluded.look().await, (vec![GET.into(), PATCH.into()], None), "rules are not for its namespace");

    let gone = self::stage(pod("none", &idle())).await;
    gone.see();
    *gone.stored.0.lock() = Value::Null;
    assert_eq!(gone.look().await, (vec![GET.into()], None));
}

#[tokio::test]
async fn an_idle_pods_owner_is_deleted_once_for_its_hold() {
    let stage = stage(pod("runner", &idle())).await;
    stage.see();
    stage.see_owner(false);
    IndexSink(stage.index()).apply(project::hold(&retire_hold()));
    let (asked, _) = stage.look().await;
    assert_eq!(asked[0], DELETE_OWNER);
    assert!(asked[1].starts_with("PATCH /apis/belay.dev/v1alpha1/namespaces/ci/evictionholds/"), "{asked:?}");
    assert_eq!(stage.look().await.0, nothing(), "until the hold is seen as it was written");
    let mut taken_up = retire_hold();
    taken_up.metadata.resource_version = Some("2".into());
    taken_up.status = Some(serde_json::from_value(json!({"phase": "Active", "reason": "OwnerRetiring"})).unwrap());
    IndexSink(stage.index()).apply(project::hold(&taken_up));
    assert_eq!(stage.look().await.0, nothing());
}

#[tokio::test]
async fn with_the_lead_goes_what_was_counted_and_remembered() {
    let stage = stage(pod("plain", &json!({"work": ""}))).await;
    stage.see();
    stage.look().await;
    assert_eq!(stage.counted("plain", "Busy").as_deref(), Some("1"));
    assert!(!stage.work.remembered.memories.lock().is_empty());
    stage.work.observe(false);
    assert_eq!(stage.counted("plain", "Busy"), None);
    assert!(stage.work.remembered.memories.lock().is_empty());
    stage.work.observe(true);
    stage.see();
    stage.look().await;
    assert_eq!(stage.counted("plain", "Busy").as_deref(), Some("1"), "counted anew");
}

#[tokio::test]
async fn of_a_pod_that_goes_nothing_is_kept() {
    let stage = stage(pod("plain", &json!({"work": ""}))).await;
    stage.see();
    stage.look().await;
    let pod = stage.stored.get();
    let index = stage.index();
    let busy = project_busy::pod(&serde_json::from_value(pod.clone()).unwrap(), &index.rules()[PLAIN], Clock::wall());
    BusyPodSink { index: index.clone(), rule: PLAIN }.delete(busy);
    IndexSink(index).delete(project::pod(&serde_json::from_value::<PodSubset>(pod).unwrap(), false));
    assert_eq!(stage.look().await, (nothing(), None));
    assert_eq!(stage.counted("plain", "Busy").as_deref(), Some("0"));
    assert!(stage.work.remembered.memories.lock().is_empty() && stage.work.remembered.states.lock().is_empty());
    assert!(!stage.work.written.is_awaited(&key(), [("p".to_owned(), "1".to_owned())].into_iter()));
}
