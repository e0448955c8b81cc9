//! What each program of the control plane is started with, and the files those flags name.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::kubeconfig::{Identity, write_kubeconfig};
use crate::instance::Instance;
use crate::pki::{Pair, Pki};
use crate::process;
use crate::programs::Programs;

/// Addresses of Services. Outside every `10.A.0.0/16` that pods of an instance have, whose A ends at 250.
const SERVICE_ADDRESSES: &str = "10.251.0.0/16";

/// The first address of [`SERVICE_ADDRESSES`], which is always that of the Service `kubernetes`.
const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 251, 0, 1);

/// The longest path that a Unix socket can have on Linux, in bytes, without the closing zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Component {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl Component {
    /// In the order in which they start.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler];
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        })
    }
}

/// What differs from one control plane to another.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Feature gates of all programs, such as `EvictionRequestAPI=true`.
    pub feature_gates: Vec<String>,
    /// API groups to serve besides the default ones, such as `lifecycle.k8s.io/v1alpha1=true`.
    pub runtime_config: Vec<String>,
    /// A Kubernetes minor version to behave as, such as `1.35`.
    pub emulated_version: Option<String>,
}

/// Addresses, files and flags of one control plane.
#[derive(Debug)]
pub(super) struct Layout {
    folder: PathBuf,
    programs: Programs,
    options: Options,
    pub(super) pki: Pki,
    server_pair: Pair,
    pub(super) etcd: SocketAddr,
    etcd_peer: SocketAddr,
    pub(super) server: SocketAddr,
    pub(super) controller_manager: SocketAddr,
    pub(super) scheduler: SocketAddr,
}

impl Layout {
    /// Chooses ports and writes certificates, kubeconfigs and configuration files.
    pub(super) fn prepare(instance: &Instance, programs: Programs, options: Options) -> anyhow::Result<Self> {
        let folder = instance.folder().to_owned();
        std::fs::create_dir_all(folder.join("logs")).context("cannot make the folder of logs")?;
        let server = address(instance.address(3), 6443)?;
        let pki = Pki::create(&folder.join("pki"))?;
        let server_pair = pki.server(
            "kube-apiserver",
            &[instance.address(3), KUBERNETES_SERVICE],
            &["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"],
        )?;
        let layout = Self {
            etcd: address(instance.address(2), 2379)?,
            etcd_peer: address(instance.address(2), 2380)?,
            server,
            controller_manager: address(instance.address(4), 10257)?,
            scheduler: address(instance.address(5), 10259)?,
            folder,
            programs,
            options,
            pki,
            server_pair,
        };
        for identity in Identity::ALL {
            let pair = layout.pki.client(identity.user(), identity.user(), identity.group())?;
            write_kubeconfig(
                &layout.kubeconfig(identity),
                layout.server,
                &layout.pki.authority_file(),
                "default",
                &json!({ "client-certificate": pair.certificate, "client-key": pair.key }),
            )?;
        }
        layout.write_egress_selector()?;
        layout.write_audit_policy()?;
        Ok(layout)
    }

    pub(super) fn kubeconfig(&self, identity: Identity) -> PathBuf {
        self.folder.join(identity.file())
    }

    pub(super) fn log(&self, component: Component) -> PathBuf {
        self.folder.join("logs").join(format!("{component}.log"))
    }

    pub(super) fn proxy_socket(&self) -> PathBuf {
        self.folder.join("proxy.sock")
    }

    pub(super) fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    pub(super) fn command(&self, component: Component) -> Command {
        match component {
            Component::Etcd => self.etcd_command(),
            Component::ApiServer => self.api_server_command(),
            Component::ControllerManager => self.controller_manager_command(),
            Component::Scheduler => self.scheduler_command(),
        }
    }

    fn etcd_command(&self) -> Command {
        let mut command = process::guarded(&self.programs.etcd);
        let (client, peer) = (format!("http://{}", self.etcd), format!("http://{}", self.etcd_peer));
        command
            .args(["--name=default", "--log-level=warn"])
            // The data goes with the work folder: nothing is worth waiting for the disk.
            .arg("--unsafe-no-fsync")
            .arg(flag("data-dir", self.folder.join("etcd").display()))
            .arg(flag("listen-client-urls", &client))
            .arg(flag("advertise-client-urls", &client))
            .arg(flag("listen-peer-urls", &peer))
            .arg(flag("initial-advertise-peer-urls", &peer))
            .arg(flag("initial-cluster", format!("default={peer}")));
        command
    }

