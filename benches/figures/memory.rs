//! What the caches need: resident memory of a process that holds nothing else.

use std::process::{Command, ExitCode};

use crate::cluster::{Size, filled};
use crate::table::Table;

/// By which a child is told to fill the caches.
pub(crate) const CHILD: &str = "fill-caches";

/// Pods, and the most that the whole program may need with them, in MiB.
const TARGETS: [(usize, f64); 3] = [(10_000, 64.0), (50_000, 128.0), (150_000, 300.0)];

/// What the image sets in the environment of the program: how soon freed memory goes back, for one.
pub(crate) fn environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("../../Dockerfile").lines();
    lines.filter_map(|line| line.strip_prefix("ENV ")?.split_once('='))
}

/// What the program needs before it has seen an object is part of the target; the child's own is taken for it.
pub(crate) fn measure(table: &mut Table) {
    for (pods, most) in TARGETS {
        match run(pods) {
            Ok(Resident { before, after, most_ever }) => {
                let what = format!("caches of {pods} pods: handovers and deletion costs");
                table.at_most(&what, after, most, "MiB");
                let each = (after - before) / (pods as f64 / 10_000.0);
                table.note(&format!("of that for each 10,000 of {pods} pods"), format!("{each:.1} MiB"));
                table.note(&format!("most while {pods} pods were listed"), format!("{most_ever:.2} MiB"));
            }
            Err(problem) => table.note(&format!("caches of {pods} pods"), format!("not measured: {problem}")),
        }
    }
}

/// Resident memory in MiB.
struct Resident {
    before: f64,
    after: f64,
    most_ever: f64,
}

fn run(pods: usize) -> Result<Resident, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program).args([CHILD, &pods.to_string()]).envs(environment()).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let figures: Vec<f64> = text.split_whitespace().map_while(|figure| figure.parse().ok()).collect();
    match figures.as_slice() {
        [before, after, most_ever] => Ok(Resident { before: *before, after: *after, most_ever: *most_ever }),
        _ => Err(text),
    }
}

/// Fills the caches, and prints resident memory before, after and at its highest, in MiB.
pub(crate) fn child(pods: usize) -> ExitCode {
    let before = status("VmRSS:");
    let caches = filled(Size { pods });
    println!("{before} {} {}", status("VmRSS:"), status("VmHWM:"));
    drop(caches);
    ExitCode::SUCCESS
}

fn status(key: &str) -> f64 {
    resident(std::process::id(), key)
}

/// What `/proc/PID/status` says there of a process, in MiB.
pub(crate) fn resident(process: u32, key: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib: f64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    kib / 1024.0
}
