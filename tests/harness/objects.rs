//! CustomResourceDefinitions and audit records.

use anyhow::ensure;
use belay_e2e::world::{self, Namespace};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

/// Each definition, and an object with everything of it that a rule reads.
const SHAPES: [(&str, &str, &str, &str); 4] = [
    (include_str!("../crds/actions.github.com.yaml"), "actions.github.com", "v1alpha1", "EphemeralRunner"),
    (include_str!("../crds/agones.dev.yaml"), "agones.dev", "v1", "GameServer"),
    (include_str!("../crds/tekton.dev.yaml"), "tekton.dev", "v1", "TaskRun"),
    (include_str!("../crds/argoproj.io.yaml"), "argoproj.io", "v1alpha1", "Workflow"),
];

#[test]
fn definitions_keep_the_fields_that_tell_what_a_pod_is_doing() {
    world::test("shapes", async |ns: &Namespace| {
        for (definitions, group, version, kind) in SHAPES {
            // Twice at once: several tests of one run do so.
            let (one, two) = tokio::join!(ns.cluster().crds(definitions), ns.cluster().crds(definitions));
            one.and(two)?;
            let api = ns.custom(&ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)));
            let (spec, status, by_status) = shape(kind);
            let object: DynamicObject = serde_json::from_value(json!({
                "apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": { "name": "one" },
                "spec": spec, "status": status,
            }))?;
            let made = api.create(&PostParams::default(), &object).await?;
            ensure!(made.data["status"].is_null() == by_status, "{kind}: {}", made.data);
            let patch = Patch::Merge(json!({ "status": status }));
            let written = if by_status {
                api.patch_status("one", &PatchParams::default(), &patch).await?
            } else {
                api.patch("one", &PatchParams::default(), &patch).await?
            };
            for (field, value) in status.as_object().into_iter().flatten() {
                ensure!(
                    written.data["status"][field] == *value,
                    "{kind}: {field} is {}",
                    written.data["status"][field]
                );
            }
        }
        Ok(())
    });
}

/// A spec, a status, and whether the status has a subresource of its own.
fn shape(kind: &str) -> (Value, Value, bool) {
    match kind {
        "EphemeralRunner" => (
            json!({ "githubConfigSecret": "s", "githubConfigUrl": "u", "runnerScaleSetId": 1 }),
            json!({ "phase": "Running", "ready": true, "jobId": "a", "jobRequestId": 1, "workflowRunId": 17_000_000_000_i64 }),
            true,
        ),
        "GameServer" => (
            json!({ "template": { "spec": { "containers": [] } } }),
            json!({ "state": "Allocated", "reservedUntil": null, "nodeName": "n" }),
            false,
        ),
        "TaskRun" => (
            json!({ "taskRef": { "name": "t" } }),
            json!({ "podName": "p", "conditions": [{ "type": "Succeeded", "status": "Unknown", "reason": "Running" }] }),
            true,
        ),
        _ => (json!({ "entrypoint": "main" }), json!({ "phase": "Running" }), false),
    }
}

#[test]
fn writes_to_pods_are_told_by_namespace() {
    world::test("writes", async |ns: &Namespace| {
        ns.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: other}}").await?;
        ns.pod(json!({ "metadata": { "name": "one" } })).await?;
        // Nobody of Belay's is here.
        let account = "system:serviceaccount:belay-system:somebody";
        let groups = ["--as-group=system:masters", "--as-group=system:serviceaccounts"];
        let label = |dry_run: &'static str| {
            ns.kubectl(["label", "pod", "one", "a=b", "--overwrite", dry_run, "--as", account].iter().chain(&groups))
        };
        label("--dry-run=server").ok().await?;
        label("--dry-run=none").ok().await?;
        let all = ns.cluster().writes_by(account)?;
        let mine = ns.pod_writes()?;
        ensure!(mine.len() == 2 && all.len() == 2, "{all:?}");
        ensure!(mine.iter().all(|write| write.name == "one" && write.verb == "patch"), "{mine:?}");
        ensure!(mine.iter().filter(|write| write.dry_run).count() == 1, "{mine:?}");
        Ok(())
    });
}
