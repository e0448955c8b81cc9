//! Kubeconfig files, and clients made from them.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// Who a kubeconfig file of a test cluster speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identity {
    /// `belay-admin` of the group `system:masters`: the person at the keyboard.
    Admin,
    /// `belay-node-agent` of the group `system:masters`: it plays all kubelets at once.
    NodeAgent,
    /// The real user name of the controller-manager, with its real rights.
    ControllerManager,
    /// The real user name of the scheduler, with its real rights.
    Scheduler,
}

impl Identity {
    pub(super) const ALL: [Self; 4] = [Self::Admin, Self::NodeAgent, Self::ControllerManager, Self::Scheduler];

    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Admin => "kubeconfig",
            Self::NodeAgent => "node-agent.kubeconfig",
            Self::ControllerManager => "kube-controller-manager.kubeconfig",
            Self::Scheduler => "kube-scheduler.kubeconfig",
        }
    }

    pub(super) fn user(self) -> &'static str {
        match self {
            Self::Admin => "belay-admin",
            Self::NodeAgent => "belay-node-agent",
            Self::ControllerManager => "system:kube-controller-manager",
            Self::Scheduler => "system:kube-scheduler",
        }
    }

    pub(super) fn group(self) -> Option<&'static str> {
        matches!(self, Self::Admin | Self::NodeAgent).then_some("system:masters")
    }
}

/// Writes a kubeconfig for one server and one user, whose credentials are the fields of a kubeconfig `user`.
///
/// # Errors
/// When the file cannot be written.
pub fn write_kubeconfig(
    path: &Path,
    server: SocketAddr,
    authority: &Path,
    namespace: &str,
    user: &Value,
) -> anyhow::Result<()> {
    // YAML contains JSON, and this way nothing has to be quoted by hand.
    let text = serde_json::to_string_pretty(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "belay",
        "clusters": [{
            "name": "belay",
            "cluster": { "server": format!("https://{server}"), "certificate-authority": authority },
        }],
        "contexts": [{
            "name": "belay",
            "context": { "cluster": "belay", "user": "belay", "namespace": namespace },
        }],
        "users": [{ "name": "belay", "user": user }],
    }))?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A client for a kubeconfig file. It never retries by itself: kube's default would hide refused evictions for minutes.
///
/// # Errors
/// When the file is no kubeconfig or names files that are not there.
pub async fn client_from(kubeconfig: &Path) -> anyhow::Result<kube::Client> {
    // Only the first caller of a process installs it; later ones find the same provider in place.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let kubeconfig_of = || format!("cannot use the kubeconfig {}", kubeconfig.display());
    let parsed = Kubeconfig::read_from(kubeconfig).with_context(kubeconfig_of)?;
    let mut config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
        .await
        .with_context(kubeconfig_of)?;
    config.default_retry = false;
    kube::Client::try_from(config).with_context(kubeconfig_of)
}
