//! All controllers are gone for good: the webhook replicas end every hold by themselves.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::tools::Running;
use belay_e2e::world::{Belay, Namespace};

use crate::stage::{PATIENCE, Scene, fault, finally, metric, scale};
use crate::support::{SOON, hold_in_phase, restarts};
use crate::webhook::kill_and_await;

/// Refuses after Belay has let go, so that the victim is there to be asked for again.
const BUDGET: &str = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec:\n  minAvailable: \
                      1\n  selector: {matchLabels: {app: web}}\n";

/// What kubectl says of it.
const BY_THE_BUDGET: &str = "would violate the pod's disruption budget";

#[test]
fn without_controllers_a_hold_ends_at_its_deadline_and_stays_ended_across_restarts_of_the_webhook() {
    fault("no-controllers", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(1), "readinessDeadlineSeconds: 12").await?;
        let body = Box::pin(async {
            scale(ns, belay, "controller", 0).await?;
            ns.apply(BUDGET).await?;
            let drain = scene.drain(ns).await?;
            drain.line(&format!("belay: holding {}", scene.victim.name), SOON).await?;
            drain.line("belay: released after its deadline", PATIENCE).await?;
            drain.line(BY_THE_BUDGET, PATIENCE).await?;

            for replica in belay.webhook_pods().await? {
                kill_and_await(ns, belay, &replica).await?;
            }
            let since = drain.lines().len();
            refused_twice_more(ns, &drain).await?;
            let mut released = 0.0;
            for replica in belay.webhook_pods().await? {
                let series = "belay_eviction_reviews_total{decision=\"Allow\",reason=\"DeadlinePassed\"}";
                released += metric(belay, &replica, series).await?;
            }
            // Not the API server, failing open, but replicas that know the deadline from the record.
            ensure!(released > 0.0, "no replica released it after the restarts");
            let later: Vec<_> = drain.lines().split_off(since).into_iter().map(|line| line.text).collect();
            ensure!(!later.iter().any(|line| line.contains("belay: holding")), "held again: {later:#?}");

            ns.kubectl(["delete", "pdb", "web"]).ok().await?;
            let exit = drain.exit(PATIENCE).await?;
            ensure!(exit.success(), "{exit}");
            ensure!(restarts(ns, "web").await? == 0, "somebody restarted the Deployment");
            Ok(())
        });
        finally(body, scale(ns, belay, "controller", 2)).await?;
        let hold = hold_in_phase(ns, &scene.victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "Expired", "{hold}");
        Ok(())
    });
}

/// Waits until the drain was refused by the budget two more times.
async fn refused_twice_more(ns: &Namespace, drain: &Running) -> anyhow::Result<()> {
    let refusals = || drain.lines().iter().filter(|line| line.text.contains(BY_THE_BUDGET)).count();
    let goal = refusals() + 2;
    ns.eventually("the budget refuses", PATIENCE, async || {
        let count = refusals();
        ensure!(drain.is_running(), "the drain has ended");
        (count >= goal).then_some(()).with_context(|| format!("{count} of {goal} times"))
    })
    .await
}
