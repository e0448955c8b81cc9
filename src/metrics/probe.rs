//! What is counted of probes: whether the API server reaches the webhook.

use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Metrics, ResultLabel};

/// No label at all.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Unlabelled {}

/// What a probe finds, as `docs/operations.md` lists it; served from 0 on, see [`super::beginning`].
const RESULTS: [&str; 4] = ["Reached", "NotReached", "Refused", "Unreachable"];

/// What is counted of probes. The gauges are families without labels, since what is not known is not served.
#[derive(Debug)]
pub(super) struct Probe {
    reached: Family<Unlabelled, Gauge>,
    last_reached: Family<Unlabelled, Gauge<f64, AtomicU64>>,
    results: Family<ResultLabel, Counter>,
}

impl Probe {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let probe = Self { reached: Family::default(), last_reached: Family::default(), results: Family::default() };
        registry.register(
            "probe_reached",
            "Whether the API server reached the webhook at the last probe; absent while that is not known",
            probe.reached.clone(),
        );
        registry.register(
            "probe_last_reached_timestamp_seconds",
            "When a probe last found that the API server reaches the webhook; absent before the first time",
            probe.last_reached.clone(),
        );
        registry.register("probes", "Probes of whether the API server reaches the webhook", probe.results.clone());
        for result in RESULTS {
            probe.results.get_or_create(&ResultLabel { result }).inc_by(0);
        }
        probe
    }
}

impl Metrics {
    /// A probe found this at that time; `reached` is absent where it could not tell.
    pub fn probed(&self, result: &'static str, reached: Option<bool>, at: Timestamp) {
        self.probe.results.get_or_create(&ResultLabel { result }).inc();
        match reached {
            Some(reached) => {
                self.probe.reached.get_or_create(&Unlabelled {}).set(i64::from(reached));
            }
            None => self.probe.reached.clear(),
        }
        if reached == Some(true) {
            self.probe.last_reached.get_or_create(&Unlabelled {}).set(at.as_millisecond() as f64 / 1000.0);
        }
    }

    /// This replica does not lead, so it does not know.
    pub fn no_probe(&self) {
        self.probe.reached.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_served() {
        let metrics = Metrics::default();
        let served = |name: &str| {
            let text = metrics.encode().unwrap();
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned()))
        };
        let (reached, last) = ("belay_probe_reached", "belay_probe_last_reached_timestamp_seconds");
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!((served(reached), served(last)), (None, None), "before the first probe");
        assert_eq!(served("belay_probes_total{result=\"Refused\"}").as_deref(), Some("0"));
        metrics.probed("NotReached", Some(false), at(10));
        assert_eq!((served(reached).as_deref(), served(last)), (Some("0"), None));
        metrics.probed("Reached", Some(true), at(20));
        assert_eq!((served(reached).as_deref(), served(last).as_deref()), (Some("1"), Some("20.0")));
        metrics.probed("Refused", None, at(30));
        assert_eq!((served(reached), served(last).as_deref()), (None, Some("20.0")));
        metrics.probed("NotReached", Some(false), at(40));
        assert_eq!((served(reached).as_deref(), served(last).as_deref()), (Some("0"), Some("20.0")));
        metrics.no_probe();
        assert_eq!((served(reached), served(last).as_deref()), (None, Some("20.0")), "another replica leads");
        assert_eq!(served("belay_probes_total{result=\"NotReached\"}").as_deref(), Some("2"));
    }
}
