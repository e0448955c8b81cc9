//! An EvictionRequest is answered by a handover, as a drain is.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::eviction_requests::{IMPERATIVE, Player};
use belay_e2e::world::Namespace;
use jiff::Timestamp;
use serde_json::Value;

use crate::busy_support::{DOING, does, worker};
use crate::stage::{
    REQUESTER, RESPONDER, eviction, evictions_answered, is, protected_before, report, requested, responders,
};
use crate::support::{SOON, hold_in_phase, hold_of, restarts};

fn time(value: &Value) -> anyhow::Result<Timestamp> {
    Ok(value.as_str().with_context(|| format!("{value} is no time"))?.parse()?)
}

#[test]
fn a_requested_pod_is_handed_over_with_its_progress_told_and_no_request_fails() {
    requested("requested", async |ns: &Namespace, player: &Player| {
        ns.nodes(2).await?;
        // Long enough that there is something to tell twice, at a distance of twenty seconds.
        let slow = ns.web("web").ready_after(Duration::from_secs(24)).pre_stop(3);
        let (web, victim) = protected_before(slow, "").await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;

        player.request(&victim, REQUESTER).await?;
        let told =
            |eviction: &Value| report(eviction, RESPONDER).is_ok_and(|(_, report)| report["heartbeatTime"].is_string());
        let first = eviction(ns, player, &victim, "is taken up", told).await?;
        let (state, reported) = report(&first, RESPONDER)?;
        let message = reported["message"].as_str().unwrap_or_default();
        ensure!(state == "Active" && !message.is_empty(), "{reported}");
        let hold = hold_of(ns, &victim).await?;
        let spec = &hold["spec"];
        ensure!(spec["trigger"] == "EvictionRequest" && spec["evictor"] == REQUESTER, "{hold}");
        ensure!(spec["workload"]["name"] == "web" && spec["victim"]["node"] == *victim.node, "{hold}");
        ensure!(time(&reported["expectedCompletionTime"])? == time(&spec["deadline"])?, "{reported}\n{hold}");

        let news = |eviction: &Value| {
            report(eviction, RESPONDER).is_ok_and(|(_, report)| report["message"].as_str() != Some(message))
        };
        let second = eviction(ns, player, &victim, "tells news", news).await?;
        let (_, later) = report(&second, RESPONDER)?;
        ensure!(later["message"].as_str().is_some_and(|message| message.contains("replacement web-")), "{later}");
        let apart = time(&later["heartbeatTime"])?.duration_since(time(&reported["heartbeatTime"])?);
        ensure!(apart.as_secs() >= 20, "reports {apart:#} apart");

        let done = |eviction: &Value| is(eviction, "TargetEvicted", "PodDeleted");
        let last = eviction(ns, player, &victim, "has succeeded", done).await?;
        let (state, reported) = report(&last, RESPONDER)?;
        let message = reported["message"].as_str().unwrap_or_default();
        ensure!(state == "Completed" && reported["completionTime"].is_string(), "{state}: {reported}");
        ensure!(message.starts_with("HandedOver: replacement web-"), "{message}");
        let answered = evictions_answered(ns)?;
        ensure!(answered.iter().all(|code| *code == 201), "the last responder's calls were answered {answered:?}");

        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        ensure!(web.only_pod().await?.node != victim.node, "the replacement is on its victim's node");
        ensure!(restarts(ns, "web").await? == 1);
        let served = load.stop().await;
        ensure!(served.failed() == 0 && served.ok > 0, "{served}");
        Ok(())
    });
}

#[test]
fn a_requested_pod_of_a_workload_that_scales_goes_when_its_stand_in_serves() {
    requested("scale", async |ns: &Namespace, player: &Player| {
        ns.nodes(2).await?;
        let slow = ns.web("web").ready_after(Duration::from_secs(3)).pre_stop(3);
        let (web, victim) = protected_before(slow, "handover: Scale").await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;
        player.request(&victim, REQUESTER).await?;
        let done = |eviction: &Value| is(eviction, "TargetEvicted", "PodDeleted");
        let last = eviction(ns, player, &victim, "has succeeded", done).await?;
        let (state, reported) = report(&last, RESPONDER)?;
        let message = reported["message"].as_str().unwrap_or_default();
        ensure!(state == "Completed" && message.starts_with("HandedOver: "), "{state}: {reported}");
        let answered = evictions_answered(ns)?;
        ensure!(answered.iter().all(|code| *code == 201), "the last responder's calls were answered {answered:?}");
        ns.eventually("the replicas are as before", SOON, async || {
            let deployment = web.deployment().await?;
            ensure!(deployment.spec.replicas == Some(1), "there are {:?}", deployment.spec.replicas);
            ensure!(web.only_pod().await?.uid != victim.uid);
            Ok(())
        })
        .await?;
        let served = load.stop().await;
        ensure!(served.failed() == 0 && served.ok > 0, "{served}");
        Ok(())
    });
}

#[test]
fn a_requested_busy_pod_stays_until_its_job_ends_and_then_goes_at_the_first_call() {
    requested("busy", async |ns: &Namespace, player: &Player| {
        ns.nodes(1).await?;
        worker(ns, "worker", "patient", "working").await?;
        let pod = ns.ready("worker", SOON).await?;
        ensure!(responders(&pod) == [RESPONDER], "it names {:?}", responders(&pod));
        player.request(&pod, REQUESTER).await?;
        let told =
            |eviction: &Value| report(eviction, RESPONDER).is_ok_and(|(_, report)| report["message"].is_string());
        eviction(ns, player, &pod, "is taken up", told).await?;
        let hold = hold_of(ns, &pod).await?;
        ensure!(hold["spec"]["reason"] == "Busy" && hold["spec"]["trigger"] == "EvictionRequest", "{hold}");
        ensure!(evictions_answered(ns)?.is_empty());
        does(ns, "worker", "nothing").await?;
        let done = |eviction: &Value| is(eviction, "TargetEvicted", "PodDeleted");
        let last =
            eviction(ns, player, &pod, "has succeeded", done).await.with_context(|| format!("{DOING} nothing"))?;
        ensure!(report(&last, RESPONDER)?.0 == "Completed" && report(&last, IMPERATIVE)?.0 == "Completed", "{last}");
        let answered = evictions_answered(ns)?;
        ensure!(answered == [201], "the last responder's calls were answered {answered:?}");
        Ok(())
    });
}
