//! `belay crds`: prints the CustomResourceDefinitions.

use std::io::{ErrorKind, Write as _};

use anyhow::Context;

use crate::api;

pub(super) fn run() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for crd in api::crds() {
        let yaml = api::crd_yaml(&crd).context("cannot print a CustomResourceDefinition")?;
        match write!(out, "---\n{yaml}") {
            // Whoever reads has seen enough, as `head` does.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            result => result.context("cannot write to standard output")?,
        }
    }
    Ok(())
}
