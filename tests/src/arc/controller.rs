//! The controller's loop: a pod for every runner, a status that follows it, and the two finalizers.
//!
//! What the real one does in the same order (`controllers/actions.github.com/ephemeralrunner_controller.go`), without
//! its back-off after failures and with shorter waits: it tries again after 30 s where a job is still running.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use super::github::GitHub;
use super::objects::{self, REGISTRATION, RESOURCES, RUNNER_LABEL};
use crate::clock;
use crate::watching::{Change, changes};
use crate::world::PodInfo;

/// How often what could not be done is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// What the controller knows and may do, in one namespace.
pub(super) struct Controller {
    pub(super) runners: Api<DynamicObject>,
    pub(super) pods: Api<Pod>,
    pub(super) github: Arc<GitHub>,
}

#[derive(Default)]
struct Seen {
    runners: BTreeMap<String, DynamicObject>,
    pods: BTreeMap<String, Pod>,
    /// Names to be looked at again.
    again: BTreeSet<String>,
}

/// Whether a runner is as it should be.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Settled,
    Again,
}

impl Controller {
    pub(super) async fn run(self) {
        let of_runners = watcher::Config::default().labels(&format!("{RUNNER_LABEL}=True"));
        let mut runners = std::pin::pin!(changes(self.runners.clone(), watcher::Config::default()));
        let mut pods = std::pin::pin!(changes(self.pods.clone(), of_runners));
        let mut ticks = tokio::time::interval(RETRY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = Seen::default();
        loop {
            let name = tokio::select! {
                Some(change) = runners.next() => seen.runner_changed(change),
                Some(change) = pods.next() => seen.pod_changed(change, &self.github),
                _ = ticks.tick() => seen.again.pop_first(),
            };
            let Some(name) = name else { continue };
            match self.reconcile(&name, &seen).await {
                Ok(Outcome::Settled) => {}
                Ok(Outcome::Again) => {
                    seen.again.insert(name);
                }
                Err(error) => {
                    tracing::debug!(runner = name, "not reconciled: {error:#}");
                    seen.again.insert(name);
                }
            }
        }
    }

    async fn reconcile(&self, name: &str, seen: &Seen) -> anyhow::Result<Outcome> {
        let Some(runner) = seen.runners.get(name) else { return Ok(Outcome::Settled) };
        if runner.metadata.deletion_timestamp.is_some() {
            return self.finalize(runner).await;
        }
        let Some(pod) = seen.pods.get(name) else {
            return self.create_pod(runner).await;
        };
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Settled);
        }
        match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Succeeded") => self.delete_runner(runner).await?,
            Some("Failed") => self.forget_failed(runner, pod).await?,
            _ => self.follow(runner, pod).await?,
        }
        Ok(Outcome::Settled)
    }

    /// GitHub is asked first: while the job runs, nothing is touched.
    async fn finalize(&self, runner: &DynamicObject) -> anyhow::Result<Outcome> {
        let name = runner.name_any();
        if has_finalizer(runner, REGISTRATION) {
            if !self.github.deregister(&name) {
                tracing::debug!(runner = name, "its job is still running");
                return Ok(Outcome::Again);
            }
            self.remove_finalizer(runner, REGISTRATION).await?;
        }
        if has_finalizer(runner, RESOURCES) {
            ignore_gone(self.pods.delete(&name, &DeleteParams::default()).await.map(drop))?;
            // The object as it is now may have lost the other one just before.
            let latest = self.runners.get_opt(&name).await?;
            if let Some(latest) = latest.filter(|latest| latest.uid() == runner.uid()) {
                self.remove_finalizer(&latest, RESOURCES).await?;
            }
        }
        Ok(Outcome::Settled)
    }

    async fn remove_finalizer(&self, runner: &DynamicObject, finalizer: &str) -> anyhow::Result<()> {
        let left: Vec<&String> = runner.finalizers().iter().filter(|one| *one != finalizer).collect();
        let patch = json!({ "metadata": { "uid": runner.uid(), "finalizers": left } });
        let patched = self.runners.patch(&runner.name_any(), &as_manager(), &Patch::Merge(patch)).await;
        Ok(ignore_gone(patched.map(drop))?)
    }

    async fn create_pod(&self, runner: &DynamicObject) -> anyhow::Result<Outcome> {
        match self.pods.create(&PostParams::default(), &objects::pod_of(runner)?).await {
            Ok(_) => {}
            // The one before is not gone yet, or the watch is late.
            Err(kube::Error::Api(status)) if status.code == 409 => return Ok(Outcome::Again),
            Err(error) => return Err(error.into()),
        }
        if runner.data["status"]["runnerId"].is_null() {
            let name = runner.name_any();
            self.patch_status(runner, json!({ "runnerId": 1, "runnerName": name })).await?;
        }
        Ok(Outcome::Settled)
    }

    async fn delete_runner(&self, runner: &DynamicObject) -> anyhow::Result<()> {
        let preconditions = Preconditions { uid: runner.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        Ok(ignore_gone(self.runners.delete(&runner.name_any(), &params).await.map(drop))?)
    }

    /// A runner whose pod failed gets another one, unless it had a job.
    async fn forget_failed(&self, runner: &DynamicObject, pod: &Pod) -> anyhow::Result<()> {
        if runner.data["status"]["jobId"].is_string() {
            return self.delete_runner(runner).await;
        }
        let failure = json!({ "failures": { pod.uid().unwrap_or_default(): clock::time() } });
        self.patch_status(runner, failure).await?;
        Ok(ignore_gone(self.pods.delete(&pod.name_any(), &DeleteParams::default()).await.map(drop))?)
    }

    async fn follow(&self, runner: &DynamicObject, pod: &Pod) -> anyhow::Result<()> {
        let info = PodInfo::from(pod.clone());
        if info.ready {
            self.github.online(&info.name, &info.uid);
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let status = &runner.data["status"];
        if status["phase"] != *phase || status["ready"].as_bool().unwrap_or_default() != info.ready {
            self.patch_status(runner, json!({ "phase": phase, "ready": info.ready })).await?;
        }
        Ok(())
    }

    async fn patch_status(&self, runner: &DynamicObject, status: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "uid": runner.uid() }, "status": status }));
        let patched = self.runners.patch_status(&runner.name_any(), &as_manager(), &patch).await;
        Ok(ignore_gone(patched.map(drop))?)
    }
}

