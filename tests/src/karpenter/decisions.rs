//! What Karpenter says that it disrupts, and why, in its own log.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// The message of the one line that it writes for each.
const MESSAGE: &str = "disrupting node(s)";

/// Nodes that Karpenter decided to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Its reason, such as `Empty` or `Underutilized`.
    pub reason: String,
    /// How many pods it saw on them that would have to start elsewhere.
    pub pods: usize,
    /// How many nodes come in their place.
    pub replacements: usize,
    /// The nodes' names.
    pub nodes: Vec<String>,
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Disruption {
    command: String,
    pod_count: usize,
    replacement_node_count: usize,
    disrupted_nodes: Vec<Disrupted>,
}

#[derive(Deserialize)]
struct Disrupted {
    #[serde(rename = "Node")]
    node: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

pub(super) fn read(log: &Path) -> anyhow::Result<Vec<Decision>> {
    let text = std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    // Whole lines only; those that are no JSON come from Go itself.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let decisions =
        whole.lines().filter(|line| serde_json::from_str::<Line>(line).is_ok_and(|line| line.message == MESSAGE));
    decisions.map(|line| parse(line).with_context(|| format!("no decision: {line}"))).collect()
}

fn parse(line: &str) -> anyhow::Result<Decision> {
    let said: Disruption = serde_json::from_str(line)?;
    Ok(Decision {
        reason: said.command.split('/').next().unwrap_or_default().to_owned(),
        pods: said.pod_count,
        replacements: said.replacement_node_count,
        nodes: said.disrupted_nodes.into_iter().map(|disrupted| disrupted.node.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn decisions_are_found_among_other_lines() {
        let log = std::env::temp_dir().join(format!("belay-decisions-{}", std::process::id()));
        let decision = json!({
            "level": "INFO",
            "message": MESSAGE,
            "command": "Underutilized/8a9b: delete: nodepools=[a]: [kwok-a-1, kwok-a-2] (savings: $0.22)",
            "decision": "delete",
            "pod-count": 7,
            "replacement-node-count": 1,
            "disrupted-nodes": [
                { "Node": { "name": "kwok-a-1" }, "NodeClaim": { "name": "a-1" } },
                { "Node": { "name": "kwok-a-2" }, "NodeClaim": { "name": "a-2" } },
            ],
        });
        let other = json!({ "message": "found provisionable pod(s)" });
        let unfinished = &decision.to_string()[..40];
        std::fs::write(&log, format!("{other}\npanic: not JSON\n{decision}\n{unfinished}")).unwrap();
        let read = read(&log);
        std::fs::remove_file(&log).unwrap();
        let nodes = ["kwok-a-1", "kwok-a-2"].map(str::to_owned).to_vec();
        assert_eq!(read.unwrap(), [Decision { reason: "Underutilized".into(), pods: 7, replacements: 1, nodes }]);
    }

    #[test]
    fn a_decision_without_what_is_asked_of_it_is_an_error() {
        let log = std::env::temp_dir().join(format!("belay-decisions-bad-{}", std::process::id()));
        std::fs::write(&log, format!("{}\n", json!({ "message": MESSAGE, "command": "Empty/1: delete" }))).unwrap();
        let read = read(&log);
        std::fs::remove_file(&log).unwrap();
        assert!(format!("{:#}", read.unwrap_err()).starts_with("no decision: "));
    }
}
