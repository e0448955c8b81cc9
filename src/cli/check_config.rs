//! `belay check-config`: says what is wrong with a configuration file, before a cluster does.

use std::path::Path;

use crate::config::Config;

pub(super) fn run(file: &Path) -> anyhow::Result<()> {
    Config::load(file)?;
    println!("{}: good", file.display());
    Ok(())
}
