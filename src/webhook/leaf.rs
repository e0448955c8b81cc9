//! This replica's serving certificate: signed in memory or read from files, switched without a dropped connection.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;
use webhook_certs::cert::Validity;
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
    trouble: Option<Trouble>,
}

/// What is wrong with what the next certificate would be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Trouble {
    effect: Effect,
    error: String,
}

/// What that means for what is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// There is nothing to serve yet.
    NoneYet,
    /// The certificate stays that is there.
    NoNew,
    /// The CA Secret is damaged; certificates are signed by the authority that it held before.
    LastAuthority,
}

/// Who decides what is served.
enum Keeper {
    Own(Box<Replica>),
    Files(PathBuf, Mounted),
}

/// What one look came to.
struct Look {
    /// Served from now on, and when it is valid.
    switched: Option<(Arc<CertifiedKey>, Validity)>,
    /// When the authority is valid.
    authority: Option<Validity>,
    trouble: Option<Trouble>,
}

impl Look {
    fn new<C, E: Display>(
        tick: Result<Tick<C>, E>,
        served: impl FnOnce(C) -> (Arc<CertifiedKey>, Validity),
        authority: Option<Validity>,
    ) -> Self {
        let (switched, error) = match tick {
            Ok(Tick::Switched(certificate)) => (Some(served(certificate)), None),
            Ok(Tick::Unchanged | Tick::Held { .. }) => (None, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { switched, authority, trouble: error.map(|error| Trouble { effect: Effect::NoNew, error }) }
    }
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
        if let Some((certified, validity)) = look.switched {
            resolver.set_certified(certified);
            self.metrics.certificate_validity(Role::Leaf, Some(validity));
            tracing::info!(not_after = %validity.not_after, "serving certificate switched");
        }
        self.metrics.certificate_validity(Role::Authority, look.authority);
        if let Some(trouble) = look.trouble.as_ref().filter(|&found| state.trouble.as_ref() != Some(found)) {
            trouble.tell();
            if matches!(state.keeper, Keeper::Files(..)) {
                self.metrics.certificate_files_refused();
            }
        }
        state.trouble = look.trouble;
    }
}

impl Trouble {
    fn tell(&self) {
        let error = &self.error;
        match self.effect {
            Effect::NoneYet => tracing::error!(%error, "no serving certificate yet"),
            Effect::NoNew => {
                tracing::error!(%error, "no new serving certificate; the present one goes on being served");
            }
            Effect::LastAuthority => {
                tracing::error!(%error, "the CA Secret cannot be used; the authority that it held before goes on signing");
            }
        }
    }
}

impl State {
    fn ready(&self, live: &[LiveCaBundle], now: Timestamp) -> Result<(), String> {
        let readiness = match &self.keeper {
            Keeper::Own(replica) => replica.ready(live, now),
            Keeper::Files(_, mounted) => mounted.ready(live, now),
        };
        readiness.map_err(|reason| match (&reason, &self.trouble) {
            (NotReady::NoLeaf | NotReady::NoPair, Some(trouble)) => {
                format!("no serving certificate yet: {}", trouble.error)
            }
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

    fn serves(&self) -> bool {
        match self {
            Self::Own(replica) => replica.served().is_some(),
            Self::Files(_, mounted) => mounted.served().is_some(),
        }
    }

    fn look(&mut self, trust: &Trust, now: Timestamp) -> Look {
        let mut look = match self {
            Self::Own(replica) => {
                let (secret, damage) = match trust.secret().transpose() {
                    Ok(secret) => (secret, None),
                    Err(error) => (None, Some(Trouble { effect: Effect::LastAuthority, error })),
                };
                let authority = secret.as_ref().map(|secret| secret.active().certificate().validity);
                let tick = replica.tick(secret.as_ref(), &trust.live(), now);
                let look = Look::new(tick, |leaf| (leaf.certified(), leaf.validity()), authority);
                Look { trouble: look.trouble.or(damage), ..look }
            }
            Self::Files(folder, mounted) => {
                let files = mounted::files(folder).map_err(|error| error.to_string());
                let authorities =
                    files.as_ref().ok().and_then(|files| given::authorities(&files.authorities, now).ok());
                let authority = authorities.as_deref().and_then(given::longest);
                let tick =
                    files.and_then(|files| mounted.tick(&files, &trust.live(), now).map_err(|error| error.to_string()));
                Look::new(tick, |pair| (pair.certified(), pair.validity()), authority)
            }
        };
        if let Some(trouble) = look.trouble.as_mut().filter(|_| !self.serves()) {
            trouble.effect = Effect::NoneYet;
        }
        look
    }
}

#[cfg(test)]
#[path = "leaf_tests.rs"]
mod tests;
