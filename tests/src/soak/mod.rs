//! `cargo xtask soak`: drains for as long as one likes while parts of Belay and of the control plane are killed, and a
//! count of everything that must not happen.
//!
//! Several namespaces at a time are drained node by node with kubectl, each with a Deployment of one replica that is
//! restarted, one of two or three that is scaled, busy pods, and sometimes one whose replacement comes too late for its
//! deadline; requests go to the first two all the while. What happens follows from a seed ([`plan`]); what came of it is
//! read from the API server's audit log and from watches ([`judge`]), not from what Belay says of itself.
//!
//! The eviction webhook runs with `failurePolicy: Fail`. With the chart's `Ignore` an eviction that meets a killed
//! replica passes, as it must, and what it costs would have to be told from Belay's own faults. With `Fail` it is
//! refused by an error and the drain begins again, so every pod that goes was let go by Belay, nothing has to be
//! excused, and all counts must be 0. The one loss that is told apart is Kubernetes' own, by evidence: a pod was asked
//! to go, and the control plane died before it had taken the pod out of its Service ([`judge::is_of_endpoints`]).

mod chaos;
mod drain;
mod judge;
mod plan;
mod rest;
mod scene;
mod tally;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::control_plane::Options;
use crate::world::{Belay, Cluster};
use chaos::Chaos;
use judge::{Finding, Law};
use scene::Scene;

pub use tally::Tally;

/// How often a line says how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// For Belay to be whole after its installation.
const WHOLE_WITHIN: Duration = Duration::from_mins(2);

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Soak {
    /// How many drains.
    pub drains: usize,
    /// What the plan is made from.
    pub seed: u64,
    /// How many namespaces at a time.
    pub parallel: usize,
}

/// Runs it. `tell` gets each line for a person; once `stop` is there, what is under way is ended and no more is begun.
/// Blocks.
///
/// # Errors
/// When the cluster cannot be started or does not go on working. What Belay does wrong is no error but is counted.
pub fn run(soak: &Soak, tell: &dyn Fn(&str), stop: impl Future<Output = ()>) -> anyhow::Result<Tally> {
    let cluster = Cluster::start(Options::default())?;
    cluster.block_on(async {
        tokio::select! {
            tally = Run::begin(&cluster, soak, tell).await?.go(stop) => tally,
            problem = cluster.control_plane().problems().any() => Err(anyhow::anyhow!(problem)),
        }
    })
}

/// Leads pass on sooner than by default, in the same proportions, so that more of them do.
fn values() -> Value {
    let election = json!({ "leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s" });
    let doing = scene::DOING;
    let works = format!("has(pod.metadata.labels.{doing}) && pod.metadata.labels.{doing} == 'work'");
    let worker = json!({
        "name": "soak",
        "podSelector": { "matchLabels": { scene::RULE: "true" } },
        "states": [{ "state": "Busy", "when": works }],
        "idleDebounce": "1s",
    });
    json!({
        // The history of a victim shows why each of its evictions was answered as it was.
        "logLevel": "info,belay::webhook=debug",
        "controller": { "leaderElection": election },
        "admission": { "eviction": { "failurePolicy": "Fail" } },
        "busyHints": { "enabled": true, "rules": [worker] },
    })
}

/// A soak under way.
struct Run<'a> {
    cluster: &'a Cluster,
    belay: Belay,
    soak: &'a Soak,
    tell: &'a dyn Fn(&str),
    chaos: Chaos,
    began: Instant,
    waiting: RefCell<VecDeque<plan::Scene>>,
    /// No more is begun.
    stopped: Cell<bool>,
    tally: RefCell<Tally>,
}

impl<'a> Run<'a> {
    async fn begin(cluster: &'a Cluster, soak: &'a Soak, tell: &'a dyn Fn(&str)) -> anyhow::Result<Self> {
        let belay = cluster.install_belay(values()).await?;
        belay.whole(WHOLE_WITHIN).await?;
        let tally = Tally { seed: soak.seed, planned: soak.drains, parallel: soak.parallel, ..Tally::default() };
        Ok(Self {
            cluster,
            soak,
            tell,
            chaos: Chaos::new(cluster, &belay),
            belay,
            began: Instant::now(),
            waiting: RefCell::new(plan::scenes(soak.seed, soak.drains).into()),
            stopped: Cell::new(false),
            tally: RefCell::new(tally),
        })
    }

