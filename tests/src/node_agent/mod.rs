//! Plays the kubelets: every Node labelled `belay.dev/simulated=true` becomes Ready, and pods bound to it run.
//!
//! Pods of the image `belay.dev/web` are served by an HTTP server of this process, pods of an image that a program is
//! registered for ([`NodeAgent::play`]) run that program, and all others are containers that do nothing. Each pod has
//! an address of its own, is Ready only while it really serves, is stopped as a kubelet would stop it (preStop, grace
//! period, SIGKILL), and its object is deleted when it has ended.
//!
//! One watch of nodes, one of pods, one task a node for its heartbeat and one a pod. The agent keeps nothing that it
//! could not rebuild from a list, and every write is repeated until the API server has answered it, so an outage of
//! the API server only delays it, as it does a kubelet.

mod container;
mod environment;
mod kubelet;
mod node;
mod pod;
mod probe;
mod program;
mod status;
mod volumes;
mod web;

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use parking_lot::{Mutex, RwLock};
use tokio_util::task::AbortOnDropHandle;

use crate::control_plane::{ControlPlane, Identity, client_from};
use crate::network::Network;
use crate::process::Spawner;
use crate::watching::{Change, Key, changes};

pub use program::Program;

/// The label that hands a Node to the agent.
pub const SIMULATED: &str = "belay.dev/simulated";

/// The image of a web server that this process plays.
pub const WEB_IMAGE: &str = "belay.dev/web";

/// An image that nothing stands behind, as any other unknown one: its containers run and are Ready, and serve nothing.
pub const IDLE_IMAGE: &str = "belay.dev/idle";

/// Pod annotation: how long after its start a played container becomes Ready (`250ms`, `3s`, `2m`), or `never`.
pub const READY_AFTER: &str = "test.belay.dev/ready-after";

/// What every pod worker needs.
struct Host {
    client: kube::Client,
    network: Arc<Network>,
    spawner: Arc<Spawner>,
    server: SocketAddr,
    authority: PathBuf,
    /// Volumes and kubeconfigs of pods.
    pods: PathBuf,
    /// Logs of pods' programs.
    logs: PathBuf,
    /// Which logs are being written.
    writers: kubelet::Writers,
    /// What the nodes' own API is served with.
    tls: Arc<rustls::ServerConfig>,
    /// Registered programs by the last element of the image's name.
    programs: RwLock<BTreeMap<String, Program>>,
}

impl Host {
    fn log_file(&self, namespace: &str, pod: &str, container: &str) -> PathBuf {
        self.logs.join(format!("{namespace}_{pod}_{container}.log"))
    }
}

/// The running agent; dropping it stops everything it plays.
pub struct NodeAgent {
    host: Arc<Host>,
    state: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

impl NodeAgent {
    /// Starts to play the nodes of this control plane.
    ///
    /// # Errors
    /// When the work folder cannot be written.
    pub async fn start(control_plane: &ControlPlane, network: Arc<Network>) -> anyhow::Result<Self> {
        let folder = control_plane.folder();
        let host = Arc::new(Host {
            client: client_from(&control_plane.kubeconfig(Identity::NodeAgent)).await?,
            network,
            spawner: control_plane.spawner().clone(),
            server: control_plane.server(),
            authority: control_plane.authority(),
            pods: folder.join("pods"),
            logs: folder.join("logs/pods"),
            writers: kubelet::Writers::default(),
            tls: kubelet::tls()?,
            programs: RwLock::default(),
        });
        for made in [&host.pods, &host.logs] {
            std::fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
        }
        let state = Arc::new(Mutex::new(State::new(host.clone())));
        let task = AbortOnDropHandle::new(tokio::spawn(run(host.client.clone(), state.clone())));
        Ok(Self { host, state, _task: task })
    }

    /// From now on, containers whose image is called `image` (its last path element, without tag or digest) run this
    /// program.
    pub fn play(&self, image: &str, program: Program) {
        self.host.programs.write().insert(image.to_owned(), program);
    }

    /// Kills the containers of a pod with SIGKILL, as a crash would; they are restarted as by a kubelet.
    ///
    /// # Errors
    /// When no such pod is running on a simulated node.
    pub fn crash(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        self.state.lock().worker(namespace, pod)?.crash();
        Ok(())
    }

    /// Lets a container of a pod, or all of them, end by themselves with this exit code, as a program that has done
    /// its work. For played containers: those of no registered program.
    ///
    /// # Errors
    /// When no such pod is running on a simulated node.
    pub fn finish(&self, namespace: &str, pod: &str, container: Option<&str>, exit_code: i32) -> anyhow::Result<()> {
        self.state.lock().worker(namespace, pod)?.finish(container, exit_code);
        Ok(())
    }

