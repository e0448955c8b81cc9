//! By which name the program was called: alone, or by kubectl, to which it then looks like one of its own commands.

use std::ffi::OsStr;
use std::path::Path;

use clap::{Command, CommandFactory as _};

use super::Cli;

/// A program of this name on the PATH is what kubectl runs for `kubectl belay`
/// (kubernetes/kubernetes, `staging/src/k8s.io/kubectl/pkg/cmd/cmd.go`, `HandlePluginCommand`).
const PLUGIN: &str = "kubectl-belay";

/// A program of this name is what kubectl runs to complete the plugin's arguments
/// (same repository, `staging/src/k8s.io/kubectl/pkg/cmd/plugin_completion.go`).
const COMPLETER: &str = "kubectl_complete-belay";

/// By which name the program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// `belay`, or what else somebody called the file.
    Program,
    /// `kubectl belay`.
    Plugin,
    /// kubectl asks how the arguments of `kubectl belay` may go on.
    Completer,
}

impl Called {
    /// By the first argument, as the system gives it.
    pub(super) fn by(program: Option<&OsStr>) -> Self {
        match program.and_then(|program| Path::new(program).file_name()?.to_str()) {
            Some(PLUGIN) => Self::Plugin,
            Some(COMPLETER) => Self::Completer,
            _ => Self::Program,
        }
    }

    /// What people type.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Program => "belay",
            Self::Plugin | Self::Completer => "kubectl belay",
        }
    }

    /// The file that a shell runs, for which it is told how to complete.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Program => "belay",
            Self::Plugin | Self::Completer => PLUGIN,
        }
    }

    /// The command line, whose usage and examples say that name.
    pub(super) fn command(self) -> Command {
        renamed(Cli::command().bin_name(self.name()), self.name())
    }
}

fn renamed(command: Command, name: &str) -> Command {
    let command = command.mut_subcommands(|command| renamed(command, name));
    match command.get_after_help().map(|help| help.to_string().replace("\n  belay ", &format!("\n  {name} "))) {
        Some(help) => command.after_help(help),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_name_decides_how_the_program_calls_itself() {
        let table = [
            ("/usr/local/bin/belay", Called::Program),
            ("/home/me/.krew/bin/kubectl-belay", Called::Plugin),
            ("kubectl_complete-belay", Called::Completer),
            ("belay-0.1", Called::Program),
        ];
        for (file, called) in table {
            assert_eq!(Called::by(Some(OsStr::new(file))), called, "{file}");
        }
        assert_eq!(Called::by(None), Called::Program);
    }

    #[test]
    fn help_says_the_name_by_which_it_was_called_in_usage_and_examples() {
        for (called, name, other) in
            [(Called::Program, "belay", "kubectl belay"), (Called::Plugin, "kubectl belay", "\n  belay ")]
        {
            let asked = called.command().try_get_matches_from([called.file(), "explain", "--help"]);
            let help = asked.unwrap_err().to_string();
            assert!(help.contains(&format!("Usage: {name} explain")), "{help}");
            assert!(help.contains(&format!("\n  {name} explain pod")), "{help}");
            assert!(!help.contains(other), "{help}");
        }
    }

    #[test]
    fn the_definition_of_the_command_line_holds() {
        Called::Program.command().debug_assert();
    }
}
