//! The stage of these tests: a cluster that serves `lifecycle.k8s.io`, with Belay, and workloads whose pods name it.

use std::sync::OnceLock;

use anyhow::{Context as _, ensure};
use belay_e2e::eviction_requests::Player;
use belay_e2e::world::{Cluster, Namespace, Options, PodInfo, Web, Workload, test_on};
use serde_json::Value;

use crate::busy_support;
use crate::support::{SOON, condition, policy};

/// Belay among the responders of a pod.
pub(crate) const RESPONDER: &str = "belay.dev/hold";

/// Who asks.
pub(crate) const REQUESTER: &str = "acme.io/upgrade";

/// The cluster of these tests, started by whoever asks first.
#[expect(clippy::panic, reason = "without a cluster every test of the process fails, for the same reason")]
fn cluster() -> Cluster {
    static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
    let options = || Options {
        feature_gates: vec!["EvictionRequestAPI=true".into()],
        runtime_config: vec!["lifecycle.k8s.io/v1alpha1=true".into()],
        ..Options::default()
    };
    match SHARED.get_or_init(|| Cluster::start(options()).map_err(|error| format!("{error:#}"))) {
        Ok(cluster) => cluster.clone(),
        Err(error) => panic!("no test cluster: {error}"),
    }
}

/// Runs a test in a namespace of its own, with Belay and an evictionrequest-controller.
pub(crate) fn requested(name: &str, body: impl AsyncFnOnce(&Namespace, &Player) -> anyhow::Result<()>) {
    test_on(&cluster(), name, async |ns: &Namespace| {
        for definitions in busy_support::SYSTEMS {
            ns.cluster().crds(definitions).await?;
        }
        ns.cluster().belay_with(busy_support::values()?).await?;
        let player = Player::start(ns);
        body(ns, &player).await
    });
}

/// Creates the Deployment `web`, protected by a policy with these further lines before its only pod is made; with that.
pub(crate) async fn protected_before(web: Web<'_>, spec: &str) -> anyhow::Result<(Workload, PodInfo)> {
    let ns = web.namespace();
    let web = web.replicas(0).create().await?;
    ns.apply(&policy("web", spec)).await?;
    condition(ns, "web", "Protected", "False", "ZeroReplicas").await?;
    web.scale(1).await?;
    web.available(SOON).await?;
    condition(ns, "web", "Protected", "True", "Protected").await?;
    let pod = web.only_pod().await?;
    ensure!(responders(&pod) == [RESPONDER], "{} names {:?}", pod.name, responders(&pod));
    Ok((web, pod))
}

/// The responders that a pod names.
pub(crate) fn responders(pod: &PodInfo) -> Vec<&str> {
    let spec = pod.pod.spec.as_ref();
    let named = spec.and_then(|spec| spec.eviction_responders.as_deref()).unwrap_or_default();
    named.iter().map(|one| one.name.as_str()).collect()
}

/// What a responder reports of an Eviction, with its state.
pub(crate) fn report<'a>(eviction: &'a Value, name: &str) -> anyhow::Result<(&'a str, &'a Value)> {
    let of = |list: &'a Value| list.as_array().into_iter().flatten().find(|one| one["name"] == *name);
    let status = &eviction["status"];
    let state = of(&status["targetResponders"]).and_then(|one| one["state"].as_str());
    Ok((
        state.with_context(|| format!("{name} is no responder: {status}"))?,
        of(&status["responders"]).unwrap_or(&Value::Null),
    ))
}

/// Waits until the Eviction of a pod is so.
pub(crate) async fn eviction(
    ns: &Namespace,
    player: &Player,
    pod: &PodInfo,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    ns.eventually(&format!("the Eviction of {} {what}", pod.name), SOON, async || {
        let eviction = player.eviction(pod).await?;
        ensure!(is_so(&eviction), "it is {}", eviction["status"]);
        Ok(eviction)
    })
    .await
}

/// A condition of an Eviction is true, for this reason.
pub(crate) fn is(eviction: &Value, kind: &str, reason: &str) -> bool {
    let conditions = eviction["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == *kind && one["status"] == "True" && one["reason"] == *reason)
}

/// The answers to calls of the eviction API for the pods of a namespace, oldest first.
pub(crate) fn evictions_answered(ns: &Namespace) -> anyhow::Result<Vec<u16>> {
    let all = ns.cluster().writes_by("")?;
    let here = all.into_iter().filter(|write| write.namespace == ns.name() && write.resource == "pods/eviction");
    Ok(here.map(|write| write.code).collect())
}
