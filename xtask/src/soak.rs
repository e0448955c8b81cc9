//! `cargo xtask soak`: a soak at the length of one's choice, with its table.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use belay_e2e::soak::{self, Soak};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How many drains.
    #[arg(long, default_value_t = 1000)]
    drains: usize,
    /// What all that happens is drawn from: the workloads, whom each drain is for, the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many sets of workloads are drained at a time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=32))]
    parallel: u8,
    /// Write the table to this file, too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Runs it; Ctrl-C ends it in order, and a second one at once.
pub(crate) fn run(args: &SoakArgs) -> anyhow::Result<()> {
    let soak = Soak { drains: args.drains, seed: args.seed, parallel: usize::from(args.parallel) };
    let tally = soak::run(&soak, &say, interrupted())?;
    let table = tally.to_string();
    say(&format!("\n{table}"));
    if let Some(path) = &args.report {
        std::fs::write(path, &table).with_context(|| format!("cannot write {}", path.display()))?;
    }
    ensure!(tally.is_clean(), "not every drain was done, or something that must not be was counted");
    Ok(())
}

/// Nobody who redirects it wants to wait for a buffer to fill.
fn say(line: &str) {
    println!("{line}");
    // A terminal that is gone takes nothing any more; the run goes on for its report.
    let _ = std::io::stdout().flush();
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without the signal it just runs to its end.
        std::future::pending::<()>().await;
    }
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
}
