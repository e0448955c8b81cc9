//! A leaf: the short-lived serving certificate that one replica signs for itself and keeps in
//! memory.
//!
//! Nothing is distributed, so nothing can arrive late: a replica that reads the CA Secret has all
//! it needs. A leaf lives a week and is replaced in its fifth day, so a replica that cannot read
//! the Secret for two days goes on serving.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rcgen::string::Ia5String;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, DnsName, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::ca::{Ca, MakeError, set_validity};
use crate::cert::{Certificate, Validity};
use crate::resolver::provider;

/// How long a leaf lives, and therefore how long an authority that stopped signing stays trusted.
pub const LEAF_LIFETIME: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Longest common name that X.520 allows (ub-common-name). Verifiers only read the SANs; a longer
/// name is left out.
const MAX_COMMON_NAME: usize = 64;

/// A replica's place in the window in which leaves are renewed, so that replicas of one Deployment
/// do not all do it in the same second. Deterministic: the same replica has the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter(u16);

impl Jitter {
    /// Renew at exactly two thirds of the life.
    pub const NONE: Self = Self(0);

    /// The most that a renewal comes early, in thousandths of the life: a tenth.
    const WINDOW: u64 = 100;

    /// A place derived from a name, such as the pod's (FNV-1a, 64 bits).
    pub fn of(name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        // Names of one Deployment's pods differ in their last bytes only, which FNV-1a hardly
        // spreads; MurmurHash3's finaliser does.
        let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        Self(((mixed ^ (mixed >> 33)) % Self::WINDOW) as u16)
    }
}

/// What a leaf is to be valid for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafRequest {
    /// DNS names by which API servers call, such as `belay-webhook.belay-system.svc`.
    pub dns_names: Vec<String>,
    /// Addresses by which API servers call, where a configuration names a URL.
    pub ips: Vec<IpAddr>,
    /// This replica's place in the renewal window.
    pub jitter: Jitter,
}

/// Why no leaf was signed.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// There is nothing to be valid for.
    #[error("a serving certificate needs at least one DNS name or address; set certs.dnsNames")]
    NoNames,
    /// A name that no caller could use.
    #[error("{name:?} is not a DNS name; set certs.dnsNames to the names by which the API server calls")]
    BadName {
        /// The refused name.
        name: String,
    },
    /// The authority is outside its own validity.
    #[error(
        "the certificate authority {subject:?} is not valid now but from {not_before} to {not_after}; check this \
         machine's clock and that a controller runs, which makes a new authority"
    )]
    SignerNotValid {
        /// The authority's subject.
        subject: String,
        /// Start of its validity.
        not_before: Timestamp,
        /// End of its validity.
        not_after: Timestamp,
    },
    /// Making the key or the signature failed.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The TLS library refuses what was made.
    #[error("the TLS library refuses the new serving certificate: {0}; this is a defect, report it")]
    Refused(#[from] rustls::Error),
}

/// A signed leaf with its key. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Leaf {
    certified: Arc<CertifiedKey>,
    signer: Certificate,
    validity: Validity,
    renew_at: Timestamp,
}

impl Leaf {
    /// Signs a new leaf with a new key: P-256, valid from one hour before `now` for
    /// [`LEAF_LIFETIME`] but never longer than its authority, for TLS servers only.
    pub fn sign(ca: &Ca, request: &LeafRequest, now: Timestamp) -> Result<Self, LeafError> {
        let authority = ca.certificate().validity;
        if !authority.contains(now) {
            return Err(LeafError::SignerNotValid {
                subject: ca.certificate().subject.clone(),
                not_before: authority.not_before,
                not_after: authority.not_after,
            });
        }
        let mut validity = Validity::starting(now, LEAF_LIFETIME);
        validity.not_after = validity.not_after.min(authority.not_after);

        let fail = || MakeError::new("a serving certificate");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(fail())?;
        let mut params = params(request)?;
        set_validity(&mut params, validity);
        let certificate = params.signed_by(&key, ca.issuer()).map_err(fail())?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let certified = CertifiedKey::from_der(vec![certificate.der().clone()], private, provider())?;
        Ok(Self {
            certified: Arc::new(certified),
            signer: ca.certificate().clone(),
            renew_at: renew_at(validity, request.jitter),
            validity,
        })
    }

    /// The certificates that are sent to a client, the leaf first. The authority is not among
    /// them: clients hold it already, or do not trust it.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// When it is valid.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// From when on a new leaf should be signed.
    pub fn renew_at(&self) -> Timestamp {
        self.renew_at
    }

    /// The authority that signed it.
    pub fn signer(&self) -> &Certificate {
        &self.signer
    }

