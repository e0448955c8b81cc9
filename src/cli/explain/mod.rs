//! `belay explain`: what Belay sees of an object, what it makes of it, and what that means for everybody else.
//!
//! It asks the cluster itself, with the rights of who runs it, and decides with the same functions as the servers; it
//! changes nothing.

mod gather;
mod pod;
#[cfg(test)]
mod tests;

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};

use super::LogArgs;
use crate::cluster::client;
use crate::cluster::clock::Clock;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A pod: what it is doing and why, whose each hint is, whether an eviction would be held, and what each remover
    /// would do with it now.
    #[command(
        after_help = "Examples:\n  belay explain pod ci/runner-abc12\n  belay explain pod runner-abc12 -n ci -o json\n\n\
                            Exit codes: 0 explained, 1 not found or not readable."
    )]
    Pod(PodArgs),
}

#[derive(Debug, Args)]
struct PodArgs {
    /// NAMESPACE/NAME, or NAME with --namespace.
    pod: String,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// The object's namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// How to print it.
    #[arg(short, long, default_value = "text")]
    output: Output,
    /// Belay's configuration file; by default the one in the cluster is read.
    #[arg(long, env = "BELAY_CONFIG")]
    config: Option<PathBuf>,
    /// The namespace that Belay runs in.
    #[arg(long, env = "POD_NAMESPACE", default_value = "belay-system")]
    belay_namespace: String,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs; fields are only ever added.
    Json,
}

impl ExplainArgs {
    pub(super) fn log(&self) -> &LogArgs {
        let What::Pod(args) = &self.what;
        &args.common.log
    }
}

pub(super) async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let What::Pod(args) = args.what;
    let (namespace, name) = match args.pod.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (args.common.namespace.as_str(), args.pod.as_str()),
    };
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        bail!("{:?} names no pod: write NAMESPACE/NAME, or NAME with --namespace", args.pod);
    }
    let client = client::connect().await?;
    let common = &args.common;
    let config = gather::config(&client, common.config.as_deref(), &common.belay_namespace).await?;
    let seen = gather::pod(&client, &config, &common.belay_namespace, namespace, name).await?;
    let report = pod::explain(&seen, Clock::wall());
    let text = match common.output {
        Output::Text => report.to_string(),
        Output::Json => serde_json::to_string_pretty(&report).context("cannot write JSON")? + "\n",
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has seen enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
