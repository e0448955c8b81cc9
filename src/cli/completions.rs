//! `belay completions`: what a shell needs to complete the arguments, and what kubectl asks when it completes those of
//! the plugin.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::Context as _;
use clap_complete::engine::complete;
use clap_complete::{Shell, generate};

use super::called::Called;
use super::output::write_out;

/// What kubectl is to do with the candidates: nothing besides, least of all to offer file names of its own
/// (spf13/cobra, `completions.go`, `ShellCompDirectiveNoFileComp`).
const NO_FILES: &str = ":4";

pub(super) const HELP: &str = "Examples:
  source <(belay completions bash)
  belay completions zsh > \"${fpath[1]}/_belay\"
  belay completions fish > ~/.config/fish/completions/belay.fish

As a plugin of kubectl it is completed by kubectl's own completion, where a
link kubectl_complete-belay to this program is on the PATH.

Exit codes: 0 printed, 1 standard output cannot be written, 2 the command line is not understood.";

pub(super) fn run(shell: Shell, called: Called) -> anyhow::Result<()> {
    let mut script = Vec::new();
    generate(shell, &mut called.command(), called.file(), &mut script);
    write_out(&script)
}

/// Answers kubectl: one candidate a line, with its description behind a tab, then what to do with them. The last
/// argument is the word that is being written.
pub(super) fn for_kubectl(args: Vec<OsString>) -> anyhow::Result<()> {
    write_out(&candidates(args)?)
}

fn candidates(args: Vec<OsString>) -> anyhow::Result<Vec<u8>> {
    let here = std::env::current_dir().ok();
    let last = args.len().saturating_sub(1);
    let found = complete(&mut Called::Completer.command(), args, last, here.as_deref());
    let mut answer = Vec::new();
    for candidate in found.context("cannot complete the arguments")? {
        answer.extend_from_slice(candidate.get_value().as_encoded_bytes());
        if let Some(help) = candidate.get_help() {
            write!(answer, "\t{}", help.to_string().lines().next().unwrap_or_default())?;
        }
        answer.push(b'\n');
    }
    writeln!(answer, "{NO_FILES}")?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    fn told(words: &[&str]) -> String {
        let args = std::iter::once(&"kubectl_complete-belay").chain(words);
        String::from_utf8(candidates(args.map(OsString::from).collect()).unwrap()).unwrap()
    }

    fn values(words: &[&str]) -> Vec<String> {
        let lines: Vec<_> = told(words).lines().map(str::to_owned).collect();
        lines.iter().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn kubectl_is_told_commands_types_flags_and_their_values() {
        assert_eq!(values(&["exp"]), ["explain", ":4"]);
        assert_eq!(values(&["explain", ""])[..3], ["pod", "node", "workload"]);
        assert_eq!(values(&["explain", "pod", "w", "--kubec"]), ["--kubeconfig", ":4"]);
        assert_eq!(values(&["explain", "pod", "w", "-o", ""]), ["text", "json", ":4"]);
        assert!(told(&["exp"]).starts_with("explain\tSay what Belay sees"), "{}", told(&["exp"]));
        assert_eq!(values(&["nothing-like-that", ""]).last().map(String::as_str), Some(":4"));
    }

    #[test]
    fn there_is_a_script_for_each_shell_that_names_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            generate(shell, &mut Called::Program.command(), "belay", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Called::Program.command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }

    /// What bash offers when somebody has typed these words and asks for the last one to be completed.
    fn offered(words: &[&str]) -> Vec<String> {
        let folder = Folder::new();
        let mut script = Vec::new();
        generate(Shell::Bash, &mut Called::Program.command(), "belay", &mut script);
        let file = folder.write("belay.bash", &String::from_utf8(script).unwrap());
        // As bash's own completion calls it: the command, the word, and the one before it.
        let ask = r#"source "$1"; shift; COMP_WORDS=(belay "$@"); COMP_CWORD=$#
            _belay belay "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
        let output = std::process::Command::new("bash")
            .args(["--norc", "-c", ask, "bash"])
            .arg(&file)
            .args(words)
            .output()
            .unwrap_or_else(|error| panic!("bash: {error}"));
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_by_the_script() {
        assert_eq!(offered(&["check"]), ["check-config"]);
        assert_eq!(offered(&["explain", "--kubec"]), ["--kubeconfig"]);
        assert_eq!(offered(&["explain", "--output", ""]), ["text", "json"]);
        assert!(offered(&["explain", ""]).iter().any(|word| word == "workload"), "{:?}", offered(&["explain", ""]));
    }
}
