//! Switched off or uninstalled: what Belay wrote goes with it, and nothing else does.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use belay_e2e::arc::{Listener, Player};
use belay_e2e::world::{Belay, Namespace, PodInfo};
use serde_json::json;

use crate::busy_support::{
    BUSY, IDLE, KARPENTER, NOTHING, RECORD, SAFE, WORKING, ensure_told, mark, patch_metadata, record, told, values,
    worker, written,
};
use crate::stage::{PATIENCE, lifecycle, off};

/// Labels and annotations, those of labels with `label:` before.
type Metadata = BTreeMap<String, String>;

#[test]
fn switching_the_hints_off_removes_what_belay_wrote_and_nothing_of_anybody_elses() {
    let values = values().unwrap();
    lifecycle("off", &values, async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns).await?;
        let left = scene.left(ns).await?;
        belay.upgrade(off()).await?;
        scene.is_left_with(ns, &left).await?;
        let quiet = written(ns)?.len();
        scene.lives_on_untold(ns).await?;
        ensure!(written(ns)?.len() == quiet, "written after it was switched off: {:?}", &written(ns)?[quiet..]);
        // And on again, as in any cluster that is at work; what somebody took over stays theirs.
        belay.upgrade(crate::busy_support::values()?).await?;
        for runner in [&scene.busy, &scene.begun] {
            told(ns, runner, WORKING, &[]).await?;
        }
        told(ns, &scene.idle, IDLE, &[]).await?;
        told(ns, &scene.changed, NOTHING, &[(SAFE, "false")]).await?;
        Ok(())
    });
}

#[test]
fn uninstalling_removes_what_belay_wrote_and_nothing_of_anybody_elses() {
    let values = values().unwrap();
    lifecycle("uninstalled", &values, async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns).await?;
        let left = scene.left(ns).await?;
        belay.uninstall().await?;
        scene.is_left_with(ns, &left).await?;
        scene.lives_on_untold(ns).await?;
        let jobs = ns.cluster().kubectl(["--namespace", "belay-system", "get", "jobs,pods", "-o", "name"]).ok().await?;
        ensure!(!jobs.contains("cleanup"), "{jobs}");
        Ok(())
    });
}

/// Runners and pods in every state that there is.
struct Scene<'a> {
    arc: Player<'a>,
    busy: String,
    idle: String,
    /// Idle until Belay is away.
    begun: String,
    changed: String,
}

impl<'a> Scene<'a> {
    async fn set(ns: &'a Namespace) -> anyhow::Result<Self> {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let metadata =
            json!({ "annotations": { "example.com/team": "build" }, "labels": { "example.com/tier": "ci" } });
        let set = arc.set("linux", &json!({ "metadata": metadata })).await?;
        let runners = arc.runners(&set, 4, PATIENCE).await?;
        let [busy, idle, begun, stripped] = <[String; 4]>::try_from(runners).ok().context("not four runners")?;
        for runner in [&busy, &stripped] {
            arc.assign(runner, Listener::New).await?;
            told(ns, runner, WORKING, &[]).await?;
        }
        // Stripped again and again: given up, which is in the record.
        ns.eventually("a hint is given up", PATIENCE, async || {
            let pod = ns.pod_info(&stripped).await?;
            if mark(&pod, KARPENTER).is_some() {
                ns.kubectl(["annotate", "pod", &stripped, &format!("{KARPENTER}-")]).ok().await?;
            }
            ensure!(record(&pod)?.get(KARPENTER) == Some(&None), "{:?}", record(&pod)?);
            Ok(())
        })
        .await?;
        // Changed by somebody: theirs.
        let changed = "changed".to_owned();
        worker(ns, &changed, "all-hints", "nothing").await?;
        patch_metadata(ns, &changed, json!({ "annotations": { SAFE: "false" } })).await?;
        told(ns, &changed, NOTHING, &[(SAFE, "false")]).await?;
        // There before Belay was asked.
        let own = json!({
            "name": "own", "annotations": { SAFE: "true" },
            "labels": { "test.belay.dev/rule": "all-hints", "belay.dev/busy": "no", "doing": "working" },
        });
        ns.pod(json!({ "metadata": own })).await?;
        // Finished with its hints.
        worker(ns, "finished", "patient", "working").await?;
        ns.ready("finished", PATIENCE).await?;
        ns.cluster().finish_pod(ns.name(), "finished", 0)?;
        ns.eventually("a pod has ended", PATIENCE, async || {
            let phase = ns.pod_info("finished").await?.pod.status.and_then(|status| status.phase);
            ensure!(phase.as_deref() == Some("Succeeded"), "it is {phase:?}");
            Ok(())
        })
        .await?;
        Ok(Self { arc, busy, idle, begun, changed })
    }

    /// What every pod is to be left with: all that is on it but what Belay says that it wrote.
    async fn left(&self, ns: &Namespace) -> anyhow::Result<BTreeMap<String, Metadata>> {
        let mut left = BTreeMap::new();
        let mut ours = 0;
        for pod in ns.pods("").await? {
            let mut all = metadata(&pod);
            for (key, value) in record(&pod)? {
                ensure!(value.is_none() || all.get(&key) == value.as_ref(), "{}: {key}", pod.name);
                ours += usize::from(all.remove(&key).is_some());
            }
            all.remove(RECORD);
            left.insert(pod.name, all);
        }
        ensure!(ours >= 15, "only {ours} marks of ours: nothing to see here");
        Ok(left)
    }

    async fn is_left_with(&self, ns: &Namespace, expected: &BTreeMap<String, Metadata>) -> anyhow::Result<()> {
        for pod in ns.pods("").await? {
            let all = metadata(&pod);
            let expected = expected.get(&pod.name).with_context(|| format!("{} is new", pod.name))?;
            ensure!(all == *expected, "{} is left with {all:#?}, not {expected:#?}", pod.name);
        }
        ensure!(mark(&ns.pod_info("own").await?, BUSY).as_deref() == Some("no"), "the fixture has lost its point");
        Ok(())
    }

    /// Jobs and runners come and go, and nobody tells of them or holds them.
    async fn lives_on_untold(&self, ns: &Namespace) -> anyhow::Result<()> {
        self.arc.assign(&self.begun, Listener::New).await?;
        let set = self.arc.set("later", &json!({})).await?;
        let runners = self.arc.runners(&set, 1, PATIENCE).await?;
        for runner in runners.iter().chain([&self.begun]) {
            ensure_told(&ns.pod_info(runner).await?, NOTHING, &[])?;
        }
        let later = runners.first().context("no runner")?;
        self.arc.assign(later, Listener::Old).await?;
        let refused = crate::support::evict(ns, later).await?;
        ensure!(refused.is_none(), "{refused:?}");
        Ok(())
    }
}

fn metadata(pod: &PodInfo) -> Metadata {
    let annotations = pod.pod.metadata.annotations.clone().unwrap_or_default();
    let labels = pod.pod.metadata.labels.clone().unwrap_or_default();
    annotations.into_iter().chain(labels.into_iter().map(|(key, value)| (format!("label:{key}"), value))).collect()
}
