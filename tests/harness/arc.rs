//! The played Actions Runner Controller: what tests of runners take for granted.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::arc::{Listener, Player, RUNNER_LABEL};
use belay_e2e::world::{self, Namespace};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_runner_has_the_pod_of_its_name_and_goes_with_its_job() {
    world::test("job", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let template = json!({ "metadata": { "annotations": { "example.com/of": "the template" } } });
        let set = arc.set("linux", &template).await?;
        let names = arc.runners(&set, 1, SOON).await?;
        let name = names.first().context("no runner")?;
        let info = ns.pod_info(name).await?;
        let labels = info.pod.metadata.labels.clone().unwrap_or_default();
        ensure!(labels.get(RUNNER_LABEL).is_some_and(|value| value == "True"), "{labels:?}");
        ensure!(labels.get("actions.github.com/scale-set-name").is_some_and(|value| value == "linux"), "{labels:?}");
        let annotations = info.pod.metadata.annotations.clone().unwrap_or_default();
        ensure!(annotations.get("example.com/of").is_some_and(|value| value == "the template"), "{annotations:?}");
        let runner = arc.runner(name).await?.context("no runner")?;
        let owner = info.pod.metadata.owner_references.iter().flatten().next().context("no owner")?;
        ensure!(Some(&owner.uid) == runner.metadata.uid.as_ref() && owner.controller == Some(true), "{owner:?}");
        ensure!(runner.data["status"]["phase"] == "Running" && runner.data["status"]["runnerId"] == 1);

        for (listener, reported) in [(Listener::Old, false), (Listener::New, true)] {
            if listener == Listener::Old {
                arc.start_job(name)?;
            }
            arc.report(name, listener).await?;
            let status = arc.runner(name).await?.context("no runner")?.data["status"].clone();
            ensure!(status["jobRequestId"] == 1001 && status["jobId"].is_string() == reported, "{status}");
        }
        arc.complete(name).await?;
        ns.eventually("runner and pod to be gone", SOON, async || {
            ensure!(arc.runner(name).await?.is_none(), "the runner is there");
            ensure!(ns.api::<Pod>().get_opt(name).await?.is_none(), "the pod is there");
            Ok(())
        })
        .await?;
        ensure!(arc.lost().is_empty() && arc.running().is_empty());
        Ok(())
    });
}

#[test]
fn a_deleted_runner_goes_at_once_when_it_is_idle_and_only_after_its_job_when_it_is_busy() {
    world::test("deleted", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let names = arc.runners(&set, 2, SOON).await?;
        let [idle, busy] = names.as_slice() else { anyhow::bail!("{names:?}") };
        // Nothing in the cluster tells of this job.
        arc.start_job(busy)?;
        for name in [idle, busy] {
            arc.api().delete(name, &DeleteParams::default()).await?;
        }
        let gone = async |name: &str| {
            ensure!(ns.api::<Pod>().get_opt(name).await?.is_none(), "its pod is there");
            ensure!(arc.runner(name).await?.is_none(), "it is there");
            anyhow::Ok(())
        };
        ns.eventually("the idle runner to be gone", SOON, async || gone(idle).await).await?;
        ensure!(arc.start_job(idle).is_err(), "a runner that is gone got a job");
        ns.throughout("the busy runner works on", Duration::from_secs(2), async || {
            ensure!(!ns.pod_info(busy).await?.terminating, "its pod was asked to go");
            Ok(())
        })
        .await?;
        arc.complete(busy).await?;
        ns.eventually("the busy runner to be gone", SOON, async || gone(busy).await).await?;
        ensure!(arc.lost().is_empty(), "{:?}", arc.lost());
        Ok(())
    });
}

#[test]
fn an_evicted_runner_loses_its_job_and_gets_another_pod_of_its_name() {
    world::test("evicted", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({ "spec": { "terminationGracePeriodSeconds": 1 } })).await?;
        let names = arc.runners(&set, 1, SOON).await?;
        let name = names.first().context("no runner")?;
        let before = ns.pod_info(name).await?;
        arc.assign(name, Listener::New).await?;
        ns.api::<Pod>().evict(name, &EvictParams::default()).await?;
        ns.eventually("another pod of its name", SOON, async || {
            let now = ns.pod_info(name).await?;
            ensure!(now.uid != before.uid && now.ready, "{} is not Ready", now.uid);
            Ok(())
        })
        .await?;
        ensure!(arc.lost().len() == 1, "{:?}", arc.lost());
        let status = arc.runner(name).await?.context("no runner")?.data["status"].clone();
        ensure!(status["jobId"].is_string(), "the status still tells of the former pod's job: {status}");
        Ok(())
    });
}
