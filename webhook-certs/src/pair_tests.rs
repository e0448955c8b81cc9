//! Every fault that files can have, and the text that a person reads about it.

use jiff::SignedDuration;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::*;
use crate::ca::{Ca, set_validity};

const NAME: &str = "w.ns.svc";
const DAY: SignedDuration = SignedDuration::from_hours(24);

pub(crate) fn day_one() -> Timestamp {
    "2026-03-01T10:00:00Z".parse().unwrap()
}

pub(crate) fn authority() -> Ca {
    Ca::generate("somebody's", day_one()).unwrap()
}

/// Files of a new leaf for the name, valid from the first day for ten days.
pub(crate) fn files(ca: &Ca, name: &str) -> Files {
    files_from(ca, name, day_one())
}

/// Files of a new leaf for the name, valid from this moment for ten days.
pub(crate) fn files_from(ca: &Ca, name: &str, not_before: Timestamp) -> Files {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    set_validity(&mut params, Validity { not_before, not_after: not_before + 10 * DAY });
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, ca.issuer()).unwrap();
    Files {
        certificate: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
        authorities: ca.certificate().to_pem().into_bytes(),
    }
}

/// A certificate that signed itself, without usages, for the name from this moment for ten days.
pub(crate) fn self_signed(name: &str, not_before: Timestamp) -> rcgen::Certificate {
    self_signed_by(&KeyPair::generate().unwrap(), name, not_before, |_| {})
}

/// The same with this key and more.
fn self_signed_by(
    key: &KeyPair,
    name: &str,
    not_before: Timestamp,
    change: impl FnOnce(&mut CertificateParams),
) -> rcgen::Certificate {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    set_validity(&mut params, Validity { not_before, not_after: not_before + 10 * DAY });
    change(&mut params);
    params.self_signed(key).unwrap()
}

/// A certificate that nobody takes for a server's or an authority's.
pub(crate) fn certificate_of_a_client() -> Certificate {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "a client");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    Certificate::from_der(certificate.der().clone()).unwrap()
}

fn parse(files: &Files, now: Timestamp) -> Result<Pair, PairError> {
    Pair::parse(files, &[NAME.to_owned()], now)
}

#[test]
fn a_good_pair_is_served_as_it_is() {
    let files = files(&authority(), NAME);
    let pair = parse(&files, day_one() + DAY).unwrap();
    assert_eq!(pair.validity().not_after, day_one() + 10 * DAY);
    assert_eq!(pair.chain().len(), 1);
}

#[test]
fn a_pair_that_signed_itself_is_its_own_authority() {
    for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        let key = KeyPair::generate().unwrap();
        let certificate = self_signed_by(&key, NAME, day_one(), |params| params.is_ca = is_ca);
        let pem = certificate.pem().into_bytes();
        let files = Files { certificate: pem.clone(), key: key.serialize_pem().into_bytes(), authorities: pem };
        parse(&files, day_one()).unwrap_or_else(|error| panic!("{is_ca:?}: {error}"));
    }
}

#[test]
fn a_leaf_leads_to_its_authority_by_intermediates_that_follow_it() {
    let (root, intermediate) = (rcgen_authority("root", 100, None), KeyPair::generate().unwrap());
    let between = rcgen_authority("between", 100, Some((&root, intermediate)));
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    set_validity(&mut params, Validity { not_before: day_one(), not_after: day_one() + 10 * DAY });
    let leaf = params.signed_by(&key, &between.1).unwrap().pem();
    let files = |certificate: String| Files {
        certificate: certificate.into_bytes(),
        key: key.serialize_pem().into_bytes(),
        authorities: root.0.clone().into_bytes(),
    };
    assert_eq!(parse(&files(format!("{leaf}{}", between.0)), day_one()).unwrap().chain().len(), 2);
    let error = parse(&files(leaf), day_one()).unwrap_err();
    assert!(matches!(error, PairError::Untrusted(_)), "{error}");
}

