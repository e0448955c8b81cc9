//! Who is connected, and who has to go when there is no room for anybody else.
//!
//! Being idle is free for minutes, since API servers keep their connections. So whoever opens as many as there may be and
//! does nothing would keep all others out. Where all are taken, the one that is missed least makes room: one that has
//! never asked for anything before one that has, the longest idle first. An API server that loses one so makes another.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::head_timer::Activity;

/// The connections that are open.
#[derive(Default)]
pub(super) struct Crowd {
    members: Mutex<HashMap<u64, Member>>,
    next: AtomicU64,
}

struct Member {
    activity: Arc<Activity>,
    go: Arc<Notify>,
}

/// A connection's place; it is given up when this is dropped.
pub(super) struct Place<'a> {
    crowd: &'a Crowd,
    number: u64,
    /// What goes on on it.
    pub(super) activity: Arc<Activity>,
    go: Arc<Notify>,
}

impl Crowd {
    /// One more connection.
    pub(super) fn join(&self) -> Place<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (activity, go) = (Arc::new(Activity::default()), Arc::new(Notify::new()));
        self.members.lock().insert(number, Member { activity: Arc::clone(&activity), go: Arc::clone(&go) });
        Place { crowd: self, number, activity, go }
    }

    /// Asks a connection to go that has had no request for this long; false where there is none. While there are some that
    /// have never asked for anything, none that has goes in their place, however young they are: who comes again and again
    /// must not drive out API servers that are quiet for a moment.
    pub(super) fn make_room(&self, idle_for: Duration) -> bool {
        let now = Instant::now();
        let members = self.members.lock();
        let idle = members.values().filter_map(|member| Some((member.activity.idle_since()?, member)));
        let missed_least = idle.min_by_key(|(since, member)| (member.activity.heads() > 0, *since));
        let spare = missed_least.filter(|(since, _)| now.duration_since(*since) >= idle_for);
        spare.inspect(|(_, member)| member.go.notify_one()).is_some()
    }
}

impl Place<'_> {
    /// Waits until it is asked to go.
    pub(super) async fn asked_to_go(&self) {
        self.go.notified().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.crowd.members.lock().remove(&self.number);
    }
}
