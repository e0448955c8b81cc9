//! An API server that does not serve EvictionRequests, as every one of today.

use anyhow::ensure;
use belay_e2e::world::{Namespace, test};

use crate::busy_support::{self, worker};
use crate::stage::responders;
use crate::support::{SOON, hold_in_phase, policy, protected};

#[test]
fn without_the_api_no_pod_names_a_responder_nothing_fails_and_a_drain_is_held_as_ever() {
    test("unserved", async |ns: &Namespace| {
        for definitions in busy_support::SYSTEMS {
            ns.cluster().crds(definitions).await?;
        }
        let belay = ns.cluster().belay_with(busy_support::values()?).await?;
        ns.nodes(2).await?;
        let web = ns.web("web").replicas(0).create().await?;
        ns.apply(&policy("web", "")).await?;
        crate::support::condition(ns, "web", "Protected", "False", "ZeroReplicas").await?;
        web.scale(1).await?;
        web.available(SOON).await?;
        protected(ns, "web").await?;
        let victim = web.only_pod().await?;
        worker(ns, "worker", "patient", "working").await?;
        let busy = ns.ready("worker", SOON).await?;
        for pod in [&victim, &busy] {
            ensure!(responders(pod).is_empty(), "{} names {:?}", pod.name, responders(pod));
        }
        let exit = ns.drain(&victim.node, &["--timeout=60s", "--pod-selector=app=web"]).await?.exit(SOON).await?;
        ensure!(exit.success() && exit.text().contains("belay: holding"), "{exit}");
        let hold = hold_in_phase(ns, &victim, "Completed").await?;
        ensure!(hold["spec"]["trigger"] == "Eviction" && hold["status"]["outcome"] == "HandedOver", "{hold}");

        for pods in [belay.webhook_pods().await?, belay.controller_pods().await?] {
            for pod in pods {
                let metrics = belay.metrics(&pod).await?;
                let failing = r#"belay_watch_failing{kind="Eviction.lifecycle.k8s.io"} 0"#;
                ensure!(metrics.contains(failing), "{} fails to watch:\n{metrics}", pod.name);
            }
        }
        let logs = belay.logs();
        let told = logs.lines().find(|line| line.contains("lifecycle.k8s.io"));
        ensure!(told.is_none(), "{told:?}");
        Ok(())
    });
}
