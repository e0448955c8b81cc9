//! kubectl and Helm as child processes: every line with its time, awaitable, killable.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::process::{self, Process, Signal, Spawner};

/// How long a tool that is expected to end by itself may take before it is called hung.
const OUTPUT_WITHIN: Duration = Duration::from_mins(5);

type OnLine = Arc<dyn Fn(&Line) + Send + Sync>;

/// One line that a tool wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Since the tool was started.
    pub at: Duration,
    /// The line without its end.
    pub text: String,
    /// Whether it came on standard error.
    pub stderr: bool,
}

/// A tool that can be started.
pub struct Tool {
    spawner: Arc<Spawner>,
    command: std::process::Command,
    said: String,
    stdin: Option<String>,
    on_line: Option<OnLine>,
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("said", &self.said).finish_non_exhaustive()
    }
}

impl Tool {
    /// A tool with its arguments.
    pub fn new<S: AsRef<str>>(spawner: Arc<Spawner>, program: &Path, args: impl IntoIterator<Item = S>) -> Self {
        let mut command = process::guarded(program);
        let mut said = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for arg in args {
            command.arg(arg.as_ref());
            said = format!("{said} {}", arg.as_ref());
        }
        Self { spawner, command, said, stdin: None, on_line: None }
    }

    /// Gives it this text on standard input.
    #[must_use]
    pub fn stdin(mut self, text: &str) -> Self {
        self.stdin = Some(text.to_owned());
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Hears every line when it is written.
    #[must_use]
    pub fn on_line(mut self, hear: impl Fn(&Line) + Send + Sync + 'static) -> Self {
        self.on_line = Some(Arc::new(hear));
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// When the system refuses another process.
    pub async fn start(mut self) -> anyhow::Result<Running> {
        let stdin = if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
        self.command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process =
            self.spawner.spawn(self.command).await.with_context(|| format!("cannot start {}", self.said))?;
        let began = Instant::now();
        if let (Some(mut pipe), Some(text)) = (process.stdin.take(), self.stdin) {
            // A tool that ends without reading closes the pipe; its exit code tells more than that.
            tokio::spawn(async move { pipe.write_all(text.as_bytes()).await });
        }
        let lines =
            Arc::new(Lines { began, list: Mutex::default(), changed: watch::Sender::new(0), on_line: self.on_line });
        let mut readers = Vec::new();
        readers.extend(process.stdout.take().map(|pipe| tokio::spawn(read(pipe, false, lines.clone()))));
        readers.extend(process.stderr.take().map(|pipe| tokio::spawn(read(pipe, true, lines.clone()))));
        let (announce, ended) = watch::channel(None);
        let process = Arc::new(process);
        let exits = process.clone();
        tokio::spawn(async move {
            let status = exits.exited().await;
            let took = began.elapsed();
            for reader in readers {
                let _ = reader.await;
            }
            announce.send_replace(Some((status, took)));
        });
        Ok(Running { said: self.said, process, lines, ended })
    }

    /// Runs it to its end, whatever its exit code.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
    pub async fn output(self) -> anyhow::Result<Exit> {
        self.start().await?.exit(OUTPUT_WITHIN).await
    }

    /// Runs it to its end; the answer is its standard output.
    ///
    /// # Errors
    /// When its exit code is not 0, with what it wrote.
    pub async fn ok(self) -> anyhow::Result<String> {
        let exit = self.output().await?;
        if !exit.success() {
            bail!("{exit}");
        }
        Ok(exit.stdout())
    }
}

struct Lines {
    began: Instant,
    list: Mutex<Vec<Line>>,
    changed: watch::Sender<usize>,
    on_line: Option<OnLine>,
}

async fn read(pipe: impl AsyncRead + Unpin, stderr: bool, lines: Arc<Lines>) {
    let mut pipe = BufReader::new(pipe);
    let mut bytes = Vec::new();
    while let Ok(1..) = pipe.read_until(b'\n', &mut bytes).await {
        let line = Line {
            at: lines.began.elapsed(),
            text: String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned(),
            stderr,
        };
        bytes.clear();
        if let Some(hear) = &lines.on_line {
            hear(&line);
        }
        let count = {
            let mut list = lines.list.lock();
            list.push(line);
            list.len()
        };
        lines.changed.send_replace(count);
    }
}

/// A tool that was started; dropping it kills it.
pub struct Running {
    said: String,
    process: Arc<Process>,
    lines: Arc<Lines>,
    ended: watch::Receiver<Option<(Option<std::process::ExitStatus>, Duration)>>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("said", &self.said).finish_non_exhaustive()
    }
}

impl Running {
    /// What it wrote so far.
    pub fn lines(&self) -> Vec<Line> {
        self.lines.list.lock().clone()
    }

    /// Waits for a line that contains this text; the first one, written before or after this call.
    ///
    /// # Errors
    /// When the tool ends or the time passes without it.
    pub async fn line(&self, contains: &str, within: Duration) -> anyhow::Result<Line> {
        let find = || {
            let list = self.lines.list.lock();
            list.iter().find(|line| line.text.contains(contains)).cloned()
        };
        let mut changed = self.lines.changed.subscribe();
        let mut ended = self.ended.clone();
        let search = async {
            loop {
                let over = ended.borrow_and_update().is_some();
                changed.borrow_and_update();
                if let Some(line) = find() {
                    return Some(line);
                }
                if over {
                    return None;
                }
                tokio::select! {
                    _ = changed.changed() => {}
                    _ = ended.changed() => {}
                }
            }
        };
        match tokio::time::timeout(within, search).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => bail!("{:?} was never written: {}", contains, self.exit(within).await?),
            Err(_) => bail!(
                "{} did not write {contains:?} within {within:?}; it wrote:\n{}",
                self.said,
                text_of(&self.lines())
            ),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it has not ended `within` that time, with what it wrote.
    pub async fn exit(&self, within: Duration) -> anyhow::Result<Exit> {
        let mut ended = self.ended.clone();
        let waited = tokio::time::timeout(within, ended.wait_for(Option::is_some)).await;
        let Ok(Ok(ended)) = waited else {
            bail!("{} has not ended within {within:?}; it wrote:\n{}", self.said, text_of(&self.lines()));
        };
        let (status, took) = ended.unwrap_or_default();
        Ok(Exit { said: self.said.clone(), code: status.and_then(|status| status.code()), took, lines: self.lines() })
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        self.process.status().is_none()
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.process.signal(Signal::KILL);
    }

    /// SIGINT, what Ctrl-C sends.
    pub fn interrupt(&self) {
        self.process.signal(Signal::INT);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a tool ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    said: String,
    /// Its exit code, `None` when a signal ended it.
    pub code: Option<i32>,
    /// From its start to its end.
    pub took: Duration,
    /// Everything it wrote.
    pub lines: Vec<Line>,
}

impl Exit {
    /// Whether its exit code is 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// What it wrote on standard output.
    pub fn stdout(&self) -> String {
        let lines = self.lines.iter().filter(|line| !line.stderr);
        lines.flat_map(|line| [line.text.as_str(), "\n"]).collect()
    }

    /// Everything it wrote, with times.
    pub fn text(&self) -> String {
        text_of(&self.lines)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = self.code.map_or("was killed".to_owned(), |code| format!("exited with {code}"));
        write!(f, "{} {how} after {:.1} s:\n{}", self.said, self.took.as_secs_f64(), self.text())
    }
}

fn text_of(lines: &[Line]) -> String {
    let shown = lines.iter().map(|line| format!("  {:6.2} s  {}", line.at.as_secs_f64(), line.text));
    shown.collect::<Vec<_>>().join("\n")
}
