//! What a real API server and the real Helm make of the chart. No node is ever Ready here, so the pods stay Pending:
//! what the program does is tested elsewhere, this is about the objects.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::programs;
use belay_e2e::world::{self, Namespace};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::chart::{self, Objects};
use crate::matrix;

/// Every kind of object that the chart makes by default, and Secrets.
const NAMESPACED: &str = "configmaps,deployments,networkpolicies,poddisruptionbudgets,rolebindings,roles,secrets,\
                          serviceaccounts,services";
const CLUSTER_SCOPED: &str = "clusterrolebindings,clusterroles,customresourcedefinitions,\
                              mutatingwebhookconfigurations,validatingwebhookconfigurations";

/// Kinds whose status controllers write; for the others even the resource version must not move.
const WITH_STATUS: &[&str] = &["CustomResourceDefinition", "Deployment", "PodDisruptionBudget"];

/// Runs Helm on the chart: `helm install belay CHART --namespace NS -f - MORE`.
async fn helm(ns: &Namespace, action: &str, values: &Value, more: &[&str]) -> anyhow::Result<()> {
    let folder = chart::folder();
    let chart = folder.to_str().context("the path is not UTF-8")?;
    // No program runs here, so the cleanup Job would never end.
    let mut arguments = vec![action, "belay", chart, "--namespace", ns.name(), "--no-hooks", "-f", "-"];
    if action == "upgrade" {
        // Else Helm takes empty values for "those of the revision before".
        arguments.push("--reset-values");
    }
    arguments.extend(more);
    ns.cluster().helm(arguments).stdin(&values.to_string()).ok().await?;
    Ok(())
}

async fn items(ns: &Namespace, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
    let text = ns.kubectl([&["get", "-o", "json"], arguments].concat()).ok().await?;
    let list: Value = serde_json::from_str(&text)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Every object of the release, by `kind/name`, as Helm left it: without what controllers add later.
async fn objects(ns: &Namespace) -> anyhow::Result<BTreeMap<String, Value>> {
    let label = ["-l", "app.kubernetes.io/instance=belay"];
    let mut found = items(ns, &[&[NAMESPACED], &label[..]].concat()).await?;
    found.extend(items(ns, &[&[CLUSTER_SCOPED], &label[..]].concat()).await?);
    // Other tests have releases of that name, in namespaces of their own.
    found.retain(|object| object["metadata"]["annotations"]["meta.helm.sh/release-namespace"] == ns.name());
    for object in &mut found {
        let has_status = WITH_STATUS.iter().any(|kind| object["kind"] == *kind);
        if let Some(map) = object.as_object_mut().filter(|_| has_status) {
            map.remove("status");
            let metadata = map["metadata"].as_object_mut().context("an object without metadata")?;
            metadata.remove("resourceVersion");
            if let Some(managers) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
                managers.retain(|manager| manager["subresource"] != "status");
            }
        }
    }
    Ok(found.into_iter().map(|object| (chart::name(&object), object)).collect())
}

/// Waits until the controllers have written what they write once.
async fn settled(ns: &Namespace) -> anyhow::Result<()> {
    let observed = async || {
        for object in items(ns, &["deployments,poddisruptionbudgets"]).await? {
            let observed = &object["status"]["observedGeneration"];
            ensure!(*observed == object["metadata"]["generation"], "{} is not observed yet", chart::name(&object));
        }
        for crd in items(ns, &["customresourcedefinitions"]).await? {
            let conditions = crd["status"]["conditions"].as_array().into_iter().flatten();
            let established = conditions.into_iter().any(|one| one["type"] == "Established" && one["status"] == "True");
            ensure!(established, "{} is not established yet", chart::name(&crd));
        }
        Ok(())
    };
    ns.eventually("controllers have seen every object", Duration::from_secs(30), observed).await
}

/// Writes the field that Belay's controller owns, as it does: with a field manager of its own, outside of Helm.
async fn set_ca_bundles(ns: &Namespace) -> anyhow::Result<()> {
    let certificates = ns.get("configmap", "kube-root-ca.crt").await?;
    let bundle = certificates["data"]["ca.crt"].as_str().context("the cluster has a CA")?;
    let bundle = ByteString(bundle.as_bytes().to_vec());
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        for configuration in items(ns, &[kind, "--field-selector=metadata.name=belay"]).await? {
            let entries = configuration["webhooks"].as_array().into_iter().flatten();
            let entries = entries.map(|entry| json!({ "name": entry["name"], "clientConfig": { "caBundle": bundle } }));
            let patch = json!({ "webhooks": entries.collect::<Vec<_>>() }).to_string();
            let manager = "--field-manager=belay-controller";
            ns.kubectl(["patch", kind, "belay", "--type=strategic", manager, "-p", &patch]).ok().await?;
        }
    }
    Ok(())
}

