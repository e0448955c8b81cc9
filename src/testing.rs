//! What tests of several parts have in common.

mod api_server;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use belay_decide::busy::Rule;
use belay_decide::handover::surge::SurgeRecord;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

pub(crate) use api_server::{ApiServer, Asked, Kind, Reply};

use crate::cluster::apply::Applier;
use crate::cluster::lease::Leadership;
use crate::cluster::owners::Resources;
use crate::config::{Config, Selects};
use crate::metrics::Metrics;
use crate::rate::TokenBucket;
use crate::tasks::Tasks;

/// What every configuration must have.
pub(crate) const NEEDED: &str = "certs: {secretName: ca, dnsNames: [belay.svc]}
webhookConfigurations: {validating: b, mutating: b}
";

/// A configuration with these further keys.
pub(crate) fn config(more: &str) -> Config {
    Config::parse("config.yaml".as_ref(), &format!("{NEEDED}{more}")).expect("a good configuration")
}

/// A configuration with these busy rules: a YAML list.
pub(crate) fn config_of_rules(list: &str) -> Config {
    config(&format!("busyHints:\n  enabled: true\n  rules:\n    {}", list.replace('\n', "\n    ")))
}

/// These busy rules, compiled, with what each selects.
pub(crate) fn rules(list: &str) -> (Vec<Rule>, Vec<Selects>) {
    config_of_rules(list).busy_hints.compile().expect("what is parsed compiles")
}

/// A surge of the Deployment of UID `d` by one replica, from three; the number that was raised was this one.
pub(crate) fn surge(original: Option<i32>) -> SurgeRecord {
    SurgeRecord {
        workload: "d".into(),
        original,
        base: 3,
        floor: 3,
        surge: 1,
        awaited: Vec::new(),
        released: Vec::new(),
        since: Timestamp::UNIX_EPOCH,
        renewed: false,
    }
}

/// An applier that leads and is held up by no rate, and what it counts.
pub(crate) fn leading_applier(
    api: &ApiServer,
    resources: Resources,
    pod_name: Option<&str>,
) -> (Arc<Applier>, Arc<Leadership>, Arc<Metrics>) {
    let (leadership, metrics) = (Arc::new(Leadership::default()), Arc::new(Metrics::default()));
    leadership.win();
    let applier = Applier::start(
        api.client.clone(),
        Arc::clone(&leadership),
        Arc::new(TokenBucket::new(1000)),
        resources,
        pod_name.map(str::to_owned),
        Arc::clone(&metrics),
        &Tasks::new(CancellationToken::new()),
    );
    (applier, leadership, metrics)
}

/// A folder of its own for a test's files, removed with it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("belay-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it with this text.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.join(name);
        std::fs::write(&file, text).expect("a file can be written");
        file
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
