//! The `belay` program. See the library for everything.

use std::process::ExitCode;

/// glibc's allocator keeps what a full list of the cluster needed for a moment; mimalloc gives it back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        eprintln!("belay: a TLS provider was installed before main; this is a bug");
        return ExitCode::FAILURE;
    }
    belay::cli::run(std::env::args_os().collect())
}
