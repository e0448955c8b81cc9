//! A whole test cluster: control plane, played nodes and network, tools. On a runtime of its own.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OnceCell, oneshot};

use super::belay::Belay;
use super::namespace::{self, Namespace};
use super::{report, waiting};
use crate::audit;
use crate::control_plane::{ControlPlane, Identity, Options};
use crate::network::Network;
use crate::node_agent::NodeAgent;
use crate::process::Spawner;
use crate::programs::Programs;
use crate::service_proxy::ServiceProxy;
use crate::tools::Tool;

/// How long tasks may take to notice the end of the runtime; they all only wait for sockets and timers.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(5);

/// A new namespace is of use once the controller-manager has given it a ServiceAccount.
const NAMESPACE_WITHIN: Duration = Duration::from_secs(30);

/// A running cluster. Clones are the same cluster; it stops when the last one is dropped.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    runtime: Handle,
    parts: Arc<Parts>,
    namespaces: AtomicUsize,
    /// Set once the shared Belay is installed.
    belay: OnceCell<()>,
    /// The CustomResourceDefinitions that tests have installed, as they were given.
    definitions: tokio::sync::Mutex<BTreeSet<String>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Parts {
    programs: Programs,
    network: Arc<Network>,
    agent: NodeAgent,
    proxy: ServiceProxy,
    control_plane: ControlPlane,
}

