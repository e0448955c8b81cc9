//! The command line: one file a subcommand.

mod check_config;
mod cleanup;
mod controller;
mod crds;
mod explain;
mod fill;
mod process;
mod webhook;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Holds a pod in place until it is safe to leave, and tells everything that removes pods which ones may go.
#[derive(Debug, Parser)]
#[command(name = "belay", version, about, max_term_width = 100)]
pub struct Cli {
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
    Crds,
    /// Read a configuration file and say what is wrong with it.
    CheckConfig {
        /// The file.
        file: PathBuf,
    },
    /// Say what Belay sees of an object, what it makes of it, and what that means for everybody else.
    Explain(explain::ExplainArgs),
    /// Take away what Belay wrote on pods, and nothing else.
    Cleanup(cleanup::CleanupArgs),
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
    /// What is logged, as in "info,belay=debug".
    #[arg(long, env = "BELAY_LOG", default_value = "info")]
    log: String,
    /// How it is logged.
    #[arg(long, env = "BELAY_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Cli {
    /// Does what was asked for. Errors are told on standard error, one line a cause.
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Webhook(args) => process::block_on(webhook::run(args)),
            Command::Controller(args) => process::block_on(controller::run(args)),
            Command::Crds => crds::run(),
            Command::CheckConfig { file } => check_config::run(&file),
            Command::Explain(args) => {
                process::start_logging(args.log()).and_then(|()| process::block_on(explain::run(args)))
            }
            Command::Cleanup(args) => {
                process::start_logging(&args.log).and_then(|()| process::block_on(cleanup::run(args)))
            }
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("belay: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}