type Authority = (String, rcgen::Issuer<'static, KeyPair>);

/// An authority that may sign others for so many days, self-signed or signed by another one with this key.
fn rcgen_authority(name: &str, days: i32, by: Option<(&Authority, KeyPair)>) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    set_validity(&mut params, Validity { not_before: day_one(), not_after: day_one() + days * DAY });
    match by {
        None => {
            let key = KeyPair::generate().unwrap();
            (params.self_signed(&key).unwrap().pem(), rcgen::Issuer::new(params, key))
        }
        Some((issuer, key)) => (params.signed_by(&key, &issuer.1).unwrap().pem(), rcgen::Issuer::new(params, key)),
    }
}

#[test]
fn a_fault_of_the_chain_is_told_in_the_same_words_as_time_goes_by() {
    let root = rcgen_authority("root", 100, None);
    let between = rcgen_authority("between", 5, Some((&root, KeyPair::generate().unwrap())));
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    set_validity(&mut params, Validity { not_before: day_one(), not_after: day_one() + 10 * DAY });
    let leaf = params.signed_by(&key, &between.1).unwrap().pem();
    let files = Files {
        certificate: format!("{leaf}{}", between.0).into_bytes(),
        key: key.serialize_pem().into_bytes(),
        authorities: root.0.into_bytes(),
    };
    parse(&files, day_one()).unwrap();
    let over = |seconds| parse(&files, day_one() + 6 * DAY + SignedDuration::from_secs(seconds)).unwrap_err();
    assert_eq!(over(0), over(10));
    assert!(over(0).to_string().contains("of its chain expired at 2026-03-06T10:00:00Z"), "{}", over(0));
}

#[test]
fn every_fault_names_the_file_and_the_remedy() {
    let (ours, other) = (authority(), authority());
    let good = files(&ours, NAME);
    let cut = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = good.clone();
        change(&mut files);
        files
    };
    let foreign = files(&other, NAME);
    let ca_pem = |ca: &Ca| ca.certificate().to_pem().into_bytes();
    let table: Vec<(&str, Files, Timestamp, &str)> = vec![
        ("no certificate", with(&|it| it.certificate.clear()), day_one(), "no CERTIFICATE block in it"),
        (
            "half a certificate",
            with(&|it| it.certificate = cut(&it.certificate)),
            day_one(),
            "tls.crt does not hold PEM",
        ),
        ("no key", with(&|it| it.key.clear()), day_one(), "tls.key does not hold a PEM private key"),
        ("half a key", with(&|it| it.key = cut(&it.key)), day_one(), "tls.key does not hold a PEM private key"),
        (
            "a key that is a certificate",
            with(&|it| it.key = it.certificate.clone()),
            day_one(),
            "tls.key does not hold",
        ),
        (
            "another's key",
            with(&|it| it.key = foreign.key.clone()),
            day_one(),
            "tls.key does not belong to the certificate",
        ),
        ("another name", files(&ours, "x.ns.svc"), day_one(), "is not for w.ns.svc; issue one with that DNS name"),
        (
            "an hour early",
            good.clone(),
            day_one() - SignedDuration::from_hours(1),
            "is not valid now but from 2026-03-01T10:00:00Z",
        ),
        ("a day late", good.clone(), day_one() + 11 * DAY, "to 2026-03-11T10:00:00Z; renew it"),
        (
            "another authority",
            with(&|it| it.authorities = ca_pem(&other)),
            day_one(),
            "does not lead to an authority in ca.crt",
        ),
        ("no authority", with(&|it| it.authorities.clear()), day_one(), "ca.crt is missing or empty"),
        (
            "no authority's certificate",
            with(&|it| it.authorities = b"garbage".to_vec()),
            day_one(),
            "does not lead to an authority in ca.crt",
        ),
    ];
    for (name, files, now, expected) in table {
        let error = parse(&files, now).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    // Every name is one that the API server may call by.
    let names = [NAME.to_owned(), "w.other.svc".to_owned()];
    let error = Pair::parse(&good, &names, day_one()).unwrap_err();
    assert!(matches!(&error, PairError::NotForName { name, .. } if name == "w.other.svc"), "{error}");
}
