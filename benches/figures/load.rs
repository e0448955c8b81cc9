//! The webhook under load: how long answers take at a given rate, and how many it gives at most.
//!
//! `h2load` is the load generator: it makes requests at a rate, over HTTP/1.1 connections that are kept, as API servers
//! do. Left to itself it opens all connections at once and then asks on all of them at once, which measures how long a
//! burst takes; opened one after the other they ask one after the other. A connection whose answer is late sends its next
//! request late, which would hide how long that one had to wait; so to each answer that took longer than the time between
//! two requests of its connection are added those that ought to have been under way meanwhile.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use belay::webhook::{EVICTION_PATH, PODS_PATH};

use crate::cluster::Size;
use crate::memory::{environment, resident};
use crate::served::{self, BARE_PATH};
use crate::table::{Table, Times};

/// What is cached meanwhile.
const SIZE: Size = Size { pods: 50_000 };

/// An AdmissionReview of a pod of common size.
const REVIEW_BYTES: usize = 8192;

/// Requests a second: more than a cluster of this size makes.
const RATE: u32 = 1000;

/// Below the 25 that an API server keeps for each webhook (client-go, transport/cache.go).
const CONNECTIONS: u32 = 20;

/// A request of each connection comes so long after the one before, in milliseconds.
const BETWEEN: u32 = 1000 * CONNECTIONS / RATE;

/// Enough for twenty thousand answers, of which two hundred are the slowest hundredth.
const SECONDS: u32 = 20;

/// Answers that are not counted, in seconds from the first one on: of connections that are being made.
const WARM_UP: u32 = 2;

/// For how long throughput is measured, each time, and how often by turns: a machine that others use as well is now
/// slower and now faster, and only turns that follow each other compare.
const SATURATED_SECONDS: u32 = 3;
const TURNS: usize = 7;

pub(crate) fn measure(table: &mut Table) {
    let version = match Command::new("h2load").arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => {
            let hint = "install h2load (Debian: nghttp2-client)";
            table.note("the webhook under load", format!("not measured: h2load: {error}; {hint}"));
            return;
        }
    };
    table.note("load generator", format!("{version}, HTTP/1.1 over TLS, {CONNECTIONS} connections that are kept"));
    if let Err(error) = Load::start().and_then(|load| load.measure(table)) {
        table.note("the webhook under load", format!("not measured: {error:#}"));
    }
}

/// The server, and what is sent to it.
struct Load {
    server: Child,
    endpoints: u16,
    bare: u16,
    folder: PathBuf,
}

