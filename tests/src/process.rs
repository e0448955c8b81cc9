//! Child processes that never outlive the process that owns the test cluster, not even when it is killed with SIGKILL.
//!
//! Linux can send a child a signal when its parent dies (`PR_SET_PDEATHSIG`), but "parent" means the *thread* that
//! forked it. A test thread or a runtime worker may end long before the cluster does, so one dedicated OS thread of
//! the [`Spawner`] forks every child and lives as long as the spawner. The signal is set by `setpriv` of util-linux,
//! because setting it between fork and exec from Rust would need unsafe code.

use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};

pub use rustix::process::Signal;

/// What a missing `setpriv` looks like to a person.
const SETPRIV_MISSING: &str = "setpriv is missing: install the package util-linux (it ties the life of the programs \
                               that a test starts to the life of the test)";

/// A command that runs `program` and is killed when the thread that spawned it ends.
///
/// Its own process group keeps a Ctrl-C in the terminal from reaching it before its owner has stopped it in order.
pub fn guarded(program: &Path) -> std::process::Command {
    use std::os::unix::process::CommandExt as _;
    let mut command = std::process::Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).process_group(0);
    command
}

/// Turns the error of starting a [`guarded`] command into one line that says what to do.
pub fn explain_spawn_error(error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        anyhow::anyhow!(SETPRIV_MISSING)
    } else {
        anyhow::Error::new(error).context("cannot start setpriv")
    }
}

struct Request {
    command: Command,
    reply: oneshot::Sender<std::io::Result<Child>>,
}

/// The dedicated thread that forks every child of one cluster.
///
/// Dropping the last one ends the thread, and with it every child that is still there.
#[derive(Debug)]
pub struct Spawner {
    requests: std_mpsc::Sender<Request>,
}

impl Spawner {
    /// Starts the thread. Children's pipes and exits are driven by `runtime`.
    ///
    /// # Errors
    /// When the system refuses another thread.
    pub fn new(runtime: tokio::runtime::Handle) -> anyhow::Result<Self> {
        let (requests, inbox) = std_mpsc::channel::<Request>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                let _context = runtime.enter();
                for mut request in inbox {
                    // Nobody waits for the answer any more: the child is dropped and killed with it.
                    let _ = request.reply.send(request.command.spawn());
                }
            })
            .context("cannot start the thread that spawns programs")?;
        Ok(Self { requests })
    }

    /// Starts a command made with [`guarded`]; its pipes, if any, are in the returned [`Process`].
    ///
    /// # Errors
    /// When `setpriv` is missing or the system refuses another process. A *program* that cannot be executed shows as
    /// a process that exits with 126 or 127, because `setpriv` has been started by then.
    pub async fn spawn(&self, command: std::process::Command) -> anyhow::Result<Process> {
        let mut command = Command::from(command);
        command.kill_on_drop(true);
        let (reply, answer) = oneshot::channel();
        if self.requests.send(Request { command, reply }).is_err() {
            bail!("the thread that spawns programs has ended");
        }
        let child = answer.await.context("the thread that spawns programs has ended")?.map_err(explain_spawn_error)?;
        Ok(Process::watch(child))
    }
}

/// A running child: killed when dropped, awaitable from any number of places.
#[derive(Debug)]
pub struct Process {
    id: u32,
    signals: mpsc::UnboundedSender<Signal>,
    exit: watch::Receiver<Option<ExitStatus>>,
    /// Standard output, when it was piped.
    pub stdout: Option<tokio::process::ChildStdout>,
    /// Standard error, when it was piped.
    pub stderr: Option<tokio::process::ChildStderr>,
    /// Standard input, when it was piped.
    pub stdin: Option<tokio::process::ChildStdin>,
}

impl Process {
    fn watch(mut child: Child) -> Self {
        let (signals, mut inbox) = mpsc::unbounded_channel();
        let (announce, exit) = watch::channel(None);
        let process = Self {
            id: child.id().unwrap_or_default(),
            signals,
            exit,
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            stdin: child.stdin.take(),
        };
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    status = child.wait() => {
                        announce.send_replace(status.ok());
                        return;
                    }
                    signal = inbox.recv() => match signal {
                        // The same task reaps the child, so the id still belongs to it here.
                        Some(signal) => send(&child, signal),
                        None => {
                            let _ = child.start_kill();
                            let status = child.wait().await;
                            announce.send_replace(status.ok());
                            return;
                        }
                    },
                }
            }
        });
        process
    }

    /// The process id, for messages and for looking into `/proc`.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Sends a signal; nothing happens when the process is gone already.
    pub fn signal(&self, signal: Signal) {
        let _ = self.signals.send(signal);
    }

    /// How the process ended, or `None` while it runs.
    pub fn status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Waits until the process has ended. `None` when its status could not be read.
    pub async fn exited(&self) -> Option<ExitStatus> {
        let mut exit = self.exit.clone();
        let status = exit.wait_for(Option::is_some).await;
        status.ok().and_then(|status| *status)
    }

    /// SIGTERM, then SIGKILL once `grace` has passed; returns when the process is gone.
    pub async fn terminate(&self, grace: Duration) -> Option<ExitStatus> {
        self.signal(Signal::TERM);
        if let Ok(status) = tokio::time::timeout(grace, self.exited()).await {
            return status;
        }
        self.signal(Signal::KILL);
        self.exited().await
    }
}

fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// `exit code 1` or `signal 9`, for messages.
pub fn describe(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match status {
        None => "an unknown status".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown status".to_owned(),
        },
    }
}

/// The last `lines` lines of a log file, indented, or why there are none.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = match std::fs::read(log) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("  (cannot read {}: {error})", log.display()),
    };
    let all: Vec<&str> = text.lines().collect();
    let shown = all.iter().skip(all.len().saturating_sub(lines));
    shown.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
