//! Runners of the Actions Runner Controller: jobs come and go, and the hints follow.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::arc::{Listener, Player, ephemeral_runners};
use belay_e2e::clock;
use belay_e2e::world::Namespace;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::busy_support::{
    IDLE, RULE, WORKING, does, ensure_told, held_as, patch_metadata, refusal, told, worker, written,
};
use crate::support::{SOON, test_with_belay};

#[test]
fn hints_follow_jobs_reported_by_listeners_of_either_generation_with_one_write_a_job() {
    test_with_belay("follow", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let mut jobs = BTreeMap::new();
        for (name, listeners) in [
            ("old", [Listener::Old, Listener::Old]),
            ("new", [Listener::New, Listener::New]),
            // The listener is upgraded meanwhile.
            ("mixed", [Listener::Old, Listener::New]),
        ] {
            let set = arc.set(name, &json!({})).await?;
            let runners = arc.runners(&set, 3, SOON).await?;
            jobs.extend(runners.into_iter().zip(listeners.map(Some).into_iter().chain([None])));
        }
        for runner in jobs.keys() {
            ensure_told(&ns.pod_info(runner).await?, IDLE, &[])?;
        }
        ensure!(written(ns)?.is_empty(), "written to idle runners: {:?}", written(ns)?);
        for (runner, listener) in &jobs {
            if let Some(listener) = listener {
                arc.assign(runner, *listener).await?;
            }
        }
        for (runner, listener) in &jobs {
            told(ns, runner, if listener.is_some() { WORKING } else { IDLE }, &[]).await?;
        }
        let mut written = written(ns)?;
        written.sort();
        let busy: Vec<_> = jobs.iter().filter(|(_, job)| job.is_some()).map(|(runner, _)| runner.clone()).collect();
        ensure!(written == busy, "written {written:?}, busy {busy:?}");

        for runner in &busy {
            arc.complete(runner).await?;
        }
        ns.eventually("the runners with a job are gone", SOON, async || {
            let left = ns.pods("actions-ephemeral-runner=True").await?.len();
            ensure!(left == jobs.len() - busy.len(), "{left} runners are left");
            Ok(())
        })
        .await?;
        ensure!(arc.lost().is_empty(), "{:?}", arc.lost());
        Ok(())
    });
}

#[test]
fn nothing_is_written_to_a_runner_that_never_gets_a_job_whatever_else_changes() {
    test_with_belay("quiet-runners", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let runners = arc.runners(&set, 5, SOON).await?;
        let (marker, quiet) = runners.split_first().context("no runners")?;
        worker(ns, "pauses", "all-hints", "working").await?;
        ns.ready("pauses", SOON).await?;

        for round in 0..10 {
            for runner in quiet {
                // What ARC and others write on runners and pods, but for jobs.
                let status = json!({ "status": { "message": format!("{round}"), "runnerId": 100 + round } });
                arc.api().patch_status(runner, &PatchParams::default(), &Patch::Merge(status)).await?;
                let labels = json!({ "metadata": { "labels": { "example.com/round": format!("{round}") } } });
                arc.api().patch(runner, &PatchParams::default(), &Patch::Merge(labels)).await?;
                patch_metadata(ns, runner, json!({ "annotations": { "example.com/round": format!("{round}") } }))
                    .await?;
            }
        }
        // One that becomes busy at once and one that becomes idle after its debounce: whatever the events above would
        // have led to is written before.
        does(ns, "pauses", "nothing").await?;
        arc.assign(marker, Listener::New).await?;
        told(ns, marker, WORKING, &[]).await?;
        told(ns, "pauses", IDLE, &[]).await?;
        let mut written = written(ns)?;
        written.sort();
        ensure!(written == [marker.as_str(), "pauses"], "written {written:?}");
        Ok(())
    });
}

#[test]
fn a_job_of_a_former_pod_of_the_same_name_is_not_this_pods_job() {
    test_with_belay("former-job", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let names = arc.runners(&set, 1, SOON).await?;
        let name = names.first().context("no runner")?;
        let former = ns.pod_info(name).await?;
        arc.assign(name, Listener::New).await?;
        told(ns, name, WORKING, &[]).await?;
        // Times of writes and creations are whole seconds: within one, nobody could tell which was first.
        let reported = clock::time();
        ns.eventually("the next second", SOON, async || {
            ensure!(clock::time() > reported);
            Ok(())
        })
        .await?;
        ns.api::<Pod>().delete(name, &DeleteParams::default().grace_period(0)).await?;
        ns.eventually("another pod of its name", SOON, async || {
            let pod = ns.pod_info(name).await?;
            ensure!(pod.uid != former.uid && pod.ready, "{} is not Ready", pod.uid);
            ensure_told(&pod, IDLE, &[])
        })
        .await?;
        let runner = arc.runner(name).await?.context("no runner")?;
        ensure!(runner.data["status"]["jobId"].is_string(), "ARC has taken the job back: {}", runner.data["status"]);
        // The live look sees it in the same way: the owner retires it.
        ns.eventually("its owner is to retire it", SOON, async || held_as(ns, name, "OwnerRetiring").await).await?;
        ensure!(written(ns)?.len() == 1, "{:?}", written(ns)?);
        Ok(())
    });
}