/// What differs between two states of the release, for people.
fn differences(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Vec<String> {
    let names = before.keys().chain(after.keys());
    let changed = names.filter(|name| before.get(*name) != after.get(*name));
    let mut texts: Vec<String> = changed
        .map(|name| {
            let text =
                |objects: &BTreeMap<String, Value>| objects.get(name).map_or("absent".to_owned(), Value::to_string);
            format!("{name}\n  was {}\n  is  {}", text(before), text(after))
        })
        .collect();
    texts.dedup();
    texts
}

/// Rules and capabilities come and go in upgrades, and with them their webhook entries, whatever the program wrote into
/// those.
async fn entries_follow_the_values(ns: &Namespace, how: &str) -> anyhow::Result<()> {
    let entries = async || {
        let configuration = ns.get("mutatingwebhookconfiguration", "belay").await?;
        let entries = configuration["webhooks"].as_array().cloned().unwrap_or_default();
        let complete = entries.iter().all(|entry| !entry["clientConfig"]["service"].is_null());
        ensure!(complete, "what is left of an entry is no entry: {configuration}");
        let names = entries.iter().filter_map(|entry| entry["name"].as_str().map(str::to_owned));
        let mut names: Vec<String> = names.collect();
        names.sort();
        anyhow::Ok(names)
    };
    let (handover, plain, runner) = ("pod.handover.belay.dev", "plain.busy.belay.dev", "runner.busy.belay.dev");
    let mut values = json!({ "busyHints": { "enabled": true } });
    for (rules, expected) in [
        (json!([matrix::runner_rule()]), &[handover, runner][..]),
        (json!([matrix::plain_rule(), matrix::runner_rule()]), &[plain, handover, runner]),
        (json!([matrix::plain_rule()]), &[plain, handover]),
    ] {
        values["busyHints"]["rules"] = rules;
        helm(ns, "upgrade", &values, &[how]).await?;
        let found = entries().await?;
        ensure!(found == expected, "{found:?} instead of {expected:?}");
        set_ca_bundles(ns).await?;
    }
    settled(ns).await?;
    let before = objects(ns).await?;
    helm(ns, "upgrade", &values, &[how]).await?;
    let changed = differences(&before, &objects(ns).await?);
    ensure!(changed.is_empty(), "an upgrade with the same rules changed\n{}", changed.join("\n"));
    let binding = "binding.cost.belay.dev";
    for (values, expected) in [
        (json!({ "deletionCost": { "enabled": true } }), &[binding, handover][..]),
        (matrix::cost_alone(), &[binding]),
        (json!({}), &[handover]),
    ] {
        helm(ns, "upgrade", &values, &[how]).await?;
        let found = entries().await?;
        ensure!(found == expected, "{found:?} instead of {expected:?}");
        set_ca_bundles(ns).await?;
    }
    Ok(())
}

#[test]
fn upgrades_change_nothing_and_uninstalling_leaves_only_the_crds() {
    world::test("chart", async |ns: &Namespace| {
        helm(ns, "install", &json!({}), &[]).await?;
        set_ca_bundles(ns).await?;
        settled(ns).await?;
        let installed = objects(ns).await?;
        let mut expected = Objects::render(&json!({})).names();
        expected.retain(|name| !name.starts_with("Namespace/"));
        ensure!(installed.keys().eq(&expected), "{:?} instead of {expected:?}", installed.keys());

        // Twice as Helm 4 does it, by server-side apply, and once as Helm 3 does, by a three-way merge.
        for more in [&[][..], &[], &["--server-side=false"]] {
            helm(ns, "upgrade", &json!({}), more).await?;
            let changed = differences(&installed, &objects(ns).await?);
            ensure!(changed.is_empty(), "upgrade {more:?} changed\n{}", changed.join("\n"));
        }
        let mut manifests = Vec::new();
        for revision in ["1", "2", "3", "4"] {
            manifests.push(
                ns.cluster().helm(["get", "manifest", "belay", "-n", ns.name(), "--revision", revision]).ok().await?,
            );
        }
        ensure!(manifests.iter().all(|manifest| *manifest == manifests[0]), "the revisions' manifests differ");

        for how in ["--server-side=true", "--server-side=false"] {
            entries_follow_the_values(ns, how).await.context(how)?;
        }

        // Off and on again: what a capability brought goes and comes back.
        for values in [matrix::cost_alone(), json!({ "evictionHold": { "enabled": false } })] {
            helm(ns, "upgrade", &values, &[]).await?;
            let off = Objects::render(&values).names();
            let left: Vec<String> = objects(ns).await?.into_keys().collect();
            ensure!(left == off, "{left:?} instead of {off:?}");
        }
        helm(ns, "upgrade", &json!({}), &[]).await?;
        let back: Vec<String> = objects(ns).await?.into_keys().collect();
        ensure!(back == expected, "{back:?} instead of {expected:?}");

        ns.apply(POLICY).await?;
        ns.cluster().helm(UNINSTALL.into_iter().chain(["--namespace", ns.name()])).ok().await?;
        let left: Vec<String> = objects(ns).await?.into_keys().collect();
        ensure!(left == KEPT, "{left:?} are left");
        let in_namespace = items(ns, &[NAMESPACED]).await?;
        let in_namespace: Vec<String> = in_namespace.iter().map(chart::name).collect();
        ensure!(in_namespace == ["ConfigMap/kube-root-ca.crt", "ServiceAccount/default"], "{in_namespace:?} are left");
        ns.get("handoverpolicy", "web").await.context("the user's policy is kept with its CRD")?;

        // A later installation takes the kept ones over, and may be told to take them with it.
        let values = json!({ "crds": { "keep": false } });
        helm(ns, "install", &values, &[]).await?;
        ns.get("handoverpolicy", "web").await?;
        ns.cluster().helm(UNINSTALL.into_iter().chain(["--namespace", ns.name()])).ok().await?;
        let left: Vec<String> = objects(ns).await?.into_keys().collect();
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    });
}

/// As everywhere here, without the cleanup Job.
const UNINSTALL: [&str; 4] = ["uninstall", "belay", "--wait", "--no-hooks"];

const KEPT: [&str; 2] =
    ["CustomResourceDefinition/evictionholds.belay.dev", "CustomResourceDefinition/handoverpolicies.belay.dev"];

const POLICY: &str = "
apiVersion: belay.dev/v1alpha1
kind: HandoverPolicy
metadata:
  name: web
spec:
  targetRef:
    kind: Deployment
    name: web
";

#[test]
fn the_api_server_knows_every_field_that_any_option_makes() {
    world::test("chart-fields", async |ns: &Namespace| {
        // A Pod by itself is admitted only where its account is there, which a dry run does not make.
        ns.kubectl(["create", "serviceaccount", "strict-probe"]).ok().await?;
        for definitions in [programs::cert_manager, programs::prometheus_operator] {
            let definitions = tokio::task::spawn_blocking(definitions).await;
            ns.cluster().crds(&definitions.context("the download was interrupted")??).await?;
        }
        for case in matrix::cases() {
            let mut values = case.values;
            // A name of its own keeps it apart from another test's release.
            values["fullnameOverride"] = json!("strict");
            let manifest = chart::template(&values, &["--namespace", ns.name()]).map_err(anyhow::Error::msg)?;
            let as_helm = ["apply", "--server-side", "--force-conflicts"];
            let arguments = [&as_helm[..], &["--dry-run=server", "--validate=strict", "-f", "-"]].concat();
            let exit = ns.kubectl(arguments).stdin(&manifest).output().await?;
            ensure!(exit.success(), "{}: {exit}", case.name);
        }
        Ok(())
    });
}

/// The commands of a page that change a webhook configuration called `belay`, as words, for one of this name.
fn patches(page: &str, name: &str) -> Vec<Vec<String>> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("kubectl "));
    let lines = lines.filter(|line| line.starts_with("patch ") && line.contains("webhookconfiguration belay "));
    let words = |line: &str| {
        let mut words = Vec::new();
        // What is quoted is one word.
        for (number, part) in line.split('\'').enumerate() {
            if number % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(|word| if word == "belay" { name } else { word }.to_owned()));
            }
        }
        words
    };
    lines.map(words).collect()
}

