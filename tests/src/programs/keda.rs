//! KEDA's definitions, from its Go module: `go.sum` pins them as it pins the programs, and nothing of it is compiled.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::workshop::{GO_MISSING, last_words, version_of};
use super::{folder, which};

const MODULE: &str = "github.com/kedacore/keda/v2";

/// The file of its one definition that is needed here, within the module.
const SCALED_OBJECTS: &str = "config/crd/bases/keda.sh_scaledobjects.yaml";

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
    let own = folder("keda");
    let go_mod = own.join("go.mod");
    let text = std::fs::read_to_string(&go_mod).with_context(|| format!("cannot read {}", go_mod.display()))?;
    let wanted = format!("{MODULE}@{}", version_of(&text, MODULE)?);
    let path = download(&own, &wanted)?.join(SCALED_OBJECTS);
    std::fs::read_to_string(&path).with_context(|| format!("{wanted} has no {SCALED_OBJECTS}"))
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
