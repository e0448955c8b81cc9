//! One replica's side: which leaf to serve, and whether callers accept it.
//!
//! A replica reads the CA Secret and the live configurations through watches, each of which may
//! lag. Its own rule therefore does not rely on the controller's order of steps: it never gives up
//! an acceptance that it has. A leaf signed by another authority than the one being served takes
//! over only when every live bundle accepts it that accepts the served one, and has done so for
//! [`SETTLE`], since an API server may see a configuration later than this replica does.

use jiff::Timestamp;

use crate::ca::Ca;
use crate::cert::later;
use crate::leaf::{Leaf, LeafError, LeafRequest};
use crate::plan::{Entry, LiveCaBundle, SETTLE};
use crate::secret::CaSecret;
use crate::verify::{VerifyError, verify};

/// Why a replica is not ready to serve. Prints as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// There is no leaf: the CA Secret was not seen yet, or cannot be used.
    #[error("no serving certificate yet; it needs the CA Secret, which the controller creates")]
    NoLeaf,
    /// A live configuration does not accept the leaf.
    #[error("{entry}: {reason}")]
    NotAccepted {
        /// The first entry that does not.
        entry: Entry,
        /// Why.
        reason: VerifyError,
    },
}

/// What a [`Replica::tick`] did.
#[derive(Debug)]
pub enum Tick {
    /// The served leaf stays.
    Unchanged,
    /// Serve this leaf from now on: give it to [`CertResolver::set`](crate::CertResolver::set).
    Switched(Leaf),
    /// A new leaf is signed and waits until this moment at the least, because not every live
    /// configuration is known to accept it.
    Held {
        /// When to look again, unless something changes before.
        until: Timestamp,
    },
}

/// A replica's leaf, and the one that waits to replace it.
#[derive(Debug)]
pub struct Replica {
    request: LeafRequest,
    /// The authority that signed last in a Secret that could be used.
    signer: Option<Ca>,
    served: Option<Signed>,
    candidate: Option<Candidate>,
}

/// A leaf and the authority that can renew it.
#[derive(Debug)]
struct Signed {
    leaf: Leaf,
    by: Ca,
}

#[derive(Debug)]
struct Candidate {
    signed: Signed,
    /// Since when it has lost no live bundle to the served one, in one stretch.
    accepted_since: Option<Timestamp>,
}

impl Signed {
    fn sign(by: &Ca, request: &LeafRequest, now: Timestamp) -> Result<Self, LeafError> {
        Ok(Self { leaf: Leaf::sign(by, request, now)?, by: by.clone() })
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        self.leaf.validity().contains(now) && now < self.leaf.renew_at()
    }
}

impl Replica {
    /// A replica that will serve leaves for `request`. Its first name (or else address) is the one
    /// that acceptance is checked for.
    pub fn new(request: LeafRequest) -> Self {
        Self { request, signer: None, served: None, candidate: None }
    }

    /// The leaf being served.
    pub fn served(&self) -> Option<&Leaf> {
        self.served.as_ref().map(|served| &served.leaf)
    }

    /// Looks at the Secret, the live bundles and the time, and switches leaves where that is due.
    /// Call it whenever either changes and at least each minute by the wall clock (timers stop
    /// while a machine sleeps, validity does not).
    ///
    /// Where there is no Secret, or one that cannot be used (pass `None`), the authority seen last
    /// goes on signing: the live bundles trust it until a new Secret says otherwise.
    ///
    /// # Errors
    /// No leaf could be signed. What was served goes on being served.
    pub fn tick(
        &mut self,
        secret: Option<&CaSecret>,
        live: &[LiveCaBundle],
        now: Timestamp,
    ) -> Result<Tick, LeafError> {
        if let Some(secret) = secret {
            self.signer = Some(secret.active().clone());
        }
        let Some(signer) = self.signer.clone() else { return Ok(Tick::Unchanged) };
        if self.served.as_ref().is_some_and(|served| served.by == signer) {
            self.candidate = None;
            return self.renew(now);
        }
        let waiting = self.candidate.take();
        let mut candidate = match waiting.filter(|it| it.signed.by == signer && it.signed.is_fresh(now)) {
            Some(candidate) => candidate,
            None => Candidate { signed: Signed::sign(&signer, &self.request, now)?, accepted_since: None },
        };
        let Some(until) = self.held_until(&mut candidate, live, now) else {
            return Ok(self.switch(candidate.signed));
        };
        self.candidate = Some(candidate);
        match self.renew(now)? {
            // The wait may be long, where nobody patches the configurations.
            Tick::Switched(renewed) => Ok(Tick::Switched(renewed)),
            _ => Ok(Tick::Held { until }),
        }
    }

    /// Replaces the served leaf by one of the same authority if its time has come.
    fn renew(&mut self, now: Timestamp) -> Result<Tick, LeafError> {
        match &self.served {
            Some(served) if !served.is_fresh(now) => {
                let renewed = Signed::sign(&served.by, &self.request, now)?;
                Ok(self.switch(renewed))
            }
            _ => Ok(Tick::Unchanged),
        }
    }

    fn switch(&mut self, to: Signed) -> Tick {
        let leaf = to.leaf.clone();
        self.served = Some(to);
        Tick::Switched(leaf)
    }

    /// Until when the candidate has to wait; `None` when it may take over.
    fn held_until(&self, candidate: &mut Candidate, live: &[LiveCaBundle], now: Timestamp) -> Option<Timestamp> {
        let served = self.served().filter(|served| served.validity().contains(now))?;
        let accepts = |leaf: &Leaf, live: &LiveCaBundle| self.accepts(leaf, live, now).is_ok();
        let mut gains = false;
        for live in live {
            match (accepts(served, live), accepts(&candidate.signed.leaf, live)) {
                (true, false) => {
                    candidate.accepted_since = None;
                    return Some(later(now, SETTLE));
                }
                (false, true) => gains = true,
                _ => {}
            }
        }
        if gains {
            // Calls through that configuration fail for certain until the switch.
            return None;
        }
        // A time ahead of now comes from a clock that was set back since.
        let since = candidate.accepted_since.filter(|&since| since <= now).unwrap_or(now);
        candidate.accepted_since = Some(since);
        Some(later(since, SETTLE)).filter(|&until| until > now)
    }

    /// Whether every live configuration accepts the served leaf at `now`. Vacuously so where there
    /// is no configuration: then nobody calls.
    pub fn ready(&self, live: &[LiveCaBundle], now: Timestamp) -> Result<(), NotReady> {
        let leaf = self.served().ok_or(NotReady::NoLeaf)?;
        live.iter().try_for_each(|live| {
            self.accepts(leaf, live, now).map_err(|reason| NotReady::NotAccepted { entry: live.entry.clone(), reason })
        })
    }

    fn accepts(&self, leaf: &Leaf, live: &LiveCaBundle, now: Timestamp) -> Result<(), VerifyError> {
        let address = || self.request.ips.first().map(ToString::to_string);
        let name = self.request.dns_names.first().cloned().or_else(address).unwrap_or_default();
        verify(leaf.chain(), &live.ca_bundle, &name, now)
    }
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
