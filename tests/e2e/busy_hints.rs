//! What the readers of hints are told, state by state, and when.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::clock;
use belay_e2e::world::Namespace;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::busy_support::{
    BUSY, CAST, COST, DESCHEDULER, IDLE, KARPENTER, OCEAN, SAFE, SINCE, SOMETIME, WORKING, does, ensure_told, held_as,
    mark, refusal, told, worker, written,
};
use crate::support::{SOON, events, test_with_belay};

/// Every switch on.
const ALL: &[(&str, &str)] = &[
    (SAFE, "false"),
    (KARPENTER, "true"),
    (BUSY, "true"),
    (DESCHEDULER, "true"),
    (CAST, "true"),
    (OCEAN, "true"),
    (COST, "1048576"),
    (SINCE, SOMETIME),
];

#[test]
fn each_state_is_told_by_exactly_its_keys_and_values_with_one_write_a_change() {
    test_with_belay("states", async |ns: &Namespace| {
        ns.nodes(1).await?;
        ensure_told(&worker(ns, "worker", "all-hints", "nothing").await?, IDLE, &[])?;
        let table = [
            ("working", ALL),
            ("starting", IDLE),
            ("working", ALL),
            ("ending", IDLE),
            // A rule that gives no answer: the pod counts as busy.
            ("broken", ALL),
            ("nothing", IDLE),
        ];
        for (count, (doing, expected)) in (1..).zip(table) {
            does(ns, "worker", doing).await?;
            told(ns, "worker", expected, &[]).await.with_context(|| format!("{count}: it is {doing}"))?;
            let writes = written(ns)?.len();
            ensure!(writes == count, "{writes} writes for {count} changes");
        }
        Ok(())
    });
}

#[test]
fn a_pod_that_is_made_for_work_is_told_as_busy_in_its_own_create() {
    test_with_belay("made-busy", async |ns: &Namespace| {
        ns.nodes(1).await?;
        ensure_told(&worker(ns, "worker", "all-hints", "working").await?, ALL, &[])?;
        ns.ready("worker", SOON).await?;
        // What the controller would have to write by now, it has written: it tells the marker after it.
        ensure_told(&worker(ns, "marker", "all-hints", "nothing").await?, IDLE, &[])?;
        does(ns, "marker", "working").await?;
        told(ns, "marker", ALL, &[]).await?;
        ensure!(written(ns)? == ["marker"], "{:?}", written(ns)?);
        Ok(())
    });
}

#[test]
fn a_pod_is_told_as_idle_only_when_that_lasts() {
    test_with_belay("debounce", async |ns: &Namespace| {
        ns.nodes(1).await?;
        worker(ns, "flickers", "patient", "working").await?;
        worker(ns, "marker", "all-hints", "nothing").await?;
        for round in 1..=3 {
            does(ns, "flickers", "nothing").await?;
            // The controller has seen it idle when it has told the marker, whose label was changed after.
            for (doing, marks) in [("working", ALL), ("nothing", IDLE)] {
                does(ns, "marker", doing).await?;
                told(ns, "marker", marks, &[]).await?;
            }
            does(ns, "flickers", "working").await?;
            let writes = written(ns)?;
            ensure!(writes.iter().all(|name| name == "marker"), "round {round}: {writes:?}");
        }
        does(ns, "flickers", "nothing").await?;
        let idle = clock::now();
        told(ns, "flickers", IDLE, &[]).await?;
        let took = clock::now().duration_since(idle);
        ensure!(took >= SignedDuration::from_secs(4), "told after {took:#}");
        Ok(())
    });
}

#[test]
fn on_completion_is_told_only_after_a_minute_of_false() {
    test_with_belay("on-completion", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let pod = worker(ns, "worker", "on-completion", "working").await?;
        ensure_told(&pod, WORKING, &[])?;
        let since: Timestamp = mark(&pod, SINCE).context("no time")?.parse()?;
        let due = since + SignedDuration::from_secs(60);
        let mut later = WORKING.to_vec();
        later.iter_mut().filter(|(key, _)| *key == SAFE).for_each(|(_, value)| *value = "on-completion");
        let told_at = ns
            .eventually("the second step", Duration::from_mins(1) + SOON, async || {
                ensure_told(&ns.pod_info("worker").await?, &later, &[])?;
                Ok(clock::now())
            })
            .await?;
        ensure!(told_at >= due, "told at {told_at}, though busy only since {since}");
        does(ns, "worker", "ending").await?;
        told(ns, "worker", IDLE, &[]).await?;
        Ok(())
    });
}

#[test]
fn a_pod_that_is_busy_for_too_long_counts_as_idle_and_an_event_says_so_once() {
    test_with_belay("too-long", async |ns: &Namespace| {
        ns.nodes(1).await?;
        ensure_told(&worker(ns, "hung", "soon-too-long", "working").await?, WORKING, &[])?;
        ns.ready("hung", SOON).await?;
        held_as(ns, "hung", "PodBusy").await?;
        // Since when it was busy stays noted: it must not become busy anew.
        told(ns, "hung", &[(SAFE, "true"), (SINCE, SOMETIME)], &[]).await?;
        ns.eventually("an Event", SOON, async || {
            let told = events(ns, "hung").await?;
            let count = told.iter().filter(|event| event.starts_with("BusyTooLong")).count();
            ensure!(count > 0, "{told:#?}");
            Ok(())
        })
        .await?;
        let passed = refusal(ns, "hung").await?;
        ensure!(passed.is_none(), "{passed:?}");
        Ok(())
    });
}

#[test]
fn pods_that_no_rule_selects_are_told_nothing() {
    test_with_belay("no-rule", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let pod = ns.pod(json!({ "metadata": { "name": "other", "labels": { "app": "other" } } })).await?;
        ensure_told(&pod, &[], &[])?;
        worker(ns, "marker", "all-hints", "working").await?;
        does(ns, "marker", "ending").await?;
        told(ns, "marker", IDLE, &[]).await?;
        ensure_told(&ns.pod_info("other").await?, &[], &[])?;
        let passed = refusal(ns, "other").await?;
        ensure!(passed.is_none(), "{passed:?}");
        Ok(())
    });
}
