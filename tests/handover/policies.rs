//! The chart's admission policies: what Belay keeps on objects is changed by nobody else, Belay changes nothing else, and
//! everything that Belay and others do with those objects goes on as without them.

use std::time::Duration;

use anyhow::ensure;
use belay_e2e::keda;
use belay_e2e::world::{Cluster, Namespace, Options, Web, merge, test_on};
use serde_json::{Value, json};

use crate::busy_support;
use crate::scene::{Scene, only_node, web};
use crate::stage::values;
use crate::support::{SOON, hold_in_phase, protected_web, restarts};
use crate::surge::{self, PATIENCE};

/// The user that the controller is to the API server.
const CONTROLLER: &str = "system:serviceaccount:belay-system:belay-controller";

/// What the API server begins the refusal with, before the policy's own words.
const RECORDS: &str = "ValidatingAdmissionPolicy 'belay-records'";
const LIMITS: &str = "ValidatingAdmissionPolicy 'belay-limits'";

/// Everything on, the policies too.
fn everything() -> anyhow::Result<Value> {
    let mut all = values();
    merge(&mut all, &busy_support::values()?);
    merge(&mut all, &json!({ "admissionPolicy": { "enabled": true }, "deletionCost": { "enabled": true } }));
    Ok(all)
}

/// What kubectl said to a command that has to be refused with these words.
async fn refused(ns: &Namespace, args: &[&str], words: &[&str]) -> anyhow::Result<()> {
    let exit = ns.kubectl(args).output().await?;
    let said = exit.to_string();
    ensure!(!exit.success(), "{args:?} passed");
    for word in words {
        ensure!(said.contains(word), "{args:?}: `{word}` is not in: {said}");
    }
    Ok(())
}

async fn passes(ns: &Namespace, args: &[&str]) -> anyhow::Result<()> {
    ns.kubectl(args).ok().await.map(drop)
}

#[test]
fn only_belay_writes_its_records_and_belay_writes_nothing_else() {
    let cluster = Cluster::start(Options::default()).unwrap();
    test_on(&cluster, "policies", async |ns: &Namespace| {
        keda::define(&cluster).await?;
        for definitions in busy_support::SYSTEMS {
            cluster.crds(definitions).await?;
        }
        let belay = cluster.install_belay(everything()?).await?;
        policies_are_in_force(ns).await?;

        a_busy_pod_is_told_and_its_record_is_left_alone(ns).await?;
        let released = cluster.namespace("policies-solo").await?;
        a_restart_goes_through_and_releases_go_on(&released).await?;
        for governor in ["deployment", "horizontalpodautoscaler"] {
            let other = cluster.namespace(&format!("policies-{governor}")).await?;
            a_surge_goes_through(&other, governor).await?;
        }
        a_copy_of_keda_passes(ns).await?;
        the_controller_can_do_no_more_than_it_does(ns, &released).await?;

        belay.uninstall().await?;
        let pod = ns.pod_info("busy").await?.pod;
        let left = serde_json::to_string(&pod.metadata.annotations)?;
        ensure!(!left.contains("belay.dev/"), "{left} is left");
        ns.eventually("the policies are gone", SOON, async || {
            passes(ns, &["annotate", "pod", "busy", "belay.dev/managed={}"]).await
        })
        .await
    });
}

/// Policies take effect some moments after they were written, and Kubernetes has nothing to say against their expressions.
async fn policies_are_in_force(ns: &Namespace) -> anyhow::Result<()> {
    ns.nodes(1).await?;
    busy_support::worker(ns, "marked", "none", "nothing").await?;
    ns.eventually("a forged record is refused", SOON, async || {
        refused(ns, &["annotate", "--dry-run=server", "pod", "marked", "belay.dev/managed={}"], &[RECORDS]).await
    })
    .await?;
    ns.eventually("the expressions are checked", SOON, async || {
        for policy in ["belay-records", "belay-limits"] {
            let policy = ns.get("validatingadmissionpolicy", policy).await?;
            let (checked, meant) = (&policy["status"]["observedGeneration"], &policy["metadata"]["generation"]);
            ensure!(checked == meant, "generation {checked} of {meant}");
            let warnings = &policy["status"]["typeChecking"]["expressionWarnings"];
            ensure!(warnings.is_null(), "{warnings}");
        }
        Ok(())
    })
    .await
}

async fn a_busy_pod_is_told_and_its_record_is_left_alone(ns: &Namespace) -> anyhow::Result<()> {
    busy_support::worker(ns, "busy", "patient", "idle").await?;
    ns.ready("busy", SOON).await?;
    busy_support::told(ns, "busy", busy_support::IDLE, busy_support::NOTHING).await?;
    busy_support::does(ns, "busy", "working").await?;
    busy_support::told(ns, "busy", busy_support::WORKING, busy_support::NOTHING).await?;
    let record = "only Belay writes the annotation belay.dev/managed";
    refused(ns, &["annotate", "pod", "busy", "belay.dev/managed-"], &[RECORDS, record]).await?;
    let both = ["annotate", "pod", "busy", "belay.dev/managed-", "belay.dev/busy-since-"];
    refused(ns, &both, &["belay.dev/managed, belay.dev/busy-since"]).await?;
    refused(ns, &["label", "pod", "busy", "belay.dev/busy-"], &["only Belay writes the label belay.dev/busy"]).await?;
    // Hints of other systems are anybody's, and so is everything else.
    passes(ns, &["annotate", "--overwrite", "pod", "busy", "karpenter.sh/do-not-disrupt=false", "example.com/x=y"])
        .await?;
    passes(ns, &["label", "pod", "busy", "example.com/x=y"]).await
}

