//! The upgrade from an earlier chart: the values that a team keeps are taken as they are, nothing that was installed goes,
//! and no pod is restarted without a reason.
//!
//! `upgrade/manifest.yaml` is what an earlier chart rendered from `upgrade/values.yaml`, hooks left out.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::{self, Namespace};
use serde_json::{Value, json};

use crate::chart::{self, Objects};
use crate::program;

/// The namespace that the manifest is for.
const NAMESPACE: &str = "earlier-system";

/// What of a pod template may differ from the manifest's, and so restart every pod at the upgrade: the configuration file
/// was rendered anew, and has more in it. Whoever adds a line says why that restart is due.
const DUE: &[&str] = &[
    "/metadata/annotations/checksum~1config",
    // The default was less than what the first list of 50,000 pods takes.
    "/spec/containers/0/resources/limits/memory",
];

/// The same of environment variables: new ones, which programs of before do without.
const DUE_VARIABLES: &[&str] = &["BELAY_VALIDATING_CONFIGURATION"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("chart/upgrade")
}

fn values() -> Value {
    let text = std::fs::read_to_string(folder().join("values.yaml")).expect("the values can be read");
    chart::parse(&text).remove(0)
}

/// The earlier chart's manifest.
fn manifest() -> String {
    std::fs::read_to_string(folder().join("manifest.yaml")).expect("the manifest can be read")
}

/// What the present chart makes of the same values.
fn present() -> Objects {
    let manifest = chart::template(&values(), &["--namespace", NAMESPACE, "--no-hooks"]);
    Objects::of(chart::parse(&manifest.unwrap_or_else(|error| panic!("the values are refused: {error}"))))
}

/// The template of a Deployment's pods, without what may differ.
fn template(deployment: &Value) -> Value {
    let mut template = deployment["spec"]["template"].clone();
    for pointer in DUE {
        if let Some(place) = template.pointer_mut(pointer) {
            *place = Value::Null;
        }
    }
    if let Some(variables) = template.pointer_mut("/spec/containers/0/env").and_then(Value::as_array_mut) {
        variables.retain(|variable| !DUE_VARIABLES.iter().any(|due| variable["name"] == *due));
    }
    template
}

#[test]
fn nothing_that_was_installed_goes_and_no_pod_differs_without_a_reason() {
    let (before, after) = (Objects::of(chart::parse(&manifest())), present());
    let kept = after.names();
    let gone: Vec<String> = before.names().into_iter().filter(|name| !kept.contains(name)).collect();
    assert_eq!(gone, [] as [String; 0]);
    let mut compared = 0;
    for old in before.of_kind("Deployment") {
        let new = after.get("Deployment", old["metadata"]["name"].as_str().expect("a name"));
        assert_eq!(new["spec"]["selector"], old["spec"]["selector"], "no API server takes another selector");
        assert_eq!(template(new), template(old), "see DUE");
        compared += 1;
    }
    assert_eq!(compared, 2);
}

#[test]
fn the_program_reads_the_earlier_configuration() {
    let before = Objects::of(chart::parse(&manifest()));
    let config = program::read_of(before.get("ConfigMap", "earlier-config"));
    assert_eq!(config.eviction_hold.default_policy.namespaces, ["shop"]);
    assert_eq!(config.deletion_cost.node_pools, ["general"]);
}

/// A chart that renders the earlier manifest, whatever its values are.
fn earlier_chart(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder.join("templates"))?;
    let version = env!("CARGO_PKG_VERSION");
    std::fs::write(folder.join("Chart.yaml"), format!("apiVersion: v2\nname: belay\nversion: {version}\n"))?;
    // It has nothing in it that Helm would take for a template.
    std::fs::write(folder.join("templates/all.yaml"), manifest())
}

async fn deployments(ns: &Namespace) -> anyhow::Result<Vec<Value>> {
    let text = ns.cluster().kubectl(["get", "deployments", "-n", NAMESPACE, "-o", "json"]).ok().await?;
    let list: Value = serde_json::from_str(&text)?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    ensure!(items.len() == 2, "{} Deployments", items.len());
    Ok(items)
}

/// The revisions of the Deployments' rollouts, once their controller has seen the last change.
async fn revisions(ns: &Namespace) -> anyhow::Result<Vec<String>> {
    ns.eventually("the Deployments are observed", Duration::from_secs(30), async || {
        let mut revisions = Vec::new();
        for deployment in deployments(ns).await? {
            let (seen, meant) = (&deployment["status"]["observedGeneration"], &deployment["metadata"]["generation"]);
            ensure!(seen == meant, "generation {seen} of {meant}");
            let revision = &deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
            revisions.push(revision.as_str().context("no revision yet")?.to_owned());
        }
        Ok(revisions)
    })
    .await
}

#[test]
fn an_upgrade_restarts_the_pods_for_a_changed_configuration_and_for_nothing_else() {
    assert!(!manifest().contains("{{"));
    let config = |objects: &Objects| objects.get("ConfigMap", "earlier-config")["data"]["config.yaml"].clone();
    let present_config = config(&present());
    let is_due = config(&Objects::of(chart::parse(&manifest()))) != present_config;
    world::test("chart-earlier", async |ns: &Namespace| {
        let cluster = ns.cluster();
        let earlier = cluster.control_plane().folder().join("earlier-chart");
        earlier_chart(&earlier)?;
        let (earlier, present) = (earlier.display().to_string(), chart::folder().display().to_string());
        let here = ["belay", "--namespace", NAMESPACE, "--no-hooks"];
        let install = [&["install", "--create-namespace"], &here[..], &[&earlier, "-f", "-"]].concat();
        cluster.helm(install).stdin(&values().to_string()).ok().await?;
        let before = revisions(ns).await?;
        ensure!(before == ["1", "1"], "{before:?}");

        // That takes the defaults of the earlier chart, too.
        let reused = [&["upgrade"], &here[..], &[&present, "--reuse-values"]].concat();
        let told = cluster.helm(reused).output().await?;
        ensure!(!told.success() && told.to_string().contains("Use --reset-then-reuse-values"), "{told}");

        // As docs/upgrade.md says.
        let upgrade = [&["upgrade"], &here[..], &[&present, "--reset-then-reuse-values"]].concat();
        cluster.helm(upgrade).ok().await?;
        let text = cluster.kubectl(["get", "configmap", "earlier-config", "-n", NAMESPACE, "-o", "json"]).ok().await?;
        let found: Value = serde_json::from_str(&text)?;
        ensure!(found["data"]["config.yaml"] == present_config, "{found}");
        let after = revisions(ns).await?;
        let expected = if is_due { ["2", "2"] } else { ["1", "1"] };
        ensure!(after == expected, "{after:?} instead of {expected:?}");

        cluster.helm([&["uninstall", "--wait"], &here[..]].concat()).ok().await?;
        cluster.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"]).ok().await?;
        // The namespace of this test stays free of all that.
        ensure!(json!(ns.list("deployments").await?) == json!([]));
        Ok(())
    });
}
