//! What the caches need: resident memory of a process that holds nothing else.

use std::process::{Command, ExitCode};

use crate::cluster::{Size, filled};
use crate::table::Table;

/// By which a child is told to fill the caches.
pub(crate) const CHILD: &str = "fill-caches";

/// Pods, and the most that the whole program may need with them, in MiB.
const TARGETS: [(usize, f64); 3] = [(10_000, 64.0), (50_000, 128.0), (150_000, 300.0)];

/// What the program needs before it has seen an object is part of the target; the child's own is taken for it.
pub(crate) fn measure(table: &mut Table) {
    for (pods, most) in TARGETS {
        match run(pods) {
            Ok((before, after)) => {
                let what = format!("caches of {pods} pods: handovers and deletion costs");
                table.at_most(&what, after, most, "MiB");
                let each = (after - before) / (pods as f64 / 10_000.0);
                table.note(&format!("of that for each 10,000 of {pods} pods"), format!("{each:.1} MiB"));
            }
            Err(problem) => table.note(&format!("caches of {pods} pods"), format!("not measured: {problem}")),
        }
    }
}

fn run(pods: usize) -> Result<(f64, f64), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program).args([CHILD, &pods.to_string()]).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut figures = text.split_whitespace().map_while(|figure| figure.parse().ok());
    figures.next().zip(figures.next()).ok_or(text)
}

/// Fills the caches, and prints resident memory before and after, in MiB.
pub(crate) fn child(pods: usize) -> ExitCode {
    let before = resident();
    let caches = filled(Size { pods });
    let after = resident();
    println!("{before} {after}");
    drop(caches);
    ExitCode::SUCCESS
}

fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    kib / 1024.0
}
