//! Keeping live bundles equal to authorities that somebody else made: the `ca.crt` of a user's Secret.
//!
//! A new `ca.crt` reaches the controller and the replicas at different moments, and a replica serves its old pair until
//! the new one is trusted everywhere. So an authority that was trusted and that `ca.crt` does not name (any more) stays for a
//! while. That covers a change of authority as well as a change from certificates of Belay's own, whatever
//! the order in which pods are replaced.

use jiff::{SignedDuration, Timestamp};

use crate::cert::{Certificate, Validity, later};
use crate::plan::{Entry, LiveCaBundle};

/// How long an authority is kept that is not given any more. A kubelet brings a changed Secret into a pod within some two
/// minutes (its sync period and the lifetime of its cache), the replica reads it within seconds and waits for two minutes
/// ([`SETTLE`](crate::plan::SETTLE)) before it serves it; the rest is for a rollout of the replicas.
pub const KEEP: SignedDuration = SignedDuration::from_mins(10);

/// Why authorities cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GivenError {
    /// They cannot be read.
    #[error("ca.crt does not hold PEM certificates ({detail}); the webhook configurations are left as they are")]
    NotCertificates {
        /// The parser's reason.
        detail: String,
    },
    /// No caller would trust them.
    #[error(
        "ca.crt holds no certificate that is valid now and an authority's or a server's, so nobody would be trusted by \
         it; the webhook configurations are left as they are"
    )]
    NoAuthority,
}

/// What the live configurations are to hold now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Byte for byte: PEM, LF line ends.
    pub ca_bundle: Vec<u8>,
    /// Where it differs, in the order given.
    pub targets: Vec<Entry>,
    /// When an authority that is kept goes, where one is.
    pub until: Option<Timestamp>,
}

/// Reads the authorities of a `ca.crt`, all of them. A server's certificate that is trusted itself counts as one.
pub fn authorities(ca_crt: &[u8], now: Timestamp) -> Result<Vec<Certificate>, GivenError> {
    let found = Certificate::all_from_pem(ca_crt).map_err(|detail| GivenError::NotCertificates { detail })?;
    if !found.iter().any(|certificate| certificate.anchors(now)) {
        return Err(GivenError::NoAuthority);
    }
    Ok(found)
}

/// When that of these authorities is valid that lasts longest.
pub fn longest(authorities: &[Certificate]) -> Option<Validity> {
    let validities = authorities.iter().filter(|it| it.can_anchor()).map(|it| it.validity);
    validities.max_by_key(|validity| validity.not_after)
}

/// Remembers what was given and is not any more, for [`KEEP`].
///
/// What stands in live bundles proves nothing: whoever may edit one could put anything there, and would have it copied to
/// all of them. So they are believed once, at the beginning, when nothing else tells what replicas are served by; from
/// then on only what was given itself is kept.
#[derive(Debug)]
pub struct Given {
    given: Vec<Certificate>,
    /// With the moment since when.
    kept: Vec<(Certificate, Timestamp)>,
}

impl Given {
    /// Begins with these authorities and what is trusted beside them, as read from the API itself (what a watch saw last
    /// may lack what a former leader wrote). Only what every entry trusts counts, save entries that trust nobody, since
    /// they are new: a replica is served by nothing else for long, and an edit of one entry does not get into the others.
    pub fn begin(given: &[Certificate], live: &[LiveCaBundle], now: Timestamp) -> Self {
        let found = trusted_by_all(live, now).into_iter().filter(|certificate| !given.contains(certificate));
        Self { given: given.to_vec(), kept: found.map(|certificate| (certificate, now)).collect() }
    }

    /// What every entry is to hold at `now`, given these authorities.
    pub fn wanted(&mut self, given: &[Certificate], live: &[LiveCaBundle], now: Timestamp) -> Wanted {
        let left = std::mem::replace(&mut self.given, given.to_vec()).into_iter().map(|certificate| (certificate, now));
        self.kept.extend(left);
        for (_, since) in &mut self.kept {
            // A time ahead of now comes from a clock that was set back since.
            *since = (*since).min(now);
        }
        self.kept.retain(|(certificate, since)| {
            !given.contains(certificate) && certificate.anchors(now) && later(*since, KEEP) > now
        });
        let until = self.kept.iter().map(|(_, since)| later(*since, KEEP)).min();
        let bundle = given.iter().chain(self.kept.iter().map(|(certificate, _)| certificate));
        let ca_bundle = bundle.map(Certificate::to_pem).collect::<String>().into_bytes();
        let targets = live.iter().filter(|live| live.ca_bundle != ca_bundle).map(|live| live.entry.clone()).collect();
        Wanted { ca_bundle, targets, until }
    }
}

/// Authorities that stand in every bundle that holds any.
fn trusted_by_all(live: &[LiveCaBundle], now: Timestamp) -> Vec<Certificate> {
    let mut bundles = live.iter().map(|live| live.anchors(now).collect::<Vec<_>>()).filter(|bundle| !bundle.is_empty());
    let mut common: Vec<Certificate> = Vec::new();
    for certificate in bundles.next().into_iter().flatten() {
        if !common.contains(&certificate) {
            common.push(certificate);
        }
    }
    bundles.for_each(|bundle| common.retain(|certificate| bundle.contains(certificate)));
    common
}

#[cfg(test)]
#[path = "given_tests.rs"]
mod tests;