async fn a_restart_goes_through_and_releases_go_on(ns: &Namespace) -> anyhow::Result<()> {
    let solo = ns.web("solo").ready_after(Duration::from_secs(1));
    ns.nodes(1).await?;
    let (solo, victim) = protected_web(solo, "").await?;
    // One for the replacement, and one for the old template's pod: the replacement keeps off it.
    ns.nodes(2).await?;
    let exit = ns.drain(&victim.node, &["--timeout=120s"]).await?.exit(PATIENCE).await?;
    ensure!(exit.success(), "{exit}");
    hold_in_phase(ns, &victim, "Completed").await?;
    ensure!(restarts(ns, "solo").await? == 1, "not one restart");

    let record = "only Belay writes the annotation belay.dev/handovers";
    refused(ns, &["annotate", "deployment", "solo", "belay.dev/handovers-"], &[RECORDS, record]).await?;
    refused(ns, &["annotate", "deployment", "solo", "belay.dev/surge={}"], &[RECORDS, "belay.dev/surge"]).await?;
    passes(ns, &["annotate", "deployment", "solo", "belay.dev/handover=Off"]).await?;
    passes(ns, &["scale", "deployment", "solo", "--replicas=2"]).await?;
    passes(ns, &["scale", "deployment", "solo", "--replicas=1"]).await?;
    passes(ns, &["rollout", "restart", "deployment", "solo"]).await?;
    // It brings the annotations of the first ReplicaSet back, which has no record of the handover.
    passes(ns, &["rollout", "undo", "deployment", "solo", "--to-revision=1"]).await?;
    ensure!(restarts(ns, "solo").await? == 0, "the old annotations are not back");
    solo.available(PATIENCE).await.map(drop)
}

async fn a_surge_goes_through(ns: &Namespace, governor: &str) -> anyhow::Result<()> {
    ns.nodes(1).await?;
    let served: Web<'_> = web(ns, 2).ready_after(Duration::from_secs(1));
    if governor == "horizontalpodautoscaler" {
        ns.apply(
            "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\nspec:\n  minReplicas: 2\n  \
             maxReplicas: 6\n  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}",
        )
        .await?;
    }
    let scene = Scene::set(served, "handover: Scale").await?;
    let node = only_node(&scene.pods)?;
    ns.nodes(1).await?;
    let drain = ns.drain(&node, &["--timeout=180s"]).await?;
    let record = surge::begun(ns, governor, "web").await?;
    ensure!(record["original"] == 2, "{record}");
    // Of whatever is there by now, none or another.
    let forged = ["annotate", "--overwrite", governor, "web", "belay.dev/surge={}"];
    refused(ns, &forged, &[RECORDS, "only Belay writes the annotation belay.dev/surge"]).await?;
    let exit = drain.exit(PATIENCE).await?;
    ensure!(exit.success(), "{exit}");
    ns.eventually("the number is what it was", PATIENCE, async || surge::none(ns, governor, "web").await).await?;
    let now = scene.at_rest().await?;
    scene.ensure_moved(&now, &[&node])
}

/// KEDA gives the autoscaler that it makes its ScaledObject's annotations, whatever they are.
async fn a_copy_of_keda_passes(ns: &Namespace) -> anyhow::Result<()> {
    ns.apply(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: web}\nspec:\n  scaleTargetRef: {name: none}\n  \
         triggers: [{type: cpu, metadata: {value: \"60\"}}]",
    )
    .await?;
    let scaled = ns.get("scaledobject", "web").await?;
    let uid = scaled["metadata"]["uid"].as_str().unwrap_or_default();
    ns.apply(&format!(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata:\n  name: keda-hpa-web\n  ownerReferences: \
         [{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, name: web, uid: {uid}, controller: true}}]\nspec:\n  \
         maxReplicas: 6\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: none}}"
    ))
    .await?;
    refused(ns, &["annotate", "scaledobject", "web", "belay.dev/surge={}"], &[RECORDS]).await?;
    passes(ns, &["annotate", "horizontalpodautoscaler", "keda-hpa-web", "belay.dev/surge={}"]).await?;
    a_copy_is_no_way_to_a_record(ns, uid).await
}

