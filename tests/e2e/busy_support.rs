//! Words that the tests of the busy hints share: the rules that they are run with, and what a pod is told as.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use belay_e2e::world::{Namespace, PodInfo, merge};
use belay_e2e::{arc, clock};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{EvictParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::SOON;

/// Every preset of the chart.
pub(crate) const PRESETS: [&str; 6] = ["arc", "agones", "gitlab-runner", "tekton", "argo-workflows", "buildkite"];

/// The definitions of the owners that the presets name.
pub(crate) const SYSTEMS: [&str; 3] =
    [arc::CRDS, include_str!("../crds/agones.dev.yaml"), include_str!("../crds/tekton.dev.yaml")];

/// The label by which a pod chooses one of the rules below.
pub(crate) const RULE: &str = "test.belay.dev/rule";

/// The label that says what a pod of such a rule does: `working`, `starting`, `ending`, `broken`, anything else.
pub(crate) const DOING: &str = "doing";

pub(crate) const SAFE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
pub(crate) const KARPENTER: &str = "karpenter.sh/do-not-disrupt";
pub(crate) const DESCHEDULER: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";
pub(crate) const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
pub(crate) const BUSY: &str = "label:belay.dev/busy";
pub(crate) const CAST: &str = "label:autoscaling.cast.ai/removal-disabled";
pub(crate) const OCEAN: &str = "label:spotinst.io/restrict-scale-down";
pub(crate) const SINCE: &str = "belay.dev/busy-since";

/// The annotation in which Belay records what it wrote.
pub(crate) const RECORD: &str = "belay.dev/managed";

const KEYS: [&str; 8] = [SAFE, KARPENTER, DESCHEDULER, COST, BUSY, CAST, OCEAN, SINCE];

/// Stands for any time in [`Marks`].
pub(crate) const SOMETIME: &str = "(a time)";

/// Keys and values that a pod bears; those of labels begin with `label:`.
pub(crate) type Marks = BTreeMap<&'static str, String>;

/// What an idle, starting or done pod is told as by default.
pub(crate) const IDLE: &[(&str, &str)] = &[(SAFE, "true")];

/// What a busy pod is told as by default.
pub(crate) const WORKING: &[(&str, &str)] =
    &[(SAFE, "false"), (KARPENTER, "true"), (DESCHEDULER, "true"), (BUSY, "true"), (SINCE, SOMETIME)];

/// Nothing.
pub(crate) const NOTHING: &[(&str, &str)] = &[];

/// The chart's values for these tests: all presets, and rules of the tests' own.
pub(crate) fn values() -> anyhow::Result<Value> {
    Ok(json!({ "busyHints": {
        "enabled": true,
        "presets": PRESETS,
        // Each test would have to wait for it; a rule below has one.
        "presetOverrides": { "arc": { "startupGrace": "0s" } },
        "rules": rules()?,
    } }))
}

fn rules() -> anyhow::Result<Value> {
    let all = json!({ "castAi": true, "spotOcean": true, "deletionCost": true });
    let late = json!({
        "name": "late",
        "podSelector": { "matchLabels": { RULE: "late" } },
        "owner": { "group": "late.example.com", "kind": "Worker" },
        "states": [{ "state": "Busy", "when": "has(owner.status) && has(owner.status.job)" }],
    });
    Ok(json!([
        by_label("all-hints", &json!({ "hints": all, "idleDebounce": "1s" })),
        by_label("patient", &json!({ "idleDebounce": "4s" })),
        by_label("on-completion", &json!({ "hints": { "clusterAutoscaler": "OnCompletion" } })),
        by_label("soon-too-long", &json!({ "maxBusy": "8s" })),
        late,
        like_arc("allow", &json!({ "eviction": { "idle": "Allow" } }))?,
        like_arc("grace", &json!({ "startupGrace": "12s", "eviction": { "idle": "Allow" } }))?,
    ]))
}

/// A rule whose pods say by a label what they do.
fn by_label(name: &str, more: &Value) -> Value {
    let doing = |value: &str| format!("has(pod.metadata.labels.{DOING}) && pod.metadata.labels.{DOING} == '{value}'");
    let mut rule = json!({
        "name": name,
        "podSelector": { "matchLabels": { RULE: name } },
        "states": [
            { "state": "Done", "when": doing("ending") },
            { "state": "Busy", "when": doing("working") },
            { "state": "Starting", "when": doing("starting") },
            // No number: an expression that fails, as one does that reads what is not there.
            { "state": "Busy", "when": format!("{} && int(pod.metadata.labels.{DOING}) > 0", doing("broken")) },
        ],
    });
    merge(&mut rule, more);
    rule
}

/// The preset's rule for runners, for those that have one label more, and with other settings.
fn like_arc(name: &str, more: &Value) -> anyhow::Result<Value> {
    let mut rule = preset("arc")?.swap_remove(0);
    let with = json!({
        "name": format!("arc-{name}"), "startupGrace": "0s", "podSelector": { "matchLabels": { RULE: name } },
    });
    merge(&mut rule, &with);
    merge(&mut rule, more);
    Ok(rule)
}

/// The rules of a preset, as they are in the chart.
pub(crate) fn preset(name: &str) -> anyhow::Result<Vec<Value>> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = own.join("../charts/belay/files/presets").join(format!("{name}.yaml"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{} holds no rules", path.display()))
}

/// A template for runners that one of the rules above governs.
pub(crate) fn governed_by(rule: &str) -> Value {
    json!({ "metadata": { "labels": { RULE: rule } } })
}

/// Creates a pod that says by a label what it does; the answer is what the API server made of it.
pub(crate) async fn worker(ns: &Namespace, name: &str, rule: &str, doing: &str) -> anyhow::Result<PodInfo> {
    let labels = json!({ RULE: rule, DOING: doing });
    ns.pod(json!({ "metadata": { "name": name, "labels": labels }, "spec": { "restartPolicy": "Never" } })).await
}

/// Lets a pod say that it does something else.
pub(crate) async fn does(ns: &Namespace, pod: &str, doing: &str) -> anyhow::Result<()> {
    patch_metadata(ns, pod, json!({ "labels": { DOING: doing } })).await
}

/// Changes a pod's labels or annotations as somebody who is not Belay.
pub(crate) async fn patch_metadata(ns: &Namespace, pod: &str, metadata: Value) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    ns.api::<Pod>().patch(pod, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// What others read of a pod, whoever wrote it.
pub(crate) fn marks(pod: &PodInfo) -> Marks {
    KEYS.iter().filter_map(|key| Some((*key, mark(pod, key)?))).collect()
}

/// One of a pod's labels or annotations.
pub(crate) fn mark(pod: &PodInfo, key: &str) -> Option<String> {
    let metadata = &pod.pod.metadata;
    match key.strip_prefix("label:") {
        Some(label) => metadata.labels.as_ref()?.get(label).cloned(),
        None => metadata.annotations.as_ref()?.get(key).cloned(),
    }
}

/// What Belay says that it wrote on a pod.
pub(crate) fn record(pod: &PodInfo) -> anyhow::Result<BTreeMap<String, Option<String>>> {
    let Some(text) = mark(pod, RECORD) else { return Ok(BTreeMap::new()) };
    serde_json::from_str(&text).with_context(|| format!("the record is {text:?}"))
}

/// The pod bears exactly these marks of Belay's, all recorded as they are, and these of somebody else's, of which
/// none is.
pub(crate) fn ensure_told(pod: &PodInfo, ours: &[(&str, &str)], theirs: &[(&str, &str)]) -> anyhow::Result<()> {
    let (present, record) = (marks(pod), record(pod)?);
    let recorded: BTreeMap<String, Option<String>> = present
        .iter()
        .filter(|(key, _)| !theirs.iter().any(|(other, _)| other == *key))
        .map(|(key, value)| ((*key).to_owned(), Some(value.clone())))
        .collect();
    let mut shown = present;
    if let Some(since) = shown.get_mut(SINCE) {
        let time: Timestamp = since.parse().with_context(|| format!("{SINCE} is {since:?}"))?;
        ensure!(time <= clock::now(), "{SINCE} is {since}, which is to come");
        SOMETIME.clone_into(since);
    }
    let expected: BTreeMap<&str, String> =
        ours.iter().chain(theirs).map(|(key, value)| (*key, (*value).to_owned())).collect();
    ensure!(shown == expected, "{} bears {shown:?}, not {expected:?}", pod.name);
    ensure!(record == recorded, "{} has the record {record:?}, not {recorded:?}", pod.name);
    Ok(())
}

/// Waits until a pod is told just so.
pub(crate) async fn told(
    ns: &Namespace,
    pod: &str,
    ours: &[(&str, &str)],
    theirs: &[(&str, &str)],
) -> anyhow::Result<PodInfo> {
    ns.eventually(&format!("{pod} is told {ours:?}"), SOON, async || {
        let info = ns.pod_info(pod).await?;
        ensure_told(&info, ours, theirs)?;
        Ok(info)
    })
    .await
}

/// The names of the pods that Belay's programs changed, one for each write, in the order of the writes. Nothing else
/// was tried.
pub(crate) fn written(ns: &Namespace) -> anyhow::Result<Vec<String>> {
    for write in ns.pod_writes()?.iter().filter(|write| write.code >= 300) {
        // Somebody else was faster, such as a kubelet: looked at again then.
        ensure!(matches!(write.code, 404 | 409), "{write:?}");
    }
    succeeded(ns)
}

/// As [`written`], whatever else was tried: an API server that has just started knows no roles yet, and refuses.
pub(crate) fn succeeded(ns: &Namespace) -> anyhow::Result<Vec<String>> {
    let writes = ns.pod_writes()?.into_iter().filter(|write| write.code < 300 && !write.dry_run);
    Ok(writes.map(|write| write.name).collect())
}

/// A refused eviction.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The word for the reason.
    pub(crate) cause: String,
    /// What a drainer says.
    pub(crate) message: String,
}

/// Asks for the eviction of a pod, as a client that neither cordons nor retries; nothing where it passed. Only who is told
/// that a replica has not yet seen the pod as it is asks again: that is about the replica's watch, and not an answer.
pub(crate) async fn refusal(ns: &Namespace, pod: &str) -> anyhow::Result<Option<Refusal>> {
    ns.eventually("the replicas see the pod as it is", SOON, async || {
        let refusal = match ns.api::<Pod>().evict(pod, &EvictParams::default()).await {
            Ok(_) => return Ok(Ok(None)),
            Err(kube::Error::Api(status)) if status.code == 429 => {
                let cause = status.details.as_ref().and_then(|details| details.causes.first());
                let cause = cause.map(|cause| cause.reason.clone()).unwrap_or_default();
                Refusal { cause, message: status.message.clone() }
            }
            Err(error) => return Ok(Err(error.into())),
        };
        ensure!(refusal.cause != "NotSeenYet", "{refusal:?}");
        Ok(Ok(Some(refusal)))
    })
    .await?
}

/// Asks for the eviction of a pod that is to be held for this reason.
pub(crate) async fn held_as(ns: &Namespace, pod: &str, cause: &str) -> anyhow::Result<Refusal> {
    match refusal(ns, pod).await? {
        Some(refusal) if refusal.cause == cause => Ok(refusal),
        other => bail!("the eviction of {pod} is not held as {cause}: {other:?}"),
    }
}
