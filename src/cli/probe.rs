//! `belay probe`: does the API server reach the webhook now? For people, and for `helm test`.
//!
//! It asks as the leading controller does, with the rights of who runs it, and changes nothing.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use belay_decide::probe::{EVICTION_ENTRY, Miss, Verdict};
use clap::Args;
use kube::Client;
use serde::Serialize;

use super::connect::{ConnectArgs, told};
use super::output::OutputArgs;
use super::page::{ForPeople, Page, Tone};
use super::{FAILED, LogArgs};
use crate::cluster::probe::{Found, Prober, find};

/// The exit code where the API server does not reach the webhook. That it could not be asked is a failure like any
/// other; and a command line that is not understood must not be taken for an outage by a hook, so it is not clap's 2.
const NOT_REACHED: u8 = 3;

pub(super) const HELP: &str = "Examples:
  belay probe
  belay probe --attempts 10
  belay probe -n belay-system -o json --context production

It asks the API server for the eviction of a pod that does not exist, as a dry
run, in the namespace that Belay runs in, and looks whether a webhook replica
was asked about it. That takes the rights to create pods/eviction of the name
belay-canary there, and to list validatingwebhookconfigurations (with
--configuration: to get that one).

Exit codes: 0 reached, 1 it could not be asked, 2 the command line is not
understood, 3 not reached.";

#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    /// The namespace that Belay runs in; needed where there are several.
    #[arg(short, long, visible_alias = "belay-namespace", env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// The ValidatingWebhookConfiguration; by default it is looked for.
    #[arg(long, value_name = "NAME", env = "BELAY_VALIDATING_CONFIGURATION", requires = "namespace")]
    configuration: Option<String>,
    /// How often to ask, one time after the other. The API server chooses a replica each time.
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    attempts: u16,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// What was found.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// The result of the attempts together: the worst one.
    result: &'static str,
    /// Why it is `NotReached`, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// The same in a sentence.
    message: String,
    /// How many attempts ended in each result.
    attempts: BTreeMap<&'static str, usize>,
    /// How often each replica answered.
    replicas: BTreeMap<String, usize>,
    /// Why it is not known whether evictions are sent where the probe is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

impl Report {
    fn of(found: Vec<Found>) -> Option<Self> {
        let (mut attempts, mut replicas) = (BTreeMap::new(), BTreeMap::new());
        for Found { verdict, .. } in &found {
            *attempts.entry(verdict.result()).or_default() += 1;
            if let Verdict::Reached { replica } = verdict {
                *replicas.entry(replica.clone()).or_default() += 1;
            }
        }
        // The first of the worst.
        let Found { verdict, unread } = found.into_iter().min_by_key(|found| gravity(&found.verdict))?;
        let reason = if let Verdict::NotReached(miss) = &verdict { Some(miss.reason()) } else { None };
        Some(Self {
            result: verdict.result(),
            reason,
            message: verdict.to_string(),
            attempts,
            replicas,
            unread: unread.into_iter().collect(),
        })
    }

    fn exit_code(&self) -> u8 {
        match self.result {
            "Reached" => 0,
            "NotReached" => NOT_REACHED,
            _ => FAILED,
        }
    }
}

/// What counts most first.
fn gravity(verdict: &Verdict) -> u8 {
    match verdict.is_reached() {
        Some(false) => 0,
        None => 1,
        Some(true) => 2,
    }
}

impl ForPeople for Report {
    fn write(&self, page: &mut Page) {
        match self.result {
            "Reached" => page.verdict("Webhook:", "reached", Tone::Good, ""),
            "NotReached" => page.verdict("Webhook:", "not reached", Tone::Bad, ""),
            _ => page.verdict("Webhook:", "not known", Tone::Waiting, ""),
        }
        if self.result != "Reached" {
            page.line(2, &self.message);
        }
        let all: usize = self.attempts.values().sum();
        if all > 1 {
            let counts: Vec<_> = self.attempts.iter().map(|(result, count)| format!("{count} {result}")).collect();
            page.line(0, &format!("{all} attempts: {}", counts.join(", ")));
        }
        if !self.replicas.is_empty() {
            page.line(0, "Answered by:");
        }
        for (replica, count) in &self.replicas {
            let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
            page.line(2, &format!("{replica}, {times}"));
        }
        for unread in &self.unread {
            page.problem(&format!("Not compared with the entry {EVICTION_ENTRY}: {unread}"));
        }
    }
}

pub(super) async fn run(args: ProbeArgs) -> anyhow::Result<ExitCode> {
    let client = args.connect.connect().await?;
    let found = match place(&client, &args).await? {
        Some((namespace, configuration)) => {
            let prober = Prober::new(client, namespace, configuration);
            let mut found = Vec::new();
            for _ in 0..args.attempts {
                found.push(prober.probe().await);
            }
            found
        }
        None => vec![Verdict::NotReached(Miss::NoConfiguration).into()],
    };
    let report = Report::of(found).context("nothing was asked")?;
    args.output.print(&report)?;
    Ok(report.exit_code().into())
}

/// Namespace and configuration of the Belay that is meant; absent where there is none.
async fn place(client: &Client, args: &ProbeArgs) -> anyhow::Result<Option<(String, String)>> {
    if let (Some(namespace), Some(configuration)) = (&args.namespace, &args.configuration) {
        return Ok(Some((namespace.clone(), configuration.clone())));
    }
    let mut found = find(client).await.map_err(|error| told(&error)).context("cannot look for Belay")?;
    found.retain(|(namespace, _)| args.namespace.as_ref().is_none_or(|wanted| wanted == namespace));
    if found.len() > 1 {
        let namespaces: Vec<_> = found.iter().map(|(namespace, name)| format!("{namespace} ({name})")).collect();
        bail!(
            "Belay runs in {}: name one by --namespace, and --configuration where that is not enough",
            namespaces.join(", ")
        );
    }
    Ok(found.pop())
}
