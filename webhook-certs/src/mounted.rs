//! One replica's side where the certificate comes from files: which pair to serve, and whether callers accept it.
//!
//! The rule is the one of leaves that a replica signs itself (`succession`): the old pair stays until the new
//! one loses no caller, whoever writes the bundles and whenever. A file that is bad changes nothing.

use jiff::Timestamp;

use crate::pair::{Files, Pair, PairError};
use crate::plan::LiveCaBundle;
use crate::replica::{NotReady, Tick};
use crate::succession::{Callers, Waiting};

/// A replica that serves what it finds in files.
#[derive(Debug)]
pub struct Mounted {
    names: Vec<String>,
    served: Option<Pair>,
    candidate: Option<(Pair, Waiting)>,
}

impl Mounted {
    /// A replica that will serve pairs for these DNS names. The first is the one that acceptance is checked for.
    pub fn new(names: Vec<String>) -> Self {
        Self { names, served: None, candidate: None }
    }

    /// The pair being served.
    pub fn served(&self) -> Option<&Pair> {
        self.served.as_ref()
    }

    /// Looks at the files, the live bundles and the time, and switches pairs where that is due. Call it whenever either
    /// may have changed, and at least each minute by the wall clock.
    ///
    /// # Errors
    /// The files hold no good pair. What was served goes on being served.
    pub fn tick(&mut self, files: &Files, live: &[LiveCaBundle], now: Timestamp) -> Result<Tick<Pair>, PairError> {
        let waiting = self.candidate.take();
        let found = Pair::parse(files, &self.names, now)?;
        if self.served.as_ref().is_some_and(|served| served.chain() == found.chain()) {
            return Ok(Tick::Unchanged);
        }
        let (candidate, mut waits) = match waiting.filter(|(waiting, _)| waiting.chain() == found.chain()) {
            Some(waiting) => waiting,
            None => (found, Waiting::default()),
        };
        let served = self.served.as_ref().map(|pair| (pair.chain(), pair.validity()));
        if let Some(until) = waits.until(served, candidate.chain(), self.callers(live), now) {
            self.candidate = Some((candidate, waits));
            return Ok(Tick::Held { until });
        }
        self.served = Some(candidate.clone());
        Ok(Tick::Switched(candidate))
    }

    /// Whether every live configuration accepts the served pair at `now`.
    pub fn ready(&self, live: &[LiveCaBundle], now: Timestamp) -> Result<(), NotReady> {
        let pair = self.served().ok_or(NotReady::NoPair)?;
        self.callers(live).all_accept(pair.chain(), now)
    }

    fn callers<'a>(&'a self, live: &'a [LiveCaBundle]) -> Callers<'a> {
        Callers { live, name: self.names.first().map_or("", String::as_str) }
    }
}

#[cfg(test)]
#[path = "mounted_tests.rs"]
mod tests;
