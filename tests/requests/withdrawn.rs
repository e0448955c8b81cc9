//! Requests that are taken back.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::eviction_requests::Player;
use belay_e2e::node_agent::READY_AFTER;
use belay_e2e::world::Namespace;
use serde_json::{Value, json};

use crate::stage::{REQUESTER, RESPONDER, eviction, evictions_answered, is, protected_before, report, requested};
use crate::support::{SOON, events, hold_in_phase, hold_of, holds, restarts};

fn is_taken_up(eviction: &Value) -> bool {
    report(eviction, RESPONDER).is_ok_and(|(_, report)| report["heartbeatTime"].is_string())
}

fn is_cancelled(eviction: &Value) -> bool {
    is(eviction, "Failed", "CanceledDueToNoRequesters")
}

#[test]
fn a_request_that_is_withdrawn_before_anything_was_done_is_forgotten_and_the_next_one_is_held() {
    requested("withdrawn", async |ns: &Namespace, player: &Player| {
        ns.nodes(2).await?;
        let (web, victim) = protected_before(ns.web("web").grace(1), "").await?;
        // A release that does not come to an end: the handover waits for it, and does nothing of its own.
        let annotations = json!({ READY_AFTER: "never" });
        web.patch(json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } })).await?;
        let both = [player.request(&victim, REQUESTER).await?, player.request(&victim, "acme.io/descheduler").await?];
        eviction(ns, player, &victim, "is taken up", is_taken_up).await?;
        hold_in_phase(ns, &victim, "Active").await?;
        player.withdraw(&both[0]).await?;
        let one_left = |eviction: &Value| eviction["status"].to_string().contains("Withdrawn");
        eviction(ns, player, &victim, "is wanted by one", one_left).await?;
        ensure!(hold_of(ns, &victim).await?["status"]["phase"] == "Active");
        // Deleting a request withdraws it as well.
        player.delete(&both[1]).await?;
        let last = eviction(ns, player, &victim, "is cancelled", is_cancelled).await?;
        ensure!(report(&last, RESPONDER)?.0 == "Canceled", "{last}");
        ns.eventually("the hold is forgotten", SOON, async || {
            let holds = holds(ns).await?;
            ensure!(holds.is_empty(), "{holds:?}");
            Ok(())
        })
        .await?;
        ns.eventually("the Event is there", SOON, async || {
            let events = events(ns, "web").await?;
            ensure!(events.iter().any(|event| event.starts_with("EvictionWithdrawn")), "{events:#?}");
            Ok(())
        })
        .await?;
        ensure!(web.pods().await?.iter().any(|pod| pod.uid == victim.uid && !pod.terminating), "it was evicted");

        player.request(&victim, REQUESTER).await?;
        eviction(ns, player, &victim, "is taken up again", |eviction| is_taken_up(eviction) && !is_cancelled(eviction))
            .await?;
        hold_in_phase(ns, &victim, "Active").await?;
        ensure!(restarts(ns, "web").await? == 0 && evictions_answered(ns)?.is_empty());
        Ok(())
    });
}

#[test]
fn a_handover_that_has_begun_goes_on_when_its_request_is_withdrawn() {
    requested("begun", async |ns: &Namespace, player: &Player| {
        ns.nodes(2).await?;
        let slow = ns.web("web").ready_after(Duration::from_secs(6)).pre_stop(3);
        let (web, victim) = protected_before(slow, "").await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;
        let request = player.request(&victim, REQUESTER).await?;
        ns.eventually("the Deployment is restarted", SOON, async || {
            ensure!(restarts(ns, "web").await? == 1, "not yet");
            Ok(())
        })
        .await?;
        player.withdraw(&request).await?;
        eviction(ns, player, &victim, "is cancelled", is_cancelled).await?;
        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        ensure!(web.only_pod().await?.uid != victim.uid && restarts(ns, "web").await? == 1);
        let served = load.stop().await;
        ensure!(served.failed() == 0, "{served}");
        Ok(())
    });
}
