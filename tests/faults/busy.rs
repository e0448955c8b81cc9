//! The busy hints end true, whatever dies while they are written.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::arc::{Listener, Player};
use belay_e2e::world::{Belay, Namespace};
use serde_json::json;

use crate::api_server::{die, rise};
use crate::busy_support::{IDLE, WORKING, ensure_told, held_as, marks, succeeded, written};
use crate::stage::{PATIENCE, fault, finally, scale};
use crate::support::SOON;
use crate::webhook::kill_and_await;

#[test]
fn a_leader_that_is_killed_while_it_annotates_a_hundred_pods_leaves_none_out_and_none_is_written_twice() {
    fault("busy-leader", async |ns: &Namespace, belay: &Belay| {
        ns.nodes(2).await?;
        let arc = Player::start(ns).await?;
        // Nobody is there while the runners are made and get their jobs.
        let away = async {
            scale(ns, belay, "webhook", 0).await?;
            scale(ns, belay, "controller", 0).await?;
            let set = arc.set("linux", &json!({})).await?;
            let runners = arc.runners(&set, 100, PATIENCE).await?;
            for runner in runners.iter().step_by(2) {
                arc.assign(runner, Listener::New).await?;
            }
            Ok(runners)
        };
        let back = async {
            scale(ns, belay, "controller", 2).await?;
            scale(ns, belay, "webhook", 2).await
        };
        let runners = finally(away, back).await?;
        ns.eventually("some are annotated", PATIENCE, async || {
            let count = written(ns)?.len();
            ensure!(count > 0, "none is");
            Ok(())
        })
        .await?;
        let leader = belay.leader().await?;
        let before = written(ns)?.len();
        belay.kill(&leader)?;
        ensure!(before < runners.len(), "all {before} were annotated before the leader was killed");
        let jobs: Vec<_> = runners.iter().enumerate().map(|(index, name)| (name.as_str(), index % 2 == 0)).collect();
        all_told(ns, &jobs).await?;
        once_each(ns, &jobs)
    });
}

#[test]
fn hints_are_true_after_an_outage_of_the_api_server() {
    fault("busy-api", async |ns: &Namespace, _: &Belay| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let runners = arc.runners(&set, 12, SOON).await?;
        let (before, rest) = runners.split_at(4);
        let (after, never) = rest.split_at(4);
        for runner in before {
            arc.assign(runner, Listener::Old).await?;
        }
        // With their hints written, being written, or not: it is gone at once.
        die(ns).await?;
        rise(ns).await?;
        for runner in after {
            let assigned = ns.eventually("the API server answers", PATIENCE, async || {
                if arc.running().iter().all(|running| running != runner) {
                    arc.start_job(runner)?;
                }
                arc.report(runner, Listener::New).await
            });
            assigned.await?;
        }
        let busy = before.iter().chain(after).map(|name| (name.as_str(), true));
        let jobs: Vec<_> = busy.chain(never.iter().map(|name| (name.as_str(), false))).collect();
        all_told(ns, &jobs).await?;
        // A job of whose hint nobody could tell before is seen at its eviction, too.
        for runner in after {
            held_as(ns, runner, "PodBusy").await?;
        }
        let mut counts = BTreeMap::new();
        succeeded(ns)?.into_iter().for_each(|name| *counts.entry(name).or_insert(0) += 1);
        // A write that was under way when the server died may not be in its log.
        ensure!(counts.values().all(|count| *count == 1), "written more than once: {counts:?}");
        ensure!(never.iter().all(|name| !counts.contains_key(name)), "idle ones were written to: {counts:?}");
        ensure!(arc.lost().is_empty(), "{:?}", arc.lost());
        Ok(())
    });
}

#[test]
fn pods_that_are_created_while_a_webhook_replica_dies_are_told_by_the_controller_or_in_their_create() {
    fault("busy-webhook", async |ns: &Namespace, belay: &Belay| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let replicas = belay.webhook_pods().await?;
        let dying = replicas.first().context("no webhook replica")?;
        let (made, killed) = tokio::join!(arc.runners(&set, 40, PATIENCE), kill_and_await(ns, belay, dying));
        let (runners, ()) = (made?, killed?);
        for runner in runners.iter().step_by(4) {
            arc.assign(runner, Listener::New).await?;
        }
        let jobs: Vec<_> = runners.iter().enumerate().map(|(index, name)| (name.as_str(), index % 4 == 0)).collect();
        all_told(ns, &jobs).await?;
        let late = written(ns)?.len() - runners.iter().step_by(4).count();
        eprintln!("{late} of {} runners were told after their create", runners.len());
        Ok(())
    });
}

#[test]
fn a_busy_pod_is_held_while_no_controller_runs_and_told_once_one_does() {
    fault("busy-alone", async |ns: &Namespace, belay: &Belay| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({})).await?;
        let runners = arc.runners(&set, 1, SOON).await?;
        let runner = runners.first().context("no runner")?;
        let body = async {
            scale(ns, belay, "controller", 0).await?;
            arc.assign(runner, Listener::New).await?;
            held_as(ns, runner, "PodBusy").await?;
            ns.throughout("it is held, and told by nobody", Duration::from_secs(5), async || {
                held_as(ns, runner, "PodBusy").await?;
                ensure_told(&ns.pod_info(runner).await?, IDLE, &[])
            })
            .await
        };
        finally(body, scale(ns, belay, "controller", 2)).await?;
        let jobs = [(runner.as_str(), true)];
        all_told(ns, &jobs).await?;
        once_each(ns, &jobs)
    });
}

/// Waits until every pod is told as what it is.
async fn all_told(ns: &Namespace, jobs: &[(&str, bool)]) -> anyhow::Result<()> {
    ns.eventually("every pod is told as what it is", PATIENCE, async || {
        let pods = ns.pods("actions-ephemeral-runner=True").await?;
        for (name, busy) in jobs {
            let pod = pods.iter().find(|pod| pod.name == *name).with_context(|| format!("{name} is gone"))?;
            ensure_told(pod, if *busy { WORKING } else { IDLE }, &[])
                .with_context(|| format!("{} of {} bear something", count(&pods), jobs.len()))?;
        }
        Ok(())
    })
    .await
}

fn count(pods: &[belay_e2e::world::PodInfo]) -> usize {
    pods.iter().filter(|pod| !marks(pod).is_empty()).count()
}

/// Each of these pods was written to once.
fn once_each(ns: &Namespace, jobs: &[(&str, bool)]) -> anyhow::Result<()> {
    let (mut written, mut names) = (written(ns)?, jobs.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    written.sort();
    names.sort_unstable();
    ensure!(written == names, "{} writes for {} pods: {written:?}", written.len(), names.len());
    Ok(())
}
