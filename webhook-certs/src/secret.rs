//! The CA Secret: what it holds, how it is read and written.
//!
//! One Secret is the only durable state of a rotation. Its data map holds
//!
//! | key | what |
//! |---|---|
//! | `ca.crt` | the trusted bundle, PEM: the active authority, the next one, retiring ones |
//! | `tls.crt`, `tls.key` | the active signer |
//! | `next.crt`, `next.key` | the authority that is published and does not sign yet |
//! | `observed-at` | since when every live configuration was seen to hold the whole bundle, with this signer |
//!
//! Times are RFC 3339. Keys of other names are kept as they are. The three first rows have the
//! names of a `kubernetes.io/tls` Secret, so that ordinary tools can show them.
//!
//! People edit Secrets by hand. A damaged one is refused whole, with the key, the fault and the
//! remedy, and never half used: a bundle that lacks the signer would break every call at once.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rcgen::KeyPair;

use crate::ca::Ca;
use crate::cert::Certificate;

/// The data map of a Kubernetes Secret, values already decoded from base64.
pub type SecretData = BTreeMap<String, Vec<u8>>;

const BUNDLE: &str = "ca.crt";
const ACTIVE: (&str, &str) = ("tls.crt", "tls.key");
const NEXT: (&str, &str) = ("next.crt", "next.key");
const OBSERVED_AT: &str = "observed-at";

/// What to do about a damaged Secret. Deleting it is safe, because a Secret that is made anew goes
/// on trusting the authorities that the live configurations trust.
const REMEDY: &str = "restore the Secret from a backup, or delete it: the controller makes a new \
                      one and replicas move over without failing calls";

/// Why a Secret cannot be used. Each text names the key, the fault and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// A required key is absent or empty.
    #[error("the key {key} is missing; {}", REMEDY)]
    Missing {
        /// The absent key.
        key: &'static str,
    },
    /// One half of a pair stands alone.
    #[error("the key {present} is there but {missing} is missing; {}", REMEDY)]
    HalfPair {
        /// The key that is there.
        present: &'static str,
        /// The key that is not.
        missing: &'static str,
    },
    /// The value is not a PEM text of X.509 certificates.
    #[error("the key {key} does not hold PEM certificates ({detail}); {}", REMEDY)]
    NotCertificates {
        /// The key with the bad value.
        key: &'static str,
        /// The parser's reason.
        detail: String,
    },
    /// A signer's certificate must be exactly one.
    #[error("the key {key} holds {found} certificates where exactly one belongs; {}", REMEDY)]
    NotOne {
        /// The key with the bad value.
        key: &'static str,
        /// How many certificates it holds.
        found: usize,
    },
    /// A certificate that may not sign others.
    #[error("the certificate {subject:?} in {key} is not a certificate authority; {}", REMEDY)]
    NotAnAuthority {
        /// The key with the bad value.
        key: &'static str,
        /// The certificate's subject.
        subject: String,
    },
    /// The private key cannot be read.
    #[error("the key {key} does not hold a PEM private key ({detail}); {}", REMEDY)]
    NotAPrivateKey {
        /// The key with the bad value.
        key: &'static str,
        /// The parser's reason.
        detail: String,
    },
    /// The private key is not the certificate's.
    #[error("the private key in {key} does not belong to the certificate in {certificate}; {}", REMEDY)]
    KeyMismatch {
        /// Where the private key stands.
        key: &'static str,
        /// Where the certificate stands.
        certificate: &'static str,
    },
    /// The next authority is the active one.
    #[error("next.crt holds the same certificate as tls.crt; {}", REMEDY)]
    NextIsActive,
    /// The bundle lacks a signer.
    #[error("ca.crt does not hold the certificate in {key}, so nobody would trust what it signs; {}", REMEDY)]
    SignerNotTrusted {
        /// Whose certificate is not in the bundle.
        key: &'static str,
    },
    /// A time cannot be read.
    #[error(
        "the key {key} holds {value:?}, which is not an RFC 3339 time; remove the key: the \
         controller then counts from the moment it next looks"
    )]
    NotATime {
        /// The key with the bad value.
        key: &'static str,
        /// What it holds.
        value: String,
    },
}

/// A Secret that was read and found sound, or one that is to be written.
///
/// Always true of a value of this type: the bundle holds the active and the next authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaSecret {
    pub(crate) active: Ca,
    pub(crate) next: Option<Ca>,
    pub(crate) bundle: Vec<Certificate>,
    pub(crate) observed_at: Option<Timestamp>,
    other: SecretData,
}

