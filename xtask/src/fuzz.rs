//! `cargo xtask fuzz`: runs the fuzz targets of `fuzz/`, each for a while.
//!
//! What a target calls runs over its seeds in the normal tests, too; here the compiler instruments it, and libFuzzer looks
//! for inputs that reach more of it. Its flags are those of a nightly compiler, which the one that we build with takes
//! when it is told that it may.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};

use crate::{tools, workspace};

#[allow(unreachable_pub, reason = "shared with the fuzz targets, where it is public")]
#[path = "../../fuzz/src/seeds.rs"]
mod seeds;

use seeds::{TARGETS, seeds};

/// Longest input in bytes, by target: what is longer than anything real only slows a fuzzer down, and an expression longer
/// than 2 KiB is refused before it is read.
fn longest(target: &str) -> usize {
    match target {
        "expression" => 2048,
        _ => 16 << 10,
    }
}

/// Runs one target or all of them, each for so many seconds.
pub(crate) fn run(only: Option<&str>, seconds: u64) -> anyhow::Result<()> {
    if let Some(unknown) = only.filter(|target| !TARGETS.contains(target)) {
        bail!("there is no fuzz target {unknown}; the targets are {}", TARGETS.join(", "));
    }
    let program = tools::FUZZ.ensure()?;
    let folder = workspace::folder().join("fuzz");
    // The versions that are shipped; Cargo adds what only the fuzzer needs.
    std::fs::copy(workspace::folder().join("Cargo.lock"), folder.join("Cargo.lock"))
        .context("cannot copy Cargo.lock")?;
    for target in TARGETS.into_iter().filter(|target| only.is_none_or(|only| only == *target)) {
        plant(&folder, target)?;
        // Without a sanitizer: our code has no unsafe part, and what a panic tells is enough.
        let status = std::process::Command::new(&program)
            .current_dir(workspace::folder())
            .args(["run", "--fuzz-dir", "fuzz", "--sanitizer", "none", target, "--"])
            .args([format!("-max_total_time={seconds}"), format!("-max_len={}", longest(target))])
            .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"])
            .env("RUSTC_BOOTSTRAP", "1")
            .status()
            .with_context(|| format!("cannot run {}", program.display()))?;
        ensure!(status.success(), "the fuzz target {target} failed; its input is in fuzz/artifacts/{target}");
    }
    Ok(())
}

/// Puts the seeds of a target into its corpus, beside what earlier runs found.
fn plant(folder: &Path, target: &str) -> anyhow::Result<()> {
    let corpus = folder.join("corpus").join(target);
    std::fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    let all: BTreeMap<String, Vec<u8>> = seeds(&workspace::folder(), target)?.into_iter().collect();
    for (name, seed) in all {
        std::fs::write(corpus.join(&name), seed).with_context(|| format!("cannot write the seed {name}"))?;
    }
    Ok(())
}
