//! Plays GitHub's Actions Runner Controller (ARC) in one namespace: its controller, its listener, and GitHub behind
//! both.
//!
//! Runners are real EphemeralRunner objects with a real pod each, with the names, labels, owners, finalizers and status
//! fields of ARC ([`objects`]). A job starts at GitHub first ([`Player::start_job`]) and is told to the cluster later
//! ([`Player::report`]), or never; so a test can stand in any moment of that race. A runner that is deleted goes when
//! GitHub lets it go, and a job whose pod went before its end is counted as lost ([`Player::lost`]).

mod controller;
mod github;
mod objects;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::node_agent::IDLE_IMAGE;
use crate::world::{Namespace, PodInfo};
use controller::Controller;
use github::GitHub;

pub use github::Job;
pub use objects::{LINKED_LABEL, Listener, RUNNER_LABEL, RunnerSet, ephemeral_runner_sets, ephemeral_runners};

/// The CustomResourceDefinitions.
pub const CRDS: &str = include_str!("../../crds/actions.github.com.yaml");

/// So many runners are created at once, as the real controller's workers would.
const AT_ONCE: usize = 8;

/// ARC at work; it stops when dropped, and lets its runners go.
pub struct Player<'a> {
    ns: &'a Namespace,
    github: Arc<GitHub>,
    _controller: AbortOnDropHandle<()>,
}

impl<'a> Player<'a> {
    /// Installs the CustomResourceDefinitions where they are missing, and starts the controller.
    ///
    /// # Errors
    /// When the API server refuses the definitions.
    pub async fn start(ns: &'a Namespace) -> anyhow::Result<Self> {
        ns.cluster().crds(CRDS).await?;
        let github = Arc::new(GitHub::default());
        let controller =
            Controller { runners: ns.custom(&ephemeral_runners()), pods: ns.api(), github: github.clone() };
        let task = ns.cluster().runtime().spawn(controller.run());
        Ok(Self { ns, github, _controller: AbortOnDropHandle::new(task) })
    }

    /// A set of runners; `template` is merged into that of their pods (`{ "metadata": …, "spec": … }`).
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn set(&self, name: &str, template: &Value) -> anyhow::Result<RunnerSet> {
        let mut spec: PodSpec = serde_json::from_value(json!({
            "restartPolicy": "Never",
            "containers": [{ "name": "runner", "image": IDLE_IMAGE, "command": ["/home/runner/run.sh"] }],
        }))?;
        self.ns.pin(&mut spec);
        let mut set = RunnerSet::described(self.ns.name(), name, &serde_json::to_value(spec)?, template);
        let object: DynamicObject = serde_json::from_value(set.object())?;
        let made = self.ns.custom(&ephemeral_runner_sets()).create(&PostParams::default(), &object).await;
        set.uid = made.with_context(|| format!("the runner set {name}"))?.uid().context("no UID")?;
        Ok(set)
    }

    /// Creates runners and waits until all are online; answers their names, which are those of their pods.
    ///
    /// # Errors
    /// When they are not online `within` that time.
    pub async fn runners(&self, set: &RunnerSet, count: usize, within: Duration) -> anyhow::Result<Vec<String>> {
        let names: Vec<String> = stream::iter(0..count)
            .map(|_| self.create(set))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
            .with_context(|| format!("runners of {}", set.name))?;
        self.online(&names, within).await?;
        Ok(names)
    }

    async fn create(&self, set: &RunnerSet) -> anyhow::Result<String> {
        let object: DynamicObject = serde_json::from_value(set.runner())?;
        Ok(self.api().create(&PostParams::default(), &object).await?.name_any())
    }

    /// Waits until these runners have a Ready pod each and say so.
    ///
    /// # Errors
    /// When they are not `within` that time.
    pub async fn online(&self, runners: &[String], within: Duration) -> anyhow::Result<()> {
        self.ns
            .eventually("runners to be online", within, async || {
                let all = self.api().list(&ListParams::default()).await?.items;
                let online = |name: &&String| {
                    all.iter().any(|one| one.name_any() == **name && one.data["status"]["ready"] == json!(true))
                };
                let missing = runners.iter().filter(|name| !online(name)).count();
                ensure!(missing == 0, "{missing} of {} are not", runners.len());
                Ok(())
            })
            .await
    }

    /// GitHub starts a job on an idle runner. The cluster does not know yet.
    ///
    /// # Errors
    /// When GitHub does not know the runner, or it has a job.
    pub fn start_job(&self, runner: &str) -> anyhow::Result<Job> {
        self.github.start_job(runner)
    }

    /// The listener tells the cluster of a job that has started: a merge PATCH of the runner's status.
    ///
    /// # Errors
    /// When the runner runs no job, or the API server refuses the patch.
    pub async fn report(&self, runner: &str, listener: Listener) -> anyhow::Result<()> {
        let patch = Patch::Merge(listener.report(&self.github.job(runner)?));
        let params = PatchParams { field_manager: Some("ghalistener".to_owned()), ..PatchParams::default() };
        self.api().patch_status(runner, &params, &patch).await?;
        Ok(())
    }

    /// A job starts and is reported at once.
    ///
    /// # Errors
    /// As [`Player::start_job`] and [`Player::report`].
    pub async fn assign(&self, runner: &str, listener: Listener) -> anyhow::Result<()> {
        self.start_job(runner)?;
        self.report(runner, listener).await
    }

    /// The pod that the container hooks run a job's steps in: a bare one, which names the runner's pod by a label.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn workflow_pod(&self, runner: &str) -> anyhow::Result<PodInfo> {
        let containers = json!([{ "name": "job", "image": IDLE_IMAGE }]);
        self.ns
            .pod(json!({
                "metadata": { "name": format!("{runner}-workflow"), "labels": { LINKED_LABEL: runner } },
                "spec": { "restartPolicy": "Never", "containers": containers },
            }))
            .await
    }

    /// A runner's job comes to its end: the runner exits with 0, and its pod succeeds.
    ///
    /// # Errors
    /// When the runner runs no job, or its pod was asked to go before: then the job is lost.
    pub async fn complete(&self, runner: &str) -> anyhow::Result<()> {
        let pod = self.ns.api::<Pod>().get_opt(runner).await?;
        let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        self.github.finish_job(runner, pod.and_then(|pod| pod.uid()).as_deref())?;
        self.ns.cluster().finish_pod(self.ns.name(), runner, 0)
    }

    /// The runners that run a job.
    pub fn running(&self) -> Vec<String> {
        self.github.running()
    }

    /// The jobs whose pod went before their end.
    pub fn lost(&self) -> Vec<String> {
        self.github.lost()
    }

    /// The runner's object, where there is one.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn runner(&self, name: &str) -> anyhow::Result<Option<DynamicObject>> {
        Ok(self.api().get_opt(name).await?)
    }

    /// The EphemeralRunners of the namespace.
    pub fn api(&self) -> Api<DynamicObject> {
        self.ns.custom(&ephemeral_runners())
    }
}

impl Drop for Player<'_> {
    fn drop(&mut self) {
        // Nobody would take the finalizers off any more, and the namespace could not go.
        self.ns.cluster().runtime().spawn(let_go(self.api()));
    }
}

async fn let_go(runners: Api<DynamicObject>) {
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    for runner in runners.list(&ListParams::default()).await.into_iter().flatten() {
        let _ = runners.patch(&runner.name_any(), &PatchParams::default(), &none).await;
    }
}
