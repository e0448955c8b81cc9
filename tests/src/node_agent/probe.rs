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

/// A probe that is being polled.
struct Poll<'a> {
    playing: &'a Playing,
    probe: &'a Probe,
    timeout: Duration,
    /// Before the next attempt.
    pause: Duration,
    tally: Tally,
}

impl<'a> Poll<'a> {
    fn new(playing: &'a Playing, probe: &'a Probe) -> Self {
        Self {
            playing,
            probe,
            timeout: seconds(probe.timeout_seconds, 1),
            pause: seconds(probe.initial_delay_seconds, 0),
            tally: Tally::new(probe),
        }
    }

    /// Polls until the probe's threshold for another value than `current` is reached.
    async fn next_change(&mut self, current: Option<bool>) -> (bool, String) {
        loop {
            tokio::time::sleep(self.pause).await;
            let answer = tokio::time::timeout(self.timeout, attempt(self.playing, self.probe)).await;
            let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {:?}", self.timeout)));
            let verdict = self.tally.note(answer.is_ok());
            self.pause = self.tally.pause();
            if let Some(verdict) = verdict.filter(|verdict| Some(*verdict) != current) {
                let why = answer.err().map(|why| format!("{why:#}")).unwrap_or_default();
                return (verdict, why);
            }
        }
    }
}

/// A probe's thresholds, with the API's defaults filled in, and how its last answers count against them.
#[derive(Debug)]
struct Tally {
    period: Duration,
    failures: u32,
    successes: u32,
    good: u32,
    bad: u32,
    /// Until the first good answer a program is asked more often than agreed.
    quick: bool,
}

impl Tally {
    fn new(probe: &Probe) -> Self {
        let count = |value: Option<i32>, default: u32| positive(value, default).max(1);
        Self {
            period: seconds(probe.period_seconds, 10),
            failures: count(probe.failure_threshold, 3),
            successes: count(probe.success_threshold, 1),
            good: 0,
            bad: 0,
            quick: true,
        }
    }

    /// Counts an answer; the result is what the probe says now, where a threshold is reached.
    fn note(&mut self, good: bool) -> Option<bool> {
        if good {
            (self.good, self.bad, self.quick) = (self.good + 1, 0, false);
            return (self.good >= self.successes).then_some(true);
        }
        (self.good, self.bad) = (0, self.bad + 1);
        // Quick attempts weigh as little as they take: the threshold is reached after the same time.
        let weighed = if self.quick { FIRST_PERIOD * self.bad } else { self.period * self.bad };
        (weighed >= self.period * self.failures).then_some(false)
    }

    /// How long to wait for the next attempt.
    fn pause(&self) -> Duration {
        if self.quick { self.period.min(FIRST_PERIOD) } else { self.period }
    }
}

fn positive(value: Option<i32>, default: u32) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default)
}

fn seconds(value: Option<i32>, default: u32) -> Duration {
    Duration::from_secs(u64::from(positive(value, default)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_reached_after_the_time_they_stand_for() {
        let probe = Probe {
            period_seconds: Some(1),
            failure_threshold: Some(2),
            success_threshold: Some(2),
            ..Probe::default()
        };
        let mut tally = Tally::new(&probe);
        let quick: Vec<Option<bool>> = (0..20).map(|_| tally.note(false)).collect();
        assert_eq!(quick.iter().filter(|verdict| verdict.is_none()).count(), 19, "20 quick ones are two periods");
        assert_eq!(quick.last(), Some(&Some(false)));
        assert_eq!(tally.pause(), FIRST_PERIOD);
        let answers = [true, true, false, true, false, false, false, true, true];
        let verdicts = answers.map(|good| tally.note(good));
        let no = Some(false);
        assert_eq!(verdicts, [None, Some(true), None, None, None, no, no, None, Some(true)]);
        assert_eq!(tally.pause(), Duration::from_secs(1));
    }
}
