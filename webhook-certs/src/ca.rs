//! One certificate authority: a self-signed certificate and its key.
//!
//! Each authority has a key and a name of its own. A rotation that kept either would make two
//! authorities indistinguishable to a verifier that looks its issuers up by name and key id, which
//! Go's does.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};

use crate::cert::{Certificate, Validity};

/// How long an authority lives. A year, renewed after two thirds, leaves four months for a cluster
/// whose controller does not run or may not write.
pub const CA_LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Bytes of the key's digest that become the subject key id: RFC 7093 section 2 method 1 takes 160
/// bits of SHA-256.
const KEY_ID_BYTES: usize = 20;

/// Key id bytes that go into the common name, enough to tell a cluster's few authorities apart.
const NAME_BYTES: usize = 4;

/// Why a certificate or key could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make {what}: {source}; nothing was changed, the next attempt starts afresh")]
pub struct MakeError {
    /// What was to be made.
    pub(crate) what: &'static str,
    /// The cryptographic library's reason.
    #[source]
    pub(crate) source: rcgen::Error,
}

impl MakeError {
    pub(crate) fn new(what: &'static str) -> impl FnOnce(rcgen::Error) -> Self {
        move |source| Self { what, source }
    }
}

/// An authority that can sign. Cheap to clone.
#[derive(Clone)]
pub struct Ca {
    certificate: Certificate,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

impl fmt::Debug for Ca {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("subject", &self.certificate.subject)
            .field("validity", &self.certificate.validity)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Ca {
    fn eq(&self, other: &Self) -> bool {
        self.certificate == other.certificate
    }
}

impl Eq for Ca {}

impl Ca {
    /// Makes a new authority: P-256, valid from one hour before `now` for [`CA_LIFETIME`], path
    /// length 0. Its common name is `name` and eight hex digits of its key id, so no two are alike.
    pub fn generate(name: &str, now: Timestamp) -> Result<Self, MakeError> {
        let fail = || MakeError::new("a certificate authority");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(fail())?;
        let mut params = CertificateParams::default();
        let mut key_id = params.key_identifier(&key);
        key_id.truncate(KEY_ID_BYTES);
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, format!("{name} {}", hex(&key_id, NAME_BYTES)));
        params.distinguished_name = subject;
        params.key_identifier_method = KeyIdMethod::PreSpecified(key_id);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, Validity::starting(now, CA_LIFETIME));
        let signed = params.self_signed(&key).map_err(fail())?;
        let certificate =
            Certificate::from_der(signed.der().clone()).map_err(|_| fail()(rcgen::Error::CouldNotParseCertificate))?;
        Ok(Self { certificate, issuer: Arc::new(Issuer::new(params, key)) })
    }

    /// Joins a certificate and the key that belongs to it. The caller has checked that it does.
    pub(crate) fn join(certificate: Certificate, key: KeyPair) -> Result<Self, rcgen::Error> {
        let issuer = Issuer::from_ca_cert_der(certificate.der(), key)?;
        Ok(Self { certificate, issuer: Arc::new(issuer) })
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The key as a PKCS#8 PEM block.
    pub(crate) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }
}

/// Puts a validity into the parameters, through the only constructor of the date type that rcgen
/// exports.
pub(crate) fn set_validity(params: &mut CertificateParams, validity: Validity) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |time: Timestamp| {
        // Certificates are made around the present; what lies before the epoch is a clock that was
        // never set, and is served as the epoch.
        epoch + std::time::Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0))
    };
    params.not_before = at(validity.not_before);
    params.not_after = at(validity.not_after);
}

/// The first `count` bytes as lower-case hex.
fn hex(bytes: &[u8], count: usize) -> String {
    use fmt::Write as _;
    bytes.iter().take(count).fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day_one() -> Timestamp {
        "2026-03-01T10:00:00Z".parse().unwrap()
    }

    #[test]
    fn an_authority_is_valid_from_an_hour_ago_for_a_year_and_due_after_two_thirds() {
        let ca = Ca::generate("belay", day_one()).unwrap();
        let validity = ca.certificate().validity;
        assert_eq!(validity.not_before, "2026-03-01T09:00:00Z".parse().unwrap());
        assert_eq!(validity.not_after, "2027-03-01T10:00:00Z".parse().unwrap());
        assert_eq!(validity.renew_at(), "2026-10-30T17:40:00Z".parse().unwrap());
        assert!(ca.certificate().is_ca);
    }

    #[test]
    fn two_authorities_differ_in_name_and_in_key_id() {
        let ids: Vec<(String, Vec<u8>)> = (0..2)
            .map(|_| {
                let ca = Ca::generate("belay", day_one()).unwrap();
                let der = ca.certificate().der().clone();
                let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
                let key_id = parsed
                    .iter_extensions()
                    .find_map(|extension| match extension.parsed_extension() {
                        x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                        _ => None,
                    })
                    .unwrap();
                (ca.certificate().subject.clone(), key_id)
            })
            .collect();
        assert!(ids[0].0.starts_with("CN=belay "), "{}", ids[0].0);
        assert_ne!(ids[0].0, ids[1].0);
        assert_ne!(ids[0].1, ids[1].1);
        assert_eq!(ids[0].1.len(), KEY_ID_BYTES);
    }

    #[test]
    fn debug_output_does_not_show_the_key() {
        let ca = Ca::generate("belay", day_one()).unwrap();
        let key = ca.key_pem();
        let body = key.lines().nth(1).unwrap();
        assert!(!format!("{ca:?}").contains(body));
        assert!(format!("{ca:?}").contains("CN=belay "));
    }
}