#[test]
fn a_workflow_pod_tells_that_its_runner_is_busy_though_no_job_was_reported() {
    test_with_belay("linked", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let names = arc.runners(&set, 2, SOON).await?;
        let [with, without] = names.as_slice() else { anyhow::bail!("{names:?}") };
        // The listener was away when the job started: it is never reported.
        arc.start_job(with)?;
        let linked = arc.workflow_pod(with).await?;
        ensure_told(&linked, WORKING, &[])?;
        told(ns, with, WORKING, &[]).await?;
        ensure_told(&ns.pod_info(without).await?, IDLE, &[])?;
        ns.ready(&linked.name, SOON).await?;
        for pod in [with, &linked.name] {
            held_as(ns, pod, "PodBusy").await?;
        }
        let seen = written(ns)?;
        ensure!(seen == [with.as_str()], "{seen:?}");
        // A workflow pod that has ended speaks for nothing any more.
        ns.cluster().finish_pod(ns.name(), &linked.name, 0)?;
        told(ns, with, IDLE, &[]).await?;
        arc.complete(with).await
    });
}

#[test]
fn a_runner_whose_owner_is_missing_counts_as_busy() {
    test_with_belay("no-owner", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let metadata = json!({ "name": "orphan", "labels": { "actions-ephemeral-runner": "True" } });
        ensure_told(&ns.pod(json!({ "metadata": metadata })).await?, IDLE, &[])?;
        ns.ready("orphan", SOON).await?;
        // Its owner may be on its way still.
        held_as(ns, "orphan", "PodStarting").await?;
        told(ns, "orphan", WORKING, &[]).await?;
        held_as(ns, "orphan", "PodStateUnknown").await?;
        Ok(())
    });
}

#[test]
fn a_kind_that_is_installed_after_belay_is_found_within_a_minute() {
    const WITHIN: Duration = Duration::from_mins(1);
    test_with_belay("late-kind", async |ns: &Namespace| {
        ns.nodes(1).await?;
        worker(ns, "early", "late", "").await?;
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "workers.late.example.com" },
            "spec": {
                "group": "late.example.com", "scope": "Namespaced",
                "names": { "kind": "Worker", "plural": "workers", "singular": "worker", "listKind": "WorkerList" },
                "versions": [{ "name": "v1beta7", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
            },
        });
        ns.cluster().crds(&crd.to_string()).await?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("late.example.com", "v1beta7", "Worker"));
        let workers: Api<DynamicObject> = ns.custom(&resource);
        let mut object = DynamicObject::new("late", &resource);
        object.data = json!({ "status": { "job": "one" } });
        let uid = workers.create(&PostParams::default(), &object).await?.uid().context("no UID")?;
        let owner = json!({
            "apiVersion": resource.api_version, "kind": "Worker", "name": "late", "uid": uid, "controller": true,
        });
        ns.pod(json!({ "metadata": { "name": "late", "labels": { RULE: "late" }, "ownerReferences": [owner] } }))
            .await?;
        ns.eventually("the kind is found", WITHIN, async || {
            ensure_told(&ns.pod_info("late").await?, WORKING, &[])?;
            // Not for want of an owner.
            let refusal = refusal(ns, "late").await?.context("the eviction passed")?;
            ensure!(refusal.cause == "PodBusy", "{refusal:?}");
            Ok(())
        })
        .await?;
        workers.patch("late", &PatchParams::default(), &Patch::Merge(json!({ "status": { "job": null } }))).await?;
        told(ns, "late", IDLE, &[]).await?;
        Ok(())
    });
}

#[test]
fn a_runner_that_is_told_to_go_by_somebody_else_keeps_its_job() {
    test_with_belay("scaled-down", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let names = arc.runners(&set, 1, SOON).await?;
        let name = names.first().context("no runner")?;
        arc.assign(name, Listener::Old).await?;
        told(ns, name, WORKING, &[]).await?;
        ns.custom(&ephemeral_runners()).delete(name, &DeleteParams::default()).await?;
        // GitHub refuses, and the pod works on; so its eviction is refused, too.
        let refusal = refusal(ns, name).await?.context("the eviction passed")?;
        ensure!(["PodBusy", "OwnerRetiring"].contains(&refusal.cause.as_str()), "{refusal:?}");
        ensure_told(&ns.pod_info(name).await?, WORKING, &[])?;
        arc.complete(name).await?;
        ensure!(arc.lost().is_empty(), "{:?}", arc.lost());
        Ok(())
    });
}
