//! Certificates and keys of one throwaway cluster, made in memory and written to its private work folder.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A certificate and its key, as files in PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, PKCS#8.
    pub key: PathBuf,
}

/// The certificate authorities of one cluster.
#[derive(Debug)]
pub struct Pki {
    folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    /// Makes the authority and writes it, and the keys of ServiceAccounts, to `folder`.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let authority = new_authority("belay-test-cluster")?;
        let pki = Self { folder: folder.to_owned(), authority };
        write(&pki.authority_file(), &pki.authority.pem())?;
        // Nothing is ever signed by this one. Without it the controller-manager and the scheduler log an error every
        // few seconds, for ever: they look it up to trust an aggregating front proxy.
        write(&pki.front_proxy_authority_file(), &new_authority("belay-test-front-proxy")?.pem())?;
        let service_accounts = KeyPair::generate()?;
        write(&pki.service_account_key_file(), &service_accounts.serialize_pem())?;
        write(&pki.service_account_public_key_file(), &service_accounts.public_key_pem())?;
        Ok(pki)
    }

    /// The authority's certificate, which signs servers and clients alike.
    pub fn authority_file(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The authority that the API server is told to trust for front proxies.
    pub fn front_proxy_authority_file(&self) -> PathBuf {
        self.folder.join("front-proxy-ca.crt")
    }

    /// The private key that signs tokens of ServiceAccounts.
    pub fn service_account_key_file(&self) -> PathBuf {
        self.folder.join("service-accounts.key")
    }

    /// The public key that verifies them: the API server reads none out of a private key in PKCS#8.
    pub fn service_account_public_key_file(&self) -> PathBuf {
        self.folder.join("service-accounts.pub")
    }

    /// A client certificate: `user` becomes the user name, `group` its group.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn client(&self, file: &str, user: &str, group: Option<&str>) -> anyhow::Result<Pair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(file, params)
    }

    /// A server certificate for these addresses and names.
    ///
    /// # Errors
    /// When a name is not a DNS name or the folder cannot be written.
    pub fn server(&self, file: &str, addresses: &[Ipv4Addr], names: &[&str]) -> anyhow::Result<Pair> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.subject_alt_names.extend(addresses.iter().map(|&address| SanType::IpAddress(IpAddr::V4(address))));
        params.distinguished_name.push(DnType::CommonName, file);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(file, params)
    }

    fn issue(&self, file: &str, mut params: CertificateParams) -> anyhow::Result<Pair> {
        let key = KeyPair::generate()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(&key, &self.authority)?;
        let pair =
            Pair { certificate: self.folder.join(format!("{file}.crt")), key: self.folder.join(format!("{file}.key")) };
        write(&pair.certificate, &certificate.pem())?;
        write(&pair.key, &key.serialize_pem())?;
        Ok(pair)
    }
}

fn new_authority(name: &str) -> anyhow::Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
