//! Words that the tests share.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Namespace, PodInfo};
use serde_json::Value;

/// Long enough for anything that happens within seconds on an idle machine; the tests run beside each other on two
/// cores.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A HandoverPolicy for a Deployment, with further lines of its spec.
pub(crate) fn policy(name: &str, spec: &str) -> String {
    let more: String = spec.lines().map(|line| format!("  {}\n", line.trim_end())).collect();
    format!(
        "apiVersion: belay.dev/v1alpha1\nkind: HandoverPolicy\nmetadata: {{name: {name}}}\nspec:\n  targetRef: {{name: \
         {name}}}\n{more}"
    )
}

/// The holds of the namespace.
pub(crate) async fn holds(ns: &Namespace) -> anyhow::Result<Vec<Value>> {
    ns.list("evictionholds.belay.dev").await
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
