//! `cargo xtask bench`: prints what Belay costs beside what it may cost, from a release build.

use anyhow::{Context as _, ensure};

use crate::workspace;

/// Builds and runs it.
pub(crate) fn run() -> anyhow::Result<()> {
    let status = workspace::cargo()
        .args(["bench", "--quiet", "--package", "belay", "--bench", "figures"])
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the benchmark failed ({status})");
    Ok(())
}
