//! Keeping live bundles equal to authorities that somebody else made: the `ca.crt` of a user's Secret.
//!
//! A new `ca.crt` reaches the controller and the replicas at different moments, and a replica serves its old pair until
//! the new one is trusted everywhere. So an authority that is trusted already and that `ca.crt` does not name (any more)
//! stays for a while. That covers a change of authority as well as a change from certificates of Belay's own, whatever
//! the order in which pods are replaced.

use jiff::{SignedDuration, Timestamp};

use crate::cert::{Certificate, later};
use crate::plan::{Entry, LiveCaBundle, MAX_KEPT, trusted_now};

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

/// When the last of these authorities is over.
pub fn last_end(authorities: &[Certificate]) -> Option<Timestamp> {
    authorities
        .iter()
        .filter(|certificate| certificate.can_anchor())
        .map(|certificate| certificate.validity.not_after)
        .max()
}

/// Remembers since when authorities are trusted that are not given any more. A process that starts anew counts anew: they
/// stay longer then, never shorter.
#[derive(Debug, Default)]
pub struct Given {
    kept: Vec<(Certificate, Timestamp)>,
}

impl Given {
    /// What every entry is to hold at `now`, given these authorities.
    pub fn wanted(&mut self, given: &[Certificate], live: &[LiveCaBundle], now: Timestamp) -> Wanted {
        let mut kept: Vec<(Certificate, Timestamp)> = Vec::new();
        for certificate in trusted_now(live, now).into_iter().filter(|certificate| !given.contains(certificate)) {
            let known = self.kept.iter().find(|(known, since)| *known == certificate && *since <= now);
            kept.push((certificate, known.map_or(now, |(_, since)| *since)));
        }
        self.kept = kept;
        let staying = self.kept.iter().filter(|(_, since)| later(*since, KEEP) > now).take(MAX_KEPT);
        let until = staying.clone().map(|(_, since)| later(*since, KEEP)).min();
        let bundle = given.iter().chain(staying.map(|(certificate, _)| certificate));
        let ca_bundle = bundle.map(Certificate::to_pem).collect::<String>().into_bytes();
        let targets = live.iter().filter(|live| live.ca_bundle != ca_bundle).map(|live| live.entry.clone()).collect();
        Wanted { ca_bundle, targets, until }
    }
}

#[cfg(test)]
#[path = "given_tests.rs"]
mod tests;
