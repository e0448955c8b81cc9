//! Authorities of any age, as nobody can wait for one to grow old.

use anyhow::Context as _;
use belay_e2e::clock;
use jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use webhook_certs::ca::CA_LIFETIME;
use webhook_certs::secret::SecretData;
use webhook_certs::{CaSecret, Step};

/// How long old authorities are still good for. A leaf begins an hour before it is signed and never outlives its
/// authority, so with less than half an hour left two thirds of a leaf's life are over as soon as it is signed: a replica
/// renews it whenever it looks.
const LEFT: SignedDuration = SignedDuration::from_mins(29);

/// Data of a CA Secret whose authority lives for an hour, half of which is over: it is not due yet, and its leaves are
/// renewed again and again.
pub(crate) fn of_an_hour() -> anyhow::Result<CaSecret> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "an hour's authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let end = clock::now() + LEFT;
    let calendar = |at: Timestamp| {
        let seconds = u64::try_from(at.as_second()).unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds)
    };
    (params.not_before, params.not_after) = (calendar(end - SignedDuration::from_hours(1)), calendar(end));
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let pem = authority.pem().into_bytes();
    let data = SecretData::from([
        ("ca.crt".to_owned(), pem.clone()),
        ("tls.crt".to_owned(), pem),
        ("tls.key".to_owned(), authority.key().serialize_pem().into_bytes()),
    ]);
    Ok(CaSecret::parse(&data)?)
}

/// A Secret as a backup of nearly a year ago holds it: its authority is due for a rotation at once, and knows nothing of
/// the present one.
pub(crate) fn of_last_year() -> anyhow::Result<CaSecret> {
    let made = clock::now() + LEFT - CA_LIFETIME;
    let step = Step::Create { keep: Vec::new() };
    step.apply(None, "belay-ca", made)?.context("a first Secret is written")
}
