//! Programs for developers that Cargo installs: pinned, built once, and kept beside the test cluster's.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use belay_e2e::programs::cache_folder;

use crate::workspace;

/// A package whose program is of the same name.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Checks licences, crates and sources.
pub(crate) const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };
/// Builds and runs fuzz targets.
pub(crate) const FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };
/// Writes an SBOM.
pub(crate) const CYCLONEDX: Tool = Tool { name: "cargo-cyclonedx", version: "0.5.9" };

impl Tool {
    /// The path of its program, built where it is missing, in some minutes.
    pub(crate) fn ensure(&self) -> anyhow::Result<PathBuf> {
        let Self { name, version } = self;
        let root = cache_folder()?.join("tools").join(format!("{name}-{version}"));
        let program = root.join("bin").join(name);
        if program.is_file() {
            return Ok(program);
        }
        // Installing is one rename at the end, so what was cut short is not taken for a program. Not optimised: that
        // would take twice as long, and each of them runs for seconds or waits for others.
        let output = workspace::cargo()
            .args(["install", name, "--version", version, "--locked", "--debug", "--root"])
            .arg(&root)
            .output()
            .context("cannot run cargo")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo install {name} failed:\n{said}");
        Ok(program)
    }
}
