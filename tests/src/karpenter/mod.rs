//! The real Karpenter of one cluster, with its kwok provider: it makes Node objects where a cloud would make machines,
//! and the node agent plays those.
//!
//! Karpenter runs as a process of its own under a ServiceAccount of its own, so that the audit log tells its writes
//! from those of others, and listens on an address of the cluster's octet. [`Pool`] describes a NodePool whose nodes
//! only the pods of one test go to. What it decided is read from its own log ([`Decision`]): that names the reason and
//! counts the pods as Karpenter itself saw them.

mod decisions;
mod pool;

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use crate::audit::Write;
use crate::process::{self, Process};
use crate::world::{Cluster, eventually};
use crate::{account, metrics, plain_http, programs};

pub use decisions::Decision;
pub use pool::{ANNOTATION_DO_NOT_DISRUPT, Consolidation, Pool, node_claims};

/// The user that Karpenter is to the API server.
pub const USER: &str = "system:serviceaccount:karpenter:karpenter";

/// The name of its namespace and of its ServiceAccount.
const NAME: &str = "karpenter";

/// The last octet of the address that it listens on: the control plane's own programs have those below.
const HOST: u8 = 6;

/// Ready within some seconds; a busy machine may take longer.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// It ends at once on SIGTERM when it is idle, and lets its workers finish when it is not.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// How many lines of its log an error shows.
const TAIL: usize = 25;

/// Karpenter at work; it is killed when dropped.
pub struct Karpenter {
    process: Process,
    log: PathBuf,
    metrics: SocketAddr,
    /// Dropped last: nothing of it outlives the cluster.
    _cluster: Cluster,
}

impl Karpenter {
    /// Builds Karpenter where it is missing, makes its definitions and its account where those are, starts it with these
    /// feature gates (such as `PodDeletionCostManagement=true`) and waits until it is ready. One at a time in a cluster.
    ///
    /// # Errors
    /// When it cannot be built, the API server refuses its objects, or it is not ready in time, with the end of its log.
    pub async fn start(cluster: &Cluster, feature_gates: &[&str]) -> anyhow::Result<Self> {
        let program = tokio::task::spawn_blocking(programs::karpenter).await.context("the build was interrupted")??;
        prepare(cluster, &program).await?;
        let folder = cluster.control_plane().folder();
        let kubeconfig = account::kubeconfig(cluster, NAME).await?;
        let address = Ipv4Addr::new(127, cluster.control_plane().octet(), 0, HOST);
        let (metrics, health) = (free(address, 8080)?, free(address, 8081)?);
        // Beside the logs of the programs of pods, where a report finds it.
        let log = folder.join("logs/pods").join("karpenter_karpenter.log");
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = process::guarded(&program);
        command
            .env("KUBECONFIG", &kubeconfig)
            .env("SYSTEM_NAMESPACE", NAME)
            .env("LISTEN_ADDRESS", address.to_string())
            .env("METRICS_PORT", metrics.port().to_string())
            .env("HEALTH_PROBE_PORT", health.port().to_string())
            // The only one of its kind: an election would only delay its start.
            .env("DISABLE_LEADER_ELECTION", "true")
            .env("FEATURE_GATES", feature_gates.join(","))
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot copy a file handle")?)
            .stderr(file);
        let process = cluster.control_plane().spawner().spawn(command).await.context("cannot start Karpenter")?;
        let karpenter = Self { process, log, metrics, _cluster: cluster.clone() };
        let ready = eventually("Karpenter to be ready", READY_WITHIN, async || {
            if let Some(status) = karpenter.process.status() {
                bail!("it ended with {}", process::describe(Some(status)));
            }
            let (status, body) = plain_http::get(health, "/readyz").await?;
            ensure!(status.is_success(), "HTTP {status}: {}", String::from_utf8_lossy(&body));
            Ok(())
        });
        ready.await.with_context(|| karpenter.tail())?;
        Ok(karpenter)
    }

    /// Ends it, and returns when it is gone.
    pub async fn stop(self) {
        self.process.terminate(STOP_WITHIN).await;
    }

    /// What it decided to disrupt since the cluster's first Karpenter started, oldest first.
    ///
    /// # Errors
    /// When its log cannot be read, or it ended by itself.
    pub fn decisions(&self) -> anyhow::Result<Vec<Decision>> {
        self.ensure_running()?;
        decisions::read(&self.log)
    }

    /// The API server's record of its writes to pods (evictions are creations of `pods/eviction`), oldest first.
    ///
    /// # Errors
    /// When the audit log cannot be read.
    pub fn pod_writes(cluster: &Cluster) -> anyhow::Result<Vec<Write>> {
        let mut writes = cluster.writes_by(USER)?;
        writes.retain(|write| write.resource.split('/').next() == Some("pods"));
        Ok(writes)
    }

    /// The sum of all series of a metric of its own whose labels contain this text, 0 where there is none.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn counted(&self, name: &str, labels: &str) -> anyhow::Result<f64> {
        let (status, body) = plain_http::get(self.metrics, "/metrics").await?;
        ensure!(status.is_success(), "HTTP {status} from Karpenter's /metrics");
        metrics::sum(&String::from_utf8_lossy(&body), name, labels)
    }

    /// # Errors
    /// When it ended by itself, with the end of its log.
    fn ensure_running(&self) -> anyhow::Result<()> {
        match self.process.status() {
            None => Ok(()),
            status => bail!("Karpenter ended by itself with {}\n{}", process::describe(status), self.tail()),
        }
    }

    fn tail(&self) -> String {
        format!("the end of Karpenter's log:\n{}", process::tail(&self.log, TAIL))
    }
}

async fn prepare(cluster: &Cluster, program: &Path) -> anyhow::Result<()> {
    let output = tokio::process::Command::new(program).arg("crds").output().await.context("cannot run Karpenter")?;
    ensure!(output.status.success(), "karpenter crds: {}", String::from_utf8_lossy(&output.stderr));
    cluster.crds(&String::from_utf8(output.stdout).context("definitions that are no text")?).await?;
    let node_class = pool::node_class().to_string();
    cluster.kubectl(["apply", "-f", "-"]).stdin(&node_class).ok().await.map(drop)
}

/// The usual port, or a free one where some program of this machine holds the usual one on every address.
fn free(address: Ipv4Addr, usual: u16) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((address, usual)).or_else(|_| TcpListener::bind((address, 0)));
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    listener.local_addr().context("a listener without an address")
}
