//! Deletion costs: all nodes ranked from nothing, and one node's change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use belay::cluster::costs::Costs;
use belay_decide::cost::cluster::{Cluster, KnownPod, PodName};
use belay_decide::cost::{COST_ANNOTATION, PodHold, Standing};

use crate::cluster::{self, EACH, Size, known, node_name, now};
use crate::table::{Table, Times, millis};

const SIZE: Size = Size { pods: 150_000 };

/// As often as is quick.
const TIMES: usize = 200;

pub(crate) fn measure(table: &mut Table) {
    let (_, costs) = cluster::filled(SIZE);
    let fresh = costs.read(Clone::clone);
    let full = Times::of(9, |_| fresh.clone(), |mut cluster| (cluster.look(now()), cluster));
    let what = format!("rank {} nodes and {} pods from nothing, median of 9", SIZE.nodes(), SIZE.pods);
    table.at_most(&what, full.percentile(50), 200.0, "ms");

    let written = settle(&costs);
    table.note("writes until all ranked nodes' pods carry their values", written.to_string());
    let idle = Times::of(TIMES, |_| (), |()| costs.look(now()));
    table.note("a look with nothing changed, median", format!("{:.4} ms", idle.percentile(50)));

    let ranked = costs.read(|cluster| cluster.ranking().order().map(str::to_owned).collect::<Vec<_>>());
    let mut writes = Vec::new();
    let mut pods_there = Vec::new();
    let of_node = |name: &str| (0..SIZE.pods).filter(|pod| node_name(SIZE.node_of(*pod)) == *name).collect::<Vec<_>>();
    let places: Vec<Vec<usize>> = ranked.iter().map(|name| of_node(name)).collect();
    let protect = Times::of(
        ranked.len(),
        |at| {
            let mut cluster = costs.read(Clone::clone);
            let number = places[at][0];
            let mut pod = current(&cluster, known(SIZE, number));
            pod.pod.hold = Some(PodHold::DoNotDisrupt);
            // One look beforehand warms nothing that the program would not have warm.
            cluster.look(now());
            (cluster, pod, places[at].len())
        },
        |(mut cluster, pod, count)| {
            cluster.put_pod(pod, now());
            writes.push(cluster.look(now()).pods.len());
            pods_there.push(count);
            cluster
        },
    );
    table.at_most("one ranked node becomes protected, median", protect.percentile(50), 1.0, "ms");
    table.at_most("one ranked node becomes protected, 99 of 100", protect.percentile(99), 1.0, "ms");
    // What it takes where nobody else wants the core.
    table.note("one ranked node becomes protected, the quickest", format!("{:.2} ms", protect.percentile(0)));
    let (most, all): (usize, usize) = (*writes.iter().max().unwrap_or(&0), writes.iter().sum());
    let there: usize = pods_there.iter().sum();
    table.note(
        "pods written for it",
        format!("{:.1} of {:.1} on the node, at most {most}", mean(all, writes.len()), mean(there, pods_there.len())),
    );
}

fn mean(sum: usize, count: usize) -> f64 {
    sum as f64 / count.max(1) as f64
}

/// A pod with the value that it carries by now.
fn current(cluster: &Cluster, pod: KnownPod) -> KnownPod {
    let set = pod.pod.set.clone().unwrap_or_default();
    let found = cluster.pods_of(&set).into_iter().find(|(known, _)| known.pod.uid == pod.pod.uid);
    found.map_or(pod, |(known, _)| known.clone())
}

/// Performs what is asked for until nothing is.
fn settle(costs: &Costs) -> usize {
    let started = Instant::now();
    let mut writes = 0;
    loop {
        let asked: BTreeSet<PodName> = costs.write(|cluster| {
            cluster.look(now());
            cluster.asking()
        });
        if asked.is_empty() {
            eprintln!("settled in {:.0} ms", millis(started.elapsed()));
            return writes;
        }
        for (namespace, name) in asked {
            costs.write(|cluster| {
                let Some((known, desired)) = cluster.asked_of(&namespace, &name) else { return };
                let mut known = known.clone();
                known.present = desired.map(|value| value.to_string().into());
                known.managed = desired.map(|value| format!(r#"{{"{COST_ANNOTATION}":"{value}"}}"#).into());
                known.pod.standing = desired.map_or(Standing::Absent, Standing::Ours);
                known.labels = Arc::clone(&known.labels);
                cluster.put_pod(known, now());
                writes += 1;
            });
        }
        debug_assert!(writes <= 10 * SIZE.pods, "{EACH} pods a node");
    }
}
