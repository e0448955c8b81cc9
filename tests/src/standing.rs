//! A test cluster that stands until it is told to go: `cargo xtask control-plane up`, `status` and `down`.
//!
//! It belongs to a process of its own, detached from the terminal, which writes a [`Record`] into the work folder.
//! Whether it runs is not read from that file but asked of the kernel: the octet's lock is held or it is not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setsid};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::control_plane::{Options, client_from};
use crate::programs::Programs;
use crate::world::Cluster;
use crate::{clock, instance};

/// The record's file in the work folder.
const RECORD: &str = "standing.json";

/// A stop takes well under a second; after this it is a kill.
const STOP_WITHIN: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(50);

/// What is known of a standing cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The instance's octet A, by which it is called.
    pub octet: u8,
    /// The process that owns it.
    pub process: u32,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// A kubectl of its version.
    pub kubectl: PathBuf,
    /// Helm.
    pub helm: PathBuf,
    /// How many simulated nodes it started with.
    pub nodes: usize,
    /// When it was ready.
    pub since: jiff::Timestamp,
}

/// A cluster that runs on this machine now.
#[derive(Debug, Clone)]
pub enum Running {
    /// One that stands until it is told to go.
    Standing(Record),
    /// One of a test run or a demo, which goes with it; its octet.
    Passing(u8),
}

/// What the detached process tells the one that started it, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
enum Outcome {
    Ready(Record),
    Failed(String),
}

/// Starts a standing cluster: runs this very program with `args`, which has to call [`serve`], detached.
///
/// # Errors
/// When programs are missing and cannot be built, or the cluster does not start.
pub fn start(args: &[&str]) -> anyhow::Result<Record> {
    // Here, where a person sees the progress and can interrupt it.
    Programs::ensure()?;
    let program = std::env::current_exe().context("cannot find this program's own path")?;
    let mut server = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the process that owns the cluster")?;
    let output = server.stdout.take().context("no pipe to the process that owns the cluster")?;
    let line = BufReader::new(output).lines().next();
    let line = line.context("the process that owns the cluster ended without a word")??;
    match serde_json::from_str(&line)? {
        Outcome::Ready(record) => Ok(record),
        Outcome::Failed(why) => bail!("{why}"),
    }
}

/// Owns a cluster with `nodes` simulated nodes until SIGTERM or SIGINT. Tells on standard output how it went.
///
/// # Errors
/// When the cluster does not start, or nobody is there to be told that it has.
pub fn serve(nodes: usize) -> anyhow::Result<()> {
    // Away from the terminal's Ctrl-C and hang-up. It fails only where there is no terminal to leave.
    let _ = setsid();
    let started = Cluster::start(Options::default()).and_then(|cluster| {
        let record = cluster.block_on(prepare(&cluster, nodes))?;
        Ok((cluster, record))
    });
    let (cluster, outcome) = match started {
        Ok((cluster, record)) => (Some(cluster), Outcome::Ready(record)),
        Err(error) => (None, Outcome::Failed(format!("{error:#}"))),
    };
    let mut output = std::io::stdout();
    writeln!(output, "{}", serde_json::to_string(&outcome)?).context("nobody waits for this cluster any more")?;
    let Some(cluster) = cluster else { return Ok(()) };
    cluster.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

async fn prepare(cluster: &Cluster, nodes: usize) -> anyhow::Result<Record> {
    let names: Vec<String> = (1..=nodes).map(|number| format!("node-{number}")).collect();
    cluster.add_nodes(&names).await?;
    let control_plane = cluster.control_plane();
    let record = Record {
        octet: control_plane.octet(),
        process: std::process::id(),
        kubeconfig: cluster.kubeconfig(),
        kubectl: cluster.programs().kubectl.clone(),
        helm: cluster.programs().helm.clone(),
        nodes,
        since: clock::now(),
    };
    let path = control_plane.folder().join(RECORD);
    std::fs::write(&path, serde_json::to_string(&record)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(record)
}

/// All clusters that run on this machine now.
pub fn running() -> Vec<Running> {
    let owned = instance::owned_octets().into_iter();
    owned
        .map(|octet| match read_record(octet) {
            Some(record) => Running::Standing(record),
            None => Running::Passing(octet),
        })
        .collect()
}

fn read_record(octet: u8) -> Option<Record> {
    let text = std::fs::read_to_string(instance::folder_of(octet).join(RECORD)).ok()?;
    serde_json::from_str(&text).ok()
}

/// Whether the API server of a standing cluster says that it is ready.
///
/// # Errors
/// When it does not, with its reason.
pub async fn check(record: &Record) -> anyhow::Result<()> {
    let client = client_from(&record.kubeconfig).await?;
    let request = http::Request::get("/readyz").body(Vec::new())?;
    let answer = tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
    answer.context("it does not answer")?.map(drop).context("it is not ready")
}

/// Tells a standing cluster to go, and returns when nothing of it is left.
///
/// # Errors
/// When its process may not be signalled, or stays.
pub fn stop(record: &Record) -> anyhow::Result<()> {
    let id = i32::try_from(record.process).ok().and_then(Pid::from_raw);
    let id = id.with_context(|| format!("{} is no process id", record.process))?;
    let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else {
        return wait_until_gone(record);
    };
    // The handle keeps pointing at one process, so that a reused number is never hit: if the octet is still owned now,
    // that process is the owner that wrote the record.
    if !instance::owned_octets().contains(&record.octet) {
        return Ok(());
    }
    pidfd_send_signal(&process, Signal::TERM)
        .with_context(|| format!("cannot tell the process {} to end", record.process))?;
    if wait_until_gone(record).is_err() {
        pidfd_send_signal(&process, Signal::KILL)
            .with_context(|| format!("cannot kill the process {}", record.process))?;
        wait_until_gone(record)?;
    }
    Ok(())
}

fn wait_until_gone(record: &Record) -> anyhow::Result<()> {
    let began = Instant::now();
    while instance::owned_octets().contains(&record.octet) {
        ensure!(
            began.elapsed() < STOP_WITHIN,
            "the cluster {} is still there after {} s",
            record.octet,
            STOP_WITHIN.as_secs()
        );
        std::thread::sleep(POLL);
    }
    Ok(())
}
