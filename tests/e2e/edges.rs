//! Where a drain meets something else on its way: a deadline, a release, a pause, a budget, another tool.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::Namespace;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::{
    SOON, condition, events, evict, evict_until_it_passes, hold_in_phase, hold_of, holds, policy, protected,
    protected_web, restarts, test_with_belay,
};

#[test]
fn a_victim_is_released_at_its_deadline_and_stays_released() {
    test_with_belay("deadline", async |ns: &Namespace| {
        // The only node is drained, so no replacement can come; the budget refuses after our release.
        ns.nodes(1).await?;
        let web = ns.web("web").create().await?;
        web.available(SOON).await?;
        // Two tries of kubectl's are held, at 0 and 5 s, and one well after.
        ns.apply(&policy("web", "readinessDeadlineSeconds: 9")).await?;
        ns.apply(
            "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {minAvailable: 1, selector: \
             {matchLabels: {app: web}}}",
        )
        .await?;
        protected(ns, "web").await?;
        let victim = web.only_pod().await?;
        let drain = ns.drain(&victim.node, &[]).await?;
        drain.line("no node fits replacement", SOON).await?;
        let budget = drain.line("disruption budget", SOON).await?;
        let hold = hold_in_phase(ns, &victim, "Released").await?;
        ensure!(hold["status"]["outcome"] == "Expired", "{hold}");

        ns.eventually("the budget refuses twice more", SOON, async || {
            let lines = drain.lines();
            let after: Vec<_> = lines.iter().filter(|line| line.at > budget.at).collect();
            ensure!(after.iter().all(|line| !line.text.contains("belay: holding")), "held again: {after:#?}");
            let refused = after.iter().filter(|line| line.text.contains("disruption budget")).count();
            ensure!(refused >= 2, "{refused} times");
            Ok(())
        })
        .await?;
        ns.kubectl(["delete", "poddisruptionbudget", "web"]).ok().await?;
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        ensure!(restarts(ns, "web").await? == 1);
        let told = events(ns, "web").await?;
        ensure!(told.iter().any(|event| event.starts_with("HandoverFailed")), "{told:#?}");
        Ok(())
    });
}

#[test]
fn a_failed_handover_is_rolled_back_where_the_policy_says_so() {
    test_with_belay("roll-back", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let (web, victim) = protected_web(ns.web("web"), "readinessDeadlineSeconds: 4\nonFailure: RollBack").await?;
        ns.cordon(&victim.node).await?;
        ensure!(evict(ns, &victim.name).await?.is_some());
        let hold = hold_in_phase(ns, &victim, "Released").await?;
        ensure!(hold["status"]["outcome"] == "Expired", "{hold}");
        ensure!(hold["status"]["message"].as_str().unwrap_or_default().contains("put back"), "{hold}");
        ns.eventually("the template is as it was, and its pod still serves", SOON, async || {
            ensure!(slot(ns, "web").await?.is_null(), "the slot is still there");
            let pod = web.only_pod().await?;
            ensure!(pod.uid == victim.uid, "{} took over", pod.name);
            Ok(())
        })
        .await?;
        ensure!(restarts(ns, "web").await? == 1);
        Ok(())
    });
}

/// The template annotation by which a Deployment is restarted.
async fn slot(ns: &Namespace, deployment: &str) -> anyhow::Result<Value> {
    let deployment = ns.get("deployment", deployment).await?;
    Ok(deployment["spec"]["template"]["metadata"]["annotations"]["belay.dev/restart"].clone())
}

#[test]
fn a_dry_run_ends_changes_nothing_and_says_what_would_happen() {
    test_with_belay("dry-run", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (web, victim) = protected_web(ns.web("web"), "").await?;
        let before = web.deployment().await?;
        let exit = ns.drain(&victim.node, &["--dry-run=server"]).await?.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("would be held"), "{exit}");
        ensure!(!exit.text().contains("will retry"), "{exit}");
        ns.throughout("nothing came of it", Duration::from_secs(3), async || {
            ensure!(holds(ns).await?.is_empty(), "a hold was recorded");
            ensure!(web.deployment().await?.metadata.generation == before.metadata.generation, "the template changed");
            ensure!(web.only_pod().await?.uid == victim.uid, "the pod was replaced");
            Ok(())
        })
        .await
    });
}

#[test]
fn a_release_under_way_is_the_handover_of_its_old_pod() {
    test_with_belay("mid-release-old", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (web, victim) = protected_web(ns.web("web").ready_after(Duration::from_secs(6)).pre_stop(3), "").await?;
        let load = ns.load("web", 50).await?;
        load.ok(10, SOON).await?;
        web.release("2").await?;
        ns.eventually("the release has begun", SOON, async || {
            ensure!(web.replica_sets().await?.len() == 2);
            Ok(())
        })
        .await?;
        let exit = ns.drain(&victim.node, &["--timeout=120s"]).await?.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("belay: holding"), "{exit}");
        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        ensure!(restarts(ns, "web").await? == 0, "the release was the handover, and there was a restart beside it");
        ensure!(slot(ns, "web").await?.is_null());
        let served = load.stop().await;
        ensure!(served.failed() == 0, "{served}");
        Ok(())
    });
}

