//! Asking the program `removal-order`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use belay_decide::cost::{CostPod, Readiness};
use belay_decide::view::PodPhase;
use belay_e2e::{process, programs};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A pod, as the program reads it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pod {
    uid: String,
    node: String,
    phase: &'static str,
    ready: bool,
    ready_since: Option<i64>,
    cost: Option<String>,
    restarts: i32,
    sidecar_restarts: i32,
    created: Option<i64>,
    terminating: bool,
}

impl Pod {
    /// The pod with this text as its annotation.
    pub(crate) fn of(pod: &CostPod, cost: Option<String>) -> Self {
        let (ready, ready_since) = match pod.readiness {
            Readiness::Ready(since) => (true, since),
            Readiness::NotReady(since) => (false, since),
        };
        Self {
            uid: pod.uid.to_string(),
            node: pod.node.as_deref().unwrap_or("").to_owned(),
            phase: match pod.phase {
                PodPhase::Pending => "Pending",
                PodPhase::Running => "Running",
                PodPhase::Succeeded => "Succeeded",
                PodPhase::Failed => "Failed",
                PodPhase::Unknown => "Unknown",
            },
            ready,
            ready_since: ready_since.map(nanoseconds),
            cost,
            restarts: pod.restarts,
            sidecar_restarts: pod.sidecar_restarts,
            created: Some(nanoseconds(pod.created)),
            terminating: pod.terminating,
        }
    }
}

/// A ReplicaSet at one moment.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Question {
    now: i64,
    pods: Vec<Pod>,
    related: Vec<Pod>,
}

impl Question {
    pub(crate) fn new(now: Timestamp, pods: Vec<Pod>, related: Vec<Pod>) -> Self {
        Self { now: nanoseconds(now), pods, related }
    }
}

/// What Kubernetes says.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Answer {
    /// The active pods in the order in which its sort puts them, as places.
    pub(crate) order: Vec<usize>,
    before: Vec<String>,
}

impl Answer {
    /// Whether its sort takes one active pod before another, where `active` are their places in ascending order.
    pub(crate) fn goes_before(&self, active: &[usize], one: usize, other: usize) -> bool {
        let number = |place: usize| active.binary_search(&place).expect("only active pods are compared");
        self.before[number(one)].as_bytes()[number(other)] == b'1'
    }
}

fn nanoseconds(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).expect("the time is within three centuries of 1970")
}

/// Asks all questions in one run of the program.
pub(crate) fn kubernetes(questions: &[Question]) -> Vec<Answer> {
    let program = programs::removal_order().expect("the oracle can be built");
    let mut child = process::guarded(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the oracle can be started");
    let mut input = child.stdin.take().expect("its input is ours");
    let output = BufReader::new(child.stdout.take().expect("its output is ours"));
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        // From a thread of its own, or both would wait for the other to read.
        scope.spawn(move || {
            for question in questions {
                let mut line = serde_json::to_vec(question).expect("a question is JSON");
                line.push(b'\n');
                input.write_all(&line).expect("the oracle reads all questions");
            }
        });
        output.lines().map(|line| serde_json::from_str(&line.expect("an answer")).expect("an answer is JSON")).collect()
    });
    assert!(child.wait().expect("the oracle ends").success(), "the oracle failed");
    assert_eq!(answers.len(), questions.len());
    answers
}
