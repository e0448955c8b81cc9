//! The webhook: answers admission reviews from the cache, in microseconds, and writes nothing on the way.
//!
//! Every review that can be read gets a 200 with a valid answer, whatever happens inside: an API server that gets
//! anything else falls back to `failurePolicy`, and many drainers give up at its errors.

pub mod admin;
pub mod bindings;
pub mod busy;
pub mod canary;
pub mod eviction;
pub mod leaf;
pub mod live;
pub mod memory;
pub mod pods;
pub mod recorder;
pub mod review;
mod seldom;
pub mod server;
#[cfg(test)]
mod tests;
mod unseen;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use belay_decide::lifecycle;
pub use belay_decide::probe::{CANARY_PATH, EVICTION_PATH};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};

use crate::cluster::clock::Clock;
use crate::cluster::index::Index;
use crate::cluster::owners::Resources;
use crate::cluster::watch::{Health, RuleHealth};
use crate::config::Selects;
use crate::metrics::Metrics;
use crate::settings::Settings;
use bindings::BindTime;
use live::LiveReader;
use memory::Victims;
use recorder::Recorder;
use review::{Answer, Request, Review};
use seldom::Seldom;
use server::{Trouble, Unserved};

/// The path of creations of pods that busy rules select.
pub const BUSY_PATH: &str = "/mutate/busy";
/// The path of bindings of pods.
pub const BINDINGS_PATH: &str = "/mutate/bindings";
/// The path of creations of Deployments' pods.
pub const PODS_PATH: &str = "/mutate/pods";

/// What the endpoints work with.
pub struct Handlers {
    /// The cache.
    pub index: Index,
    /// The watches that fill it.
    pub health: Vec<Health>,
    /// The watches that only busy rules need.
    pub rule_health: RuleHealth,
    /// The configuration in force.
    pub settings: Arc<ArcSwap<Settings>>,
    /// What this replica remembers of victims.
    pub victims: Victims<belay_decide::hold::Memory>,
    /// What it remembers of busy ones.
    pub busy_victims: Victims<belay_decide::busy::eviction::Memory>,
    /// What it remembers of those that its cache was behind with.
    pub unseen: Victims<memory::Unseen>,
    /// What each busy rule selects.
    pub selects: Arc<Vec<Selects>>,
    /// What deletion costs at a bind are made of; absent while they are off.
    pub bind_time: Option<BindTime>,
    /// Reads what an idle pod's state depends on; absent where there is no API server.
    pub live: Option<LiveReader>,
    /// Which kinds the API server serves.
    pub resources: Resources,
    /// Where holds are recorded.
    pub recorder: Recorder,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The clock.
    pub clock: Clock,
    /// By what name this replica answers probes: its pod's.
    pub replica: String,
}

impl Handlers {
    /// What answers from this cache alone: nothing is remembered yet, no watch is waited for, there is no API server to
    /// ask, and costs are off.
    pub fn new(index: Index, settings: Arc<ArcSwap<Settings>>, recorder: Recorder, metrics: Arc<Metrics>) -> Self {
        Self {
            index,
            health: Vec::new(),
            rule_health: RuleHealth::default(),
            settings,
            victims: Victims::default(),
            busy_victims: Victims::default(),
            unseen: Victims::default(),
            selects: Arc::default(),
            bind_time: None,
            live: None,
            resources: Resources::default(),
            recorder,
            metrics,
            clock: Clock::start(),
            replica: String::new(),
        }
    }

    /// The caches that decisions about handovers need are filled.
    pub fn is_synced(&self) -> bool {
        self.health.iter().all(Health::is_synced)
    }

    /// The API server serves what responders respond to, so that a new pod may name one.
    pub fn is_responding(&self) -> bool {
        self.resources.of(&lifecycle::eviction()).is_some()
    }

    /// It is known which pods busy rules govern.
    pub fn is_governing_known(&self) -> bool {
        self.is_synced() && self.rule_health.is_governing_known()
    }
}

/// An endpoint.
#[derive(Clone, Copy)]
enum Endpoint {
    Eviction,
    Canary,
    Pods,
    Busy,
    Bindings,
}

impl Endpoint {
    const ALL: [Self; 5] = [Self::Eviction, Self::Canary, Self::Pods, Self::Busy, Self::Bindings];

