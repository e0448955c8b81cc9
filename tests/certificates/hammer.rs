//! The load: calls of the API server to the webhook, and connections as an API server would make new ones.
//!
//! The API server keeps connections open, on which a certificate is looked at once. So besides calls through it, in
//! bursts of more than it keeps idle connections for, the hammer makes handshakes of its own with every ready replica,
//! trusting exactly what each live webhook entry says at that moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use belay_e2e::endpoints::{self, Endpoint};
use belay_e2e::network::Network;
use belay_e2e::service_proxy::SERVICE_NAME;
use belay_e2e::watching::{Change, changes};
use belay_e2e::world::{Namespace, PodInfo};
use futures::StreamExt as _;
use http::Request;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::client::Body;
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;
use webhook_certs::resolver::provider;

use crate::stage::{NAME, SYSTEM};
use crate::support::SOON;

/// Clients that call at the same moment: more than the 25 connections that the API server keeps idle
/// (kubernetes, `staging/src/k8s.io/client-go/transport/cache.go`, `idleConnsPerHost`), so each burst makes some anew.
const CLIENTS: usize = 32;

/// From one burst to the next. A hundred calls a second leave the machine to the others.
const BURST: Duration = Duration::from_millis(300);

/// From one handshake of the hammer's own to the next.
const HANDSHAKE: Duration = Duration::from_millis(50);

/// How long a handshake may take; a busy machine is no fault of the certificate.
const WITHIN: Duration = Duration::from_secs(10);

/// How many failures are kept as texts; the counts go on.
const KEPT: usize = 20;

/// A running load; it ends when dropped.
pub(crate) struct Hammer {
    tally: Arc<Mutex<Tally>>,
    seen: Seen,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// What became of everything so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Dry runs of evictions that Belay answered.
    pub(crate) evictions: u64,
    /// Dry runs of pod creations that the webhook let pass.
    pub(crate) creations: u64,
    /// New connections that trust only the live bundle.
    pub(crate) handshakes: u64,
    /// Of all of these.
    pub(crate) failed: u64,
    /// The first failures.
    pub(crate) failures: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { evictions, creations, handshakes, failed, failures } = self;
        write!(f, "{evictions} evictions and {creations} pod creations answered, {handshakes} handshakes made, ")?;
        write!(f, "{failed} failed")?;
        failures.iter().try_for_each(|failure| write!(f, "\n  {failure}"))
    }
}

/// What is seen of trust and of what is served. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Sight>>);

#[derive(Default)]
struct Sight {
    /// The `caBundle` of each entry, by its name.
    bundles: BTreeMap<&'static str, BTreeMap<String, Vec<u8>>>,
    endpoints: Vec<Endpoint>,
    /// What each replica serves, by its pod's name, and how many leaves that have been.
    leaves: BTreeMap<String, (Vec<CertificateDer<'static>>, usize)>,
}

impl Seen {
    /// What every live entry trusts.
    pub(crate) fn bundles(&self) -> Vec<(String, Vec<u8>)> {
        self.0.lock().bundles.values().flatten().map(|(entry, bundle)| (entry.clone(), bundle.clone())).collect()
    }

    /// What a replica serves.
    pub(crate) fn leaf_of(&self, pod: &str) -> Option<Vec<CertificateDer<'static>>> {
        self.0.lock().leaves.get(pod).map(|(chain, _)| chain.clone())
    }

    /// How many leaves this replica was seen to serve one after the other.
    pub(crate) fn leaves_of(&self, pod: &str) -> usize {
        self.0.lock().leaves.get(pod).map_or(0, |(_, count)| *count)
    }

    fn ready(&self) -> Vec<Endpoint> {
        self.0.lock().endpoints.iter().filter(|endpoint| endpoint.ready).cloned().collect()
    }

