//! The real descheduler of one cluster, with one strategy: pods that do not tolerate a taint of their node are evicted.
//!
//! It runs as a process of its own under a ServiceAccount of its own, and listens nowhere. Its policy names the
//! namespace and the taint of one test, so that it is of no concern to others on the same cluster.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::process::{self, Process};
use crate::world::Namespace;
use crate::{account, programs};

/// The name of its namespace and of its ServiceAccount.
const NAME: &str = "descheduler";

/// It ends at once on SIGTERM.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// How many lines of its log an error shows.
const TAIL: usize = 25;

/// The descheduler at work; it is killed when dropped.
pub struct Descheduler {
    process: Process,
    log: PathBuf,
}

impl Descheduler {
    /// Builds it where it is missing, and starts it: it looks every `interval` for pods of this namespace on nodes with
    /// a taint of this key.
    ///
    /// # Errors
    /// When it cannot be built or started.
    pub async fn start(ns: &Namespace, taint: &str, interval: Duration) -> anyhow::Result<Self> {
        let cluster = ns.cluster();
        let program =
            tokio::task::spawn_blocking(programs::descheduler).await.context("the build was interrupted")??;
        let kubeconfig = account::kubeconfig(cluster, NAME).await?;
        let folder = cluster.control_plane().folder();
        let policy = folder.join(format!("descheduler-{}.yaml", ns.name()));
        std::fs::write(&policy, policy_of(ns.name(), taint).to_string())
            .with_context(|| format!("cannot write {}", policy.display()))?;
        // Beside the logs of the programs of pods, where a report finds it.
        let log = folder.join("logs/pods").join(format!("{}_descheduler.log", ns.name()));
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = process::guarded(&program);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--policy-config-file={}", policy.display()))
            .arg(format!("--descheduling-interval={}s", interval.as_secs()))
            // Neither metrics nor health are served.
            .args(["--secure-port=0", "--v=3"])
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot copy a file handle")?)
            .stderr(file);
        let process = cluster.control_plane().spawner().spawn(command).await.context("cannot start the descheduler")?;
        Ok(Self { process, log })
    }

    /// The user that it is to the API server.
    pub fn user() -> String {
        account::user(NAME)
    }

    /// What it has written to its log so far.
    ///
    /// # Errors
    /// When it ended by itself, with the end of its log, or the log cannot be read.
    pub fn log(&self) -> anyhow::Result<String> {
        if let status @ Some(_) = self.process.status() {
            let end = process::tail(&self.log, TAIL);
            bail!("the descheduler ended by itself with {}\n{end}", process::describe(status));
        }
        std::fs::read_to_string(&self.log).with_context(|| format!("cannot read {}", self.log.display()))
    }

    /// Ends it, and returns when it is gone.
    pub async fn stop(self) {
        self.process.terminate(STOP_WITHIN).await;
    }
}

/// JSON, which is YAML too.
fn policy_of(namespace: &str, taint: &str) -> serde_json::Value {
    let taints = "RemovePodsViolatingNodeTaints";
    json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerPolicy",
        "profiles": [{
            "name": "taints",
            "pluginConfig": [
                { "name": "DefaultEvictor", "args": {} },
                { "name": taints, "args": { "namespaces": { "include": [namespace] }, "includedTaints": [taint] } },
            ],
            "plugins": { "deschedule": { "enabled": [taints] } },
        }],
    })
}
