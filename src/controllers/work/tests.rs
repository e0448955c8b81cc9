use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::*;

/// Long enough for anything here to happen on a busy machine, and still an end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Work on numbers. Each look waits until the test ends it.
struct Numbers {
    shared: Arc<Shared>,
    looks: mpsc::UnboundedSender<Look>,
    observed: watch::Sender<Option<bool>>,
}

#[derive(Default)]
struct Shared {
    dirty: Mutex<BTreeSet<u32>>,
    changed: Notify,
    all: Mutex<BTreeSet<u32>>,
    under_way: Mutex<BTreeSet<u32>>,
    most_at_once: Mutex<usize>,
}

/// A look that has begun.
struct Look {
    key: u32,
    end: oneshot::Sender<Option<Timestamp>>,
}

impl Look {
    fn end(self, wake: Option<Timestamp>) {
        self.end.send(wake).expect("the loop waits for it");
    }
}

impl Work for Numbers {
    type Key = u32;

    async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    fn take(&self) -> BTreeSet<u32> {
        std::mem::take(&mut *self.shared.dirty.lock())
    }

    fn touch_all(&self) {
        let all = self.shared.all.lock().clone();
        self.shared.dirty.lock().extend(all);
    }

    async fn look(&self, key: &u32) -> Option<Timestamp> {
        assert!(self.shared.under_way.lock().insert(*key), "{key} is looked at twice at once");
        let now = self.shared.under_way.lock().len();
        {
            let mut most = self.shared.most_at_once.lock();
            *most = now.max(*most);
        }
        let (end, ended) = oneshot::channel();
        self.looks.send(Look { key: *key, end }).expect("the test listens");
        let wake = ended.await.expect("the test ends each look");
        self.shared.under_way.lock().remove(key);
        wake
    }

    fn observe(&self, leading: bool) {
        self.observed.send_replace(Some(leading));
    }

    /// From here on.
    fn is_urgent(&self, key: &u32) -> bool {
        *key >= URGENT
    }
}

const URGENT: u32 = 1000;

/// A loop that runs.
struct Running {
    shared: Arc<Shared>,
    looks: mpsc::UnboundedReceiver<Look>,
    observed: watch::Receiver<Option<bool>>,
    leadership: Arc<Leadership>,
    health: Health,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// A loop over these numbers that neither leads nor sees.
fn start(all: impl IntoIterator<Item = u32>) -> Running {
    let shared = Arc::new(Shared { all: Mutex::new(all.into_iter().collect()), ..Shared::default() });
    let (sender, looks) = mpsc::unbounded_channel();
    let (observing, observed) = watch::channel(None);
    let numbers = Numbers { shared: Arc::clone(&shared), looks: sender, observed: observing };
    let (leadership, stop) = (Arc::new(Leadership::default()), CancellationToken::new());
    let health = Health::new("numbers", Gauge::default());
    let task = tokio::spawn({
        let (leadership, stop, health) = (Arc::clone(&leadership), stop.clone(), health.clone());
        async move { run(numbers, &leadership, &[health], stop).await }
    });
    Running { shared, looks, observed, leadership, health, stop, task }
}

/// One that sees and leads.
fn leading(all: impl IntoIterator<Item = u32>) -> Running {
    let running = start(all);
    running.health.absent();
    running.leadership.win();
    running
}

impl Running {
    fn touch(&self, keys: impl IntoIterator<Item = u32>) {
        self.shared.dirty.lock().extend(keys);
        self.shared.changed.notify_one();
    }

    /// The next look that begins.
    async fn next(&mut self) -> Look {
        tokio::time::timeout(PATIENCE, self.looks.recv()).await.expect("nothing is looked at").unwrap()
    }

    /// The next look is at this number; ends it.
    async fn looks_at(&mut self, key: u32, wake: Option<Timestamp>) {
        let look = self.next().await;
        assert_eq!(look.key, key);
        look.end(wake);
    }

