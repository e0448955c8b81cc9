//! `cargo xtask bench`: prints what Belay costs beside what it may cost, from a release build.

use std::fs;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::workspace;

/// Between these stands the table in README.md.
const MARKS: [&str; 2] = ["<!-- figures: cargo xtask bench --write -->\n", "<!-- end of figures -->"];

/// What to measure.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Only these figures: load, ready, memory, costs, waits.
    parts: Vec<String>,
    /// Put the table into README.md. On a machine that does nothing else meanwhile.
    #[arg(long, conflicts_with = "parts")]
    write: bool,
}

/// Builds and runs it.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let mut bench = workspace::cargo();
    bench.args(["bench", "--quiet", "--package", "belay", "--bench", "figures", "--"]).args(&args.parts);
    let output = bench.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    let table = String::from_utf8(output.stdout).context("the benchmark printed no text")?;
    print!("{table}");
    ensure!(output.status.success(), "the benchmark failed ({})", output.status);
    if !args.write {
        return Ok(());
    }
    let path = workspace::folder().join("README.md");
    let readme = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let written = put(&readme, &table).with_context(|| format!("{} has no place for figures", path.display()))?;
    fs::write(&path, written).with_context(|| format!("cannot write {}", path.display()))
}

/// The text with the table in its place; absent where it has none.
fn put(text: &str, table: &str) -> Option<String> {
    let [begin, end] = MARKS;
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n{table}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_a_place_for_figures() {
        let readme = fs::read_to_string(workspace::folder().join("README.md")).unwrap();
        assert!(put(&readme, "| a |\n").is_some());
    }

    #[test]
    fn a_table_takes_the_place_of_the_one_before() {
        let [begin, end] = MARKS;
        let text = format!("one\n\n{begin}{end}\n\ntwo\n");
        let once = put(&text, "| a |\n").unwrap();
        assert_eq!(once, format!("one\n\n{begin}\n| a |\n\n{end}\n\ntwo\n"));
        assert_eq!(put(&once, "| a |\n").unwrap(), once);
        assert_eq!(put("one", "| a |\n"), None);
    }
}
