//! `belay explain`: what Belay sees of an object, what it makes of it, and what that means for everybody else.
//!
//! It asks the cluster itself, with the rights of who runs it, and decides with the same functions as the servers; it
//! changes nothing.

mod gather;
mod node;
mod pod;
mod subject;
#[cfg(test)]
mod tests;
mod workload;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueHint};

use self::subject::{Kind, Subject};
use super::LogArgs;
use super::connect::{BelayNamespace, ConnectArgs};
use super::output::OutputArgs;
use crate::cluster::clock::Clock;

#[cfg(test)]
pub(crate) use self::{node::Report as Node, pod::Report as Pod, workload::Report as Workload};

pub(super) const HELP: &str = "Types:
  pod (pods, po)
      what it is doing and why, whose each hint is, whether its eviction would
      be held, and what each remover would do with it now
  node (nodes, no)
      how soon it ought to empty and why, its neighbours in that order, and
      what the next scale-down of each workload there would take
  workload (deployment, deployments, deploy)
      what protects the Deployment, what the next eviction of each of its pods
      would bring about, and what goes on

Examples:
  belay explain pod runner-abc12 -n ci
  belay explain pod/runner-abc12 -n ci -o json
  belay explain pod ci/runner-abc12 --context production
  belay explain node worker-3
  belay explain deployment/web -n shop

Exit codes: 0 explained, 1 not found or not readable, 2 the command line is not understood.";

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// What kind of object, as TYPE NAME or TYPE/NAME: pod, node or workload, by kubectl's names too.
    #[arg(value_name = "TYPE", value_parser = subject::parser())]
    subject: Subject,
    /// The object's name, or NAMESPACE/NAME.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// The object's namespace; by default the context's.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Belay's configuration file; by default the one in the cluster is read.
    #[arg(long, value_name = "FILE", env = "BELAY_CONFIG", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    belay: BelayNamespace,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

pub(super) async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let object = args.subject.named(args.name.as_deref(), args.namespace.as_deref())?;
    let client = args.connect.connect().await?;
    let belay_namespace = args.belay.belay_namespace.as_str();
    let config = gather::config(&client, args.config.as_deref(), belay_namespace).await?;
    let namespace = object.namespace.unwrap_or_else(|| client.default_namespace());
    let name = object.name;
    match args.subject.kind {
        Kind::Pod => {
            let seen = gather::pod(&client, &config, belay_namespace, namespace, name).await?;
            args.output.print(&pod::explain(&seen, Clock::wall()))
        }
        Kind::Node => {
            let now = Clock::wall();
            let seen = gather::cluster(&client, &config, belay_namespace, now).await?;
            let report = node::explain(&seen, name, now);
            args.output.print(&report.with_context(|| format!("there is no node {name}"))?)
        }
        Kind::Workload => {
            let seen = gather::workload(&client, &config, belay_namespace, namespace).await;
            let report = workload::explain(&seen, namespace, name, Clock::wall());
            let report = report.with_context(|| match seen.unread.first() {
                Some(problem) => format!("cannot read the Deployment {namespace}/{name}: {problem}"),
                None => format!("there is no Deployment {namespace}/{name}"),
            })?;
            args.output.print(&report)
        }
    }
}