impl Cluster {
    /// The cluster of this process, started by whoever asks first. Blocks.
    ///
    /// # Panics
    /// When it cannot be started, with the reason.
    #[expect(clippy::panic, reason = "without a cluster every test of the process fails, for the same reason")]
    pub fn shared() -> Self {
        static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Self::start(Options::default()).map_err(|error| format!("{error:#}")));
        match shared {
            Ok(cluster) => cluster.clone(),
            Err(error) => panic!("no test cluster: {error}"),
        }
    }

    /// Starts a cluster. Blocks, for some ten seconds, and for minutes when its programs have yet to be built.
    ///
    /// # Errors
    /// When programs are missing and cannot be built, or do not start.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        let programs = Programs::ensure()?;
        let (tell, started) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("test-cluster".into())
            .spawn(move || run(programs, options, &tell, ended))
            .context("cannot start a thread")?;
        let (runtime, parts) = started.recv().context("the thread of the test cluster ended")??;
        Ok(Self(Arc::new(Inner {
            runtime,
            parts,
            namespaces: AtomicUsize::new(0),
            belay: OnceCell::new(),
            definitions: tokio::sync::Mutex::default(),
            end: Some(end),
            thread: Some(thread),
        })))
    }

    /// Runs a future on this thread, with the cluster's runtime for its timers, sockets and tasks.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.runtime.block_on(future)
    }

    /// The cluster's runtime, for tasks that outlive a test.
    pub fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    /// A cluster administrator's client, which never retries by itself.
    pub fn client(&self) -> kube::Client {
        self.control_plane().client()
    }

    /// The administrator's kubeconfig file.
    pub fn kubeconfig(&self) -> std::path::PathBuf {
        self.control_plane().kubeconfig(Identity::Admin)
    }

    /// The control plane, to stop, kill and start its components.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.0.parts.control_plane
    }

    /// What plays the nodes.
    pub fn node_agent(&self) -> &NodeAgent {
        &self.0.parts.agent
    }

    /// The pods' network: where an address of a pod is really listened to.
    pub fn network(&self) -> &Arc<Network> {
        &self.0.parts.network
    }

    /// How many connections the API server has asked for to a Service, such as a webhook's, so far.
    pub fn connections_to(&self, namespace: &str, service: &str) -> u64 {
        self.0.parts.proxy.connections_to(namespace, service)
    }

    /// The programs that the cluster was started from.
    pub fn programs(&self) -> &Programs {
        &self.0.parts.programs
    }

    /// kubectl as cluster administrator.
    pub fn kubectl<S: AsRef<str>>(&self, args: impl IntoIterator<Item = S>) -> Tool {
        self.tool(&self.0.parts.programs.kubectl, args)
    }

    /// Helm as cluster administrator.
    pub fn helm<S: AsRef<str>>(&self, args: impl IntoIterator<Item = S>) -> Tool {
        self.tool(&self.0.parts.programs.helm, args)
    }

    /// A program of cluster administrators.
    pub(super) fn tool<S: AsRef<str>>(&self, program: &Path, args: impl IntoIterator<Item = S>) -> Tool {
        // Their caches and settings go to the work folder: nothing of the user's is read or left behind.
        let home = self.control_plane().folder().join("home");
        Tool::new(self.control_plane().spawner().clone(), program, args)
            .env("KUBECONFIG", self.kubeconfig())
            .env("HELM_CACHE_HOME", home.join("helm/cache"))
            .env("HELM_CONFIG_HOME", home.join("helm/config"))
            .env("HELM_DATA_HOME", home.join("helm/data"))
            .env("KUBECACHEDIR", home.join("kube"))
            .env("HOME", home)
    }

    /// A new namespace called `name` with a number behind it.
    ///
    /// # Errors
    /// When the API server refuses it or the controller-manager does not prepare it.
    pub async fn namespace(&self, name: &str) -> anyhow::Result<Namespace> {
        let number = self.0.namespaces.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("{name}-{number}");
        let object: NamespaceObject = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
        Api::all(self.client())
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("cannot create the namespace {name}"))?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), &name);
        waiting::eventually(&format!("a ServiceAccount in the namespace {name}"), NAMESPACE_WITHIN, async || {
            Ok(accounts.get("default").await.map(drop)?)
        })
        .await?;
        Ok(Namespace::new(self.clone(), name))
    }

    /// Adds simulated nodes that take any pod.
    ///
    /// # Errors
    /// When they do not become Ready.
    pub async fn add_nodes(&self, names: &[String]) -> anyhow::Result<()> {
        namespace::add_nodes(self, names, &json!({})).await
    }

    /// Installs the chart with these values on simulated nodes of its own, as a user would, or brings an installed one
    /// to them.
    ///
    /// # Errors
    /// When Belay's program cannot be built or Helm fails, with what Helm said and the logs of Belay's pods.
    pub async fn install_belay(&self, values: Value) -> anyhow::Result<Belay> {
        Belay::install(self, values).await
    }

    /// The Belay that this cluster's tests share, installed by the first who asks, with the chart's own defaults.
    ///
    /// # Errors
    /// As [`Cluster::install_belay`].
    pub async fn belay(&self) -> anyhow::Result<Belay> {
        self.belay_with(json!({})).await
    }

    /// As [`Cluster::belay`], with values of the process's own: the same ones whoever asks first.
    ///
    /// # Errors
    /// As [`Cluster::install_belay`].
    pub async fn belay_with(&self, values: Value) -> anyhow::Result<Belay> {
        let install = async || self.install_belay(values).await.map(drop);
        self.0.belay.get_or_try_init(install).await?;
        Ok(Belay::of(self))
    }

    pub(super) fn definitions(&self) -> &tokio::sync::Mutex<BTreeSet<String>> {
        &self.0.definitions
    }

    /// Kills the containers of a pod with SIGKILL; they are restarted as by a kubelet.
    ///
    /// # Errors
    /// When no such pod runs.
    pub fn kill_pod(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        self.node_agent().crash(namespace, pod)
    }

    /// Lets all containers of a pod end by themselves with this exit code.
    ///
    /// # Errors
    /// When no such pod runs.
    pub fn finish_pod(&self, namespace: &str, pod: &str, exit_code: i32) -> anyhow::Result<()> {
        self.node_agent().finish(namespace, pod, None, exit_code)
    }

    /// What the programs of a pod wrote, over all of their restarts.
    ///
    /// # Errors
    /// When the pod ran no program.
    pub fn pod_log(&self, namespace: &str, pod: &str) -> anyhow::Result<String> {
        let files = self.node_agent().logs(namespace, pod);
        if files.is_empty() {
            return Err(anyhow!("the pod {namespace}/{pod} ran no program"));
        }
        let mut text = String::new();
        for file in files {
            let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok(text)
    }

    /// Writes that the API server answered to the users whose name starts with this, oldest first.
    ///
    /// # Errors
    /// When the audit log cannot be read.
    pub fn writes_by(&self, user_prefix: &str) -> anyhow::Result<Vec<audit::Write>> {
        audit::writes(&self.control_plane().audit_log(), user_prefix)
    }

    /// Where a pod's port is really listened to.
    ///
    /// # Errors
    /// When `address` is no IPv4 address.
    pub fn reach(&self, address: &str, port: u16) -> anyhow::Result<SocketAddr> {
        let address = address.parse().with_context(|| format!("{address:?} is no IPv4 address"))?;
        Ok(self.network().reach(address, port))
    }

    /// What a namespace and Belay look like now, for a person who asks why a test failed.
    pub async fn report(&self, namespace: &str) -> String {
        report::of(self, namespace).await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Started = anyhow::Result<(Handle, Arc<Parts>)>;

/// The life of a cluster, on a thread of its own.
fn run(programs: Programs, options: Options, tell: &std::sync::mpsc::Sender<Started>, ended: oneshot::Receiver<()>) {
    let runtime = match Builder::new_multi_thread().thread_name("test-cluster").enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = tell.send(Err(anyhow!(error).context("cannot start a runtime")));
            return;
        }
    };
    match runtime.block_on(start_parts(programs, options)) {
        Ok(parts) => {
            let _ = tell.send(Ok((runtime.handle().clone(), parts.clone())));
            runtime.block_on(async {
                let _ = ended.await;
                parts.control_plane.stop_all().await;
            });
        }
        Err(error) => {
            let _ = tell.send(Err(error));
        }
    }
    runtime.shutdown_timeout(SHUTDOWN_WITHIN);
}

async fn start_parts(programs: Programs, options: Options) -> anyhow::Result<Arc<Parts>> {
    let spawner = Arc::new(Spawner::new(Handle::current())?);
    let control_plane = ControlPlane::start(&programs, options, spawner).await?;
    let network = Arc::new(Network::new(control_plane.octet()));
    let proxy = ServiceProxy::start(control_plane.client(), network.clone(), &control_plane.proxy_socket())?;
    let agent = NodeAgent::start(&control_plane, network.clone()).await?;
    Ok(Arc::new(Parts { programs, network, agent, proxy, control_plane }))
}
