//! `cargo xtask demo`: the same drain twice, without Belay and with it, in front of a client that counts.
//!
//! It narrates what a person would see who watches the nodes, the pods and the drainer, and succeeds only if it went
//! as promised: requests fail without Belay, and none fails with it.

mod narrator;
mod requests;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use belay_e2e::tools::Running;
use clap::Args;

use narrator::Narrator;
use requests::Tally;
use stage::Stage;

/// How long one act may take. A handover takes seconds; a cluster that must pull images first takes minutes.
const ACT_WITHIN: Duration = Duration::from_mins(10);

/// How often the stage is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The Deployment that is drained.
const WORKLOAD: &str = "web";

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Leave everything running afterwards, for a look around, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Use this cluster instead of starting one. Its node under the demo's pod is cordoned for the time of a drain that
    /// evicts the demo's pods alone.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Belay's image, as the cluster of --kubeconfig can pull it (needed there unless Belay is installed already).
    #[arg(long, requires = "kubeconfig", value_name = "REPOSITORY:TAG")]
    image: Option<String>,
    /// The web server's image in the cluster of --kubeconfig.
    #[arg(long, requires = "kubeconfig", value_name = "IMAGE", default_value = "nginx:alpine")]
    web_image: String,
    /// The port that this image listens on.
    #[arg(long, requires = "kubeconfig", value_name = "PORT", default_value_t = 80)]
    web_port: u16,
}

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    println!("Belay demo: one drain of one node, twice. A single-replica Deployment runs on it, and a client asks it");
    println!("for an answer fifty times a second.\n");
    let stage = Stage::set(args)?;
    let outcome = stage.block_on(play(&stage));
    if args.keep {
        stage.invite();
    }
    stage.clear();
    outcome
}

async fn play(stage: &Stage) -> anyhow::Result<()> {
    stage.workload().await?;

    println!("\n1. Without Belay\n");
    let without = act(stage).await?;
    println!("\n   {without}\n");

    stage.install_belay().await?;
    stage.protect().await?;

    println!("\n2. With Belay\n");
    let with = act(stage).await?;
    println!("\n   {with}\n");

    ensure!(without.failed > 0, "the drain without Belay failed no request: there is nothing to compare with");
    ensure!(with.failed == 0, "{} requests failed although Belay held the drain", with.failed);
    ensure!(with.held > 0, "the drain was never held: Belay had no part in it");
    println!("The same drain: {} failed requests without Belay, 0 with it.", without.failed);
    Ok(())
}

/// One drain, told as it happens.
async fn act(stage: &Stage) -> anyhow::Result<Tally> {
    let victim = stage.victim().await?;
    let requests = stage.requests().await?;
    requests.flowing().await?;
    let mut narrator = Narrator::begin(stage, &victim).await?;
    let drain = stage.drain(&victim.node).await?;
    let result = tokio::time::timeout(ACT_WITHIN, watch(stage, &mut narrator, &drain)).await;
    stage.uncordon(&victim.node).await?;
    result.context("the drain did not end")??;
    let mut tally = requests.stop().await;
    tally.held = narrator.held();
    Ok(tally)
}

/// Until the drain has ended and the Deployment serves again.
async fn watch(stage: &Stage, narrator: &mut Narrator, drain: &Running) -> anyhow::Result<()> {
    loop {
        narrator.drainer(&drain.lines());
        narrator.look(&stage.seen().await?);
        if !drain.is_running() {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    let exit = drain.exit(LOOK.saturating_mul(50)).await?;
    narrator.drainer(&exit.lines);
    if !exit.success() {
        bail!("{exit}");
    }
    loop {
        let seen = stage.seen().await?;
        narrator.look(&seen);
        if seen.is_whole() {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}
