//! The webhook is away, or the API server does not trust it: the probe finds out, and says so to everybody who asks.

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Belay, Namespace, merge};
use http::{Request, StatusCode};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::client::Body;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, SYSTEM, fault, finally, metric, scale};
use crate::support::SOON;

/// The Pod of `helm test`.
const TEST_POD: &str = "belay-probe";

/// Waits until the leading controller says that the webhook is reached, or that it is not.
async fn reached(ns: &Namespace, belay: &Belay, expected: f64) -> anyhow::Result<()> {
    ns.eventually(&format!("belay_probe_reached is {expected}"), PATIENCE, async || {
        let text = belay.metrics(&belay.leader().await?).await?;
        let value = text.lines().find_map(|line| line.strip_prefix("belay_probe_reached "));
        ensure!(value.and_then(|value| value.parse().ok()) == Some(expected), "it is {value:?}");
        Ok(())
    })
    .await
}

/// Waits until an Event with this reason is told of the leading controller's own pod, and answers what it says.
async fn told(ns: &Namespace, belay: &Belay, reason: &str) -> anyhow::Result<String> {
    ns.eventually(&format!("an Event {reason}"), PATIENCE, async || {
        let leader = belay.leader().await?;
        let args = ["--namespace", SYSTEM, "get", "events.events.k8s.io", "-o", "json"];
        let list: Value = serde_json::from_str(&ns.cluster().kubectl(args).ok().await?)?;
        let mut events = list["items"].as_array().into_iter().flatten();
        let event = events.find(|event| event["reason"] == reason && event["regarding"]["uid"] == *leader.uid);
        Ok(event.context("there is none")?["note"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

/// What `belay probe` says and ends with.
async fn by_hand(belay: &Belay, attempts: &str) -> anyhow::Result<(Option<i32>, Value)> {
    let exit = belay.run(["probe", "--attempts", attempts, "-o", "json"]).await?.output().await?;
    let found = serde_json::from_str(&exit.stdout()).with_context(|| format!("{exit}"))?;
    Ok((exit.code, found))
}

async fn test_pod(ns: &Namespace) -> anyhow::Result<Option<Pod>> {
    let pods: Api<Pod> = Api::namespaced(ns.client(), SYSTEM);
    Ok(pods.get_opt(TEST_POD).await?)
}

#[test]
fn an_outage_of_the_webhook_is_told_and_so_is_its_end() {
    fault("probe", async |ns: &Namespace, belay: &Belay| {
        reached(ns, belay, 1.0).await?;
        let (code, found) = by_hand(belay, "20").await?;
        ensure!(code == Some(0) && found["result"] == "Reached", "{code:?}: {found}");
        let replicas: Vec<_> = belay.webhook_pods().await?.into_iter().map(|pod| pod.name).collect();
        let answered = found["replicas"].as_object().context("no replicas")?;
        ensure!(!answered.is_empty() && answered.keys().all(|name| replicas.contains(name)), "{found}");
        let exit = belay.helm_test().await?;
        ensure!(exit.success(), "{exit}");
        ensure!(test_pod(ns).await?.is_none(), "what has succeeded goes");

        let outage = Box::pin(async {
            scale(ns, belay, "webhook", 0).await?;
            reached(ns, belay, 0.0).await?;
            let note = told(ns, belay, "WebhookNotReached").await?;
            ensure!(note.contains("no webhook replica answered"), "{note}");
            let (code, found) = by_hand(belay, "2").await?;
            ensure!(code == Some(3) && found["reason"] == "Silent", "{code:?}: {found}");
            let exit = belay.helm_test().await?;
            ensure!(!exit.success() && exit.text().contains(TEST_POD), "{exit}");
            ensure!(test_pod(ns).await?.is_some(), "what has failed stays for its log");
            let log = ns.cluster().kubectl(["--namespace", SYSTEM, "logs", TEST_POD]).ok().await?;
            ensure!(log.contains("no webhook replica answered the API server"), "{log}");
            Ok(())
        });
        Box::pin(finally(outage, scale(ns, belay, "webhook", 2))).await?;
        reached(ns, belay, 1.0).await?;
        told(ns, belay, "WebhookReached").await?;
        let leader = belay.leader().await?;
        for result in ["Reached", "NotReached"] {
            let count = metric(belay, &leader, &format!("belay_probes_total{{result=\"{result}\"}}")).await?;
            ensure!(count >= 1.0, "{result} is counted {count} times");
        }
        let exit = belay.helm_test().await?;
        ensure!(exit.success(), "{exit}");
        ensure!(test_pod(ns).await?.is_none(), "the one that failed is gone as well");
        Ok(())
    });
}

#[test]
fn an_entry_that_trusts_somebody_else_is_told_by_what_is_wrong_with_it() {
    const KIND: &str = "validatingwebhookconfiguration";

    fault("probe-trust", async |ns: &Namespace, belay: &Belay| {
        let body = async {
            // Else they repair it at once.
            scale(ns, belay, "controller", 0).await?;
            let others = ns.get("configmap", "kube-root-ca.crt").await?["data"]["ca.crt"].clone();
            let others = ByteString(others.as_str().context("the cluster has a CA")?.as_bytes().to_vec());
            let spoil = async |entries: &[&str]| {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|name| json!({ "name": name, "clientConfig": { "caBundle": others } }))
                    .collect();
                let patch = json!({ "webhooks": entries }).to_string();
                ns.kubectl(["patch", KIND, "belay", "--type=strategic", "--patch", &patch]).ok().await
            };
            spoil(&["eviction.hold.belay.dev"]).await?;
            let (code, found) = by_hand(belay, "1").await?;
            ensure!(code == Some(3) && found["reason"] == "OtherAuthority", "{code:?}: {found}");
            spoil(&["canary.hold.belay.dev"]).await?;
            ns.eventually("the API server trusts nobody", SOON, async || {
                let (code, found) = by_hand(belay, "1").await?;
                ensure!(code == Some(3) && found["reason"] == "Silent", "{code:?}: {found}");
                Ok(())
            })
            .await
        };
        finally(body, scale(ns, belay, "controller", 2)).await?;
        reached(ns, belay, 1.0).await
    });
}

#[test]
fn only_a_dry_run_that_says_so_in_belays_own_namespace_is_a_probe() {
    fault("probe-match", async |ns: &Namespace, belay: &Belay| {
        reached(ns, belay, 1.0).await?;
        let ask = async |namespace: &str, query: &str, annotations: Value, more: Value| {
            let metadata = json!({ "name": "belay-canary", "namespace": namespace, "annotations": annotations });
            let mut eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata });
            merge(&mut eviction, &more);
            let path = format!("/api/v1/namespaces/{namespace}/pods/belay-canary/eviction{query}");
            let request = Request::post(path).header("content-type", "application/json");
            let answer = ns.client().send(request.body(Body::from(eviction.to_string().into_bytes()))?).await?;
            ensure!(answer.status() == StatusCode::NOT_FOUND, "{}: there is no such pod", answer.status());
            let mut warnings = answer.headers().get_all("warning").iter().filter_map(|value| value.to_str().ok());
            anyhow::Ok(warnings.any(|warning| warning.contains("reached")))
        };
        let marked = || json!({ "belay.dev/probe": "0123456789abcdef" });
        let in_body = json!({ "deleteOptions": { "dryRun": ["All"] } });
        ensure!(ask(SYSTEM, "?dryRun=All", marked(), json!({})).await?, "it is a probe");
        for (what, is_asked) in [
            ("a real eviction", ask(SYSTEM, "", marked(), json!({})).await?),
            ("a dry run by its body alone", ask(SYSTEM, "", marked(), in_body).await?),
            ("a dry run of somebody else's", ask(SYSTEM, "?dryRun=All", json!({}), json!({})).await?),
            ("a dry run in another namespace", ask(ns.name(), "?dryRun=All", marked(), json!({})).await?),
        ] {
            ensure!(!is_asked, "{what} came to the canary");
        }
        let asked = ns.cluster().writes_by("system:serviceaccount:belay-system:belay-controller")?;
        let asked: Vec<_> = asked.into_iter().filter(|write| write.resource == "pods/eviction").collect();
        ensure!(
            !asked.is_empty() && asked.iter().all(|write| write.dry_run && write.name == "belay-canary"),
            "{asked:?}"
        );
        Ok(())
    });
}