impl CaSecret {
    /// A first Secret: `active` signs, `kept` (authorities that are trusted already) retires.
    pub(crate) fn first(active: Ca, kept: Vec<Certificate>) -> Self {
        let mut bundle = vec![active.certificate().clone()];
        bundle.extend(kept);
        Self { active, next: None, bundle, observed_at: None, other: SecretData::new() }
    }

    /// Reads a Secret's data map.
    pub fn parse(data: &SecretData) -> Result<Self, SecretError> {
        let bundle = certificates(data, BUNDLE)?.ok_or(SecretError::Missing { key: BUNDLE })?;
        no_other_than(&bundle, BUNDLE, Certificate::can_anchor)?;
        let active = signer(data, ACTIVE)?.ok_or(SecretError::Missing { key: ACTIVE.0 })?;
        let next = signer(data, NEXT)?;
        if next.as_ref() == Some(&active) {
            return Err(SecretError::NextIsActive);
        }
        let signers = [(ACTIVE.0, Some(&active)), (NEXT.0, next.as_ref())];
        for (key, ca) in signers {
            if ca.is_some_and(|ca| !bundle.contains(ca.certificate())) {
                return Err(SecretError::SignerNotTrusted { key });
            }
        }
        let known = [BUNDLE, ACTIVE.0, ACTIVE.1, NEXT.0, NEXT.1, OBSERVED_AT];
        let other = data
            .iter()
            .filter(|(key, _)| !known.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Ok(Self { observed_at: time(data, OBSERVED_AT)?, active, next, bundle, other })
    }

    /// The whole data map, to be written as it is: with `create` where there was no Secret, else
    /// with an update that carries the `resourceVersion` that was read.
    pub fn to_data(&self) -> SecretData {
        let mut data = self.other.clone();
        data.insert(BUNDLE.into(), self.bundle_pem());
        for (keys, ca) in [(ACTIVE, Some(&self.active)), (NEXT, self.next.as_ref())] {
            if let Some(ca) = ca {
                data.insert(keys.0.into(), ca.certificate().to_pem().into_bytes());
                data.insert(keys.1.into(), ca.key_pem().into_bytes());
            }
        }
        if let Some(time) = self.observed_at {
            data.insert(OBSERVED_AT.into(), time.to_string().into_bytes());
        }
        data
    }

    /// The authority that signs leaves now.
    pub fn active(&self) -> &Ca {
        &self.active
    }

    /// The authority that is published and will sign next, if a rotation is under way.
    pub fn next(&self) -> Option<&Ca> {
        self.next.as_ref()
    }

    /// Trusted authorities that sign nothing any more.
    pub fn retiring(&self) -> impl Iterator<Item = &Certificate> {
        self.bundle.iter().filter(|&certificate| !self.is_signer(certificate))
    }

    /// What every live `caBundle` should hold, byte for byte: PEM, LF line ends.
    pub fn bundle_pem(&self) -> Vec<u8> {
        self.bundle.iter().map(Certificate::to_pem).collect::<String>().into_bytes()
    }

    pub(crate) fn is_signer(&self, certificate: &Certificate) -> bool {
        certificate == self.active.certificate()
            || self.next.as_ref().is_some_and(|next| next.certificate() == certificate)
    }
}

/// A present value; an empty one counts as absent, as `kubectl create secret` makes it so easily.
fn value<'a>(data: &'a SecretData, key: &str) -> Option<&'a [u8]> {
    data.get(key).map(Vec::as_slice).filter(|value| !value.is_empty())
}

fn certificates(data: &SecretData, key: &'static str) -> Result<Option<Vec<Certificate>>, SecretError> {
    let Some(pem) = value(data, key) else { return Ok(None) };
    let found = Certificate::all_from_pem(pem).map_err(|detail| SecretError::NotCertificates { key, detail })?;
    if found.is_empty() {
        let detail = "no CERTIFICATE block in it".to_owned();
        return Err(SecretError::NotCertificates { key, detail });
    }
    Ok(Some(found))
}

/// What is trusted may also be a server's certificate itself, taken over from where it was (`Step::Adopt`); what signs
/// may not.
fn no_other_than(
    certificates: &[Certificate],
    key: &'static str,
    fits: impl Fn(&Certificate) -> bool,
) -> Result<(), SecretError> {
    match certificates.iter().find(|certificate| !fits(certificate)) {
        Some(other) => Err(SecretError::NotAnAuthority { key, subject: other.subject.clone() }),
        None => Ok(()),
    }
}

