//! What the loop tells and remembers, look by look, before a server on the loopback.

use parking_lot::Mutex;
use serde_json::Value;
use webhook_certs::Step;

use super::*;
use crate::cluster::owners::Resources;
use crate::testing::{self, ApiServer, Asked, Folder, Reply};

const ENTRY: &str = "eviction.hold.belay.dev";

/// The API: one entry that trusts this.
struct Stage {
    bundle: Arc<Mutex<Vec<u8>>>,
    refuses: Arc<Mutex<bool>>,
    work: Loop,
    leadership: Arc<Leadership>,
    metrics: Arc<Metrics>,
    told: Option<String>,
    _api: ApiServer,
}

impl Stage {
    async fn new(source: Source) -> Self {
        let (bundle, refuses) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<Mutex<bool>>::default());
        let (stored, refusing) = (Arc::clone(&bundle), Arc::clone(&refuses));
        let api = ApiServer::start(move |asked| {
            if *refusing.lock() { Reply::Status(403, "no such right") } else { answer(asked, &mut stored.lock()) }
        })
        .await;
        let (applier, leadership, metrics) = testing::leading_applier(&api, Resources::default(), None);
        let names = |name: &str| name.to_owned();
        let work = Loop {
            client: api.client.clone(),
            trust: Trust::seeing(live(&[])),
            namespace: "belay-system".to_owned(),
            pod_name: None,
            source,
            configurations: WebhookConfigurations { validating: names("belay"), mutating: names("belay") },
            leadership: Arc::clone(&leadership),
            applier,
            metrics: Arc::clone(&metrics),
        };
        Self { bundle, refuses, work, leadership, metrics, told: None, _api: api }
    }

    /// The watch catches up, and one look is taken; what the entry trusts then.
    async fn look(&mut self) -> Vec<u8> {
        self.work.trust.see_live(live(&self.bundle.lock()));
        self.work.look(&mut self.told).await;
        self.bundle.lock().clone()
    }

    fn served(&self, series: &str) -> Option<String> {
        let text = self.metrics.encode().unwrap();
        text.lines().find_map(|line| Some(line.strip_prefix(series)?.strip_prefix(' ')?.to_owned()))
    }

    fn step(&self, step: &str) -> Option<String> {
        self.served(&format!("belay_certificate_rotation_step{{step=\"{step}\"}}"))
    }

    fn failures(&self, reason: &str) -> Option<String> {
        self.served(&format!("belay_certificate_step_failures_total{{reason=\"{reason}\"}}"))
    }

    fn authority_is_told(&self) -> bool {
        self.served("belay_certificate_not_after_timestamp_seconds{role=\"Authority\"}").is_some()
    }
}

fn live(ca_bundle: &[u8]) -> Vec<LiveCaBundle> {
    let entry = Entry { kind: ConfigKind::Validating, config: "belay".to_owned(), webhook: ENTRY.to_owned() };
    vec![LiveCaBundle { entry, ca_bundle: ca_bundle.to_vec() }]
}