#[test]
fn a_release_under_way_comes_to_rest_before_its_new_pod_is_handed_over() {
    test_with_belay("mid-release-new", async |ns: &Namespace| {
        ns.nodes(3).await?;
        let (web, old) = protected_web(ns.web("web").min_ready_seconds(10), "").await?;
        web.release("2").await?;
        let victim = ns
            .eventually("the new pod is ready and not yet available", SOON, async || {
                let pods = web.pods().await?;
                pods.into_iter().find(|pod| pod.hash != old.hash && pod.ready).context("not yet")
            })
            .await?;
        ns.eventually("the new pod waits for its own rollout", SOON, async || {
            let refusal = evict(ns, &victim.name).await?.context("the new pod's eviction passed")?;
            ensure!(refusal.contains("a rollout of Deployment web is under way"), "{refusal}");
            Ok(())
        })
        .await?;
        evict_until_it_passes(ns, &victim).await?;
        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        ensure!(restarts(ns, "web").await? == 1);
        ensure!(slot(ns, "web").await? == "a");
        Ok(())
    });
}

#[test]
fn a_paused_deployment_is_let_go_with_a_word() {
    test_with_belay("paused", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let web = ns.web("web").create().await?;
        web.available(SOON).await?;
        ns.apply(&policy("web", "")).await?;
        protected(ns, "web").await?;
        web.patch(json!({"spec": {"paused": true}})).await?;
        condition(ns, "web", "Protected", "False", "Paused").await?;
        let victim = web.only_pod().await?;
        let exit = ns.drain(&victim.node, &["--timeout=120s"]).await?.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        ensure!(exit.text().contains("belay: not protected (Paused)") && !exit.text().contains("will retry"), "{exit}");
        ensure!(holds(ns).await?.is_empty() && restarts(ns, "web").await? == 0);
        Ok(())
    });
}

#[test]
fn a_policy_on_three_replicas_says_that_it_protects_nothing() {
    test_with_belay("three", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let web = ns.web("web").replicas(3).create().await?;
        web.available(SOON).await?;
        ns.apply(&policy("web", "")).await?;
        condition(ns, "web", "TargetSupported", "False", "MoreThanOneReplica").await?;
        condition(ns, "web", "Protected", "False", "MoreThanOneReplica").await?;
        let described = ns.kubectl(["describe", "handoverpolicy", "web"]).ok().await?;
        ensure!(described.contains("web: the Deployment has 3 replicas and Restart is for one"), "{described}");
        let pods = web.pods().await?;
        let node = &pods.first().context("no pod")?.node;
        let exit = ns.drain(node, &["--timeout=120s"]).await?.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("belay: not protected (MoreThanOneReplica)"), "{exit}");
        ensure!(restarts(ns, "web").await? == 0);
        Ok(())
    });
}

#[test]
fn a_template_that_somebody_puts_back_is_not_fought_over() {
    test_with_belay("reverted", async |ns: &Namespace| {
        ns.nodes(2).await?;
        // Slow to become ready, so that the other tool is faster.
        let (web, victim) = protected_web(ns.web("web").ready_after(Duration::from_secs(20)), "").await?;
        let drain = ns.drain(&victim.node, &["--timeout=120s"]).await?;
        ns.eventually("the restart is written", SOON, async || {
            ensure!(slot(ns, "web").await? == "a");
            Ok(())
        })
        .await?;
        ns.eventually("its rollout has begun", SOON, async || {
            ensure!(web.replica_sets().await?.len() == 2);
            Ok(())
        })
        .await?;
        web.patch(json!({"spec": {"template": {"metadata": {"annotations": {"belay.dev/restart": null}}}}})).await?;
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        ns.eventually("the hold says who won", SOON, async || {
            let hold = hold_of(ns, &victim).await?;
            ensure!(hold["status"]["outcome"] == "Reverted", "{}", hold["status"]);
            Ok(())
        })
        .await?;
        ensure!(slot(ns, "web").await?.is_null() && restarts(ns, "web").await? == 1, "it was fought over");
        let told = events(ns, "web").await?;
        ensure!(told.iter().any(|event| event.starts_with("HandoverFailed")), "{told:#?}");
        Ok(())
    });
}

