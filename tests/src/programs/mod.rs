//! The programs that tests run, built from source once and kept in a cache outside the work tree.
//!
//! `tests/control-plane/go.mod` names those of a test cluster as tool dependencies, so the Go module proxy is the only
//! place they come from and `go.sum` pins every byte. The programs of `tests/oracles`, `tests/promql`, `tests/schemas`,
//! `tests/karpenter` and `tests/descheduler` are built in the same way from modules of their own, and for some of them
//! from source of our own, so what tells one build of them from another is those files; only the tests that run them ask
//! for them. Of KEDA, cert-manager and the Prometheus Operator only the definitions
//! are taken, from `tests/keda`, `tests/cert-manager` and `tests/prometheus-operator`.

mod definitions;
mod workshop;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

pub use definitions::{cert_manager, prometheus_operator, scaled_objects};
use workshop::Workshop;

/// Names a folder whose programs are used where present, as the Kubernetes test tooling does.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Where everything that is built once is kept, when set.
const CACHE: &str = "BELAY_CACHE";

/// Where a Go module says which versions it is built of.
const GO_MOD: &str = "go.mod";

/// A program and where its source is.
struct Source {
    program: &'static str,
    package: &'static str,
    /// The module whose version is the program's.
    module: &'static str,
}

const KUBERNETES: &str = "k8s.io/kubernetes";
const KARPENTER: &str = "sigs.k8s.io/karpenter";
const DESCHEDULER: &str = "sigs.k8s.io/descheduler";
const PROMETHEUS: &str = "github.com/prometheus/prometheus";
const KUBERNETES_API: &str = "k8s.io/api";

