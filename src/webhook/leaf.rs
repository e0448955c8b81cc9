//! This replica's serving certificate: signed in memory, switched without a dropped connection.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use webhook_certs::replica::Tick;
use webhook_certs::{CertResolver, LeafRequest, Replica};

use crate::cluster::clock::Clock;
use crate::cluster::trust::Trust;
use crate::tasks::Tasks;

/// How often the wall clock is looked at. Timers stop while a machine sleeps; a certificate's validity does not.
const TICK: Duration = Duration::from_secs(30);

/// The certificate and the task that keeps it.
#[derive(Clone)]
pub struct ServingLeaf {
    replica: Arc<Mutex<Replica>>,
    trust: Trust,
}

impl ServingLeaf {
    /// Keeps a leaf for `request` in `resolver`, until `stop`.
    pub fn keep(
        trust: Trust,
        request: LeafRequest,
        resolver: Arc<CertResolver>,
        tasks: &Tasks,
        stop: CancellationToken,
    ) -> Self {
        let leaf = Self { replica: Arc::new(Mutex::new(Replica::new(request))), trust };
        drop(tasks.spawn("serving certificate", leaf.clone().run(resolver, stop)));
        leaf
    }

    /// Whether the API server accepts what is served.
    pub fn ready(&self) -> Result<(), String> {
        self.trust.ready()?;
        let live = self.trust.live();
        self.replica.lock().ready(&live, Clock::wall()).map_err(|reason| reason.to_string())
    }

    async fn run(self, resolver: Arc<CertResolver>, stop: CancellationToken) {
        let mut changes = self.trust.changes();
        let mut trouble: Option<String> = None;
        loop {
            let found = self.tick(&resolver);
            if found != trouble {
                if let Some(found) = &found {
                    tracing::error!(error = %found, "no new serving certificate; the present one goes on being served");
                }
                trouble = found;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(TICK) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// One look; what is wrong, if anything.
    fn tick(&self, resolver: &CertResolver) -> Option<String> {
        let (secret, trouble) = match self.trust.secret() {
            Some(Ok(secret)) => (Some(secret), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let live = self.trust.live();
        match self.replica.lock().tick(secret.as_ref(), &live, Clock::wall()) {
            Ok(Tick::Switched(leaf)) => {
                resolver.set(&leaf);
                tracing::info!(not_after = %leaf.validity().not_after, "serving certificate switched");
                trouble
            }
            Ok(Tick::Unchanged | Tick::Held { .. }) => trouble,
            Err(error) => Some(error.to_string()),
        }
    }
}
