//! A drain waits for the replacement.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Namespace, PodInfo};
use jiff::SignedDuration;
use serde_json::json;

use crate::support::{
    SOON, asked_to_go, events, evict, evict_until_it_passes, hold_in_phase, holds, policy, protected, protected_web,
    ready_since, restarts, test_with_belay,
};

#[test]
fn a_drain_is_held_until_the_replacement_serves_and_no_request_fails() {
    test_with_belay("rolling", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (web, victim) = protected_web(ns.web("web").ready_after(Duration::from_secs(3)).pre_stop(3), "").await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;

        let drain = ns.drain(&victim.node, &["--timeout=120s"]).await?;
        let refusal = drain.line("admission webhook", SOON).await?;
        ensure!(refusal.text.contains(&format!("belay: holding {}", victim.name)), "{}", refusal.text);
        ensure!(refusal.text.contains("at the latest"), "{}", refusal.text);
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

#[test]
fn a_recreate_workload_is_restarted_and_never_runs_twice() {
    test_with_belay("recreate", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (web, victim) = protected_web(ns.web("web").recreate().ready_after(Duration::from_secs(1)), "").await?;
        let drain = ns.drain(&victim.node, &["--timeout=120s"]).await?;
        while drain.is_running() {
            let pods = web.pods().await?;
            ensure!(pods.len() <= 1, "two copies exist: {pods:?}");
        }
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("belay: holding"), "{exit}");
        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        ensure!(restarts(ns, "web").await? == 1);
        ensure!(web.only_pod().await?.uid != victim.uid);
        Ok(())
    });
}

#[test]
fn a_replacement_counts_only_after_min_ready_seconds() {
    test_with_belay("min-ready", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (web, victim) = protected_web(ns.web("web").min_ready_seconds(12), "").await?;
        let drain = ns.drain(&victim.node, &["--timeout=120s"]).await?;
        let mut leaving = None;
        while drain.is_running() {
            let pods = web.pods().await?;
            leaving = pods.into_iter().find(|pod| pod.uid == victim.uid && pod.terminating).or(leaving);
        }
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("is not yet available (0/1, minReadySeconds 12)"), "{exit}");

        let asked = asked_to_go(&leaving.context("the victim never left")?.pod).context("the victim never left")?;
        let ready = ready_since(&web.only_pod().await?.pod).context("the replacement is not ready")?;
        let served = asked.duration_since(ready);
        ensure!(
            served >= SignedDuration::from_secs(11),
            "the victim went {served:#} after the replacement was ready: {asked}, {ready}"
        );
        Ok(())
    });
}

#[test]
fn a_workload_opts_in_by_its_annotation_alone() {
    test_with_belay("annotation", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let web = ns.web("web").annotation("belay.dev/handover", "Restart").create().await?;
        web.available(SOON).await?;
        let victim = web.only_pod().await?;
        let drain = ns.drain(&victim.node, &["--timeout=120s"]).await?;
        let exit = drain.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("belay: holding"), "{exit}");
        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        Ok(())
    });
}

#[test]
fn two_drains_at_once_need_one_restart() {
    test_with_belay("two-drains", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (_, victim) = protected_web(ns.web("web").ready_after(Duration::from_secs(2)).pre_stop(3), "").await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;
        let first = ns.drain(&victim.node, &["--timeout=120s"]).await?;
        let second = ns.drain(&victim.node, &["--timeout=120s"]).await?;
        for exit in [first.exit(SOON).await?, second.exit(SOON).await?] {
            ensure!(exit.success(), "{exit}");
        }
        hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(holds(ns).await?.len() == 1 && restarts(ns, "web").await? == 1);
        let served = load.stop().await;
        ensure!(served.failed() == 0, "{served}");
        Ok(())
    });
}

#[test]
fn all_workloads_of_a_node_are_handed_over_at_once_each_with_one_restart() {
    test_with_belay("several", async |ns: &Namespace| {
        let nodes = ns.nodes(1).await?;
        let names = ["red", "green", "blue"];
        for name in names {
            let web = ns.web(name).ready_after(Duration::from_secs(2)).create().await?;
            web.available(SOON).await?;
            ns.apply(&policy(name, "")).await?;
            protected(ns, name).await?;
        }
        ns.nodes(1).await?;
        let node = nodes.first().context("no node")?;
        let exit = ns.drain(node, &["--timeout=120s"]).await?.exit(SOON).await?;
        ensure!(exit.success(), "{exit}");
        for name in names {
            ensure!(restarts(ns, name).await? == 1, "{name}");
        }
        ns.eventually("every hold is completed", SOON, async || {
            let holds = holds(ns).await?;
            let done = holds.iter().filter(|hold| hold["status"]["phase"] == "Completed").count();
            ensure!(done == 3 && holds.len() == 3, "{holds:#?}");
            Ok(())
        })
        .await
    });
}