    /// The log files of a pod's programs, which stay when the pod is gone.
    pub fn logs(&self, namespace: &str, pod: &str) -> Vec<PathBuf> {
        let prefix = self.host.log_file(namespace, pod, "");
        let prefix = prefix.with_extension("");
        let prefix = prefix.to_string_lossy();
        let mut files: Vec<PathBuf> = self.log_files();
        files.retain(|file| file.to_string_lossy().starts_with(&*prefix));
        files
    }

    /// The log files of all pods' programs so far, by name.
    pub fn log_files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.host.logs).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.sort();
        files
    }
}

async fn run(client: kube::Client, state: Arc<Mutex<State>>) {
    let simulated = watcher::Config::default().labels(&format!("{SIMULATED}=true"));
    let bound = watcher::Config::default().fields("spec.nodeName!=");
    let mut nodes = std::pin::pin!(changes::<Node>(Api::all(client.clone()), simulated));
    let mut pods = std::pin::pin!(changes::<Pod>(Api::all(client), bound));
    loop {
        tokio::select! {
            Some(change) = nodes.next() => state.lock().node_changed(change),
            Some(change) = pods.next() => state.lock().pod_changed(change),
        }
    }
}

/// What the agent knows and plays.
struct State {
    host: Arc<Host>,
    nodes: HashMap<String, node::Worker>,
    pods: HashMap<String, Tracked>,
}

/// A pod bound to some node; it has a worker while that node is simulated and there.
struct Tracked {
    pod: Arc<Pod>,
    node: String,
    worker: Option<pod::Worker>,
}

impl State {
    fn new(host: Arc<Host>) -> Self {
        Self { host, nodes: HashMap::new(), pods: HashMap::new() }
    }

    fn worker(&self, namespace: &str, pod: &str) -> anyhow::Result<&pod::Worker> {
        let mut named = self
            .pods
            .values()
            .filter(|tracked| tracked.pod.name_any() == pod && tracked.pod.namespace().as_deref() == Some(namespace));
        named
            .find_map(|tracked| tracked.worker.as_ref())
            .with_context(|| format!("no pod {namespace}/{pod} is running on a simulated node"))
    }

    fn node_changed(&mut self, change: Change<Node>) {
        match change {
            Change::Applied(node) => {
                let name = node.name_any();
                match self.nodes.get(&name).filter(|worker| worker.is_for(&node)) {
                    Some(worker) => worker.update(node),
                    None => match node::Worker::start(self.host.clone(), node) {
                        Ok(worker) => {
                            self.nodes.insert(name.clone(), worker);
                        }
                        Err(error) => tracing::error!(node = name, "cannot play a node: {error:#}"),
                    },
                }
                self.play_pods_of(&name);
            }
            Change::Gone(Key { name, uid, .. }) => {
                if self.nodes.get(&name).is_some_and(|worker| worker.uid() == uid) {
                    self.nodes.remove(&name);
                    // The machine is gone, and what ran on it; the pod garbage collector removes the objects.
                    for tracked in self.pods.values_mut().filter(|tracked| tracked.node == name) {
                        tracked.worker = None;
                    }
                }
            }
            Change::Synced => {}
        }
    }

    fn pod_changed(&mut self, change: Change<Pod>) {
        match change {
            Change::Applied(pod) => {
                let (Some(uid), Some(node)) = (pod.uid(), pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
                else {
                    return;
                };
                let pod = Arc::new(pod);
                let tracked = self.pods.entry(uid).or_insert_with(|| Tracked { pod: pod.clone(), node, worker: None });
                tracked.pod = pod;
                play(&self.host, &self.nodes, tracked);
            }
            Change::Gone(key) => {
                self.pods.remove(&key.uid);
            }
            Change::Synced => {}
        }
    }

    fn play_pods_of(&mut self, node: &str) {
        for tracked in self.pods.values_mut().filter(|tracked| tracked.node == node) {
            if tracked.worker.is_none() {
                play(&self.host, &self.nodes, tracked);
            }
        }
    }
}

fn play(host: &Arc<Host>, nodes: &HashMap<String, node::Worker>, tracked: &mut Tracked) {
    match (&tracked.worker, nodes.get(&tracked.node)) {
        (Some(worker), _) => worker.update(tracked.pod.clone()),
        (None, Some(node)) => {
            let address: Ipv4Addr = node.address();
            tracked.worker = Some(pod::Worker::start(host.clone(), tracked.pod.clone(), address));
        }
        (None, None) => {}
    }
}
