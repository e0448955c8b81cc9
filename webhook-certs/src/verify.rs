//! Whether an API server would accept what is served: readiness asks this, and a replica asks it
//! before it switches to a new leaf.
//!
//! The caller of a webhook is Go's `crypto/tls`. Where it and rustls differ, this follows Go: the
//! bundle is read as `x509.CertPool.AppendCertsFromPEM` reads it (what cannot be read is skipped),
//! an authority outside its own validity, or one that is no authority, anchors nothing (Go's
//! `Certificate.isValid` checks roots too; webpki does not), and a leaf that stands in the bundle
//! itself needs no authority and may be one (Go's `Certificate.Verify`: `opts.Roots.contains(c)`;
//! webpki knows no such leaf). That is how self-signed certificates are trusted.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::cert::Certificate;
use crate::resolver::provider;

/// Why a caller would not accept the certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The bundle holds no certificate at all.
    #[error("its caBundle holds no certificate yet; the controller, or cert-manager's cainjector, fills it in")]
    NoCertificate,
    /// The bundle holds text, but no usable authority.
    #[error(
        "its caBundle holds no certificate authority that is valid now; the controller, or cert-manager's cainjector, repairs it"
    )]
    NoAuthority,
    /// The name cannot be asked for.
    #[error("{name:?} is not a DNS name or address; set certs.dnsNames")]
    BadName {
        /// The refused name.
        name: String,
    },
    /// There is no leaf to check.
    #[error("no serving certificate was signed yet")]
    NoLeaf,
    /// The chain does not verify. The text does not change with time.
    #[error("the serving certificate does not verify against its caBundle: {reason}")]
    Refused {
        /// The reason, mostly in rustls' words.
        reason: String,
    },
}

/// Whether `chain` (the leaf first) verifies for `name` (a DNS name or an address) at `now` for a
/// client that trusts exactly `ca_bundle` (PEM).
pub fn verify(chain: &[CertificateDer<'_>], ca_bundle: &[u8], name: &str, now: Timestamp) -> Result<(), VerifyError> {
    let (leaf, intermediates) = chain.split_first().ok_or(VerifyError::NoLeaf)?;
    let server_name = ServerName::try_from(name).map_err(|_| VerifyError::BadName { name: name.to_owned() })?;
    let certificates = Certificate::readable_from_pem(ca_bundle);
    if certificates.is_empty() {
        return Err(VerifyError::NoCertificate);
    }
    if let Some(itself) = certificates.iter().find(|certificate| certificate.der() == leaf) {
        return verify_itself(itself, &server_name, now);
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(
        certificates
            .iter()
            .filter(|certificate| certificate.is_ca && certificate.validity.contains(now))
            .map(|certificate| certificate.der().clone()),
    );
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider()))
        .build()
        .map_err(|_| VerifyError::NoAuthority)?;
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    verifier
        .verify_server_cert(leaf, intermediates, &server_name, &[], at)
        .map(drop)
        .map_err(|error| VerifyError::Refused { reason: without_the_time(&error) })
}

/// rustls' reason, but for the moment at which it was asked: what does not change is told in the same words.
fn without_the_time(error: &rustls::Error) -> String {
    let at = |time: &UnixTime| Timestamp::from_second(time.as_secs().cast_signed()).unwrap_or(Timestamp::MAX);
    match error {
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            format!("a certificate of its chain expired at {}", at(not_after))
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
            format!("a certificate of its chain is not valid before {}", at(not_before))
        }
        other => other.to_string(),
    }
}