#[test]
fn twenty_handovers_leave_two_replica_sets_of_ours() {
    test_with_belay("twenty", async |ns: &Namespace| {
        ns.nodes(3).await?;
        let web = ns.web("web").grace(1).create().await?;
        web.available(SOON).await?;
        ns.apply(&policy("web", "")).await?;
        protected(ns, "web").await?;
        for round in 1..=20 {
            let victim = web.only_pod().await?;
            evict_until_it_passes(ns, &victim).await?;
            ns.eventually(&format!("handover {round} is over"), SOON, async || {
                let pod = web.only_pod().await?;
                ensure!(pod.uid != victim.uid && web.pods().await?.len() == 1);
                Ok(())
            })
            .await?;
            web.available(SOON).await?;
        }
        ensure!(holds(ns).await?.len() == 20);
        let sets = web.replica_sets().await?;
        let ours = sets.iter().filter(|set| {
            let template = set.spec.template.as_ref();
            let meta = template.and_then(|template| template.metadata.as_ref());
            meta.and_then(|meta| meta.annotations.as_ref()).is_some_and(|all| all.contains_key("belay.dev/restart"))
        });
        let ours = ours.count();
        ensure!(ours == 2 && sets.len() == 3, "{ours} of {} ReplicaSets carry our annotation", sets.len());
        Ok(())
    });
}

#[test]
fn a_replacement_is_kept_off_its_victims_node_though_that_stays_open() {
    test_with_belay("uncordoned", async |ns: &Namespace| {
        let nodes = ns.nodes(1).await?;
        let home = nodes.first().cloned().context("no node")?;
        let wish = json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [home]}]}}]});
        let web = ns
            .web("web")
            .edit(move |deployment| {
                if let Some(spec) = deployment.spec.template.spec.as_mut() {
                    let affinity = spec.affinity.get_or_insert_default();
                    affinity.node_affinity = serde_json::from_value(wish).ok();
                }
            })
            .create()
            .await?;
        web.available(SOON).await?;
        ns.nodes(1).await?;
        ns.apply(&policy("web", "")).await?;
        protected(ns, "web").await?;
        let victim = web.only_pod().await?;
        evict_until_it_passes(ns, &victim).await?;
        let replacement = ns.eventually("the replacement is alone", SOON, async || {
            let pod = web.only_pod().await?;
            ensure!(pod.uid != victim.uid);
            Ok(pod)
        });
        let replacement: PodInfo = replacement.await?;
        ensure!(replacement.node != victim.node, "the replacement is on its victim's node");
        Ok(())
    });
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    test_with_belay("quiet", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (_, victim) = protected_web(ns.web("web"), "").await?;
        evict_until_it_passes(ns, &victim).await?;
        hold_in_phase(ns, &victim, "Completed").await?;
        ns.eventually("the policy tells of the handover", SOON, async || {
            let policy = ns.get("handoverpolicies.belay.dev", "web").await?;
            ensure!(policy["status"]["lastHandover"]["victim"] == *victim.name, "{policy}");
            Ok(())
        })
        .await?;
        let written = || {
            let all = ns.cluster().writes_by("system:serviceaccount:belay-system:")?;
            anyhow::Ok(all.into_iter().filter(|write| write.namespace == ns.name()).collect::<Vec<_>>())
        };
        let before = written()?;
        ensure!(!before.is_empty(), "the audit log lacks the writes of the handover itself");
        ns.throughout("nothing is written", Duration::from_secs(15), async || {
            let now = written()?;
            ensure!(now.len() == before.len(), "written: {:?}", &now[before.len()..]);
            Ok(())
        })
        .await
    });
}

#[test]
fn an_eviction_of_a_pod_of_no_concern_passes_at_once() {
    test_with_belay("unprotected", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = ns.web("web").create().await?;
        web.available(SOON).await?;
        let pod = web.only_pod().await?;
        ensure!(evict(ns, &pod.name).await?.is_none());
        ensure!(holds(ns).await?.is_empty());
        Ok(())
    });
}

#[test]
fn an_ignored_evictor_passes_where_others_are_held() {
    test_with_belay("ignored", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (_, pod) =
            protected_web(ns.web("web"), "ignoreEvictors: [\"system:serviceaccount:kube-system:*\", \"belay-*\"]")
                .await?;
        // This client is the user `belay-admin`.
        ensure!(evict(ns, &pod.name).await?.is_none());
        ensure!(holds(ns).await?.is_empty() && restarts(ns, "web").await? == 0);
        Ok(())
    });
}

#[test]
fn the_template_is_patched_under_the_field_manager_of_the_policy() {
    test_with_belay("manager", async |ns: &Namespace| {
        ns.nodes(2).await?;
        let (web, victim) = protected_web(ns.web("web"), "fieldManager: flux-client-side-apply").await?;
        evict_until_it_passes(ns, &victim).await?;
        let fields = web.deployment().await?.metadata.managed_fields.unwrap_or_default();
        let managers: Vec<_> = fields
            .iter()
            .filter(|entry| {
                entry.fields_v1.as_ref().is_some_and(|fields| fields.0.to_string().contains("belay.dev/restart"))
            })
            .filter_map(|entry| entry.manager.clone())
            .collect();
        ensure!(managers == ["flux-client-side-apply"], "{managers:?}");
        Ok(())
    });
}
