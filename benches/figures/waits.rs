//! How long an answer waits for what else goes on in its process: a list of everything that comes anew, a look at
//! everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belay::cluster::costs::{CostSink, Costs, Pair};
use belay::cluster::index::{Index, IndexSink};
use belay::cluster::watch::Sink as _;
use belay_decide::cost::Options;
use belay_decide::cost::cluster::Cluster;
use belay_decide::policy::DefaultPolicy;
use jiff::SignedDuration;

use crate::cluster::{Size, fill, now, pod_views};
use crate::table::{Table, Times, millis};

const SIZE: Size = Size { pods: 50_000 };

/// Between two questions, so that most of the time nobody asks.
const PAUSE: Duration = Duration::from_micros(200);

/// As often as is quick.
const BINDS: usize = 20_000;

pub(crate) fn measure(table: &mut Table) {
    let index = Index::new(Vec::new());
    let costs = Costs::new(Cluster::new(Options::default(), SignedDuration::from_mins(10)).only_ranks());
    fill(&index, &costs, SIZE);
    costs.look(now());

    let binds = Times::of(BINDS, bind_of(&costs), |bind| bind());
    table.note("the value of a pod at its bind, median", format!("{:.4} ms", binds.percentile(50)));
    table.note("the value of a pod at its bind, 99 of 100", format!("{:.4} ms", binds.percentile(99)));

    // Once in each five minutes: what depends on the time.
    let later = now() + SignedDuration::from_mins(5);
    let (whole, waits) = waits(&index, &costs, || drop(costs.look(later)));
    table.note(&format!("a look at everything, {} pods", SIZE.pods), format!("{whole:.1} ms"));
    waits.note(table, "a look at everything");

    let views: Vec<_> = pod_views(SIZE).collect();
    let mut both = Pair(IndexSink(index.clone()), CostSink(Some(costs.clone())));
    let (whole, waits) = self::waits(&index, &costs, move || both.replace(views));
    table.note(&format!("a list of all {} pods that comes anew", SIZE.pods), format!("{whole:.1} ms"));
    waits.note(table, "a list that comes anew");
}

/// Binds of pods by turns, each ready to be answered.
fn bind_of(costs: &Costs) -> impl FnMut(usize) -> Box<dyn FnOnce() -> Option<i32>> + use<> {
    let costs = costs.clone();
    move |number| {
        let known = crate::cluster::known(SIZE, number % SIZE.pods);
        let node = known.pod.node.clone().unwrap_or_default();
        let coming = belay_decide::cost::CostPod { node: None, ..known.pod };
        let costs = costs.clone();
        Box::new(move || costs.write(|cluster| cluster.value_at_bind(&coming, &node, now())))
    }
}

/// The longest waits, in milliseconds.
struct Waits {
    eviction: f64,
    bind: f64,
}

impl Waits {
    fn note(&self, table: &mut Table, what: &str) {
        table.note(&format!("longest that an eviction waits for {what}"), format!("{:.2} ms", self.eviction));
        table.note(&format!("longest that a bind waits for {what}"), format!("{:.2} ms", self.bind));
    }
}

/// Asks both caches all the while as answers do; also how long the work took.
fn waits(index: &Index, costs: &Costs, work: impl FnOnce()) -> (f64, Waits) {
    let over = Arc::new(AtomicBool::new(false));
    let ask = {
        let (index, costs, over) = (index.clone(), costs.clone(), Arc::clone(&over));
        std::thread::spawn(move || {
            let default = DefaultPolicy::default();
            let mut waits = Waits { eviction: 0.0, bind: 0.0 };
            while !over.load(Ordering::Relaxed) {
                let started = Instant::now();
                index.victim("team-0", "service-0-6d4cf56db6-00000", &default, true, |facts| facts.victim.is_some());
                waits.eviction = waits.eviction.max(millis(started.elapsed()));
                let started = Instant::now();
                costs.write(|cluster| cluster.may_have_value("nobody", "nowhere"));
                waits.bind = waits.bind.max(millis(started.elapsed()));
                std::thread::sleep(PAUSE);
            }
            waits
        })
    };
    let started = Instant::now();
    work();
    let whole = millis(started.elapsed());
    over.store(true, Ordering::Relaxed);
    (whole, ask.join().unwrap_or(Waits { eviction: f64::NAN, bind: f64::NAN }))
}