/// Whether a leaf that is trusted itself is accepted: it is valid now, for the name and for servers.
fn verify_itself(leaf: &Certificate, name: &ServerName<'_>, now: Timestamp) -> Result<(), VerifyError> {
    let refused = |reason: String| Err(VerifyError::Refused { reason });
    if !leaf.validity.contains(now) {
        return refused(format!("it is not valid now but {}", leaf.validity));
    }
    if !leaf.is_servers {
        return refused("its extended key usages do not name servers".to_owned());
    }
    ParsedCertificate::try_from(leaf.der())
        .and_then(|parsed| verify_server_name(&parsed, name))
        .or_else(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair};

    use super::*;
    use crate::ca::{CA_LIFETIME, Ca, set_validity};
    use crate::cert::Validity;
    use crate::leaf::{Jitter, LEAF_LIFETIME, Leaf, LeafRequest};

    const NAME: &str = "w.ns.svc";

    fn day_one() -> Timestamp {
        "2026-03-01T10:00:00Z".parse().unwrap()
    }

    fn ca(now: Timestamp) -> Ca {
        Ca::generate("belay", now).unwrap()
    }

    /// A certificate that signed itself, from the first day for a week.
    fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        set_validity(&mut params, Validity { not_before: day_one(), not_after: day_one() + LEAF_LIFETIME });
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    }

    fn leaf(ca: &Ca, now: Timestamp) -> Leaf {
        let request = LeafRequest { dns_names: vec![NAME.into()], ips: vec![], jitter: Jitter::NONE };
        Leaf::sign(ca, &request, now).unwrap()
    }

    #[test]
    fn a_leaf_verifies_against_any_bundle_that_holds_its_authority() {
        let (ours, other) = (ca(day_one()), ca(day_one()));
        let leaf = leaf(&ours, day_one());
        let (ours, other) = (ours.certificate().to_pem(), other.certificate().to_pem());
        let damaged = other.replacen('M', "!", 1);
        for bundle in [
            ours.clone(),
            format!("{other}{ours}"),
            format!("{ours}{other}"),
            format!("# a comment\n{}", ours.replace('\n', "\r\n")),
            format!("{damaged}{ours}"),
        ] {
            verify(leaf.chain(), bundle.as_bytes(), NAME, day_one()).expect(&bundle);
        }
    }

    #[test]
    fn what_a_caller_would_refuse_is_refused_with_the_reason() {
        let (ours, other) = (ca(day_one()), ca(day_one()));
        let leaf = leaf(&ours, day_one());
        let refused = |bundle: &str, name: &str, now| verify(leaf.chain(), bundle.as_bytes(), name, now).unwrap_err();
        let (ours, other) = (ours.certificate().to_pem(), other.certificate().to_pem());
        let after = |by: SignedDuration| day_one().checked_add(by).unwrap();
        let second = SignedDuration::from_secs(1);

        assert_eq!(refused("", NAME, day_one()), VerifyError::NoCertificate);
        assert_eq!(refused("Cg==", NAME, day_one()), VerifyError::NoCertificate);
        let another_leaf = Certificate::from_der(self_signed(|_| {})).unwrap().to_pem();
        assert_eq!(refused(&another_leaf, NAME, day_one()), VerifyError::NoAuthority);
        assert_eq!(refused(&ours, NAME, after(CA_LIFETIME + second)), VerifyError::NoAuthority);
        let text = |error: VerifyError| error.to_string();
        assert!(text(refused(&other, NAME, day_one())).contains("UnknownIssuer"));
        assert!(text(refused(&ours, "x.ns.svc", day_one())).contains("not valid for name"));
        assert!(text(refused(&ours, NAME, after(LEAF_LIFETIME + second))).contains("expired"));
        assert!(matches!(refused(&ours, "a b", day_one()), VerifyError::BadName { .. }));
        assert_eq!(verify(&[], ours.as_bytes(), NAME, day_one()), Err(VerifyError::NoLeaf));
    }

    #[test]
    fn a_leaf_that_is_trusted_itself_needs_no_authority_and_may_be_one() {
        let usages = |usages: &[ExtendedKeyUsagePurpose]| {
            let usages = usages.to_vec();
            self_signed(|params| params.extended_key_usages = usages)
        };
        // As `openssl req -x509` makes it.
        let authority = || self_signed(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
        let (servers, clients) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        let (other, second) = (ca(day_one()).certificate().to_pem(), SignedDuration::from_secs(1));
        let over = day_one() + LEAF_LIFETIME + second;
        for (what, leaf, name, now, expected) in [
            ("without usages", usages(&[]), NAME, day_one(), Ok(())),
            ("for servers among others", usages(&[clients.clone(), servers]), NAME, day_one(), Ok(())),
            ("for anything", usages(&[ExtendedKeyUsagePurpose::Any]), NAME, day_one(), Ok(())),
            ("an authority", authority(), NAME, day_one(), Ok(())),
            ("signed by another", leaf(&ca(day_one()), day_one()).chain()[0].clone(), NAME, day_one(), Ok(())),
            ("for clients", usages(&[clients]), NAME, day_one(), Err("usages do not name servers")),
            ("too early", authority(), NAME, day_one() - second, Err("not valid now but from 2026-03-01T10:00:00Z")),
            ("too late", authority(), NAME, over, Err("to 2026-03-08T10:00:00Z")),
            ("for another name", authority(), "x.ns.svc", day_one(), Err("not valid for name")),
        ] {
            let itself = Certificate::from_der(leaf.clone()).unwrap().to_pem();
            for bundle in [itself.clone(), format!("{other}{itself}")] {
                let found = verify(std::slice::from_ref(&leaf), bundle.as_bytes(), name, now);
                match (found, expected) {
                    (Ok(()), Ok(())) => {}
                    (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{what}: {error}"),
                    (found, _) => panic!("{what}: {found:?}"),
                }
            }
        }
    }
}
