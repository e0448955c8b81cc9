//! Developer commands. `cargo xtask help` lists them.

mod bench;
mod control_plane;
mod demo;
mod fuzz;
mod image;
mod sbom;
mod soak;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Commands for people who work on Belay.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A real Kubernetes control plane on this machine, with simulated nodes.
    #[command(subcommand)]
    ControlPlane(control_plane::Command),
    /// Print what Belay costs beside what it may cost, from a release build.
    Bench(bench::BenchArgs),
    /// Drain a node twice, without Belay and with it, and count the failed requests.
    Demo(demo::DemoArgs),
    /// Drain nodes again and again while parts of Belay and of the control plane are killed, and count what must not be.
    Soak(soak::SoakArgs),
    /// Feed what reads foreign bytes with what nobody thought of.
    Fuzz {
        /// Only this target: `review`, `answer`, `config` or `expression`.
        target: Option<String>,
        /// How long each target runs, in seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Write what a release is made of, as CycloneDX, and say where it is.
    Sbom,
    /// Run everything that has to pass: format, lints, unit and property tests, chart and end-to-end tests.
    Test {
        /// Only these stages, such as `format`, `lint`, `unit` or `harness`.
        stages: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::ControlPlane(command) => control_plane::run(&command),
        Command::Bench(args) => bench::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Command::Sbom => sbom::run(),
        Command::Test { stages } => test::run(&stages),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
