//! What Belay counts. Names follow Prometheus' conventions; label values come from enums and from the configuration,
//! never from users' names, so their number is bounded.

mod beginning;
mod certificates;
mod costs;
mod probe;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use certificates::Certificates;
pub use certificates::Role;
use costs::Costs;
use probe::Probe;

/// An eviction review, by answer and reason.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Review {
    decision: &'static str,
    reason: &'static str,
}

/// One word.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// The result of something.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// A write, by kind of object and result.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Write {
    kind: &'static str,
    result: &'static str,
}

/// Pods that a busy rule governs, by its name and their state.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BusyLabel {
    rule: String,
    state: &'static str,
}

/// The phase of a hold.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

/// All metrics, and the registry that serves them.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    evictions: Family<Review, Counter>,
    review_seconds: Family<PathLabel, Histogram, fn() -> Histogram>,
    records: Family<ResultLabel, Counter>,
    steered: Counter,
    writes: Family<Write, Counter>,
    handovers: Family<Outcome, Counter>,
    holds: Family<PhaseLabel, Gauge>,
    next_deadline: Gauge<f64, AtomicU64>,
    leader: Gauge,
    watch_failing: Family<KindLabel, Gauge>,
    busy_pods: Family<BusyLabel, Gauge>,
    busy_holds_ended: Family<Outcome, Counter>,
    hint_conflicts: Counter,
    stamped: Counter,
    responders: Counter,
    requests: Family<ResultLabel, Counter>,
    costs: Costs,
    certificates: Certificates,
    probe: Probe,
}

/// What is watched.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: Kind,
}

/// A kind that busy rules name is known only at run time.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Kind(Arc<str>);

impl EncodeLabelValue for Kind {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        (&*self.0).encode(encoder)
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PathLabel {
    path: &'static str,
}

/// From 5 microseconds, about what a decision takes, to a third of a second, when the API server gives up.
fn review_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_005, 2.0, 17))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("belay");
        let evictions = Family::default();
        registry.register("eviction_reviews", "Eviction reviews answered", evictions.clone());
        let review_seconds = Family::new_with_constructor(review_histogram as fn() -> Histogram);
        registry.register(
            "review_duration_seconds",
            "Time from a review's last byte to its answer",
            review_seconds.clone(),
        );
        let records = Family::default();
        registry.register("hold_records", "EvictionHolds recorded by the webhook", records.clone());
        let steered = Counter::default();
        registry.register("pods_steered", "New pods that were kept off their victim's node", steered.clone());
        let writes = Family::default();
        registry.register("writes", "Writes to the API", writes.clone());
        let handovers = Family::default();
        registry.register("handovers", "Holds that were released", handovers.clone());
        let holds = Family::default();
        registry.register("holds", "EvictionHolds known, by phase", holds.clone());
        let next_deadline = Gauge::default();
        registry.register(
            "hold_next_deadline_timestamp_seconds",
            "When the next open hold is released at the latest; 0 without open holds",
            next_deadline.clone(),
        );
        let leader = Gauge::default();
        registry.register("leader", "1 while this replica leads", leader.clone());
        let watch_failing = Family::default();
        registry.register(
            "watch_failing",
            "1 while objects of this kind cannot be watched, so that decisions are made on what was seen last",
            watch_failing.clone(),
        );
        let busy_pods = Family::default();
        registry.register("busy_pods", "Pods that busy rules govern, by rule and state", busy_pods.clone());
        let busy_holds_ended = Family::default();
        registry.register(
            "busy_holds_ended",
            "Holds of busy pods, and of idle ones to be retired, that ended",
            busy_holds_ended.clone(),
        );
        let hint_conflicts = Counter::default();
        registry.register(
            "hint_conflicts",
            "Hints that were left to somebody else, who changed or kept removing them",
            hint_conflicts.clone(),
        );
        let stamped = Counter::default();
        registry.register("pods_stamped", "New pods that got their first hints in their own create", stamped.clone());
        let responders = Counter::default();
        registry.register("pods_given_responder", "New pods that name Belay as a responder", responders.clone());
        let requests = Family::default();
        registry.register(
            "eviction_requests",
            "What became of EvictionRequests that Belay responds to",
            requests.clone(),
        );
        let costs = Costs::register(&mut registry);
        let probe = Probe::register(&mut registry);
        beginning::from_zero(&evictions, &records, &writes, &handovers, &busy_holds_ended);
        let certificates = Certificates::register(&mut registry);
        Self {
            registry: Mutex::new(registry),
            evictions,
            review_seconds,
            records,
            steered,
            writes,
            handovers,
            holds,
            next_deadline,
            leader,
            watch_failing,
            busy_pods,
            busy_holds_ended,
            hint_conflicts,
            stamped,
            responders,
            requests,
            costs,
            certificates,
            probe,
        }
    }
}

