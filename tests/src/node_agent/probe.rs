//! Probes of a program's container: httpGet and tcpSocket, really polled.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::{HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::container::Playing;
use crate::plain_http;

/// How often an unready program is asked before its first success, where its probe's period is longer: a kubelet would
/// wait for whole periods, and every installation in a test would wait with it.
const FIRST_PERIOD: Duration = Duration::from_millis(100);

/// What probes say about a running program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The container is Ready, or no longer.
    Ready(bool),
    /// The container has to be killed, and why.
    Kill(String),
}

/// Polls the container's probes and sends what changes. Without a readinessProbe it is Ready once started.
pub(super) async fn watch(playing: &Playing, verdicts: mpsc::UnboundedSender<Verdict>) -> Infallible {
    if let Some(startup) = &playing.spec.startup_probe {
        let (started, why) = Poll::new(playing, startup).next_change(None).await;
        if !started {
            let _ = verdicts.send(Verdict::Kill(format!("startup probe failed: {why}")));
            return pending().await;
        }
    }
    let readiness = async {
        let Some(probe) = &playing.spec.readiness_probe else {
            let _ = verdicts.send(Verdict::Ready(true));
            return pending().await;
        };
        let mut poll = Poll::new(playing, probe);
        let mut ready = None;
        loop {
            let (now, _) = poll.next_change(ready).await;
            ready = Some(now);
            let _ = verdicts.send(Verdict::Ready(now));
        }
    };
    let liveness = async {
        let Some(probe) = &playing.spec.liveness_probe else {
            return pending().await;
        };
        let (_, why) = Poll::new(playing, probe).next_change(Some(true)).await;
        let _ = verdicts.send(Verdict::Kill(format!("liveness probe failed: {why}")));
    };
    let (never, ()): (Infallible, ()) = tokio::join!(readiness, liveness);
    never
}

/// A probe with its thresholds and defaults (those of the API) filled in.
struct Poll<'a> {
    playing: &'a Playing,
    probe: &'a Probe,
    delay: Duration,
    period: Duration,
    timeout: Duration,
    failures: u32,
    successes: u32,
    /// Asked more often until the first answer was good.
    settled: bool,
}

impl<'a> Poll<'a> {
    fn new(playing: &'a Playing, probe: &'a Probe) -> Self {
        let seconds = |value: Option<i32>, default: u32| {
            Duration::from_secs(u64::from(value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default)))
        };
        let count = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default).max(1)
        };
        Self {
            playing,
            probe,
            delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            failures: count(probe.failure_threshold, 3),
            successes: count(probe.success_threshold, 1),
            settled: false,
        }
    }

    /// Polls until the probe's threshold for another value than `current` is reached.
    async fn next_change(&mut self, current: Option<bool>) -> (bool, String) {
        tokio::time::sleep(std::mem::take(&mut self.delay)).await;
        let (mut good, mut bad) = (0, 0);
        loop {
            let answer = tokio::time::timeout(self.timeout, attempt(self.playing, self.probe)).await;
            let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {:?}", self.timeout)));
            let changed = match answer {
                Ok(()) => {
                    (good, bad) = (good + 1, 0);
                    self.settled = true;
                    (good >= self.successes && current != Some(true)).then(|| (true, String::new()))
                }
                Err(why) => {
                    (good, bad) = (0, bad + 1);
                    // While it is asked more often than agreed, failures do not count.
                    let counts = self.settled || self.period <= FIRST_PERIOD || self.is_patient(bad);
                    (counts && bad >= self.failures && current != Some(false)).then(|| (false, format!("{why:#}")))
                }
            };
            tokio::time::sleep(if self.settled { self.period } else { self.period.min(FIRST_PERIOD) }).await;
            if let Some(changed) = changed {
                return changed;
            }
        }
    }

    /// Whether as much time has passed in quick polls as the failures would have taken at the real period.
    fn is_patient(&self, bad: u32) -> bool {
        FIRST_PERIOD * bad >= self.period * self.failures
    }
}

async fn attempt(playing: &Playing, probe: &Probe) -> anyhow::Result<()> {
    if let Some(action) = &probe.http_get {
        let address = address_of(playing, &action.port)?;
        http_get(address, action).await
    } else if let Some(action) = &probe.tcp_socket {
        TcpStream::connect(address_of(playing, &action.port)?).await?;
        Ok(())
    } else {
        bail!("only httpGet and tcpSocket probes are played by the node agent")
    }
}

fn address_of(playing: &Playing, port: &IntOrString) -> anyhow::Result<SocketAddr> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut declared = playing.spec.ports.iter().flatten();
            declared
                .find(|port| port.name.as_deref() == Some(name))
                .map(|port| port.container_port)
                .with_context(|| format!("the container declares no port {name}"))?
        }
    };
    let number = u16::try_from(number).with_context(|| format!("{number} is no port"))?;
    Ok(playing.host.network.reach(playing.address, number))
}

async fn http_get(address: SocketAddr, action: &HTTPGetAction) -> anyhow::Result<()> {
    ensure!(
        action.scheme.as_deref().is_none_or(|scheme| scheme == "HTTP"),
        "only probes over plain HTTP are played by the node agent"
    );
    let mut headers = Vec::new();
    for extra in action.http_headers.iter().flatten() {
        headers.push((extra.name.parse()?, extra.value.parse()?));
    }
    let stream = TcpStream::connect(address).await?;
    let path = action.path.as_deref().unwrap_or("/");
    let (status, _) = plain_http::exchange(stream, address, path, &headers).await?;
    ensure!(status.is_success() || status.is_redirection(), "HTTP {status}");
    Ok(())
}
