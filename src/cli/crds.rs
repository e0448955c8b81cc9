//! `belay crds`: prints the CustomResourceDefinitions.

use anyhow::Context as _;

use super::output::write_out;
use crate::api;

pub(super) const HELP: &str = "Examples:
  belay crds | kubectl apply --server-side -f -

Exit codes: 0 printed, 1 standard output cannot be written, 2 the command line is not understood.";

pub(super) fn run() -> anyhow::Result<()> {
    let mut text = String::new();
    for crd in api::crds() {
        text.push_str("---\n");
        text.push_str(&api::crd_yaml(&crd).context("cannot print a CustomResourceDefinition")?);
    }
    write_out(text.as_bytes())
}
