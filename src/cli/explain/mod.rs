//! `belay explain`: what Belay sees of an object, what it makes of it, and what that means for everybody else.
//!
//! It asks the cluster itself, with the rights of who runs it, and decides with the same functions as the servers; it
//! changes nothing.

mod gather;
mod node;
mod pod;
#[cfg(test)]
mod tests;
mod workload;

use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

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
    /// A node: how soon it ought to empty and why, its neighbours in that order, and what the next scale-down of each
    /// workload there would take.
    #[command(after_help = "Examples:\n  belay explain node worker-3\n  belay explain node worker-3 -o json\n\n\
                            Exit codes: 0 explained, 1 not found or not readable.")]
    Node(NodeArgs),
    /// A Deployment: what protects it, what the next eviction of each of its pods would bring about, and what goes on.
    #[command(
        after_help = "Examples:\n  belay explain workload shop/web\n  belay explain workload web -n shop -o json\n\n\
                            Exit codes: 0 explained, 1 not found or not readable."
    )]
    Workload(WorkloadArgs),
}

#[derive(Debug, Args)]
struct WorkloadArgs {
    /// NAMESPACE/NAME of the Deployment, or NAME with --namespace.
    workload: String,
    /// The Deployment's namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// The node's name.
    node: String,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct PodArgs {
    /// NAMESPACE/NAME, or NAME with --namespace.
    pod: String,
    /// The pod's namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct CommonArgs {
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
        &self.what.common().log
    }
}

impl What {
    fn common(&self) -> &CommonArgs {
        match self {
            Self::Pod(args) => &args.common,
            Self::Node(args) => &args.common,
            Self::Workload(args) => &args.common,
        }
    }
}

pub(super) async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let client = client::connect().await?;
    let common = args.what.common();
    let config = gather::config(&client, common.config.as_deref(), &common.belay_namespace).await?;
    match &args.what {
        What::Pod(args) => {
            let (namespace, name) = name_of("pod", &args.pod, &args.namespace)?;
            let seen = gather::pod(&client, &config, &common.belay_namespace, namespace, name).await?;
            print(&pod::explain(&seen, Clock::wall()), common.output)
        }
        What::Node(args) => {
            let now = Clock::wall();
            let seen = gather::cluster(&client, &config, &common.belay_namespace, now).await?;
            let report = node::explain(&seen, &args.node, now);
            print(&report.with_context(|| format!("there is no node {}", args.node))?, common.output)
        }
        What::Workload(args) => {
            let (namespace, name) = name_of("Deployment", &args.workload, &args.namespace)?;
            let seen = gather::workload(&client, &config, &common.belay_namespace, namespace).await;
            let report = workload::explain(&seen, namespace, name, Clock::wall());
            let report = report.with_context(|| match seen.unread.first() {
                Some(problem) => format!("cannot read the Deployment {namespace}/{name}: {problem}"),
                None => format!("there is no Deployment {namespace}/{name}"),
            })?;
            print(&report, common.output)
        }
    }
}

/// Namespace and name of the object that is meant.
fn name_of<'a>(kind: &str, object: &'a str, namespace: &'a str) -> anyhow::Result<(&'a str, &'a str)> {
    let (namespace, name) = object.split_once('/').unwrap_or((namespace, object));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        bail!("{object:?} names no {kind}: write NAMESPACE/NAME, or NAME with --namespace");
    }
    Ok((namespace, name))
}

fn print(report: &(impl fmt::Display + Serialize), output: Output) -> anyhow::Result<()> {
    let text = match output {
        Output::Text => report.to_string(),
        Output::Json => serde_json::to_string_pretty(report).context("cannot write JSON")? + "\n",
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has seen enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

fn table(f: &mut fmt::Formatter<'_>, head: [&str; 4], rows: Vec<[String; 4]>) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2)];
    for row in &rows {
        let line = format!("  {:3$}  {:4$}  {:5$}", row[0], row[1], row[2], widths[0], widths[1], widths[2]);
        writeln!(f, "{}", format!("{line}  {}", row[3]).trim_end())?;
    }
    Ok(())
}
