//! The command line: one file a subcommand.

mod called;
mod check_config;
mod cleanup;
mod completions;
mod connect;
mod controller;
mod crds;
mod explain;
mod fill;
mod output;
mod page;
mod probe;
mod process;
mod webhook;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use thiserror::Error;

use called::Called;

/// It could not be done, or what was asked about is wrong.
const FAILED: u8 = 1;

/// The command line is not understood; clap's own code.
const USAGE: u8 = 2;

/// The command line is not understood, for a reason that its definition cannot tell.
#[derive(Debug, Error)]
#[error("{0}; see --help")]
struct UsageError(String);

/// Holds a pod in place until it is safe to leave, and tells everything that removes pods which ones may go.
#[derive(Debug, Parser)]
#[command(name = "belay", version, about, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 it could not be done, 2 the command line is not understood.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the admission webhooks.
    Webhook(WebhookArgs),
    /// Run the controller: hand workloads over, keep statuses and certificates. One of its replicas leads.
    Controller(ServerArgs),
    /// Print the CustomResourceDefinitions, for `kubectl apply -f -`.
    #[command(after_help = crds::HELP)]
    Crds,
    /// Read a configuration file and say what is wrong with it.
    #[command(after_help = check_config::HELP)]
    CheckConfig(check_config::CheckConfigArgs),
    /// Say what Belay sees of an object, what it makes of it, and what that means for everybody else.
    #[command(after_help = explain::HELP)]
    Explain(explain::ExplainArgs),
    /// Say whether evictions come to Belay: whether the API server reaches the webhook now.
    #[command(after_help = probe::HELP)]
    Probe(probe::ProbeArgs),
    /// Take away what Belay wrote on pods, and nothing else.
    #[command(after_help = cleanup::HELP)]
    Cleanup(cleanup::CleanupArgs),
    /// Print what a shell needs to complete the arguments.
    #[command(after_help = completions::HELP)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, Args)]
struct WebhookArgs {
    /// Where the API server calls, over HTTPS.
    #[arg(long, env = "BELAY_LISTEN", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// The configuration file.
    #[arg(long, env = "BELAY_CONFIG", default_value = "/etc/belay/config.yaml")]
    config: PathBuf,
    /// The folder of tls.crt, tls.key and ca.crt, where certs.mode is certManager or existingSecret.
    #[arg(long, env = "BELAY_CERTS", default_value = "/etc/belay-certs")]
    certs: PathBuf,
    /// Where /livez, /readyz and /metrics are served, over plain HTTP.
    #[arg(long, env = "BELAY_ADMIN_LISTEN", default_value = "0.0.0.0:8080")]
    admin_listen: SocketAddr,
    /// The namespace that Belay runs in.
    #[arg(long, env = "POD_NAMESPACE", default_value = "belay-system")]
    namespace: String,
    /// The name of the pod that Belay runs in: its identity in leader election and Events.
    #[arg(long, env = "POD_NAME")]
    pod_name: Option<String>,
    /// The UID of that pod, so that `kubectl describe` shows its Events.
    #[arg(long, env = "POD_UID")]
    pod_uid: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Args)]
struct LogArgs {
    /// What is logged, as in "info,belay=debug": a filter as in RUST_LOG, which is read where this is not set; else info.
    #[arg(long, env = "BELAY_LOG", value_name = "FILTER", help_heading = "Log")]
    log: Option<String>,
    /// How it is logged.
    #[arg(long, env = "BELAY_LOG_FORMAT", value_name = "FORMAT", default_value = "text", help_heading = "Log")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Does what was asked for, by arguments of which the first is the program's name. Errors are told on standard error,
/// one line a cause.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let called = Called::by(args.first().map(OsString::as_os_str));
    if called == Called::Completer {
        return ended(called, completions::for_kubectl(args).map(done));
    }
    let cli = called.command().try_get_matches_from(args).and_then(|matches| Cli::from_arg_matches(&matches));
    match cli {
        Ok(cli) => ended(called, cli.run(called)),
        // Or what --help and --version print.
        Err(error) => match error.print() {
            Ok(()) if !error.use_stderr() => ExitCode::SUCCESS,
            _ => ExitCode::from(USAGE),
        },
    }
}

fn ended(called: Called, result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}: {error:#}", called.name());
            ExitCode::from(if error.is::<UsageError>() { USAGE } else { FAILED })
        }
    }
}

impl Cli {
    fn run(self, called: Called) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Webhook(args) => process::block_on(webhook::run(args)).map(done),
            Command::Controller(args) => process::block_on(controller::run(args)).map(done),
            Command::Crds => crds::run().map(done),
            Command::CheckConfig(args) => check_config::run(&args).map(done),
            Command::Explain(args) => {
                process::start_logging(&args.log).and_then(|()| process::block_on(explain::run(args))).map(done)
            }
            Command::Probe(args) => {
                process::start_logging(&args.log).and_then(|()| process::block_on(probe::run(args)))
            }
            Command::Cleanup(args) => {
                process::start_logging(&args.log).and_then(|()| process::block_on(cleanup::run(args))).map(done)
            }
            Command::Completions { shell } => completions::run(shell, called).map(done),
        }
    }
}

/// What most commands say where they have not failed.
fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// The whole command line, for what is written about it.
#[cfg(test)]
pub(crate) fn command() -> clap::Command {
    Called::Program.command()
}

/// What is printed as JSON, for what is written about it.
#[cfg(test)]
pub(crate) mod reports {
    pub(crate) use super::check_config::Report as Checked;
    pub(crate) use super::cleanup::Report as Cleanup;
    pub(crate) use super::explain::{Node, Pod, Workload};
    pub(crate) use super::probe::Report as Probe;
}
