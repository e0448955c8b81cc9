//! A hold cannot be recorded.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::world::{Belay, Namespace};

use crate::stage::{PATIENCE, Right, Scene, fault, finally, metric_sum};
use crate::support::{SOON, holds, restarts};

/// Each replica holds an unrecorded victim for half a minute, and kubectl asks every five seconds, at 0 s for the
/// first time: seven times, and an eighth where its last question was early by a moment.
const MOST_HOLDS: f64 = 8.0;

#[test]
fn an_eviction_that_cannot_be_recorded_is_held_for_half_a_minute_and_passes_with_a_word_why() {
    fault("unrecorded", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(1), "").await?;
        let before = held(belay).await?;
        let right = Right::take(ns, "webhook", "create", "evictionholds.belay.dev").await?;
        let body = async {
            let drain = scene.drain(ns).await?;
            drain.line(&format!("belay: holding {}", scene.victim.name), SOON).await?;
            let exit = drain.exit(PATIENCE).await?;
            ensure!(exit.success(), "{exit}");
            ensure!(exit.text().contains("belay: the hold could not be recorded, eviction let through"), "{exit}");
            Ok(())
        };
        finally(body, right.give_back()).await?;

        ensure!(holds(ns).await?.is_empty(), "it was recorded all the same");
        ensure!(restarts(ns, "web").await? == 0, "a hold that nobody recorded restarted the Deployment");
        let (mut refused, mut let_go) = (0.0, 0.0);
        for replica in belay.webhook_pods().await? {
            refused += metric_sum(belay, &replica, "belay_hold_records_total", "result=\"Forbidden\"").await?;
            let_go += metric_sum(belay, &replica, "belay_eviction_reviews_total", "reason=\"NotRecorded\"").await?;
        }
        ensure!(refused > 0.0 && let_go > 0.0, "{refused} refused records, {let_go} releases for want of one");
        for (now, before) in held(belay).await?.into_iter().zip(before) {
            ensure!(now - before <= MOST_HOLDS, "a replica held it {} times", now - before);
        }
        let logs = belay.logs();
        let told = logs.lines().filter(|line| line.contains("hold not recorded") && line.contains(&scene.victim.name));
        let telling: Vec<_> = told.filter(|line| line.contains("missing right to write EvictionHold")).collect();
        ensure!(!telling.is_empty(), "the log does not name the missing right:\n{logs}");
        Ok(())
    });
}

/// How often each replica has held an eviction.
async fn held(belay: &Belay) -> anyhow::Result<Vec<f64>> {
    let mut all = Vec::new();
    for pod in belay.webhook_pods().await? {
        all.push(metric_sum(belay, &pod, "belay_eviction_reviews_total", "decision=\"Hold\"").await?);
    }
    Ok(all)
}
