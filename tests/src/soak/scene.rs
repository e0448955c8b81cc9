//! One set of workloads in a namespace of its own: made, drained again and again, judged, and taken away.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::chaos::Chaos;
use super::drain::{Drained, drain};
use super::judge::{self, Finding, Hold, Law};
use super::plan::{self, Pods, Target};
use crate::availability::Availability;
use crate::clock;
use crate::load::{Load, Served};
use crate::world::{Belay, Cluster, Namespace, PodInfo, Web, Workload, policy};

/// Nodes of a scene: one may be cordoned, and there is one more than the largest set has pods.
const NODES: usize = 4;

/// Requests a second to each Service.
const RATE: u32 = 20;

/// For what is ready within seconds on an idle machine.
const SET_WITHIN: Duration = Duration::from_mins(2);

/// For workloads to be at rest after a drain, whatever is broken meanwhile.
const REST_WITHIN: Duration = Duration::from_mins(4);

/// For the API server to answer again: it is away for some seconds, and takes as long to start.
const ANSWER_WITHIN: Duration = Duration::from_mins(2);

/// The label by which a pod is governed by the soak's busy rule, and the one that says what it does.
pub(super) const RULE: &str = "soak.belay.dev/worker";
pub(super) const DOING: &str = "doing";

/// Names of the Deployments.
const SINGLE: &str = "single";
const SET: &str = "set";
const LATE: &str = "late";

/// Seconds that the replacement of the late one has, and how long it takes.
const LATE_DEADLINE: u32 = 9;
const LATE_READY: Duration = Duration::from_secs(25);

/// A Deployment that is asked for answers all the time, and its pods counted.
struct Watched {
    web: Workload,
    replicas: usize,
    load: Load,
    /// When the load began, by the clock that the API server has too.
    since: Timestamp,
    availability: Availability,
}

/// A scene that was set.
pub(super) struct Scene {
    pub(super) ns: Namespace,
    plan: plan::Scene,
    watched: Vec<Watched>,
    late: Option<Workload>,
    /// Where the audit log ended when it began.
    offset: u64,
    /// Names of busy pods.
    jobs: Vec<String>,
}

/// What a scene comes to.
#[derive(Default)]
pub(super) struct Judged {
    pub(super) findings: Vec<Finding>,
    pub(super) served: Vec<Served>,
    pub(super) of_endpoints: u64,
    pub(super) evictions: judge::Evictions,
    pub(super) outcomes: Vec<String>,
}

impl Scene {
    /// Makes the workloads, waits until they are available and protected, and begins to count. Needs the API server
    /// all the while.
    pub(super) async fn set(cluster: &Cluster, plan: plan::Scene) -> anyhow::Result<Self> {
        let offset = std::fs::metadata(cluster.control_plane().audit_log()).map_or(0, |log| log.len());
        let ns = cluster.namespace(&format!("soak-{}", plan.number)).await?;
        ns.nodes(NODES).await?;
        let mut watched = Vec::new();
        for (name, pods, mode) in [(SINGLE, &plan.single, "Restart"), (SET, &plan.set, "Scale")] {
            let web = protected(described(&ns, name, pods), &format!("handover: {mode}")).await?;
            watched.push((web, pods.replicas));
        }
        let late = if plan.late {
            let pods = Pods { replicas: 1, ready_after: LATE_READY, pre_stop: plan.single.pre_stop };
            let spec = format!("readinessDeadlineSeconds: {LATE_DEADLINE}");
            Some(protected(described(&ns, LATE, &pods), &spec).await?)
        } else {
            None
        };
        let mut counted = Vec::new();
        for (web, replicas) in watched {
            let availability = Availability::watch(&ns, web.name()).await?;
            let since = clock::now();
            let load = ns.load(web.name(), RATE).await?;
            counted.push(Watched { web, replicas, load, since, availability });
        }
        Ok(Self { ns, plan, watched: counted, late, offset, jobs: Vec::new() })
    }

    /// The drains that it is for.
    pub(super) fn drains(&self) -> Vec<plan::Drain> {
        self.plan.drains.clone()
    }

    /// Drains the node of a pod of the target, and waits until all is at rest again.
    pub(super) async fn drain(
        &mut self,
        turn: usize,
        plan: &plan::Drain,
        tell: &dyn Fn(&str),
    ) -> anyhow::Result<Drained> {
        let victim = self.victim(turn, plan).await?;
        let drained = async {
            let outcome = drain(&self.ns, &victim.node, tell).await;
            let uncordoned =
                self.answered("the node is uncordoned", async || self.ns.uncordon(&victim.node).await).await;
            outcome.and_then(|drained| uncordoned.map(|()| drained))
        };
        let works = async {
            if plan.target == Target::Busy {
                // A job takes its time, by the plan.
                tokio::time::sleep(plan.job).await;
                self.answered("the job has ended", async || self.job_ends(&victim.name).await).await?;
            }
            anyhow::Ok(())
        };
        let (drained, worked) = tokio::join!(drained, works);
        let drained = drained.and_then(|drained| worked.map(|()| drained))?;
        self.at_rest(&victim).await?;
        Ok(drained)
    }

