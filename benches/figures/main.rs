//! What Belay costs, printed beside what it may cost. `cargo xtask bench` runs it from a release build. Nothing here
//! decides whether a test passes: a busy machine only prints worse figures.

mod cluster;
mod costs;
mod load;
mod machine;
mod memory;
mod ready;
mod served;
mod table;
mod waits;

use std::process::ExitCode;

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures, and adds its lines.
type Measure = fn(&mut table::Table);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // A cache is filled in a process of its own, so that nothing that was freed before hides what it needs; and what
    // serves under load does nothing else.
    if let [what, pods] = args.as_slice()
        && let Ok(pods) = pods.parse()
    {
        match what.as_str() {
            memory::CHILD => return memory::child(pods),
            served::CHILD => return served::child(pods),
            _ => {}
        }
    }
    let parts: [(&str, Measure); 5] = [
        ("load", load::measure),
        ("ready", ready::measure),
        ("memory", memory::measure),
        ("costs", costs::measure),
        ("waits", waits::measure),
    ];
    // Cargo adds an argument of its own to all benchmarks.
    let asked: Vec<_> = args.iter().filter(|arg| *arg != "--bench").collect();
    if let Some(unknown) = asked.iter().find(|arg| parts.iter().all(|(name, _)| name != *arg)) {
        eprintln!("error: there are no figures {unknown:?}, only of {}", parts.map(|(name, _)| name).join(", "));
        return ExitCode::FAILURE;
    }
    let mut table = table::Table::default();
    machine::measure(&mut table);
    for (name, measure) in parts {
        if asked.is_empty() || asked.iter().any(|arg| *arg == name) {
            measure(&mut table);
        }
    }
    if asked.is_empty() {
        table.not_built("plan 500 nodes in 9 pools on one core", "less than 1 s");
    }
    print!("{table}");
    ExitCode::SUCCESS
}