    /// All of these are looked at next, in any order; ends each.
    async fn looks_at_all(&mut self, keys: impl IntoIterator<Item = u32>) {
        let mut keys: BTreeSet<_> = keys.into_iter().collect();
        while !keys.is_empty() {
            let look = self.next().await;
            assert!(keys.remove(&look.key), "{} is looked at out of turn", look.key);
            look.end(None);
        }
    }

    /// The loop has seen whether it leads.
    async fn observes(&mut self, leading: bool) {
        let seen = self.observed.wait_for(|seen| *seen == Some(leading));
        tokio::time::timeout(PATIENCE, seen).await.expect("the lead is not looked at").unwrap();
    }

    /// The loop has taken what changed.
    async fn takes(&self) {
        let taken = async {
            while !self.shared.dirty.lock().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, taken).await.expect("what changed is not taken");
    }

    async fn ended(self) {
        tokio::time::timeout(PATIENCE, self.task).await.expect("the loop does not end").unwrap();
    }
}

fn within(millis: i64) -> Timestamp {
    Clock::wall().checked_add(SignedDuration::from_millis(millis)).unwrap()
}

/// After the end of any test.
fn never() -> Timestamp {
    within(3_600_000)
}

#[tokio::test]
async fn what_changed_is_looked_at_and_again_when_its_time_has_come() {
    let mut running = leading([]);
    running.touch([1]);
    let wake = within(50);
    running.looks_at(1, Some(wake)).await;
    running.looks_at(1, None).await;
    assert!(Clock::wall() >= wake, "not before");
    // Without a time, only when it changes: of these the other one is next.
    running.touch([2]);
    running.looks_at(2, None).await;
    running.touch([1]);
    running.looks_at(1, None).await;
}

#[tokio::test]
async fn a_change_before_its_time_is_looked_at_at_once_and_sets_the_time_anew() {
    let mut running = leading([]);
    running.touch([1]);
    running.looks_at(1, Some(never())).await;
    running.touch([1]);
    let wake = within(50);
    running.looks_at(1, Some(wake)).await;
    running.looks_at(1, Some(never())).await;
    assert!(Clock::wall() >= wake, "the later time counts");
    running.touch([2]);
    running.looks_at(2, None).await;
}

#[tokio::test]
async fn nothing_is_looked_at_twice_at_once_and_what_changes_meanwhile_comes_after() {
    let mut running = leading([]);
    running.touch([1]);
    let first = running.next().await;
    for other in [2, 3] {
        running.touch([1, other]);
        running.looks_at(other, None).await;
    }
    first.end(Some(never()));
    running.looks_at(1, None).await;
}

#[tokio::test]
async fn no_more_are_under_way_than_may_be_and_none_is_forgotten() {
    let mut running = leading([]);
    running.touch(0..50);
    let mut under_way = Vec::new();
    for _ in 0..CONCURRENCY {
        under_way.push(running.next().await);
    }
    running.touch(50..60);
    let mut seen: BTreeSet<_> = under_way.iter().map(|look| look.key).collect();
    while seen.len() < 60 {
        under_way.pop().expect("one is under way").end(None);
        let next = running.next().await;
        assert!(seen.insert(next.key), "{} comes again", next.key);
        under_way.push(next);
    }
    assert_eq!(*running.shared.most_at_once.lock(), CONCURRENCY);
}

#[tokio::test]
async fn what_somebody_waits_for_goes_before_what_is_due_already() {
    let mut running = leading([]);
    running.touch(0..50);
    let mut under_way = Vec::new();
    for _ in 0..CONCURRENCY {
        under_way.push(running.next().await);
    }
    running.touch([URGENT]);
    under_way.pop().expect("one is under way").end(None);
    let next = running.next().await;
    assert_eq!(next.key, URGENT);
    for look in under_way.into_iter().chain([next]) {
        look.end(None);
    }
    running.looks_at_all(16..50).await;
}

#[tokio::test]
async fn who_does_not_lead_looks_at_nothing_and_a_new_leader_at_everything_once() {
    let mut running = start([1, 2, 3]);
    running.health.absent();
    running.touch([1, 9]);
    running.takes().await;
    running.leadership.win();
    running.looks_at_all([1, 2, 3]).await;
    running.touch([9]);
    running.looks_at(9, None).await;
}

#[tokio::test(start_paused = true)]
async fn who_leads_already_looks_at_everything_at_once() {
    let begun = tokio::time::Instant::now();
    leading([1, 2]).looks_at_all([1, 2]).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn everything_is_looked_at_once_after_the_lead_was_lost_and_won_again() {
    let mut running = leading([1, 2]);
    running.looks_at_all([1, 2]).await;
    running.touch([2]);
    let late = running.next().await;
    running.leadership.lose();
    running.observes(false).await;
    running.touch([1, 3]);
    running.takes().await;
    // Begun while it led, it is ended; that it would come again is forgotten.
    late.end(Some(never()));
    running.leadership.win();
    running.looks_at_all([1, 2]).await;
    running.touch([4]);
    running.looks_at(4, None).await;
}

#[tokio::test]
async fn a_lead_that_runs_out_ends_without_anybody_saying_so() {
    let mut running = leading([1]);
    let look = running.next().await;
    running.leadership.run_out();
    running.touch([2]);
    running.observes(false).await;
    look.end(None);
    running.leadership.win();
    running.looks_at_all([1]).await;
    running.touch([3]);
    running.looks_at(3, None).await;
}

#[tokio::test]
async fn nothing_is_looked_at_before_the_caches_are_filled() {
    let mut running = start([1]);
    running.leadership.win();
    running.touch([2]);
    // As often as the loop could have gone round.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(running.looks.try_recv().is_err());
    running.health.absent();
    running.looks_at_all([1, 2]).await;

    let running = start([1]);
    running.stop.cancel();
    running.ended().await;
}

#[tokio::test]
async fn told_to_stop_it_ends_what_is_under_way_and_begins_nothing_new() {
    let mut running = leading([]);
    running.touch([1, 2]);
    let (one, two) = (running.next().await, running.next().await);
    running.stop.cancel();
    for look in [one, two] {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!running.task.is_finished(), "{} is still under way", look.key);
        running.touch([look.key, 3]);
        look.end(Some(within(0)));
    }
    let mut looks = std::mem::replace(&mut running.looks, mpsc::unbounded_channel().1);
    running.ended().await;
    assert!(looks.recv().await.is_none(), "something was begun after the stop");
}

#[test]
fn the_urgent_go_first_and_the_others_in_their_order() {
    let mut due = Due::default();
    for (key, is_urgent) in [("z", false), ("a", false), ("m", false), ("u", true), ("m", true), ("z", false)] {
        due.insert(key, is_urgent);
    }
    assert_eq!(due.take(2, &HashSet::from(["u"])), ["m", "z"], "one that is being looked at waits");
    assert_eq!(due.take(9, &HashSet::new()), ["u", "a"]);
    assert!(due.take(9, &HashSet::new()).is_empty() && due.known.is_empty());
    due.insert("m", false);
    assert_eq!(due.take(9, &HashSet::new()), ["m"], "it may become due again");
}

#[test]
fn what_is_due_is_taken_once_and_the_soonest_sets_the_sleep() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut wakes = Wakes::default();
    assert_eq!(wakes.sleep(at(0)), LONGEST_SLEEP);
    wakes.insert("later", at(3));
    wakes.insert("moved", at(9));
    wakes.insert("moved", at(2));
    assert_eq!(wakes.sleep(at(0)), Duration::from_millis(2005));
    assert_eq!(wakes.take_due(at(2)), BTreeSet::from(["moved"]));
    assert_eq!(wakes.take_due(at(2)), BTreeSet::new());
    wakes.remove(&"later");
    assert_eq!(wakes.sleep(at(0)), LONGEST_SLEEP);
}

