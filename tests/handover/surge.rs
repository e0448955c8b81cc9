//! Words for surges: the record on the object whose number is raised, and the numbers that were written.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::world::Namespace;
use serde_json::Value;

/// For a drain of several pods one after the other: kubectl asks again every five seconds.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Where the record of a surge stands.
const RECORD: &str = "belay.dev/surge";

/// How the names of Belay's users begin.
const BELAY: &str = "system:serviceaccount:belay-system:";

/// The record of the surge on an object.
pub(crate) async fn record(ns: &Namespace, resource: &str, name: &str) -> anyhow::Result<Option<Value>> {
    let object = ns.get(resource, name).await?;
    let text = object["metadata"]["annotations"][RECORD].as_str();
    text.map(|text| serde_json::from_str(text).with_context(|| format!("no record: {text}"))).transpose()
}

/// Waits until the surge is written on an object, and answers its record.
pub(crate) async fn begun(ns: &Namespace, resource: &str, name: &str) -> anyhow::Result<Value> {
    ns.eventually(&format!("a surge of {resource}/{name}"), PATIENCE, async || {
        record(ns, resource, name).await?.context("there is no record")
    })
    .await
}

/// # Errors
/// While there is a record.
pub(crate) async fn none(ns: &Namespace, resource: &str, name: &str) -> anyhow::Result<()> {
    let record = record(ns, resource, name).await?;
    ensure!(record.is_none(), "the record of a surge stands on {resource}/{name}: {record:?}");
    Ok(())
}

/// The numbers that Belay changed objects of a resource in this namespace to, oldest first; `field` is that of the spec. A
/// number that was taken away is null. A write that leaves the number as it is does not count.
pub(crate) fn written_by_belay(ns: &Namespace, resource: &str, field: &str) -> anyhow::Result<Vec<Value>> {
    let scale = format!("{resource}/scale");
    let mut writes = ns.cluster().writes_by("")?;
    writes.retain(|write| write.namespace == ns.name() && write.code < 300 && !write.dry_run);
    writes.retain(|write| write.resource == resource || write.resource == scale);
    // Each object has one number, and there is one object of a kind in these tests. Writes are merge patches and whole
    // objects, and those that say nothing of the number leave it.
    let numbers =
        writes.iter().filter_map(|write| Some((write.user.starts_with(BELAY), write.body["spec"].get(field)?)));
    let mut now = &Value::Null;
    let mut changes = Vec::new();
    for (by_belay, number) in numbers {
        if number != now && by_belay {
            changes.push(number.clone());
        }
        now = number;
    }
    Ok(changes)
}

/// The numbers of a surge by one pod from this number of replicas and back.
pub(crate) fn up_and_back(replicas: i64) -> [i64; 2] {
    [replicas + 1, replicas]
}
