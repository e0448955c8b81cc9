//! A container whose image is a program of this machine, run with what its pod says: arguments, environment, volumes,
//! the ServiceAccount's own token, probes.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use kube::ResourceExt as _;
use serde_json::json;
use tokio::sync::mpsc;

use super::container::Playing;
use super::environment::{self, replace_listeners};
use super::kubelet::Writing;
use super::probe::{self, Verdict};
use super::status::Ended;
use super::volumes::{self, Volumes};
use crate::control_plane::write_kubeconfig;
use crate::process::{self, Process, Signal};

/// A kubelet tries a mount that failed again and again too: what it is made from may come later than the pod.
const RETRY: Duration = Duration::from_millis(250);

/// Where the admission plugin ServiceAccount mounts a pod's credentials.
const CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What stands behind an image.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program, which plays the image's entry point.
    pub path: PathBuf,
    /// The environment that the image brings along; a pod's own overrides it.
    pub environment: Vec<(String, String)>,
}

/// A running program, and what lasts as long as it runs.
struct Started {
    process: Process,
    _volumes: Volumes,
    _writing: Writing,
}

pub(super) async fn run(playing: &Playing, program: &Program) -> Ended {
    let started = tokio::select! {
        started = start(playing, program) => started,
        ended = playing.end() => return ended,
    };
    let Started { process, .. } = &started;
    playing.running();
    let (verdicts, mut inbox) = mpsc::unbounded_channel();
    let mut probes = std::pin::pin!(probe::watch(playing, verdicts));
    let mut sigterm = std::pin::pin!(playing.sigterm());
    let mut crash = std::pin::pin!(playing.crash());
    loop {
        tokio::select! {
            status = process.exited() => return ended(status),
            mut deadline = &mut sigterm => {
                process.signal(Signal::TERM);
                tokio::select! {
                    status = process.exited() => return ended(status),
                    () = deadline.passed() => return kill(process).await,
                    () = &mut crash => return kill(process).await,
                }
            }
            () = &mut crash => return kill(process).await,
            Some(verdict) = inbox.recv() => match verdict {
                Verdict::Ready(ready) => playing.ready(ready),
                Verdict::Kill(why) => {
                    let grace = playing.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
                    let grace = Duration::from_secs(grace.unwrap_or(30).max(0) as u64);
                    let status = process.terminate(grace).await;
                    return Ended { message: why, ..ended(status) };
                }
            },
            never = &mut probes => match never {},
        }
    }
}

async fn kill(process: &Process) -> Ended {
    process.signal(Signal::KILL);
    ended(process.exited().await)
}

fn ended(status: Option<ExitStatus>) -> Ended {
    let code = status.and_then(|status| status.code().or_else(|| status.signal().map(|signal| 128 + signal)));
    Ended::with_code(code.unwrap_or(1))
}

/// Starts the program, as soon as everything it needs is there.
async fn start(playing: &Playing, program: &Program) -> Started {
    loop {
        match try_start(playing, program).await {
            Ok(started) => return started,
            Err(error) => {
                playing.waiting("CreateContainerError", format!("{error:#}"));
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn try_start(playing: &Playing, program: &Program) -> anyhow::Result<Started> {
    let (pod, host) = (&playing.pod, &playing.host);
    let folder = host.pods.join(pod.uid().unwrap_or_default());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let volumes = volumes::prepare(playing, &folder).await?;
    let variables = environment::variables(playing, &program.environment).await?;

    let translate = |text: &str| -> anyhow::Result<String> {
        let text = volumes.mounts.translate(text);
        replace_listeners(&text, |port| host.network.listen_address(playing.address, port))
    };
    let mut command = process::guarded(&program.path);
    // The first word of `command` replaces the image's entry point, which is the program in either case.
    let words = playing.spec.command.iter().flatten().skip(1);
    for word in words.chain(playing.spec.args.iter().flatten()) {
        command.arg(translate(&environment::expand(word, &variables))?);
    }
    command.current_dir(&folder).env_clear();
    for (name, value) in &variables {
        command.env(name, translate(value)?);
    }
    if let Some(credentials) = volumes.mounts.get(CREDENTIALS) {
        let kubeconfig = folder.join(format!("{}.kubeconfig", playing.spec.name));
        let user = json!({ "tokenFile": credentials.join("token") });
        let namespace = pod.namespace().unwrap_or_default();
        write_kubeconfig(&kubeconfig, host.server, &host.authority, &namespace, &user)?;
        command.env("KUBECONFIG", kubeconfig);
    }
    let path = host.log_file(&pod.namespace().unwrap_or_default(), &pod.name_any(), &playing.spec.name);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    command.stdin(Stdio::null()).stdout(log.try_clone().context("cannot copy a file handle")?).stderr(log);
    let writing = host.writers.begin(path);
    Ok(Started { process: host.spawner.spawn(command).await?, _volumes: volumes, _writing: writing })
}