#[test]
fn a_failed_write_is_tried_again_soon_unless_somebody_must_act_first() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let (object, message) = (|| "Pod ci/w".to_owned(), || "words".to_owned());
    let table = [
        (ApplyError::NotLeading { object: object() }, RETRY),
        (ApplyError::Conflict { object: object() }, RETRY),
        (ApplyError::Gone { object: object() }, RETRY),
        (ApplyError::Unreachable { object: object(), message: message() }, RETRY),
        (ApplyError::Forbidden { object: object(), message: message() }, RETRY_REFUSED),
        (ApplyError::Refused { object: object(), message: message() }, RETRY_REFUSED),
    ];
    for (error, pause) in table {
        assert_eq!(again(&error, now), now + pause, "{error}");
    }
    assert_eq!(again(&ApplyError::Gone { object: object() }, Timestamp::MAX), Timestamp::MAX);
}

#[test]
fn a_pods_writes_that_fail_one_after_the_other_wait_for_longer_each_time() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let pod = PodKey::new("ci", "w");
    let (object, message) = (|| "Pod ci/w".to_owned(), || "words".to_owned());
    let table: [(ApplyError, &[i64]); 4] = [
        (ApplyError::Conflict { object: object() }, &[2, 4, 8]),
        (ApplyError::Unreachable { object: object(), message: message() }, &[2, 4, 8, 16, 30, 30]),
        (ApplyError::Forbidden { object: object(), message: message() }, &[15, 30, 60, 120, 240, 300]),
        (ApplyError::Refused { object: object(), message: message() }, &[300, 300]),
    ];
    for (error, seconds) in table {
        let failures = Failures::default();
        let pause = || pod_failed(&pod, "not written", &error, failures.add(&pod), now).duration_since(now).as_secs();
        let pauses: Vec<_> = seconds.iter().map(|_| pause()).collect();
        assert_eq!(pauses, seconds, "{error}");
        assert_eq!(pod_failed(&pod, "not written", &error, u32::MAX, Timestamp::MAX), Timestamp::MAX);
        failures.forget(&pod);
        assert_eq!(failures.add(&pod), 0);
    }
}

