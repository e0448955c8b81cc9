//! One supervised program of the control plane: its log, its end, and whether that end was wanted.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::flags::Component;
use crate::process::{self, Process, Signal, Spawner};

/// How many lines of a log a report shows: enough for a Go panic's first goroutine.
const TAIL: usize = 25;

/// Programs that ended without being told to, so that a test can say so instead of timing out over the consequences.
#[derive(Debug, Default)]
pub struct Problems {
    ended: Mutex<Vec<(Component, String)>>,
    changed: Notify,
}

impl Problems {
    /// What happened to this component, if it ended by itself.
    pub fn of(&self, component: Component) -> Option<String> {
        let ended = self.ended.lock();
        let of_component = ended.iter().rev().find(|(ended, _)| *ended == component);
        of_component.map(|(_, text)| text.clone())
    }

    /// Everything that happened so far.
    pub fn all(&self) -> Vec<String> {
        self.ended.lock().iter().map(|(_, text)| text.clone()).collect()
    }

    /// Waits until a program ends by itself; at once when one has.
    pub async fn any(&self) -> String {
        loop {
            let changed = self.changed.notified();
            if let Some((_, text)) = self.ended.lock().first() {
                return text.clone();
            }
            changed.await;
        }
    }

    fn report(&self, component: Component, text: String) {
        self.ended.lock().push((component, text));
        self.changed.notify_waiters();
    }

    fn forget(&self, component: Component) {
        self.ended.lock().retain(|(ended, _)| *ended != component);
    }
}

#[derive(Debug)]
pub(super) struct Supervised {
    process: Arc<Process>,
    end_is_wanted: Arc<AtomicBool>,
}

impl Supervised {
    pub(super) async fn start(
        component: Component,
        mut command: std::process::Command,
        log: &Path,
        spawner: &Spawner,
        problems: Arc<Problems>,
    ) -> anyhow::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone().context("cannot copy a file handle")?).stderr(file);
        problems.forget(component);
        let process = spawner.spawn(command).await.with_context(|| format!("cannot start {component}"))?;
        let supervised = Self { process: Arc::new(process), end_is_wanted: Arc::default() };
        let (process, wanted, log) = (supervised.process.clone(), supervised.end_is_wanted.clone(), log.to_owned());
        tokio::spawn(async move {
            let status = process.exited().await;
            if !wanted.load(Ordering::SeqCst) {
                let how = process::describe(status);
                problems.report(
                    component,
                    format!("{component} ended by itself with {how}; its last lines:\n{}", tail(&log)),
                );
            }
        });
        Ok(supervised)
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.status().is_none()
    }

    /// SIGTERM, and SIGKILL after `grace`; at once when it is zero.
    pub(super) async fn stop(self, grace: Duration) {
        self.end_is_wanted.store(true, Ordering::SeqCst);
        if grace.is_zero() {
            self.process.signal(Signal::KILL);
            self.process.exited().await;
        } else {
            self.process.terminate(grace).await;
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // The watcher task holds the process too, so that it is not killed by losing its last owner.
        self.end_is_wanted.store(true, Ordering::SeqCst);
        self.process.signal(Signal::KILL);
    }
}

/// The last lines of a log file.
pub(super) fn tail(log: &Path) -> String {
    crate::process::tail(log, TAIL)
}