impl Seen {
    fn runner_changed(&mut self, change: Change<DynamicObject>) -> Option<String> {
        match change {
            Change::Applied(runner) => {
                let name = runner.name_any();
                self.runners.insert(name.clone(), runner);
                Some(name)
            }
            Change::Gone(key) => {
                if self.runners.get(&key.name).is_some_and(|runner| runner.uid().as_ref() == Some(&key.uid)) {
                    self.runners.remove(&key.name);
                }
                None
            }
            Change::Synced => None,
        }
    }

    fn pod_changed(&mut self, change: Change<Pod>, github: &GitHub) -> Option<String> {
        match change {
            Change::Applied(pod) => {
                let name = pod.name_any();
                if pod.metadata.deletion_timestamp.is_some() {
                    github.pod_goes(&name, &pod.uid().unwrap_or_default());
                }
                self.pods.insert(name.clone(), pod);
                Some(name)
            }
            Change::Gone(key) => {
                github.pod_goes(&key.name, &key.uid);
                if self.pods.get(&key.name).is_some_and(|pod| pod.uid().as_ref() == Some(&key.uid)) {
                    self.pods.remove(&key.name);
                }
                Some(key.name)
            }
            Change::Synced => None,
        }
    }
}

/// The controller's writes are told from the listener's by the names of their programs, which are the default names of
/// field managers.
fn as_manager() -> PatchParams {
    PatchParams { field_manager: Some("manager".to_owned()), ..PatchParams::default() }
}

fn has_finalizer(runner: &DynamicObject, finalizer: &str) -> bool {
    runner.finalizers().iter().any(|one| one == finalizer)
}

/// An object that is gone, or another one of its name, needs nothing done to it.
fn ignore_gone(outcome: kube::Result<()>) -> kube::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}