impl Metrics {
    /// Lets others register their own.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.registry.lock())
    }

    /// The text that Prometheus scrapes.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry.lock())?;
        Ok(text)
    }

    /// An eviction was answered.
    pub fn eviction(&self, decision: &'static str, reason: &'static str) {
        self.evictions.get_or_create(&Review { decision, reason }).inc();
    }

    /// A review took this long.
    pub fn review(&self, path: &'static str, seconds: f64) {
        self.review_seconds.get_or_create(&PathLabel { path }).observe(seconds);
    }

    /// A hold was recorded, or not.
    pub fn record(&self, result: &'static str) {
        self.records.get_or_create(&ResultLabel { result }).inc();
    }

    /// A new pod was kept off its victim's node.
    pub fn steered(&self) {
        self.steered.inc();
    }

    /// Something was written, or not.
    pub fn write(&self, kind: &'static str, result: &'static str) {
        self.writes.get_or_create(&Write { kind, result }).inc();
    }

    /// A hold was released.
    pub fn handover(&self, outcome: &'static str) {
        self.handovers.get_or_create(&Outcome { outcome }).inc();
    }

    /// How many holds there are in each phase, and the next deadline in seconds since 1970.
    pub fn holds(&self, phases: &[(&'static str, i64)], next_deadline: Option<f64>) {
        self.holds.clear();
        for (phase, count) in phases {
            self.holds.get_or_create(&PhaseLabel { phase }).set(*count);
        }
        self.next_deadline.set(next_deadline.unwrap_or_default());
    }

    /// The gauge of a watch: 1 while it cannot see.
    pub fn watch_failing(&self, kind: Arc<str>) -> Gauge {
        self.watch_failing.get_or_create_owned(&KindLabel { kind: Kind(kind) })
    }

    /// One more pod of a rule is in this state, or one less.
    pub fn busy_pod(&self, rule: &str, state: &'static str, change: i64) {
        self.busy_pods.get_or_create(&BusyLabel { rule: rule.to_owned(), state }).inc_by(change);
    }

    /// No pod is counted any more.
    pub fn no_busy_pods(&self) {
        self.busy_pods.clear();
    }

    /// A hold of a busy pod, or of an idle one to be retired, ended.
    pub fn busy_hold_ended(&self, outcome: &'static str) {
        self.busy_holds_ended.get_or_create(&Outcome { outcome }).inc();
    }

    /// So many hints were left to somebody else.
    pub fn hint_conflicts(&self, count: usize) {
        self.hint_conflicts.inc_by(count as u64);
    }

    /// A new pod got its first hints.
    pub fn stamped(&self) {
        self.stamped.inc();
    }

    /// A new pod names Belay as a responder.
    pub fn given_responder(&self) {
        self.responders.inc();
    }

    /// An EvictionRequest was held, left to the next responder, or withdrawn.
    pub fn responded(&self, result: &'static str) {
        self.requests.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts one of each kind, so that each kind is served.
    #[cfg(test)]
    pub(crate) fn count_everything(&self) {
        self.eviction("Hold", "AwaitingRestart");
        self.review("/validate/eviction", 0.000_1);
        self.record("Created");
        self.write("Deployment", "Ok");
        self.handover("HandedOver");
        self.holds(&[("Active", 1)], Some(1.0));
        self.watch_failing("pods".into());
        self.busy_pod("arc-runner", "Busy", 1);
        self.busy_hold_ended("JobEnded");
        self.responded("Held");
        self.cost_nodes(&[("Normal", 1)]);
        self.cost_write("Ok");
        self.cost_ranking(0.001, 1, 0);
        self.cost_stood_down(1, 0);
        let (not_before, not_after) = (jiff::Timestamp::UNIX_EPOCH, jiff::Timestamp::UNIX_EPOCH);
        self.certificate_validity(Role::Leaf, Some(webhook_certs::cert::Validity { not_before, not_after }));
        self.rotation_step(Some("Publish"));
        self.certificate_step_failed("Damaged");
        self.probed("Reached", Some(true), jiff::Timestamp::UNIX_EPOCH);
    }

    /// Whether this replica leads.
    pub fn leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_counted_is_served_with_help() {
        let metrics = Metrics::default();
        metrics.count_everything();
        let text = metrics.encode().unwrap();
        assert!(text.contains(r#"belay_eviction_reviews_total{decision="Hold",reason="AwaitingRestart"} 1"#), "{text}");
        let helped: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
        assert_eq!(helped.len(), 33, "each metric has its HELP: {text}");
    }
}
