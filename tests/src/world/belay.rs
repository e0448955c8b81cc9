//! The real Belay: its program built from this work tree, its chart installed by real Helm on simulated nodes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::namespace::{Namespace, add_nodes};
use super::waiting;
use super::workload::PodInfo;
use crate::node_agent::Program;
use crate::plain_http;
use crate::tools::{Exit, Tool};

/// Names a `belay` program to test instead of building one.
const BINARY: &str = "BELAY_BIN";

/// Where the chart is installed, and under which name.
const NAMESPACE: &str = "belay-system";
const RELEASE: &str = "belay";

/// How the names of all users that Belay's pods are begin.
pub const USERS: &str = "system:serviceaccount:belay-system:";

/// The last path element of the chart's image.
const IMAGE: &str = "belay";

/// Two, so that replicas can be spread over them.
const SYSTEM_NODES: [&str; 2] = ["system-1", "system-2"];

/// How long Helm waits for the Deployments.
const INSTALL_TIMEOUT: &str = "--timeout=120s";

/// The webhook port's documented default; the image brings it along.
pub(super) const WEBHOOK_PORT: u16 = 8443;

/// The admin port's.
const ADMIN_PORT: u16 = 8080;

/// An installed Belay.
#[derive(Clone)]
pub struct Belay {
    cluster: Cluster,
}