/// Whoever makes an object look like a copy of KEDA's, or takes that look from one, gets no record on it that counts.
async fn a_copy_is_no_way_to_a_record(ns: &Namespace, uid: &str) -> anyhow::Result<()> {
    ns.apply(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: own}\nspec:\n  maxReplicas: 6\n  \
         scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: none}",
    )
    .await?;
    web(ns, 1).create().await?;
    let owner = |controller: bool| {
        json!([{ "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "web", "uid": uid,
            "controller": controller }])
    };
    let surge = json!({ "belay.dev/surge": "{}" });
    let record = json!({ "belay.dev/managed": "{}" });
    let forged = [
        ("pod/busy", json!({ "ownerReferences": owner(false), "annotations": record })),
        ("pod/busy", json!({ "ownerReferences": owner(false), "labels": { "belay.dev/busy": null } })),
        ("deployment/web", json!({ "ownerReferences": owner(true), "annotations": surge })),
        ("horizontalpodautoscaler/own", json!({ "ownerReferences": owner(false), "annotations": surge })),
        // The copy's record, which means nothing, would become one.
        ("horizontalpodautoscaler/keda-hpa-web", json!({ "ownerReferences": null })),
    ];
    for (object, metadata) in &forged {
        let patch = json!({ "metadata": metadata }).to_string();
        refused(ns, &["patch", object, "--type=merge", "--patch", &patch], &[RECORDS]).await?;
    }
    // Nor by the way that is meant for status.
    for object in ["pod/busy", "deployment/web", "horizontalpodautoscaler/own"] {
        let patch = json!({ "metadata": { "annotations": { "belay.dev/surge": "{}" } } }).to_string();
        refused(ns, &["patch", object, "--subresource=status", "--type=merge", "--patch", &patch], &[RECORDS]).await?;
    }
    Ok(())
}

/// A dry run of a patch by the controller's account, and nothing but a patch: it may not read all that it may write.
async fn patched(ns: &Namespace, resource: &str, name: &str, body: String) -> kube::Result<()> {
    let group = match resource {
        "pod" => "api/v1",
        "deployment" => "apis/apps/v1",
        _ => "apis/autoscaling/v2",
    };
    let path = format!("/{group}/namespaces/{}/{resource}s/{name}?dryRun=All", ns.name());
    let request = http::Request::patch(path)
        .header("Impersonate-User", CONTROLLER)
        .header("Content-Type", "application/strategic-merge-patch+json")
        .body(body.into_bytes());
    ns.client().request::<Value>(request.map_err(kube::Error::HttpError)?).await.map(drop)
}

/// The Deployment is in the second namespace.
async fn the_controller_can_do_no_more_than_it_does(ns: &Namespace, released: &Namespace) -> anyhow::Result<()> {
    let place = |resource: &str| if resource == "deployment" { released } else { ns };
    let restart = "not change what they run";
    let spec = "how many replicas there are";
    let own = "annotations of its own on workloads";
    let patch = |patch: &Value| patch.to_string();
    let image =
        patch(&json!({ "spec": { "template": { "spec": { "containers": [{ "name": "web", "image": "x" }] } } } }));
    let cases = [
        ("deployment", "solo", image, restart),
        (
            "deployment",
            "solo",
            patch(&json!({ "spec": { "template": { "metadata": { "labels": { "x": "y" } } } } })),
            restart,
        ),
        (
            "deployment",
            "solo",
            patch(&json!({ "spec": { "template": { "metadata": { "annotations": { "x": "y" } } } } })),
            restart,
        ),
        ("deployment", "solo", patch(&json!({ "spec": { "paused": true } })), spec),
        ("deployment", "solo", patch(&json!({ "spec": { "minReadySeconds": 7 } })), spec),
        ("deployment", "solo", patch(&json!({ "metadata": { "labels": { "x": "y" } } })), own),
        ("deployment", "solo", patch(&json!({ "metadata": { "annotations": { "x": "y" } } })), own),
        (
            "deployment",
            "solo",
            patch(&json!({ "metadata": { "finalizers": ["example.com/x"] } })),
            "owners or finalizers",
        ),
        ("horizontalpodautoscaler", "keda-hpa-web", patch(&json!({ "spec": { "maxReplicas": 7 } })), spec),
        (
            "pod",
            "busy",
            patch(&json!({ "spec": { "containers": [{ "name": "main", "image": "x" }] } })),
            "of pods nothing of spec",
        ),
    ];
    let container = ns.pod_info("busy").await?.pod.spec.map(|spec| spec.containers[0].name.clone()).unwrap_or_default();
    for (resource, name, patch, words) in cases {
        let patch = patch.replace("\"main\"", &format!("\"{container}\""));
        let said = patched(place(resource), resource, name, patch)
            .await
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        ensure!(said.contains(LIMITS) && said.contains(words), "{resource} {name}: `{words}` is not in `{said}`");
    }
    for (resource, name, patch) in [
        ("deployment", "solo", json!({ "spec": { "replicas": 2 } })),
        (
            "deployment",
            "solo",
            json!({ "spec": { "template": { "metadata": { "annotations": { "belay.dev/restart": "b" } } } } }),
        ),
        ("horizontalpodautoscaler", "keda-hpa-web", json!({ "spec": { "minReplicas": 2 } })),
        ("pod", "busy", json!({ "metadata": { "annotations": { "example.com/hint": "true" } } })),
    ] {
        patched(place(resource), resource, name, patch.to_string()).await?;
    }
    Ok(())
}
