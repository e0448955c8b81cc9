//! This replica's serving certificate: signed in memory or read from files, switched without a dropped connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;
use webhook_certs::replica::{NotReady, Tick};
use webhook_certs::{CertResolver, LeafRequest, LiveCaBundle, Mounted, Replica, given};

use crate::cluster::clock::Clock;
use crate::cluster::mounted;
use crate::cluster::trust::Trust;
use crate::metrics::{Metrics, Role};
use crate::tasks::Tasks;

/// How often the wall clock is looked at. Timers stop while a machine sleeps; a certificate's validity does not.
const TICK: Duration = Duration::from_secs(30);

/// Where the certificate comes from.
pub enum Source {
    /// Signed here, by the authority of the CA Secret.
    Own(LeafRequest),
    /// Read from this folder, for these DNS names.
    Files(PathBuf, Vec<String>),
}

/// The certificate and the task that keeps it.
#[derive(Clone)]
pub struct ServingLeaf {
    state: Arc<Mutex<State>>,
    trust: Trust,
    metrics: Arc<Metrics>,
}

struct State {
    keeper: Keeper,
    /// What is wrong with what the next certificate would be made of.
    trouble: Option<String>,
}

/// Who decides what is served.
enum Keeper {
    Own(Box<Replica>),
    Files(PathBuf, Mounted),
}

/// What one look came to.
struct Look {
    /// Served from now on, and when it is over.
    switched: Option<(Arc<CertifiedKey>, Timestamp)>,
    /// When the authority is over.
    authority: Option<Timestamp>,
    trouble: Option<String>,
}

impl ServingLeaf {
    /// Keeps a certificate in `resolver`, until `stop`.
    pub fn keep(
        trust: Trust,
        source: Source,
        resolver: Arc<CertResolver>,
        metrics: Arc<Metrics>,
        tasks: &Tasks,
        stop: CancellationToken,
    ) -> Self {
        let leaf = Self::new(trust, source, metrics);
        drop(tasks.spawn("serving certificate", leaf.clone().run(resolver, stop)));
        leaf
    }

    fn new(trust: Trust, source: Source, metrics: Arc<Metrics>) -> Self {
        let keeper = match source {
            Source::Own(request) => Keeper::Own(Box::new(Replica::new(request))),
            Source::Files(folder, names) => Keeper::Files(folder, Mounted::new(names)),
        };
        Self { state: Arc::new(Mutex::new(State { keeper, trouble: None })), trust, metrics }
    }

    /// Whether the API server accepts what is served.
    pub fn ready(&self) -> Result<(), String> {
        self.trust.ready()?;
        self.state.lock().ready(&self.trust.live(), Clock::wall())
    }

    async fn run(self, resolver: Arc<CertResolver>, stop: CancellationToken) {
        let mut changes = self.trust.changes();
        let pause = self.state.lock().keeper.pause();
        loop {
            self.tick(&resolver, Clock::wall());
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// One look. The same trouble is told once.
    fn tick(&self, resolver: &CertResolver, now: Timestamp) {
        let mut state = self.state.lock();
        let look = state.keeper.look(&self.trust, now);
        if let Some((certified, not_after)) = look.switched {
            resolver.set_certified(certified);
            self.metrics.certificate_end(Role::Leaf, Some(not_after));
            tracing::info!(%not_after, "serving certificate switched");
        }
        self.metrics.certificate_end(Role::Authority, look.authority);
        if let Some(trouble) = look.trouble.as_ref().filter(|&found| state.trouble.as_ref() != Some(found)) {
            tracing::error!(error = %trouble, "no new serving certificate; the present one goes on being served");
            if matches!(state.keeper, Keeper::Files(..)) {
                self.metrics.certificate_files_refused();
            }
        }
        state.trouble = look.trouble;
    }
}

impl State {
    fn ready(&self, live: &[LiveCaBundle], now: Timestamp) -> Result<(), String> {
        let readiness = match &self.keeper {
            Keeper::Own(replica) => replica.ready(live, now),
            Keeper::Files(_, mounted) => mounted.ready(live, now),
        };
        readiness.map_err(|reason| match (&reason, &self.trouble) {
            (NotReady::NoLeaf | NotReady::NoPair, Some(trouble)) => format!("no serving certificate yet: {trouble}"),
            _ => reason.to_string(),
        })
    }
}

impl Keeper {
    fn pause(&self) -> Duration {
        match self {
            Self::Own(_) => TICK,
            Self::Files(..) => mounted::POLL,
        }
    }

    fn look(&mut self, trust: &Trust, now: Timestamp) -> Look {
        match self {
            Self::Own(replica) => {
                let (secret, damage) = match trust.secret() {
                    Some(Ok(secret)) => (Some(secret), None),
                    Some(Err(error)) => (None, Some(error)),
                    None => (None, None),
                };
                let authority = secret.as_ref().map(|secret| secret.active().certificate().validity.not_after);
                match replica.tick(secret.as_ref(), &trust.live(), now) {
                    Ok(Tick::Switched(leaf)) => {
                        let switched = Some((leaf.certified(), leaf.validity().not_after));
                        Look { switched, authority, trouble: damage }
                    }
                    Ok(Tick::Unchanged | Tick::Held { .. }) => Look { switched: None, authority, trouble: damage },
                    Err(error) => Look { switched: None, authority, trouble: Some(error.to_string()) },
                }
            }
            Self::Files(folder, mounted) => {
                let files = match mounted::files(folder) {
                    Ok(files) => files,
                    Err(error) => return Look { switched: None, authority: None, trouble: Some(error.to_string()) },
                };
                let authorities = files.authorities.as_deref().and_then(|pem| given::authorities(pem, now).ok());
                let authority = authorities.as_deref().and_then(given::last_end);
                match mounted.tick(&files, &trust.live(), now) {
                    Ok(Tick::Switched(pair)) => {
                        let switched = Some((pair.certified(), pair.validity().not_after));
                        Look { switched, authority, trouble: None }
                    }
                    Ok(Tick::Unchanged | Tick::Held { .. }) => Look { switched: None, authority, trouble: None },
                    Err(error) => Look { switched: None, authority, trouble: Some(error.to_string()) },
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "leaf_tests.rs"]
mod tests;