    async fn go(self, stop: impl Future<Output = ()>) -> anyhow::Result<Tally> {
        let before = rest::memory(&self.belay).await?;
        let lanes = async {
            let lanes = (0..self.soak.parallel.max(1)).map(|_| self.lane());
            let ended = join_all(lanes).await;
            // No more faults from here on.
            self.stopped.set(true);
            ended.into_iter().collect::<anyhow::Result<Vec<()>>>()
        };
        let stop = async {
            stop.await;
            self.tally.borrow_mut().interrupted = true;
            self.stopped.set(true);
            (self.tell)("ending in order: drains that are under way, then the count");
            std::future::pending::<()>().await;
        };
        let done = async {
            let (lanes, ()) = tokio::join!(lanes, self.faults());
            lanes
        };
        tokio::select! {
            ended = done => ended.map(drop)?,
            () = stop => {}
            () = self.tell_progress() => {}
        }
        (self.tell)("all drains are done; Belay is watched at rest");
        for finding in rest::writes(self.cluster).await? {
            self.found(&finding);
        }
        let after = rest::memory(&self.belay).await?;
        let mut tally = self.tally.into_inner();
        tally.memory = before.into_iter().zip(after).map(|((name, start), (_, end))| (name, start, end)).collect();
        tally.took = self.began.elapsed();
        Ok(tally)
    }

    /// Sets one scene after the other.
    async fn lane(&self) -> anyhow::Result<()> {
        while !self.stopped.get() {
            let Some(plan) = self.waiting.borrow_mut().pop_front() else { break };
            let scene = {
                let _quiet = self.chaos.quiet.read().await;
                Scene::set(self.cluster, plan).await.context("a scene cannot be set")?
            };
            self.play(scene).await?;
        }
        Ok(())
    }

    async fn play(&self, mut scene: Scene) -> anyhow::Result<()> {
        self.tally.borrow_mut().scenes += 1;
        for (turn, drain) in scene.drains().iter().enumerate() {
            if self.stopped.get() {
                break;
            }
            match scene.drain(turn, drain, self.tell).await {
                Ok(drained) => {
                    let mut tally = self.tally.borrow_mut();
                    tally.drained_one(drain.target, drained.took);
                    drained.early.iter().for_each(|early| *tally.tries.entry(early.word()).or_default() += 1);
                }
                Err(error) => {
                    let finding = Finding::of(Law::Unended, scene.ns.name(), format!("{drain:?}: {error:#}"));
                    self.found(&finding);
                    (self.tell)(&self.cluster.report(scene.ns.name()).await);
                    break;
                }
            }
        }
        let _quiet = self.chaos.quiet.read().await;
        let judged = scene.judged(&self.chaos).await?;
        for finding in &judged.findings {
            self.found(finding);
            (self.tell)(&scene.history(&finding.about).await);
        }
        {
            let mut tally = self.tally.borrow_mut();
            judged.served.iter().for_each(|served| tally.served(served));
            tally.of_endpoints += judged.of_endpoints;
            tally.asked(judged.evictions);
            for outcome in judged.outcomes {
                *tally.outcomes.entry(outcome).or_default() += 1;
            }
        }
        // The last ones stay, so that there is something to be at rest with.
        if !self.waiting.borrow().is_empty() {
            scene.ns.clean_up().await;
        }
        Ok(())
    }

    /// One fault after the other, until there are no more drains. One that is under way is mended first.
    async fn faults(&self) {
        for fault in plan::Faults::of_seed(self.soak.seed) {
            if self.stopped.get() {
                break;
            }
            let struck = self.chaos.strike(&fault).await;
            *self.tally.borrow_mut().faults.entry(fault.kind.word()).or_default() += 1;
            if let Err(error) = struck {
                self.found(&Finding::of(Law::Unended, "belay", format!("{fault:?}: {error:#}")));
                (self.tell)(&self.cluster.report("belay-system").await);
                // What is broken now is not what the plan says.
                self.stopped.set(true);
            }
        }
    }

    fn found(&self, finding: &Finding) {
        (self.tell)(&format!("BROKEN: {} ({}): {}", finding.law, finding.about, finding.what));
        self.tally.borrow_mut().found(finding);
    }

    async fn tell_progress(&self) {
        let mut ticks = tokio::time::interval(TOLD_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.tally.borrow_mut().took = self.began.elapsed();
            let line = self.tally.borrow().progress();
            (self.tell)(&line);
        }
    }
}
