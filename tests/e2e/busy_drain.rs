//! A drain of a node with runners: idle ones leave, busy ones are held, and no job is lost on the way.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use belay_e2e::arc::{Listener, Player};
use belay_e2e::world::{Namespace, PodInfo};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::busy_support::{IDLE, WORKING, ensure_told, governed_by, held_as, refusal, told, worker};
use crate::support::{SOON, events, evict, evict_until_it_passes, hold_in_phase, holds, test_with_belay};

/// Two runners on one node, the second one with a job, and a second node for whatever comes after them.
async fn idle_and_busy(ns: &Namespace, arc: &Player<'_>, template: &Value) -> anyhow::Result<(PodInfo, PodInfo)> {
    ns.nodes(1).await?;
    let set = arc.set("linux", template).await?;
    let names = arc.runners(&set, 2, SOON).await?;
    ns.nodes(1).await?;
    let [idle, busy] = names.as_slice() else { bail!("{names:?}") };
    arc.assign(busy, Listener::New).await?;
    told(ns, busy, WORKING, &[]).await?;
    Ok((ns.pod_info(idle).await?, ns.pod_info(busy).await?))
}

#[test]
fn an_idle_runner_leaves_at_once_and_a_busy_one_when_its_job_has_ended() {
    test_with_belay("drain", async |ns: &Namespace| {
        let arc = Player::start(ns).await?;
        let (idle, busy) = idle_and_busy(ns, &arc, &governed_by("allow")).await?;
        ensure!(idle.node == busy.node, "they are on two nodes");
        let drain = ns.drain(&busy.node, &["--timeout=180s"]).await?;
        drain.line(&format!("belay: holding {}: it is busy", busy.name), SOON).await?;
        drain.line(&format!("pod/{} evicted", idle.name), SOON).await?;
        let hold = hold_in_phase(ns, &busy, "Active").await?;
        ensure!(hold["spec"]["reason"] == "Busy" && hold["status"]["reason"] == "Busy", "{hold}");
        ensure!(hold["spec"]["workload"]["kind"] == "EphemeralRunner", "{hold}");
        ensure!(drain.is_running() && !ns.pod_info(&busy.name).await?.terminating, "the busy runner was evicted");

        arc.complete(&busy.name).await?;
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        let text = exit.text();
        ensure!(text.contains("at the latest") && text.contains("rule arc-allow, states["), "{exit}");
        ensure!(!text.contains(&format!("holding {}", idle.name)), "the idle one was held: {exit}");
        ensure!(arc.lost().is_empty(), "{:?}", arc.lost());
        let hold = hold_in_phase(ns, &busy, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "JobEnded", "{hold}");
        ensure!(holds(ns).await?.len() == 1, "{:#?}", holds(ns).await?);
        let told = events(ns, &busy.name).await?;
        let count = told.iter().filter(|event| event.starts_with("EvictionHeld")).count();
        ensure!(count == 1, "EvictionHeld was told {count} times: {told:#?}");
        Ok(())
    });
}

#[test]
fn an_idle_runner_is_retired_by_its_owner_and_the_drain_ends() {
    test_with_belay("retire", async |ns: &Namespace| {
        let arc = Player::start(ns).await?;
        let (idle, busy) = idle_and_busy(ns, &arc, &json!({})).await?;
        let owner = arc.runner(&idle.name).await?.context("no runner")?;
        let drain = ns.drain(&idle.node, &["--timeout=180s"]).await?;
        drain.line(&format!("belay: holding {}: its owner", idle.name), SOON).await?;
        ns.eventually("the idle runner and its owner are gone", SOON, async || {
            ensure!(arc.runner(&idle.name).await?.is_none(), "its owner is there");
            ensure!(ns.api::<Pod>().get_opt(&idle.name).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        let hold = hold_in_phase(ns, &idle, "Completed").await?;
        ensure!(hold["spec"]["reason"] == "Retire" && hold["status"]["outcome"] == "Retired", "{hold}");
        ensure!(hold["spec"]["workload"]["uid"] == json!(owner.uid()), "{hold}");
        let name = hold["metadata"]["name"].as_str().unwrap_or_default();
        ensure!(name.starts_with(&idle.name) && name.ends_with("-retire"), "{name}");
        ensure!(drain.is_running() && !ns.pod_info(&busy.name).await?.terminating, "the busy runner was evicted");
        ensure!(arc.runner(&busy.name).await?.is_some_and(|runner| runner.metadata.deletion_timestamp.is_none()));
        arc.complete(&busy.name).await?;
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        let told = events(ns, &idle.name).await?;
        let retired = told.iter().filter(|event| event.starts_with("OwnerRetired")).count();
        ensure!(retired == 1, "OwnerRetired was told {retired} times: {told:#?}");
        Ok(())
    });
}

#[test]
fn a_job_that_starts_between_the_drains_list_and_the_eviction_is_not_lost() {
    test_with_belay("race", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let names = arc.runners(&set, 1, SOON).await?;
        let name = names.first().context("no runner")?;
        let runner = ns.pod_info(name).await?;
        // GitHub has started it, and nothing in the cluster says so.
        arc.start_job(name)?;
        ensure_told(&ns.pod_info(name).await?, IDLE, &[])?;
        let drain = ns.drain(&runner.node, &["--timeout=180s"]).await?;
        drain.line(&format!("belay: holding {name}"), SOON).await?;
        ns.eventually("its owner is asked to go", SOON, async || {
            let owner = arc.runner(name).await?.context("the owner is gone, and the job with it")?;
            ensure!(owner.metadata.deletion_timestamp.is_some(), "not yet");
            Ok(())
        })
        .await?;
        // The finalizer says that a job is still running; the drain asks again and again.
        let asked = drain.lines().iter().filter(|line| line.text.contains("belay: holding")).count();
        ns.eventually("the drain asks twice more", SOON, async || {
            let now = drain.lines().iter().filter(|line| line.text.contains("belay: holding")).count();
            ensure!(now >= asked + 2, "{now}");
            Ok(())
        })
        .await?;
        let pod = ns.pod_info(name).await?;
        ensure!(pod.uid == runner.uid && !pod.terminating && arc.lost().is_empty(), "{:?}", arc.lost());
        arc.complete(name).await?;
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        ensure!(arc.lost().is_empty(), "{:?}", arc.lost());
        let hold = hold_in_phase(ns, &runner, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "Retired", "{hold}");
        Ok(())
    });
}

#[test]
fn a_job_that_is_reported_a_moment_before_the_eviction_is_seen_by_a_live_look() {
    test_with_belay("live", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &governed_by("allow")).await?;
        let names = arc.runners(&set, 12, SOON).await?;
        for (name, listener) in names.iter().zip([Listener::Old, Listener::New].into_iter().cycle()) {
            arc.assign(name, listener).await?;
            // Faster than any watch.
            held_as(ns, name, "PodBusy").await?;
        }
        for name in &names {
            told(ns, name, WORKING, &[]).await?;
        }
        ensure!(arc.lost().is_empty(), "{:?}", arc.lost());
        Ok(())
    });
}

