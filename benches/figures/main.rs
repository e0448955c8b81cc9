//! What Belay costs, printed beside what it may cost. `cargo xtask bench` runs it from a release build. Nothing here
//! decides whether a test passes: a busy machine only prints worse figures.

mod cluster;
mod costs;
mod memory;
mod table;

use std::process::ExitCode;

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // A cache is filled in a process of its own, so that nothing that was freed before hides what it needs.
    if let [what, pods] = args.as_slice()
        && what == memory::CHILD
        && let Ok(pods) = pods.parse()
    {
        return memory::child(pods);
    }
    let mut table = table::Table::default();
    costs::measure(&mut table);
    memory::measure(&mut table);
    print!("{table}");
    ExitCode::SUCCESS
}
