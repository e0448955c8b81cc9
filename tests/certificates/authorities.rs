//! Authorities of any age and of anybody's, as nobody can wait for one to grow old.

use anyhow::Context as _;
use belay_e2e::clock;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use webhook_certs::ca::CA_LIFETIME;
use webhook_certs::secret::SecretData;
use webhook_certs::{CaSecret, Step};

use crate::stage::NAME;

/// How long old authorities are still good for. A leaf begins an hour before it is signed and never outlives its
/// authority, so with less than half an hour left two thirds of a leaf's life are over as soon as it is signed: a replica
/// renews it whenever it looks.
const LEFT: SignedDuration = SignedDuration::from_mins(29);

/// An authority that Belay has nothing to do with.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one that signs itself, valid for any time.
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        Self::with(name, |_| {})
    }

    fn with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        change(&mut params);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Its certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Data of a Secret with a new pair for the webhook.
    pub(crate) fn pair(&self) -> anyhow::Result<SecretData> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![NAME.to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok(data(&params.signed_by(&key, &self.0)?.pem(), &key, &self.pem()))
    }

    /// Data of a Secret with the authority itself.
    pub(crate) fn itself(&self) -> SecretData {
        data(&self.pem(), self.0.key(), &self.pem())
    }
}

/// Data of a Secret with a new pair for the webhook that signed itself, as cert-manager's self-signed issuers make one. One
/// that says that it is an authority, as by `openssl req -x509`, Go accepts and the client of these tests does not.
pub(crate) fn self_signed() -> anyhow::Result<SecretData> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![NAME.to_owned()])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.self_signed(&key)?.pem();
    Ok(data(&certificate, &key, &certificate))
}

fn data(certificate: &str, key: &KeyPair, authority: &str) -> SecretData {
    let values =
        [("ca.crt", authority.to_owned()), ("tls.crt", certificate.to_owned()), ("tls.key", key.serialize_pem())];
    values.into_iter().map(|(name, value)| (name.to_owned(), value.into_bytes())).collect()
}

/// A CA Secret whose authority lives for an hour, half of which is over: it is not due yet, and its leaves are renewed
/// again and again.
pub(crate) fn of_an_hour() -> anyhow::Result<CaSecret> {
    let end = clock::now() + LEFT;
    let calendar = |at: Timestamp| {
        let seconds = u64::try_from(at.as_second()).unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds)
    };
    let authority = Authority::with("an hour's authority", |params| {
        (params.not_before, params.not_after) = (calendar(end - SignedDuration::from_hours(1)), calendar(end));
    })?;
    Ok(CaSecret::parse(&authority.itself())?)
}

/// A Secret as a backup of nearly a year ago holds it: its authority is due for a rotation at once, and knows nothing of
/// the present one.
pub(crate) fn of_last_year() -> anyhow::Result<CaSecret> {
    let made = clock::now() + LEFT - CA_LIFETIME;
    let step = Step::Create { keep: Vec::new() };
    step.apply(None, "belay-ca", made)?.context("a first Secret is written")
}