impl Drop for Load {
    fn drop(&mut self) {
        // It ends with its standard input.
        drop(self.server.stdin.take());
        let _ = self.server.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Load {
    fn start() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("belay-figures-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let mut server = Command::new(std::env::current_exe()?)
            .args([served::CHILD, &SIZE.pods.to_string()])
            .envs(environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(server.stdout.take().context("the server has no output")?).lines();
        let mut port = || -> anyhow::Result<u16> { Ok(lines.next().context("the server ended")??.parse()?) };
        let (endpoints, bare) = (port()?, port()?);
        fs::write(folder.join("creation"), served::creation(REVIEW_BYTES))?;
        fs::write(folder.join("eviction"), served::eviction())?;
        Ok(Self { server, endpoints, bare, folder })
    }

    fn measure(&self, table: &mut Table) -> anyhow::Result<()> {
        let mutate = format!("mutate {} kB at {RATE} requests/s with {} pods cached", REVIEW_BYTES / 1024, SIZE.pods);
        let times = self.at_rate(self.endpoints, PODS_PATH, "creation")?;
        table.at_most(&format!("{mutate}, median"), times.percentile(50), 0.3, "ms");
        table.at_most(&format!("{mutate}, 99 of 100"), times.percentile(99), 2.0, "ms");
        let times = self.at_rate(self.bare, BARE_PATH, "creation")?;
        let (median, most) = (times.percentile(50), times.percentile(99));
        table.note("of that a bare handler of the same server", format!("{median:.2} and {most:.2} ms"));
        let times = self.at_rate(self.endpoints, EVICTION_PATH, "eviction")?;
        let hold = format!("hold an eviction from cache at {RATE} requests/s, 99 of 100");
        table.at_most(&hold, times.percentile(99), 2.0, "ms");

        let (mut ours, mut bare, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            let (of_bare, of_ours) =
                (self.saturated(self.bare, BARE_PATH)?, self.saturated(self.endpoints, PODS_PATH)?);
            shares.push(of_ours / of_bare);
            bare.push(of_bare);
            ours.push(of_ours);
        }
        let median = |all| Times::from(all).percentile(50);
        table.at_least(&format!("mutate at saturation, median of {TURNS}"), median(ours), 15_000.0, "requests/s");
        table.note("a bare handler of the same server", format!("{:.0} requests/s", median(bare)));
        table.at_least(&format!("share of that, median of {TURNS} turns"), median(shares), 0.8, "");
        let most = resident(self.server.id(), "VmHWM:");
        table.at_most(&format!("most memory of that server, with {} pods", SIZE.pods), most, 128.0, "MiB");
        Ok(())
    }

    fn h2load(&self, port: u16, path: &str, body: &str) -> Command {
        let mut h2load = Command::new("h2load");
        h2load
            .args(["--h1", "--threads=1", "--header=content-type: application/json"])
            .arg(format!("--clients={CONNECTIONS}"))
            .arg(format!("--data={}", self.folder.join(body).display()))
            .arg(format!("https://127.0.0.1:{port}{path}"));
        h2load
    }

    /// How long answers took, with those that were never asked for because one was late.
    fn at_rate(&self, port: u16, path: &str, body: &str) -> anyhow::Result<Times> {
        let log = self.folder.join("log");
        let mut h2load = self.h2load(port, path, body);
        h2load
            .arg(format!("--rps={}", RATE / CONNECTIONS))
            .arg(format!("--requests={}", RATE * (WARM_UP + SECONDS)))
            .args(["--rate=1".to_owned(), format!("--rate-period={}ms", BETWEEN / CONNECTIONS)])
            .arg(format!("--log-file={}", log.display()));
        answers(&mut h2load)?;
        let text = fs::read_to_string(&log)?;
        // It is appended to.
        fs::remove_file(&log)?;
        // Start (µs since 1970), status, microseconds.
        let mut answers = Vec::new();
        for line in text.lines() {
            let [start, status, took] = line.split('\t').collect::<Vec<_>>()[..] else { continue };
            ensure!(status == "200", "an answer was {status}");
            answers.push((start.parse::<u64>()?, took.parse::<f64>()? / 1000.0));
        }
        let first = answers.iter().map(|(start, _)| *start).min().unwrap_or_default();
        let mut all = Vec::new();
        for (_, mut took) in answers.into_iter().filter(|(start, _)| *start >= first + u64::from(WARM_UP) * 1_000_000) {
            while took >= 0.0 {
                all.push(took);
                took -= f64::from(BETWEEN);
            }
        }
        let least = (RATE * SECONDS) as usize * 9 / 10;
        ensure!(all.len() >= least, "only {} answers in {SECONDS} s", all.len());
        Ok(Times::from(all))
    }

    /// Answers a second while every connection asks as soon as it was answered.
    fn saturated(&self, port: u16, path: &str) -> anyhow::Result<f64> {
        let mut h2load = self.h2load(port, path, "creation");
        answers(h2load.args([format!("--warm-up-time={WARM_UP}"), format!("--duration={SATURATED_SECONDS}")]))
    }
}

/// Runs it; answers a second, all of which were 200.
fn answers(h2load: &mut Command) -> anyhow::Result<f64> {
    let output = h2load.output().context("cannot run h2load")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let all_good = line("status codes:").is_some_and(|codes| codes.ends_with("0 3xx, 0 4xx, 0 5xx"));
    let none_failed = line("requests:").is_some_and(|requests| requests.ends_with("0 failed, 0 errored, 0 timeout"));
    ensure!(output.status.success() && all_good && none_failed, "h2load: {text}");
    let rate = line("finished in").and_then(|line| line.split(',').nth(1)?.trim().strip_suffix(" req/s")?.parse().ok());
    rate.with_context(|| format!("h2load says no rate: {text}"))
}
