//! What Belay leaves to the next responder: pods that it does not protect, cannot hand over, or could not in time.

use anyhow::ensure;
use belay_e2e::eviction_requests::{IMPERATIVE, Player};
use belay_e2e::world::Namespace;
use serde_json::{Value, json};

use crate::stage::{
    REQUESTER, RESPONDER, eviction, evictions_answered, is, protected_before, report, requested, responders,
};
use crate::support::{SOON, hold_in_phase, holds};

fn is_done(eviction: &Value) -> bool {
    is(eviction, "TargetEvicted", "PodDeleted")
}

#[test]
fn a_pod_of_no_concern_names_no_responder_and_is_evicted_at_once() {
    requested("unprotected", async |ns: &Namespace, player: &Player| {
        ns.nodes(1).await?;
        let web = ns.web("web").grace(1).create().await?;
        web.available(SOON).await?;
        let pod = web.only_pod().await?;
        ensure!(responders(&pod).is_empty(), "it names {:?}", responders(&pod));
        player.request(&pod, REQUESTER).await?;
        let last = eviction(ns, player, &pod, "has succeeded", is_done).await?;
        ensure!(report(&last, RESPONDER).is_err() && report(&last, IMPERATIVE)?.0 == "Completed", "{last}");
        ensure!(holds(ns).await?.is_empty() && evictions_answered(ns)? == [201]);
        Ok(())
    });
}

#[test]
fn a_pod_that_cannot_be_handed_over_is_left_at_once_and_the_reason_is_told() {
    requested("paused", async |ns: &Namespace, player: &Player| {
        ns.nodes(1).await?;
        let (web, pod) = protected_before(ns.web("web").grace(1), "").await?;
        web.patch(json!({ "spec": { "paused": true } })).await?;
        crate::support::condition(ns, "web", "TargetSupported", "False", "Paused").await?;
        player.request(&pod, REQUESTER).await?;
        let last = eviction(ns, player, &pod, "has succeeded", is_done).await?;
        let (state, reported) = report(&last, RESPONDER)?;
        let message = reported["message"].as_str().unwrap_or_default();
        ensure!(state == "Completed" && message.starts_with("Paused: not protected"), "{state}: {reported}");
        ensure!(holds(ns).await?.is_empty() && evictions_answered(ns)? == [201]);
        Ok(())
    });
}

#[test]
fn a_handover_that_does_not_come_in_time_is_left_at_its_deadline() {
    requested("deadline", async |ns: &Namespace, player: &Player| {
        ns.nodes(2).await?;
        // The replacement of the first pod never becomes ready; its restart annotates the template, so that is seen.
        let web = ns.web("web").grace(1);
        let (web, victim) = protected_before(web, "readinessDeadlineSeconds: 6").await?;
        web.patch(json!({ "spec": { "template": { "metadata": { "annotations": {
            belay_e2e::node_agent::READY_AFTER: "never" } } } } }))
            .await?;
        player.request(&victim, REQUESTER).await?;
        let last = eviction(ns, player, &victim, "has succeeded", is_done).await?;
        let (state, reported) = report(&last, RESPONDER)?;
        let message = reported["message"].as_str().unwrap_or_default();
        ensure!(state == "Completed" && message.starts_with("Expired: "), "{state}: {reported}");
        let hold = hold_in_phase(ns, &victim, "Released").await?;
        ensure!(hold["status"]["outcome"] == "Expired", "{hold}");
        ensure!(evictions_answered(ns)? == [201], "{:?}", evictions_answered(ns)?);
        Ok(())
    });
}

#[test]
fn a_pod_that_was_there_before_its_policy_is_held_when_the_last_responder_calls() {
    requested("before", async |ns: &Namespace, player: &Player| {
        ns.nodes(2).await?;
        let (_, victim) = crate::support::protected_web(ns.web("web").grace(1), "").await?;
        ensure!(responders(&victim).is_empty(), "it names {:?}", responders(&victim));
        player.request(&victim, REQUESTER).await?;
        eviction(ns, player, &victim, "has succeeded", is_done).await?;
        let answered = evictions_answered(ns)?;
        ensure!(answered.first() == Some(&429), "the last responder's calls were answered {answered:?}");
        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["spec"]["trigger"] == "Eviction" && hold["status"]["outcome"] == "HandedOver", "{hold}");
        Ok(())
    });
}
