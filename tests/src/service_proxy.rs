//! Plays kube-proxy for the API server: what it dials at a Service or a pod reaches what the pod really listens on.
//!
//! kube-apiserver can be told to dial the pods' network through an HTTP CONNECT proxy (`--egress-selector-config-file`,
//! made for clusters whose control plane lives in another network). This is that proxy, on a Unix socket in the work
//! folder. It knows Services and EndpointSlices from watches of its own, so webhooks are registered by Service as on
//! any cluster, and a replica that is not ready gets no calls.

use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::endpoints::{self, Endpoint};
use crate::network::Network;
use crate::watching::{Change, changes};

/// The label by which an EndpointSlice belongs to a Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The longest request that is read: the API server's is two lines.
const LONGEST_REQUEST: usize = 4096;

/// How long a connection to a pod of this machine may take; longer means that its queue is full.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The running proxy; dropping it closes the socket and all connections.
#[derive(Debug)]
pub struct ServiceProxy {
    routes: Arc<Routes>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl ServiceProxy {
    /// Starts to listen on `socket`.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(client: kube::Client, network: Arc<Network>, socket: &Path) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        let routes = Arc::new(Routes::new(network));
        Ok(Self {
            _tasks: [
                AbortOnDropHandle::new(tokio::spawn(follow(client, routes.clone()))),
                AbortOnDropHandle::new(tokio::spawn(serve(listener, routes.clone()))),
            ],
            routes,
        })
    }

    /// How many connections the API server has asked for to a Service so far.
    pub fn connections_to(&self, namespace: &str, service: &str) -> u64 {
        let name = (namespace.to_owned(), service.to_owned());
        self.routes.opened.lock().get(&name).copied().unwrap_or_default()
    }
}

/// Where connections go.
#[derive(Debug)]
struct Routes {
    network: Arc<Network>,
    tables: Mutex<Tables>,
    turn: AtomicUsize,
    /// Connections to Services, by namespace and name.
    opened: Mutex<HashMap<(String, String), u64>>,
}

#[derive(Debug, Default)]
struct Tables {
    /// By namespace and name.
    services: HashMap<(String, String), Service>,
    slices: HashMap<(String, String), EndpointSlice>,
}

/// Why a connection has nowhere to go; `Display` is what the API server puts into its error.
#[derive(Debug)]
enum Unroutable {
    NotAnAddress(String),
    NoEndpoints(String),
}

impl fmt::Display for Unroutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnAddress(target) => write!(f, "{target} is no IPv4 address with a port"),
            Self::NoEndpoints(service) => write!(f, "no ready endpoints of Service {service}"),
        }
    }
}

impl Routes {
    fn new(network: Arc<Network>) -> Self {
        Self { network, tables: Mutex::default(), turn: AtomicUsize::new(0), opened: Mutex::default() }
    }

    /// Where a connection to `target` goes: to a pod of the Service with that address, or to that address itself.
    fn route(&self, target: &str) -> Result<SocketAddr, Unroutable> {
        let target: SocketAddrV4 = target.parse().map_err(|_| Unroutable::NotAnAddress(target.to_owned()))?;
        let tables = self.tables.lock();
        let Some((service, port_name)) = tables.service(*target.ip(), target.port()) else {
            return Ok(self.network.reach(*target.ip(), target.port()));
        };
        let endpoints = tables.endpoints(service, &port_name);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
        let chosen = endpoints::choose(&endpoints, turn)
            .ok_or_else(|| Unroutable::NoEndpoints(format!("{namespace}/{name}")))?;
        *self.opened.lock().entry((namespace, name)).or_default() += 1;
        Ok(self.network.reach(chosen.address, chosen.port))
    }
}

impl Tables {
    fn service(&self, address: Ipv4Addr, port: u16) -> Option<(&Service, String)> {
        let address = address.to_string();
        self.services.values().find_map(|service| {
            let spec = service.spec.as_ref()?;
            let port = spec.ports.iter().flatten().find(|known| known.port == i32::from(port))?;
            let known = spec.cluster_ip.as_deref() == Some(address.as_str());
            known.then(|| (service, port.name.clone().unwrap_or_default()))
        })
    }

    fn endpoints(&self, service: &Service, port_name: &str) -> Vec<Endpoint> {
        let (namespace, name) = (service.namespace(), service.name_any());
        let slices = self
            .slices
            .values()
            .filter(|slice| slice.namespace() == namespace && slice.labels().get(SERVICE_NAME) == Some(&name));
        endpoints::of_slices(slices, port_name)
    }
}

async fn follow(client: kube::Client, routes: Arc<Routes>) {
    let everything = watcher::Config::default;
    let mut services = std::pin::pin!(changes::<Service>(Api::all(client.clone()), everything()));
    let mut slices = std::pin::pin!(changes::<EndpointSlice>(Api::all(client), everything()));
    loop {
        tokio::select! {
            Some(change) = services.next() => note(&mut routes.tables.lock().services, change),
            Some(change) = slices.next() => note(&mut routes.tables.lock().slices, change),
        }
    }
}

