//! A real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as local processes.
//!
//! Everything listens on addresses of the instance's own octet, everything is kept in its work folder, and everything
//! waits by condition: `start` returns when the API server says it is ready and the controllers are seen to work.
//! A fault test stops, kills and starts one component while the rest goes on.

mod component;
mod flags;
mod kubeconfig;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use parking_lot::Mutex;

use crate::instance::Instance;
use crate::process::Spawner;
use crate::programs::Programs;
use component::Supervised;
use flags::Layout;

pub use component::Problems;
pub use flags::{Component, Options};
pub use kubeconfig::{Identity, client_from, write_kubeconfig};

/// How long a component may take to become ready on a busy machine; the slowest seen took 9 s.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// How long a component may take to end on SIGTERM: etcd takes 7 s with the API server connected, the others less.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// How often a condition of the control plane itself is asked for while it starts.
const POLL: Duration = Duration::from_millis(50);

/// What dies with the machine that an API server runs on. The controllers beside it, too: where they survive it, they
/// wait for up to half a minute before they look again, each kind of object apart, and then it is Kubernetes' endpoints
/// that lag behind its pods and cost requests.
const MACHINE: [Component; 3] = [Component::ApiServer, Component::ControllerManager, Component::Scheduler];

/// A running control plane. Dropping it kills its programs at once and removes its work folder.
pub struct ControlPlane {
    // Dropped in this order: first the programs, then the folder they write to.
    components: [Mutex<Option<Supervised>>; 4],
    layout: Layout,
    client: kube::Client,
    problems: Arc<Problems>,
    spawner: Arc<Spawner>,
    took: Duration,
    instance: Instance,
}

impl ControlPlane {
    /// Starts all four programs and waits until the cluster works: the API server is ready and the
    /// controller-manager has made the default ServiceAccount.
    ///
    /// # Errors
    /// When a program ends or is not ready in time, with the last lines of its log.
    pub async fn start(programs: &Programs, options: Options, spawner: Arc<Spawner>) -> anyhow::Result<Self> {
        let started = Instant::now();
        let instance = Instance::claim()?;
        let layout = Layout::prepare(&instance, programs.clone(), options)?;
        let client = client_from(&layout.kubeconfig(Identity::Admin)).await?;
        let mut control_plane = Self {
            components: Default::default(),
            layout,
            client,
            problems: Arc::default(),
            spawner,
            took: Duration::ZERO,
            instance,
        };
        for component in Component::ALL {
            control_plane.start_component(component).await?;
        }
        control_plane.took = started.elapsed();
        Ok(control_plane)
    }

    /// How long the start took.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// A cluster administrator's client, without retries of its own.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The instance's octet A.
    pub fn octet(&self) -> u8 {
        self.instance.octet()
    }

    /// The work folder: logs in `logs/`, the audit log in `audit.log`.
    pub fn folder(&self) -> &Path {
        self.instance.folder()
    }

    /// The kubeconfig of an identity of this cluster.
    pub fn kubeconfig(&self, identity: Identity) -> PathBuf {
        self.layout.kubeconfig(identity)
    }

    /// Where the API server listens.
    pub fn server(&self) -> SocketAddr {
        self.layout.server
    }

    /// The authority that signed the API server's certificate.
    pub fn authority(&self) -> PathBuf {
        self.layout.pki.authority_file()
    }

    /// The Unix socket where the API server expects a proxy into the pods' network.
    pub fn proxy_socket(&self) -> PathBuf {
        self.layout.proxy_socket()
    }

    /// The API server's audit log: one JSON event a line, of every write.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log()
    }

    /// What forks this cluster's programs.
    pub fn spawner(&self) -> &Arc<Spawner> {
        &self.spawner
    }

    /// Programs of this control plane that ended without being told to.
    pub fn problems(&self) -> &Arc<Problems> {
        &self.problems
    }

    /// The process id of a component, while it runs.
    pub fn process_id(&self, component: Component) -> Option<u32> {
        self.slot(component).lock().as_ref().map(Supervised::id)
    }

    /// Starts a component that was stopped or killed; returns when it is ready.
    ///
    /// # Errors
    /// When it runs already, ends, or is not ready in time.
    pub async fn start_component(&self, component: Component) -> anyhow::Result<()> {
        if self.slot(component).lock().as_ref().is_some_and(Supervised::is_running) {
            bail!("{component} runs already");
        }
        let command = self.layout.command(component);
        let log = self.layout.log(component);
        let supervised = Supervised::start(component, command, &log, &self.spawner, self.problems.clone()).await?;
        *self.slot(component).lock() = Some(supervised);
        self.ready(component).await
    }

    /// SIGTERM, and waits for the end: its port stays taken until then.
    ///
    /// # Errors
    /// When the component does not run.
    pub async fn stop(&self, component: Component) -> anyhow::Result<()> {
        self.take(component)?.stop(STOP_WITHIN).await;
        Ok(())
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// When the component does not run.
    pub async fn kill(&self, component: Component) -> anyhow::Result<()> {
        self.take(component)?.stop(Duration::ZERO).await;
        Ok(())
    }

    /// The machine dies that the API server, the controllers and the scheduler run on; etcd lives on.
    ///
    /// # Errors
    /// When one of them does not run.
    pub async fn lose_machine(&self) -> anyhow::Result<()> {
        for component in MACHINE {
            self.kill(component).await?;
        }
        Ok(())
    }

    /// What died in [`ControlPlane::lose_machine`] runs again; returns when it is ready.
    ///
    /// # Errors
    /// As [`ControlPlane::start_component`].
    pub async fn raise_machine(&self) -> anyhow::Result<()> {
        for component in MACHINE {
            self.start_component(component).await?;
        }
        Ok(())
    }

    /// Ends everything, clients of the API server before the API server before etcd.
    ///
    /// By SIGKILL: what they would save on SIGTERM is thrown away with the work folder, and the API server would wait
    /// for its watchers.
    pub async fn stop_all(&self) {
        for component in Component::ALL.into_iter().rev() {
            let supervised = self.slot(component).lock().take();
            if let Some(supervised) = supervised {
                supervised.stop(Duration::ZERO).await;
            }
        }
    }

    fn slot(&self, component: Component) -> &Mutex<Option<Supervised>> {
        &self.components[component as usize]
    }

    fn take(&self, component: Component) -> anyhow::Result<Supervised> {
        self.slot(component).lock().take().with_context(|| format!("{component} does not run"))
    }

    async fn ready(&self, component: Component) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let not_yet = match self.probe(component).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if let Some(ended) = self.problems.of(component) {
                bail!("{ended}");
            }
            if started.elapsed() > READY_WITHIN {
                bail!(
                    "{component} is not ready after {} s: {not_yet:#}\n{}",
                    READY_WITHIN.as_secs(),
                    component::tail(&self.layout.log(component))
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn probe(&self, component: Component) -> anyhow::Result<()> {
        match component {
            Component::Etcd => {
                tokio::net::TcpStream::connect(self.layout.etcd).await?;
            }
            Component::ApiServer => {
                let request = http::Request::get("/readyz").body(Vec::new())?;
                self.client.request_text(request).await?;
            }
            // The default ServiceAccount is the first thing that a controller-manager does for everybody to see.
            Component::ControllerManager => {
                tokio::net::TcpStream::connect(self.layout.controller_manager).await?;
                let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
                accounts.get("default").await?;
            }
            // Serves its health endpoints before it schedules; scheduling itself needs nodes, which are not there yet.
            Component::Scheduler => {
                tokio::net::TcpStream::connect(self.layout.scheduler).await?;
            }
        }
        Ok(())
    }
}
