//! A replica that serves what it finds in a folder.

use std::path::Path;

use jiff::SignedDuration;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use webhook_certs::{ConfigKind, Entry};

use super::*;

const NAME: &str = "belay-webhook.belay-system.svc";

/// Certificates of rcgen are valid from 1975 to 4096 where nothing else is said.
fn today() -> Timestamp {
    "2026-03-01T10:00:00Z".parse().unwrap()
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("belay-leaf-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Writes a new pair for this name.
    fn issue(&self, authority: &Authority, name: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2026, 6, 1);
        let certificate = params.signed_by(&key, authority).unwrap();
        self.write("tls.crt", &certificate.pem());
        self.write("tls.key", &key.serialize_pem());
        self.write("ca.crt", &authority.pem());
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(Path::new(&self.0).join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A replica of this folder where one entry trusts this authority.
fn replica(folder: &Folder, trusted: &Authority) -> (ServingLeaf, Arc<CertResolver>) {
    let entry = Entry { kind: ConfigKind::Validating, config: "belay".into(), webhook: "eviction.belay.dev".into() };
    let trust = Trust::seeing(vec![LiveCaBundle { entry, ca_bundle: trusted.pem().into_bytes() }]);
    let source = Source::Files(folder.0.clone(), vec![NAME.to_owned()]);
    (ServingLeaf::new(trust, source, Arc::new(Metrics::default())), CertResolver::new())
}

fn at(seconds: i64) -> Timestamp {
    today() + SignedDuration::from_secs(seconds)
}

fn told(leaf: &ServingLeaf, series: &str) -> Option<f64> {
    let text = leaf.metrics.encode().unwrap();
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn ready(leaf: &ServingLeaf) -> Result<(), String> {
    leaf.state.lock().ready(&leaf.trust.live(), today())
}

const REFUSED: &str = "belay_certificate_files_refused_total";

#[test]
fn it_says_what_is_missing_once_and_serves_as_soon_as_the_files_are_good() {
    let (folder, ours) = (Folder::new("good"), authority());
    let (leaf, resolver) = replica(&folder, &ours);
    for second in [0, 10] {
        leaf.tick(&resolver, at(second));
    }
    let reason = ready(&leaf).unwrap_err();
    assert!(reason.contains("no serving certificate yet: cannot read") && reason.contains("ca.crt"), "{reason}");
    assert!(!resolver.is_set());
    assert_eq!(told(&leaf, REFUSED), Some(1.0), "the same fault is told once");
    assert_eq!(told(&leaf, "belay_certificate_not_after_timestamp_seconds{role=\"Leaf\"}"), None);

    folder.issue(&ours, NAME);
    leaf.tick(&resolver, at(20));
    ready(&leaf).unwrap();
    assert!(resolver.is_set());
    let end: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
    let told_end = told(&leaf, "belay_certificate_not_after_timestamp_seconds{role=\"Leaf\"}");
    assert_eq!(told_end, Some(end.as_second() as f64));
    assert!(told(&leaf, "belay_certificate_not_after_timestamp_seconds{role=\"Authority\"}") > told_end);
}

#[test]
fn a_bad_version_of_the_files_changes_nothing_and_is_counted() {
    let (folder, ours) = (Folder::new("bad"), authority());
    let (leaf, resolver) = replica(&folder, &ours);
    folder.issue(&ours, NAME);
    leaf.tick(&resolver, at(0));
    ready(&leaf).unwrap();
    folder.issue(&ours, "elsewhere.svc");
    leaf.tick(&resolver, at(10));
    folder.write("tls.key", "nothing");
    leaf.tick(&resolver, at(20));
    ready(&leaf).unwrap();
    assert_eq!(told(&leaf, REFUSED), Some(2.0));
}

#[test]
fn a_pair_that_the_live_bundle_does_not_accept_is_served_and_not_ready() {
    let (folder, ours, trusted) = (Folder::new("untrusted"), authority(), authority());
    let (leaf, resolver) = replica(&folder, &trusted);
    folder.issue(&ours, NAME);
    leaf.tick(&resolver, at(0));
    let reason = ready(&leaf).unwrap_err();
    let expected =
        "ValidatingWebhookConfiguration belay, webhook eviction.belay.dev: the serving certificate does not verify";
    assert!(reason.starts_with(expected), "{reason}");
    assert_eq!(told(&leaf, REFUSED), Some(0.0));
}