fn note<K: kube::Resource>(table: &mut HashMap<(String, String), K>, change: Change<K>) {
    match change {
        Change::Applied(object) => {
            let key = (object.namespace().unwrap_or_default(), object.name_any());
            table.insert(key, object);
        }
        Change::Gone(key) => {
            let name = (key.namespace, key.name);
            if table.get(&name).is_some_and(|known| known.uid().as_deref() == Some(&key.uid)) {
                table.remove(&name);
            }
        }
        Change::Synced => {}
    }
}

async fn serve(listener: UnixListener, routes: Arc<Routes>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let routes = routes.clone();
                connections.spawn(async move {
                    if let Err(error) = tunnel(stream, &routes).await {
                        tracing::debug!("a proxied connection ended: {error:#}");
                    }
                });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn tunnel(mut client: UnixStream, routes: &Routes) -> anyhow::Result<()> {
    let target = read_target(&mut client).await?;
    let connected = match routes.route(&target) {
        Ok(address) => match tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(format!("{target} at {address}: {error}")),
            Err(_) => Err(format!("{target} at {address}: no answer within {CONNECT_WITHIN:?}")),
        },
        Err(unroutable) => Err(unroutable.to_string()),
    };
    match connected {
        Ok(mut pod) => {
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            tokio::io::copy_bidirectional(&mut client, &mut pod).await?;
        }
        Err(why) => {
            let answer = format!("HTTP/1.1 503 {why}\r\nContent-Length: 0\r\n\r\n");
            client.write_all(answer.as_bytes()).await?;
        }
    }
    Ok(())
}

/// Reads `CONNECT host:port HTTP/1.1` and the headers after it, and nothing beyond: the client waits for the answer.
async fn read_target(client: &mut UnixStream) -> anyhow::Result<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        ensure!(request.len() < LONGEST_REQUEST, "a request longer than {LONGEST_REQUEST} bytes");
        let read = client.read_buf(&mut request).await?;
        ensure!(read > 0, "the connection ended within a request");
    }
    let request = String::from_utf8_lossy(&request);
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    ensure!(words.next() == Some("CONNECT"), "not a CONNECT request: {request}");
    words.next().map(str::to_owned).context("a CONNECT request without a target")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn routes() -> Routes {
        let service = json!({
            "metadata": { "namespace": "ns", "name": "hook" },
            "spec": { "clusterIP": "10.251.0.9", "ports": [{ "name": "https", "port": 443 }, { "name": "x", "port": 80 }] },
        });
        let slice = |namespace: &str, address: &str| {
            json!({
                "metadata": { "namespace": namespace, "name": address, "labels": { SERVICE_NAME: "hook" } },
                "addressType": "IPv4", "ports": [{ "name": "https", "port": 8443 }],
                "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
            })
        };
        let routes = Routes::new(Arc::new(Network::new(7)));
        {
            let mut tables = routes.tables.lock();
            note(&mut tables.services, Change::Applied(serde_json::from_value(service).unwrap()));
            for (namespace, address) in [("ns", "10.7.1.1"), ("ns", "10.7.1.2"), ("other", "10.7.1.3")] {
                let slice = serde_json::from_value(slice(namespace, address)).unwrap();
                note(&mut tables.slices, Change::Applied(slice));
            }
        }
        routes
    }

    #[test]
    fn a_service_leads_to_its_own_endpoints_in_turn() {
        let routes = routes();
        let mut reached: Vec<String> = (0..4).map(|_| routes.route("10.251.0.9:443").unwrap().to_string()).collect();
        reached.sort();
        reached.dedup();
        assert_eq!(reached, ["127.7.1.1:8443", "127.7.1.2:8443"]);
        assert_eq!(routes.opened.lock().get(&("ns".to_owned(), "hook".to_owned())), Some(&4));
    }

    #[test]
    fn what_is_no_service_is_reached_itself_and_what_has_no_endpoints_not_at_all() {
        let routes = routes();
        for (target, expected) in [
            ("10.7.3.4:80", Ok("127.7.3.4:80")),
            ("127.0.0.1:9", Ok("127.0.0.1:9")),
            ("10.251.0.9:80", Err("no ready endpoints of Service ns/hook")),
            ("hook.ns.svc:443", Err("hook.ns.svc:443 is no IPv4 address with a port")),
        ] {
            let reached = routes.route(target).map(|address| address.to_string());
            let reached = reached.map_err(|unroutable| unroutable.to_string());
            assert_eq!(reached.as_deref().map_err(String::as_str), expected, "{target}");
        }
    }
}
