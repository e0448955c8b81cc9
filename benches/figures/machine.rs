//! Where the figures come from.

use std::fs;

use crate::table::Table;

pub(crate) fn measure(table: &mut Table) {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    table.note("machine", format!("{cores} cores, {}", model.unwrap_or("unknown")));
    // Whoever else computes meanwhile makes every figure worse.
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    table.note("load of the machine at the start, over a minute", load.to_owned());
}
