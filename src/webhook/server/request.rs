//! One request: its body read within limits, the router called, and an answer made in any case.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt as _;

use super::Shared;
use super::head_timer::Activity;

/// How many times the body limit is read and thrown away for the sake of a clean 413. A connection that is
/// closed on a client that still sends is reset, and the answer is lost.
const DISCARD: usize = 4;

/// Bodies up to this size are ordinary: reviews of pods are 8 kB, of evictions 1 kB.
const SMALL_BODY: usize = 32 << 10;

/// Why the router did not answer a request that was read whole. The name is the metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There were too many requests in flight when it came.
    Overloaded,
    /// The handler panicked.
    Panicked,
    /// The handler took too long, and was dropped.
    TimedOut,
}

impl Trouble {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overloaded => "Overloaded",
            Self::Panicked => "Panicked",
            Self::TimedOut => "TimedOut",
        }
    }
}

/// A request that was read whole and that the router did not answer.
#[derive(Clone, Copy, Debug)]
pub struct Unserved<'a> {
    /// Why.
    pub trouble: Trouble,
    /// Where it went to.
    pub uri: &'a Uri,
    /// What its body is.
    pub content_type: Option<&'a HeaderValue>,
    /// Its body.
    pub body: &'a Bytes,
}

/// Why a body was not read to its end.
enum Unread {
    TooLarge,
    NoRoom,
    Slow,
    Broken,
}

/// Answers a request: 413 where the body is too large, 408 where it is too slow, 400 where it breaks off, 503 where
/// there is no memory for it; else what the router says, or the fallback in its place.
pub(super) async fn answer(shared: &Shared, activity: &Activity, request: Request<Incoming>) -> Response {
    let _active = activity.begin();
    let has_connection_header = request.version() <= Version::HTTP_11;
    let mut response = respond(shared, request).await;
    if has_connection_header && shared.leaving.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn respond(shared: &Shared, request: Request<Incoming>) -> Response {
    let deadline = Instant::now() + shared.options.request_timeout;
    // Held until the answer is made; without it, the request is over the limit.
    let permit = shared.in_flight.try_acquire();
    let (parts, incoming) = request.into_parts();
    let may_wait = parts.version <= Version::HTTP_11;
    let read =
        timeout_at(deadline, read(shared, incoming, permit.is_ok(), may_wait)).await.unwrap_or(Err(Unread::Slow));
    let (body, _room) = match read {
        Ok(read) => read,
        Err(unread) => return refuse(shared, &unread),
    };
    let uri = parts.uri.clone();
    let content_type = parts.headers.get(CONTENT_TYPE).cloned();
    let stand_in = |trouble: Trouble| {
        shared.telemetry.unserved(trouble.name());
        let unserved = Unserved { trouble, uri: &uri, content_type: content_type.as_ref(), body: &body };
        catch_unwind(AssertUnwindSafe(|| (shared.fallback)(unserved)))
            .unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
    };
    if permit.is_err() {
        return stand_in(Trouble::Overloaded);
    }
    let request = Request::from_parts(parts, Body::from(body.clone()));
    let handled = async { shared.router.clone().oneshot(request).await };
    match timeout_at(deadline, AssertUnwindSafe(handled).catch_unwind()).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(never))) => match never {},
        Ok(Err(_panic)) => stand_in(Trouble::Panicked),
        Err(_elapsed) => stand_in(Trouble::TimedOut),
    }
}

/// Memory for one body.
enum Room<'a> {
    /// Small, and of a request within the limit of those in flight: that limit bounds the memory of these, so a large
    /// body never holds back an ordinary review.
    Free,
    /// Held until this is dropped.
    Reserved { _share: SemaphorePermit<'a> },
}