#[test]
fn a_pod_that_took_its_victims_name_is_another_pod() {
    test_with_belay("same-name", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let (_, victim) = protected_web(ns.web("web"), "").await?;
        ns.cordon(&victim.node).await?;
        ensure!(evict(ns, &victim.name).await?.is_some(), "the victim was not held");
        ns.kubectl(["delete", "pod", &victim.name, "--force", "--grace-period=0", "--wait=false"]).ok().await?;
        let pods: Api<Pod> = ns.api();
        let mut spec = victim.pod.spec.clone().unwrap_or_default();
        spec.node_name = Some(victim.node.clone());
        let mut namesake = Pod { spec: Some(spec), ..Pod::default() };
        namesake.metadata.name = Some(victim.name.clone());
        namesake.metadata.annotations = victim.pod.metadata.annotations.clone();
        ns.eventually("the name is free and taken again", SOON, async || {
            pods.create(&PostParams::default(), &namesake).await?;
            Ok(())
        })
        .await?;
        ns.eventually("the namesake is ready", SOON, async || {
            let pod: Value = ns.get("pod", &victim.name).await?;
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
            ensure!(pod["metadata"]["uid"] != *victim.uid && ready, "{}", pod["status"]);
            Ok(())
        })
        .await?;
        // Its name is that of a held victim; it is none.
        evict_until_it_passes(ns, &victim).await?;
        let hold = hold_in_phase(ns, &victim, "Released").await;
        let hold = match hold {
            Ok(hold) => hold,
            Err(_) => hold_in_phase(ns, &victim, "Completed").await?,
        };
        ensure!(hold["status"]["outcome"].is_string(), "{hold}");
        ensure!(holds(ns).await?.len() == 1, "the namesake got a hold");
        Ok(())
    });
}

#[test]
fn an_invalid_policy_says_so() {
    test_with_belay("invalid", async |ns: &Namespace| {
        let refused = |spec: &str| {
            let yaml =
                format!("apiVersion: belay.dev/v1alpha1\nkind: HandoverPolicy\nmetadata: {{name: bad}}\nspec: {spec}");
            async move { ns.kubectl(["apply", "-f", "-"]).stdin(&yaml).output().await }
        };
        let table = [
            ("both targets", "{targetRef: {name: a}, selector: {matchLabels: {a: b}}}", "exactly one of targetRef"),
            ("no target", "{}", "exactly one of targetRef"),
            ("an empty selector", "{selector: {}}", "selector must not be empty"),
            (
                "a deadline of nothing",
                "{targetRef: {name: a}, readinessDeadlineSeconds: 0}",
                "readinessDeadlineSeconds",
            ),
            ("a mode that does not exist", "{targetRef: {name: a}, handover: Move}", "Unsupported value"),
            ("a typo", "{targetRef: {name: a}, onFailed: Release}", "unknown field"),
        ];
        for (name, spec, expected) in table {
            let exit = refused(spec).await?;
            ensure!(!exit.success() && exit.text().contains(expected), "{name}: {exit}");
        }
        // What the schema cannot tell, the status does.
        ns.apply(
            "apiVersion: belay.dev/v1alpha1\nkind: HandoverPolicy\nmetadata: {name: odd}\nspec: {selector: \
             {matchExpressions: [{key: app, operator: Sometimes, values: [web]}]}}",
        )
        .await?;
        condition(ns, "odd", "Protected", "False", "InvalidPolicy").await?;
        ns.apply(&policy("nobody", "")).await?;
        condition(ns, "nobody", "Protected", "False", "TargetNotFound").await?;
        let described = ns.kubectl(["describe", "handoverpolicy", "odd"]).ok().await?;
        ensure!(described.contains("not a valid label selector"), "{described}");
        Ok(())
    });
}

#[test]
fn a_restart_that_no_node_takes_is_withdrawn_and_blocks_no_release() {
    test_with_belay("one-node", async |ns: &Namespace| {
        // The only node stays open: the replacement is kept off it by us alone.
        ns.nodes(1).await?;
        let (web, victim) = protected_web(ns.web("web"), "readinessDeadlineSeconds: 5").await?;
        ensure!(evict(ns, &victim.name).await?.is_some(), "the victim was not held");
        evict_until_it_passes(ns, &victim).await?;
        ns.eventually("the restart is withdrawn and the Deployment whole again", SOON, async || {
            ensure!(slot(ns, "web").await?.is_null(), "the slot is still there");
            let pod = web.only_pod().await?;
            ensure!(pod.uid != victim.uid && web.pods().await?.len() == 1, "{} serves", pod.name);
            Ok(())
        })
        .await?;
        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "Expired", "{hold}");
        ensure!(hold["status"]["message"].as_str().unwrap_or_default().contains("withdrawn"), "{hold}");
        web.release("2").await?;
        web.available(SOON).await?;
        ensure!(restarts(ns, "web").await? == 1);
        Ok(())
    });
}
