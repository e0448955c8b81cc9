//! Words for what Belay holds: policies, holds, and the records on what it changed.

use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;

use super::namespace::Namespace;

/// A HandoverPolicy for a Deployment, with further lines of its spec.
pub fn policy(name: &str, spec: &str) -> String {
    let more = spec.lines().map(|line| format!("  {}", line.trim_end())).collect::<Vec<_>>().join("\n");
    format!(
        "apiVersion: belay.dev/v1alpha1\nkind: HandoverPolicy\nmetadata: {{name: {name}}}\nspec:\n  targetRef: {{name: \
         {name}}}\n{more}\n"
    )
}

impl Namespace {
    /// The EvictionHolds in it.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn holds(&self) -> anyhow::Result<Vec<Value>> {
        self.list("evictionholds.belay.dev").await
    }

    /// Waits until a HandoverPolicy has this condition.
    ///
    /// # Errors
    /// When it has not `within` that time.
    pub async fn policy_condition(
        &self,
        policy: &str,
        [kind, status, reason]: [&str; 3],
        within: Duration,
    ) -> anyhow::Result<()> {
        let what = format!("HandoverPolicy {policy} is {kind}={status} ({reason})");
        self.eventually(&what, within, async || {
            let policy = self.get("handoverpolicies.belay.dev", policy).await?;
            let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.iter().any(|condition| {
                condition["type"] == *kind && condition["status"] == *status && condition["reason"] == *reason
            });
            ensure!(found, "its conditions are {conditions:?}");
            Ok(())
        })
        .await
    }

    /// Waits until Belay has seen the workloads of a HandoverPolicy protected, so that the next eviction meets it.
    ///
    /// # Errors
    /// When it has not `within` that time.
    pub async fn protected(&self, policy: &str, within: Duration) -> anyhow::Result<()> {
        self.policy_condition(policy, ["Protected", "True", "Protected"], within).await
    }
}
