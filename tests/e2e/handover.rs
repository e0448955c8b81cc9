//! A drain waits for the replacement.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::world::{Namespace, test_with_belay};

use crate::support::{SOON, events, hold_in_phase, policy, restarts};

#[test]
fn a_drain_is_held_until_the_replacement_serves_and_no_request_fails() {
    test_with_belay("rolling", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let web = ns.web("web").ready_after(Duration::from_secs(3)).pre_stop(3).create().await?;
        web.available(SOON).await?;
        ns.apply(&policy("web", "")).await?;
        let victim = web.only_pod().await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;

        let drain = ns.drain(&victim.node, &["--timeout=120s"]).await?;
        let held = drain.line("admission webhook", SOON).await?;
        ensure!(held.text.contains(&format!("belay: holding {}", victim.name)), "{}", held.text);
        ensure!(held.text.contains("at the latest"), "{}", held.text);
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");

        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        ensure!(hold["spec"]["evictor"].is_string() && hold["spec"]["workload"]["name"] == "web", "{hold}");
        ensure!(web.only_pod().await?.node != victim.node, "the replacement is on the drained node");
        ensure!(restarts(ns, "web").await? == 1);
        let served = load.stop().await;
        ensure!(served.failed() == 0 && served.ok > 0, "{served}");

        let events = events(ns, "web").await?;
        for reason in ["EvictionHeld", "HandoverStarted", "EvictionReleased"] {
            let count = events.iter().filter(|event| event.starts_with(reason)).count();
            ensure!(count == 1, "{reason} was told {count} times: {events:#?}");
        }
        Ok(())
    });
}