    fn note_leaf(&self, pod: &str, chain: &[CertificateDer<'_>]) {
        let mut sight = self.0.lock();
        let (known, count) = sight.leaves.entry(pod.to_owned()).or_default();
        if known.as_slice() != chain {
            *known = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
            *count += 1;
        }
    }
}

impl Hammer {
    /// Begins to evict this pod, create others like it, all as dry runs, and connect. Belay must hold its eviction.
    pub(crate) async fn start(ns: &Namespace, victim: &PodInfo) -> anyhow::Result<Self> {
        let (tally, seen) = (Arc::new(Mutex::new(Tally::default())), Seen::default());
        let mut tasks = follow(ns, &seen);
        ns.eventually("the webhook and what is trusted are seen", SOON, async || {
            ensure!(!seen.ready().is_empty() && seen.bundles().len() > 1, "not both yet");
            Ok(())
        })
        .await?;
        let runtime = ns.cluster().runtime();
        let mut spawn = |task: futures::future::BoxFuture<'static, ()>| {
            tasks.push(AbortOnDropHandle::new(runtime.spawn(task)));
        };
        let calls = [Call::eviction(ns.name(), victim)?, Call::creation(ns.name(), victim)?].map(Arc::new);
        let began = tokio::time::Instant::now();
        for number in 0..CLIENTS {
            let call = calls[number % calls.len()].clone();
            spawn(Box::pin(call_in_bursts(ns.client(), call, began, tally.clone())));
        }
        spawn(Box::pin(shake_hands(ns.cluster().network().clone(), seen.clone(), tally.clone())));
        Ok(Self { tally, seen, _tasks: tasks })
    }

    /// What it sees.
    pub(crate) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// What became of everything so far.
    pub(crate) fn so_far(&self) -> Tally {
        self.tally.lock().clone()
    }

    /// Waits until so many more calls of each kind were answered, and insists that none has failed since the start.
    pub(crate) async fn goes_on(&self, ns: &Namespace, after: &str) -> anyhow::Result<()> {
        const MORE: u64 = 100;
        let before = self.so_far();
        let tally = ns
            .eventually(&format!("calls go on after {after}"), SOON, async || {
                let now = self.so_far();
                let more = [
                    now.evictions - before.evictions,
                    now.creations - before.creations,
                    now.handshakes - before.handshakes,
                ];
                ensure!(now.failed > 0 || more.iter().all(|count| *count >= MORE), "{more:?} more");
                Ok(now)
            })
            .await?;
        eprintln!("after {after}: {tally}");
        ensure!(tally.failed == 0, "calls failed by the end of {after}: {tally}");
        Ok(())
    }
}

/// A request that reaches the webhook.
struct Call {
    path: String,
    body: String,
    /// What a warning must say, so that it is known that Belay answered.
    warning: &'static str,
    count: fn(&mut Tally) -> &mut u64,
}

impl Call {
    fn eviction(namespace: &str, victim: &PodInfo) -> anyhow::Result<Self> {
        let metadata = json!({ "name": victim.name, "namespace": namespace });
        let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata });
        Ok(Self {
            path: format!("/api/v1/namespaces/{namespace}/pods/{}/eviction?dryRun=All", victim.name),
            body: serde_json::to_string(&eviction)?,
            warning: "would be held",
            count: |tally| &mut tally.evictions,
        })
    }

    /// Another pod of the victim's ReplicaSet.
    fn creation(namespace: &str, victim: &PodInfo) -> anyhow::Result<Self> {
        let owners = &victim.pod.metadata.owner_references;
        let containers = victim.pod.spec.as_ref().map(|spec| &spec.containers);
        let image = containers.and_then(|all| all.first()).and_then(|one| one.image.as_ref()).context("no image")?;
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "generateName": "one-more-", "ownerReferences": owners },
            "spec": { "containers": [{ "name": "web", "image": image }] },
        });
        Ok(Self {
            path: format!("/api/v1/namespaces/{namespace}/pods?dryRun=All"),
            body: serde_json::to_string(&pod)?,
            warning: "",
            count: |tally| &mut tally.creations,
        })
    }

    async fn make(&self, client: &Client) -> anyhow::Result<()> {
        let request = Request::post(&self.path).header("content-type", "application/json");
        let response = client.send(request.body(Body::from(self.body.clone().into_bytes()))?).await?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let body = body.collect_bytes().await?;
            bail!("HTTP {}: {}", head.status, String::from_utf8_lossy(&body));
        }
        let warnings: Vec<_> = head.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect();
        ensure!(warnings.concat().contains(self.warning), "nobody said `{}` but {warnings:?}", self.warning);
        Ok(())
    }
}

/// All clients' ticks are the same moments.
async fn call_in_bursts(client: Client, call: Arc<Call>, began: tokio::time::Instant, tally: Arc<Mutex<Tally>>) {
    let mut ticks = tokio::time::interval_at(began, BURST);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let outcome = call.make(&client).await;
        note(&tally, call.count, outcome.with_context(|| format!("POST {}", call.path)));
    }
}

