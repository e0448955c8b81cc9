//! What Belay costs when nothing happens: its memory, and what it writes.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use super::judge::{Finding, Law};
use crate::audit::{self, Write};
use crate::world::{Belay, Cluster, USERS, eventually, resident};

/// Without a write for so long it is at rest: what is written after a change (Events, a status) comes within seconds.
const QUIET: Duration = Duration::from_secs(8);

/// How long it may take to come to rest.
const QUIET_WITHIN: Duration = Duration::from_mins(3);

/// How long it is watched at rest.
const WATCHED: Duration = Duration::from_secs(20);

/// Bytes in use by each component, the larger of its replicas.
pub(super) async fn memory(belay: &Belay) -> anyhow::Result<Vec<(String, u64)>> {
    let mut components = Vec::new();
    for (name, pods) in [("webhook", belay.webhook_pods().await?), ("controller", belay.controller_pods().await?)] {
        let mut most = 0;
        for pod in &pods {
            most = most.max(resident(pod)?);
        }
        components.push((name.to_owned(), most));
    }
    Ok(components)
}

/// Waits until Belay writes nothing any more, and watches that it stays so.
pub(super) async fn writes(cluster: &Cluster) -> anyhow::Result<Vec<Finding>> {
    let log = cluster.control_plane().audit_log();
    let mut offset = std::fs::metadata(&log)?.len();
    let mut last = Instant::now();
    let mut newest = None;
    let settled = eventually("Belay is at rest", QUIET_WITHIN, async || {
        let (own, end) = own_writes(&log, offset)?;
        offset = end;
        if let Some(write) = own.into_iter().next_back() {
            (last, newest) = (Instant::now(), Some(write));
        }
        ensure!(last.elapsed() >= QUIET, "it wrote {newest:?}");
        Ok(())
    });
    if let Err(error) = settled.await {
        return Ok(vec![Finding::of(Law::WriteAtRest, "belay", format!("{error:#}"))]);
    }
    // Nothing is awaited: that nothing comes is what is looked for.
    tokio::time::sleep(WATCHED).await;
    let (own, _) = own_writes(&log, offset)?;
    Ok(own.iter().map(|write| Finding::of(Law::WriteAtRest, &write.name, format!("{write:?}"))).collect())
}

/// What Belay wrote behind this place in the log. The lease of the leader is renewed every few seconds, whatever happens.
fn own_writes(log: &std::path::Path, offset: u64) -> anyhow::Result<(Vec<Write>, u64)> {
    let (mut writes, end) = audit::writes_since(log, offset, USERS)?;
    writes.retain(|write| write.resource != "leases");
    Ok((writes, end))
}
