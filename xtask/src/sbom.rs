//! `cargo xtask sbom`: what a release is made of, as CycloneDX.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::{tools, workspace};

/// What stands for the folder in which it was made, of which a published file should say nothing.
const SOURCES: &str = "/belay";

/// Writes `target/sbom/belay-VERSION.cdx.json`, and says so.
pub(crate) fn run() -> anyhow::Result<()> {
    let path = write()?;
    println!("{}", path.display());
    Ok(())
}

fn write() -> anyhow::Result<PathBuf> {
    let program = tools::CYCLONEDX.ensure()?;
    let output = std::process::Command::new(&program)
        .current_dir(workspace::folder())
        // A program called by cargo gets its subcommand's name first.
        .args(["cyclonedx", "--format", "json", "--spec-version", "1.5", "--quiet"])
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(output.status.success(), "cargo-cyclonedx failed:\n{}", String::from_utf8_lossy(&output.stderr));
    let mut sbom = None;
    // It writes one beside each manifest; what is released is one program.
    for package in workspace::packages()? {
        let path = package.folder.join(format!("{}.cdx.json", package.name));
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        if package.name == "belay" {
            sbom = Some((package.version, text));
        }
    }
    let (version, text) = sbom.context("cargo-cyclonedx said nothing of the package belay")?;
    let text = text.replace(&workspace::folder().display().to_string(), SOURCES);
    let folder = workspace::target_folder()?.join("sbom");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(format!("belay-{version}.cdx.json"));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
