//! Webhooks registered by Service, as on any cluster: the API server reaches them through the played network.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::{self, Namespace};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

const SOON: Duration = Duration::from_secs(30);

/// A webhook server that refuses everything and counts the calls.
struct Hook {
    calls: Arc<AtomicUsize>,
    authority: String,
    _server: AbortOnDropHandle<()>,
}

async fn serve_hook(ns: &Namespace, service: &str) -> anyhow::Result<Hook> {
    let name = format!("{service}.{}.svc", ns.name());
    let certified = rcgen::generate_simple_self_signed([name])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = ns.endpoint(service, 443).await?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, calls) = (acceptor.clone(), counted.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    refuse(request)
                });
                let connection = hyper::server::conn::http1::Builder::new();
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Ok(Hook { calls, authority: certified.cert.pem(), _server: AbortOnDropHandle::new(server) })
}

async fn refuse(request: http::Request<hyper::body::Incoming>) -> anyhow::Result<http::Response<Full<Bytes>>> {
    let review: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"], "allowed": false,
            "status": { "code": 429, "reason": "TooManyRequests", "message": "held for a test" },
        },
    });
    Ok(http::Response::new(Full::new(Bytes::from(answer.to_string()))))
}

fn configuration(ns: &Namespace, service: &str, authority: &str) -> anyhow::Result<ValidatingWebhookConfiguration> {
    let authority = serde_json::to_value(ByteString(authority.as_bytes().to_vec()))?;
    Ok(serde_json::from_value(json!({
        "metadata": { "name": ns.name() },
        "webhooks": [{
            "name": "hold.test.belay.dev",
            "clientConfig": { "service": { "namespace": ns.name(), "name": service }, "caBundle": authority },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": ns.name() } },
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail", "timeoutSeconds": 5,
        }],
    }))?)
}

async fn create_config_map(ns: &Namespace) -> kube::Result<ConfigMap> {
    let object = ConfigMap { metadata: kube::api::ObjectMeta::default(), ..ConfigMap::default() };
    let object = ConfigMap {
        metadata: kube::api::ObjectMeta { generate_name: Some("test-".into()), ..object.metadata },
        ..object
    };
    ns.api().create(&PostParams::default(), &object).await
}

#[test]
fn a_webhook_behind_a_service_is_called_by_the_api_server() {
    world::test("hook", async |ns: &Namespace| {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(ns.client());
        let hook = serve_hook(ns, "hook").await?;
        let object = configuration(ns, "hook", &hook.authority)?;
        configurations.create(&PostParams::default(), &object).await?;
        let refusal = ns
            .eventually("a creation to be refused by the webhook", SOON, async || match create_config_map(ns).await {
                Err(kube::Error::Api(status)) => Ok(status),
                other => anyhow::bail!("{other:?}"),
            })
            .await?;
        configurations.delete(ns.name(), &DeleteParams::default()).await?;
        ensure!(refusal.code == 429, "{refusal:?}");
        ensure!(refusal.message.contains("held for a test"), "{refusal:?}");
        ensure!(hook.calls.load(Ordering::SeqCst) > 0, "the webhook was not called");
        Ok(())
    });
}

#[test]
fn a_webhook_whose_service_has_no_endpoints_fails_by_its_policy() {
    world::test("no-hook", async |ns: &Namespace| {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(ns.client());
        ns.apply("{apiVersion: v1, kind: Service, metadata: {name: hook}, spec: {ports: [{port: 443}]}}").await?;
        let authority = rcgen::generate_simple_self_signed(["unused".to_owned()])?.cert.pem();
        let mut object = configuration(ns, "hook", &authority)?;
        configurations.create(&PostParams::default(), &object).await?;
        let error = ns
            .eventually("a creation to fail", SOON, async || match create_config_map(ns).await {
                Err(kube::Error::Api(status)) => Ok(status),
                other => anyhow::bail!("{other:?}"),
            })
            .await?;
        ensure!(error.message.contains(&format!("no ready endpoints of Service {}/hook", ns.name())), "{error:?}");

        configurations.delete(ns.name(), &DeleteParams::default()).await?;
        let hook = object.webhooks.as_mut().and_then(|hooks| hooks.first_mut()).context("no webhook")?;
        hook.failure_policy = Some("Ignore".into());
        configurations.create(&PostParams::default(), &object).await?;
        ns.eventually("a creation to pass", SOON, async || Ok(create_config_map(ns).await.map(drop)?)).await?;
        configurations.delete(ns.name(), &DeleteParams::default()).await?;
        Ok(())
    });
}