    fn api_server_command(&self) -> Command {
        let mut command = process::guarded(&self.programs.kube_apiserver);
        command
            .arg(flag("etcd-servers", format!("http://{}", self.etcd)))
            .arg(flag("bind-address", self.server.ip()))
            .arg(flag("secure-port", self.server.port()))
            // Without it the server looks for the machine's own address and fails where there is none. Nobody uses it:
            // the Service `kubernetes` gets no endpoints, because pods here are given the server's real address.
            .arg(flag("advertise-address", KUBERNETES_SERVICE))
            .arg("--endpoint-reconciler-type=none")
            .arg(flag("tls-cert-file", self.server_pair.certificate.display()))
            .arg(flag("tls-private-key-file", self.server_pair.key.display()))
            .arg(flag("client-ca-file", self.pki.authority_file().display()))
            .arg(flag("requestheader-client-ca-file", self.pki.front_proxy_authority_file().display()))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(flag("service-account-key-file", self.pki.service_account_public_key_file().display()))
            .arg(flag("service-account-signing-key-file", self.pki.service_account_key_file().display()))
            .arg(flag("service-cluster-ip-range", SERVICE_ADDRESSES))
            .arg("--authorization-mode=Node,RBAC")
            // For `kubectl logs`: simulated nodes have no name that anybody resolves.
            .arg("--kubelet-preferred-address-types=InternalIP")
            // On SIGTERM it ends watches after that; without it, it waits a minute for its watchers to go by themselves.
            .arg("--shutdown-watch-termination-grace-period=1s")
            .arg("--allow-privileged=true")
            .arg("--profiling=false")
            .arg(flag("egress-selector-config-file", self.folder.join("egress-selector.yaml").display()))
            .arg(flag("audit-policy-file", self.folder.join("audit-policy.yaml").display()))
            .arg(flag("audit-log-path", self.audit_log().display()))
            // Written before the answer is sent, so that a test reads what it has just seen happen.
            .arg("--audit-log-mode=blocking")
            // Megabytes. It would begin a new file every 100 of them, and a long run be read from its last part alone.
            .arg("--audit-log-maxsize=100000");
        if !self.options.runtime_config.is_empty() {
            command.arg(flag("runtime-config", self.options.runtime_config.join(",")));
        }
        if let Some(version) = &self.options.emulated_version {
            command.arg(flag("emulated-version", version));
        }
        self.add_feature_gates(&mut command);
        command
    }

    fn controller_manager_command(&self) -> Command {
        let mut command = process::guarded(&self.programs.kube_controller_manager);
        let kubeconfig = self.kubeconfig(Identity::ControllerManager);
        add_client_flags(&mut command, &kubeconfig, self.controller_manager);
        command
            // Each controller under its own ServiceAccount, as everywhere: webhooks see who really creates a pod.
            .arg("--use-service-account-credentials=true")
            .arg(flag("service-account-private-key-file", self.pki.service_account_key_file().display()))
            .arg(flag("root-ca-file", self.pki.authority_file().display()))
            // How often it looks at every autoscaler: 15 s by default, for which tests need not wait.
            .arg("--horizontal-pod-autoscaler-sync-period=1s")
            .args(["--kube-api-qps=200", "--kube-api-burst=400"]);
        self.add_feature_gates(&mut command);
        command
    }

    fn scheduler_command(&self) -> Command {
        let mut command = process::guarded(&self.programs.kube_scheduler);
        add_client_flags(&mut command, &self.kubeconfig(Identity::Scheduler), self.scheduler);
        self.add_feature_gates(&mut command);
        command
    }

    fn add_feature_gates(&self, command: &mut Command) {
        if !self.options.feature_gates.is_empty() {
            command.arg(flag("feature-gates", self.options.feature_gates.join(",")));
        }
    }

    /// Sends what the API server dials in the pods' network (webhooks and APIs behind Services) to our proxy.
    fn write_egress_selector(&self) -> anyhow::Result<()> {
        let socket = self.proxy_socket();
        ensure!(
            socket.as_os_str().len() <= LONGEST_SOCKET_PATH,
            "{} is too long for a Unix socket: set TMPDIR to a shorter folder",
            socket.display()
        );
        self.write(
            "egress-selector.yaml",
            &json!({
                "apiVersion": "apiserver.k8s.io/v1beta1",
                "kind": "EgressSelectorConfiguration",
                "egressSelections": [{
                    "name": "cluster",
                    "connection": {
                        "proxyProtocol": "HTTPConnect",
                        "transport": { "uds": { "udsName": socket } },
                    },
                }],
            }),
        )
    }

    /// Records who wrote what, and nothing else: reads and the leases of nodes would drown it. What was written is
    /// recorded of objects that say how many replicas there are to be, of which few writes are.
    fn write_audit_policy(&self) -> anyhow::Result<()> {
        self.write(
            "audit-policy.yaml",
            &json!({
                "apiVersion": "audit.k8s.io/v1",
                "kind": "Policy",
                "omitStages": ["RequestReceived"],
                "omitManagedFields": true,
                "rules": [
                    { "level": "None", "users": [Identity::NodeAgent.user()] },
                    { "level": "None", "verbs": ["get", "list", "watch"] },
                    { "level": "Request", "resources": [
                        { "group": "apps", "resources": ["deployments", "deployments/scale"] },
                        { "group": "autoscaling", "resources": ["horizontalpodautoscalers"] },
                        { "group": "keda.sh", "resources": ["scaledobjects"] },
                    ] },
                    { "level": "Metadata" },
                ],
            }),
        )
    }

    fn write(&self, file: &str, content: &serde_json::Value) -> anyhow::Result<()> {
        let path = self.folder.join(file);
        std::fs::write(&path, content.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn add_client_flags(command: &mut Command, kubeconfig: &Path, listen: SocketAddr) {
    command
        .arg(flag("kubeconfig", kubeconfig.display()))
        .arg(flag("authentication-kubeconfig", kubeconfig.display()))
        .arg(flag("authorization-kubeconfig", kubeconfig.display()))
        .arg(flag("bind-address", listen.ip()))
        .arg(flag("secure-port", listen.port()))
        // The only one of its kind: an election would only delay its start.
        .args(["--leader-elect=false", "--profiling=false"]);
}

fn flag(name: &str, value: impl fmt::Display) -> String {
    format!("--{name}={value}")
}

/// The usual port, or a free one where some program of this machine holds the usual one on every address.
fn address(ip: Ipv4Addr, usual: u16) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((ip, usual))
        .or_else(|_| TcpListener::bind((ip, 0)))
        .with_context(|| format!("cannot listen on {ip}"))?;
    listener.local_addr().context("a listener without an address")
}
