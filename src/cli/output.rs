//! What commands print: text for people or JSON for programs, and whether in colour and how wide.

use std::ffi::OsStr;
use std::io::{ErrorKind, IsTerminal as _, Write as _};

use anyhow::Context as _;
use clap::{Args, ColorChoice, ValueEnum};
use serde::Serialize;
use terminal_size::{Width, terminal_size_of};

use super::page::{ForPeople, Page};

/// Narrower terminals are written on as if they were so wide: below, a table is a column of broken words.
const NARROWEST: usize = 40;

/// Under which head `--help` lists these flags.
const HEADING: &str = "Output";

#[derive(Args, Clone, Copy, Debug)]
pub(super) struct OutputArgs {
    /// How to print it.
    #[arg(short, long, default_value = "text", help_heading = HEADING)]
    output: Output,
    /// Whether to use colour; auto is on a terminal, unless NO_COLOR is set.
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = HEADING)]
    color: ColorChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs; fields are only ever added.
    Json,
}

impl OutputArgs {
    /// Prints it on standard output.
    pub(super) fn print(self, report: &(impl ForPeople + Serialize)) -> anyhow::Result<()> {
        match self.output {
            Output::Text => {
                let mut page = self.page();
                report.write(&mut page);
                write_out(page.text().as_bytes())
            }
            Output::Json => {
                let json = serde_json::to_string_pretty(report).context("cannot write JSON")?;
                write_out(format!("{json}\n").as_bytes())
            }
        }
    }

    /// What is printed is read by programs.
    pub(super) fn is_json(self) -> bool {
        self.output == Output::Json
    }

    fn page(self) -> Page {
        let out = std::io::stdout();
        let is_terminal = out.is_terminal();
        let variable = |name| std::env::var_os(name);
        let (no_color, term) = (variable("NO_COLOR"), variable("TERM"));
        let size = is_terminal.then(|| terminal_size_of(out)).flatten();
        Page::new(
            is_terminal.then(|| width(size.map(|(Width(columns), _)| columns))),
            is_coloured(self.color, is_terminal, no_color.as_deref(), term.as_deref()),
        )
    }
}

/// Colour is for eyes: not in a file or a pipe, and not where somebody said so (no-color.org: present and not empty).
fn is_coloured(choice: ColorChoice, is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            is_terminal && no_color.is_none_or(OsStr::is_empty) && term.is_some_and(|term| term != "dumb")
        }
    }
}

/// How wide a terminal is taken to be that says so, or that does not know.
fn width(columns: Option<u16>) -> usize {
    match columns {
        None | Some(0) => 80,
        Some(columns) => usize::from(columns).max(NARROWEST),
    }
}

/// Writes on standard output, until whoever reads has seen enough, as `head` does.
pub(super) fn write_out(text: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_for_terminals_and_for_those_who_ask() {
        use ColorChoice::{Always, Auto, Never};
        let table = [
            (Auto, true, None, Some("xterm"), true),
            (Auto, false, None, Some("xterm"), false),
            (Auto, true, Some("1"), Some("xterm"), false),
            (Auto, true, Some(""), Some("xterm"), true),
            (Auto, true, None, Some("dumb"), false),
            (Auto, true, None, None, false),
            (Always, false, Some("1"), None, true),
            (Never, true, None, Some("xterm"), false),
        ];
        for (choice, is_terminal, no_color, term, expected) in table {
            let found = is_coloured(choice, is_terminal, no_color.map(OsStr::new), term.map(OsStr::new));
            assert_eq!(found, expected, "{choice} terminal={is_terminal} NO_COLOR={no_color:?} TERM={term:?}");
        }
    }

    #[test]
    fn a_terminal_that_does_not_know_its_width_has_eighty_columns_and_none_is_too_narrow() {
        for (columns, expected) in [(Some(120), 120), (Some(10), NARROWEST), (Some(0), 80), (None, 80)] {
            assert_eq!(width(columns), expected, "{columns:?}");
        }
    }
}