fn signer(data: &SecretData, keys: (&'static str, &'static str)) -> Result<Option<Ca>, SecretError> {
    let (certificate_key, private_key) = keys;
    let (certificates, key) = match (certificates(data, certificate_key)?, value(data, private_key)) {
        (None, None) => return Ok(None),
        (Some(certificates), Some(key)) => (certificates, key),
        (Some(_), None) => {
            return Err(SecretError::HalfPair { present: certificate_key, missing: private_key });
        }
        (None, Some(_)) => {
            return Err(SecretError::HalfPair { present: private_key, missing: certificate_key });
        }
    };
    no_other_than(&certificates, certificate_key, |certificate| certificate.is_ca)?;
    let found = certificates.len();
    let Ok([certificate]) = <[Certificate; 1]>::try_from(certificates) else {
        return Err(SecretError::NotOne { key: certificate_key, found });
    };
    let unreadable = |detail: String| SecretError::NotAPrivateKey { key: private_key, detail };
    let text = str::from_utf8(key).map_err(|error| unreadable(error.to_string()))?;
    let key = KeyPair::from_pem(text).map_err(|error| unreadable(error.to_string()))?;
    if key.public_key_raw() != certificate.public_key {
        return Err(SecretError::KeyMismatch { key: private_key, certificate: certificate_key });
    }
    Ca::join(certificate, key)
        .map(Some)
        .map_err(|error| SecretError::NotCertificates { key: certificate_key, detail: error.to_string() })
}

