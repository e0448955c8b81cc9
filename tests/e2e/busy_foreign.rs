//! What somebody else wrote stays theirs; what Belay wrote and somebody took away comes back.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use belay_e2e::arc::{Listener, Player};
use belay_e2e::world::Namespace;
use serde_json::{Value, json};

use crate::busy_support::{
    BUSY, DESCHEDULER, IDLE, KARPENTER, NOTHING, RULE, SAFE, SINCE, SOMETIME, WORKING, does, ensure_told, mark,
    patch_metadata, record, told, worker, written,
};
use crate::support::{SOON, events, test_with_belay};

#[test]
fn a_value_that_stands_in_the_pod_is_never_touched() {
    test_with_belay("in-the-pod", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let theirs = [(SAFE, "false"), (BUSY, "false"), (KARPENTER, "2h")];
        let pod = ns
            .pod(json!({ "metadata": {
                "name": "worker",
                "labels": { RULE: "patient", "belay.dev/busy": "false" },
                "annotations": { SAFE: "false", KARPENTER: "2h" },
            } }))
            .await?;
        ensure_told(&pod, NOTHING, &theirs)?;
        does(ns, "worker", "working").await?;
        told(ns, "worker", &[(DESCHEDULER, "true"), (SINCE, SOMETIME)], &theirs).await?;
        does(ns, "worker", "ending").await?;
        told(ns, "worker", NOTHING, &theirs).await?;
        ensure!(written(ns)?.len() == 2, "{:?}", written(ns)?);
        Ok(())
    });
}

#[test]
fn a_value_that_stands_in_the_template_of_a_runner_set_is_never_touched() {
    test_with_belay("in-the-template", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let arc = Player::start(ns).await?;
        let set = arc.set("linux", &json!({ "metadata": { "annotations": { SAFE: "true" } } })).await?;
        let names = arc.runners(&set, 1, SOON).await?;
        let name = names.first().context("no runner")?;
        let theirs = [(SAFE, "true")];
        ensure_told(&ns.pod_info(name).await?, NOTHING, &theirs)?;
        arc.assign(name, Listener::New).await?;
        let ours: Vec<_> = WORKING.iter().copied().filter(|(key, _)| *key != SAFE).collect();
        told(ns, name, &ours, &theirs).await?;
        Ok(())
    });
}

#[test]
fn a_hint_that_is_stripped_is_put_back_until_it_is_stripped_again_and_again() {
    test_with_belay("stripped", async |ns: &Namespace| {
        ns.nodes(1).await?;
        worker(ns, "worker", "patient", "working").await?;
        for round in 1..=2 {
            ns.kubectl(["annotate", "pod", "worker", &format!("{KARPENTER}-")]).ok().await?;
            told(ns, "worker", WORKING, &[]).await.with_context(|| format!("round {round}"))?;
        }
        ns.kubectl(["annotate", "pod", "worker", &format!("{KARPENTER}-")]).ok().await?;
        conflict(ns, KARPENTER).await?;
        let pod = ns.pod_info("worker").await?;
        let given_up = record(&pod)?.get(KARPENTER).cloned();
        ensure!(given_up == Some(None) && mark(&pod, KARPENTER).is_none(), "{:?}", record(&pod)?);
        // The others are looked after as before, and the given up one stays given up.
        does(ns, "worker", "ending").await?;
        let expected: BTreeMap<_, _> =
            [(SAFE.to_owned(), Some("true".to_owned())), (KARPENTER.to_owned(), None)].into_iter().collect();
        ns.eventually("the others are told", SOON, async || {
            let pod = ns.pod_info("worker").await?;
            ensure!(record(&pod)? == expected && mark(&pod, BUSY).is_none(), "{:?}", record(&pod)?);
            Ok(())
        })
        .await
    });
}

#[test]
fn all_hints_that_are_stripped_at_once_are_put_back_by_one_write() {
    test_with_belay("stripped-all", async |ns: &Namespace| {
        ns.nodes(1).await?;
        worker(ns, "worker", "patient", "working").await?;
        ns.ready("worker", SOON).await?;
        let nulls = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect::<Value>();
        let annotations = nulls(&[SAFE, KARPENTER, DESCHEDULER]);
        patch_metadata(ns, "worker", json!({ "annotations": annotations, "labels": { "belay.dev/busy": null } }))
            .await?;
        told(ns, "worker", WORKING, &[]).await?;
        ensure!(written(ns)? == ["worker"], "{:?}", written(ns)?);
        Ok(())
    });
}

#[test]
fn a_hint_that_somebody_changes_is_theirs_from_then_on_and_an_event_says_so() {
    test_with_belay("changed", async |ns: &Namespace| {
        ns.nodes(1).await?;
        worker(ns, "worker", "patient", "working").await?;
        patch_metadata(ns, "worker", json!({ "annotations": { SAFE: "true" } })).await?;
        conflict(ns, SAFE).await?;
        let theirs = [(SAFE, "true")];
        let ours: Vec<_> = WORKING.iter().copied().filter(|(key, _)| *key != SAFE).collect();
        told(ns, "worker", &ours, &theirs).await?;
        does(ns, "worker", "ending").await?;
        told(ns, "worker", NOTHING, &theirs).await?;
        // Back to what Belay would have written: still theirs.
        patch_metadata(ns, "worker", json!({ "annotations": { SAFE: "false" } })).await?;
        does(ns, "worker", "working").await?;
        told(ns, "worker", &ours, &[(SAFE, "false")]).await?;
        Ok(())
    });
}

#[test]
fn a_record_that_is_no_record_makes_everything_somebody_elses() {
    test_with_belay("no-record", async |ns: &Namespace| {
        ns.nodes(1).await?;
        ensure_told(&worker(ns, "worker", "patient", "nothing").await?, IDLE, &[])?;
        patch_metadata(ns, "worker", json!({ "annotations": { "belay.dev/managed": "{broken" } })).await?;
        does(ns, "worker", "working").await?;
        let theirs = [(SAFE, "true")];
        let ours: Vec<_> = WORKING.iter().copied().filter(|(key, _)| *key != SAFE).collect();
        told(ns, "worker", &ours, &theirs).await?;
        Ok(())
    });
}

/// Waits until one Event tells of a key that was given up.
async fn conflict(ns: &Namespace, key: &str) -> anyhow::Result<()> {
    ns.eventually("an Event tells of the conflict", SOON, async || {
        let told = events(ns, "worker").await?;
        let count = told.iter().filter(|event| event.starts_with("HintConflict") && event.contains(key)).count();
        ensure!(count == 1, "{told:#?}");
        Ok(())
    })
    .await
}