impl<'a> Room<'a> {
    /// Room for a body of `expected` bytes, as much as it may become where that is not known: bodies that held a part
    /// each and waited for the rest could wait for ever. None where there is none and it
    /// must not be waited for.
    async fn find(shared: &'a Shared, expected: Option<usize>, is_in_flight: bool, may_wait: bool) -> Option<Self> {
        let limit = shared.options.body_limit;
        if is_in_flight && expected.is_some_and(|bytes| bytes <= SMALL_BODY) {
            return Some(Self::Free);
        }
        let share = kibibytes(expected.unwrap_or(limit)).min(kibibytes(shared.options.body_budget));
        let share = if may_wait {
            shared.budget.acquire_many(share).await.ok()
        } else {
            shared.budget.try_acquire_many(share).ok()
        };
        share.map(|share| Self::Reserved { _share: share })
    }
}

/// A whole body, and its memory.
///
/// Where there is no room, HTTP/1.1 waits for it: the client's own connection holds it back. Requests on one HTTP/2
/// connection share a window, and one that waits with its body unread would hold back those that it waits for; so
/// there, the body is thrown away.
async fn read(
    shared: &Shared,
    mut incoming: Incoming,
    is_in_flight: bool,
    may_wait: bool,
) -> Result<(Bytes, Room<'_>), Unread> {
    let limit = shared.options.body_limit;
    let expected = incoming.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if expected.is_some_and(|bytes| bytes > limit.saturating_mul(DISCARD)) {
        return Err(Unread::TooLarge);
    }
    let room = match expected {
        Some(bytes) if bytes > limit => None,
        _ => Room::find(shared, expected, is_in_flight, may_wait).await,
    };
    let (mut size, mut body) = (0_usize, Pieces::default());
    while let Some(frame) = incoming.frame().await {
        let Ok(data) = frame.map_err(|_| Unread::Broken)?.into_data() else { continue };
        size += data.len();
        if size > limit.saturating_mul(DISCARD) {
            return Err(Unread::TooLarge);
        }
        if room.is_some() && size <= limit {
            body.push(data, expected.unwrap_or(limit));
        }
    }
    match room {
        _ if size > limit => Err(Unread::TooLarge),
        None => Err(Unread::NoRoom),
        Some(room) => Ok((body.whole(), room)),
    }
}

/// A body as it arrives; one that comes in one piece, as most do, is never copied.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    joined: Option<BytesMut>,
}

impl Pieces {
    fn push(&mut self, data: Bytes, expected: usize) {
        if self.first.is_empty() {
            self.first = data;
            return;
        }
        let joined = self.joined.get_or_insert_with(|| {
            let mut joined = BytesMut::with_capacity(expected);
            joined.extend_from_slice(&self.first);
            joined
        });
        joined.extend_from_slice(&data);
    }

    fn whole(self) -> Bytes {
        self.joined.map_or(self.first, BytesMut::freeze)
    }
}

/// Size in the memory budget's unit, rounded up: the semaphore counts in 32 bits.
pub(super) fn kibibytes(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

fn refuse(shared: &Shared, unread: &Unread) -> Response {
    let (reason, status, text) = match unread {
        Unread::TooLarge => ("TooLarge", StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
        Unread::NoRoom => ("NoRoom", StatusCode::SERVICE_UNAVAILABLE, "too many large bodies at once"),
        Unread::Slow => ("SlowBody", StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        Unread::Broken => ("BrokenBody", StatusCode::BAD_REQUEST, "the body broke off"),
    };
    shared.telemetry.unserved(reason);
    plain(status, text)
}

/// What is answered where the caller gave no fallback.
pub(super) fn plain_answer(unserved: Unserved<'_>) -> Response {
    match unserved.trouble {
        Trouble::Overloaded => plain(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once"),
        Trouble::Panicked => plain(StatusCode::INTERNAL_SERVER_ERROR, "internal error"),
        Trouble::TimedOut => plain(StatusCode::SERVICE_UNAVAILABLE, "not answered in time"),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    (status, format!("belay: {text}\n")).into_response()
}
