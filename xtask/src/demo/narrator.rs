//! Tells what happens, a line each, with its time and who did it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal as _;

use belay_e2e::tools::Line;
use belay_e2e::world::PodInfo;
use serde_json::Value;
use tokio::time::Instant;

use super::stage::{Seen, Stage};

/// What was told already, so that each change is told once.
pub(super) struct Narrator {
    began: Instant,
    colour: bool,
    lines: usize,
    held: usize,
    last_hold: String,
    pods: BTreeMap<String, PodState>,
    holds: BTreeMap<String, String>,
    slot: Value,
    gone: BTreeSet<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct PodState {
    bound: bool,
    ready: bool,
    terminating: bool,
}

impl PodState {
    fn of(pod: &PodInfo) -> Self {
        Self { bound: !pod.node.is_empty(), ready: pod.ready, terminating: pod.terminating }
    }
}

/// Who does something.
#[derive(Clone, Copy)]
enum Who {
    Drainer,
    Belay,
    Cluster,
}

impl Narrator {
    pub(super) async fn begin(stage: &Stage, victim: &PodInfo) -> anyhow::Result<Self> {
        let seen = stage.seen().await?;
        let narrator = Self {
            began: Instant::now(),
            colour: std::io::stdout().is_terminal(),
            lines: 0,
            held: 0,
            last_hold: String::new(),
            pods: seen.pods.iter().map(|pod| (pod.name.clone(), PodState::of(pod))).collect(),
            holds: seen.holds.iter().map(|hold| (name_of(hold), phase_of(hold))).collect(),
            slot: seen.slot,
            gone: BTreeSet::new(),
        };
        narrator.tell(Who::Cluster, &format!("{} serves on node {}", victim.name, victim.node));
        narrator.tell(Who::Drainer, &format!("kubectl drain {}", victim.node));
        Ok(narrator)
    }

    /// How often the drain was told to wait.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    fn tell(&self, who: Who, what: &str) {
        let (name, colour) = match who {
            Who::Drainer => ("kubectl", "36"),
            Who::Belay => ("belay", "32"),
            Who::Cluster => ("cluster", "90"),
        };
        let seconds = self.began.elapsed().as_secs_f64();
        if self.colour {
            println!("  {seconds:6.1} s  \x1b[{colour}m{name:<8}\x1b[0m {what}");
        } else {
            println!("  {seconds:6.1} s  {name:<8} {what}");
        }
    }

    /// Tells what the drainer wrote since the last look.
    pub(super) fn drainer(&mut self, lines: &[Line]) {
        for line in lines.iter().skip(self.lines) {
            if let Some((_, refusal)) = line.text.split_once("denied the request: ") {
                self.held += 1;
                // The drainer says it every five seconds; here once is enough unless it is news.
                if self.last_hold != refusal {
                    self.tell(Who::Drainer, "is told to wait");
                    self.tell(Who::Belay, refusal.strip_prefix("belay: ").unwrap_or(refusal));
                }
                refusal.clone_into(&mut self.last_hold);
            } else if line.text.ends_with(" drained") || line.text.ends_with(" evicted") {
                self.tell(Who::Drainer, &line.text);
            }
        }
        self.lines = lines.len();
    }

    /// Tells what changed in the cluster since the last look.
    pub(super) fn look(&mut self, seen: &Seen) {
        if self.slot != seen.slot {
            self.tell(Who::Belay, "restarts the Deployment once, so that it rolls out a replacement");
            self.slot.clone_from(&seen.slot);
        }
        for pod in &seen.pods {
            let before = self.pods.get(&pod.name).copied();
            let now = PodState::of(pod);
            let was = before.unwrap_or_default();
            if before.is_none() || (now.bound && !was.bound) {
                let place = if now.bound { format!("on node {}", pod.node) } else { "and waits for a node".to_owned() };
                self.tell(Who::Cluster, &format!("{} is created {place}", pod.name));
            }
            if now.ready && !was.ready {
                self.tell(Who::Cluster, &format!("{} is ready and serves", pod.name));
            }
            if now.terminating && !was.terminating {
                self.tell(Who::Cluster, &format!("{} is asked to stop", pod.name));
            }
            self.pods.insert(pod.name.clone(), now);
        }
        let there: BTreeSet<_> = seen.pods.iter().map(|pod| pod.name.clone()).collect();
        let missing: Vec<_> = self.pods.keys().filter(|name| !there.contains(*name)).cloned().collect();
        for name in missing {
            self.pods.remove(&name);
            if self.gone.insert(name.clone()) {
                self.tell(Who::Cluster, &format!("{name} is gone"));
            }
        }
        for hold in &seen.holds {
            let (name, phase) = (name_of(hold), phase_of(hold));
            if self.holds.get(&name) == Some(&phase) {
                continue;
            }
            let message = hold["status"]["message"].as_str().unwrap_or_default();
            match phase.as_str() {
                "Released" => self.tell(Who::Belay, &format!("releases the victim: {message}")),
                "Completed" => self.tell(Who::Belay, "the handover is complete"),
                _ => {}
            }
            self.holds.insert(name, phase);
        }
    }
}

fn name_of(hold: &Value) -> String {
    hold["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn phase_of(hold: &Value) -> String {
    hold["status"]["phase"].as_str().unwrap_or("Pending").to_owned()
}
