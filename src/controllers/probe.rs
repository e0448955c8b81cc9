//! The probe's loop: while this replica leads, it asks at an interval whether the API server reaches the webhook, counts
//! what it finds, and tells when that changes. Nothing is written but those Events: what is asked for is a dry run.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use belay_decide::probe::{Memory, News, Verdict};
use tokio_util::sync::CancellationToken;

use super::OwnPod;
use crate::cluster::apply::Applier;
use crate::cluster::clock::Clock;
use crate::cluster::lease::Leadership;
use crate::cluster::probe::{Found, Prober};
use crate::metrics::Metrics;

/// How soon is asked again after a probe that was not answered, where the interval is longer: an outage is known for
/// one, and over, soon after it is.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// What the loop works with.
pub struct Loop {
    /// What asks.
    pub prober: Prober,
    /// How often.
    pub interval: Duration,
    /// The pod on which is told what is found.
    pub own_pod: OwnPod,
    /// Whether this replica leads.
    pub leadership: Arc<Leadership>,
    /// The writer, of Events alone.
    pub applier: Arc<Applier>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// What is remembered between probes.
    pub memory: Memory,
    /// What was last told to be unread.
    pub unread: Option<String>,
}

impl Loop {
    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut leadership = self.leadership.changes();
        loop {
            let pause = if self.leadership.is_leader() {
                tokio::select! {
                    pause = self.probe() => pause,
                    () = stop.cancelled() => return,
                }
            } else {
                // Another replica knows better from now on.
                self.memory = Memory::default();
                self.metrics.no_probe();
                self.interval
            };
            tokio::select! {
                _ = leadership.changed() => {}
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Asks once; the pause until the next time.
    async fn probe(&mut self) -> Duration {
        let Found { verdict, unread } = self.prober.probe().await;
        if self.leadership.is_leader() {
            if self.unread != unread {
                if let Some(problem) = &unread {
                    tracing::warn!(%problem, "not known whether evictions are sent where the probe is: the webhook configuration cannot be read");
                }
                self.unread = unread;
            }
            self.metrics.probed(verdict.result(), verdict.is_reached(), Clock::wall());
            if let Some(news) = self.memory.follow(&verdict) {
                self.tell(news, &verdict);
            }
        }
        if verdict.is_reached() == Some(true) { self.interval } else { self.interval.min(ASK_AGAIN) }
    }

    fn tell(&self, news: News, verdict: &Verdict) {
        let (warning, reason) = match news {
            News::Lost => {
                tracing::warn!(why = %verdict, "the API server does not reach the webhook");
                (true, "WebhookNotReached")
            }
            News::Back => {
                tracing::info!("the API server reaches the webhook again");
                (false, "WebhookReached")
            }
            News::Unknown => {
                // Where the API server is away an Event would not arrive either.
                tracing::warn!(error = %verdict, "cannot ask whether the API server reaches the webhook, trying again");
                return;
            }
        };
        let note = match verdict {
            Verdict::NotReached(miss) => format!("The API server does not reach the webhook: {miss}"),
            _ => "The API server reaches the webhook again".to_owned(),
        };
        self.applier.tell_news(&self.own_pod.event(warning, reason, "Probe", note));
    }
}
