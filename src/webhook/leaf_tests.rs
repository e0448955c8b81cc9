//! A replica that serves what it finds in a folder.

use jiff::SignedDuration;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use webhook_certs::{ConfigKind, Entry, Jitter, Step};

use super::*;
use crate::testing::Folder;

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

/// Writes a new pair for this name.
fn issue(folder: &Folder, authority: &Authority, name: &str) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2026, 6, 1);
    let certificate = params.signed_by(&key, authority).unwrap();
    folder.write("tls.crt", &certificate.pem());
    folder.write("tls.key", &key.serialize_pem());
    folder.write("ca.crt", &authority.pem());
}

/// A replica of this folder where one entry trusts this authority.
fn replica(folder: &Folder, trusted: &Authority) -> (ServingLeaf, Arc<CertResolver>) {
    let entry = Entry { kind: ConfigKind::Validating, config: "belay".into(), webhook: "eviction.belay.dev".into() };
    let trust = Trust::seeing(vec![LiveCaBundle { entry, ca_bundle: trusted.pem().into_bytes() }]);
    let source = Source::Files(folder.path().to_owned(), vec![NAME.to_owned()]);
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
    let (folder, ours) = (Folder::new(), authority());
    let (leaf, resolver) = replica(&folder, &ours);
    for second in [0, 10] {
        leaf.tick(&resolver, at(second));
    }
    let reason = ready(&leaf).unwrap_err();
    assert!(reason.contains("no serving certificate yet: cannot read") && reason.contains("ca.crt"), "{reason}");
    assert!(!resolver.is_set());
    assert_eq!(told(&leaf, REFUSED), Some(1.0), "the same fault is told once");
    assert_eq!(told(&leaf, "belay_certificate_not_after_timestamp_seconds{role=\"Leaf\"}"), None);

    issue(&folder, &ours, NAME);
    leaf.tick(&resolver, at(20));
    ready(&leaf).unwrap();
    assert!(resolver.is_set());
    let end: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
    let told_end = told(&leaf, "belay_certificate_not_after_timestamp_seconds{role=\"Leaf\"}");
    assert_eq!(told_end, Some(end.as_second() as f64));
    assert!(told(&leaf, "belay_certificate_not_after_timestamp_seconds{role=\"Authority\"}") > told_end);
    let told_start = told(&leaf, "belay_certificate_not_before_timestamp_seconds{role=\"Leaf\"}");
    assert!(told_start < Some(today().as_second() as f64), "{told_start:?}");
}

#[test]
fn a_bad_version_of_the_files_changes_nothing_and_is_counted() {
    let (folder, ours) = (Folder::new(), authority());
    let (leaf, resolver) = replica(&folder, &ours);
    issue(&folder, &ours, NAME);
    leaf.tick(&resolver, at(0));
    ready(&leaf).unwrap();
    issue(&folder, &ours, "elsewhere.svc");
    leaf.tick(&resolver, at(10));
    folder.write("tls.key", "nothing");
    leaf.tick(&resolver, at(20));
    ready(&leaf).unwrap();
    assert_eq!(told(&leaf, REFUSED), Some(2.0));
}

fn effect(leaf: &ServingLeaf) -> Option<Effect> {
    leaf.state.lock().trouble.as_ref().map(|trouble| trouble.effect)
}

#[test]
fn a_fault_is_told_for_what_it_means() {
    let (folder, ours) = (Folder::new(), authority());
    let (leaf, resolver) = replica(&folder, &ours);
    leaf.tick(&resolver, at(0));
    assert_eq!(effect(&leaf), Some(Effect::NoneYet), "no file");
    issue(&folder, &ours, "elsewhere.svc");
    leaf.tick(&resolver, at(10));
    assert_eq!(effect(&leaf), Some(Effect::NoneYet), "another name");
    issue(&folder, &ours, NAME);
    leaf.tick(&resolver, at(20));
    assert_eq!(effect(&leaf), None);
    std::fs::remove_file(folder.path().join("tls.key")).unwrap();
    leaf.tick(&resolver, at(30));
    assert_eq!(effect(&leaf), Some(Effect::NoNew), "a file is gone");
}

#[test]
fn the_last_authority_goes_on_signing_while_the_secret_is_damaged() {
    let request = LeafRequest { dns_names: vec![NAME.to_owned()], ips: Vec::new(), jitter: Jitter::NONE };
    let trust = Trust::seeing(Vec::new());
    let metrics = Arc::new(Metrics::default());
    let (leaf, resolver) = (ServingLeaf::new(trust.clone(), Source::Own(request), metrics), CertResolver::new());
    trust.see_secret(Some(Err("damaged".to_owned())));
    leaf.tick(&resolver, at(0));
    assert_eq!((effect(&leaf), resolver.is_set()), (Some(Effect::NoneYet), false));
    let secret = Step::Create { keep: Vec::new() }.apply(None, "belay", today()).unwrap();
    trust.see_secret(secret.map(Ok));
    leaf.tick(&resolver, at(10));
    assert_eq!((effect(&leaf), resolver.is_set()), (None, true));
    trust.see_secret(Some(Err("damaged".to_owned())));
    let week = 7 * 24 * 3600;
    let end = || told(&leaf, "belay_certificate_not_after_timestamp_seconds{role=\"Leaf\"}");
    let before = end();
    leaf.tick(&resolver, at(week));
    assert_eq!(effect(&leaf), Some(Effect::LastAuthority));
    assert!(end() > before, "it is renewed");
    // The authority is over.
    leaf.tick(&resolver, at(60 * week));
    assert_eq!(effect(&leaf), Some(Effect::NoNew));
}

#[test]
fn a_fault_of_the_chain_is_told_and_counted_once_as_time_goes_by() {
    let (folder, root) = (Folder::new(), authority());
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(2026, 2, 1);
    let between = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap();
    issue(&folder, &between, NAME);
    let own = std::fs::read_to_string(folder.path().join("tls.crt")).unwrap();
    folder.write("tls.crt", &format!("{own}{}", between.pem()));
    folder.write("ca.crt", &root.pem());
    let (leaf, resolver) = replica(&folder, &root);
    for second in [0, 10, 20] {
        leaf.tick(&resolver, at(second));
    }
    assert!(ready(&leaf).unwrap_err().contains("of its chain expired at 2026-02-01T00:00:00Z"));
    assert_eq!(told(&leaf, REFUSED), Some(1.0));
}

#[test]
fn files_without_an_authority_are_refused_with_the_remedy() {
    let (folder, ours) = (Folder::new(), authority());
    let (leaf, resolver) = replica(&folder, &ours);
    issue(&folder, &ours, NAME);
    std::fs::remove_file(folder.path().join("ca.crt")).unwrap();
    leaf.tick(&resolver, at(0));
    let reason = ready(&leaf).unwrap_err();
    assert!(reason.contains("ca.crt is missing or empty") && reason.contains("put the authority"), "{reason}");
    assert_eq!(told(&leaf, REFUSED), Some(1.0));
}

#[test]
fn a_pair_that_the_live_bundle_does_not_accept_is_served_and_not_ready() {
    let (folder, ours, trusted) = (Folder::new(), authority(), authority());
    let (leaf, resolver) = replica(&folder, &trusted);
    issue(&folder, &ours, NAME);
    leaf.tick(&resolver, at(0));
    let reason = ready(&leaf).unwrap_err();
    let expected =
        "ValidatingWebhookConfiguration belay, webhook eviction.belay.dev: the serving certificate does not verify";
    assert!(reason.starts_with(expected), "{reason}");
    assert_eq!(told(&leaf, REFUSED), Some(0.0));
}
