//! `belay crds`: prints the CustomResourceDefinitions.

use std::io::Write;

use anyhow::Context;

use crate::api;

pub(super) fn run() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for crd in api::crds() {
        let yaml = api::crd_yaml(&crd).context("cannot print a CustomResourceDefinition")?;
        write!(out, "---\n{yaml}").context("cannot write to standard output")?;
    }
    Ok(())
}