#[test]
fn what_was_written_is_awaited_until_another_version_is_seen() {
    let old = |uid: &str, version: &str| Superseded { uid: uid.into(), version: version.into() };
    let seen = |versions: &[(&str, &str)]| {
        let owned: Vec<_> = versions.iter().map(|(uid, version)| ((*uid).to_owned(), (*version).to_owned())).collect();
        owned.into_iter()
    };
    let written = Written::default();
    assert!(!written.is_awaited(&1, seen(&[("a", "1")])), "nothing was written");
    written.add(&1, vec![old("a", "1")]);
    written.add(&1, vec![old("b", "5"), old("a", "2")]);
    written.add(&2, Vec::new());
    for versions in [[("a", "1"), ("b", "6")], [("a", "2"), ("b", "6")], [("a", "3"), ("b", "5")]] {
        assert!(written.is_awaited(&1, seen(&versions)), "{versions:?}");
    }
    assert!(!written.is_awaited(&2, seen(&[("a", "1")])), "another key, or a write that changed nothing");
    assert!(!written.is_awaited(&1, seen(&[("a", "3"), ("b", "6")])), "all is seen");
    assert!(!written.is_awaited(&1, seen(&[("a", "1")])), "and nothing is remembered");

    written.add(&1, vec![old("a", "1")]);
    assert!(!written.is_awaited(&1, seen(&[])), "the object is gone");
    written.add(&1, vec![old("a", "1")]);
    written.forget(&1);
    assert!(!written.is_awaited(&1, seen(&[("a", "1")])));
    assert!(written.0.lock().is_empty(), "nothing is kept for ever");
}
