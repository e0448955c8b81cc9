//! `belay check-config`: says what is wrong with a configuration file, before a cluster does.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use serde::Serialize;

use super::output::OutputArgs;
use super::page::{ForPeople, Page, Tone};
use crate::config::{Config, ConfigError};

pub(super) const HELP: &str = "Examples:
  belay check-config config.yaml
  belay check-config config.yaml -o json

Exit codes: 0 good, 1 wrong or not readable, 2 the command line is not understood.";

#[derive(Debug, Args)]
pub(super) struct CheckConfigArgs {
    /// The file.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// What there is to say about a file.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    file: String,
    good: bool,
    /// Absent where it is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

/// The first thing that is wrong.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct Problem {
    /// The key with the value that makes no sense; absent where the file is no configuration at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'static str>,
    message: String,
}

pub(super) fn run(args: &CheckConfigArgs) -> anyhow::Result<()> {
    let checked = Config::load(&args.file);
    let report = Report::of(&args.file, checked.as_ref().err());
    // People are told what is wrong as an error is.
    if report.good || args.output.is_json() {
        args.output.print(&report)?;
    }
    checked?;
    Ok(())
}

impl Report {
    fn of(file: &Path, error: Option<&ConfigError>) -> Self {
        let problem = error.map(|error| match error {
            ConfigError::Read { source, .. } => Problem { key: None, message: format!("cannot be read: {source}") },
            ConfigError::Parse { message, .. } => Problem { key: None, message: message.clone() },
            ConfigError::Value { key, problem, .. } => Problem { key: Some(key), message: problem.clone() },
        });
        Self { file: file.display().to_string(), good: problem.is_none(), problem }
    }
}

impl ForPeople for Report {
    fn write(&self, page: &mut Page) {
        let (word, tone) = if self.good { ("good", Tone::Good) } else { ("wrong", Tone::Bad) };
        page.verdict(&format!("{}:", self.file), word, tone, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    use crate::testing::{Folder, NEEDED};

    const RULE: &str = "busyHints:
  enabled: true
  rules: [{name: one, podSelector: {matchLabels: {a: b}}, states: [{state: Busy, when: WHEN}]}]";

    fn checked(folder: &Folder, more: &str) -> (Result<(), String>, serde_json::Value) {
        let file = folder.write("config.yaml", &format!("{NEEDED}{more}"));
        let result = Config::load(&file);
        let report = serde_json::to_value(Report::of(&file, result.as_ref().err())).unwrap();
        assert_eq!(report["file"], json!(file));
        (result.map(drop).map_err(|error| format!("{error:#}")), report)
    }

    #[test]
    fn busy_rules_are_checked_as_the_servers_check_them() {
        let folder = Folder::new();
        assert_eq!(checked(&folder, &RULE.replace("WHEN", "has(pod.spec)")).0, Ok(()));
        let problem = checked(&folder, &RULE.replace("WHEN", "has(owner.spec)")).0.unwrap_err();
        assert!(problem.contains("config.yaml is wrong: busyHints.rules: rule one: states[0] (Busy)"), "{problem}");
    }

    #[test]
    fn programs_are_told_the_key_and_what_is_wrong_with_it() {
        let folder = Folder::new();
        let (_, good) = checked(&folder, "");
        assert_eq!((&good["good"], good.get("problem")), (&json!(true), None));
        let (_, wrong) = checked(&folder, "writesPerSecond: 0");
        assert_eq!(wrong["good"], false);
        assert_eq!(wrong["problem"], json!({"key": "writesPerSecond", "message": "must be 1 or more"}));
        let (_, unknown) = checked(&folder, "evictionHolds: {}");
        assert_eq!(unknown["problem"].get("key"), None);
        assert!(unknown["problem"]["message"].as_str().unwrap().contains("evictionHolds"), "{unknown}");
        let nowhere = Path::new("/nowhere/config.yaml");
        let missing = Report::of(nowhere, Config::load(nowhere).err().as_ref());
        assert!(missing.problem.is_some_and(|problem| problem.message.starts_with("cannot be read: ")));
    }
}
