//! One replica's side: which leaf to serve, and whether callers accept it.
//!
//! A replica reads the CA Secret and the live configurations through watches, each of which may
//! lag. Its own rule therefore does not rely on the controller's order of steps: a leaf signed by
//! another authority than the one being served takes over as `succession` says.

use jiff::Timestamp;

use crate::ca::Ca;
use crate::leaf::{Leaf, LeafError, LeafRequest};
use crate::plan::{Entry, LiveCaBundle};
use crate::secret::CaSecret;
use crate::succession::{Callers, Waiting};
use crate::verify::VerifyError;

/// Why a replica is not ready to serve. Prints as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// There is no leaf: the CA Secret was not seen yet, or cannot be used.
    #[error("no serving certificate yet; it needs the CA Secret, which the controller creates")]
    NoLeaf,
    /// There is no pair: the files were not read yet, or were never good.
    #[error("no serving certificate yet; it needs a good tls.crt and tls.key in the mounted Secret")]
    NoPair,
    /// A live configuration does not accept the leaf.
    #[error("{entry}: {reason}")]
    NotAccepted {
        /// The first entry that does not.
        entry: Entry,
        /// Why.
        reason: VerifyError,
    },
}

/// What a tick of a [`Replica`] or of a [`Mounted`](crate::Mounted) did.
#[derive(Debug)]
pub enum Tick<C = Leaf> {
    /// What is served stays.
    Unchanged,
    /// Serve this from now on: give it to [`CertResolver`](crate::CertResolver).
    Switched(C),
    /// A new one is there and waits until this moment at the least, because not every live
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
    /// The name, or else the address, that acceptance is checked for.
    checked_name: String,
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
    waits: Waiting,
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
        let address = || request.ips.first().map(ToString::to_string);
        let checked_name = request.dns_names.first().cloned().or_else(address).unwrap_or_default();
        Self { request, checked_name, signer: None, served: None, candidate: None }
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
            None => Candidate { signed: Signed::sign(&signer, &self.request, now)?, waits: Waiting::default() },
        };
        let served = self.served().map(|leaf| (leaf.chain(), leaf.validity()));
        let until = candidate.waits.until(served, candidate.signed.leaf.chain(), self.callers(live), now);
        let Some(until) = until else {
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

    /// Whether every live configuration accepts the served leaf at `now`. Vacuously so where there
    /// is no configuration: then nobody calls.
    pub fn ready(&self, live: &[LiveCaBundle], now: Timestamp) -> Result<(), NotReady> {
        let leaf = self.served().ok_or(NotReady::NoLeaf)?;
        self.callers(live).all_accept(leaf.chain(), now)
    }

    fn callers<'a>(&'a self, live: &'a [LiveCaBundle]) -> Callers<'a> {
        Callers { live, name: &self.checked_name }
    }
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
