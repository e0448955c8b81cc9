//! Where things are in the work tree, as Cargo knows it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// The work tree.
pub(crate) fn folder() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// The cargo that runs us, in the work tree.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder());
    cargo
}

/// Where Cargo puts what it builds.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    let metadata = metadata()?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target folder")?;
    Ok(target.into())
}

/// The names of a package's integration tests.
pub(crate) fn test_targets(package: &str) -> anyhow::Result<Vec<String>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array();
    let package = packages
        .into_iter()
        .flatten()
        .find(|known| known["name"] == package)
        .with_context(|| format!("the workspace has no package {package}"))?;
    let targets = package["targets"].as_array().into_iter().flatten();
    Ok(targets
        .filter(|target| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&Value::from("test"))))
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect())
}

/// A package of the workspace.
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Where its manifest is.
    pub(crate) folder: PathBuf,
}

/// The packages of the workspace.
pub(crate) fn packages() -> anyhow::Result<Vec<Package>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let read = |package: &Value| {
        let text = |field: &str| package[field].as_str().map(str::to_owned);
        let folder = Path::new(package["manifest_path"].as_str()?).parent()?.to_owned();
        Some(Package { name: text("name")?, version: text("version")?, folder })
    };
    packages.map(|package| read(package).context("cargo metadata says too little of a package")).collect()
}

fn metadata() -> anyhow::Result<Value> {
    let output = cargo().args(["metadata", "--format-version=1", "--no-deps"]).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata wrote no JSON")
}