    /// The pod whose node is drained; a busy one is made.
    async fn victim(&mut self, turn: usize, plan: &plan::Drain) -> anyhow::Result<PodInfo> {
        if plan.target == Target::Busy {
            let name = format!("worker-{turn}");
            self.jobs.push(name.clone());
            return self.answered("a busy pod is there", async || self.worker(&name).await).await;
        }
        let web = self.web(plan.target)?;
        let serving = self.answered("its pods serve", async || {
            let mut pods = web.pods().await?;
            pods.retain(|pod| pod.ready && !pod.terminating);
            ensure!(!pods.is_empty(), "none does");
            Ok(pods)
        });
        let mut serving = serving.await?;
        Ok(serving.swap_remove(plan.pick % serving.len()))
    }

    fn web(&self, target: Target) -> anyhow::Result<&Workload> {
        let name = match target {
            Target::Single | Target::Busy => SINGLE,
            Target::Set => SET,
            Target::Late => return self.late.as_ref().context("this scene has none that is late"),
        };
        self.watched.iter().map(|one| &one.web).find(|web| web.name() == name).context("no such workload")
    }

    async fn worker(&self, name: &str) -> anyhow::Result<PodInfo> {
        if self.ns.api::<Pod>().get_opt(name).await?.is_none() {
            let labels = json!({ RULE: "true", DOING: "work" });
            let spec = json!({ "restartPolicy": "Never" });
            self.ns.pod(json!({ "metadata": { "name": name, "labels": labels }, "spec": spec })).await?;
        }
        let pod = self.ns.pod_info(name).await?;
        ensure!(pod.ready, "it is not ready");
        Ok(pod)
    }