fn answer(asked: &Asked, bundle: &mut Vec<u8>) -> Reply {
    let configuration = |bundle: &[u8]| {
        json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "belay", "resourceVersion": "1" },
            "webhooks": [{ "name": ENTRY, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": { "caBundle": ByteString(bundle.to_vec()) } }] })
    };
    match asked.what.split_once("/validatingwebhookconfigurations/") {
        Some(("PATCH /apis/admissionregistration.k8s.io/v1", _)) => {
            let written: Value = asked.body["webhooks"][0]["clientConfig"]["caBundle"].clone();
            *bundle = serde_json::from_value::<ByteString>(written).unwrap().0;
            Reply::Json(json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": { "name": "belay" } }))
        }
        Some(_) => Reply::Json(configuration(bundle)),
        None => Reply::Status(404, "not found"),
    }
}

fn secret() -> CaSecret {
    Step::Create { keep: Vec::new() }.apply(None, "belay", Clock::wall()).unwrap().unwrap()
}

/// A new authority's certificate.
fn authority() -> String {
    secret().active().certificate().to_pem()
}

/// Whether the bundle is these, in this order.
fn is(bundle: &[u8], authorities: &[&str]) -> bool {
    bundle == authorities.concat().as_bytes()
}

#[tokio::test]
async fn a_former_leader_tells_nothing_of_the_authority() {
    let mut stage = Stage::new(Source::Own("belay-ca".to_owned())).await;
    let secret = secret();
    *stage.bundle.lock() = secret.bundle_pem();
    stage.work.trust.see_secret(Some(Ok(secret)));
    stage.look().await;
    assert_eq!((stage.step("Publish").as_deref(), stage.authority_is_told()), (Some("1"), true));
    stage.leadership.lose();
    stage.look().await;
    assert_eq!((stage.step("Publish"), stage.authority_is_told()), (None, false));
}

#[tokio::test]
async fn a_damaged_secret_is_counted_at_each_attempt_and_stands_in_the_place_of_the_step() {
    let mut stage = Stage::new(Source::Own("belay-ca".to_owned())).await;
    let secret = secret();
    *stage.bundle.lock() = secret.bundle_pem();
    stage.work.trust.see_secret(Some(Ok(secret.clone())));
    stage.look().await;
    stage.work.trust.see_secret(Some(Err("Secret belay-ca: damaged".to_owned())));
    for count in ["1", "2"] {
        stage.look().await;
        assert_eq!(stage.failures("Damaged").as_deref(), Some(count));
    }
    assert_eq!((stage.step("Publish"), stage.step(NO_STEP).as_deref()), (None, Some("1")));
    assert!(!stage.authority_is_told());
    stage.work.trust.see_secret(Some(Ok(secret)));
    stage.look().await;
    assert_eq!((stage.step("Publish").as_deref(), stage.step(NO_STEP)), (Some("1"), None));
}

#[tokio::test]
async fn a_right_that_is_missing_is_counted_and_the_step_stays() {
    let mut stage = Stage::new(Source::Own("belay-ca".to_owned())).await;
    *stage.refuses.lock() = true;
    stage.look().await;
    assert_eq!((stage.failures("Forbidden").as_deref(), stage.step("Create").as_deref()), (Some("1"), Some("1")));
}

#[tokio::test]
async fn files_that_cannot_be_used_are_counted_by_what_is_wrong() {
    let folder = Folder::new();
    let mut stage = Stage::new(Source::files(folder.path().to_owned())).await;
    stage.look().await;
    assert_eq!(stage.failures("Unreadable").as_deref(), Some("1"));
    folder.write("ca.crt", &authority());
    stage.look().await;
    assert!(stage.authority_is_told());
    folder.write("ca.crt", "nothing");
    stage.look().await;
    assert_eq!((stage.failures("Unusable").as_deref(), stage.authority_is_told()), (Some("1"), false));
}

#[tokio::test]
async fn what_a_leader_remembers_of_authorities_ends_with_its_lead() {
    let folder = Folder::new();
    let (old, new, foreign) = (authority(), authority(), authority());
    folder.write("ca.crt", &old);
    let mut stage = Stage::new(Source::files(folder.path().to_owned())).await;
    assert!(is(&stage.look().await, &[&old]));
    folder.write("ca.crt", &new);
    assert!(is(&stage.look().await, &[&new, &old]), "the old one was given");
    *stage.bundle.lock() = foreign.clone().into_bytes();
    assert!(is(&stage.look().await, &[&new, &old]), "the foreign one was not");

    stage.leadership.lose();
    // Meanwhile another leader has dropped the old one.
    *stage.bundle.lock() = new.clone().into_bytes();
    stage.look().await;
    assert!(is(&stage.bundle.lock(), &[&new]));
    stage.leadership.win();
    assert!(is(&stage.look().await, &[&new]), "nothing of an earlier lead comes back");
    // What it finds as it begins, it believes.
    stage.leadership.lose();
    stage.look().await;
    *stage.bundle.lock() = format!("{new}{old}").into_bytes();
    stage.leadership.win();
    assert!(is(&stage.look().await, &[&new, &old]));
}
