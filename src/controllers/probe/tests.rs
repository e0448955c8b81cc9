//! Probes one by one, before a server on the loopback that is told whether it reaches the webhook.

use belay_decide::probe::{ANNOTATION, CANARY_ENTRY, EVICTION_ENTRY, echo};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::cluster::owners::Resources;
use crate::testing::{self, ApiServer, Asked, Reply};

/// For what runs beside a test, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

const INTERVAL: Duration = Duration::from_mins(1);

/// What the API server does with the eviction that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Open,
    Blocked,
    Forbidden,
}

struct Stored {
    way: Way,
    events: Vec<Value>,
}

impl Stored {
    fn answer(&mut self, asked: &Asked) -> Reply {
        if asked.what.starts_with("POST /apis/events.k8s.io/") {
            self.events.push(asked.body.clone());
            return Reply::Json(asked.body.clone());
        }
        if asked.what.starts_with("GET /apis/admissionregistration.k8s.io/") {
            let entry = |name: &str, path: &str| {
                let service = json!({ "namespace": "belay-system", "name": "belay-webhook", "path": path });
                json!({ "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                    "clientConfig": { "service": service, "caBundle": "eA==" } })
            };
            return Reply::Json(json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": { "name": "belay" },
                "webhooks": [entry(EVICTION_ENTRY, "/validate/eviction"), entry(CANARY_ENTRY, "/validate/canary")],
            }));
        }
        let nonce = asked.body["metadata"]["annotations"][ANNOTATION].as_str().expect("an eviction, which has a word");
        match self.way {
            Way::Open => Reply::NoSuchPod(vec![echo(nonce, "belay-webhook-1").unwrap()]),
            Way::Blocked => Reply::NoSuchPod(Vec::new()),
            Way::Forbidden => Reply::Status(403, "no such right"),
        }
    }
}

struct Stage {
    stored: Arc<Mutex<Stored>>,
    work: Loop,
    _api: ApiServer,
}

async fn stage() -> Stage {
    let stored = Arc::new(Mutex::new(Stored { way: Way::Open, events: Vec::new() }));
    let answering = Arc::clone(&stored);
    let api = ApiServer::start(move |asked| answering.lock().answer(asked)).await;
    let (applier, leadership, metrics) =
        testing::leading_applier(&api, Resources::default(), Some("belay-controller-0"));
    let own_pod = OwnPod { namespace: "belay-system".into(), name: "belay-controller-0".into(), uid: "own".into() };
    let prober = Prober::new(api.client.clone(), "belay-system".into(), "belay".into());
    let memory = Memory::default();
    let work = Loop { prober, interval: INTERVAL, own_pod, leadership, applier, metrics, memory, unread: None };
    Stage { stored, work, _api: api }
}

impl Stage {
    async fn probe(&mut self, way: Way) -> Duration {
        self.stored.lock().way = way;
        self.work.probe().await
    }

    /// Whether the webhook is reached, as it is served.
    fn reached(&self) -> Option<String> {
        let text = self.work.metrics.encode().unwrap();
        text.lines().find_map(|line| Some(line.strip_prefix("belay_probe_reached ")?.to_owned()))
    }

    /// The Event that is told next.
    async fn event(&self) -> Value {
        let next = async {
            loop {
                if let Some(event) = self.stored.lock().events.pop() {
                    return event;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, next).await.expect("no Event is told")
    }
}

#[tokio::test]
async fn an_outage_is_told_once_on_the_controllers_own_pod_and_so_is_its_end() {
    let mut stage = stage().await;
    assert_eq!(stage.probe(Way::Open).await, INTERVAL);
    assert_eq!(stage.reached().as_deref(), Some("1"));
    for _ in 0..4 {
        assert_eq!(stage.probe(Way::Blocked).await, ASK_AGAIN, "its end is to be known soon");
        assert_eq!(stage.reached().as_deref(), Some("0"), "at the first miss");
    }
    let lost = stage.event().await;
    assert_eq!((&lost["reason"], &lost["type"]), (&json!("WebhookNotReached"), &json!("Warning")));
    let regarding = json!({ "apiVersion": "v1", "kind": "Pod", "namespace": "belay-system",
        "name": "belay-controller-0", "uid": "own" });
    assert_eq!(lost["regarding"], regarding);
    assert!(lost["note"].as_str().unwrap().contains("no webhook replica answered"), "{lost}");
    assert_eq!(stage.probe(Way::Open).await, INTERVAL);
    let back = stage.event().await;
    assert_eq!((&back["reason"], &back["type"]), (&json!("WebhookReached"), &json!("Normal")));
    assert_eq!(stage.reached().as_deref(), Some("1"));
    assert!(stage.stored.lock().events.is_empty(), "each is told once");
}

#[tokio::test]
async fn what_cannot_be_asked_is_not_said() {
    let mut stage = stage().await;
    stage.probe(Way::Open).await;
    for _ in 0..3 {
        stage.probe(Way::Forbidden).await;
        assert_eq!(stage.reached(), None);
    }
    let text = stage.work.metrics.encode().unwrap();
    assert!(text.contains("belay_probes_total{result=\"Refused\"} 3"), "{text}");
    stage.probe(Way::Blocked).await;
    stage.probe(Way::Blocked).await;
    assert_eq!(stage.event().await["reason"], "WebhookNotReached", "nothing was told before");
}

#[tokio::test]
async fn who_does_not_lead_neither_asks_nor_says_what_was_so_before() {
    let mut stage = stage().await;
    stage.probe(Way::Open).await;
    let (leadership, metrics) = (Arc::clone(&stage.work.leadership), Arc::clone(&stage.work.metrics));
    stage.stored.lock().way = Way::Blocked;
    leadership.lose();
    let Stage { work, stored, _api: api } = stage;
    api.asked();
    let stop = CancellationToken::new();
    let running = tokio::spawn(work.run(stop.clone()));
    let is_served = |value: &str| metrics.encode().unwrap().contains(&format!("belay_probe_reached {value}\n"));
    let until = async |is_so: &dyn Fn() -> bool| {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it is never so");
    };
    until(&|| !is_served("1")).await;
    assert!(api.asked().is_empty() && !is_served("0"));
    leadership.win();
    until(&|| is_served("0")).await;
    stop.cancel();
    running.await.unwrap();
    assert!(stored.lock().events.is_empty(), "a single miss");
}
