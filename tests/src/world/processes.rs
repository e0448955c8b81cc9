//! The process behind a pod's program: to stop it for a while, and to see how much memory it has.

use std::path::Path;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, kill_process};

use super::workload::PodInfo;
use crate::process::Signal;

/// A program that was stopped with SIGSTOP; it goes on when this is dropped.
#[derive(Debug)]
pub struct Paused(Pid);

impl Paused {
    /// Stops the program of a pod.
    ///
    /// # Errors
    /// When the pod has no process of its own.
    pub fn stop(pod: &PodInfo) -> anyhow::Result<Self> {
        let pid = process_of(pod)?;
        kill_process(pid, Signal::STOP).context("SIGSTOP")?;
        Ok(Self(pid))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // Gone already where the node agent has ended the pod.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// How many bytes of memory a pod's program has in use (`VmRSS` of proc(5)).
///
/// # Errors
/// When the pod has no process of its own.
pub fn resident(pod: &PodInfo) -> anyhow::Result<u64> {
    let path = format!("/proc/{}/status", process_of(pod)?.as_raw_nonzero());
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kilobytes.with_context(|| format!("no VmRSS in {path}"))? * 1024)
}

/// The process of a pod's program: the one whose kubeconfig is in the pod's own folder, which its UID names.
fn process_of(pod: &PodInfo) -> anyhow::Result<Pid> {
    let mark = format!("/{}/", pod.uid);
    let of_pod = |folder: &Path| {
        let environment = std::fs::read(folder.join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        variables.any(|variable| variable.starts_with("KUBECONFIG=") && variable.contains(&mark))
    };
    let folders = std::fs::read_dir("/proc").context("/proc")?.flatten().map(|entry| entry.path());
    let numbers =
        folders.filter(|folder| of_pod(folder)).filter_map(|folder| folder.file_name()?.to_str()?.parse().ok());
    match *numbers.collect::<Vec<i32>>() {
        [number] => Pid::from_raw(number).context("a process has the number 0"),
        ref found => bail!("the pod {} has not one process but {found:?}", pod.name),
    }
}
