//! `belay explain pod`, run against the cluster as a person would, for people and for programs.

use anyhow::{Context as _, bail, ensure};
use belay_e2e::arc::{Listener, Player};
use belay_e2e::world::Namespace;
use serde_json::{Value, json};

use crate::busy_support::{
    BUSY, DESCHEDULER, IDLE, KARPENTER, SAFE, SINCE, WORKING, does, governed_by, held_as, patch_metadata, told, worker,
};
use crate::support::{SOON, events, hold_in_phase, test_with_belay};

#[test]
fn a_busy_and_an_idle_runner_are_explained_with_the_expression_that_decided_and_what_each_remover_does() {
    test_with_belay("explain", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &governed_by("allow")).await?;
        let runners = arc.runners(&set, 2, SOON).await?;
        let [busy, idle] = runners.as_slice() else { bail!("{runners:?}") };
        arc.assign(busy, Listener::Old).await?;
        told(ns, busy, WORKING, &[]).await?;
        held_as(ns, busy, "PodBusy").await?;
        hold_in_phase(ns, &ns.pod_info(busy).await?, "Active").await?;

        let report = explained(ns, busy).await?;
        let state = &report["state"];
        ensure!(state["state"] == "Busy" && state["rule"] == "arc-allow", "{state}");
        ensure!(state["expression"].as_str().is_some_and(|text| text.contains("jobRequestId")), "{state}");
        ensure!(state["owner"].as_str().is_some_and(|owner| owner.contains(busy.as_str())), "{state}");
        for key in [SAFE, KARPENTER, DESCHEDULER, BUSY, SINCE] {
            let hint = hint(&report, key)?;
            ensure!(hint["owner"] == "Belay" && hint["aboutToBe"].is_null(), "{hint}");
        }
        ensure!(hint(&report, SAFE)?["value"] == "false", "{report:#}");
        ensure!(report["eviction"]["held"] == true && report["eviction"]["reason"] == "PodBusy", "{report:#}");
        let holds = report["holds"].as_array().context("no holds")?;
        ensure!(holds.len() == 1 && holds[0]["reason"] == "Busy" && holds[0]["evictor"] == "belay-admin", "{holds:#?}");
        outlook(&report, "Cluster Autoscaler", "Stays", SAFE.rsplit('/').next().unwrap_or_default())?;
        outlook(&report, "Karpenter", "Stays", "do-not-disrupt")?;
        outlook(&report, "kubectl drain", "Waits", "")?;
        ensure!(report["unread"].is_null(), "{report:#}");
        let text = for_people(ns, busy).await?;
        for words in [
            "State: Busy (rule arc-allow)",
            "is true",
            "jobRequestId",
            "Eviction now: held (PodBusy)",
            "at the latest",
            "EvictionHold",
            "annotation karpenter.sh/do-not-disrupt",
            "label belay.dev/busy",
            "Belay",
            "Cluster Autoscaler",
            "kubectl drain",
        ] {
            ensure!(text.contains(words), "no {words:?} in\n{text}");
        }

        told(ns, idle, IDLE, &[]).await?;
        let report = explained(ns, idle).await?;
        ensure!(report["state"]["state"] == "Idle" && report["state"]["expression"].is_null(), "{report:#}");
        ensure!(report["eviction"]["held"] == false && report["eviction"]["reason"] == "Idle", "{report:#}");
        ensure!(report["hints"].as_array().is_some_and(|hints| hints.len() == 1), "{report:#}");
        ensure!(report["holds"] == json!([]), "{report:#}");
        outlook(&report, "Cluster Autoscaler", "Goes", "safe-to-evict")?;
        outlook(&report, "kubectl drain", "Goes", "")?;
        let text = for_people(ns, idle).await?;
        ensure!(text.contains("State: Idle") && text.contains("no state is true"), "{text}");
        ensure!(text.contains("Eviction now: passes (Idle)"), "{text}");
        Ok(())
    });
}