/// In this order the most costly build comes first and warms Go's build cache for the rest.
const SOURCES: [Source; 6] = [
    Source { program: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver", module: KUBERNETES },
    Source {
        program: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
        module: KUBERNETES,
    },
    Source { program: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler", module: KUBERNETES },
    Source { program: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl", module: KUBERNETES },
    Source { program: "etcd", package: "go.etcd.io/etcd/server/v3", module: "go.etcd.io/etcd/server/v3" },
    Source { program: "helm", package: "helm.sh/helm/v4/cmd/helm", module: "helm.sh/helm/v4" },
];

/// A program with a Go module of its own, around packages of somebody else.
struct Own {
    source: Source,
    /// The folder of its Go module.
    folder: &'static str,
    /// The file there that says which versions it is built of.
    go_mod: &'static str,
    /// The files that it is built from, besides the modules that these pin.
    files: &'static [&'static str],
}

/// See [`removal_order`].
static REMOVAL_ORDER: Own = Own {
    source: Source { program: "removal-order", package: "./removal-order", module: KUBERNETES },
    folder: "oracles",
    go_mod: GO_MOD,
    files: &[GO_MOD, "go.sum", "removal-order/main.go"],
};

/// See [`karpenter`].
static KARPENTER_KWOK: Own = Own {
    source: Source { program: "karpenter-kwok", package: "./kwok", module: KARPENTER },
    folder: "karpenter",
    go_mod: GO_MOD,
    files: &[GO_MOD, "go.sum", "kwok/main.go"],
};

/// See [`descheduler`].
static THE_DESCHEDULER: Own = Own {
    source: Source { program: "descheduler", package: "sigs.k8s.io/descheduler/cmd/descheduler", module: DESCHEDULER },
    folder: "descheduler",
    go_mod: GO_MOD,
    files: &[GO_MOD, "go.sum"],
};

/// See [`promql`].
static PROMQL: Own = Own {
    source: Source { program: "promql", package: ".", module: PROMETHEUS },
    folder: "promql",
    go_mod: GO_MOD,
    files: &[GO_MOD, "go.sum", "main.go"],
};

/// The source of every program of [`schemas`].
const SCHEMAS: Source = Source { program: "schemas", package: ".", module: KUBERNETES_API };

/// See [`schemas`]: that of each Kubernetes version, the newest being the control plane's.
static ALL_SCHEMAS: [Own; 5] = [
    Own { source: SCHEMAS, folder: "schemas", go_mod: "v1.33.mod", files: &["v1.33.mod", "v1.33.sum", "main.go"] },
    Own { source: SCHEMAS, folder: "schemas", go_mod: "v1.34.mod", files: &["v1.34.mod", "v1.34.sum", "main.go"] },
    Own { source: SCHEMAS, folder: "schemas", go_mod: "v1.35.mod", files: &["v1.35.mod", "v1.35.sum", "main.go"] },
    Own { source: SCHEMAS, folder: "schemas", go_mod: "v1.36.mod", files: &["v1.36.mod", "v1.36.sum", "main.go"] },
    Own { source: SCHEMAS, folder: "schemas", go_mod: GO_MOD, files: &[GO_MOD, "go.sum", "main.go"] },
];

/// The path of the program that answers in which order Kubernetes removes pods, built where it is missing. Blocks, as
/// [`Programs::ensure`] does.
///
/// # Errors
/// When Go is missing, the build fails (with the compiler's last words) or the cache cannot be written.
pub fn removal_order() -> anyhow::Result<PathBuf> {
    REMOVAL_ORDER.ensure()
}

/// The path of Karpenter with its kwok provider, built where it is missing. Blocks, as [`Programs::ensure`] does.
///
/// # Errors
/// As [`removal_order`].
pub fn karpenter() -> anyhow::Result<PathBuf> {
    KARPENTER_KWOK.ensure()
}

/// The path of the descheduler, built where it is missing. Blocks, as [`Programs::ensure`] does.
///
/// # Errors
/// As [`removal_order`].
pub fn descheduler() -> anyhow::Result<PathBuf> {
    THE_DESCHEDULER.ensure()
}

/// The path of the program that answers for Prometheus' parsers and its engine, built where it is missing. Blocks, as
/// [`Programs::ensure`] does.
///
/// # Errors
/// As [`removal_order`].
pub fn promql() -> anyhow::Result<PathBuf> {
    PROMQL.ensure()
}

/// The programs that know the API types of a Kubernetes version, oldest first, each with that version (`v0.33.13`: as the
/// Go module counts it); built where they are missing. Blocks, as [`Programs::ensure`] does.
///
/// # Errors
/// As [`removal_order`].
pub fn schemas() -> anyhow::Result<Vec<(String, PathBuf)>> {
    ALL_SCHEMAS.iter().map(|own| Ok((own.version()?, own.ensure()?))).collect()
}

impl Own {
    fn workshop(&self) -> anyhow::Result<Workshop> {
        Workshop::new(folder(self.folder), self.go_mod, cache_folder()?.join("programs"), which("go"))
    }

    fn ensure(&'static self) -> anyhow::Result<PathBuf> {
        self.workshop()?.own(self)
    }

    /// The version of the module that it is built around.
    fn version(&self) -> anyhow::Result<String> {
        self.workshop()?.version_of(self.source.module)
    }
}

/// The paths of programs that are there and executable.
#[derive(Debug, Clone)]
pub struct Programs {
    /// etcd.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// The controller-manager.
    pub kube_controller_manager: PathBuf,
    /// The scheduler.
    pub kube_scheduler: PathBuf,
    /// kubectl, of the API server's version.
    pub kubectl: PathBuf,
    /// Helm.
    pub helm: PathBuf,
}

impl Programs {
    /// Finds the programs in `KUBEBUILDER_ASSETS` or the cache and builds those that are missing, which takes minutes
    /// the first time. Blocks; writes one line per program built to standard error.
    ///
    /// # Errors
    /// When Go is missing, a build fails (with the compiler's last words) or the cache cannot be written.
    pub fn ensure() -> anyhow::Result<Self> {
        let workshop = Workshop::new(folder("control-plane"), GO_MOD, cache_folder()?.join("programs"), which("go"))?;
        let assets = std::env::var_os(ASSETS).map(PathBuf::from);
        workshop.ensure(assets.as_deref())
    }
}

/// `$BELAY_CACHE`, `$XDG_CACHE_HOME/belay` or `~/.cache/belay`.
///
/// # Errors
/// When none of the three is known.
pub fn cache_folder() -> anyhow::Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from(CACHE)
        .or_else(|| from("XDG_CACHE_HOME").map(|folder| folder.join("belay")))
        .or_else(|| from("HOME").map(|folder| folder.join(".cache/belay")))
        .with_context(|| format!("no place for built programs: set {CACHE} to a folder"))
}

/// The folder of a Go module.
fn folder(module: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(module)
}

/// A program of `PATH`.
pub fn which(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}
