//! Words that the tests share.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
pub(crate) use belay_e2e::world::policy;
use belay_e2e::world::{Namespace, PodInfo, Web, Workload, test};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::EvictParams;
use serde_json::Value;

use crate::busy_support;

/// Long enough for anything that happens within seconds on an idle machine; the tests run beside each other on two
/// cores.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// A test in a namespace of its own, with the Belay that all tests of this kind share: everything is on, and the
/// systems are there that the presets are for.
pub(crate) fn test_with_belay(name: &str, body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>) {
    test(name, async |ns: &Namespace| {
        for definitions in busy_support::SYSTEMS {
            ns.cluster().crds(definitions).await?;
        }
        ns.cluster().belay_with(busy_support::values()?).await?;
        body(ns).await
    });
}

/// Creates the Deployment `web`, protects it by a policy with these further lines, and waits until both are seen; with
/// its only pod, the victim to be.
pub(crate) async fn protected_web(web: Web<'_>, spec: &str) -> anyhow::Result<(Workload, PodInfo)> {
    let ns = web.namespace();
    let web = web.create().await?;
    web.available(SOON).await?;
    ns.apply(&policy(web.name(), spec)).await?;
    protected(ns, web.name()).await?;
    let victim = web.only_pod().await?;
    Ok((web, victim))
}

/// The holds of the namespace.
pub(crate) async fn holds(ns: &Namespace) -> anyhow::Result<Vec<Value>> {
    ns.holds().await
}

/// The one hold of a victim.
pub(crate) async fn hold_of(ns: &Namespace, victim: &PodInfo) -> anyhow::Result<Value> {
    let all = holds(ns).await?;
    let mut found = all.into_iter().filter(|hold| hold["spec"]["victim"]["uid"] == *victim.uid);
    let hold = found.next().with_context(|| format!("no EvictionHold for {}", victim.name))?;
    ensure!(found.next().is_none(), "{} has more than one EvictionHold", victim.name);
    Ok(hold)
}

/// Waits until the hold of a victim has this phase, and gives it back.
pub(crate) async fn hold_in_phase(ns: &Namespace, victim: &PodInfo, phase: &str) -> anyhow::Result<Value> {
    ns.eventually(&format!("the hold of {} is {phase}", victim.name), SOON, async || {
        let hold = hold_of(ns, victim).await?;
        ensure!(hold["status"]["phase"] == *phase, "it is {}", hold["status"]);
        Ok(hold)
    })
    .await
}

/// How many pod template changes of ours a Deployment has seen: the records on it.
pub(crate) async fn restarts(ns: &Namespace, deployment: &str) -> anyhow::Result<usize> {
    let deployment = ns.get("deployment", deployment).await?;
    let records = deployment["metadata"]["annotations"]["belay.dev/handovers"].as_str().unwrap_or("[]");
    Ok(serde_json::from_str::<Vec<Value>>(records)?.len())
}

/// The Events on an object, as `reason: note`.
pub(crate) async fn events(ns: &Namespace, object: &str) -> anyhow::Result<Vec<String>> {
    let all = ns.list("events.events.k8s.io").await?;
    let about = all.iter().filter(|event| event["regarding"]["name"] == *object);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(about.map(|event| format!("{}: {}", text(&event["reason"]), text(&event["note"]))).collect())
}

/// Asks for the eviction of a pod by its name, as a client that neither cordons nor retries.
///
/// Gives back the refusal's message where it is held, `None` where it passed (or the pod is gone).
pub(crate) async fn evict(ns: &Namespace, pod: &str) -> anyhow::Result<Option<String>> {
    let pods: Api<Pod> = ns.api();
    match pods.evict(pod, &EvictParams::default()).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// Asks for the eviction of a pod again and again until it passes.
pub(crate) async fn evict_until_it_passes(ns: &Namespace, pod: &PodInfo) -> anyhow::Result<()> {
    ns.eventually(&format!("the eviction of {} passes", pod.name), SOON, async || match evict(ns, &pod.name).await? {
        None => Ok(()),
        Some(refusal) => bail!("{refusal}"),
    })
    .await
}

/// Waits until Belay has seen the workload protected by the policy, so that the next eviction meets it.
pub(crate) async fn protected(ns: &Namespace, policy: &str) -> anyhow::Result<()> {
    ns.protected(policy, SOON).await
}

/// Waits until a policy has this condition.
pub(crate) async fn condition(
    ns: &Namespace,
    policy: &str,
    kind: &str,
    status: &str,
    reason: &str,
) -> anyhow::Result<()> {
    ns.policy_condition(policy, [kind, status, reason], SOON).await
}

/// When a pod became ready, in whole seconds.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    Some(ready.last_transition_time.as_ref()?.0)
}

/// When a pod that is going was asked to go, in whole seconds: one grace period before its deletionTimestamp.
pub(crate) fn asked_to_go(pod: &Pod) -> Option<Timestamp> {
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    Some(pod.metadata.deletion_timestamp.as_ref()?.0 - grace)
}
