//! A certificate and its key from files, as cert-manager or a person makes them.
//!
//! Files come from elsewhere and are half written, mixed up and out of date at times. A pair is taken whole or not at
//! all, after every check that a caller would make: the key is the certificate's, each name is one of the certificate's,
//! the chain leads to the authority beside it, and today lies within its validity.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::cert::{Certificate, Validity};
use crate::resolver::provider;
use crate::verify::{VerifyError, verify};

/// The files of a `kubernetes.io/tls` Secret, as they were read at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// `tls.crt`: the leaf, then the intermediates.
    pub certificate: Vec<u8>,
    /// `tls.key`.
    pub key: Vec<u8>,
    /// `ca.crt`: what callers are to trust; empty where there is no such file.
    pub authorities: Vec<u8>,
}

/// Why a pair is not taken. Each text names the file, the fault and the remedy; it does not change with time, so that it
/// need not be told again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The certificate cannot be read.
    #[error("tls.crt does not hold PEM certificates ({detail}); put the leaf there, then its intermediates")]
    NotCertificates {
        /// The parser's reason.
        detail: String,
    },
    /// The private key cannot be read.
    #[error("tls.key does not hold a PEM private key ({detail}); put the key of the leaf there, unencrypted")]
    NotAPrivateKey {
        /// The parser's reason.
        detail: String,
    },
    /// The private key is of another certificate.
    #[error("tls.key does not belong to the certificate {subject:?} in tls.crt; write both of one pair")]
    KeyMismatch {
        /// The certificate's subject.
        subject: String,
    },
    /// The TLS library takes no such certificate or key.
    #[error("the TLS library refuses tls.crt and tls.key: {reason}; use a key of RSA (2048 bits or more) or ECDSA")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// The API server could not call by this name.
    #[error("the certificate {subject:?} in tls.crt is not for {name}; issue one with that DNS name (certs.dnsNames)")]
    NotForName {
        /// The certificate's subject.
        subject: String,
        /// The name that it lacks.
        name: String,
    },
    /// Today is not within its validity.
    #[error(
        "the certificate {subject:?} in tls.crt is not valid now but from {not_before} to {not_after}; renew it, or \
         check this machine's clock"
    )]
    NotValid {
        /// The certificate's subject.
        subject: String,
        /// Start of its validity.
        not_before: Timestamp,
        /// End of its validity.
        not_after: Timestamp,
    },
    /// Nobody could be told whom to trust. An API server asks the authorities of its own machine only where a `caBundle`
    /// is empty, which is what all of them are at the beginning, too: it says nothing of whose certificate is meant.
    #[error(
        "ca.crt is missing or empty, so nothing says whom API servers are to trust; put the authority of tls.crt there, \
         also where it is a public one"
    )]
    NoAuthorities,
    /// It does not lead to the authority beside it.
    #[error("tls.crt does not lead to an authority in ca.crt ({0}); put the authority that signed it there")]
    Untrusted(VerifyError),
}

/// A pair that was found good. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pair {
    certified: Arc<CertifiedKey>,
    validity: Validity,
    subject: String,
}

impl Pair {
    /// Reads a pair that is to be valid for all of these names at `now`.
    pub fn parse(files: &Files, names: &[String], now: Timestamp) -> Result<Self, PairError> {
        let not_certificates = |detail: String| PairError::NotCertificates { detail };
        let chain = CertificateDer::pem_slice_iter(&files.certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| not_certificates(error.to_string()))?;
        let leaf = chain.first().ok_or_else(|| not_certificates("no CERTIFICATE block in it".to_owned()))?;
        let Certificate { validity, subject, .. } = Certificate::from_der(leaf.clone()).map_err(not_certificates)?;
        let key = PrivateKeyDer::from_pem_slice(&files.key)
            .map_err(|error| PairError::NotAPrivateKey { detail: error.to_string() })?;
        let parsed = ParsedCertificate::try_from(leaf).map_err(|error| not_certificates(error.to_string()))?;
        for name in names {
            let known =
                ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&parsed, &name).is_ok());
            if !known {
                return Err(PairError::NotForName { subject, name: name.clone() });
            }
        }
        if !validity.contains(now) {
            let Validity { not_before, not_after } = validity;
            return Err(PairError::NotValid { subject, not_before, not_after });
        }
        if files.authorities.is_empty() {
            return Err(PairError::NoAuthorities);
        }
        if let Some(name) = names.first() {
            verify(&chain, &files.authorities, name, now).map_err(PairError::Untrusted)?;
        }
        let certified = CertifiedKey::from_der(chain, key, provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => PairError::KeyMismatch { subject: subject.clone() },
            other => PairError::Refused { reason: other.to_string() },
        })?;
        Ok(Self { certified: Arc::new(certified), validity, subject })
    }

    /// The certificates that are sent to a client, the leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// When the leaf is valid.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// The leaf's subject as text, for messages.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// What the TLS server uses.
    pub fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

#[cfg(test)]
#[path = "pair_tests.rs"]
pub(crate) mod tests;