#[test]
fn the_runbook_lets_requests_pass_at_once_and_upgrades_go_on_from_there() {
    const RELEASE: &str = "runbook";
    world::test("chart-runbook", async |ns: &Namespace| {
        let values = |policy: &str| {
            json!({
                "fullnameOverride": RELEASE,
                "crds": { "enabled": false },
                "admission": {
                    "eviction": { "failurePolicy": policy },
                    "podCreation": { "failurePolicy": policy },
                },
            })
        };
        let policies = async || {
            let mut all = BTreeMap::new();
            for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
                let entries = ns.get(kind, RELEASE).await?["webhooks"].as_array().cloned().unwrap_or_default();
                for entry in entries {
                    ensure!(
                        !entry["clientConfig"]["service"].is_null(),
                        "what is left of an entry is no entry: {entry}"
                    );
                    let name = entry["name"].as_str().unwrap_or_default().to_owned();
                    all.insert(name, entry["failurePolicy"].as_str().unwrap_or_default().to_owned());
                }
            }
            anyhow::Ok(all)
        };
        // A release apart from that of another test.
        let folder = chart::folder().display().to_string();
        let helm = async |action: &[&str], policy: &str| {
            let here = [RELEASE, folder.as_str(), "--namespace", ns.name(), "--no-hooks", "-f", "-"];
            let arguments = [action, &here[..]].concat();
            ns.cluster().helm(arguments).stdin(&values(policy).to_string()).ok().await.map(drop)
        };
        helm(&["install"], "Fail").await?;
        let strict = policies().await?;
        let page = std::fs::read_to_string(chart::folder().join("../../docs/operations.md"))?;
        let commands = patches(&page, RELEASE);
        ensure!(commands.len() == 2, "{commands:?}");
        for command in &commands {
            ns.kubectl(command).ok().await?;
        }
        let mut expected = strict.clone();
        for entry in ["eviction.hold.belay.dev", "pod.handover.belay.dev"] {
            ensure!(expected.insert(entry.to_owned(), "Ignore".to_owned()).as_deref() == Some("Fail"), "{entry}");
        }
        let open = policies().await?;
        ensure!(open == expected, "{open:?} instead of {expected:?}");
        for (more, policy, expected) in [(&[][..], "Ignore", &expected), (&["--force-conflicts"], "Fail", &strict)] {
            let upgrade = [&["upgrade", "--reset-values"], more].concat();
            helm(&upgrade, policy).await.context(policy)?;
            let found = policies().await?;
            ensure!(found == *expected, "{found:?} instead of {expected:?}");
        }
        let uninstall = ["uninstall", RELEASE, "--wait", "--no-hooks", "--namespace", ns.name()];
        ns.cluster().helm(uninstall).ok().await.map(drop)
    });
}

