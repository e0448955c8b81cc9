//! GitHub, as far as runners see it: who is registered, who runs a job, and whether it came to its end.
//!
//! It alone decides whether a runner may go: a runner that runs a job cannot be deregistered, and one that is
//! deregistered gets no job. The cluster hears of either later, or never.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;

/// A job of a workflow, as the listener reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// GitHub's id of the job, which listeners report from 0.13 on.
    pub id: String,
    /// The id of the request for a runner.
    pub request_id: i64,
    /// The id of the run of the workflow.
    pub run_id: i64,
}

impl Job {
    fn numbered(number: i64) -> Self {
        Self {
            id: format!("00000000-0000-4000-8000-{number:012}"),
            request_id: 1000 + number,
            run_id: 17_000_000_000 + number,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    None,
    Running(Job),
    Done,
}

#[derive(Debug)]
struct Registered {
    /// UID of the pod that is online as this runner.
    pod: String,
    work: Work,
}

#[derive(Debug, Default)]
struct State {
    jobs: i64,
    runners: BTreeMap<String, Registered>,
    lost: Vec<String>,
}

/// The runners that GitHub knows, by name.
#[derive(Debug, Default)]
pub(super) struct GitHub(Mutex<State>);

impl GitHub {
    /// A runner's pod is online and waits for a job.
    pub(super) fn online(&self, runner: &str, pod: &str) {
        let mut state = self.0.lock();
        let known = state.runners.entry(runner.to_owned());
        let registered = known.or_insert_with(|| Registered { pod: pod.to_owned(), work: Work::None });
        if registered.pod != pod {
            let lost = std::mem::replace(registered, Registered { pod: pod.to_owned(), work: Work::None });
            state.lose(runner, &lost, "another pod has its name");
        }
    }

    /// Gives a job to a runner that waits for one.
    pub(super) fn start_job(&self, runner: &str) -> anyhow::Result<Job> {
        let mut state = self.0.lock();
        let number = state.jobs + 1;
        let registered = state.runners.get_mut(runner).with_context(|| format!("{runner} is not registered"))?;
        ensure!(registered.work == Work::None, "{runner} is no longer idle: {:?}", registered.work);
        let job = Job::numbered(number);
        registered.work = Work::Running(job.clone());
        state.jobs = number;
        Ok(job)
    }

    /// The job that a runner runs.
    pub(super) fn job(&self, runner: &str) -> anyhow::Result<Job> {
        match self.0.lock().runners.get(runner) {
            Some(Registered { work: Work::Running(job), .. }) => Ok(job.clone()),
            other => bail!("{runner} runs no job: {other:?}"),
        }
    }

    /// The runner tells that its job has come to its end, in the pod with this UID: the one that began it, and which
    /// nobody has asked to go.
    pub(super) fn finish_job(&self, runner: &str, pod: Option<&str>) -> anyhow::Result<()> {
        let mut state = self.0.lock();
        let registered = state.runners.get_mut(runner).with_context(|| format!("{runner} is not registered"))?;
        ensure!(matches!(registered.work, Work::Running(_)), "{runner} runs no job: {:?}", registered.work);
        if pod == Some(&registered.pod) {
            registered.work = Work::Done;
            return Ok(());
        }
        let lost = state.runners.remove(runner).context("it was just there")?;
        state.lose(runner, &lost, "its pod is gone");
        bail!("the job of {runner} is lost: its pod is gone")
    }

    /// Deregisters a runner; false while its job is still running.
    pub(super) fn deregister(&self, runner: &str) -> bool {
        let mut state = self.0.lock();
        if state.runners.get(runner).is_some_and(|registered| matches!(registered.work, Work::Running(_))) {
            return false;
        }
        state.runners.remove(runner);
        true
    }

    /// A pod was asked to go or is gone: the job that it ran is lost.
    pub(super) fn pod_goes(&self, runner: &str, pod: &str) {
        let mut state = self.0.lock();
        if state.runners.get(runner).is_some_and(|registered| registered.pod == pod) {
            let lost = state.runners.remove(runner);
            if let Some(lost) = lost {
                state.lose(runner, &lost, "its pod goes");
            }
        }
    }

    /// The jobs that did not come to their end, with why.
    pub(super) fn lost(&self) -> Vec<String> {
        self.0.lock().lost.clone()
    }

    /// The runners that run a job.
    pub(super) fn running(&self) -> Vec<String> {
        let state = self.0.lock();
        let running = state.runners.iter().filter(|(_, registered)| matches!(registered.work, Work::Running(_)));
        running.map(|(name, _)| name.clone()).collect()
    }
}

impl State {
    fn lose(&mut self, runner: &str, registered: &Registered, why: &str) {
        if let Work::Running(job) = &registered.work {
            self.lost.push(format!("{runner} ran job {}: {why}", job.request_id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_with_a_job_cannot_be_deregistered_and_one_without_gets_none_after_it() {
        let github = GitHub::default();
        github.online("busy", "1");
        github.online("idle", "2");
        let job = github.start_job("busy").unwrap();
        assert_eq!(github.job("busy").unwrap(), job);
        assert!(!github.deregister("busy"), "its job runs");
        assert!(github.deregister("idle"));
        assert!(github.start_job("idle").is_err(), "it is not registered");
        assert!(github.start_job("busy").is_err(), "it has a job");
        github.finish_job("busy", Some("1")).unwrap();
        assert!(github.deregister("busy"));
        assert_eq!(github.lost(), Vec::<String>::new());
    }

    #[test]
    fn a_job_whose_pod_goes_is_lost_and_a_finished_one_is_not() {
        let github = GitHub::default();
        for (runner, pod) in [("evicted", "1"), ("replaced", "2"), ("finished", "3"), ("idle", "4")] {
            github.online(runner, pod);
            if runner != "idle" {
                github.start_job(runner).unwrap();
            }
        }
        github.finish_job("finished", Some("3")).unwrap();
        github.pod_goes("evicted", "another pod");
        assert_eq!(github.running(), ["evicted", "replaced"]);
        for (runner, pod) in [("evicted", "1"), ("finished", "3"), ("idle", "4")] {
            github.pod_goes(runner, pod);
        }
        github.online("replaced", "5");
        github.start_job("replaced").unwrap();
        assert!(github.finish_job("replaced", None).is_err());
        let expected = [
            "evicted ran job 1001: its pod goes",
            "replaced ran job 1002: another pod has its name",
            "replaced ran job 1004: its pod is gone",
        ];
        assert_eq!(github.lost(), expected);
    }
}
