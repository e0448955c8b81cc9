//! The leading controller dies, or sleeps through its lead.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::world::{Belay, Namespace, Paused, PodInfo};
use serde_json::Value;

use crate::stage::{PATIENCE, Right, Scene, fault, finally, metric, scale};
use crate::support::{SOON, events, hold_in_phase};

#[test]
fn the_standby_ends_the_handover_of_a_leader_whose_machine_is_lost() {
    fault("leader-lost", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(5), "").await?;
        let drain = scene.drain(ns).await?;
        scene.restarted(ns).await?;
        let lost = belay.leader().await?;
        belay.lose(&lost).await?;

        let exit = drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        scene.handed_over(ns).await?;
        ensure!(belay.leader().await?.name != lost.name, "the lost pod still leads");
        for reason in ["EvictionHeld", "HandoverStarted", "EvictionReleased"] {
            let told = events(ns, "web").await?;
            let count = told.iter().filter(|event| event.starts_with(reason)).count();
            // An Event may be lost with the leader that was about to write it; it is never told twice.
            ensure!(count <= 1, "{reason} was told {count} times: {told:#?}");
        }
        Ok(())
    });
}

#[test]
fn a_leader_killed_between_taking_a_hold_up_and_the_restart_restarts_once_when_it_is_back() {
    fault("leader-killed", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(2), "").await?;
        // The leader takes the hold up and gets no further: the only way to stop it at this very point from outside.
        let right = Right::take(ns, "controller", "patch", "deployments.apps").await?;
        let body = async {
            let drain = scene.drain(ns).await?;
            let hold = hold_in_phase(ns, &scene.victim, "Active").await?;
            ensure!(hold["status"]["reason"] == "Restarting", "{hold}");
            belay.kill(&belay.leader().await?)?;
            Ok(drain)
        };
        let drain = finally(body, right.give_back()).await?;

        let exit = drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        scene.handed_over(ns).await
    });
}

#[test]
fn a_hold_that_was_recorded_while_no_controller_ran_is_taken_up_by_the_next_one() {
    fault("leaderless", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(2), "").await?;
        let body = async {
            scale(ns, belay, "controller", 0).await?;
            let drain = scene.drain(ns).await?;
            let hold = scene.recorded(ns).await?;
            ensure!(hold["status"].is_null(), "{hold}");
            Ok(drain)
        };
        let drain = finally(body, scale(ns, belay, "controller", 2)).await?;

        let exit = drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        scene.handed_over(ns).await
    });
}

#[test]
fn a_leader_that_was_paused_past_its_lead_writes_nothing_when_it_goes_on() {
    fault("leader-paused", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(5), "").await?;
        let stale = belay.leader().await?;
        let paused = Paused::stop(&stale)?;
        let drain = scene.drain(ns).await?;
        scene.recorded(ns).await?;
        let next = ns
            .eventually("another replica leads", PATIENCE, async || {
                let leader = belay.leader().await?;
                ensure!(leader.name != stale.name, "{} still leads", stale.name);
                Ok(leader)
            })
            .await?;
        scene.restarted(ns).await?;

        let before = written_by(ns, &stale)?.len();
        ensure!(before > 0, "the audit log does not tell what {} writes", stale.name);
        // It wakes up believing that it leads, with a hold to take up in its watches.
        drop(paused);
        let exit = drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        ns.eventually("the stale leader knows that it leads no more", SOON, async || {
            let leading = metric(belay, &stale, "belay_leader").await?;
            ensure!(leading == 0.0, "it says that it leads");
            Ok(())
        })
        .await?;
        scene.handed_over(ns).await?;

        let since = written_by(ns, &stale)?.split_off(before);
        // A renewal that was under way when it was stopped meets a Lease that has changed since.
        let refused =
            |write: &Value| write["objectRef"]["resource"] == "leases" && write["responseStatus"]["code"] == 409;
        ensure!(since.iter().all(refused), "the stale leader wrote {since:#?}");
        ensure!(belay.leader().await?.name == next.name, "the lead has changed again");
        Ok(())
    });
}

/// What the program of a pod asked the API server to write, from the audit log: the token of a pod's ServiceAccount
/// names the pod.
fn written_by(ns: &Namespace, pod: &PodInfo) -> anyhow::Result<Vec<Value>> {
    let log = std::fs::read_to_string(ns.cluster().control_plane().audit_log())?;
    // The last line may still be being written.
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    let mut writes = Vec::new();
    for line in whole.lines().filter(|line| line.contains(&pod.name)) {
        let event: Value = serde_json::from_str(line)?;
        if event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0] == *pod.name {
            writes.push(event);
        }
    }
    Ok(writes)
}