#[test]
fn a_namespace_of_the_restricted_standard_admits_the_pods() {
    world::test("chart-restricted", async |ns: &Namespace| {
        let level = "pod-security.kubernetes.io/enforce=restricted";
        ns.cluster().kubectl(["label", "namespace", ns.name(), level]).ok().await?;
        for values in [json!({}), matrix::small()] {
            for (maker, template) in Objects::render(&values).pods() {
                let mut spec = template["spec"].clone();
                // The chart's own account is not installed here.
                spec["serviceAccountName"] = json!("default");
                let mut pod =
                    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "belay" }, "spec": spec });
                let admitted = create(ns, &pod).await?;
                ensure!(admitted.is_ok(), "{maker}: {admitted:?}");

                pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
                let refused = create(ns, &pod).await?;
                let complaint = refused.err().unwrap_or_default();
                ensure!(complaint.contains("violates PodSecurity"), "the namespace admits anything: {complaint}");
            }
        }
        Ok(())
    });
}

/// Whether the API server would create the object, and what it says if not.
async fn create(ns: &Namespace, object: &Value) -> anyhow::Result<Result<(), String>> {
    let arguments = ["create", "--dry-run=server", "-f", "-"];
    let exit = ns.kubectl(arguments).stdin(&object.to_string()).output().await?;
    Ok(if exit.success() { Ok(()) } else { Err(exit.to_string()) })
}