#[test]
fn a_value_of_somebody_elses_is_explained_as_theirs_and_one_that_was_given_up_too() {
    test_with_belay("explain-foreign", async |ns: &Namespace| {
        ns.nodes(1).await?;
        worker(ns, "worker", "patient", "working").await?;
        patch_metadata(ns, "worker", json!({ "annotations": { SAFE: "true" } })).await?;
        ns.eventually("the value is given up", SOON, async || {
            let told = events(ns, "worker").await?;
            ensure!(told.iter().any(|event| event.starts_with("HintConflict")), "{told:#?}");
            Ok(())
        })
        .await?;
        let report = explained(ns, "worker").await?;
        ensure!(hint(&report, SAFE)?["owner"] == "Other" && hint(&report, SAFE)?["value"] == "true", "{report:#}");
        ensure!(hint(&report, KARPENTER)?["owner"] == "Belay", "{report:#}");
        // What Cluster Autoscaler reads is what stands there, whoever wrote it; its drain is held all the same.
        outlook(&report, "Cluster Autoscaler", "Waits", "safe-to-evict")?;
        let text = for_people(ns, "worker").await?;
        let line = text.lines().find(|line| line.contains(SAFE)).context("no such line")?;
        ensure!(line.ends_with("Other"), "{line}");
        does(ns, "worker", "ending").await?;
        Ok(())
    });
}

#[test]
fn a_pod_of_no_rule_is_explained_and_one_that_is_not_there_is_an_error() {
    test_with_belay("explain-other", async |ns: &Namespace| {
        ns.nodes(1).await?;
        ns.pod(json!({ "metadata": { "name": "other" } })).await?;
        ns.ready("other", SOON).await?;
        let report = explained(ns, "other").await?;
        ensure!(report["state"].is_null() && report["hints"] == json!([]), "{report:#}");
        ensure!(report["eviction"]["held"] == false, "{report:#}");
        ensure!(for_people(ns, "other").await?.contains("no busy rule selects it"));
        let exit = ns.cluster().belay().await?.run(["explain", "pod", &format!("{}/nobody", ns.name())]).await?;
        let exit = exit.output().await?;
        ensure!(exit.code == Some(1) && exit.text().contains("nobody"), "{exit}");
        Ok(())
    });
}

/// `belay explain pod NS/POD -o json`.
async fn explained(ns: &Namespace, pod: &str) -> anyhow::Result<Value> {
    let tool = ns.cluster().belay().await?;
    let text = tool.run(["explain", "pod", &format!("{}/{pod}", ns.name()), "-o", "json"]).await?.ok().await?;
    serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
}

/// `belay explain pod POD -n NS`.
async fn for_people(ns: &Namespace, pod: &str) -> anyhow::Result<String> {
    ns.cluster().belay().await?.run(["explain", "pod", pod, "-n", ns.name()]).await?.ok().await
}

/// What a report says of a key.
fn hint<'a>(report: &'a Value, key: &str) -> anyhow::Result<&'a Value> {
    let (kind, name) = match key.strip_prefix("label:") {
        Some(label) => ("label", label),
        None => ("annotation", key),
    };
    let hints = report["hints"].as_array().context("no hints")?;
    let found = hints.iter().find(|hint| hint["kind"] == kind && hint["key"] == name);
    found.with_context(|| format!("nothing is said of {key}: {hints:#?}"))
}

/// A remover would do that with the pod, for a reason with these words.
fn outlook(report: &Value, remover: &str, verdict: &str, because: &str) -> anyhow::Result<()> {
    let all = report["removers"].as_array().context("no removers")?;
    let one = all.iter().find(|one| one["remover"] == remover).with_context(|| format!("no {remover}: {all:#?}"))?;
    ensure!(one["verdict"] == verdict, "{one:#}");
    ensure!(one["because"].as_str().is_some_and(|why| why.contains(because)), "{one:#}");
    Ok(())
}
