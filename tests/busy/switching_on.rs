//! Switched on in a cluster that is at work.

use anyhow::{Context as _, ensure};
use belay_e2e::arc::{Listener, Player};
use belay_e2e::world::{Belay, Namespace};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::busy_support::{IDLE, NOTHING, WORKING, ensure_told, patch_metadata, told, values, written};
use crate::stage::{PATIENCE, all_told, ensure_written, lifecycle, off};

#[test]
fn a_hundred_runners_that_were_there_before_are_told_within_one_pass_and_then_follow_their_jobs() {
    lifecycle("hundred", &off(), async |ns: &Namespace, belay: &Belay| {
        ns.nodes(2).await?;
        let arc = Player::start(ns).await?;
        let (mut busy, mut idle) = (Vec::new(), Vec::new());
        for (name, count) in [("old", 34), ("new", 33), ("mixed", 33)] {
            let set = arc.set(name, &json!({})).await?;
            let runners = arc.runners(&set, count, PATIENCE).await?;
            for (index, runner) in runners.into_iter().enumerate() {
                // A third have a job already.
                if index % 3 == 0 {
                    arc.assign(&runner, listener(name, index)).await?;
                    busy.push(runner);
                } else {
                    idle.push((name, index, runner));
                }
            }
        }
        for pod in ns.pods("actions-ephemeral-runner=True").await? {
            ensure_told(&pod, NOTHING, &[])?;
        }

        belay.upgrade(values()?).await?;
        let waiting: Vec<_> = idle.iter().map(|(_, _, runner)| runner.clone()).collect();
        let is = |busy: &[String], idle: &[String]| {
            let busy: Vec<_> = busy.iter().cloned().map(|name| (name, WORKING)).collect();
            busy.into_iter().chain(idle.iter().cloned().map(|name| (name, IDLE))).collect::<Vec<_>>()
        };
        let expected = is(&busy, &waiting);
        all_told(ns, expected.iter().map(|(name, marks)| (name, *marks))).await?;
        let all: Vec<_> = busy.iter().chain(&waiting).cloned().collect();
        ensure!(all.len() == 100, "{} runners", all.len());
        ensure_written(ns, 0, &all)?;

        let begun: Vec<_> = idle.iter().step_by(4).map(|(_, _, runner)| runner.clone()).collect();
        for (name, index, runner) in idle.iter().step_by(4) {
            arc.assign(runner, listener(name, *index)).await?;
        }
        let waiting: Vec<_> = waiting.into_iter().filter(|runner| !begun.contains(runner)).collect();
        busy.extend(begun.iter().cloned());
        let expected = is(&busy, &waiting);
        all_told(ns, expected.iter().map(|(name, marks)| (name, *marks))).await?;
        ensure_written(ns, all.len(), &begun)?;
        quiet(ns, &arc, &waiting).await?;
        ensure!(arc.lost().is_empty(), "{:?}", arc.lost());
        Ok(())
    });
}

/// Nothing is written while no job starts: unrelated changes of every runner and pod, and then one job, whose pod is
/// the only one that is written to.
async fn quiet(ns: &Namespace, arc: &Player<'_>, waiting: &[String]) -> anyhow::Result<()> {
    let before = written(ns)?.len();
    let (marker, others) = waiting.split_first().context("nobody waits")?;
    for runner in others {
        let message = Patch::Merge(json!({ "status": { "message": "waiting" } }));
        arc.api().patch_status(runner, &PatchParams::default(), &message).await?;
        patch_metadata(ns, runner, json!({ "annotations": { "example.com/seen": "yes" } })).await?;
    }
    arc.assign(marker, Listener::New).await?;
    told(ns, marker, WORKING, &[]).await?;
    ensure_written(ns, before, std::slice::from_ref(marker))
}

/// A set's listener; that of `mixed` is upgraded on the way.
fn listener(set: &str, index: usize) -> Listener {
    match set {
        "old" => Listener::Old,
        "new" => Listener::New,
        _ if index < 16 => Listener::Old,
        _ => Listener::New,
    }
}
