//! The page about the command line: every command, flag, variable and field of JSON, and every command line that any
//! page shows.

use std::collections::BTreeSet;

use clap::{Arg, Command};
use schemars::{JsonSchema, schema_for};
use serde_json::Value;

use super::{pages, read};
use crate::cli;

const PAGE: &str = "docs/cli.md";

/// Flags of clap's own.
const OF_CLAP: [&str; 2] = ["help", "version"];

fn commands() -> Vec<Command> {
    let mut command = cli::command();
    command.build();
    command.get_subcommands().filter(|command| command.get_name() != "help").cloned().collect()
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !OF_CLAP.contains(&arg.get_id().as_str()))
}

/// The words that stand as code in sentences and tables.
fn code(text: &str) -> BTreeSet<&str> {
    let is_word = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
    let prose = text.split("\n```").step_by(2);
    let spans = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    spans.flat_map(|span| span.split(move |letter| !is_word(letter))).collect()
}

/// What stands between this line and the next one that is empty, but for the one behind it.
fn part<'a>(page: &'a str, line: &str) -> &'a str {
    let (_, rest) = page.split_once(line).unwrap_or_else(|| panic!("{PAGE} has no {line:?}"));
    rest.trim_start().split("\n\n").next().unwrap_or_default()
}

#[test]
fn every_command_has_a_part_and_help_with_examples_and_exit_codes() {
    let page = read(PAGE);
    for command in commands() {
        let name = command.get_name();
        assert!(page.contains(&format!("\n## belay {name}\n")), "{PAGE} has no part about belay {name}");
        if ["webhook", "controller"].contains(&name) {
            continue;
        }
        let help = command.get_after_help().map(|help| help.to_string().replace('\n', " ")).unwrap_or_default();
        for words in ["Examples:", &format!("belay {name}"), "Exit codes: 0 ", " 1 ", " 2 "] {
            assert!(help.contains(words), "belay {name} --help does not say {words:?}");
        }
    }
}

#[test]
fn every_flag_and_variable_is_explained_and_no_other() {
    let page = read(PAGE);
    let commands = commands();
    let all = || commands.iter().flat_map(flags);
    let flags: BTreeSet<_> = all().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
    let variables: BTreeSet<_> = all().filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned())).collect();
    let written = |is_meant: fn(&str) -> bool| -> BTreeSet<String> {
        code(&page).into_iter().filter(|word| is_meant(word)).map(str::to_owned).collect()
    };
    let named = written(|word| word.starts_with("--") && word != "--help");
    assert_eq!(named, flags, "flags in {PAGE}");
    let named = written(|word| word.starts_with("BELAY_") || word.starts_with("POD_"));
    assert_eq!(named, variables, "variables in {PAGE}");
    assert!(code(&page).contains("RUST_LOG") && code(&page).contains("NO_COLOR"));
}

/// The command lines of ours in the code blocks of a page, as far as their output does not go elsewhere.
fn shown(text: &str) -> Vec<&str> {
    let blocks = text.split("\n```").skip(1).step_by(2);
    let lines = blocks.flat_map(str::lines).filter_map(|line| {
        let line = line.trim_start().trim_start_matches("$ ");
        let line =
            ["belay ", "kubectl belay ", "/usr/local/bin/belay "].iter().find_map(|name| line.strip_prefix(name))?;
        line.split(['>', '|', '#']).next()
    });
    lines.collect()
}

#[test]
fn every_command_line_that_a_page_shows_is_understood() {
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for line in shown(&text) {
            let words = std::iter::once("belay").chain(line.split_whitespace());
            if let Err(error) = cli::command().try_get_matches_from(words) {
                assert!(!error.use_stderr(), "{}: belay {line}\n{error}", page.display());
            }
            count += 1;
        }
    }
    assert!(count > 20, "only {count} were found");
}

/// The names of all fields of a type, those of what it is made of included.
fn fields<T: JsonSchema>() -> BTreeSet<String> {
    fn collect(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                let properties = map.get("properties").and_then(Value::as_object);
                found.extend(properties.into_iter().flat_map(|properties| properties.keys().cloned()));
                map.values().for_each(|value| collect(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    collect(schema_for!(T).as_value(), &mut found);
    found
}

#[test]
fn every_field_of_json_is_explained_and_no_other() {
    let page = read(PAGE);
    let of_outlook = ["remover", "verdict", "because"].map(str::to_owned);
    let pod: BTreeSet<_> = fields::<cli::reports::Pod>().into_iter().chain(of_outlook).collect();
    let table = [
        ("JSON of a pod:\n", pod),
        ("JSON of a node:\n", fields::<cli::reports::Node>()),
        ("JSON of a workload:\n", fields::<cli::reports::Workload>()),
        ("none is looked for. |\n", fields::<cli::reports::Probe>()),
        ("expressions included, without a cluster.\n", fields::<cli::reports::Checked>()),
        ("looks after. |\n", fields::<cli::reports::Cleanup>()),
    ];
    let pod = part(&page, table[0].0);
    for (line, fields) in table {
        // A workload's parts that are as a pod's are explained there.
        let text = format!("{}\n{}", part(&page, line), if line.contains("workload") { pod } else { "" });
        let missing: Vec<_> = fields.iter().filter(|field| !code(&text).contains(field.as_str())).collect();
        assert!(missing.is_empty(), "{PAGE} behind {line:?} does not name {missing:?}");
        let first: Vec<_> = part(&page, line).lines().skip(2).filter_map(|row| row.split('|').nth(1)).collect();
        let first = first.join(" ");
        let unknown: Vec<_> =
            code(&first).into_iter().filter(|word| !word.is_empty() && !fields.contains(*word)).collect();
        assert!(unknown.is_empty(), "{PAGE} behind {line:?} names {unknown:?}, which there are not");
    }
}