#[test]
fn no_job_is_lost_while_a_node_is_drained_and_jobs_are_assigned() {
    /// How long a job takes: some tries of kubectl, which come every 5 s.
    const JOB: Duration = Duration::from_secs(8);
    /// How long the listener takes to report it.
    const LATE: Duration = Duration::from_millis(700);
    /// How far apart they start: spread over the drain's first seconds.
    const EVERY: Duration = Duration::from_millis(150);

    test_with_belay("burst", async |ns: &Namespace| {
        let nodes = ns.nodes(1).await?;
        let node = nodes.first().context("no node")?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let names = arc.runners(&set, 16, SOON).await?;
        let drain = ns.drain(node, &["--timeout=240s"]).await?;
        let jobs = (0_u32..).zip(&names).map(async |(index, name)| {
            tokio::time::sleep(EVERY * index).await;
            // Who is retired by then gets no job, as at GitHub.
            if arc.start_job(name).is_err() {
                return anyhow::Ok(0);
            }
            if index % 3 != 2 {
                tokio::time::sleep(LATE).await;
                arc.report(name, Listener::New).await?;
            }
            tokio::time::sleep(JOB).await;
            arc.complete(name).await.map(|()| 1)
        });
        let ended: usize = futures::future::try_join_all(jobs).await?.into_iter().sum();
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        ensure!(arc.lost().is_empty(), "{ended} jobs ended, lost: {:#?}\n{exit}", arc.lost());
        ensure!(ended > 0 && arc.running().is_empty(), "{ended} jobs ended");
        ensure!(arc.api().list(&kube::api::ListParams::default()).await?.items.is_empty(), "runners are left");
        Ok(())
    });
}

#[test]
fn a_runner_that_has_just_started_is_held_for_its_grace() {
    test_with_belay("grace", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &governed_by("grace")).await?;
        let names = arc.runners(&set, 1, SOON).await?;
        let name = names.first().context("no runner")?;
        let pod = ns.pod_info(name).await?;
        ensure_told(&pod, IDLE, &[])?;
        let refusal = held_as(ns, name, "PodStarting").await?;
        ensure!(refusal.message.contains("startupGrace"), "{refusal:?}");
        evict_until_it_passes(ns, &pod).await
    });
}

#[test]
fn a_dry_run_of_a_drain_says_what_would_happen_and_does_nothing() {
    test_with_belay("dry", async |ns: &Namespace| {
        let arc = Player::start(ns).await?;
        let (idle, busy) = idle_and_busy(ns, &arc, &json!({})).await?;
        let exit = ns.drain(&busy.node, &["--dry-run=server"]).await?.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        for runner in [&idle, &busy] {
            let would = format!("belay: dry run: the eviction of {} would be held", runner.name);
            ensure!(exit.text().contains(&would), "{exit}");
        }
        ensure!(!exit.text().contains("will retry"), "{exit}");
        // The next real one is what the dry runs were not.
        held_as(ns, &busy.name, "PodBusy").await?;
        hold_in_phase(ns, &busy, "Active").await?;
        ensure!(holds(ns).await?.len() == 1, "{:#?}", holds(ns).await?);
        let owner = arc.runner(&idle.name).await?.context("the idle runner was retired")?;
        ensure!(owner.metadata.deletion_timestamp.is_none(), "the idle runner was retired");
        Ok(())
    });
}

#[test]
fn a_pod_that_has_done_its_work_or_works_for_too_long_is_let_go() {
    test_with_belay("let-go", async |ns: &Namespace| {
        ns.nodes(1).await?;
        for (name, rule, doing) in [("done", "patient", "ending"), ("hung", "soon-too-long", "working")] {
            worker(ns, name, rule, doing).await?;
            ns.ready(name, SOON).await?;
        }
        ensure!(evict(ns, "done").await?.is_none(), "the done one is held");
        let hung = ns.pod_info("hung").await?;
        held_as(ns, "hung", "PodBusy").await?;
        evict_until_it_passes(ns, &hung).await?;
        let hold = hold_in_phase(ns, &hung, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "Expired", "{hold}");
        let passed = refusal(ns, "hung").await;
        ensure!(!matches!(passed, Ok(Some(_))), "held again: {passed:?}");
        Ok(())
    });
}