fn time(data: &SecretData, key: &'static str) -> Result<Option<Timestamp>, SecretError> {
    let Some(bytes) = value(data, key) else { return Ok(None) };
    let text = String::from_utf8_lossy(bytes);
    match text.trim().parse() {
        Ok(time) => Ok(Some(time)),
        Err(_) => Err(SecretError::NotATime { key, value: text.into_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::{Jitter, Leaf, LeafRequest};
    use crate::pair::tests::{certificate_of_a_client, self_signed};

    fn day_one() -> Timestamp {
        "2026-03-01T10:00:00Z".parse().unwrap()
    }

    fn ca() -> Ca {
        Ca::generate("belay", day_one()).unwrap()
    }

    /// A Secret in the middle of a rotation, with a retiring authority and a foreign key.
    fn full() -> CaSecret {
        let mut secret = CaSecret::first(ca(), vec![ca().certificate().clone()]);
        let next = ca();
        secret.bundle.push(next.certificate().clone());
        secret.next = Some(next);
        secret.observed_at = Some(day_one());
        secret.other.insert("note".into(), b"ours".to_vec());
        secret
    }

    #[test]
    fn what_is_written_is_read_back_the_same_and_foreign_keys_stay() {
        let data = full().to_data();
        let read = CaSecret::parse(&data).unwrap();
        assert_eq!(read, full_like(&read));
        assert_eq!(read.to_data(), data);
        assert_eq!(data["note"], b"ours");
        assert_eq!(read.retiring().count(), 1);
    }

    /// Parsing what `secret` would write.
    fn full_like(secret: &CaSecret) -> CaSecret {
        CaSecret::parse(&secret.to_data()).unwrap()
    }

    #[test]
    fn a_signer_that_was_read_back_still_signs() {
        let read = CaSecret::parse(&full().to_data()).unwrap();
        let request = LeafRequest { dns_names: vec!["w.ns.svc".into()], ips: vec![], jitter: Jitter::NONE };
        let leaf = Leaf::sign(read.active(), &request, day_one()).unwrap();
        crate::verify::verify(leaf.chain(), &read.bundle_pem(), "w.ns.svc", day_one()).unwrap();
    }

    #[test]
    fn a_servers_certificate_that_was_trusted_itself_retires_as_an_authority_does() {
        let itself = Certificate::from_der(self_signed("w.ns.svc", day_one()).der().clone()).unwrap();
        let secret = CaSecret::first(ca(), vec![itself.clone()]);
        let read = CaSecret::parse(&secret.to_data()).unwrap();
        assert!(read.retiring().eq([&itself]));
    }

    #[test]
    fn an_authority_of_another_make_is_taken_as_it_is() {
        // Line ends, comments and order as a person or another tool leaves them.
        let secret = full();
        let mut data = secret.to_data();
        let text = String::from_utf8(data["ca.crt"].clone()).unwrap();
        data.insert("ca.crt".into(), format!("# ours\r\n{}", text.replace('\n', "\r\n")).into());
        assert_eq!(CaSecret::parse(&data).unwrap().bundle_pem(), secret.bundle_pem());
    }

    #[test]
    fn a_damaged_secret_names_the_key_the_fault_and_the_remedy() {
        type Damage = Box<dyn Fn(&mut SecretData)>;
        let set = |key: &'static str, value: Vec<u8>| -> Damage {
            Box::new(move |data| {
                data.insert(key.into(), value.clone());
            })
        };
        let remove = |key: &'static str| -> Damage {
            Box::new(move |data| {
                data.remove(key);
            })
        };
        let copy = |from: &'static str, to: &'static str| -> Damage {
            Box::new(move |data| {
                let value = data[from].clone();
                data.insert(to.into(), value);
            })
        };
        let request = LeafRequest { dns_names: vec!["w.ns.svc".into()], ips: vec![], jitter: Jitter::NONE };
        let leaf = Leaf::sign(&ca(), &request, day_one()).unwrap();
        let leaf = Certificate::from_der(leaf.chain()[0].clone()).unwrap().to_pem().into_bytes();
        let cut = |key: &'static str| -> Damage {
            Box::new(move |data| {
                let value = data[key].clone();
                data.insert(key.into(), value[..value.len() / 2].to_vec());
            })
        };

        let table: Vec<(&str, Damage, &str)> = vec![
            ("no bundle", remove("ca.crt"), "the key ca.crt is missing"),
            ("empty bundle", set("ca.crt", vec![]), "the key ca.crt is missing"),
            ("bundle is prose", set("ca.crt", b"hello".to_vec()), "no CERTIFICATE block in it"),
            ("bundle is cut off", cut("ca.crt"), "the key ca.crt does not hold PEM certificates"),
            (
                "bundle holds a client",
                set("ca.crt", certificate_of_a_client().to_pem().into_bytes()),
                "the certificate \"CN=a client\" in ca.crt is not a certificate authority",
            ),
            (
                "bundle lacks the signer",
                set("ca.crt", ca().certificate().to_pem().into_bytes()),
                "ca.crt does not hold the certificate in tls.crt",
            ),
            (
                "bundle lacks the next signer",
                copy("tls.crt", "ca.crt"),
                "ca.crt does not hold the certificate in next.crt",
            ),
            ("no key", remove("tls.key"), "the key tls.crt is there but tls.key is missing"),
            ("no certificate", remove("tls.crt"), "the key tls.key is there but tls.crt is missing"),
            ("no next key", remove("next.key"), "the key next.crt is there but next.key is missing"),
            ("signer is a leaf", set("tls.crt", leaf), "in tls.crt is not a certificate authority"),
            ("signer is a bundle", copy("ca.crt", "tls.crt"), "the key tls.crt holds 3 certificates"),
            ("keys swapped", copy("next.key", "tls.key"), "the private key in tls.key does not belong"),
            ("key is a certificate", copy("tls.crt", "tls.key"), "the key tls.key does not hold a PEM"),
            ("key is cut off", cut("next.key"), "the key next.key does not hold a PEM private key"),
            ("key is binary", set("tls.key", vec![0xff]), "the key tls.key does not hold a PEM"),
            (
                "next is the active one",
                Box::new(|data| {
                    data.insert("next.crt".into(), data["tls.crt"].clone());
                    data.insert("next.key".into(), data["tls.key"].clone());
                }),
                "next.crt holds the same certificate as tls.crt",
            ),
            (
                "a time is prose",
                set("observed-at", b"yesterday".to_vec()),
                "the key observed-at holds \"yesterday\", which is not an RFC 3339 time; remove",
            ),
            ("a time is binary", set("observed-at", vec![0xff]), "the key observed-at holds"),
        ];
        for (name, damage, expected) in table {
            let mut data = full().to_data();
            damage(&mut data);
            let error = CaSecret::parse(&data).expect_err(name);
            let text = error.to_string();
            assert!(text.contains(expected), "{name}: {text}");
            if !matches!(error, SecretError::NotATime { .. }) {
                assert!(text.ends_with(REMEDY), "{name}: {text}");
            }
        }
    }

    #[test]
    fn a_secret_without_any_signer_says_which_key_is_missing() {
        let mut data = full().to_data();
        for key in ["tls.crt", "tls.key", "next.crt", "next.key"] {
            data.remove(key);
        }
        assert_eq!(CaSecret::parse(&data), Err(SecretError::Missing { key: "tls.crt" }));
    }
}