    async fn job_ends(&self, pod: &str) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { DOING: "nothing" } } }));
        match self.ns.api::<Pod>().patch(pod, &PatchParams::default(), &patch).await {
            // Evicted before its job's end: judged in the end.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Waits for something that only the API server's absence keeps from being done at once.
    async fn answered<T>(&self, what: &str, done: impl AsyncFnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.ns.eventually(what, ANSWER_WITHIN, done).await
    }

    /// Waits until the victim is gone and every Deployment is as it was: complete, its number of replicas restored, no
    /// surge on it.
    async fn at_rest(&self, victim: &PodInfo) -> anyhow::Result<()> {
        self.ns
            .eventually("the workloads are at rest", REST_WITHIN, async || {
                let pod = self.ns.api::<Pod>().get_opt(&victim.name).await?;
                ensure!(
                    pod.is_none_or(|pod| pod.metadata.uid.as_ref() != Some(&victim.uid)),
                    "{} is there",
                    victim.name
                );
                for (web, replicas) in self.webs() {
                    let deployment = web.complete().await?;
                    ensure!(deployment.spec.replicas == i32::try_from(replicas).ok(), "{} is surged", web.name());
                    let surge = deployment.metadata.annotations.unwrap_or_default().contains_key("belay.dev/surge");
                    ensure!(!surge, "the record of a surge stands on {}", web.name());
                }
                Ok(())
            })
            .await
    }

    fn webs(&self) -> impl Iterator<Item = (&Workload, usize)> {
        let late = self.late.iter().map(|web| (web, 1));
        self.watched.iter().map(|one| (&one.web, one.replicas)).chain(late)
    }

    /// Ends the counting and judges. Needs the API server.
    pub(super) async fn judged(&mut self, chaos: &Chaos) -> anyhow::Result<Judged> {
        let mut judged = Judged::default();
        let ended = self.ns.eventually("every hold has ended", REST_WITHIN, async || {
            let holds = self.holds().await?;
            let open: Vec<&str> =
                holds.iter().filter(|hold| !hold.completed).map(|hold| hold.victim.as_str()).collect();
            ensure!(open.is_empty(), "those of {open:?} are open");
            Ok(())
        });
        if let Err(error) = ended.await {
            for hold in self.holds().await?.iter().filter(|hold| !hold.completed) {
                judged.findings.push(Finding::of(Law::HoldOpen, &hold.victim, format!("{error:#}")));
            }
        }
        judged.findings.extend(self.leftovers().await?);

        let log = self.ns.cluster().control_plane().audit_log();
        let (mut writes, _) = crate::audit::writes_since(&log, self.offset, "")?;
        writes.retain(|write| write.namespace == self.ns.name());
        let faults = chaos.windows();
        let objects = self.ns.holds().await?;
        judged.outcomes =
            objects.iter().filter_map(|hold| Some(hold["status"]["outcome"].as_str()?.to_owned())).collect();
        let holds: Vec<Hold> = objects.iter().filter_map(Hold::read).collect();
        judged.findings.extend(judge::double_restarts(&writes, &self.ns.list("deployments").await?));
        judged.findings.extend(judge::past_deadline(&writes, &holds, &faults, clock::now()));
        judged.findings.extend(judge::lost_jobs(&writes, &self.jobs));
        judged.findings.extend(judge::failed_open(&writes));
        judged.evictions = judge::evictions(&writes);

        for one in self.watched.drain(..) {
            let name = one.web.name().to_owned();
            if let Err(error) = one.availability.ensure_never_fewer_than(one.replicas) {
                judged.findings.push(Finding::of(Law::BelowFloor, &name, format!("{error:#}")));
            }
            let served = one.load.stop().await;
            let (lost, of_endpoints): (Vec<_>, Vec<_>) = served.failures.iter().partition(|failed| {
                let at = SignedDuration::try_from(failed.at).unwrap_or_default();
                !judge::is_of_endpoints(&writes, &faults, &name, &failed.pod, one.since + at)
            });
            judged.of_endpoints += of_endpoints.len() as u64;
            let times = served.failed() - of_endpoints.len() as u64;
            if times > 0 {
                let what = format!("{served}; since {}: {lost:?}", one.since);
                judged.findings.push(Finding { times, ..Finding::of(Law::LostRequest, &name, what) });
            }
            judged.served.push(served);
        }
        Ok(judged)
    }

    async fn holds(&self) -> anyhow::Result<Vec<Hold>> {
        Ok(self.ns.holds().await?.iter().filter_map(Hold::read).collect())
    }

    /// What handovers put on pods and Deployments, and do not need any more.
    async fn leftovers(&self) -> anyhow::Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for pod in self.ns.pods("app").await? {
            let annotations = pod.pod.metadata.annotations.clone().unwrap_or_default();
            let keys = ["belay.dev/managed", "controller.kubernetes.io/pod-deletion-cost"];
            for key in keys.into_iter().filter(|key| annotations.contains_key(*key)) {
                findings.push(Finding::of(Law::Leftover, &pod.name, format!("it carries {key}")));
            }
        }
        for (web, replicas) in self.webs() {
            let deployment = web.deployment().await?;
            let surge = deployment.metadata.annotations.unwrap_or_default().remove("belay.dev/surge");
            if surge.is_some() || deployment.spec.replicas != i32::try_from(replicas).ok() {
                let what = format!("{:?} replicas for {replicas}, surge {surge:?}", deployment.spec.replicas);
                findings.push(Finding::of(Law::Leftover, web.name(), what));
            }
        }
        Ok(findings)
    }

    /// What is known of a pod or Deployment: what the API server was asked, the holds, and what Belay said.
    pub(super) async fn history(&self, about: &str) -> String {
        let mut lines = vec![format!("---- the history of {about} in {}", self.ns.name())];
        let objects = self.ns.holds().await.unwrap_or_default();
        // A victim may be known by its UID.
        let known = objects.iter().find(|hold| hold["spec"]["victim"]["uid"] == *about);
        let name = known.and_then(|hold| hold["spec"]["victim"]["name"].as_str()).unwrap_or(about).to_owned();
        let of_it = |value: &str| value.contains(&name) || value.contains(about);
        let log = self.ns.cluster().control_plane().audit_log();
        match crate::audit::writes_since(&log, self.offset, "") {
            Ok((writes, _)) => lines.extend(
                writes.iter().filter(|write| write.namespace == self.ns.name() && of_it(&write.name)).map(line_of),
            ),
            Err(error) => lines.push(format!("{error:#}")),
        }
        lines.extend(objects.iter().filter(|hold| of_it(&hold.to_string())).map(Value::to_string));
        let logs = crate::world::Belay::of(self.ns.cluster()).logs();
        let own = logs.lines().filter(|line| line.contains(self.ns.name()) && of_it(line));
        lines.extend(own.map(str::to_owned));
        lines.push("----".to_owned());
        lines.join("\n")
    }
}

fn line_of(write: &crate::audit::Write) -> String {
    let crate::audit::Write { at, user, verb, resource, name, code, message, .. } = write;
    let spec = &write.body["spec"];
    let spec = if spec.is_null() { String::new() } else { format!(" {}", short(&spec.to_string())) };
    format!("{at} {user} {verb} {resource} {name} → {code} {message}{spec}")
}

/// The beginning of a long text.
fn short(text: &str) -> String {
    const LENGTH: usize = 240;
    text.chars().take(LENGTH).collect()
}

fn described<'a>(ns: &'a Namespace, name: &str, pods: &Pods) -> Web<'a> {
    let replicas = i32::try_from(pods.replicas).unwrap_or(1);
    ns.web(name).replicas(replicas).ready_after(pods.ready_after).pre_stop(pods.pre_stop)
}

/// Creates a Deployment and its policy, and waits until it is available and protected, by each replica.
async fn protected(web: Web<'_>, spec: &str) -> anyhow::Result<Workload> {
    let ns = web.namespace();
    let web = web.create().await?;
    ns.apply(&policy(web.name(), spec)).await?;
    web.available(SET_WITHIN).await?;
    ns.protected(web.name(), SET_WITHIN).await?;
    let pods = web.pods().await?;
    let pod = pods.first().context("it has no pods")?;
    Belay::of(ns.cluster()).held_by_all(ns, &pod.name, SET_WITHIN).await?;
    Ok(web)
}
