//! `cargo xtask control-plane`: a cluster to look around in.

use std::time::Instant;

use anyhow::bail;
use belay_e2e::instance;
use belay_e2e::standing::{self, Record, Running};

/// What can be done with it.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Start a cluster that stands until `down`; writes the path of its kubeconfig to standard output.
    ///
    /// The first time, the programs are built from source, which takes minutes. Pods of the image `belay.dev/web` serve
    /// HTTP, and pods of any other image run without doing anything.
    Up {
        /// How many simulated nodes.
        #[arg(long, default_value_t = 3)]
        nodes: usize,
    },
    /// Show the clusters that run.
    Status,
    /// Stop the clusters that `up` started, and remove what crashed ones left behind.
    Down {
        /// Stop only the one with this number.
        number: Option<u8>,
    },
    /// Own a cluster until SIGTERM; what `up` runs in the background.
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        nodes: usize,
    },
}

pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Up { nodes } => up(*nodes),
        Command::Status => status(),
        Command::Down { number } => down(*number),
        Command::Serve { nodes } => standing::serve(*nodes),
    }
}

fn up(nodes: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    let record = standing::start(&["control-plane", "serve", "--nodes", &nodes.to_string()])?;
    eprintln!(
        "cluster {} is up after {:.1} s, with {nodes} simulated nodes. Look around:",
        record.octet,
        began.elapsed().as_secs_f64()
    );
    eprintln!("  export KUBECONFIG={}", record.kubeconfig.display());
    eprintln!("  {} get nodes", record.kubectl.display());
    eprintln!("stop it with: cargo xtask control-plane down {}", record.octet);
    println!("{}", record.kubeconfig.display());
    Ok(())
}

fn status() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let running = standing::running();
    if running.is_empty() {
        println!("no cluster is running");
    }
    for cluster in running {
        match cluster {
            Running::Standing(record) => {
                let health = match runtime.block_on(standing::check(&record)) {
                    Ok(()) => "ready".to_owned(),
                    Err(error) => format!("not ready: {error:#}"),
                };
                println!("{}", describe(&record, &health));
            }
            Running::Passing(octet) => println!("cluster {octet}: of a test run or a demo, goes with it"),
        }
    }
    Ok(())
}

fn describe(record: &Record, health: &str) -> String {
    format!(
        "cluster {}: {health}, up since {}, owned by process {}, kubeconfig {}",
        record.octet,
        record.since.strftime("%F %T UTC"),
        record.process,
        record.kubeconfig.display()
    )
}

fn down(number: Option<u8>) -> anyhow::Result<()> {
    let mut stopped = 0;
    for cluster in standing::running() {
        match cluster {
            Running::Standing(record) if number.is_none_or(|number| number == record.octet) => {
                standing::stop(&record)?;
                println!("cluster {} is gone", record.octet);
                stopped += 1;
            }
            Running::Passing(octet) if number == Some(octet) => {
                bail!("cluster {octet} belongs to a test run or a demo: end that");
            }
            _ => {}
        }
    }
    if let (Some(number), 0) = (number, stopped) {
        bail!("there is no cluster {number}; `cargo xtask control-plane status` shows those that run");
    }
    for folder in instance::remove_leftovers()? {
        println!("removed {}, which nobody owned", folder.display());
    }
    if stopped == 0 {
        println!("no cluster was standing");
    }
    Ok(())
}
