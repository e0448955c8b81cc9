//! Pods that come to an end: by themselves, and as hooks that Helm waits for.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::node_agent::Program;
use belay_e2e::programs::which;
use belay_e2e::tools::Exit;
use belay_e2e::world::{self, Namespace};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_played_pod_ends_with_the_code_that_it_is_told_and_may_do_so_container_by_container() {
    world::test("ends", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let containers = json!([{ "name": "job", "image": "belay.dev/idle" }, { "name": "log", "image": "other" }]);
        for (pod, exit_code, phase) in [("good", 0, "Succeeded"), ("bad", 3, "Failed")] {
            let spec = json!({ "restartPolicy": "Never", "containers": containers });
            ns.pod(json!({ "metadata": { "name": pod }, "spec": spec })).await?;
            ns.ready(pod, SOON).await?;
            ns.cluster().node_agent().finish(ns.name(), pod, Some("job"), exit_code)?;
            ns.eventually("one container to have ended", SOON, async || {
                let codes = exit_codes(&ns.pod_info(pod).await?.pod);
                ensure!(codes == [Some(exit_code), None], "{codes:?}");
                Ok(())
            })
            .await?;
            ensure!(phase_of(ns, pod).await? == "Running", "the other one runs");
            ns.cluster().finish_pod(ns.name(), pod, 0)?;
            ns.eventually("the pod to have ended", SOON, async || {
                let now = phase_of(ns, pod).await?;
                ensure!(now == phase, "it is {now}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    });
}

#[test]
fn a_container_that_is_restarted_after_its_end_runs_on() {
    world::test("runs-on", async |ns: &Namespace| {
        ns.nodes(1).await?;
        ns.pod(json!({ "metadata": { "name": "worker" } })).await?;
        ns.ready("worker", SOON).await?;
        ns.cluster().finish_pod(ns.name(), "worker", 0)?;
        ns.eventually("one restart", SOON, async || {
            let info = ns.pod_info("worker").await?;
            let restarts = info.restarts();
            ensure!(restarts == 1 && info.ready, "{restarts} restarts, ready: {}", info.ready);
            Ok(())
        })
        .await?;
        ns.throughout("it runs on", Duration::from_secs(2), async || {
            let info = ns.pod_info("worker").await?;
            ensure!(info.restarts() == 1 && info.ready, "{:?}", info.pod.status);
            Ok(())
        })
        .await
    });
}

fn exit_codes(pod: &Pod) -> Vec<Option<i32>> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)).collect()
}

async fn phase_of(ns: &Namespace, pod: &str) -> anyhow::Result<String> {
    Ok(ns.pod_info(pod).await?.pod.status.and_then(|status| status.phase).unwrap_or_default())
}

#[test]
fn helm_waits_for_the_end_of_a_hooks_program_and_fails_with_it() {
    world::test("hooks", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let program = Program { path: which("sh").context("no sh")?, environment: Vec::new() };
        ns.cluster().node_agent().play("hook", program);
        let install = helm(ns, "good", "echo the hook has run; sleep 1", &["install"]).await?;
        ensure!(install.success(), "{install}");
        let uninstall = helm(ns, "good", "", &["uninstall"]).await?;
        ensure!(uninstall.success(), "{uninstall}");
        ensure!(uninstall.took >= Duration::from_secs(1), "it did not wait: {uninstall}");
        let pods = ns.pods("job-name=hook").await?;
        let pod = pods.first().context("the hook ran no pod")?;
        ensure!(ns.cluster().pod_log(ns.name(), &pod.name)?.contains("the hook has run"));
        ensure!(phase_of(ns, &pod.name).await? == "Succeeded");
        ns.kubectl(["delete", "job", "hook"]).ok().await?;

        let install = helm(ns, "bad", "echo the hook has failed; exit 3", &["install"]).await?;
        ensure!(install.success(), "{install}");
        let uninstall = helm(ns, "bad", "", &["uninstall"]).await?;
        ensure!(!uninstall.success() && uninstall.text().contains("hook"), "{uninstall}");
        let job = ns.get("job", "hook").await?;
        ensure!(job["status"]["failed"] == 1, "{}", job["status"]);
        Ok(())
    });
}

/// Runs Helm on a chart of one Job, which is a hook before the uninstallation and runs this script.
async fn helm(ns: &Namespace, release: &str, script: &str, verb: &[&str]) -> anyhow::Result<Exit> {
    let mut args = [verb, &[release, "--namespace", ns.name(), "--wait", "--timeout=60s"]].concat();
    let chart;
    if verb == ["install"] {
        chart = chart_of_one_hook(ns, script)?;
        args.insert(2, chart.to_str().context("the path is not UTF-8")?);
    }
    ns.cluster().helm(args).output().await
}

fn chart_of_one_hook(ns: &Namespace, script: &str) -> anyhow::Result<PathBuf> {
    let mut pod: Value = json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "hook", "image": "belay.dev/hook", "args": ["-c", script] }],
    });
    let mut spec = serde_json::from_value(pod)?;
    ns.pin(&mut spec);
    pod = serde_json::to_value(spec)?;
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": "hook", "annotations": { "helm.sh/hook": "pre-delete" } },
        "spec": { "backoffLimit": 0, "template": { "spec": pod } },
    });
    let folder = ns.cluster().control_plane().folder().join("charts").join(ns.name());
    std::fs::create_dir_all(folder.join("templates"))?;
    std::fs::write(folder.join("Chart.yaml"), "apiVersion: v2\nname: hook\nversion: 0.1.0\n")?;
    std::fs::write(folder.join("templates/job.yaml"), job.to_string())?;
    Ok(folder)
}