fn note(tally: &Mutex<Tally>, count: fn(&mut Tally) -> &mut u64, outcome: anyhow::Result<()>) {
    let mut tally = tally.lock();
    match outcome {
        Ok(()) => *count(&mut tally) += 1,
        Err(error) => {
            tally.failed += 1;
            if tally.failures.len() < KEPT {
                tally.failures.push(format!("{} {error:#}", belay_e2e::clock::now()));
            }
        }
    }
}

/// Connects to ready replicas in turn, trusting what one live entry after the other says.
async fn shake_hands(network: Arc<Network>, seen: Seen, tally: Arc<Mutex<Tally>>) {
    let mut ticks = tokio::time::interval(HANDSHAKE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in 0.. {
        ticks.tick().await;
        let (ready, bundles) = (seen.ready(), seen.bundles());
        // Each replica meets each entry.
        let (Some(endpoint), Some((entry, bundle))) =
            (ready.get(turn % ready.len().max(1)), bundles.get(turn / ready.len().max(1) % bundles.len().max(1)))
        else {
            let missing = anyhow::anyhow!("{} ready replicas, {} entries", ready.len(), bundles.len());
            note(&tally, |tally| &mut tally.handshakes, Err(missing));
            continue;
        };
        let outcome = tokio::time::timeout(WITHIN, connect(&network, endpoint, bundle)).await;
        let outcome = outcome.context("no handshake in time").and_then(|outcome| outcome);
        let outcome = outcome.with_context(|| format!("a handshake of {} as {entry} trusts", endpoint.pod));
        note(&tally, |tally| &mut tally.handshakes, outcome.map(|chain| seen.note_leaf(&endpoint.pod, &chain)));
    }
}

/// One handshake that trusts exactly this bundle; what is served.
async fn connect(
    network: &Network,
    endpoint: &Endpoint,
    bundle: &[u8],
) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    let stream = TcpStream::connect(network.reach(endpoint.address, endpoint.port)).await?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tls = connector.connect(ServerName::try_from(NAME)?, stream).await?;
    let served = tls.get_ref().1.peer_certificates().context("no certificate")?;
    Ok(served.iter().map(|certificate| certificate.clone().into_owned()).collect())
}

/// Keeps what is seen up to date.
fn follow(ns: &Namespace, seen: &Seen) -> Vec<AbortOnDropHandle<()>> {
    let client = ns.client();
    let runtime = ns.cluster().runtime();
    let spawn = |task: futures::future::BoxFuture<'static, ()>| AbortOnDropHandle::new(runtime.spawn(task));
    let of_belay = || watcher::Config::default().fields("metadata.name=belay");
    let (validating, mutating, slices) = (seen.clone(), seen.clone(), seen.clone());
    vec![
        spawn(Box::pin({
            let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
            each(api, of_belay(), move |config| {
                let entries = config.webhooks.into_iter().flatten();
                validating.trust("validating", entries.map(|one| (one.name, one.client_config)));
            })
        })),
        spawn(Box::pin({
            let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
            each(api, of_belay(), move |config| {
                let entries = config.webhooks.into_iter().flatten();
                mutating.trust("mutating", entries.map(|one| (one.name, one.client_config)));
            })
        })),
        spawn(Box::pin({
            let api: Api<EndpointSlice> = Api::namespaced(client, SYSTEM);
            let of_webhook = watcher::Config::default().labels(&format!("{SERVICE_NAME}=belay-webhook"));
            each(api, of_webhook, move |slice| {
                slices.0.lock().endpoints = endpoints::of_slices(std::iter::once(&slice), "https");
            })
        })),
    ]
}

impl Seen {
    fn trust(&self, kind: &'static str, entries: impl Iterator<Item = (String, WebhookClientConfig)>) {
        let bundles = entries.map(|(name, client)| (name, client.ca_bundle.map(|bundle| bundle.0).unwrap_or_default()));
        self.0.lock().bundles.insert(kind, bundles.collect());
    }
}

/// Tells every state of the objects of a watch.
async fn each<K>(api: Api<K>, config: watcher::Config, mut tell: impl FnMut(K))
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + fmt::Debug + Send + 'static,
    K::DynamicType: Default,
{
    let mut stream = std::pin::pin!(changes(api, config));
    while let Some(change) = stream.next().await {
        if let Change::Applied(object) = change {
            tell(object);
        }
    }
}
