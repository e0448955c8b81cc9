//! When a certificate may take over from the one that is served.
//!
//! A replica never gives up an acceptance that it has: another authority's certificate takes over only when every live
//! bundle accepts it that accepts the served one, and has done so for [`SETTLE`], since an API server may see a
//! configuration later than the replica does. Where a bundle accepts only the new one, calls fail until the switch, so
//! it comes at once.

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;

use crate::cert::{Validity, later};
use crate::plan::{LiveCaBundle, SETTLE};
use crate::replica::NotReady;
use crate::verify::verify;

/// Who asks for a certificate by which name, and what they trust.
#[derive(Clone, Copy)]
pub(crate) struct Callers<'a> {
    pub(crate) live: &'a [LiveCaBundle],
    pub(crate) name: &'a str,
}

impl Callers<'_> {
    /// Whether every live configuration accepts the chain at `now`. Vacuously so where there is no configuration: then
    /// nobody calls.
    pub(crate) fn all_accept(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), NotReady> {
        self.live.iter().try_for_each(|live| {
            verify(chain, &live.ca_bundle, self.name, now)
                .map_err(|reason| NotReady::NotAccepted { entry: live.entry.clone(), reason })
        })
    }
}

/// Since when a certificate that waits has lost no live bundle to the served one, in one stretch.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Option<Timestamp>);

impl Waiting {
    /// Until when `candidate` has to wait to take over from `served`; `None` when it may.
    pub(crate) fn until(
        &mut self,
        served: Option<(&[CertificateDer<'_>], Validity)>,
        candidate: &[CertificateDer<'_>],
        callers: Callers<'_>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let (served, _) = served.filter(|(_, validity)| validity.contains(now))?;
        let accepts = |chain: &[CertificateDer<'_>], live: &LiveCaBundle| {
            verify(chain, &live.ca_bundle, callers.name, now).is_ok()
        };
        let mut gains = false;
        for live in callers.live {
            match (accepts(served, live), accepts(candidate, live)) {
                (true, false) => {
                    self.0 = None;
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
        let since = self.0.filter(|&since| since <= now).unwrap_or(now);
        self.0 = Some(since);
        Some(later(since, SETTLE)).filter(|&until| until > now)
    }
}
