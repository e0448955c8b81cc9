//! Definitions of other projects' objects, from their Go modules: `go.sum` pins them as it pins the programs, and nothing
//! of them is compiled.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::workshop::{GO_MISSING, last_words, version_of};
use super::{folder, which};

/// A project whose definitions are taken.
struct Project {
    /// The folder of the Go module of ours that names it.
    folder: &'static str,
    module: &'static str,
    /// The files of the definitions that are needed here, within the module.
    files: &'static [&'static str],
}

const KEDA: Project = Project {
    folder: "keda",
    module: "github.com/kedacore/keda/v2",
    files: &["config/crd/bases/keda.sh_scaledobjects.yaml"],
};

const CERT_MANAGER: Project = Project {
    folder: "cert-manager",
    module: "github.com/cert-manager/cert-manager",
    files: &["deploy/crds/cert-manager.io_certificates.yaml", "deploy/crds/cert-manager.io_issuers.yaml"],
};

const PROMETHEUS_OPERATOR: Project = Project {
    folder: "prometheus-operator",
    module: "github.com/prometheus-operator/prometheus-operator",
    files: &[
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ],
};

/// What `go mod download -json` says of a module.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Download {
    #[serde(default)]
    dir: PathBuf,
    #[serde(default)]
    error: String,
}

/// The CustomResourceDefinition of KEDA's ScaledObjects, as YAML. Blocks; the first time, Go downloads its module.
///
/// # Errors
/// When Go is missing, or the module cannot be had or lacks the file.
pub fn scaled_objects() -> anyhow::Result<String> {
    KEDA.definitions()
}

/// The CustomResourceDefinitions of cert-manager's Certificates and Issuers, as YAML. Blocks as [`scaled_objects`] does.
///
/// # Errors
/// As [`scaled_objects`].
pub fn cert_manager() -> anyhow::Result<String> {
    CERT_MANAGER.definitions()
}

/// The CustomResourceDefinitions of the Prometheus Operator's monitors and rules, as YAML. Blocks as [`scaled_objects`] does.
///
/// # Errors
/// As [`scaled_objects`].
pub fn prometheus_operator() -> anyhow::Result<String> {
    PROMETHEUS_OPERATOR.definitions()
}

impl Project {
    fn definitions(&self) -> anyhow::Result<String> {
        let own = folder(self.folder);
        let go_mod = own.join("go.mod");
        let text = std::fs::read_to_string(&go_mod).with_context(|| format!("cannot read {}", go_mod.display()))?;
        let wanted = format!("{}@{}", self.module, version_of(&text, self.module)?);
        let folder = download(&own, &wanted)?;
        let read =
            |file: &&str| std::fs::read_to_string(folder.join(file)).with_context(|| format!("{wanted} has no {file}"));
        Ok(self.files.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?.join("---\n"))
    }
}

/// The folder of a module of this version, as Go unpacked it.
fn download(own: &Path, wanted: &str) -> anyhow::Result<PathBuf> {
    let go = which("go").context(GO_MISSING)?;
    let output = Command::new(go)
        .current_dir(own)
        .args(["mod", "download", "-json", wanted])
        .stdin(Stdio::null())
        .output()
        .context("cannot run go")?;
    // It says what is wrong on standard output, as JSON, and what is wrong with that on standard error.
    let Ok(answer) = serde_json::from_slice::<Download>(&output.stdout) else {
        bail!("go mod download {wanted} failed:\n{}", last_words(&output.stderr));
    };
    match answer.error {
        error if error.is_empty() => Ok(answer.dir),
        error => bail!("go mod download {wanted} failed: {error}"),
    }
}