impl Belay {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone() }
    }

    pub(super) async fn install(cluster: &Cluster, values: Value) -> anyhow::Result<Self> {
        let path = program().await?;
        let environment = [
            ("BELAY_LISTEN", format!("0.0.0.0:{WEBHOOK_PORT}")),
            ("BELAY_ADMIN_LISTEN", format!("0.0.0.0:{ADMIN_PORT}")),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
        cluster.node_agent().play(IMAGE, Program { path, environment });
        let nodes: Api<Node> = Api::all(cluster.client());
        if nodes.get_opt(SYSTEM_NODES[0]).await?.is_none() {
            add_nodes(cluster, &SYSTEM_NODES.map(str::to_owned), &json!({})).await?;
        }
        let belay = Self::of(cluster);
        belay.helm(&["upgrade", "--install", "--create-namespace"], &values).await?;
        Ok(belay)
    }

    /// `helm upgrade` with these values.
    ///
    /// # Errors
    /// When Helm fails, with what it said and the logs of Belay's pods.
    pub async fn upgrade(&self, values: Value) -> anyhow::Result<()> {
        self.helm(&["upgrade"], &values).await
    }

    /// `helm uninstall`.
    ///
    /// # Errors
    /// When Helm fails.
    pub async fn uninstall(&self) -> anyhow::Result<()> {
        let args = ["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", INSTALL_TIMEOUT];
        self.cluster.helm(args).ok().await.map(drop)
    }

    /// `helm test`, whatever comes of it.
    ///
    /// # Errors
    /// When Helm does not end.
    pub async fn helm_test(&self) -> anyhow::Result<Exit> {
        self.cluster.helm(["test", RELEASE, "--namespace", NAMESPACE, INSTALL_TIMEOUT]).output().await
    }

    async fn helm(&self, verb: &[&str], values: &Value) -> anyhow::Result<()> {
        let chart = workspace().join("charts/belay");
        let chart = chart.to_str().context("the work tree's path is not UTF-8")?;
        let here = [RELEASE, chart, "--namespace", NAMESPACE, "--wait", INSTALL_TIMEOUT, "--values", "-"];
        let tool = self.cluster.helm(verb.iter().chain(&here)).stdin(&values.to_string());
        let exit = tool.output().await?;
        ensure!(exit.success(), "{exit}\n{}", self.logs());
        Ok(())
    }

    /// The program at the keyboard of a cluster administrator, as `belay explain …`.
    ///
    /// # Errors
    /// When it cannot be built.
    pub async fn run<S: AsRef<str>>(&self, args: impl IntoIterator<Item = S>) -> anyhow::Result<Tool> {
        Ok(self.cluster.tool(&program().await?, args))
    }

    /// Where the program is that is tested.
    ///
    /// # Errors
    /// When it cannot be built.
    pub async fn program(&self) -> anyhow::Result<PathBuf> {
        program().await
    }

    /// The pods of the webhook server, those that stay first.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn webhook_pods(&self) -> anyhow::Result<Vec<PodInfo>> {
        self.pods("webhook").await
    }

    /// Scales one of the Deployments, and waits until it has just these pods.
    ///
    /// # Errors
    /// When it has other pods at the end of that time.
    pub async fn scale(
        &self,
        ns: &Namespace,
        component: &str,
        replicas: usize,
        within: Duration,
    ) -> anyhow::Result<()> {
        let (deployment, count) = (format!("belay-{component}"), format!("--replicas={replicas}"));
        self.cluster.kubectl(["--namespace", NAMESPACE, "scale", "deployment", &deployment, &count]).ok().await?;
        ns.eventually(&format!("{deployment} has {replicas} pods"), within, async || {
            let pods = if component == "webhook" { self.webhook_pods().await? } else { self.controller_pods().await? };
            ensure!(pods.len() == replicas && pods.iter().all(|pod| pod.ready), "it has {}", pods.len());
            Ok(())
        })
        .await
    }

    /// The pods of the controller, those that stay first.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn controller_pods(&self) -> anyhow::Result<Vec<PodInfo>> {
        self.pods("controller").await
    }

    async fn pods(&self, component: &str) -> anyhow::Result<Vec<PodInfo>> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), NAMESPACE);
        let of_component = ListParams::default().labels(&format!("app.kubernetes.io/component={component}"));
        let mut pods: Vec<PodInfo> = pods.list(&of_component).await?.items.into_iter().map(PodInfo::from).collect();
        pods.sort_by_key(|pod| (pod.terminating, pod.name.clone()));
        Ok(pods)
    }

    /// The controller pod that leads: the holder of the Lease `belay-controller`.
    ///
    /// # Errors
    /// When nobody leads, or the holder is no pod that is there.
    pub async fn leader(&self) -> anyhow::Result<PodInfo> {
        let leases: Api<Lease> = Api::namespaced(self.cluster.client(), NAMESPACE);
        let lease = leases.get("belay-controller").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let mut pods = self.controller_pods().await?;
        match pods.iter().position(|pod| !holder.is_empty() && holder.starts_with(&pod.name)) {
            Some(index) => Ok(pods.swap_remove(index)),
            None => bail!("the Lease belay-controller is held by {holder:?}, which is no controller pod"),
        }
    }

    /// Kills the program of one of Belay's pods with SIGKILL.
    ///
    /// # Errors
    /// When the pod does not run.
    pub fn kill(&self, pod: &PodInfo) -> anyhow::Result<()> {
        self.cluster.kill_pod(NAMESPACE, &pod.name)
    }

    /// Takes one of Belay's pods away as a machine that is lost does: its program is gone at once, and nobody gives
    /// anything up.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn lose(&self, pod: &PodInfo) -> anyhow::Result<()> {
        let args = ["--namespace", NAMESPACE, "delete", "pod", &pod.name, "--force", "--grace-period=0"];
        self.cluster.kubectl(args).ok().await.map(drop)
    }

    /// Waits until both replicas of both components are Ready, and one leads.
    ///
    /// # Errors
    /// When they are not `within` that time.
    pub async fn whole(&self, within: Duration) -> anyhow::Result<()> {
        waiting::eventually("Belay is whole", within, async || {
            for pods in [self.webhook_pods().await?, self.controller_pods().await?] {
                let names: Vec<_> = pods.iter().map(|pod| (&pod.name, pod.ready, pod.terminating)).collect();
                let whole = pods.len() == 2 && pods.iter().all(|pod| pod.ready && !pod.terminating);
                ensure!(whole, "its pods are {names:?}");
            }
            self.leader().await.map(drop)
        })
        .await
    }

    /// What all of Belay's programs wrote so far, pod by pod.
    pub fn logs(&self) -> String {
        let files = self.cluster.node_agent().log_files();
        let mut logs = String::new();
        for file in files {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(NAMESPACE) {
                let text = std::fs::read(&file).unwrap_or_default();
                let _ = writeln!(logs, "-------- {name}\n{}", String::from_utf8_lossy(&text));
            }
        }
        logs
    }

    /// `GET /metrics` of one of Belay's pods.
    ///
    /// # Errors
    /// When the pod does not answer with 200.
    pub async fn metrics(&self, pod: &PodInfo) -> anyhow::Result<String> {
        let address = self.cluster.reach(&pod.address, ADMIN_PORT)?;
        let (status, body) = plain_http::get(address, "/metrics").await?;
        ensure!(status.is_success(), "HTTP {status} from /metrics of {}", pod.name);
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// What these pods have counted together: the sum of all series of a metric whose labels contain this text, 0 where
    /// there is none.
    ///
    /// # Errors
    /// When a pod does not answer.
    pub async fn counted(&self, pods: &[PodInfo], name: &str, labels: &str) -> anyhow::Result<u64> {
        let mut sum = 0;
        for pod in pods {
            let text = self.metrics(pod).await?;
            let of_metric = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
            for line in text.lines().filter(of_metric).filter(|line| line.contains(labels)) {
                let value = line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
                sum += value.with_context(|| format!("no count: {line}"))?;
            }
        }
        Ok(sum)
    }
}

/// The program under test, the same one for the whole process.
async fn program() -> anyhow::Result<PathBuf> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let once = || PROGRAM.get_or_init(|| binary().map_err(|error| format!("{error:#}"))).clone();
    let path = tokio::task::spawn_blocking(once).await.context("the build of belay was interrupted")?;
    path.map_err(|error| anyhow!(error))
}

fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// `$BELAY_BIN`, or the program as Cargo builds it now.
fn binary() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY) {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "{BINARY} names {}, which is no file", path.display());
        return Ok(path);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(workspace())
        .args(["build", "--quiet", "--package", "belay", "--bin", "belay"])
        .arg("--message-format=json-render-diagnostics")
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "cargo build --package belay failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Cargo says where it put the program; the target folder is the user's choice.
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let of_belay = message["target"]["name"] == "belay";
        message["executable"].as_str().filter(|_| of_belay).map(PathBuf::from)
    });
    executable.context("cargo build --package belay named no program")
}
