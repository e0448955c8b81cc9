//! What `kubectl get` shows of Belay's objects, and that it fits a terminal.

use anyhow::{Context as _, ensure};
use belay_e2e::world::Namespace;

use crate::support::{SOON, evict, hold_of, protected_web, test_with_belay};

/// A terminal's, unless somebody changed it.
const TERMINAL: usize = 80;

/// The longest reason of a hold that waits: `ReplacementUnschedulable`.
const LONGEST_REASON: usize = 24;

/// kubectl's least: its head, and the gap.
const NAMESPACE_COLUMN: usize = "NAMESPACE".len() + 3;

#[test]
fn a_hold_of_a_pod_with_a_long_name_fits_a_terminal() {
    test_with_belay("columns", async |ns: &Namespace| {
        ns.nodes(2).await?;
        // With what ReplicaSet and pod add to it, a name of about thirty characters.
        let (_, victim) = protected_web(ns.web("payments-front"), "").await?;
        ensure!((28..=31).contains(&victim.name.len()), "{}", victim.name);
        ensure!(evict(ns, &victim.name).await?.is_some(), "{} was not held", victim.name);
        // Whether it waits still or is over by now: what is measured is the table.
        ns.eventually("the hold has a reason", SOON, async || {
            ensure!(!hold_of(ns, &victim).await?["status"]["reason"].is_null(), "it has none");
            Ok(())
        })
        .await?;
        let all = ["get", "evictionholds", "--all-namespaces", "--field-selector"];
        let table = ns.kubectl(all.iter().copied().chain([&*format!("metadata.namespace={}", ns.name())])).ok().await?;
        let mut lines = table.lines();
        let head: Vec<_> = lines.next().context("no head")?.split_whitespace().collect();
        ensure!(head == ["NAMESPACE", "NAME", "REASON", "AGE"], "{table}");
        let cells: Vec<_> = lines.next().context("no row")?.split_whitespace().collect();
        let [namespace, name, reason, age] = cells[..] else { anyhow::bail!("{table}") };
        ensure!(namespace == ns.name() && name.starts_with(&victim.name) && !reason.is_empty(), "{table}");
        // As kubectl lays it out, at the hold's widest.
        let within = name.len() + 3 + LONGEST_REASON + 3 + age.len().max("AGE".len() + 1);
        ensure!(within <= TERMINAL, "{within} columns: {table}");
        let over_all = NAMESPACE_COLUMN + name.len() + 3 + reason.len() + 3 + age.len();
        ensure!(reason.len() > 19 || over_all <= TERMINAL, "{over_all} columns: {table}");
        Ok(())
    });
}

#[test]
fn a_policys_target_is_shown_however_it_is_named() {
    test_with_belay("targets", async |ns: &Namespace| {
        let policy = |name: &str, target: &str| {
            format!(
                "apiVersion: belay.dev/v1alpha1\nkind: HandoverPolicy\nmetadata: {{name: {name}}}\nspec: {{{target}}}\n"
            )
        };
        let table = [
            ("by-name", "targetRef: {name: web}", "web"),
            ("by-labels", "selector: {matchLabels: {tier: front}}", r#"{"tier":"front"}"#),
            (
                "by-expressions",
                "selector: {matchExpressions: [{key: tier, operator: Exists}]}",
                r#"[{"key":"tier","operator":"Exists"}]"#,
            ),
        ];
        for (name, target, _) in table {
            ns.apply(&policy(name, target)).await?;
        }
        let shown = ns.kubectl(["get", "handoverpolicies"]).ok().await?;
        for (name, _, target) in table {
            let line = shown.lines().find(|line| line.starts_with(&format!("{name} "))).context("no such line")?;
            ensure!(line.split_whitespace().nth(1) == Some(target), "{shown}");
        }
        Ok(())
    });
}
