//! One parsed X.509 certificate, and the time span in which a certificate is valid.
//!
//! Everything else in this package compares certificates by their DER bytes: two certificates are
//! the same exactly if their bytes are. Names and key ids are for people and for path building.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// How far into the past a new certificate's `notBefore` lies: clocks of API servers that run
/// behind ours by up to this much accept it at once. One hour is what cert-manager uses.
pub(crate) const BACKDATE: SignedDuration = SignedDuration::from_hours(1);

/// The share of a lifetime after which a certificate is replaced: early enough for a third of the
/// life to be left for repairs, the convention of cert-manager and the kubelet.
const RENEW_SHARE: (i64, i64) = (2, 3);

/// The span in which a certificate is valid, both ends included (RFC 5280 section 4.1.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// First moment at which it is valid.
    pub not_before: Timestamp,
    /// Last moment at which it is valid.
    pub not_after: Timestamp,
}

impl Validity {
    /// A span around `now`: from [one hour](BACKDATE) before it to `lifetime` after it, in whole
    /// seconds as X.509 has no finer ones.
    pub(crate) fn starting(now: Timestamp, lifetime: SignedDuration) -> Self {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self { not_before: now.checked_sub(BACKDATE).unwrap_or(Timestamp::MIN), not_after: later(now, lifetime) }
    }

    /// Whether `now` lies in the span.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// The moment from which on a replacement is due: two thirds of the span.
    pub fn renew_at(&self) -> Timestamp {
        self.at_share(RENEW_SHARE.0, RENEW_SHARE.1)
    }

    /// `numerator / denominator` of the way from the start to the end.
    pub(crate) fn at_share(&self, numerator: i64, denominator: i64) -> Timestamp {
        let whole = self.not_after.duration_since(self.not_before).as_secs();
        later(self.not_before, SignedDuration::from_secs(whole.saturating_mul(numerator) / denominator))
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} to {}", self.not_before, self.not_after)
    }
}

/// `time + by`, stopping at the end of representable time rather than failing.
pub(crate) fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// A parsed certificate. Equal when the DER bytes are equal.
#[derive(Debug, Clone)]
pub struct Certificate {
    der: CertificateDer<'static>,
    /// When it is valid.
    pub validity: Validity,
    /// The subject as text, for messages.
    pub subject: String,
    /// Whether its basic constraints say that it is an authority.
    pub is_ca: bool,
    /// Whether a server may use it: its extended key usages are absent, any, or those of a server among others.
    pub(crate) is_servers: bool,
    /// The bits of the subject's public key, to match a private key against.
    pub(crate) public_key: Vec<u8>,
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for Certificate {}

impl Certificate {
    /// Parses DER bytes.
    ///
    /// # Errors
    /// What is wrong with the bytes, as text.
    pub fn from_der(der: CertificateDer<'static>) -> Result<Self, String> {
        let (rest, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|error| error.to_string())?;
        if !rest.is_empty() {
            return Err(format!("{} bytes follow the certificate", rest.len()));
        }
        // "No well-defined expiration" is written as the year 9999's last second, which lies past
        // the last moment that a Timestamp can hold.
        let at = |seconds| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        let validity = Validity {
            not_before: at(parsed.validity().not_before.timestamp()),
            not_after: at(parsed.validity().not_after.timestamp()),
        };
        let subject = parsed.subject().to_string();
        let is_ca = parsed.is_ca();
        let usages = parsed.extended_key_usage().map_err(|error| error.to_string())?;
        let is_servers = usages.is_none_or(|usages| usages.value.any || usages.value.server_auth);
        let public_key = parsed.public_key().subject_public_key.data.to_vec();
        Ok(Self { der, validity, subject, is_ca, is_servers, public_key })
    }

    /// Every certificate in a PEM text, in order. Text between the blocks and blocks of other
    /// kinds are skipped.
    ///
    /// # Errors
    /// What is wrong with the first block that cannot be read, as text.
    pub fn all_from_pem(pem: &[u8]) -> Result<Vec<Self>, String> {
        CertificateDer::pem_slice_iter(pem)
            .map(|block| Self::from_der(block.map_err(|error| error.to_string())?))
            .collect()
    }

    /// Every certificate in a PEM text that can be read, as Go's `x509.CertPool.AppendCertsFromPEM`
    /// does it: what cannot be read is skipped.
    pub fn readable_from_pem(pem: &[u8]) -> Vec<Self> {
        CertificateDer::pem_slice_iter(pem).filter_map(|block| Self::from_der(block.ok()?).ok()).collect()
    }

    /// Whether a caller that trusts this certificate accepts any server by it at some time: those that it signed, where
    /// it is an authority, or else the one that serves this very certificate.
    pub fn can_anchor(&self) -> bool {
        self.is_ca || self.is_servers
    }

    /// Whether a caller that trusts this certificate accepts any server by it at `now`.
    pub fn anchors(&self, now: Timestamp) -> bool {
        self.can_anchor() && self.validity.contains(now)
    }

    /// The DER bytes.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The PEM block, with LF line ends.
    pub fn to_pem(&self) -> String {
        encode_pem(&pem::Pem::new("CERTIFICATE", self.der.to_vec()))
    }
}

/// One PEM block with LF line ends on every platform, so that the same certificate is the same
/// bytes everywhere.
fn encode_pem(block: &pem::Pem) -> String {
    pem::encode_config(block, pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF))
}