    /// What the TLS server uses.
    pub fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

fn params(request: &LeafRequest) -> Result<CertificateParams, LeafError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    for name in &request.dns_names {
        let bad = || LeafError::BadName { name: name.clone() };
        DnsName::try_from(name.as_str()).map_err(|_| bad())?;
        let san = Ia5String::try_from(name.as_str()).map_err(|_| bad())?;
        params.subject_alt_names.push(SanType::DnsName(san));
    }
    params.subject_alt_names.extend(request.ips.iter().copied().map(SanType::IpAddress));
    if params.subject_alt_names.is_empty() {
        return Err(LeafError::NoNames);
    }
    if let Some(name) = request.dns_names.first().filter(|name| name.len() <= MAX_COMMON_NAME) {
        subject.push(DnType::CommonName, name.as_str());
    }
    params.distinguished_name = subject;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Two thirds of the life, less the jitter.
fn renew_at(validity: Validity, jitter: Jitter) -> Timestamp {
    validity.at_share(2000 - 3 * i64::from(jitter.0), 3000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::verify;

    fn day_one() -> Timestamp {
        "2026-03-01T10:00:00Z".parse().unwrap()
    }

    fn request() -> LeafRequest {
        LeafRequest {
            dns_names: vec!["w.ns.svc".into(), "w.ns.svc.cluster.local".into()],
            ips: vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
            jitter: Jitter::NONE,
        }
    }

    #[test]
    fn a_leaf_is_valid_from_an_hour_ago_for_a_week_and_renewed_after_two_thirds() {
        let ca = Ca::generate("belay", day_one()).unwrap();
        let leaf = Leaf::sign(&ca, &request(), day_one()).unwrap();
        assert_eq!(leaf.validity().not_before, "2026-03-01T09:00:00Z".parse().unwrap());
        assert_eq!(leaf.validity().not_after, "2026-03-08T10:00:00Z".parse().unwrap());
        assert_eq!(leaf.renew_at(), "2026-03-06T01:40:00Z".parse().unwrap());
    }

    #[test]
    fn every_name_and_address_asked_for_is_accepted_and_no_other() {
        let ca = Ca::generate("belay", day_one()).unwrap();
        let leaf = Leaf::sign(&ca, &request(), day_one()).unwrap();
        let bundle = ca.certificate().to_pem();
        for name in ["w.ns.svc", "w.ns.svc.cluster.local", "127.0.0.1", "::1"] {
            verify(leaf.chain(), bundle.as_bytes(), name, day_one()).unwrap();
        }
        for name in ["other.ns.svc", "127.0.0.2"] {
            verify(leaf.chain(), bundle.as_bytes(), name, day_one()).unwrap_err();
        }
    }

    #[test]
    fn a_leaf_never_outlives_its_authority_and_an_expired_authority_signs_nothing() {
        let ca = Ca::generate("belay", day_one()).unwrap();
        let end = ca.certificate().validity.not_after;
        let near = end.checked_sub(SignedDuration::from_hours(24)).unwrap();
        let leaf = Leaf::sign(&ca, &request(), near).unwrap();
        assert_eq!(leaf.validity().not_after, end);
        assert!(leaf.renew_at() > near && leaf.renew_at() < end);

        let past = end.checked_add(SignedDuration::from_secs(1)).unwrap();
        let error = Leaf::sign(&ca, &request(), past).unwrap_err();
        assert!(matches!(error, LeafError::SignerNotValid { .. }), "{error}");
    }

    #[test]
    fn jitter_only_brings_a_renewal_forward_by_less_than_a_tenth_and_is_the_same_every_time() {
        let ca = Ca::generate("belay", day_one()).unwrap();
        let plain = Leaf::sign(&ca, &request(), day_one()).unwrap();
        let tenth = plain.validity().not_after.duration_since(plain.validity().not_before) / 10;
        let mut places = std::collections::BTreeSet::new();
        for pod in 0..50 {
            let jitter = Jitter::of(&format!("belay-webhook-7d9f8b6c5-{pod:05x}"));
            assert_eq!(jitter, Jitter::of(&format!("belay-webhook-7d9f8b6c5-{pod:05x}")));
            let leaf = Leaf::sign(&ca, &LeafRequest { jitter, ..request() }, day_one()).unwrap();
            let early = plain.renew_at().duration_since(leaf.renew_at());
            assert!(early >= SignedDuration::ZERO && early < tenth, "{early}");
            places.insert(jitter.0);
        }
        assert!(places.len() > 25, "50 pods share {} places", places.len());
    }

    #[test]
    fn names_that_no_caller_could_use_are_refused_by_name() {
        let ca = Ca::generate("belay", day_one()).unwrap();
        let with = |dns_names: &[&str]| LeafRequest {
            dns_names: dns_names.iter().map(ToString::to_string).collect(),
            ips: vec![],
            jitter: Jitter::NONE,
        };
        for bad in ["", "w ns svc", "http://w.ns.svc", "w.ns.svc:443"] {
            let error = Leaf::sign(&ca, &with(&["w.ns.svc", bad]), day_one()).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{bad:?} is not a DNS name")), "{error}");
        }
        let error = Leaf::sign(&ca, &with(&[]), day_one()).unwrap_err();
        assert!(matches!(error, LeafError::NoNames), "{error}");
    }

    #[test]
    fn a_long_name_is_served_without_a_common_name() {
        let ca = Ca::generate("belay", day_one()).unwrap();
        let long = format!("{}.{}.svc", "w".repeat(60), "n".repeat(60));
        let request = LeafRequest { dns_names: vec![long.clone()], ips: vec![], jitter: Jitter::NONE };
        let leaf = Leaf::sign(&ca, &request, day_one()).unwrap();
        verify(leaf.chain(), ca.certificate().to_pem().as_bytes(), &long, day_one()).unwrap();
    }
}