    fn path(self) -> &'static str {
        match self {
            Self::Eviction => EVICTION_PATH,
            Self::Canary => CANARY_PATH,
            Self::Pods => PODS_PATH,
            Self::Busy => BUSY_PATH,
            Self::Bindings => BINDINGS_PATH,
        }
    }

    async fn answer(self, handlers: &Handlers, request: &Request<'_>) -> Answer {
        match self {
            Self::Eviction => eviction::answer(handlers, request).await,
            Self::Canary => canary::answer(handlers, request),
            // Its pod is read with the review. What does not read so is none that could be steered.
            Self::Pods => Answer::default(),
            Self::Busy => busy::answer(handlers, request),
            Self::Bindings => bindings::answer(handlers, request).await,
        }
    }
}

/// The endpoints.
pub fn router(handlers: Arc<Handlers>) -> Router {
    let routes = Endpoint::ALL.into_iter().fold(Router::new(), |routes, endpoint| {
        let answer = async move |State(handlers): State<Arc<Handlers>>, IsJson(is_json): IsJson, body: Bytes| {
            respond(&handlers, endpoint, is_json, &body).await
        };
        routes.route(endpoint.path(), post(answer))
    });
    routes.with_state(handlers)
}

/// Whether the content type is JSON's: the one header that is read, and not worth a copy of all.
struct IsJson(bool);

impl<S: Sync> FromRequestParts<S> for IsJson {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(is_json(parts.headers.get(header::CONTENT_TYPE))))
    }
}

async fn respond(handlers: &Handlers, endpoint: Endpoint, is_json: bool, body: &[u8]) -> Response {
    let started = Instant::now();
    if !is_json {
        return refuse("the content type must be application/json");
    }
    let took = || handlers.metrics.review(endpoint.path(), started.elapsed().as_secs_f64());
    if let Endpoint::Pods = endpoint
        && let Some(Review { api_version, request: Some(request) }) = Review::parse_whole(body)
    {
        let answer = pods::answer(handlers, &request);
        took();
        return reply(&answer, api_version.as_deref(), &request.uid);
    }
    let review = match Review::parse(body) {
        Ok(review) => review,
        Err(error) => return refuse(&format!("the body is not an AdmissionReview: {error}")),
    };
    let Some(request) = &review.request else { return refuse("the AdmissionReview has no request") };
    let answer = endpoint.answer(handlers, request).await;
    took();
    reply(&answer, review.api_version.as_deref(), &request.uid)
}

/// Answers a review that the endpoints did not get to, or not to the end of: overload, a hung thread or a defect of
/// ours lets it through, and says so, since an error would end most drains and block pods.
pub fn unserved(unserved: Unserved<'_>) -> Response {
    if !is_json(unserved.content_type) {
        return refuse("the content type must be application/json");
    }
    let review = match Review::parse(unserved.body) {
        Ok(review) => review,
        Err(error) => return refuse(&format!("the body is not an AdmissionReview: {error}")),
    };
    let Some(request) = &review.request else { return refuse("the AdmissionReview has no request") };
    let why = match unserved.trouble {
        Trouble::Overloaded => "too many requests at once",
        Trouble::Panicked => "internal error, see the webhook's log",
        Trouble::TimedOut => "not answered in time",
    };
    let api_version = review.api_version.as_deref();
    reply(&Answer::allow_with(format!("belay: {why}; request let through unlooked at")), api_version, &request.uid)
}

fn reply(answer: &Answer, api_version: Option<&str>, uid: &str) -> Response {
    let bytes = answer.encode(api_version, uid);
    ([(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

fn is_json(content_type: Option<&HeaderValue>) -> bool {
    let kind = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Longest problem that is answered and logged, in characters: it may quote what was sent.
const MAX_PROBLEM: usize = 200;

/// That something was refused is told by the process, whoever sent it and wherever to.
static REFUSED: Seldom = Seldom::new();

fn refuse(problem: &str) -> Response {
    let problem: String = problem.chars().take(MAX_PROBLEM).collect();
    if REFUSED.is_due() {
        tracing::warn!(%problem, "request refused");
    }
    (StatusCode::BAD_REQUEST, format!("belay: {problem}\n")).into_response()
}
