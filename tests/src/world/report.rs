//! What the cluster looked like when a test failed.

use std::fmt::Write as _;
use std::time::Duration;

use super::cluster::Cluster;
use crate::process;

/// The report must come even when the API server does not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How many lines of each log of Belay's pods are shown.
const LOG_LINES: usize = 40;

/// How many lines of a listing are shown, from its end.
const LISTED_LINES: usize = 60;

pub(super) async fn of(cluster: &Cluster, namespace: &str) -> String {
    let mut report = format!("======== what the cluster looked like (namespace {namespace})\n");
    for problem in cluster.control_plane().problems().all() {
        let _ = writeln!(report, "-------- {problem}");
    }
    let in_namespace = ["-n", namespace];
    let listings: [(&str, &[&str], &[&str]); 9] = [
        ("nodes", &["get", "nodes"], &[]),
        ("deployments", &["get", "deployments", "-o", "wide"], &in_namespace),
        ("replica sets", &["get", "replicasets"], &in_namespace),
        ("pods", &["get", "pods", "-o", "wide"], &in_namespace),
        ("endpoint slices", &["get", "endpointslices"], &in_namespace),
        ("handover policies", &["get", "handoverpolicies", "-o", "wide"], &in_namespace),
        ("eviction holds", &["get", "evictionholds", "-o", "wide"], &in_namespace),
        ("events", &["get", "events", "--sort-by=.lastTimestamp"], &in_namespace),
        ("belay's pods", &["get", "pods", "-n", "belay-system", "-o", "wide"], &[]),
    ];
    for (title, args, scope) in listings {
        if let Some(listing) = list(cluster, &[args, scope].concat()).await {
            let _ = writeln!(report, "-------- {title}\n{listing}");
        }
    }
    for log in cluster.node_agent().log_files() {
        let name = log.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let _ = writeln!(report, "-------- log of {name}\n{}", process::tail(&log, LOG_LINES));
    }
    report.push_str("========\n");
    report
}

/// What kubectl shows, or `None` where there is nothing to show.
async fn list(cluster: &Cluster, args: &[&str]) -> Option<String> {
    let timeout = format!("--request-timeout={}s", ANSWER_WITHIN.as_secs());
    let running = cluster.kubectl(args.iter().copied().chain([timeout.as_str()])).start().await.ok()?;
    let exit = match running.exit(ANSWER_WITHIN * 2).await {
        Ok(exit) => exit,
        Err(error) => return Some(format!("  {error:#}")),
    };
    let lines: Vec<&str> = exit.lines.iter().map(|line| line.text.as_str()).collect();
    // An API that is not installed, or no objects of it: not worth a line.
    let nothing = |line: &str| line.contains("doesn't have a resource type") || line.starts_with("No resources found");
    if lines.is_empty() || lines.iter().any(|line| nothing(line)) {
        return None;
    }
    let shown = lines.iter().skip(lines.len().saturating_sub(LISTED_LINES));
    Some(shown.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n"))
}
