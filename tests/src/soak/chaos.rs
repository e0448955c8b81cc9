//! Breaks things while drains go on, as the plan says, and remembers when what was broken.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use tokio::sync::RwLock;

use super::judge::Window;
use super::plan::{Fault, Kind};
use crate::clock;
use crate::world::{Belay, Cluster, Paused, PodInfo, eventually};

/// How long Belay may take to be whole again: a lease runs out, a program is started again after a pause that grows to
/// ten seconds, caches fill, and the machine has other work.
const WHOLE_WITHIN: Duration = Duration::from_mins(3);

/// What breaks things.
pub(super) struct Chaos {
    cluster: Cluster,
    belay: Belay,
    /// Held by those who cannot do without the API server: it is killed only while nobody holds it.
    pub(super) quiet: Arc<RwLock<()>>,
    windows: Mutex<Vec<Window>>,
}

impl Chaos {
    pub(super) fn new(cluster: &Cluster, belay: &Belay) -> Self {
        let (cluster, belay) = (cluster.clone(), belay.clone());
        Self { cluster, belay, quiet: Arc::default(), windows: Mutex::default() }
    }

    /// The faults so far, each until all was whole again. One that lasts still ends now.
    pub(super) fn windows(&self) -> Vec<Window> {
        self.windows.lock().clone()
    }

    /// Does one fault, and waits until all is whole again.
    ///
    /// # Errors
    /// When what was to be broken is not there, or does not come back.
    pub(super) async fn strike(&self, fault: &Fault) -> anyhow::Result<()> {
        // By the plan, in seconds of which it draws the number: nothing is awaited.
        tokio::time::sleep(fault.after).await;
        let calm = match fault.kind {
            Kind::ApiServer(_) | Kind::ApiServerAndLeader(_) => Some(self.quiet.clone().write_owned().await),
            _ => None,
        };
        let index = self.begin(calm.is_some());
        let broken = self.break_it(fault.kind).await;
        drop(calm);
        let mended = self.belay.whole(WHOLE_WITHIN).await;
        self.windows.lock()[index].to = clock::now();
        broken.and(mended).with_context(|| fault.kind.word())
    }

    fn begin(&self, api_server: bool) -> usize {
        let mut windows = self.windows.lock();
        let from = clock::now();
        // Until it is known when it ends, it lasts.
        windows.push(Window { from, to: jiff::Timestamp::MAX, api_server });
        windows.len() - 1
    }

    async fn break_it(&self, kind: Kind) -> anyhow::Result<()> {
        match kind {
            Kind::Leader => self.belay.kill(&self.leader().await?),
            Kind::LeaderTwice => {
                let first = self.leader().await?;
                self.belay.kill(&first)?;
                let next = self.leader_after(&first).await?;
                self.belay.kill(&next)
            }
            Kind::LeaderLost => self.belay.lose(&self.leader().await?).await,
            Kind::LeaderPaused(pause) => {
                // One that has just lost its lease by itself starts again, and has no process for a moment.
                let paused =
                    eventually("a leader is stopped", WHOLE_WITHIN, async || Paused::stop(&self.belay.leader().await?))
                        .await?;
                // For as long as the plan says: longer than the lease.
                tokio::time::sleep(pause).await;
                drop(paused);
                Ok(())
            }
            Kind::Replica => {
                let replicas = self.belay.webhook_pods().await?;
                self.belay.kill(replicas.first().context("no webhook replica")?)
            }
            Kind::Replicas => self.kill_all(&self.belay.webhook_pods().await?),
            Kind::Everything => {
                self.kill_all(&self.belay.webhook_pods().await?)?;
                self.kill_all(&self.belay.controller_pods().await?)
            }
            Kind::ApiServer(away) => self.without_api_server(away, None).await,
            Kind::ApiServerAndLeader(away) => {
                let leader = self.leader().await?;
                self.without_api_server(away, Some(leader)).await
            }
        }
    }

    fn kill_all(&self, pods: &[PodInfo]) -> anyhow::Result<()> {
        ensure!(!pods.is_empty(), "no pods to kill");
        pods.iter().try_for_each(|pod| self.belay.kill(pod))
    }

    async fn without_api_server(&self, away: Duration, dies_too: Option<PodInfo>) -> anyhow::Result<()> {
        let control_plane = self.cluster.control_plane();
        control_plane.lose_machine().await?;
        let died = dies_too.map_or(Ok(()), |pod| self.belay.kill(&pod));
        tokio::time::sleep(away).await;
        control_plane.raise_machine().await?;
        died
    }

    async fn leader(&self) -> anyhow::Result<PodInfo> {
        eventually("somebody leads", WHOLE_WITHIN, async || self.belay.leader().await).await
    }

    /// Who leads after this one was killed: another replica, or the same one, where it was back before its lease ran out.
    async fn leader_after(&self, killed: &PodInfo) -> anyhow::Result<PodInfo> {
        eventually("somebody leads again", WHOLE_WITHIN, async || {
            let leader = self.belay.leader().await?;
            let is_back = leader.uid != killed.uid || leader.restarts() > killed.restarts();
            ensure!(is_back, "{} has not been started again", killed.name);
            Ok(leader)
        })
        .await
    }
}
